//! IQ4_XS: 256 weights in 8 groups of 32, as indices of 16 unevenly spaced integers.
//!
//! ```text
//! byte   0 1   2 3   4 ... 7   8 ............. 135
//!      | d   | hi  | lo      | 16 bytes of nibbles for each group
//! ```
//! The scale of group g is d * (s - 32), where the low four bits of s are nibble g of `lo` (even groups in
//! the low half of a byte) and the high two bits are bits 2 g and 2 g + 1 of the 16-bit number `hi`. Within a
//! group, the low nibble of byte j is n[j], the high nibble n[j+16], as in Q4_0.
//!
//! w = LEVELS[n] * d * (s - 32), with the levels of IQ4_NL. Source: GGUF type 23. Quantizer: each group's scale as in
//! IQ4_NL; the largest becomes s = 0.
#![forbid(unsafe_code)]

use super::iq4_nl::{LEVELS, nearest_level, search_scale};
use super::search::{extreme, inverse, nearest, sum_squares, weigh};
use super::{Block, nibbles, put_f16, put_nibbles, scale::f16_at};

pub(crate) struct Iq4Xs;

impl Block for Iq4Xs {
    const LEN: usize = 256;
    const BYTES: usize = 136;
    const GROUP: usize = 32;

    fn scale(block: &[u8], group: usize) -> f32 {
        let low = block[4 + group / 2] >> (4 * (group % 2)) & 15;
        let high = block[2 + group / 4] >> (2 * (group % 4)) & 3;
        f16_at(block, 0) * f32::from((low | high << 4) as i8 - 32)
    }

    #[inline(always)]
    fn integers(block: &[u8], w: &mut [i8]) {
        for (w, bytes) in w.chunks_exact_mut(32).zip(block[8..136].chunks_exact(16)) {
            nibbles(bytes, w, |n| LEVELS[usize::from(n)]);
        }
    }

    fn pack(w: &[f32], block: &mut [u8]) {
        let mut scales = [0.0; 8];
        for (scale, x) in scales.iter_mut().zip(w.as_chunks().0) {
            *scale = search_scale(x, &x.map(|x| x * x));
        }
        finish(&scales, w, block);
    }

    const BY_IMPORTANCE: bool = true;

    fn pack_by(w: &[f32], importance: &[f32], _: f32, block: &mut [u8]) {
        let twice = 2.0 * sum_squares(w) / 256.0;
        let mut scales = [0.0; 8];
        for ((scale, x), importance) in
            scales.iter_mut().zip(w.as_chunks().0).zip(importance.chunks_exact(32))
        {
            *scale = search_scale(x, &weigh(x, importance, twice));
        }
        finish(&scales, w, block);
    }
}

/// Writes a block with about these scales of groups.
fn finish(scales: &[f32; 8], w: &[f32], block: &mut [u8]) {
    let d = -extreme(scales) / 32.0;
    put_f16(block, 0, d);
    block[2..8].fill(0);
    let id = inverse(d);
    for (g, (w, scale)) in w.as_chunks::<32>().0.iter().zip(scales).enumerate() {
        let s = nearest(id * scale).clamp(-32, 31);
        let id = inverse(d * s as f32);
        put_nibbles(w, &mut block[8 + 16 * g..][..16], |x| nearest_level(id * x));
        let s = (s + 32) as u8;
        block[4 + g / 2] |= (s & 15) << (4 * (g % 2));
        block[2 + g / 4] |= s >> 4 << (2 * (g % 4));
    }
}
