//! Shohin's engine: bytes of a GGUF file in, text out, on anything with an allocator.
//!
//! ```text
//! bytes -> gguf -> weights -> forward -> logits -> token -> text
//! ```
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod arena;
pub mod attention;
pub mod bytes;
pub mod cache;
pub mod chat;
pub mod error;
pub mod generate;
pub mod gguf;
pub mod kernel;
pub mod limits;
pub mod model;
pub mod op;
pub mod pool;
pub mod quant;
pub mod sample;
pub mod tokenizer;

pub use cache::KvFormat;
pub use error::{Error, Name, Result};
pub use gguf::Gguf;
pub use limits::Limits;
pub use model::{Activations, BonsaiModel, MemoryPlan, Qwen3Config, Session, SessionOptions};
pub use pool::{Pool, Serial};
pub use quant::{Format, Matrix};
pub use sample::{Sampler, SamplerConfig};
pub use tokenizer::Tokenizer;
