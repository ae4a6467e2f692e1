//! Child processes: command lines, running them, and counting the tests they report.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

pub(crate) type Result<T> = std::result::Result<T, String>;

/// Test counts reported by a child process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) ignored: usize,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }

    /// Adds the counts of the closing lines of libtest, wasm-bindgen-test and `node --test`; other lines are ignored.
    fn read(&mut self, line: &str) {
        let line = plain(line);
        let line = line.trim();
        if let Some(rest) = line.strip_prefix("test result:") {
            for part in rest.split([';', '.']) {
                let mut words = part.split_whitespace();
                match (words.next().map(str::parse::<usize>), words.next()) {
                    (Some(Ok(n)), Some("passed")) => self.passed += n,
                    (Some(Ok(n)), Some("failed")) => self.failed += n,
                    (Some(Ok(n)), Some("ignored")) => self.ignored += n,
                    _ => {}
                }
            }
        } else if let Some(rest) = line.strip_prefix("# ").or_else(|| line.strip_prefix("ℹ ")) {
            match rest.split_once(' ').map(|(word, n)| (word, n.parse::<usize>())) {
                Some(("pass", Ok(n))) => self.passed += n,
                Some(("fail" | "cancelled", Ok(n))) => self.failed += n,
                Some(("skipped" | "todo", Ok(n))) => self.ignored += n,
                _ => {}
            }
        }
    }
}

/// Removes terminal escape sequences.
fn plain(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            for c in chars.by_ref() {
                if c.is_ascii_alphabetic() {
                    break;
                }
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// For [`Cmd::limit`]: seconds after which a program that takes seconds hangs, also at low priority.
pub(crate) const HANGS: u64 = 1800;

/// A command line with its directory and environment; `None` removes a variable.
#[derive(Clone)]
pub(crate) struct Cmd {
    program: OsString,
    args: Vec<OsString>,
    dir: PathBuf,
    env: Vec<(OsString, Option<OsString>)>,
    limit: Option<Duration>,
    /// Given to the child by [`Cmd::read`].
    input: Option<String>,
}

impl fmt::Display for Cmd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Path::new(&self.program).file_name().unwrap_or(&self.program);
        write!(f, "{}", name.to_string_lossy())?;
        self.args.iter().try_for_each(|arg| write!(f, " {}", arg.to_string_lossy()))
    }
}

impl Cmd {
    pub(crate) fn new(program: impl AsRef<OsStr>, dir: &Path) -> Cmd {
        Cmd {
            program: program.as_ref().into(),
            args: Vec::new(),
            dir: dir.into(),
            env: Vec::new(),
            limit: None,
            input: None,
        }
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Cmd {
        self.args.push(arg.as_ref().into());
        self
    }

    /// Adds arguments separated by spaces.
    pub(crate) fn args(mut self, line: &str) -> Cmd {
        self.args.extend(line.split_whitespace().map(OsString::from));
        self
    }

    /// Selects packages for cargo.
    pub(crate) fn packages(self, names: &[&str]) -> Cmd {
        names.iter().fold(self, |cmd, name| cmd.arg("--package").arg(name))
    }

    /// Selects all packages of the workspace except these for cargo.
    pub(crate) fn all_packages_but(self, names: &[&str]) -> Cmd {
        names.iter().fold(self.arg("--workspace"), |cmd, name| cmd.arg("--exclude").arg(name))
    }

    pub(crate) fn dir(mut self, dir: impl Into<PathBuf>) -> Cmd {
        self.dir = dir.into();
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Cmd {
        self.env.push((name.into(), Some(value.as_ref().into())));
        self
    }

    pub(crate) fn env_remove(mut self, name: &str) -> Cmd {
        self.env.push((name.into(), None));
        self
    }

    /// Gives the child this text to read; for [`Cmd::read`].
    pub(crate) fn input(mut self, text: &str) -> Cmd {
        self.input = Some(text.into());
        self
    }

    /// Kills the child and fails after this time.
    pub(crate) fn limit(mut self, seconds: u64) -> Cmd {
        self.limit = Some(Duration::from_secs(seconds));
        self
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).current_dir(&self.dir).stdin(Stdio::null());
        for (name, value) in &self.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    fn start(&self, command: &mut Command) -> Result<Child> {
        command.spawn().map_err(|e| format!("{}: {e}", self.program.to_string_lossy()))
    }

    fn finish(&self, mut child: Child) -> Result<()> {
        let started = Instant::now();
        let status = loop {
            match self.limit {
                None => break child.wait(),
                Some(limit) => match child.try_wait() {
                    Ok(None) if started.elapsed() > limit => {
                        let _ = child.kill();
                        let _ = child.wait();
                        return Err(format!("`{self}` did not finish within {} s", limit.as_secs()));
                    }
                    Ok(None) => std::thread::sleep(Duration::from_millis(50)),
                    Ok(Some(status)) => break Ok(status),
                    Err(e) => break Err(e),
                },
            }
        };
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("`{self}` ended with {status}")),
            Err(e) => Err(format!("`{self}`: {e}")),
        }
    }

