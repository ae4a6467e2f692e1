//! Errors of CUDA, in addition to those of all GPUs.

use core::fmt;
use shohin_accelerator::Failure;
use shohin_core::Name;

/// The reason why the GPU cannot continue.
pub type Error = shohin_accelerator::Error<CudaFailure>;

/// Result of every fallible call of this crate.
pub type Result<T> = core::result::Result<T, Error>;

/// What only NVIDIA's GPUs have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CudaFailure {
    /// No CUDA driver, or no GPU with the requested number.
    Absent {
        /// The reason.
        problem: Name,
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

impl Failure for CudaFailure {
    const DEVICE: &'static str = "CUDA";

    fn problem(&self) -> &'static str {
        match *self {
            CudaFailure::Absent { .. } | CudaFailure::TooFewGpus { .. } => "there is none",
            CudaFailure::NoNccl { .. } => "there is no NCCL",
            CudaFailure::Exchange { problem, .. } => problem,
            CudaFailure::Driver { .. } => "its driver refused a command",
        }
    }
}

impl From<CudaFailure> for Error {
    fn from(failure: CudaFailure) -> Self {
        Error::Own(failure)
    }
}

impl fmt::Display for CudaFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            CudaFailure::Absent { problem } => write!(f, "CUDA cannot be used: {problem}"),
            CudaFailure::NoNccl { version } => {
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
            CudaFailure::TooFewGpus { expected, found } => {
                write!(
                    f,
                    "the model is split among {expected} GPUs, found {found}: split it among as many as there are"
                )
            }
            CudaFailure::Exchange { call, problem } => {
                write!(f, "an exchange among GPUs failed, {call}: {problem}")
            }
            CudaFailure::Driver { call, problem } => write!(f, "the CUDA driver refused {call}: {problem}"),
        }
    }
}
