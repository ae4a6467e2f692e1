//! The terminal's part of a soak: a chat of thousands of turns that is killed now and then, and short commands, right and
//! wrong, beside it.

use super::Running;
use crate::command::Result;
use crate::machine::Machine;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A chat is killed within a turn after so many.
const TURNS: usize = 100;

/// What is said in turn; some of it is not UTF-8, has control characters or is long.
const LINES: &[&[u8]] = &[
    b"Hello!",
    b"What is the opposite of big?",
    b"\xff\xfe\x80 not UTF-8",
    b"My name is Ada.",
    b"\x1b[31mred\x07\x00 and \xf0\x9f\x90\xa2",
    b"What is my name?",
    b"3 plus 4?",
];

fn command(program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env("SHOHIN_WEIGHT_CACHE", "none");
    command
}

/// A chat whose session is in a file.
struct Chat {
    process: Running,
    says: BufReader<ChildStdout>,
    hears: ChildStdin,
}

impl Chat {
    fn start(program: &Path, session: &str) -> Result<Chat> {
        let args = ["chat", "--session", session, "-n", "24", "--context", "256"];
        let mut chat = command(program, &args);
        chat.stdin(Stdio::piped()).stderr(Stdio::null());
        let mut process = Running(chat.spawn().map_err(|e| format!("{}: {e}", program.display()))?);
        let says = process.0.stdout.take().ok_or("the chat has no output")?;
        let hears = process.0.stdin.take().ok_or("the chat has no input")?;
        Ok(Chat { process, says: BufReader::new(says), hears })
    }

    fn say(&mut self, line: &[u8]) -> Result<()> {
        let sent = self.hears.write_all(line).and_then(|()| self.hears.write_all(b"\n"));
        sent.map_err(|e| format!("the chat in the terminal ended: {e}"))
    }

    fn answer(&mut self) -> Result<()> {
        let mut line = Vec::new();
        match self.says.read_until(b'\n', &mut line) {
            Ok(0) => Err("the chat in the terminal ended without an answer".into()),
            Ok(_) => Ok(()),
            Err(e) => Err(format!("the chat in the terminal: {e}")),
        }
    }

    /// Resident memory in kB; 0 if the system does not tell.
    fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.0.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    }
}

/// Chats until it is over; an error if a turn is not answered, a session is lost or memory grows.
pub(super) fn soak(machine: &Machine, program: &Path, over: &AtomicBool) -> Result<()> {
    let folder = machine.target.join("soak");
    let io = |e| format!("{}: {e}", folder.display());
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(io)?;
    let session = folder.join("chat.session");
    let path = session.to_string_lossy().into_owned();
    let damaged = folder.join("damaged.gguf");
    let mut bytes = fs::read(machine.root.join("models/sprout.gguf")).map_err(io)?;
    bytes.truncate(bytes.len() / 2);
    fs::write(&damaged, bytes).map_err(io)?;
    let damaged = damaged.to_string_lossy().into_owned();
    let expected = run(program, &["run", "-n", "8", "--temp", "0", "Hello!"])?.stdout;

    let mut chat = Chat::start(program, &path)?;
    let (mut turns, mut kills, mut commands) = (0, 0, 0);
    let (mut early, mut most) = (0, 0);
    while !over.load(Ordering::Relaxed) {
        for _ in 0..TURNS {
            chat.say(LINES[turns % LINES.len()])?;
            chat.answer()?;
            turns += 1;
            std::thread::sleep(Duration::from_millis(50));
        }
        // After the first turns everything has been allocated that a chat needs.
        let resident = chat.resident();
        most = most.max(resident);
        if early == 0 {
            early = resident;
        }
        chat.say(LINES[0])?;
        std::thread::sleep(Duration::from_millis(turns as u64 % 7));
        drop(chat);
        kills += 1;
        // The file has the session as it was before or after that turn.
        let found = run(program, &["run", "--session", &path, "-n", "4", "Hello!"])?;
        if !found.status.success() {
            return Err(format!(
                "a killed chat lost its session: {}",
                String::from_utf8_lossy(&found.stderr)
            ));
        }
        commands += short(program, &damaged, &expected)?;
        chat = Chat::start(program, &path)?;
    }
    println!(
        "terminal: {turns} turns of a chat, killed {kills} times, and {commands} commands; memory {early} kB after \
         {TURNS} turns, {most} kB at most"
    );
    if most > early + early / 8 + 4096 {
        return Err("the memory of a chat grows".into());
    }
    Ok(())
}

fn run(program: &Path, args: &[&str]) -> Result<Output> {
    command(program, args).output().map_err(|e| format!("{}: {e}", program.display()))
}

/// Commands that end at once; returns how many.
fn short(program: &Path, damaged: &str, expected: &[u8]) -> Result<usize> {
    let right: &[&[&str]] = &[&["run", "-n", "8", "--temp", "0", "Hello!"]];
    // Each with its exit status.
    let wrong: &[(&[&str], i32)] = &[
        (&["run", "-m", damaged, "Hello!"], 1),
        (&["inspect", "-m", "/dev/null"], 1),
        (&["run", "--temp", "hot", "Hello!"], 2),
        (&["run", "--json-schema", "{\"type\": 3}", "Hello!"], 2),
        (&["run", "--session", damaged, "Hello!"], 1),
    ];
    for args in right {
        let found = run(program, args)?;
        if !found.status.success() || found.stdout != expected {
            return Err(format!("{args:?} printed {:?}", String::from_utf8_lossy(&found.stdout)));
        }
    }
    for (args, status) in wrong {
        let found = run(program, args)?;
        if found.status.code() != Some(*status) || found.stderr.is_empty() {
            let said = String::from_utf8_lossy(&found.stderr);
            return Err(format!("{args:?} ended with {}, expected {status}: {said}", found.status));
        }
    }
    Ok(right.len() + wrong.len())
}
