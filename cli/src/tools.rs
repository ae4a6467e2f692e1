//! Functions of a chat that are programs.

use crate::error::{CliError, Result, file_error};
use crate::terminal::{CtrlC, remark};
use clap::Args;
use shohin::core::chat::FunctionCall;
use std::env;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Most replies in a row that call functions.
pub(crate) const MOST_ROUNDS: usize = 8;

/// Most bytes of a result.
const MOST_OUTPUT: u64 = 1 << 16;

/// Functions that the model may call, and their programs.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Tools")]
pub(crate) struct ProgramArgs {
    /// Functions that the model may call, as a JSON array in OpenAI's format or a file with one; arguments
    /// satisfy the schemas of functions with "strict": true, and of others where the schema is supported
    #[arg(long, value_name = "FILE|TEXT")]
    pub(crate) tools: Option<String>,
    /// auto: the model decides; required: its first reply calls at least one; or the name of the function it calls
    #[arg(long, value_name = "auto|required|NAME", default_value = "auto", requires = "tools")]
    pub(crate) tool_choice: String,
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
    let started = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(error) => {
            // The conversation goes on: a call without a result would end it.
            let reason = format!("error: cannot run {}: {error}", program.display());
            remark(&reason);
            return Ok(reason);
        }
    };
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let arguments = call.arguments.clone();
    let writer = std::thread::spawn(move || {
        // A program need not read its arguments.
        let _ = stdin.map(|mut stdin| stdin.write_all(arguments.as_bytes()));
    });
    let mut bytes = Vec::new();
    if let Some(stdout) = stdout {
        stdout
            .take(MOST_OUTPUT + 1)
            .read_to_end(&mut bytes)
            .map_err(|e| file_error("read from", program, &e))?;
    }
    // A program that writes without end is stopped by its closed output.
    let status = child.wait().map_err(|e| file_error("run", program, &e))?;
    let _ = writer.join();
    if bytes.len() as u64 > MOST_OUTPUT {
        return Ok(format!("error: the result is larger than {MOST_OUTPUT} bytes"));
    }
    if interrupt.pressed() {
        return Ok("error: the user stopped this call".into());
    }
    let text = String::from_utf8_lossy(&bytes).trim_end().to_string();
    Ok(if status.success() { text } else { format!("error: {status}\n{text}").trim_end().into() })
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
