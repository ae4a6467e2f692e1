//! The forward pass of [`shohin_core`] on a GPU: WebGPU in browsers, Vulkan and Metal elsewhere.
//!
//! Weights go to the GPU packed, once, while they arrive ([`Upload`]); the residual stream, the cache and the logits
//! stay there. A token is one submission, after which the host reads back what it asked for ([`Want`]): often a
//! few bytes. Every kernel is a `.wgsl` file named after the operation of core it computes; [`shohin_core`] is their
//! reference.
#![forbid(unsafe_code)]
// In browsers a device belongs to one thread; elsewhere models are shared between threads.
#![cfg_attr(target_arch = "wasm32", allow(clippy::arc_with_non_send_sync))]

#[cfg(not(target_arch = "wasm32"))]
mod backend;
mod device;
mod error;
mod form;
mod kernel;
mod session;
mod shader;
mod weights;

#[cfg(not(target_arch = "wasm32"))]
pub use backend::GpuBackend;
pub use device::{Extensions, Gpu, GpuOptions};
pub use error::{Error, Result};
pub use kernel::Kv;
pub use session::{Counters, GpuMemory, GpuSession, GpuSessionOptions, Want, memory_plan, wanted};
pub use weights::{GpuModel, Layout, Upload};
