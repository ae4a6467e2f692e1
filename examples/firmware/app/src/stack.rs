//! The stack's high-water mark.

use core::hint::black_box;
use core::ptr::addr_of;

const PATTERN: u32 = 0x5ac3_5ac3;

unsafe extern "C" {
    /// The end of the static variables: the stack grows down to here.
    #[link_name = "__sheap"]
    static END: u32;
    /// The stack's first word is below.
    static _stack_start: u32;
}

/// Fills the unused stack with a pattern.
#[inline(never)]
pub(crate) fn paint() {
    const MARGIN: usize = 64;
    let here = black_box(0u32);
    let mut word = addr_of!(END).cast_mut();
    // Words below this function's own frame.
    let top = addr_of!(here).wrapping_sub(MARGIN).cast_mut();
    while word < top {
        // SAFETY: this memory belongs to the stack and is not in use, since it is below the frame.
        unsafe { word.write_volatile(PATTERN) };
        word = word.wrapping_add(1);
    }
}

/// Maximum number of bytes of stack used since [`paint`].
pub(crate) fn peak() -> usize {
    let (mut word, top) = (addr_of!(END), addr_of!(_stack_start));
    // SAFETY: words of the stack, which are only read.
    while word < top && unsafe { word.read_volatile() } == PATTERN {
        word = word.wrapping_add(1);
    }
    top as usize - word as usize
}
