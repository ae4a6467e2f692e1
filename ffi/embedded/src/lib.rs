//! A part of the C interface for programs without an operating system: the section of `../include/shohin.h` says which
//! calls there are.
//!
//! | module | |
//! |---|---|
//! | [`memory`] | the heap, in memory of the program |
//! | [`model`] | models, read in place |
//! | [`storage`] | models that are not in memory |
//! | [`chat`] | conversations and replies |
//!
//! The others are those of `shohin-ffi`.
#![no_std]
#![allow(non_camel_case_types, reason = "names are those of the header")]

extern crate alloc;

#[path = "../../src/argument.rs"]
#[allow(dead_code, reason = "not all is part of this interface")]
pub mod argument;
#[path = "../../src/calls.rs"]
pub mod calls;
#[path = "../../src/code.rs"]
pub mod code;
#[path = "../../src/handle.rs"]
pub mod handle;
#[path = "../../src/info.rs"]
pub mod info;
#[path = "../../src/options.rs"]
pub mod options;
#[path = "../../src/piece.rs"]
pub mod piece;
#[path = "../../src/version.rs"]
pub mod version;

pub mod chat;
pub mod memory;
pub mod model;
mod panics;
pub mod storage;

pub(crate) use shohin_core as engine;
pub(crate) use shohin_core::Error;
