//! A chat with a language model on a microcontroller: type a line, read the answer.
//!
//! The model stays in flash and is read in place. All memory is static: a heap that serves the set-up and then refuses
//! every request, the device's scratch memory, and the session's cache. A board's program calls [`run`] with what counts
//! its instructions.
#![no_std]

extern crate alloc;

mod chat;
pub mod clock;
mod heap;
mod model;
mod parity;
mod stack;

pub use chat::run;
pub use parity::parity;

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    semihosting::eprintln!("{info}");
    semihosting::process::exit(101)
}
