//! Q6_K: 256 weights as 6-bit integers in 16 groups of 16, with scales of 8 bits.
//!
//! ```text
//! byte   0 .......... 127   128 ....... 191   192 ...... 207   208 209
//!      | low nibbles      | high bit pairs  | s: i8          | d       |
//! ```
//! Each half of 128 weights has 64 bytes of nibbles and 32 of pairs. With m < 32, the low halves of nibble
//! bytes m and 32 + m belong to weights m and 32 + m, the high halves to 64 + m and 96 + m; the four pairs of
//! byte m, from the low end, to m, 32 + m, 64 + m and 96 + m.
//!
//! w = (q - 32) * (d * s). Source: GGUF type 14.
#![forbid(unsafe_code)]

use crate::quant::{Block, float::f16_at};

pub(crate) struct Q6K;

impl Block for Q6K {
    const LEN: usize = 256;
    const BYTES: usize = 210;
    const PACKS: bool = false;
    const GROUP: usize = 16;
    const LEAST: i8 = -32;

    fn scale(block: &[u8], group: usize) -> f32 {
        f16_at(block, 208) * f32::from(block[192 + group] as i8)
    }

    #[inline(always)]
    fn integers(block: &[u8], w: &mut [i8]) {
        for (half, w) in w.as_chunks_mut::<128>().0.iter_mut().enumerate() {
            let pairs = &block[128 + 32 * half..][..32];
            for (k, w) in w.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                let nibbles = &block[64 * half + 32 * (k % 2)..][..32];
                for ((w, &n), &p) in w.iter_mut().zip(nibbles).zip(pairs) {
                    *w = (n >> (k / 2 * 4) & 15 | (p >> (2 * k) & 3) << 4) as i8 - 32;
                }
            }
        }
    }
}
