//! Models: their forward pass and the location of their weights. Computing them is up to a device.
//!
//! An architecture is one file that builds its forward pass as a [`Program`]; the registry lists them.
#![forbid(unsafe_code)]

pub mod alibi;
mod basis;
#[cfg(feature = "variants")]
mod bitnet;
mod bonsai;
pub mod builder;
pub mod config;
pub mod depths;
pub mod embedding;
#[cfg_attr(not(feature = "variants"), allow(dead_code, reason = "no file needs it"))]
pub mod factors;
#[cfg(feature = "variants")]
mod gemma3;
#[cfg(feature = "variants")]
mod granite;
#[cfg_attr(not(feature = "variants"), allow(dead_code, reason = "no file needs it"))]
pub mod hadamard;
pub mod hugging_face;
mod keys;
#[cfg(feature = "variants")]
mod lfm2;
mod llama;
pub mod lora;
#[cfg(feature = "variants")]
mod maple;
mod names;
pub mod positions;
pub mod program;
#[cfg(feature = "variants")]
mod qwen2;
mod qwen3;
#[cfg(feature = "variants")]
mod qwen35;
pub mod registry;
pub mod rope;
#[cfg(feature = "variants")]
mod smollm3;
pub mod split;
pub mod weights;

pub use basis::{Basis, HeadOrder};
pub use bonsai::BonsaiModel;
pub use config::{
    Architecture, Biases, ExpertsConfig, LayerKinds, ModelConfig, ModelConfig as Qwen3Config, Recurrence,
    Scales,
};
pub use embedding::{Embedding, Pooling};
pub use hadamard::RotatedBasis;
pub use hugging_face::HuggingFace;
pub use lora::{LoraAdapter, LoraConfig};
pub use positions::{Alibi, Positions, RopeFactors, Rotary};
pub use program::Program;
pub use registry::{CapabilityProfile, ModelConfigBuilder, ModelSpec, ModelVariant, all_specs};
pub use rope::{Rope, RopeScaling};
pub use split::Split;
pub use weights::{ModelBytes, Weights};
