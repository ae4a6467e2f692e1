//! The C interface of Shohin, described in `include/shohin.h`.
//!
//! | module | |
//! |---|---|
//! | [`code`] | codes and messages of errors; panics end here |
//! | [`handle`] | handles that C holds |
//! | [`argument`] | what C passes: texts, arrays, structs with a size |
//! | [`options`] | options of models and of replies |
//! | [`model`] | models: loading, tokens, embeddings, logits |
//! | [`chat`] | conversations and replies |
#![allow(non_camel_case_types, reason = "names are those of the header")]

pub mod argument;
pub mod chat;
pub mod code;
pub mod handle;
pub mod model;
pub mod options;

use std::ffi::{CStr, c_char};

/// The version with a NUL at its end.
const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => c"",
};

/// The library's version.
#[unsafe(no_mangle)]
pub extern "C" fn shohin_version() -> *const c_char {
    VERSION.as_ptr()
}
