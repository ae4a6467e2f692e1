//! What running a model takes beside [`shohin_core`]: files, memory, threads and GPUs.
//!
//! | module | |
//! |---|---|
//! | [`file`] | a GGUF file, mapped; models in several files; weights repacked for the CPU |
//! | [`memory`] | anonymous memory in large pages |
//! | [`threads`] | the thread pool that computes |
//! | [`error`] | errors that name the file or option and say what was expected |

pub mod error;
pub mod file;
#[cfg_attr(not(feature = "gpu"), path = "no_gpu.rs")]
pub mod gpu;
pub mod memory;
pub mod threads;
pub mod timeline;

pub use error::{Error, Result};
pub use file::ModelFile;
pub use shohin_core as core;
pub use threads::ThreadPool;
