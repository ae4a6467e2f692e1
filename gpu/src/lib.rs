//! Models of [`shohin_core`] on a GPU: WebGPU in browsers, Vulkan and Metal elsewhere.
//!
//! Weights are uploaded packed, once, while they arrive ([`Upload`]); the residual stream, the cache and the
//! logits stay on the GPU. A [`GpuDevice`] records the operations of the model's
//! [`Program`](shohin_core::model::Program) as dispatches when it is created. A token is one submission,
//! after which the host reads back the requested output, often a few bytes. Every kernel is a `.wgsl` file
//! named after the operation of core it computes; [`shohin_core`] is the reference.
#![forbid(unsafe_code)]
// In browsers a device belongs to one thread; elsewhere models are shared between threads.
#![cfg_attr(target_arch = "wasm32", allow(clippy::arc_with_non_send_sync))]

mod cache;
mod device;
mod error;
mod gpu;
mod kernel;
mod kv;
mod packed;
mod record;
mod shader;
#[cfg(target_arch = "wasm32")]
mod subgroups;
mod upload;

pub use cache::GpuCache;
pub use device::{Counters, GpuBackend, GpuDevice, GpuDeviceOptions};
pub use error::{Error, GpuFailure, Result};
pub use gpu::{Gpu, GpuOptions};
pub use shader::Extensions;
pub use upload::{GpuModel, Upload, UploadPlan};
