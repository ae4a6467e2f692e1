//! Qwen3: weights in, logits out.

pub mod config;
pub mod embedding;
pub mod qwen3;
pub mod registry;
pub mod session;
pub mod weights;

pub use config::Qwen3Config;
pub use embedding::{Embedding, Pooling};
pub use qwen3::BonsaiModel;
pub use registry::{CapabilityProfile, ModelConfigBuilder, ModelSpec, ModelVariant, all_specs};
pub use session::{Activations, MemoryPlan, Session, SessionOptions};
pub use weights::{TransformerBlock, Weights};
