//! Errors of Metal, in addition to those of all GPUs.
#![forbid(unsafe_code)]

use core::fmt;
use shohin_accelerator::Failure;

/// The reason why the device cannot continue.
pub type Error = shohin_accelerator::Error<MetalFailure>;

/// Result of every fallible call of this crate.
pub type Result<T> = core::result::Result<T, Error>;

/// What only Metal's devices have.
#[derive(Clone, Debug, PartialEq)]
pub enum MetalFailure {
    /// There is no device that runs the kernels.
    NoDevice {
        /// The reason, as far as it is known.
        problem: String,
    },
    /// Metal refused the source of a kernel or a command, which is an error of this program or of the driver.
    Driver {
        /// The call that failed.
        what: &'static str,
        /// Metal's message.
        problem: String,
    },
}

impl Failure for MetalFailure {
    const DEVICE: &'static str = "the Metal device";

    fn problem(&self) -> &'static str {
        match self {
            MetalFailure::NoDevice { .. } => "there is none",
            MetalFailure::Driver { .. } => "its driver refused a command",
        }
    }
}

impl From<MetalFailure> for Error {
    fn from(failure: MetalFailure) -> Self {
        Error::Own(failure)
    }
}

impl fmt::Display for MetalFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetalFailure::NoDevice { problem } => write!(f, "there is no usable Metal device: {problem}"),
            MetalFailure::Driver { what, problem } => write!(f, "Metal: {what} failed: {problem}"),
        }
    }
}
