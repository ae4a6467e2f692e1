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
//! w = q * (d * s) - dmin * m. Source: GGUF type 12. Quantizer: scale and minimum of a group by a search for the
//! least squared error, weighted by |w| plus the root mean square.
#![forbid(unsafe_code)]

use super::largest;
use crate::quant::search::{
    RangeSearch, best_range, nearest, positive_scale, requantize, sum_squares, weigh,
};
use crate::quant::{Block, put_f16, scale::f16_at};

const SEARCH: RangeSearch = RangeSearch { most: 15, first: -1.0, step: 0.1, steps: 20, magnitude: false };

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

/// Quantizes a block of Q4_K or Q5_K: writes the 16 bytes of scales and minima, returns the codes.
pub(super) fn quantize<B: Block>(search: &RangeSearch, w: &[f32], block: &mut [u8]) -> [u8; 256] {
    let groups = w.as_chunks::<32>().0;
    let mut codes = [0; 256];
    let (mut scales, mut minima) = ([0.0; 8], [0.0; 8]);
    for (g, (w, codes)) in groups.iter().zip(codes.as_chunks_mut().0).enumerate() {
        let rms = libm::sqrtf(sum_squares(w) / 32.0);
        [scales[g], minima[g]] = best_range(search, w, &w.map(|x| rms + x.abs()), codes);
    }
    let integers = |values: &[f32; 8]| {
        let largest = largest(values);
        let inverse = if largest > 0.0 { 63.0 / largest } else { 0.0 };
        (largest / 63.0, values.map(|value| (nearest(inverse * value) as u8).min(63)))
    };
    let both = [integers(&scales), integers(&minima)];
    finish::<B>(search.most, both, w, &mut codes, block);
    codes
}

/// [`quantize`] by the importance of the weights.
pub(super) fn quantize_by<B: Block>(most: u8, w: &[f32], importance: &[f32], block: &mut [u8]) -> [u8; 256] {
    let groups = w.as_chunks::<32>().0.iter().zip(importance.chunks_exact(32));
    let twice = 2.0 * sum_squares(w) / 256.0;
    let mut codes = [0; 256];
    let (mut scales, mut minima, mut sums) = ([0.0; 8], [0.0; 8], [0.0; 8]);
    for (g, ((x, importance), codes)) in groups.zip(codes.as_chunks_mut().0).enumerate() {
        let weights = weigh(x, importance, twice);
        sums[g] = weights.iter().sum();
        [scales[g], minima[g]] = best_range(&RangeSearch::by_importance(most), x, &weights, codes);
    }
    let integers = |values: &[f32; 8]| {
        let mut integers = [0; 8];
        (positive_scale(63, values, &sums, &mut integers), integers)
    };
    let both = [integers(&scales), integers(&minima)];
    finish::<B>(most, both, w, &mut codes, block);
    codes
}

/// Writes the scales and the minima, each with what they are multiples of, and finds the codes for them.
fn finish<B: Block>(
    most: u8,
    [(scale, scales), (minimum, minima)]: [(f32, [u8; 8]); 2],
    w: &[f32],
    codes: &mut [u8; 256],
    block: &mut [u8],
) {
    put_f16(block, 0, scale);
    put_f16(block, 2, minimum);
    let bytes = &mut block[4..16];
    for g in 0..8 {
        let (s, m) = (scales[g], minima[g]);
        if g < 4 {
            [bytes[g], bytes[4 + g]] = [s, m];
        } else {
            bytes[4 + g] = s & 15 | m << 4;
            bytes[g - 4] |= s >> 4 << 6;
            bytes[g] |= m >> 4 << 6;
        }
    }
    let groups = w.as_chunks::<32>().0.iter().zip(codes.as_chunks_mut::<32>().0);
    for (g, (w, codes)) in groups.enumerate() {
        requantize(w, B::scale(block, g), -B::minimum(block, g), 0, i32::from(most), codes);
    }
}

/// Writes the low nibbles of 256 codes, as Q4_K and Q5_K have them.
pub(super) fn put_nibbles(codes: &[u8; 256], bytes: &mut [u8]) {
    for (codes, bytes) in codes.as_chunks::<64>().0.iter().zip(bytes.as_chunks_mut::<32>().0) {
        let (lo, hi) = codes.split_at(32);
        for ((b, lo), hi) in bytes.iter_mut().zip(lo).zip(hi) {
            *b = lo & 15 | hi << 4;
        }
    }
}

impl Block for Q4K {
    const LEN: usize = 256;
    const BYTES: usize = 144;
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

    fn pack(w: &[f32], block: &mut [u8]) {
        let codes = quantize::<Self>(&SEARCH, w, block);
        put_nibbles(&codes, &mut block[16..144]);
    }

    const BY_IMPORTANCE: bool = true;

    fn pack_by(w: &[f32], importance: &[f32], _: f32, block: &mut [u8]) {
        let codes = quantize_by::<Self>(15, w, importance, block);
        put_nibbles(&codes, &mut block[16..144]);
    }
}
