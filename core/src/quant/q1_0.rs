//! Q1_0: 128 weights as sign bits with one scale (the 1-bit Bonsai models).
//!
//! ```text
//! byte   0 1   2 ............................ 17
//!      | d   | bits 0-7 | bits 8-15 | ... 120-127 |   bit j%8 of byte 2+j/8
//! ```
//! w = +d where the bit is set, -d where it is not. Source: GGUF type 41. Quantizer: d = mean |w|,
//! bit = (w >= 0).
#![forbid(unsafe_code)]

use super::{Block, scale::f16_at};
use half::f16;

pub(crate) struct Q1_0;

impl Block for Q1_0 {
    const LEN: usize = 128;
    const BYTES: usize = 18;

    fn scale(block: &[u8], _: usize) -> f32 {
        f16_at(block, 0)
    }

    fn integers(block: &[u8], w: &mut [i8]) {
        for (w, &bits) in w.as_chunks_mut::<8>().0.iter_mut().zip(&block[2..]) {
            for (j, w) in w.iter_mut().enumerate() {
                *w = 2 * (bits >> j & 1) as i8 - 1;
            }
        }
    }

    fn pack(w: &[f32], block: &mut [u8]) {
        let mut sum = 0.0;
        for v in w {
            sum += v.abs();
        }
        block[..2].copy_from_slice(&f16::from_f32_const(sum / 128.0).to_le_bytes());
        for (bits, w) in block[2..].iter_mut().zip(w.as_chunks::<8>().0) {
            *bits = 0;
            for (j, &v) in w.iter().enumerate() {
                *bits |= u8::from(v >= 0.0) << j;
            }
        }
    }
}
