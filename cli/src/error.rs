//! Errors of the command line, and their exit codes.

use std::fmt::Display;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::terminal::printable;
use shohin::FileError;

/// The reason why a command could not finish.
#[derive(Debug)]
pub(crate) enum CliError {
    /// One line for the user.
    Message(String),
    /// One line for the user about an invalid option.
    Usage(String),
    /// One line for the user: the reply is in a given format, but incomplete.
    CutOff(String),
    /// The reader of our output has closed it; nothing is reported.
    OutputClosed,
    /// Ctrl-C.
    Interrupted,
}

pub(crate) type Result<T = ()> = std::result::Result<T, CliError>;

impl CliError {
    pub(crate) fn new(message: impl Display) -> Self {
        CliError::Message(message.to_string())
    }

    /// An invalid option.
    pub(crate) fn usage(message: impl Display) -> Self {
        CliError::Usage(message.to_string())
    }

    /// Prints it to standard error; returns the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        match self {
            CliError::Message(message) => say(message, 1),
            CliError::Usage(message) => say(message, 2),
            CliError::CutOff(message) => say(message, 3),
            CliError::OutputClosed => ExitCode::from(141),
            CliError::Interrupted => ExitCode::from(130),
        }
    }
}

#[cfg(any(feature = "mpi", not(target_os = "wasi")))]
impl Display for CliError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            CliError::Message(message) | CliError::Usage(message) | CliError::CutOff(message) => message,
            CliError::OutputClosed => "the output is closed",
            CliError::Interrupted => "interrupted",
        })
    }
}

fn say(message: &str, code: u8) -> ExitCode {
    // Standard error may be closed too. In one piece, since other MPI ranks write to the same terminal.
    let line = format!("shohin: {}\n", printable(message));
    let _ = io::Write::write_all(&mut io::stderr(), line.as_bytes());
    ExitCode::from(code)
}

/// Prints what is wrong with the arguments, or the help that they ask for; returns the exit code.
pub(crate) fn report_usage(mut error: clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // The output may be closed.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    if error.kind() == ErrorKind::UnknownArgument
        && let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg)
        && Path::new(argument).is_file()
    {
        let tip = format!("'-m {argument}' names a model").into();
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
    let of = std::env::args().nth(1).filter(|_| error.kind() != ErrorKind::InvalidSubcommand);
    say(&one_line(&error.render().to_string(), of.as_deref()), 2)
}

/// What clap says in several paragraphs of the arguments of a command. The first is the error, others are tips, the usage and
/// where to find the help.
fn one_line(text: &str, command: Option<&str>) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let mut said = Vec::new();
    for paragraph in text.trim().split("\n\n") {
        if !paragraph.starts_with("Usage: ") && !paragraph.starts_with("For more information") {
            let mut lines = paragraph.lines().map(str::trim);
            let first = lines.next().unwrap_or_default();
            let rest: Vec<&str> = lines.collect();
            let separator = if first.ends_with(':') { ", " } else { " " };
            said.push(format!("{first} {}", rest.join(separator)).trim_end().to_owned());
        }
    }
    let command = command.filter(|word| word.bytes().all(|b| b.is_ascii_lowercase()));
    let command = command.map_or("shohin".into(), |name| format!("shohin {name}"));
    format!("{}; `{command} --help` explains the options", said.join("; "))
}

impl From<shohin_core::Error> for CliError {
    fn from(error: shohin_core::Error) -> Self {
        CliError::new(error)
    }
}

impl From<shohin::Error> for CliError {
    fn from(error: shohin::Error) -> Self {
        match &error {
            shohin::Error::Option { .. } => CliError::usage(format_args!("--{error}")),
            shohin::Error::Environment { .. } | shohin::Error::Config(_) => CliError::usage(error),
            shohin::Error::File(FileError::Address { url }) => CliError::usage(format_args!(
                "--model: expected a path, found a URL; get the file first: curl -LO {url}"
            )),
            #[cfg(feature = "gpu")]
            shohin::Error::Gpu { names, .. } if !names.is_empty() => {
                CliError::new(format_args!("{error}; --gpu=NAME takes a part of a name"))
            }
            other => CliError::new(other),
        }
    }
}

/// I/O errors that do not name a file are about standard input and output.
impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => CliError::OutputClosed,
            _ => CliError::new(format_args!("cannot read or write: {}", plain(&error))),
        }
    }
}

/// Adds context to errors.
pub(crate) trait Context<T> {
    /// Prefixes the place.
    fn context(self, place: impl Display) -> Result<T>;

    /// Marks the error as an invalid option.
    fn usage(self) -> Result<T>;
}

impl<T, E: Into<CliError>> Context<T> for std::result::Result<T, E> {
    fn context(self, place: impl Display) -> Result<T> {
        self.map_err(|error| match error.into() {
            CliError::Message(message) => CliError::new(format_args!("{place}: {message}")),
            CliError::Usage(message) => CliError::usage(format_args!("{place}: {message}")),
            other => other,
        })
    }

    fn usage(self) -> Result<T> {
        self.map_err(|error| match error.into() {
            CliError::Message(message) => CliError::Usage(message),
            other => other,
        })
    }
}

/// `cannot <verb> <path>: <reason>`
pub(crate) fn file_error(verb: &str, path: &Path, error: &io::Error) -> CliError {
    CliError::new(format_args!("cannot {verb} {}: {}", path.display(), plain(error)))
}

/// The system's message without Rust's `(os error 2)`.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_string()
}
