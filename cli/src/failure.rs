//! What ends the program early, and how it is said.

use std::fmt::Display;
use std::io;
use std::path::Path;
use std::process::ExitCode;

/// Why a command could not finish.
#[derive(Debug)]
pub(crate) enum Failure {
    /// One line for the user.
    Message(String),
    /// The same, where an option is what is wrong.
    Usage(String),
    /// Whoever read our output has closed it: nothing to say, and nobody to say it to.
    OutputClosed,
    /// Ctrl-C.
    Interrupted,
}

pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(message: impl Display) -> Self {
        Failure::Message(message.to_string())
    }

    /// An option that cannot be as it is.
    pub(crate) fn usage(message: impl Display) -> Self {
        Failure::Usage(message.to_string())
    }

    /// Says it on standard error; the code is the program's.
    pub(crate) fn report(&self) -> ExitCode {
        match self {
            Failure::Message(message) | Failure::Usage(message) => {
                // Standard error may be closed too.
                let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("shohin: {message}\n"));
                ExitCode::from(if matches!(self, Failure::Usage(_)) { 2 } else { 1 })
            }
            Failure::OutputClosed => ExitCode::from(141),
            Failure::Interrupted => ExitCode::from(130),
        }
    }
}

impl From<shohin_core::Error> for Failure {
    fn from(error: shohin_core::Error) -> Self {
        Failure::new(error)
    }
}

impl From<shohin::Error> for Failure {
    fn from(error: shohin::Error) -> Self {
        match &error {
            shohin::Error::Option { .. } => Failure::usage(format_args!("--{error}")),
            shohin::Error::Address { .. } => Failure::usage(error),
            _ => Failure::new(error),
        }
    }
}

/// Errors of reading and writing that do not name a file are about standard input and output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::OutputClosed,
            _ => Failure::new(format_args!("cannot read or write: {}", plain(&error))),
        }
    }
}

/// Puts a place in front of an error.
pub(crate) trait At<T> {
    fn at(self, place: impl Display) -> Outcome<T>;

    /// Blames the options.
    fn of_usage(self) -> Outcome<T>;
}

impl<T, E: Into<Failure>> At<T> for Result<T, E> {
    fn at(self, place: impl Display) -> Outcome<T> {
        self.map_err(|error| match error.into() {
            Failure::Message(message) => Failure::new(format_args!("{place}: {message}")),
            Failure::Usage(message) => Failure::usage(format_args!("{place}: {message}")),
            other => other,
        })
    }

    fn of_usage(self) -> Outcome<T> {
        self.map_err(|error| match error.into() {
            Failure::Message(message) => Failure::Usage(message),
            other => other,
        })
    }
}

/// `cannot <verb> <path>: <reason>`
pub(crate) fn file_error(verb: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::new(format_args!("cannot {verb} {}: {}", path.display(), plain(error)))
}

/// The system's sentence without Rust's `(os error 2)`.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_string()
}
