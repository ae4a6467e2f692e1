//! The engine as a WebAssembly module: what the npm package `shohin` calls.
//!
//! A module computes on one device: the CPU, or with the feature `gpu` a GPU by WebGPU. Both have the same classes; on
//! a GPU the calls that compute return promises. Every call does a bounded piece of work, so that a worker can look for
//! messages in between.

// Waiting for a word of shared memory; only the build of the whole standard library for threads gets here.
#![cfg_attr(target_feature = "atomics", feature(stdarch_wasm_atomic_wait))]

#[cfg(not(feature = "gpu"))]
#[path = "cpu/adapter.rs"]
mod adapter;
mod beams;
#[cfg_attr(not(feature = "gpu"), path = "cpu/calls.rs")]
#[cfg_attr(feature = "gpu", path = "gpu/calls.rs")]
mod calls;
mod chat;
mod checksum;
#[cfg_attr(not(feature = "gpu"), path = "cpu/device.rs")]
#[cfg_attr(feature = "gpu", path = "gpu/device.rs")]
mod device;
mod embedder;
mod error;
mod info;
mod joiner;
mod loaded;
#[cfg_attr(not(feature = "gpu"), path = "cpu/loader.rs")]
#[cfg_attr(feature = "gpu", path = "gpu/loader.rs")]
mod loader;
mod message;
mod model;
mod object;
mod options;
mod platform;
#[cfg(all(test, not(feature = "gpu"), target_arch = "wasm32"))]
mod tests;
#[cfg(not(feature = "gpu"))]
mod threads;

use wasm_bindgen::prelude::wasm_bindgen;

#[cfg(not(feature = "gpu"))]
pub use adapter::Adapter;
pub use chat::{Chat, Step};
pub use checksum::Checksum;
pub use embedder::Embedder;
pub use joiner::Joiner;
pub use loader::Loader;
pub use model::Model;
#[cfg(all(target_feature = "atomics", not(feature = "gpu")))]
pub use threads::shared::{shared_memory, work, worker_crashed};

/// The instruction set of this build.
#[wasm_bindgen]
pub fn isa() -> String {
    shohin_core::cpu::Isa::detect().name().into()
}
