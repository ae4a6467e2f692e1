//! Keys and values of a layer in one buffer each, as GPUs hold them.
#![forbid(unsafe_code)]

use core::ops::Range;

/// Layout of the keys or the values of a layer: codes `(kv_heads, capacity, head_dim)`, then, if the format has them,
/// scales `(kv_heads, capacity, head_dim / 32)` as f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlatKv {
    /// Bits per element.
    pub bits: usize,
    /// Whether groups of 32 elements share a scale.
    pub scales: bool,
    /// Bits of mantissa of floats of 8 bits; 0 for other elements.
    pub mantissa: u32,
}

impl FlatKv {
    /// Bytes of the codes of `numbers` elements, a multiple of 32.
    pub const fn code_bytes(self, numbers: u64) -> u64 {
        numbers * self.bits as u64 / 8
    }

    /// Bytes of their scales.
    const fn scale_bytes(self, numbers: u64) -> u64 {
        if self.scales { numbers / 8 } else { 0 }
    }

    /// Bytes of `numbers` elements, a multiple of 32.
    pub const fn bytes(self, numbers: u64) -> u64 {
        self.code_bytes(numbers) + self.scale_bytes(numbers)
    }

    /// The ranges of the first `len` positions of each head.
    pub fn spans(
        self,
        kv_heads: u64,
        capacity: u64,
        head_dim: u64,
        len: u64,
    ) -> impl Iterator<Item = Range<u64>> {
        let (codes, scales) = (self.code_bytes(head_dim), self.scale_bytes(head_dim));
        let rows = move |at: u64, row: u64| {
            (0..kv_heads).map(move |head| at + head * capacity * row..at + (head * capacity + len) * row)
        };
        let all = rows(0, codes).chain(rows(kv_heads * capacity * codes, scales));
        all.filter(|span| !span.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::KvFormat;
    use alloc::vec::Vec;

    #[test]
    fn spans_are_those_of_each_head_in_codes_and_scales() {
        let spans = |format, len| FlatKv::of(format).spans(2, 10, 64, len).collect::<Vec<_>>();
        assert_eq!(spans(KvFormat::F16, 3), [0..384, 1280..1664]);
        assert_eq!(spans(KvFormat::Q4, 2), [0..64, 320..384, 640..656, 720..736]);
        assert_eq!(spans(KvFormat::Q8, 0), []);
        assert_eq!(FlatKv::of(KvFormat::Q4).bytes(2 * 10 * 64), 800);
    }
}
