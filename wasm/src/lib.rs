//! The engine as a WebAssembly module: what the npm package `shohin` calls.
//!
//! Everything here is synchronous and does a bounded piece of work, so that a worker can look for messages in between.

// Waiting for a word of shared memory; only the build of the whole standard library for threads gets here.
#![cfg_attr(target_feature = "atomics", feature(stdarch_wasm_atomic_wait))]

mod buffer;
mod conversation;
mod embedding;
mod error;
#[cfg(feature = "gpu")]
mod gpu;
#[cfg(all(test, feature = "gpu", target_arch = "wasm32"))]
mod gpu_tests;
mod joiner;
mod model;
mod reply;
mod sampling;
mod snapshot;
mod team;
#[cfg(all(test, target_arch = "wasm32"))]
mod tests;
mod timeline;
mod words;

use wasm_bindgen::prelude::wasm_bindgen;

pub use buffer::{Checksum, FileBuffer};
pub use conversation::{Conversation, tool_calls};
pub use embedding::Embedder;
#[cfg(feature = "gpu")]
pub use gpu::{GpuEmbedder, GpuLoader, GpuModel, GpuTimeline};
pub use joiner::Joiner;
pub use model::Model;
pub use reply::Step;
pub use sampling::Sampling;
#[cfg(target_feature = "atomics")]
pub use team::shared::{shared_memory, work, worker_crashed};
pub use timeline::Timeline;

/// The instructions of this build.
#[wasm_bindgen]
pub fn isa() -> String {
    shohin_core::cpu::Isa::detect().name().into()
}
