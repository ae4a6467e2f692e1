//! The engine as a WebAssembly module: what the npm package `shohin` calls.
//!
//! Everything here is synchronous and does a bounded piece of work, so that a worker can look for messages in between.

// Waiting for a word of shared memory; only the build of the whole standard library for threads gets here.
#![cfg_attr(target_feature = "atomics", feature(stdarch_wasm_atomic_wait))]

mod buffer;
mod conversation;
mod error;
#[cfg(feature = "gpu")]
mod gpu;
#[cfg(all(test, feature = "gpu", target_arch = "wasm32"))]
mod gpu_tests;
mod lent;
mod model;
mod sampling;
mod team;
#[cfg(all(test, target_arch = "wasm32"))]
mod tests;

pub use buffer::FileBuffer;
pub use conversation::{Conversation, parse_reply};
#[cfg(feature = "gpu")]
pub use gpu::{GpuLoader, GpuModel};
pub use model::{Model, Step};
pub use sampling::Sampling;
#[cfg(target_feature = "atomics")]
pub use team::shared::{shared_memory, work, worker_crashed};
