//! An allocator that counts what the calling thread takes, for promises about memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// What a piece of code took from the allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Most bytes held at the same time, beyond what was held before.
    pub peak: usize,
    /// Calls that asked for memory.
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
    // A thread that is being torn down has nothing to measure any more.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        PEAK.with(|peak| peak.set(peak.get().max(held.get())));
        if bytes > 0 {
            CALLS.with(|calls| calls.set(calls.get() + 1));
        }
    });
}

// SAFETY: every call goes to the system's allocator unchanged; the cells hold plain numbers without
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

/// Runs `work` and tells what this thread took meanwhile. Calls may not be nested.
pub fn measure<T>(work: impl FnOnce() -> T) -> (T, Usage) {
    let before = HELD.with(Cell::get);
    PEAK.with(|p| p.set(before));
    CALLS.with(|c| c.set(0));
    let result = work();
    let peak = PEAK.with(Cell::get) - before;
    (result, Usage { peak: peak.max(0) as usize, calls: CALLS.with(Cell::get) })
}
