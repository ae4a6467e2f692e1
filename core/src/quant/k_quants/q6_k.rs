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
//! w = (q - 32) * (d * s). Source: GGUF type 14. Quantizer: the scale of a group of least squared error, weighted by
//! w², of 19 candidates.
#![forbid(unsafe_code)]

use crate::quant::search::{NEGLIGIBLE, extreme, inverse, nearest, requantize, symmetric_scale};
use crate::quant::{Block, put_f16, scale::f16_at};

pub(crate) struct Q6K;

impl Block for Q6K {
    const LEN: usize = 256;
    const BYTES: usize = 210;
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

    fn pack(w: &[f32], block: &mut [u8]) {
        quantize(w, |_, x| x.map(|x| x * x), block);
    }

    const BY_IMPORTANCE: bool = true;

    fn pack_by(w: &[f32], importance: &[f32], _: f32, block: &mut [u8]) {
        let importance = importance.as_chunks::<16>().0;
        quantize(w, |g, _| importance[g], block);
    }
}

/// Quantizes a block, with errors counted by `weights` of a group, given its number and its weights.
fn quantize(w: &[f32], weights: impl Fn(usize, &[f32; 16]) -> [f32; 16], block: &mut [u8]) {
    let groups = w.as_chunks::<16>().0;
    let mut codes = [0; 256];
    let mut scales = [0.0; 16];
    let of_groups = groups.iter().zip(codes.as_chunks_mut().0).zip(&mut scales);
    for (g, ((x, codes), scale)) in of_groups.enumerate() {
        *scale = symmetric_scale(32, x, &weights(g, x), codes);
    }
    block.fill(0);
    let max = extreme(&scales);
    if max.abs() < NEGLIGIBLE {
        return;
    }
    let id = -128.0 / max;
    put_f16(block, 208, inverse(id));
    for (b, scale) in block[192..208].iter_mut().zip(scales) {
        *b = nearest(id * scale).min(127) as u8;
    }
    for (g, (w, codes)) in groups.iter().zip(codes.as_chunks_mut::<16>().0).enumerate() {
        requantize(w, Q6K::scale(block, g), 0.0, -32, 31, codes);
    }
    let (nibbles, pairs) = block[..192].split_at_mut(128);
    for (j, code) in codes.into_iter().enumerate() {
        let (half, k, m) = (j / 128, j / 32 % 4, j % 32);
        nibbles[64 * half + 32 * (k % 2) + m] |= (code & 15) << (k / 2 * 4);
        pairs[32 * half + m] |= code >> 4 << (2 * k);
    }
}
