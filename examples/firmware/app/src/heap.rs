//! The heap: it serves the set-up and then refuses every request.

use core::alloc::{GlobalAlloc, Layout};
#[cfg(feature = "report")]
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use embedded_alloc::LlffHeap;
use static_cell::ConstStaticCell;

/// Bytes of the heap.
pub(crate) const SIZE: usize = 176 << 10;

struct Heap {
    inner: LlffHeap,
    /// Whether requests are refused.
    sealed: AtomicBool,
    #[cfg(feature = "report")]
    peak: AtomicUsize,
}

#[global_allocator]
static HEAP: Heap = Heap {
    inner: LlffHeap::empty(),
    sealed: AtomicBool::new(false),
    #[cfg(feature = "report")]
    peak: AtomicUsize::new(0),
};

// SAFETY: memory is only passed on from an allocator that keeps the contract, or refused.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if self.sealed.load(Relaxed) {
            return core::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        let memory = unsafe { self.inner.alloc(layout) };
        // One thread, no interrupts: no update is lost.
        #[cfg(feature = "report")]
        self.peak.store(self.peak.load(Relaxed).max(self.inner.used()), Relaxed);
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { self.inner.dealloc(memory, layout) }
    }
}

/// Gives the heap its memory. Call it once, before anything allocates.
pub(crate) fn init() {
    static MEMORY: ConstStaticCell<[u8; SIZE]> = ConstStaticCell::new([0; SIZE]);
    let memory = MEMORY.take();
    // SAFETY: the memory is exclusively ours, and `take` panics if this runs a second time.
    unsafe { HEAP.inner.init(memory.as_mut_ptr() as usize, SIZE) }
}

/// Refuses every request from now on: a program that still allocates ends with an error.
pub(crate) fn seal() {
    HEAP.sealed.store(true, Relaxed);
}

#[cfg(feature = "report")]
/// Maximum number of bytes that were in use at once.
pub(crate) fn peak() -> usize {
    HEAP.peak.load(Relaxed)
}

#[cfg(feature = "report")]
/// Bytes in use.
pub(crate) fn used() -> usize {
    HEAP.inner.used()
}
