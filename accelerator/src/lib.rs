//! What the hosts of GPUs share.
//!
//! A host implements [`Backend`]: memory, kernels, and the launches that operations of a model's
//! [`Program`](shohin_core::model::Program) become. [`Accelerator`] is the [`Device`](shohin_core::Device) over it: it has
//! the sequences, divides batches, and passes on what is read out.
#![forbid(unsafe_code)]

mod cache;
mod device;
mod error;
mod outputs;
mod support;
mod weights;

pub use cache::{Cache, KvShape, MemoryPlan};
pub use device::{Accelerator, Backend, new_id, read_out, run_rows};
pub use error::{Error, Failure, Result};
pub use outputs::{Outputs, row_bytes};
pub use support::{Head, Supported, check, head, layouts};
pub use weights::{repack, staged_rows};
