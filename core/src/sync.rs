//! Shared ownership, and a counter, on processors with and without atomic read-modify-write instructions. Those without,
//! such as Cortex-M0, have one core, and compute on one thread.
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicUsize, Ordering};

#[cfg(not(target_has_atomic = "ptr"))]
pub use alloc::rc::Rc as Arc;
#[cfg(target_has_atomic = "ptr")]
pub use alloc::sync::Arc;

/// Whether a [`Pool`](crate::Pool) may run jobs side by side.
pub(crate) const THREADS: bool = cfg!(target_has_atomic = "ptr");

/// `Send` and `Sync`, where values can be shared between threads at all.
#[cfg(target_has_atomic = "ptr")]
pub(crate) trait Shareable: Send + Sync {}
#[cfg(target_has_atomic = "ptr")]
impl<T: Send + Sync> Shareable for T {}

/// `Send` and `Sync`, where values can be shared between threads at all.
#[cfg(not(target_has_atomic = "ptr"))]
pub(crate) trait Shareable {}
#[cfg(not(target_has_atomic = "ptr"))]
impl<T> Shareable for T {}

/// Counts from 0. Without [`THREADS`], only one thread may use it.
pub(crate) struct Counter(AtomicUsize);

impl Counter {
    pub(crate) const fn new() -> Counter {
        Counter(AtomicUsize::new(0))
    }

    /// The next number.
    pub(crate) fn next(&self) -> usize {
        #[cfg(target_has_atomic = "ptr")]
        return self.0.fetch_add(1, Ordering::Relaxed);
        #[cfg(not(target_has_atomic = "ptr"))]
        {
            let next = self.0.load(Ordering::Relaxed);
            self.0.store(next.wrapping_add(1), Ordering::Relaxed);
            next
        }
    }
}
