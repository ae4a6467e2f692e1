//! What is wrong with a file.
#![forbid(unsafe_code)]

use shohin_core::gguf::MAX_PARTS;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The reason why a file cannot be used.
#[non_exhaustive]
pub enum Error {
    /// The system reported an error for a file.
    Io {
        /// The failed action, as in `cannot open the model <path>`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A path that cannot be a model.
    NotAFile {
        /// The path.
        path: PathBuf,
        /// Its actual kind, and the expected one.
        problem: &'static str,
    },
    /// A URL where a path was expected: nothing is downloaded.
    Address {
        /// The URL.
        url: String,
    },
    /// A file whose name claims more parts than a model can have.
    TooManyParts {
        /// The file.
        name: String,
        /// Number of parts, from its name.
        count: usize,
    },
    /// One of a model's files cannot be opened.
    MissingPart {
        /// Number of files of the model.
        count: usize,
        /// The reason.
        source: Box<Error>,
    },
    /// The contents of a file are invalid.
    Model {
        /// The file.
        name: String,
        /// The error.
        source: shohin_core::Error,
    },
}

/// Result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Turns the system's error into the one of the file `path`, which could not be used for `action`.
pub fn failed(action: &'static str, path: &Path) -> impl Fn(io::Error) -> Error + Copy {
    move |source| Error::Io { action, path: path.to_path_buf(), source }
}

impl Error {
    /// A stable machine-readable name: `io`, `not_a_file`, `limit`, or that of the engine's error
    /// ([`shohin_core::Error::code`]).
    pub fn code(&self) -> &'static str {
        match self {
            Error::Io { .. } => "io",
            Error::NotAFile { .. } | Error::Address { .. } => "not_a_file",
            Error::TooManyParts { .. } => "limit",
            Error::MissingPart { source, .. } => source.code(),
            Error::Model { source, .. } => source.code(),
        }
    }
}

impl fmt::Debug for Error {
    /// As `Display`: what `main` and `unwrap` print is for people, too.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io { action, path, source } => {
                write!(f, "cannot {action} {}: {}", path.display(), reason(source))
            }
            Error::NotAFile { path, problem } => write!(f, "{} {problem}", path.display()),
            Error::Address { url } => {
                write!(f, "expected a path, found a URL; get the file first: curl -LO {url}")
            }
            Error::TooManyParts { name, count } => {
                write!(f, "{name}: the model has {count} parts by its name, but {MAX_PARTS} are the most")
            }
            Error::MissingPart { count, source } => {
                write!(f, "the model has {count} parts, and all are needed: {source}")
            }
            Error::Model { name, source } => write!(f, "{name}: {source}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            Error::MissingPart { source, .. } => Some(source),
            Error::Model { source, .. } => Some(source),
            Error::NotAFile { .. } | Error::Address { .. } | Error::TooManyParts { .. } => None,
        }
    }
}

/// The system's message without Rust's `(os error 2)`.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_string()
}
