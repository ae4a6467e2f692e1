//! An allocator that counts the memory of the calling thread, to test memory limits.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;

/// Memory used by a piece of code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Peak bytes, beyond those held before.
    pub peak: usize,
    /// Number of allocations.
    pub calls: usize,
}

/// The system's allocator, counted per thread. `shohin_tests` installs it for every test that links it.
#[derive(Debug)]
pub struct Meter;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    static CALLS: Cell<usize> = const { Cell::new(0) };
    static LIMIT: Cell<(isize, fn())> = const { Cell::new((isize::MAX, || ())) };
}

fn took(bytes: isize) {
    // A thread that is exiting is not measured.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        PEAK.with(|peak| peak.set(peak.get().max(held.get())));
        if bytes > 0 {
            CALLS.with(|calls| calls.set(calls.get() + 1));
        }
    });
}

/// Whether `bytes` more are over the limit, which then ends: what follows allocates, too.
fn exceeds(bytes: usize) -> bool {
    let Ok((held, (limit, exceeded))) =
        HELD.try_with(Cell::get).and_then(|h| Ok((h, LIMIT.try_with(Cell::get)?)))
    else {
        return false;
    };
    let exceeds = held.saturating_add_unsigned(bytes) > limit;
    if exceeds {
        LIMIT.set((isize::MAX, || ()));
        exceeded();
    }
    exceeds
}

// SAFETY: every call is refused or forwarded to the system's allocator unchanged; the cells hold plain numbers without
// destructors, so counting neither allocates nor fails.
unsafe impl GlobalAlloc for Meter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if exceeds(layout.size()) {
            return null_mut();
        }
        took(layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        took(-(layout.size() as isize));
        // SAFETY: the caller's promise; `at` came from `System`.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if exceeds(size.saturating_sub(layout.size())) {
            return null_mut();
        }
        // While it moves, both are held.
        took(size as isize);
        took(-(layout.size() as isize));
        // SAFETY: the caller's promise; `at` came from `System`.
        unsafe { System.realloc(at, layout, size) }
    }
}

/// Runs `work`. An allocation by which this thread would hold over `bytes` bytes more than before calls `exceeded` and fails:
/// that aborts the process with a message, where the system would end it without one, or `work` goes on without the memory.
///
/// # Panics
/// In the latter case, when `work` is done.
pub fn limit<T>(bytes: usize, exceeded: fn(), work: impl FnOnce() -> T) -> T {
    /// Takes the limit away, also if `work` panics.
    struct Limited;
    impl Drop for Limited {
        fn drop(&mut self) {
            LIMIT.set((isize::MAX, || ()));
        }
    }
    LIMIT.set((HELD.get().saturating_add_unsigned(bytes), exceeded));
    let _limited = Limited;
    let result = work();
    assert!(LIMIT.get().0 < isize::MAX, "more than {bytes} bytes of memory were requested");
    result
}

/// Runs `work` and returns the memory that this thread used. Calls must not be nested.
pub fn measure<T>(work: impl FnOnce() -> T) -> (T, Usage) {
    let before = HELD.with(Cell::get);
    PEAK.with(|p| p.set(before));
    CALLS.with(|c| c.set(0));
    let result = work();
    let peak = PEAK.with(Cell::get) - before;
    (result, Usage { peak: peak.max(0) as usize, calls: CALLS.with(Cell::get) })
}
