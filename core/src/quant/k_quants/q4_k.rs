//! Q4_K: 256 weights as 4-bit integers in 8 groups of 32, with scales and minima of 6 bits.
//!
//! ```text
//! byte   0 1   2 3    4 ....... 15   16 .......... 143
//!      | d   | dmin | s and m      | codes            |
//! ```
//! The 32 bytes of codes from 32 k have weights 64 k to 64 k + 31 in their low, the next 32 weights in their
//! high halves. Scales s and minima m, for g < 4 and then for the groups 4 + g:
//!
//! ```text
//! byte      4 + g            8 + g            12 + g
//! bits 0-5  s[g]             m[g]             low nibble: s[4+g] & 15
//! bits 6-7  s[4+g] >> 4      m[4+g] >> 4      high nibble: m[4+g] & 15
//! ```
//! w = q * (d * s) - dmin * m. Source: GGUF type 12.
#![forbid(unsafe_code)]

use crate::quant::{Block, float::f16_at};

pub(crate) struct Q4K;

/// The scale s and the minimum m of a group from the 12 bytes that Q4_K and Q5_K have of them.
#[inline(always)]
pub(super) fn scale_and_minimum(bytes: &[u8], group: usize) -> [u8; 2] {
    if group < 4 {
        [bytes[group] & 63, bytes[4 + group] & 63]
    } else {
        let (low, g) = (bytes[4 + group], group - 4);
        [low & 15 | bytes[g] >> 6 << 4, low >> 4 | bytes[4 + g] >> 6 << 4]
    }
}

impl Block for Q4K {
    const LEN: usize = 256;
    const BYTES: usize = 144;
    const PACKS: bool = false;
    const GROUP: usize = 32;
    const MINIMUM: bool = true;
    const LEAST: i8 = 0;

    fn scale(block: &[u8], group: usize) -> f32 {
        f16_at(block, 0) * f32::from(scale_and_minimum(&block[4..16], group)[0])
    }

    fn minimum(block: &[u8], group: usize) -> f32 {
        -(f16_at(block, 2) * f32::from(scale_and_minimum(&block[4..16], group)[1]))
    }

    #[inline(always)]
    fn integers(block: &[u8], w: &mut [i8]) {
        for (w, codes) in w.as_chunks_mut::<64>().0.iter_mut().zip(block[16..144].as_chunks::<32>().0) {
            let (lo, hi) = w.split_at_mut(32);
            for ((lo, hi), &b) in lo.iter_mut().zip(hi).zip(codes) {
                *lo = (b & 15) as i8;
                *hi = (b >> 4) as i8;
            }
        }
    }
}
