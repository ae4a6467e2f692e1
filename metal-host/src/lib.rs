//! Models of [`shohin_core`] on the GPU of a Mac, with Metal.
//!
//! Weights are packed once, into memory that the CPU and the GPU share ([`MetalModel`]). A [`MetalDevice`] lowers
//! the operations of the model's [`Program`](shohin_core::model::Program) to dispatches when it is created; a token
//! is one command buffer, after which the host reads the requested output in place. Each file of `kernels/` is an
//! operation of core; [`shohin_core`] is the reference.
//!
//! Everything but the calls of Metal itself is generic over a [`Driver`]. `Metal` is the one for Macs; the tests'
//! driver compiles the same kernels as C++ and runs them on the CPU, so that whole models are tested anywhere.

// The tests' driver is the one of `tests/`, which names this crate.
#[cfg(test)]
extern crate self as shohin_metal;

mod cache;
mod device;
mod driver;
mod error;
mod kernel;
mod lower;
#[cfg(target_os = "macos")]
mod metal;
#[cfg(test)]
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../tests/tested/mod.rs"]
mod tested;
mod weights;

pub use cache::MetalCache;
pub use device::{MetalBackend, MetalDevice};
pub use driver::{Dispatch, Driver};
pub use error::{Error, MetalFailure, Result};
pub use kernel::{SOURCE, kernel_names};
#[cfg(target_os = "macos")]
pub use metal::{Metal, MetalBuffer};
pub use weights::MetalModel;
