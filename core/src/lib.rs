//! Shohin's engine: bytes of a GGUF file in, text out, on anything with an allocator.
//!
//! ```text
//! bytes -> gguf -> weights -> forward -> logits -> token -> text
//! ```
//!
//! | step | module |
//! |---|---|
//! | bytes to tensors and metadata | [`gguf`], through [`bytes`], within [`limits`] |
//! | tensors to weights, still packed | [`model::weights`], in the formats of [`quant`] |
//! | weights and tokens to logits | [`model::qwen3`]: [`kernel`], [`op`], [`attention`], [`cache`] |
//! | logits to a token | [`sample`] |
//! | token to text, and again | [`generate`], with [`tokenizer`] and [`chat`] |
//!
//! ```
//! use shohin_core::chat::{self, ChatOptions, Message, Role, Template};
//! use shohin_core::generate::{Cpu, Generation, GenerationOptions, Event, drive};
//! use shohin_core::{BonsaiModel, Gguf, Sampler, SamplerConfig, Serial, Session, SessionOptions, Tokenizer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let bytes = std::fs::read("../models/sprout.gguf")?;
//! let gguf = Gguf::parse(&bytes)?;
//! let model = BonsaiModel::from_gguf(&gguf)?;
//! let tokenizer = Tokenizer::from_gguf(&gguf)?;
//! let template = Template::from_metadata(gguf.metadata(), &tokenizer)?;
//!
//! let messages = [Message::new(Role::User, "What does a cow say?")];
//! let prompt = chat::encode(&tokenizer, &messages, &ChatOptions { template, ..Default::default() })?;
//!
//! let mut session = Session::new(&model, &SessionOptions::default())?;
//! let sampler = Sampler::new(&SamplerConfig::greedy(), model.config().vocab_size)?;
//! let options = GenerationOptions { max_tokens: 40, ..Default::default() };
//! let mut reply = Generation::new(&prompt, 0, session.capacity(), sampler, options)?;
//!
//! let mut text = String::new();
//! drive(&mut reply, &mut Cpu { session: &mut session, pool: &Serial }, &tokenizer, &mut |step| {
//!     if let Event::Token(event) = step {
//!         text += event.text;
//!     }
//!     std::ops::ControlFlow::Continue(())
//! })?;
//! assert!(text.starts_with("A cow says"), "{text}");
//! # Ok(())
//! # }
//! ```
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;

pub mod arena;
pub mod attention;
pub mod bytes;
pub mod cache;
pub mod chat;
pub mod constrain;
pub mod error;
pub mod generate;
pub mod gguf;
pub mod json;
pub mod kernel;
pub mod limits;
pub mod model;
pub mod op;
mod order;
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
