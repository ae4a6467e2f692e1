//! The terminal's part of a soak: chats of one session, closed or killed while they save it, and short commands, right and
//! wrong, between them.

use super::{Running, SOON};
use crate::command::Result;
use crate::machine::Machine;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Turns of a chat.
const TURNS: usize = 100;

/// Everything that a chat needs has been allocated after so many turns.
const WARM: usize = 20;

/// One chat of so many is killed while it saves its session.
const KILLED: usize = 3;

/// Tokens of a session, which is full after some turns.
const CONTEXT: &str = "256";

/// The user's messages, in turn; some are not UTF-8 or have control characters.
const LINES: &[&[u8]] = &[
    b"Hello!",
    b"What is the opposite of big?",
    b"\xff\xfe\x80 not UTF-8",
    b"My name is Ada.",
    b"\x1b[31mred\x07\x00 and \xf0\x9f\x90\xa2",
    b"What is my name?",
    b"3 plus 4?",
];

/// The program, and a folder for its session and its output.
struct Terminal<'t> {
    program: &'t Path,
    folder: PathBuf,
}

impl Terminal<'_> {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.program);
        command.args(args).current_dir(&self.folder).stdin(Stdio::null());
        command.env("SHOHIN_WEIGHT_CACHE", "none");
        command
    }

    /// A file for output: pipes would need threads that read them.
    fn create(&self, name: &str) -> Result<File> {
        File::create(self.folder.join(name)).map_err(|e| format!("{name}: {e}"))
    }

    fn read(&self, name: &str) -> Result<Vec<u8>> {
        fs::read(self.folder.join(name)).map_err(|e| format!("{name}: {e}"))
    }

    fn start(&self, command: &mut Command) -> Result<Running> {
        command.spawn().map(Running).map_err(|e| format!("{}: {e}", self.program.display()))
    }

    fn run(&self, args: &[&str]) -> Result<Output> {
        let mut command = self.command(args);
        command.stdout(self.create("stdout")?).stderr(self.create("stderr")?);
        let status = self.start(&mut command)?.ended(SOON).map_err(|why| format!("{args:?} {why}"))?;
        Ok(Output { status, stdout: self.read("stdout")?, stderr: self.read("stderr")? })
    }

    fn chat(&self) -> Result<Chat> {
        let mut chat = self.command(&["chat", "--session", SESSION, "-n", "24", "--context", CONTEXT]);
        chat.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(self.create("chat.stderr")?);
        let mut process = self.start(&mut chat)?;
        let says = process.0.stdout.take().ok_or("the chat has no output")?;
        let hears = process.0.stdin.take().ok_or("the chat has no input")?;
        let (send, answers) = channel();
        thread::spawn(move || {
            let lines = BufReader::new(says).split(b'\n').map_while(std::result::Result::ok);
            lines.map_while(|_| send.send(()).ok()).for_each(drop);
        });
        Ok(Chat { process, answers, hears })
    }

    /// The session must be there, whole: a chat without a message goes on with it, and so does a message.
    fn goes_on(&self, after: &str) -> Result<()> {
        let found = self.run(&["chat", "--session", SESSION, "--context", CONTEXT])?;
        let said = String::from_utf8_lossy(&found.stderr);
        if !found.status.success() || !said.contains("(resumed after ") {
            return Err(format!("a chat did not go on {after}: {}, {said:?}", found.status));
        }
        let found = self.run(&["run", "--session", SESSION, "-n", "4", "--context", CONTEXT, "Hello!"])?;
        if !found.status.success() {
            let said = String::from_utf8_lossy(&found.stderr);
            return Err(format!("run --session failed {after}: {said:?}"));
        }
        Ok(())
    }

    /// Commands that end at once; returns how many.
    fn short(&self, expected: &[u8]) -> Result<usize> {
        let right: &[&[&str]] = &[GREETING];
        // Each with its exit status.
        let wrong: &[(&[&str], i32)] = &[
            (&["run", "-m", DAMAGED, "Hello!"], 1),
            (&["inspect", "-m", "/dev/null"], 1),
            (&["run", "--temp", "hot", "Hello!"], 2),
            (&["run", "--json-schema", "{\"type\": 3}", "Hello!"], 2),
            (&["run", "--session", DAMAGED, "Hello!"], 1),
        ];
        for args in right {
            let found = self.run(args)?;
            if !found.status.success() || found.stdout != expected {
                return Err(format!("{args:?} printed {:?}", String::from_utf8_lossy(&found.stdout)));
            }
        }
        for (args, status) in wrong {
            let found = self.run(args)?;
            if found.status.code() != Some(*status) || found.stderr.is_empty() {
                let said = String::from_utf8_lossy(&found.stderr);
                return Err(format!("{args:?} ended with {}, expected {status}: {said}", found.status));
            }
        }
        Ok(right.len() + wrong.len())
    }
}

