//! Q2_K: 256 weights as 2-bit integers in 16 groups of 16, with scales and minima of 4 bits.
//!
//! ```text
//! byte   0 .......... 15   16 ........... 79   80 81   82 83
//!      | s and m         | codes             | d     | dmin  |
//!
//! byte m of 32 of codes    bits 1-0   bits 3-2    bits 5-4    bits 7-6
//!                          q[m]       q[m+32]     q[m+64]     q[m+96]
//! ```
//! The first 32 bytes of codes are weights 0 to 127, the others 128 to 255. Byte g has s of group g in its
//! low, m in its high half: w = q * (d * s) - dmin * m. Source: GGUF type 10. Quantizer: scale and minimum of a
//! group by a search for the least error, weighted by |w|.
#![forbid(unsafe_code)]

use super::{largest, put_planes};
use crate::quant::search::{
    RangeSearch, best_range, nearest, positive_scale, requantize, sum_squares, weigh,
};
use crate::quant::{Block, put_f16, scale::f16_at};

const SEARCH: RangeSearch = RangeSearch { most: 3, first: -0.5, step: 0.1, steps: 15, magnitude: true };

pub(crate) struct Q2K;

impl Block for Q2K {
    const LEN: usize = 256;
    const BYTES: usize = 84;
    const GROUP: usize = 16;
    const MINIMUM: bool = true;
    const LEAST: i8 = 0;

    fn scale(block: &[u8], group: usize) -> f32 {
        f16_at(block, 80) * f32::from(block[group] & 15)
    }

    fn minimum(block: &[u8], group: usize) -> f32 {
        -(f16_at(block, 82) * f32::from(block[group] >> 4))
    }

    #[inline(always)]
    fn integers(block: &[u8], w: &mut [i8]) {
        for (half, codes) in w.as_chunks_mut::<128>().0.iter_mut().zip(block[16..80].as_chunks::<32>().0) {
            for (plane, w) in half.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                for (w, &b) in w.iter_mut().zip(codes) {
                    *w = (b >> (2 * plane) & 3) as i8;
                }
            }
        }
    }

    fn pack(w: &[f32], block: &mut [u8]) {
        let groups = w.as_chunks::<16>().0;
        let mut codes = [0; 256];
        let (mut scales, mut minima) = ([0.0; 16], [0.0; 16]);
        for (g, (w, codes)) in groups.iter().zip(codes.as_chunks_mut().0).enumerate() {
            [scales[g], minima[g]] = best_range(&SEARCH, w, &w.map(f32::abs), codes);
        }
        let integers = |values: &[f32; 16]| {
            let largest = largest(values);
            let inverse = if largest > 0.0 { 15.0 / largest } else { 0.0 };
            (largest / 15.0, values.map(|value| nearest(inverse * value) as u8))
        };
        finish([integers(&scales), integers(&minima)], w, &mut codes, block);
    }

    const BY_IMPORTANCE: bool = true;

    fn pack_by(w: &[f32], importance: &[f32], _: f32, block: &mut [u8]) {
        let groups = w.as_chunks::<16>().0.iter().zip(importance.chunks_exact(16));
        let mean_square = sum_squares(w) / 256.0;
        let mut codes = [0; 256];
        let (mut scales, mut minima, mut sums) = ([0.0; 16], [0.0; 16], [0.0; 16]);
        for (g, ((x, importance), codes)) in groups.zip(codes.as_chunks_mut().0).enumerate() {
            let weights = weigh(x, importance, mean_square);
            sums[g] = weights.iter().sum();
            [scales[g], minima[g]] = best_range(&RangeSearch::by_importance(3), x, &weights, codes);
        }
        let integers = |values: &[f32; 16]| {
            let mut integers = [0; 16];
            (positive_scale(15, values, &sums, &mut integers), integers)
        };
        finish([integers(&scales), integers(&minima)], w, &mut codes, block);
    }
}

/// Writes the scales and the minima, each with what they are multiples of, and the codes for them.
fn finish(
    [(scale, scales), (minimum, minima)]: [(f32, [u8; 16]); 2],
    w: &[f32],
    codes: &mut [u8; 256],
    block: &mut [u8],
) {
    for ((b, s), m) in block.iter_mut().zip(scales).zip(minima) {
        *b = s | m << 4;
    }
    put_f16(block, 80, scale);
    put_f16(block, 82, minimum);
    for (g, (w, codes)) in w.as_chunks::<16>().0.iter().zip(codes.as_chunks_mut::<16>().0).enumerate() {
        requantize(w, Q2K::scale(block, g), -Q2K::minimum(block, g), 0, 3, codes);
    }
    put_planes(codes, &mut block[16..80]);
}
