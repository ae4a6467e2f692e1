//! Run small language models: on all cores, or on a GPU.
//!
//! ```no_run
//! use shohin::Model;
//!
//! # fn main() -> shohin::Result<()> {
//! let model = Model::load("Ternary-Bonsai-1.7B-Q2_0.gguf")?;
//! let mut chat = model.chat()?;
//! for piece in chat.send("What does a cow say?")? {
//!     print!("{}", piece?.text);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Run it with `cargo run --release`: without optimization it is about a hundred times slower.
//!
//! [`Model::built_in`] needs no file, [`Model::builder`] has the options, and [`mod@core`] is the underlying
//! engine.
//!
//! | module | |
//! |---|---|
//! | [`Model`], [`Builder`] | a loaded model; loading it |
//! | [`chat`] | conversations, and streaming replies |
//! | [`scheduler`] | several replies at once |
//! | [`sequence`] | a sequence of tokens on any device |
//! | [`speculate`] | speculative decoding |
//! | `ReplyStream` | replies as asynchronous streams, with the feature `stream` |
//! | `Mpi` | models split among processes, with the feature `mpi` |
//! | [`mod@devices`] | which devices there are |
//! | [`mod@file`] | a GGUF file, mapped; models in several files; weights repacked for the CPU |
//! | [`shard`] | the bytes of a model's files while it runs |
//! | [`memory`] | memory in large pages |
//! | `hub` | models of the Hugging Face Hub, with the feature `hub` |
//! | `convert` | Hugging Face folders as GGUF files, with the feature `convert` |
//! | `train` | training, with the feature `train` |
//! | [`weight_cache`] | repacked weights on disk, which the next load maps |
//! | [`template`] | chat templates of files that are not built in |
//! | [`threads`] | the thread pool that computes |
//! | [`error`] | errors that name the file or option and the expected value |

mod adapted;
mod beam;
mod builder;
#[cfg(feature = "convert")]
mod calibrate;
pub mod chat;
mod choice;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod device;
pub mod devices;
pub mod error;
pub mod file;
#[cfg(feature = "gpu")]
mod gpu;
#[cfg(feature = "hub")]
pub mod hub;
#[cfg(feature = "hub")]
mod hub_files;
#[cfg(feature = "hub")]
mod hub_name;
#[cfg(feature = "hub")]
mod hub_place;
mod load;
mod lora;
pub mod memory;
#[cfg(all(feature = "metal", target_os = "macos"))]
mod metal;
mod model;
mod plan;
#[cfg(feature = "profile")]
pub mod profile;
mod reader;
pub mod rerank;
pub mod scheduler;
pub mod sequence;
pub mod shard;
mod snapshot;
mod source;
pub mod speculate;
mod split;
#[cfg(feature = "stream")]
mod stream;
pub mod template;
pub mod threads;
#[cfg(feature = "train")]
pub mod train;
pub mod weight_cache;
mod weights;

pub use builder::Builder;
pub use chat::{Chat, Piece, Reply, Step, Timings};
pub use devices::{DeviceName, devices};
pub use error::{Error, FileError, Result};
pub use file::ModelFile;
pub use lora::Adapter;
pub use model::Model;
#[cfg(feature = "profile")]
pub use profile::Profile;
pub use scheduler::Scheduler;
pub use sequence::Sequence;
#[cfg(feature = "convert")]
pub use shohin_convert as convert;
pub use shohin_core as core;
pub use shohin_core::chat::{ChatMessage, TurnOptions};
pub use shohin_core::model::Split;
pub use shohin_core::{Activations, AttentionPattern, KvFormat, SamplerConfig};
#[doc(hidden)]
pub use shohin_files::{folder_name, new_file};
#[cfg(feature = "mpi")]
pub use split::Mpi;
#[cfg(feature = "stream")]
pub use stream::ReplyStream;
pub use threads::ThreadPool;
pub use weight_cache::WeightCache;

/// Compiles the README's Rust.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;
