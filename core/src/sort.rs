//! One sort for lists that are put in order seldom: each instance of the library's is some 10 kB of machine
//! code, a third of which is left in a compressed WebAssembly module.
#![forbid(unsafe_code)]

use core::cmp::Ordering;

/// Puts indices in order. Equal ones may change places.
#[inline(never)]
pub(crate) fn sort(indices: &mut [u32], compare: &dyn Fn(u32, u32) -> Ordering) {
    indices.sort_unstable_by(|&a, &b| compare(a, b));
}

/// The indices of a list of `len` elements in order.
pub(crate) fn sorted(len: usize, compare: &dyn Fn(u32, u32) -> Ordering) -> alloc::vec::Vec<u32> {
    let mut indices: alloc::vec::Vec<u32> = (0..len as u32).collect();
    sort(&mut indices, compare);
    indices
}
