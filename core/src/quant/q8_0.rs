//! Q8_0: 32 weights as signed bytes with one scale.
//!
//! ```text
//! byte   0 1   2 ..................... 33
//!      | d   | q0 q1 ............... q31 |   d: f16, q: i8      w[j] = q[j] * d
//! ```
//! Source: GGUF type 8. Quantizer: d = max|w| / 127, q = w / d rounded half away from zero.
#![forbid(unsafe_code)]

use super::{Block, put_f16, scale::f16_at, search::inverse};

pub(crate) struct Q8_0;

impl Block for Q8_0 {
    const LEN: usize = 32;
    const BYTES: usize = 34;

    fn scale(block: &[u8], _: usize) -> f32 {
        f16_at(block, 0)
    }

    #[inline(always)]
    fn integers(block: &[u8], w: &mut [i8]) {
        for (w, &q) in w.iter_mut().zip(&block[2..]) {
            *w = q as i8;
        }
    }

    fn pack(w: &[f32], block: &mut [u8]) {
        let d = super::max_abs(w) / 127.0;
        let id = inverse(d);
        put_f16(block, 0, d);
        for (q, &w) in block[2..].iter_mut().zip(w) {
            *q = libm::roundf(w * id) as i8 as u8;
        }
    }
}