const SESSION: &str = "chat.session";
const DAMAGED: &str = "damaged.gguf";
const GREETING: &[&str] = &["run", "-n", "8", "--temp", "0", "Hello!"];

/// A chat whose session is in a file.
struct Chat {
    process: Running,
    /// Has an item per line of its output.
    answers: Receiver<()>,
    hears: ChildStdin,
}

impl Chat {
    fn turn(&mut self, message: &[u8]) -> Result<()> {
        // A reply may have several lines.
        while self.answers.try_recv().is_ok() {}
        let sent = self.hears.write_all(message).and_then(|()| self.hears.write_all(b"\n"));
        sent.map_err(|e| format!("the chat in the terminal ended: {e}; see chat.stderr"))?;
        self.answers.recv_timeout(SOON).map_err(|e| match e {
            RecvTimeoutError::Timeout => format!("a chat in the terminal did not answer within {SOON:?}"),
            RecvTimeoutError::Disconnected => "the chat in the terminal ended; see chat.stderr".into(),
        })
    }

    /// Ends its input, and waits until it has saved its session and ended; returns how long that took.
    fn close(self) -> Result<Duration> {
        let Chat { mut process, answers, hears } = self;
        let start = Instant::now();
        drop(hears);
        let status = process.ended(SOON).map_err(|why| format!("a closed chat {why}"))?;
        drop(answers);
        match status.success() {
            true => Ok(start.elapsed()),
            false => Err(format!("a closed chat ended with {status}; see chat.stderr")),
        }
    }

    /// Ends its input, and kills it at some instant of the time that it needs to end.
    fn kill(self, whole: Duration) {
        let Chat { process, hears, .. } = self;
        drop(hears);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.subsec_micros());
        thread::sleep(whole.mul_f64(f64::from(now % 1000) / 1000.0));
        drop(process);
    }

    /// Resident memory in kB, if the system tells.
    fn resident(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.0.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.split_whitespace().next()?.parse().ok()
    }
}

/// Chats until it is over; an error if a turn is not answered in time, a session is lost or memory grows.
pub(super) fn soak(machine: &Machine, program: &Path, over: &AtomicBool) -> Result<()> {
    let folder = machine.target.join("soak");
    let io = |e| format!("{}: {e}", folder.display());
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(io)?;
    let mut bytes = fs::read(machine.root.join("models/sprout.gguf")).map_err(io)?;
    bytes.truncate(bytes.len() / 2);
    fs::write(folder.join(DAMAGED), bytes).map_err(io)?;
    let terminal = Terminal { program, folder };
    let expected = terminal.run(GREETING)?.stdout;

    let (mut chats, mut turns, mut commands) = (0, 0, 0);
    let mut kills = [0, 0];
    let mut saving = Duration::ZERO;
    let mut memory = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let mut chat = terminal.chat()?;
        for turn in 1..=TURNS {
            chat.turn(LINES[turns % LINES.len()])?;
            turns += 1;
            if turn == WARM || turn == TURNS {
                memory.extend(chat.resident());
            }
            if over.load(Ordering::Relaxed) {
                break;
            }
            thread::sleep(Duration::from_millis(50));
        }
        chats += 1;
        let when = if chats % KILLED == 0 {
            let before = terminal.read(SESSION)?;
            chat.kill(saving);
            let is_saved = terminal.read(SESSION)? != before;
            kills[usize::from(is_saved)] += 1;
            "after one was killed while it saved"
        } else {
            saving = chat.close()?;
            "after one was closed"
        };
        terminal.goes_on(when)?;
        commands += 2 + terminal.short(&expected)?;
    }
    let [before, after] = kills;
    println!(
        "terminal: {turns} turns in {chats} chats, {before} killed before their session was saved and {after} after, and \
         {commands} commands"
    );
    let (Some(early), Some(most), true) = (memory.first(), memory.iter().max(), memory.len() > 1) else {
        println!("terminal: memory was not checked, which was read {} times", memory.len());
        return Ok(());
    };
    println!("terminal: memory {early} kB after {WARM} turns, {most} kB at most");
    if *most > early + early / 8 + 4096 {
        return Err("the memory of a chat grows".into());
    }
    Ok(())
}
