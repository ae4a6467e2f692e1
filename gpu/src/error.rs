//! Errors of wgpu, in addition to those of all GPUs.

use core::fmt;
use shohin_accelerator::Failure;
use shohin_core::Name;

/// The reason why the GPU cannot continue. `Copy` and without heap memory, like the error of core.
pub type Error = shohin_accelerator::Error<GpuFailure>;

/// Result of every fallible call of this crate.
pub type Result<T> = core::result::Result<T, Error>;

/// What only GPUs of wgpu have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GpuFailure {
    /// No GPU is available.
    NoAdapter {
        /// The reason, as far as it is known.
        problem: Name,
    },
    /// The GPU was lost: unplugged, reset by the driver, or switched off. A new device may work.
    Lost,
    /// The driver rejected a command, which is an error of this program or of the driver.
    Device {
        /// The driver's message.
        problem: Name,
    },
}

impl Failure for GpuFailure {
    const DEVICE: &'static str = "the GPU";

    fn problem(&self) -> &'static str {
        match self {
            GpuFailure::NoAdapter { .. } => "there is none",
            GpuFailure::Lost => "it was lost",
            GpuFailure::Device { .. } => "its driver refused a command",
        }
    }
}

impl From<GpuFailure> for Error {
    fn from(failure: GpuFailure) -> Self {
        Error::Own(failure)
    }
}

impl fmt::Display for GpuFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuFailure::NoAdapter { problem } => write!(f, "there is no usable GPU: {problem}"),
            GpuFailure::Lost => f.write_str("the GPU was lost; loading the model again may work"),
            GpuFailure::Device { problem } => write!(f, "the GPU's driver refused a command: {problem}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_stays_small() {
        assert!(size_of::<Error>() <= 112, "{}", size_of::<Error>());
    }
}
