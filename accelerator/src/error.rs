//! Errors of GPUs, in addition to those of core.

use core::fmt;
use shohin_core::Error as CoreError;

/// Result of calls that may fail on a GPU.
pub type Result<T, F> = core::result::Result<T, Error<F>>;

/// An error that only one kind of GPU has: its driver's, for example.
pub trait Failure: fmt::Debug + fmt::Display {
    /// The GPU, as the subject of a sentence.
    const DEVICE: &'static str;

    /// The problem, for interfaces that only know the errors of core.
    fn problem(&self) -> &'static str;
}

/// The reason why a GPU cannot continue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Error<F> {
    /// The file, the tokens or an option are wrong; the CPU would return the same error.
    Core(CoreError),
    /// The kernels cannot run this model; the CPU can.
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
    /// One that only this kind of GPU has.
    Own(F),
}

impl<F> From<CoreError> for Error<F> {
    fn from(error: CoreError) -> Self {
        Error::Core(error)
    }
}

/// For interfaces that only know the errors of core.
impl<F: Failure> From<Error<F>> for CoreError {
    fn from(error: Error<F>) -> Self {
        match error {
            Error::Core(error) => error,
            Error::OutOfMemory { need } => CoreError::Memory { need, have: 0 },
            Error::Unsupported { .. } | Error::Operation { .. } => {
                CoreError::Device { problem: "it cannot run this model" }
            }
            Error::Own(failure) => CoreError::Device { problem: failure.problem() },
        }
    }
}

impl<F: Failure> fmt::Display for Error<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = F::DEVICE;
        match self {
            Error::Core(error) => error.fmt(f),
            Error::Unsupported { what, found, expected } => {
                write!(f, "{device} cannot run this model: {what} is {found}, expected {expected}")
            }
            Error::Operation { found, expected } => {
                write!(f, "{device} cannot run this model: it has {found}, expected {expected}")
            }
            Error::OutOfMemory { need } => write!(f, "the GPU has no room for {need} bytes"),
            Error::Own(failure) => fmt::Display::fmt(failure, f),
        }
    }
}

impl<F: Failure> core::error::Error for Error<F> {}
