//! The CPU device, by instruction set and by operation.
//!
//! | | |
//! |---|---|
//! | [`Cpu`], [`CpuWeights`], [`CpuOptions`] | the device, its weights, its options |
//! | [`matmul`], [`attention`](self), [`op`] | the operations |
//! | [`isa`], [`simd`] | instruction sets, and their vectors |
//! | [`repack`], [`expand`] | weights rearranged for the kernels |
//! | [`fit`] | which model and context fit into how much memory |

#[allow(dead_code, reason = "not every target has an instruction set that uses it")]
pub mod activation_lut;
pub mod activations;
mod attention;
mod cache;
mod context;
pub mod cross_attention;
mod device;
pub mod expand;
mod expand_file;
pub mod fit;
mod forward;
pub mod isa;
pub mod matmul;
pub mod op;
mod options;
#[doc(hidden)]
pub mod parallel;
mod recurrent;
pub mod repack;
mod scratch;
pub mod simd;
#[cfg(feature = "taps")]
mod tap;
mod weights;
mod window;

pub use cache::CpuCache;
pub use device::Cpu;
pub use expand_file::{Expansion, expand_file, expansion};
pub use isa::{Fused, Isa};
pub use options::{CpuOptions, MemoryPlan};
#[cfg(feature = "taps")]
pub use tap::{Moment, Product, Tap};
pub use weights::CpuWeights;
