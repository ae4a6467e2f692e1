//! The engine as a WebAssembly module: what the npm package `shohin` calls.
//!
//! Everything here is synchronous and does a bounded piece of work, so that a worker can look for messages in between.

mod buffer;
mod error;

pub use buffer::FileBuffer;
