//! A value that others in the same struct borrow.

use std::ptr::NonNull;

/// A value at a fixed place on the heap. Unlike a `Box` it claims no uniqueness, so it may be moved while references to
/// the value live.
pub(crate) struct Lent<T>(NonNull<T>);

impl<T> Lent<T> {
    pub(crate) fn new(value: T) -> Self {
        Lent(NonNull::from(Box::leak(Box::new(value))))
    }

    /// The value, for as long as `self` lives, which the compiler does not check.
    ///
    /// # Safety
    /// The reference must not be used after `self` is dropped: keep it in a field or variable that is dropped before.
    pub(crate) unsafe fn lend(&self) -> &'static T {
        // SAFETY: the pointer comes from a leaked box that only `drop` gives back; no `&mut` is ever made of it.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        // SAFETY: the pointer came from `Box::leak` in `new`, and this is the only place that takes it back.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}
