//! One shared sort for rarely sorted lists: each instance of the standard library's is some 10 kB of machine
//! code, of which a third remains in a compressed WebAssembly module.
#![forbid(unsafe_code)]

use core::cmp::Ordering;

/// Sorts indices. Equal ones may change places.
#[inline(never)]
pub(crate) fn sort(indices: &mut [u32], compare: &dyn Fn(u32, u32) -> Ordering) {
    indices.sort_unstable_by(|&a, &b| compare(a, b));
}

/// The sorted indices of a list of `len` elements.
pub(crate) fn sorted(len: usize, compare: &dyn Fn(u32, u32) -> Ordering) -> alloc::vec::Vec<u32> {
    let mut indices: alloc::vec::Vec<u32> = (0..len as u32).collect();
    sort(&mut indices, compare);
    indices
}
