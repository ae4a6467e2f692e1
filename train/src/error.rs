//! Errors of training.
#![forbid(unsafe_code)]
use core::fmt;

/// A result of this crate.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// The reason why something cannot be trained.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// The engine refused it.
    Core(shohin_core::Error),
    /// A number that has to be finite is not.
    NotFinite {
        /// Which one.
        what: &'static str,
        /// The step, from 1.
        step: u64,
        /// The row of the batch, if it is one row's.
        row: Option<usize>,
    },
}

impl From<shohin_core::Error> for Error {
    fn from(error: shohin_core::Error) -> Self {
        Error::Core(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Core(error) => error.fmt(f),
            Error::NotFinite { what, step, row } => {
                write!(f, "{what} of step {step} is not a finite number")?;
                match row {
                    Some(row) => write!(f, " (row {row} of the batch)"),
                    None => Ok(()),
                }
            }
        }
    }
}

impl core::error::Error for Error {}
