//! Errors of Metal, in addition to those of core.
#![forbid(unsafe_code)]

use core::fmt;
use shohin_core::{Error as CoreError, Name};

/// Result of every fallible call of this crate.
pub type Result<T> = core::result::Result<T, Error>;

/// The reason why the device cannot continue.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// The file, the tokens or an option are wrong; the CPU would return the same error.
    Core(CoreError),
    /// There is no device that runs the kernels.
    NoDevice {
        /// The reason, as far as it is known.
        problem: String,
    },
    /// The kernels cannot run this model; the CPU can.
    Unsupported {
        /// The property of the model or the device.
        what: &'static str,
        /// Its value.
        found: u64,
        /// The required value.
        expected: &'static str,
    },
    /// There is no room for a buffer.
    OutOfMemory {
        /// Bytes requested.
        need: u64,
    },
    /// Metal refused the source of a kernel or a command, which is an error of this program or of the driver.
    Driver {
        /// The call that failed.
        what: &'static str,
        /// Metal's message.
        problem: String,
    },
}

impl Error {
    /// A stable machine-readable name, the same in every host language.
    pub const fn code(&self) -> &'static str {
        match self {
            Error::Core(error) => error.code(),
            Error::NoDevice { .. } => "metal_absent",
            Error::Unsupported { .. } => "metal_unsupported",
            Error::OutOfMemory { .. } => "metal_memory",
            Error::Driver { .. } => "metal_driver",
        }
    }
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
            Error::NoDevice { .. } => CoreError::Device { problem: "there is none" },
            Error::Unsupported { .. } => CoreError::Device { problem: "it cannot run this model" },
            Error::Driver { .. } => CoreError::Device { problem: "its driver refused a command" },
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Core(error) => error.fmt(f),
            Error::NoDevice { problem } => write!(f, "there is no usable Metal device: {problem}"),
            Error::Unsupported { what, found, expected } => {
                write!(f, "the Metal device cannot run this model: {what} is {found}, expected {expected}")
            }
            Error::OutOfMemory { need } => write!(f, "Metal has no room for {need} bytes"),
            Error::Driver { what, problem } => write!(f, "Metal: {what} failed: {problem}"),
        }
    }
}

impl core::error::Error for Error {}

/// The error for operations of a program that the kernels cannot compute.
pub(crate) fn unsupported(found: &str, expected: &'static str) -> Error {
    CoreError::Unsupported { key: Name::new("operation"), found: Name::new(found), expected }.into()
}
