//! Shohin's engine: bytes of a GGUF file in, text out, on anything with an allocator.
//!
//! ```text
//! bytes -> gguf -> weights -> forward -> logits -> token -> text
//! ```
//!
//! | step | module |
//! |---|---|
//! | bytes to tensors and metadata | [`gguf`], through [`bytes`], within [`limits`] |
//! | tensors to weights, still packed | [`model`], in the formats of [`quant`] |
//! | weights and tokens to logits | a [`model::Program`] on a [`device`]: [`cpu`]; [`session`], [`cache`] |
//! | logits to a token | [`sample`] |
//! | token to text, and on to the next token | [`generate`] and [`beam`], with [`tokenizer`] and [`chat`] |
//!
//! ```
//! use shohin_core::chat::{self, ChatOptions, Message, Role, Template};
//! use shohin_core::generate::{Event, Generation, GenerationOptions, drive};
//! use shohin_core::session::Decoder;
//! use shohin_core::{BonsaiModel, Cpu, CpuOptions, Gguf, Sampler, SamplerConfig, Serial, Session};
//! use shohin_core::{SessionOptions, Tokenizer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let bytes = std::fs::read("../models/sprout.gguf")?;
//! let gguf = Gguf::parse(&bytes)?;
//! let tokenizer = Tokenizer::from_gguf(&gguf)?;
//! let template = Template::from_metadata(gguf.metadata(), &tokenizer)?;
//!
//! let messages = [Message::new(Role::User, "What does a cow say?")];
//! let prompt = chat::encode(&tokenizer, &messages, &ChatOptions { template, ..Default::default() })?;
//!
//! let mut cpu = Cpu::new(BonsaiModel::from_gguf(&gguf)?, &CpuOptions::default(), Serial)?;
//! let mut session = Session::new(&mut cpu, &SessionOptions::default())?;
//! let sampler = Sampler::new(&SamplerConfig::greedy(), cpu.model().config().vocab_size)?;
//! let options = GenerationOptions { max_tokens: 40, ..Default::default() };
//! let mut reply = Generation::new(&prompt, 0, session.capacity(), sampler, options)?;
//!
//! let mut text = String::new();
//! let mut decoder = Decoder { device: &mut cpu, session: &mut session };
//! drive(&mut reply, &mut decoder, &tokenizer, &mut |event| {
//!     if let Event::Token(token) = event {
//!         text += token.text;
//!     }
//!     std::ops::ControlFlow::Continue(())
//! })?;
//! assert!(text.starts_with("A cow says"), "{text}");
//! # Ok(())
//! # }
//! ```
#![no_std]
#![deny(unsafe_code)]
#![cfg_attr(
    not(all(
        feature = "integer-formats",
        feature = "codebook-formats",
        feature = "ternary-formats",
        feature = "one-bit-formats",
        feature = "portable-kernels",
        feature = "cache-formats",
        feature = "variants",
        feature = "serving",
        feature = "sampling",
        feature = "tools",
        feature = "messages",
    )),
    allow(dead_code, reason = "the code of features that are left out")
)]

extern crate alloc;

// First, as its macro constructs errors.
#[macro_use]
pub mod error;

pub mod arena;
pub mod attention;
pub mod beam;
pub mod bytes;
pub mod cache;
pub mod chat;
pub mod collective;
pub mod constrain;
pub mod cpu;
pub mod device;
mod float16;
pub mod generate;
pub mod gguf;
mod hadamard;
pub mod json;
pub mod limits;
mod magnitude;
mod memory;
pub mod model;
pub mod paging;
pub mod pool;
pub mod quant;
pub mod rows;
pub mod sample;
pub mod session;
#[cfg(any(test, all(feature = "soft-float", target_arch = "riscv32", target_os = "none")))]
mod soft_float;
mod sort;
pub mod sync;
pub mod tokenizer;

pub use attention::AttentionPattern;
pub use cache::KvFormat;
pub use cpu::{Cpu, CpuOptions, MemoryPlan};
pub use device::{Activations, Device, SessionOptions};
pub use error::{Error, Name, Result, is_printable};
pub use gguf::Gguf;
pub use limits::Limits;
pub use model::{BonsaiModel, ModelConfig, Qwen3Config};
pub use pool::{Pool, Serial};
pub use quant::{Format, Matrix};
pub use sample::{Sampler, SamplerConfig};
pub use session::Session;
pub use tokenizer::Tokenizer;
