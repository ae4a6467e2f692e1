//! An allocator that counts the memory of the calling thread, to test memory limits.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

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

// SAFETY: every call is forwarded to the system's allocator unchanged; the cells hold plain numbers without
// destructors, so counting neither allocates nor fails.
unsafe impl GlobalAlloc for Meter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
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
        // While it moves, both are held.
        took(size as isize);
        took(-(layout.size() as isize));
        // SAFETY: the caller's promise; `at` came from `System`.
        unsafe { System.realloc(at, layout, size) }
    }
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
