//! Q4_0: 32 weights as 4-bit integers with one scale.
//!
//! ```text
//! byte   0 1   2 ............. 17
//!      | d   | n0,16  ...  n15,31 |   low nibble of byte 2+j: w[j], high nibble: w[j+16]
//! ```
//! w = (n - 8) * d. Source: GGUF type 2. Quantizer: d = the weight of largest magnitude / -8, so that
//! it is stored exactly as nibble 0.
#![forbid(unsafe_code)]

use super::{Block, float::f16_at, nibbles};
use half::f16;

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
        let (mut max, mut signed) = (0.0, 0.0);
        for &v in w {
            if v.abs() > max {
                (max, signed) = (v.abs(), v);
            }
        }
        let d = signed / -8.0;
        let id = if d != 0.0 { 1.0 / d } else { 0.0 };
        block[..2].copy_from_slice(&f16::from_f32_const(d).to_le_bytes());
        // Adding 8.5 and truncating rounds to the nearest nibble; `as` saturates at 0 and 255.
        let nibble = |v: f32| ((v * id + 8.5) as u8).min(15);
        for (b, (&lo, &hi)) in block[2..].iter_mut().zip(w[..16].iter().zip(&w[16..])) {
            *b = nibble(lo) | nibble(hi) << 4;
        }
    }
}
