//! The C interface of Shohin, described in `include/shohin.h`.
//!
//! | module | |
//! |---|---|
//! | [`code`] | codes and messages of errors; panics end here |
//! | [`handle`] | handles that C holds |
//! | [`argument`] | what C passes: texts, arrays, structs with a size |
//! | [`options`] | options of models and of replies |
//! | [`info`], [`piece`], [`version`] | what calls report |
//! | [`model`] | models: loading, tokens, embeddings, logits |
//! | [`chat`] | conversations and replies |
//! | [`answer`] | messages and requests as JSON texts |
//! | [`hub`] | downloads |
//! | [`adapter`], [`teach`] | adapters, and facts that become one |
//! | [`calls`] | those of models and chats that every library has |
#![allow(non_camel_case_types, reason = "names are those of the header")]

extern crate alloc;

// `embedded/` includes these files, too.
pub mod argument;
pub mod calls;
pub mod code;
pub mod handle;
pub mod info;
pub mod options;
pub mod piece;
pub mod version;

pub mod adapter;
pub mod answer;
pub mod chat;
pub mod hub;
#[cfg_attr(not(feature = "teach"), path = "no_learning.rs")]
mod learn;
pub mod model;
mod panics;
pub mod teach;
mod turn;

pub(crate) use shohin::Error;
pub(crate) use shohin::core as engine;
