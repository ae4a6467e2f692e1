//! Errors of training.
#![forbid(unsafe_code)]
use alloc::string::String;
use core::fmt;

/// A result of this crate.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// The reason why something cannot be trained.
#[derive(Clone, PartialEq)]
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
    /// A checkpoint is damaged, of something else, or cannot be written.
    Checkpoint {
        /// The byte of the file, if there is one.
        at: Option<u64>,
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// Ternary or 1-bit weights cannot be packed.
    Scale {
        /// The scale of a group of 128 weights.
        found: f32,
        /// The number of the group in its tensor, from 0.
        group: usize,
        /// The format.
        format: &'static str,
    },
}

impl From<shohin_core::Error> for Error {
    fn from(error: shohin_core::Error) -> Self {
        Error::Core(error)
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
            Error::Core(error) => error.fmt(f),
            Error::NotFinite { what, step, row } => {
                write!(f, "{what} of step {step} is not a finite number")?;
                match row {
                    Some(row) => write!(f, " (row {row} of the batch)"),
                    None => Ok(()),
                }
            }
            Error::Checkpoint { at, expected, found } => {
                if let Some(at) = at {
                    write!(f, "byte {at} of the checkpoint: ")?;
                }
                write!(f, "expected {expected}, found {found}")
            }
            Error::Scale { found, group, format } => {
                let problem = match found {
                    found if found.is_nan() => "is not a number",
                    found if *found > 65504.0 => "is too large",
                    _ => "is too small",
                };
                write!(
                    f,
                    "the scale {found:e} of the weights from {} {problem} for {format}: expected a number that f16 holds, at most \
                     65504 and a multiple of 2^-24",
                    group * 128
                )
            }
        }
    }
}

impl core::error::Error for Error {}
