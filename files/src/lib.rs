//! Files as the hosts of Shohin use them.
//!
//! | item | |
//! |---|---|
//! | [`MappedModel`] | a GGUF file, or all parts of a model, mapped |
//! | [`map_file`], [`open_mapped`] | other files, mapped |
//! | [`large_pages`] | memory in large pages |
//! | [`new_file`] | files that appear under their names when they are complete |
//! | [`Error`] | what is wrong with a file |
#![deny(unsafe_code)]

mod error;
mod map;
mod model;
pub mod new_file;

pub use error::{Error, Result, failed};
pub use map::{IS_POINTER, Mmap, MmapMut, POINTER, advise_large_pages, large_pages, map_file, open_mapped};
pub use model::{MappedFile, MappedModel, folder_name, parse, shard_names};
