//! IQ4_NL: 32 weights as indices of 16 unevenly spaced integers, with one scale.
//!
//! ```text
//! byte   0 1   2 ............. 17
//!      | d   | n0,16  ...  n15,31 |   low nibble of byte 2+j: n[j], high nibble: n[j+16]
//! ```
//! w = LEVELS[n] * d. Source: GGUF type 20. Quantizer: the scale of least squared error, weighted by w², of 16
//! candidates.
#![forbid(unsafe_code)]

use super::search::{NEGLIGIBLE, best_scale, extreme, inverse, sum_squares, weigh};
use super::{Block, nibbles, put_f16, put_nibbles, scale::f16_at};

/// The integers of IQ4_NL and IQ4_XS, denser near zero, as weights are.
pub const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The index of the level that is nearest to `x`, the upper of two.
pub(super) fn nearest_level(x: f32) -> u8 {
    let above = LEVELS.partition_point(|&level| f32::from(level) <= x);
    if above == 0 || above == LEVELS.len() {
        return above.saturating_sub(1) as u8;
    }
    let (low, high) = (f32::from(LEVELS[above - 1]), f32::from(LEVELS[above]));
    (if x - low < high - x { above - 1 } else { above }) as u8
}

/// The best scale of the group `x`, with errors counted by `weights`.
pub(super) fn search_scale(x: &[f32; 32], weights: &[f32; 32]) -> f32 {
    let max = extreme(x);
    if max.abs() < NEGLIGIBLE {
        return 0.0;
    }
    let end = f32::from(LEVELS[0]);
    let others = (-7i8..=7).map(|i| (f32::from(i) + end) / max);
    let sums = |inverse: f32| {
        let (mut xq, mut qq) = (0.0, 0.0);
        for (&x, &w) in x.iter().zip(weights) {
            let q = f32::from(LEVELS[usize::from(nearest_level(inverse * x))]);
            xq += w * q * x;
            qq += w * q * q;
        }
        [xq, qq]
    };
    best_scale(1.0 / (-max / end), others, sums)[0]
}

pub(crate) struct Iq4Nl;

impl Block for Iq4Nl {
    const LEN: usize = 32;
    const BYTES: usize = 18;

    fn scale(block: &[u8], _: usize) -> f32 {
        f16_at(block, 0)
    }

    #[inline(always)]
    fn integers(block: &[u8], w: &mut [i8]) {
        nibbles(&block[2..18], w, |n| LEVELS[usize::from(n)]);
    }

    fn pack(w: &[f32], block: &mut [u8]) {
        let Some(x) = w.first_chunk() else { return };
        quantize(x, &x.map(|x| x * x), block);
    }

    const BY_IMPORTANCE: bool = true;

    fn pack_by(w: &[f32], importance: &[f32], _: f32, block: &mut [u8]) {
        let Some(x) = w.first_chunk() else { return };
        quantize(x, &weigh(x, importance, 2.0 * sum_squares(x) / 32.0), block);
    }
}

/// Quantizes a block, with errors counted by `weights`.
fn quantize(x: &[f32; 32], weights: &[f32; 32], block: &mut [u8]) {
    let d = search_scale(x, weights);
    put_f16(block, 0, d);
    let id = inverse(d);
    put_nibbles(x, &mut block[2..18], |x| nearest_level(id * x));
}
