//! Q4_0: 32 weights as 4-bit integers with one scale.
//!
//! ```text
//! byte   0 1   2 ............. 17
//!      | d   | n0,16  ...  n15,31 |   low nibble of byte 2+j: w[j], high nibble: w[j+16]
//! ```
//! w = (n - 8) * d. Source: GGUF type 2. Quantizer: d = the weight of largest magnitude / -8, so that
//! it is stored exactly as nibble 0.
#![forbid(unsafe_code)]

use super::search::{extreme, inverse, symmetric_scale, weigh};
use super::{Block, nibbles, put_codes, put_f16, put_nibbles, scale::f16_at};

pub(crate) struct Q4_0;

impl Block for Q4_0 {
    const LEN: usize = 32;
    const BYTES: usize = 18;
    const LEAST: i8 = -8;

    fn scale(block: &[u8], _: usize) -> f32 {
        f16_at(block, 0)
    }

    #[inline(always)]
    fn integers(block: &[u8], w: &mut [i8]) {
        nibbles(&block[2..18], w, |n| n as i8 - 8);
    }

    fn pack(w: &[f32], block: &mut [u8]) {
        let d = extreme(w) / -8.0;
        let id = inverse(d);
        put_f16(block, 0, d);
        // Adding 8.5 and truncating rounds to the nearest nibble; `as` saturates at 0 and 255.
        let nibble = |v: f32| ((v * id + 8.5) as u8).min(15);
        put_nibbles(w, &mut block[2..], nibble);
    }

    const BY_IMPORTANCE: bool = true;

    fn pack_by(w: &[f32], importance: &[f32], mean_square: f32, block: &mut [u8]) {
        let Some(x) = w.first_chunk::<32>() else { return };
        let mut codes = [0; 32];
        let d = symmetric_scale(8, x, &weigh(x, importance, mean_square), &mut codes);
        put_f16(block, 0, d);
        put_codes(&codes, &mut block[2..]);
    }
}
