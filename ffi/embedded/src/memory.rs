//! The heap, in memory of the program.

use crate::code::{Failure, Result, call, shohin_code, shohin_error};
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::ptr::{NonNull, null_mut};
use linked_list_allocator::Heap;

#[cfg_attr(target_os = "none", global_allocator)]
static MEMORY: Memory = Memory(UnsafeCell::new(State { heap: Heap::empty(), peak: 0 }));

/// One thread at a time uses it, as the header demands of all calls.
struct Memory(UnsafeCell<State>);

struct State {
    heap: Heap,
    peak: usize,
}

// SAFETY: the header demands that calls do not overlap, and nothing else gets to it.
unsafe impl Sync for Memory {}

impl Memory {
    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        // SAFETY: calls do not overlap, and `work` neither allocates nor calls this.
        work(unsafe { &mut *self.0.get() })
    }
}

// SAFETY: memory is only passed on from an allocator that keeps the contract.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.with(|state| {
            let memory = state.heap.allocate_first_fit(layout);
            state.peak = state.peak.max(state.heap.used());
            memory.map_or(null_mut(), NonNull::as_ptr)
        })
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if let Some(memory) = NonNull::new(memory) {
            // SAFETY: the caller's promise.
            self.with(|state| unsafe { state.heap.deallocate(memory, layout) });
        }
    }
}

/// Whether the library has memory.
///
/// # Errors
/// If it has none.
pub(crate) fn given() -> Result<()> {
    match MEMORY.with(|state| state.heap.size()) {
        0 => {
            Err(Failure::new(shohin_code::SHOHIN_MEMORY, "there is no memory: call shohin_use_memory first"))
        }
        _ => Ok(()),
    }
}

/// Gives the library its memory.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_use_memory(
    memory: *mut c_void,
    len: usize,
    error: *mut shohin_error,
) -> shohin_code {
    /// An allocator without room for a block panics.
    const LEAST: usize = 1024;
    let work = || {
        if memory.is_null() {
            return Err(Failure::new(shohin_code::SHOHIN_NULL, "the memory is NULL"));
        }
        if len < LEAST {
            return Err(Failure::new(shohin_code::SHOHIN_MEMORY, "the memory is smaller than 1024 bytes"));
        }
        if given().is_ok() {
            return Err(Failure::new(shohin_code::SHOHIN_BUSY, "the library has its memory already"));
        }
        // SAFETY: the caller gives it away, and it happens once.
        MEMORY.with(|state| unsafe { state.heap.init(memory.cast(), len) });
        Ok(shohin_code::SHOHIN_OK)
    };
    // SAFETY: the caller vouches for the pointers.
    unsafe { call(error, work) }
}

/// Bytes in use.
#[unsafe(no_mangle)]
pub extern "C" fn shohin_memory_used() -> usize {
    MEMORY.with(|state| state.heap.used())
}

/// Maximum number of bytes that were in use at once.
#[unsafe(no_mangle)]
pub extern "C" fn shohin_memory_peak() -> usize {
    MEMORY.with(|state| state.peak)
}
