//! Q5_1: 32 weights as unsigned 5-bit integers with one scale and one minimum.
//!
//! ```text
//! byte   0 1   2 3   4 ..... 7   8 ............. 23
//!      | d   | m   | h0 ... h31 | n0,16  ...  n15,31 |   low nibble of byte 8+j: n[j], high nibble: n[j+16]
//! ```
//! w = (n + 16 h) * d + m, where h[j] is bit j of the 32-bit number at byte 4. Source: GGUF type 7.
//! Quantizer: m = the smallest weight, d = (the largest - m) / 31.
#![forbid(unsafe_code)]

use super::search::{RangeSearch, best_range, inverse, weigh};
use super::{Block, put_f16, q5_0, scale::f16_at};

pub(crate) struct Q5_1;

impl Block for Q5_1 {
    const LEN: usize = 32;
    const BYTES: usize = 24;
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
        q5_0::codes(&block[4..8], &block[8..24], w);
    }

    fn pack(w: &[f32], block: &mut [u8]) {
        let (mut min, mut max) = (f32::MAX, -f32::MAX);
        for &v in w {
            (min, max) = (min.min(v), max.max(v));
        }
        let d = (max - min) / 31.0;
        let id = inverse(d);
        put_f16(block, 0, d);
        put_f16(block, 2, min);
        // Adding 0.5 and truncating rounds to the nearest code; `as` saturates at 0 and 255.
        q5_0::put_codes(|j| ((w[j] - min) * id + 0.5) as u8 & 31, &mut block[4..]);
    }

    const BY_IMPORTANCE: bool = true;

    fn pack_by(w: &[f32], importance: &[f32], mean_square: f32, block: &mut [u8]) {
        let Some(x) = w.first_chunk::<32>() else { return };
        let mut codes = [0; 32];
        let w = weigh(x, importance, mean_square);
        let [d, m] = best_range(&RangeSearch::by_importance(31), x, &w, &mut codes);
        put_f16(block, 0, d);
        put_f16(block, 2, -m);
        q5_0::put_codes(|j| codes[j], &mut block[4..]);
    }
}
