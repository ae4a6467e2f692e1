//! Errors of CUDA, in addition to those of core.

use core::fmt;
use shohin_core::{Error as CoreError, Name};

/// Result of every fallible call of this crate.
pub type Result<T> = core::result::Result<T, Error>;

/// The reason why the GPU cannot continue.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// The file, the tokens or an option are wrong; the CPU would return the same error.
    Core(CoreError),
    /// No CUDA driver, or no GPU with the requested number.
    Absent {
        /// The reason.
        problem: Name,
    },
    /// The kernels cannot run this model; the CPU can.
    Unsupported {
        /// The property of the model.
        what: &'static str,
        /// Its value.
        found: u64,
        /// The required value.
        expected: &'static str,
    },
    /// The GPU is out of memory.
    OutOfMemory {
        /// Bytes requested.
        need: u64,
    },
    /// The driver refused a call.
    Driver {
        /// The call.
        call: &'static str,
        /// The driver's message.
        problem: Name,
    },
}

impl From<CoreError> for Error {
    fn from(error: CoreError) -> Self {
        Error::Core(error)
    }
}

/// For interfaces that only know the engine's errors.
impl From<Error> for CoreError {
    fn from(error: Error) -> Self {
        match error {
            Error::Core(error) => error,
            Error::OutOfMemory { need } => CoreError::Memory { need, have: 0 },
            Error::Absent { .. } => CoreError::Device { problem: "there is none" },
            Error::Unsupported { .. } => CoreError::Device { problem: "it cannot run this model" },
            Error::Driver { .. } => CoreError::Device { problem: "its driver refused a command" },
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Error::Core(error) => error.fmt(f),
            Error::Absent { problem } => write!(f, "CUDA cannot be used: {problem}"),
            Error::Unsupported { what, found, expected } => {
                write!(f, "CUDA cannot run this model: {what} is {found}, expected {expected}")
            }
            Error::OutOfMemory { need } => write!(f, "the GPU has no room for {need} bytes"),
            Error::Driver { call, problem } => write!(f, "the CUDA driver refused {call}: {problem}"),
        }
    }
}

impl core::error::Error for Error {}
