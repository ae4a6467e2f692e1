//! The engine as a WebAssembly module: what the npm package `shohin` calls.
//!
//! Everything here is synchronous and does a bounded piece of work, so that a worker can look for messages in between.

mod buffer;
mod conversation;
mod error;
mod lent;
mod model;
mod sampling;
#[cfg(all(test, target_arch = "wasm32"))]
mod tests;

pub use buffer::FileBuffer;
pub use conversation::{Conversation, parse_reply};
pub use model::{Model, Step};
pub use sampling::Sampling;
