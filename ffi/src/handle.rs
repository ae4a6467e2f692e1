//! Handles that C holds: boxes that begin with a word that names their kind.

use crate::code::{Failure, Result, shohin_code};
use alloc::boxed::Box;
use alloc::format;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};

/// The word of a freed handle.
const FREED: usize = 0;

/// What a handle holds.
pub(crate) trait Kind {
    /// Its first word.
    const MAGIC: usize;
    /// The name in messages.
    const NAME: &'static str;
}

/// The word of a kind: the last bytes of a name.
pub(crate) const fn word(name: &[u8; 8]) -> usize {
    u64::from_be_bytes(*name) as usize
}

/// The memory of a handle.
#[repr(C)]
pub(crate) struct Handle<T> {
    magic: AtomicUsize,
    value: T,
}

impl<T: Kind> Handle<T> {
    /// Moves a value to a handle.
    pub(crate) fn give<C>(value: T) -> *mut C {
        Box::into_raw(Box::new(Handle { magic: AtomicUsize::new(T::MAGIC), value })).cast()
    }

    /// # Safety
    /// As [`Handle::get`].
    unsafe fn check<'h, C>(handle: *const C) -> Result<&'h Handle<T>> {
        let handle = handle.cast::<Handle<T>>();
        let wrong = |code, problem| Err(Failure::new(code, format!("the {} {problem}", T::NAME)));
        if handle.is_null() {
            return wrong(shohin_code::SHOHIN_NULL, "is NULL");
        }
        if !handle.is_aligned() {
            return wrong(shohin_code::SHOHIN_HANDLE, "is not a handle");
        }
        // SAFETY: the caller vouches for the first word, and they are aligned.
        let magic = unsafe { &*handle.cast::<AtomicUsize>() };
        if magic.load(Ordering::Acquire) != T::MAGIC {
            return wrong(shohin_code::SHOHIN_HANDLE, "is a handle of another kind, or was freed");
        }
        // SAFETY: only `give` makes memory that begins with this word.
        Ok(unsafe { &*handle })
    }

    /// The value of a handle.
    ///
    /// # Safety
    /// `handle` is NULL or points to a word that can be read; if it is a handle of this kind, no other thread frees it
    /// during the call.
    pub(crate) unsafe fn get<'h, C>(handle: *const C) -> Result<&'h T> {
        // SAFETY: the same.
        unsafe { Self::check(handle) }.map(|handle| &handle.value)
    }

    /// Frees a handle.
    ///
    /// # Safety
    /// As [`Handle::get`]; no reference to its value exists.
    pub(crate) unsafe fn free<C>(handle: *mut C) -> Result<()> {
        // SAFETY: the same.
        let checked = unsafe { Self::check(handle) }?;
        let ours = checked.magic.compare_exchange(T::MAGIC, FREED, Ordering::AcqRel, Ordering::Acquire);
        if ours.is_ok() {
            // SAFETY: it came from a box, and the exchange succeeds once.
            drop(unsafe { Box::from_raw(handle.cast::<Handle<T>>()) });
        }
        Ok(())
    }
}

/// A place for a handle. It is written when there is one.
pub(crate) fn place<C>(place: *mut *mut C) -> Result<NonNull<*mut C>> {
    let missing = || Failure::new(shohin_code::SHOHIN_NULL, "the place for the handle is NULL");
    NonNull::new(place).ok_or_else(missing)
}
