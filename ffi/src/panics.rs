//! Panics, which must not reach C.

use crate::code::{Failure, Result, shohin_code};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a call; a panic is a failure.
pub(crate) fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    // A handle whose state a panic may have left half changed is locked by it: see `chat`.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(panicked(&*panic)))
}

fn panicked(panic: &(dyn Any + Send)) -> Failure {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    Failure::new(shohin_code::SHOHIN_PANIC, format!("a bug in the library: {text}"))
}
