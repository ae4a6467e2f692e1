//! Q5_K: 256 weights as 5-bit integers in 8 groups of 32, with scales and minima of 6 bits.
//!
//! ```text
//! byte   0 1   2 3    4 ....... 15   16 ...... 47   48 .......... 175
//!      | d   | dmin | s and m      | high bits    | low nibbles      |
//! ```
//! Scales, minima and low nibbles are as in Q4_K; the high bit of weight 32 g + j is bit g of high byte j.
//!
//! w = q * (d * s) - dmin * m. Source: GGUF type 13. Quantizer as for Q4_K.
#![forbid(unsafe_code)]

use super::q4_k::{put_nibbles, quantize, quantize_by, scale_and_minimum};
use crate::quant::{Block, scale::f16_at, search::RangeSearch};

const SEARCH: RangeSearch = RangeSearch { most: 31, first: -0.5, step: 0.1, steps: 15, magnitude: false };

pub(crate) struct Q5K;

impl Block for Q5K {
    const LEN: usize = 256;
    const BYTES: usize = 176;
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
        let high = &block[16..48];
        for (k, w) in w.as_chunks_mut::<64>().0.iter_mut().enumerate() {
            let (lo, hi) = w.split_at_mut(32);
            let codes = &block[48 + 32 * k..][..32];
            for (((lo, hi), &b), &h) in lo.iter_mut().zip(hi).zip(codes).zip(high) {
                *lo = (b & 15 | (h >> (2 * k) & 1) << 4) as i8;
                *hi = (b >> 4 | (h >> (2 * k + 1) & 1) << 4) as i8;
            }
        }
    }

    fn pack(w: &[f32], block: &mut [u8]) {
        put_codes(&quantize::<Self>(&SEARCH, w, block), block);
    }

    const BY_IMPORTANCE: bool = true;

    fn pack_by(w: &[f32], importance: &[f32], _: f32, block: &mut [u8]) {
        put_codes(&quantize_by::<Self>(31, w, importance, block), block);
    }
}

/// Writes the high bits and the low nibbles of the codes of a block.
fn put_codes(codes: &[u8; 256], block: &mut [u8]) {
    let (high, nibbles) = block[16..176].split_at_mut(32);
    high.fill(0);
    for (g, codes) in codes.as_chunks::<32>().0.iter().enumerate() {
        high.iter_mut().zip(codes).for_each(|(high, code)| *high |= code >> 4 << g);
    }
    put_nibbles(codes, nibbles);
}
