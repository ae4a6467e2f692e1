//! Errors of the GPU, in addition to those of core.

use core::fmt;
use shohin_core::{Error as CoreError, Name};

/// Result of every fallible call of this crate.
pub type Result<T> = core::result::Result<T, Error>;

/// The reason why the GPU cannot continue. `Copy` and without heap memory, like the error it wraps.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// The file, the tokens or an option are wrong; the CPU would return the same error.
    Core(CoreError),
    /// No GPU is available.
    NoAdapter {
        /// The reason, as far as it is known.
        problem: Name,
    },
    /// The GPU or its driver cannot run this model; the CPU can.
    Unsupported {
        /// The property of the model or the device.
        what: &'static str,
        /// Its value.
        found: u64,
        /// The required value.
        expected: &'static str,
    },
    /// The kernels cannot compute an operation of the model; those of the CPU can.
    Operation {
        /// The operation.
        found: &'static str,
        /// The required one.
        expected: &'static str,
    },
    /// The GPU is out of memory.
    OutOfMemory {
        /// Bytes requested.
        need: u64,
    },
    /// The GPU was lost: unplugged, reset by the driver, or switched off. A new device may work.
    Lost,
    /// The driver rejected a command, which is an error of this program or of the driver.
    Device {
        /// The driver's message.
        problem: Name,
    },
}

impl Error {
    /// A stable machine-readable name, the same in every host language.
    pub const fn code(&self) -> &'static str {
        match self {
            Error::Core(error) => error.code(),
            Error::NoAdapter { .. } => "gpu_absent",
            Error::Unsupported { .. } | Error::Operation { .. } => "gpu_unsupported",
            Error::OutOfMemory { .. } => "gpu_memory",
            Error::Lost => "gpu_lost",
            Error::Device { .. } => "gpu_device",
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
            Error::NoAdapter { .. } => CoreError::Device { problem: "there is none" },
            Error::Unsupported { .. } | Error::Operation { .. } => {
                CoreError::Device { problem: "it cannot run this model" }
            }
            Error::Lost => CoreError::Device { problem: "it was lost" },
            Error::Device { .. } => CoreError::Device { problem: "its driver refused a command" },
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Error::Core(error) => error.fmt(f),
            Error::NoAdapter { problem } => write!(f, "there is no usable GPU: {problem}"),
            Error::Unsupported { what, found, expected } => {
                write!(f, "the GPU cannot run this model: {what} is {found}, expected {expected}")
            }
            Error::Operation { found, expected } => {
                write!(f, "the GPU cannot run this model: it has {found}, expected {expected}")
            }
            Error::OutOfMemory { need } => write!(f, "the GPU has no room for {need} bytes"),
            Error::Lost => f.write_str("the GPU was lost; loading the model again may work"),
            Error::Device { problem } => write!(f, "the GPU's driver refused a command: {problem}"),
        }
    }
}

impl core::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_stays_small() {
        assert!(size_of::<Error>() <= 112, "{}", size_of::<Error>());
    }
}