    /// Prints the command line, then runs it with its output going to the terminal.
    pub(crate) fn run(&self) -> Result<()> {
        println!("$ {self}");
        self.finish(self.start(&mut self.command())?)
    }

    /// Runs silently and returns stdout; an error includes a line of stderr.
    pub(crate) fn read(&self) -> Result<String> {
        let mut command = self.command();
        if self.input.is_some() {
            command.stdin(Stdio::piped());
        }
        let mut child = self.start(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
        if let (Some(mut pipe), Some(text)) = (child.stdin.take(), self.input.clone()) {
            // A child that ends early does not read all of it.
            std::thread::spawn(move || pipe.write_all(text.as_bytes()));
        }
        let stderr = child.stderr.take().map(|mut pipe| {
            std::thread::spawn(move || {
                let mut text = Vec::new();
                let _ = pipe.read_to_end(&mut text);
                String::from_utf8_lossy(&text).into_owned()
            })
        });
        let stdout = child.stdout.take().map(|mut pipe| {
            std::thread::spawn(move || {
                let mut text = Vec::new();
                let _ = pipe.read_to_end(&mut text);
                String::from_utf8_lossy(&text).into_owned()
            })
        });
        let ended = self.finish(child);
        let text = |thread: Option<std::thread::JoinHandle<String>>| {
            thread.and_then(|t| t.join().ok()).unwrap_or_default()
        };
        match ended {
            Ok(()) => Ok(text(stdout)),
            Err(e) => {
                let said = text(stderr);
                let line = said.lines().find(|l| l.to_lowercase().contains("error")).or(said.lines().last());
                Err(line.map_or(e.clone(), |line| format!("{e}: {}", line.trim())))
            }
        }
    }

    /// Runs a child that does not end by itself, as a person would: types each of `lines` when `prompt` is the end of what it
    /// printed. Kills it once it has printed a line that begins with `last`, and returns all that it printed.
    pub(crate) fn converse(&self, prompt: &str, lines: &[String], last: &str) -> Result<String> {
        let limit = self.limit.unwrap_or(Duration::MAX);
        let mut child = self.start(self.command().stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let (mut output, mut bytes) = (output?, [0; 256]);
            while let Ok(len @ 1..) = output.read(&mut bytes) {
                sender.send(bytes[..len].to_vec()).ok()?;
            }
            Some(())
        });
        let (started, mut said, mut lines) = (Instant::now(), Vec::new(), lines.iter());
        let talk = |mut input: std::process::ChildStdin| loop {
            let wait = limit.saturating_sub(started.elapsed());
            let more = receiver.recv_timeout(wait);
            said.extend(more.map_err(|e| {
                format!("`{self}`: {e}, after it printed\n{}", String::from_utf8_lossy(&said))
            })?);
            let text = String::from_utf8_lossy(&said);
            if text.ends_with('\n') && text.lines().any(|line| line.starts_with(last)) {
                return Ok(text.into_owned());
            }
            if text.ends_with(prompt)
                && let Some(line) = lines.next()
            {
                input.write_all(line.as_bytes()).map_err(|e| format!("`{self}`: {e}"))?;
            }
        };
        let ended = input.ok_or_else(|| format!("`{self}` has no input")).and_then(talk);
        let _ = child.kill();
        let _ = child.wait();
        ended
    }

