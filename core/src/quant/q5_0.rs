//! Q5_0: 32 weights as 5-bit integers with one scale.
//!
//! ```text
//! byte   0 1   2 ..... 5   6 ............. 21
//!      | d   | h0 ... h31 | n0,16  ...  n15,31 |   low nibble of byte 6+j: n[j], high nibble: n[j+16]
//! ```
//! w = (n + 16 h - 16) * d, where h[j] is bit j of the 32-bit number at byte 2. Source: GGUF type 6.
//! Quantizer: d = the weight of largest magnitude / -16, so that it is stored exactly as code 0.
#![forbid(unsafe_code)]

use super::search::{extreme, inverse, symmetric_scale, weigh};
use super::{Block, put_f16, scale::f16_at};

pub(crate) struct Q5_0;

/// Writes `n + 16 h` of a block of Q5_0 or Q5_1: `high` has the bits `h`, `nibbles` the `n`.
#[inline(always)]
pub(super) fn codes(high: &[u8], nibbles: &[u8], w: &mut [i8]) {
    let (lo, hi) = w.split_at_mut(16);
    for (j, ((lo, hi), &b)) in lo.iter_mut().zip(hi).zip(nibbles).enumerate() {
        *lo = (b & 15 | (high[j / 8] >> (j % 8) & 1) << 4) as i8;
        *hi = (b >> 4 | (high[2 + j / 8] >> (j % 8) & 1) << 4) as i8;
    }
}

/// The inverse of [`codes`]: writes the bits `h`, then the nibbles `n`, of 32 codes.
pub(super) fn put_codes(code: impl Fn(usize) -> u8, block: &mut [u8]) {
    block.fill(0);
    let (high, nibbles) = block.split_at_mut(4);
    for j in 0..16 {
        let (lo, hi) = (code(j), code(j + 16));
        nibbles[j] = lo & 15 | hi << 4;
        high[j / 8] |= (lo >> 4) << (j % 8);
        high[2 + j / 8] |= (hi >> 4) << (j % 8);
    }
}

impl Block for Q5_0 {
    const LEN: usize = 32;
    const BYTES: usize = 22;
    const LEAST: i8 = -16;

    fn scale(block: &[u8], _: usize) -> f32 {
        f16_at(block, 0)
    }

    #[inline(always)]
    fn integers(block: &[u8], w: &mut [i8]) {
        codes(&block[2..6], &block[6..22], w);
        w.iter_mut().for_each(|w| *w -= 16);
    }

    fn pack(w: &[f32], block: &mut [u8]) {
        let d = extreme(w) / -16.0;
        let id = inverse(d);
        put_f16(block, 0, d);
        // Adding 16.5 and truncating rounds to the nearest code; `as` saturates at 0 and 255.
        put_codes(|j| ((w[j] * id + 16.5) as u8).min(31), &mut block[2..]);
    }

    const BY_IMPORTANCE: bool = true;

    fn pack_by(w: &[f32], importance: &[f32], mean_square: f32, block: &mut [u8]) {
        let Some(x) = w.first_chunk::<32>() else { return };
        let mut codes = [0; 32];
        let d = symmetric_scale(16, x, &weigh(x, importance, mean_square), &mut codes);
        put_f16(block, 0, d);
        put_codes(|j| codes[j], &mut block[2..]);
    }
}
