//! How a token looks back at the tokens before it.
#![forbid(unsafe_code)]

pub mod full;
