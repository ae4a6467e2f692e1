//! One shared sort for rarely sorted lists: each instance of the standard library's is some 10 kB of machine
//! code, of which a third remains in a compressed WebAssembly module. On bare metal it is a heap sort of a few hundred
//! bytes: the lists of models that fit there are short.
#![forbid(unsafe_code)]

use core::cmp::Ordering;

/// Sorts indices. Equal ones may change places.
#[inline(never)]
pub(crate) fn sort(indices: &mut [u32], compare: &dyn Fn(u32, u32) -> Ordering) {
    if cfg!(target_os = "none") {
        heap_sort(indices, compare);
    } else {
        indices.sort_unstable_by(|&a, &b| compare(a, b));
    }
}

/// Sorts numbers.
#[inline(never)]
pub(crate) fn sort_keys(keys: &mut [u64]) {
    if cfg!(target_os = "none") {
        heap_sort(keys, |a, b| a.cmp(&b));
    } else {
        keys.sort_unstable();
    }
}

/// The sorted indices of a list of `len` elements.
pub(crate) fn sorted(len: usize, compare: &dyn Fn(u32, u32) -> Ordering) -> alloc::vec::Vec<u32> {
    let mut indices: alloc::vec::Vec<u32> = (0..len as u32).collect();
    sort(&mut indices, compare);
    indices
}

/// Sorts by a binary heap, the largest first, whose root is moved behind it until it is empty (Williams 1964).
fn heap_sort<T: Copy>(list: &mut [T], compare: impl Fn(T, T) -> Ordering) {
    let mut first = list.len() / 2;
    let mut end = list.len();
    while end > 1 {
        if first > 0 {
            first -= 1;
        } else {
            end -= 1;
            list.swap(0, end);
        }
        // The element at `first` sinks to its place.
        let mut at = first;
        while 2 * at + 1 < end {
            let left = 2 * at + 1;
            let right = left + 1;
            let larger = if right < end && compare(list[left], list[right]).is_lt() { right } else { left };
            if compare(list[at], list[larger]).is_ge() {
                break;
            }
            list.swap(at, larger);
            at = larger;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn the_sort_of_bare_metal_agrees_with_the_standard_library() {
        for len in 0..70u64 {
            for seed in 1..20u64 {
                let keys: Vec<u64> = (0..len).map(|i| (i * i * seed + seed * 7) % (seed + 13)).collect();
                let (mut found, mut want) = (keys.clone(), keys);
                heap_sort(&mut found, |a, b| a.cmp(&b));
                want.sort_unstable();
                assert_eq!(found, want);
            }
        }
    }
}
