//! Functions of a chat that are programs.

use crate::error::{CliError, Result, file_error};
use crate::terminal::{CtrlC, remark};
use clap::Args;
#[cfg(unix)]
use rustix::{
    io::Errno,
    process::{Pid, Signal},
};
use shohin::core::chat::FunctionCall;
use std::env;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum number of replies in a row that call functions.
pub(crate) const MOST_ROUNDS: usize = 8;

/// Maximum bytes of a result.
const MOST_OUTPUT: usize = 1 << 16;

/// How long output may take to arrive after its program has exited, and a program to exit after Ctrl-C.
const GRACE: Duration = Duration::from_secs(1);

/// How often a program is looked after that writes nothing.
const PAUSE: Duration = Duration::from_millis(20);

/// Functions that the model may call, and their programs.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Tools")]
pub(crate) struct ProgramArgs {
    /// Functions that the model may call, as a JSON array in OpenAI's format or a file with one
    ///
    /// Arguments satisfy the schemas of functions with "strict": true, and of others where the schema is supported.
    #[arg(long, value_name = "FILE|TEXT")]
    pub(crate) tools: Option<String>,
    /// auto: the model decides; required: its first reply calls at least one; or the name of the function it calls
    #[arg(long, value_name = "auto|required|NAME", default_value = "auto", requires = "tools")]
    pub(crate) tool_choice: String,
    /// Describe the functions in the system message if the model's chat template has no tools
    #[arg(long, requires = "tools")]
    pub(crate) tools_in_prompt: bool,
    /// The program of a function: it gets the arguments as JSON on its standard input and writes the result to its
    /// standard output. You are asked before each call
    #[arg(long = "tool", value_name = "NAME=PROGRAM", value_parser = program, requires = "tools")]
    programs: Vec<(String, PathBuf)>,
    /// Run programs without asking
    #[arg(long, requires = "programs")]
    pub(crate) yes: bool,
}

fn program(text: &str) -> std::result::Result<(String, PathBuf), &'static str> {
    match text.split_once('=') {
        Some((name, program)) if !name.is_empty() && !program.is_empty() => Ok((name.into(), program.into())),
        _ => Err("expected NAME=PROGRAM"),
    }
}

impl ProgramArgs {
    /// Whether functions have programs.
    pub(crate) fn run(&self) -> bool {
        !self.programs.is_empty()
    }

    /// The program of a function.
    pub(crate) fn program(&self, name: &str) -> Option<&Path> {
        self.programs.iter().find(|(of, _)| of == name).map(|(_, program)| program.as_path())
    }
}

/// Whether a program can be there: that is known of a path, not of a mere name, which the system looks for.
fn is_there(program: &Path) -> bool {
    let mut with_suffix = program.as_os_str().to_owned();
    with_suffix.push(env::consts::EXE_SUFFIX);
    program.components().nth(1).is_none() || program.is_file() || Path::new(&with_suffix).is_file()
}

/// What the program says of a call: its output, or what went wrong, for the model.
pub(crate) fn output(program: &Path, call: &FunctionCall) -> Result<String> {
    // Ctrl-C ends the program, not the chat.
    let interrupt = CtrlC::listen();
    let mut command = Command::new(program);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    // A group of its own, so that nothing of it outlives the call.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            // The conversation goes on: a call without a result would end it.
            let reason = format!("error: cannot run {}: {error}", program.display());
            remark(&reason);
            return Ok(reason);
        }
    };
    let arguments = call.arguments.clone();
    if let Some(mut stdin) = child.stdin.take() {
        // A program need not read its arguments.
        thread::spawn(move || stdin.write_all(arguments.as_bytes()));
    }
    let failed = |error| file_error("run", program, &error);
    let (bytes, end) = run(&mut child, &interrupt).map_err(failed)?;
    let status = child.wait().map_err(failed)?;
    let text = String::from_utf8_lossy(&bytes).trim_end().to_string();
    Ok(match end {
        _ if interrupt.pressed() => "error: the user stopped this call".into(),
        End::TooLong => format!("error: the result is larger than {MOST_OUTPUT} bytes"),
        End::Stopped => "error: the program waits for the terminal, which it does not have".into(),
        End::Exited if status.success() => text,
        End::Exited => format!("error: {status}\n{text}").trim_end().into(),
    })
}

/// Why a program is no longer followed.
enum End {
    Exited,
    /// Its output is longer than [`MOST_OUTPUT`].
    TooLong,
    /// It has no terminal to read from.
    Stopped,
}

