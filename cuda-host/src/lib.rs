//! Models of [`shohin_core`] on NVIDIA GPUs.
//!
//! Kernels are CUDA C++ in `kernels/`, committed as PTX, which the driver compiles for the GPU: nothing but a driver is
//! needed to run. The host code is over a small trait, [`Driver`]: [`Cuda`] is the real one, and tests run the same
//! kernels and the same host code on a CPU (`shim/cuda.h`).
//!
//! A token of each of some sequences is one launch of a CUDA graph, captured the first time for their number.
//!
//! Several GPUs run one rank of a split program each, and exchange what they compute by [`Nccl`] on their streams.

mod args;
mod cuda;
mod device;
mod driver;
mod error;
mod model;
mod nccl;
mod tiles;

pub use cuda::Cuda;
pub use device::{BATCH, CudaBackend, CudaCache, CudaDevice};
pub use driver::{Driver, LaunchSize, Memory};
pub use error::{CudaFailure, Error, Result};
pub use model::CudaModel;
pub use nccl::{Communicator, Nccl};