    /// Prints the command line, runs it, forwards its output, and returns the test counts found in it.
    pub(crate) fn tests(&self) -> Result<Tally> {
        println!("$ {self}");
        let mut child = self.start(self.command().stdout(Stdio::piped()))?;
        let counter = child.stdout.take().map(|pipe| {
            std::thread::spawn(move || {
                let mut tally = Tally::default();
                let mut pipe = BufReader::new(pipe);
                let mut line = Vec::new();
                while pipe.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                    let _ = std::io::stdout().write_all(&line);
                    tally.read(&String::from_utf8_lossy(&line));
                    line.clear();
                }
                tally
            })
        });
        let ended = self.finish(child);
        let tally = counter.and_then(|t| t.join().ok()).unwrap_or_default();
        ended.map(|()| tally)
    }

    /// Runs with all output going to a file.
    pub(crate) fn log(&self, file: &Path) -> Result<()> {
        let failed = |e: std::io::Error| format!("{}: {e}", file.display());
        let out = std::fs::File::create(file).map_err(failed)?;
        let errors = out.try_clone().map_err(failed)?;
        self.finish(self.start(self.command().stdout(out).stderr(errors))?)
    }

    /// Starts the child without waiting for it.
    pub(crate) fn spawn(&self) -> Result<()> {
        self.start(self.command().stdout(Stdio::null()).stderr(Stdio::null())).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(text: &str) -> (usize, usize, usize) {
        let mut tally = Tally::default();
        text.lines().for_each(|line| tally.read(line));
        (tally.passed, tally.failed, tally.ignored)
    }

    #[test]
    fn closing_lines_of_every_runner_are_counted() {
        let libtest =
            "test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 4 filtered out; finished in 0.1s";
        assert_eq!(tally(libtest), (12, 0, 3));
        assert_eq!(tally("test result: \u{1b}[31mFAILED\u{1b}[m. 1 passed; 2 failed; 0 ignored"), (1, 2, 0));
        assert_eq!(tally("# tests 5\n# pass 4\n# fail 1\n# skipped 0\n# duration_ms 9"), (4, 1, 0));
        assert_eq!(tally("ℹ pass 7\nℹ fail 0\nℹ todo 1"), (7, 0, 1));
        assert_eq!(tally("# heading\ntest some::thing ... ok\n12 passed"), (0, 0, 0));
    }

    #[cfg(unix)]
    #[test]
    fn lines_are_typed_at_prompts() {
        let shell = |script| Cmd::new("sh", Path::new(".")).arg("-c").arg(script).limit(20);
        let lines = ["a\n".to_owned(), "b\n".to_owned()];
        let echo = "printf '> '; read x; echo $x; printf '> '; read x; echo; echo end $x; sleep 20";
        assert_eq!(shell(echo).converse("> ", &lines, "end"), Ok("> a\n> \nend b\n".to_owned()));
        assert!(shell("printf '> '; read x").converse("> ", &lines, "end").is_err());
        assert!(shell("sleep 20").limit(0).converse("> ", &lines, "end").is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_child_that_outlives_its_limit_is_an_error() {
        let here = Path::new(".");
        assert!(Cmd::new("sleep", here).arg("20").limit(0).read().is_err());
        assert_eq!(Cmd::new("echo", here).args("a b").limit(20).read().as_deref(), Ok("a b\n"));
        let failing = Cmd::new("sh", here).arg("-c").arg("echo 'error: no room' >&2; exit 3");
        assert!(failing.read().is_err_and(|e| e.ends_with("error: no room")));
    }
}
