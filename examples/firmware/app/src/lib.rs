//! A chat with a language model on a microcontroller: type a line, read the answer.
//!
//! The model stays in flash and is read in place, or on a card and is read through a window. All memory is static: a heap that serves the set-up and then refuses
//! every request, the device's scratch memory, and the session's cache. A board's program calls [`run`] or
//! [`run_from_card`] with what counts its instructions.
#![no_std]

extern crate alloc;

mod chat;
pub mod clock;
mod console;
mod damaged;
mod heap;
#[cfg(target_arch = "arm")]
mod interrupts;
mod measured;
mod model;
mod parity;
mod sd_card;
#[cfg(feature = "report")]
mod stack;

pub use chat::{run, run_from_card};
pub use parity::parity;
