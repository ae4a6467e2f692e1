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
    /// There is no NCCL, which ranks on several GPUs need, or one that is too old.
    NoNccl {
        /// Its version, as NCCL counts: 2.8.4 is 2804.
        version: Option<i32>,
    },
    /// A model was split among more GPUs than there are.
    TooFewGpus {
        /// Ranks of the model.
        expected: usize,
        /// GPUs of this machine.
        found: usize,
    },
    /// An exchange among GPUs failed.
    Exchange {
        /// The call of NCCL.
        call: &'static str,
        /// The meaning of its result.
        problem: &'static str,
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
            Error::Absent { .. } | Error::TooFewGpus { .. } => CoreError::Device { problem: "there is none" },
            Error::NoNccl { .. } => CoreError::Device { problem: "there is no NCCL" },
            Error::Exchange { problem, .. } => CoreError::Device { problem },
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
            Error::NoNccl { version } => {
                f.write_str("a model split among GPUs needs NCCL 2.9 or newer (libnccl.so.2), found ")?;
                match version {
                    None => f.write_str("none")?,
                    // 2.8.4 is 2804, 2.9.6 is 20906.
                    Some(v) if v < 10_000 => write!(f, "{}.{}.{}", v / 1000, v / 100 % 10, v % 100)?,
                    Some(v) => write!(f, "{}.{}.{}", v / 10_000, v / 100 % 100, v % 100)?,
                }
                f.write_str(
                    "; install NVIDIA's package libnccl2, or pip's nvidia-nccl-cu12 and name the folder of its library in \
                     LD_LIBRARY_PATH",
                )
            }
            Error::TooFewGpus { expected, found } => {
                write!(
                    f,
                    "the model is split among {expected} GPUs, found {found}: split it among as many as there are"
                )
            }
            Error::Exchange { call, problem } => {
                write!(f, "an exchange among GPUs failed, {call}: {problem}")
            }
            Error::Driver { call, problem } => write!(f, "the CUDA driver refused {call}: {problem}"),
        }
    }
}

impl core::error::Error for Error {}