/// The output of a program, until it has exited or is ended. Whatever it has started is ended with it: its output might stay
/// open for long.
fn run(child: &mut Child, interrupt: &CtrlC) -> io::Result<(Vec<u8>, End)> {
    let pieces = read(child.stdout.take());
    let (mut bytes, mut end, mut deadline) = (Vec::new(), None, None::<Instant>);
    loop {
        match pieces.recv_timeout(PAUSE) {
            Ok(piece) => bytes.extend(piece),
            Err(RecvTimeoutError::Disconnected) if end.is_some() => break,
            // It goes on without its output.
            Err(RecvTimeoutError::Disconnected) => thread::sleep(PAUSE),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if bytes.len() > MOST_OUTPUT {
            end = Some(End::TooLong);
            break;
        }
        let late = deadline.is_some_and(|deadline| deadline <= Instant::now());
        if late && end.is_some() {
            break;
        }
        if late {
            stop(child)?;
        } else if interrupt.pressed() && deadline.is_none() {
            deadline = Some(Instant::now() + GRACE);
            ask_to_stop(child)?;
        }
        if end.is_none()
            && let Some(found) = has_ended(child)?
        {
            end = Some(found);
            deadline = Some(Instant::now() + GRACE);
            stop(child)?;
        }
    }
    stop(child)?;
    Ok((bytes, end.unwrap_or(End::Exited)))
}

/// What a program writes, piece by piece.
fn read(output: Option<ChildStdout>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = sync_channel(1);
    if let Some(mut output) = output {
        thread::spawn(move || {
            let mut piece = vec![0; 1 << 13];
            while let Ok(n @ 1..) = output.read(&mut piece)
                && sender.send(piece.get(..n).unwrap_or_default().to_vec()).is_ok()
            {}
        });
    }
    receiver
}

/// Whether a program has exited, or has been stopped. The system remembers it until it is waited for, so that no other gets
/// the number of its group meanwhile.
#[cfg(unix)]
fn has_ended(child: &mut Child) -> io::Result<Option<End>> {
    use rustix::process::{WaitId, WaitIdOptions as Options, waitid};
    let options = Options::EXITED | Options::STOPPED | Options::NOHANG | Options::NOWAIT;
    let found = waitid(WaitId::Pid(Pid::from_child(child)), options)?;
    Ok(found.map(|found| if found.stopped() { End::Stopped } else { End::Exited }))
}

#[cfg(unix)]
fn ask_to_stop(child: &mut Child) -> io::Result<()> {
    signal(child, Signal::INT)
}

#[cfg(unix)]
fn stop(child: &mut Child) -> io::Result<()> {
    signal(child, Signal::KILL)
}

/// Sends a signal to a program and what it has started.
#[cfg(unix)]
fn signal(child: &Child, signal: Signal) -> io::Result<()> {
    match rustix::process::kill_process_group(Pid::from_child(child), signal) {
        // macOS says of a group of programs that have all exited that it may not be ended.
        Err(Errno::SRCH | Errno::PERM) => Ok(()),
        done => Ok(done?),
    }
}

#[cfg(not(unix))]
fn has_ended(child: &mut Child) -> io::Result<Option<End>> {
    Ok(child.try_wait()?.map(|_| End::Exited))
}

#[cfg(not(unix))]
fn ask_to_stop(child: &mut Child) -> io::Result<()> {
    child.kill()
}

#[cfg(not(unix))]
fn stop(child: &mut Child) -> io::Result<()> {
    child.kill()
}

/// Whether every program belongs to a function.
pub(crate) fn check(args: &ProgramArgs, names: &[String]) -> Result {
    let twice = |(i, (name, _)): &(usize, &(String, PathBuf))| {
        args.programs[..*i].iter().any(|(other, _)| other == name)
    };
    if let Some((_, (name, _))) = args.programs.iter().enumerate().find(twice) {
        return Err(CliError::usage(format_args!("--tool: {name:?} has two programs")));
    }
    if let Some((_, program)) = args.programs.iter().find(|(_, program)| !is_there(program)) {
        return Err(CliError::usage(format_args!("--tool: there is no program {}", program.display())));
    }
    match args.programs.iter().find(|(name, _)| !names.contains(name)) {
        Some((name, _)) => {
            Err(CliError::usage(format_args!("--tool: no function of --tools is called {name:?}")))
        }
        None => Ok(()),
    }
}
