//! Q4_1: 32 weights as unsigned 4-bit integers with one scale and one minimum.
//!
//! ```text
//! byte   0 1   2 3   4 ............. 19
//!      | d   | m   | n0,16  ...  n15,31 |   low nibble of byte 4+j: w[j], high nibble: w[j+16]
//! ```
//! w = n * d + m. Source: GGUF type 3. Quantizer: m = the smallest weight, d = (the largest - m) / 15.
#![forbid(unsafe_code)]

use super::search::{RangeSearch, best_range, inverse, weigh};
use super::{Block, nibbles, put_codes, put_f16, put_nibbles, scale::f16_at};

pub(crate) struct Q4_1;

impl Block for Q4_1 {
    const LEN: usize = 32;
    const BYTES: usize = 20;
    const MINIMUM: bool = true;
    const LEAST: i8 = 0;

    fn scale(block: &[u8], _: usize) -> f32 {
        f16_at(block, 0)
    }

    fn minimum(block: &[u8], _: usize) -> f32 {
        f16_at(block, 2)
    }

    #[inline(always)]
    fn integers(block: &[u8], w: &mut [i8]) {
        nibbles(&block[4..20], w, |n| n as i8);
    }

    fn pack(w: &[f32], block: &mut [u8]) {
        let (mut min, mut max) = (f32::MAX, -f32::MAX);
        for &v in w {
            (min, max) = (min.min(v), max.max(v));
        }
        let d = (max - min) / 15.0;
        let id = inverse(d);
        put_f16(block, 0, d);
        put_f16(block, 2, min);
        // Adding 0.5 and truncating rounds to the nearest nibble; `as` saturates at 0 and 255.
        let nibble = |v: f32| (((v - min) * id + 0.5) as u8).min(15);
        put_nibbles(w, &mut block[4..], nibble);
    }

    const BY_IMPORTANCE: bool = true;

    fn pack_by(w: &[f32], importance: &[f32], mean_square: f32, block: &mut [u8]) {
        let Some(x) = w.first_chunk::<32>() else { return };
        let mut codes = [0; 32];
        let w = weigh(x, importance, mean_square);
        let [d, m] = best_range(&RangeSearch::by_importance(15), x, &w, &mut codes);
        put_f16(block, 0, d);
        put_f16(block, 2, -m);
        put_codes(&codes, &mut block[4..]);
    }
}
