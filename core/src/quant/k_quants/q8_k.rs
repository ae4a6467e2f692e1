//! Q8_K: 256 weights as signed bytes with one scale.
//!
//! ```text
//! byte   0 1 2 3   4 ........... 259   260 ............ 291
//!      | d: f32  | q0 ........ q255   | sums of 16: i16     |
//! ```
//! w = q * d. The sums serve llama.cpp's products and are not read here. Source: GGUF type 15. Quantizer: d = the
//! weight of largest magnitude / -127.
#![forbid(unsafe_code)]

use crate::quant::Block;
use crate::quant::search::{extreme, inverse, nearest};

pub(crate) struct Q8K;

impl Block for Q8K {
    const LEN: usize = 256;
    const BYTES: usize = 292;
    const GROUP: usize = 32;

    fn scale(block: &[u8], _: usize) -> f32 {
        f32::from_le_bytes([block[0], block[1], block[2], block[3]])
    }

    #[inline(always)]
    fn integers(block: &[u8], w: &mut [i8]) {
        w.iter_mut().zip(&block[4..260]).for_each(|(w, &q)| *w = q as i8);
    }

    fn pack(w: &[f32], block: &mut [u8]) {
        let max = extreme(w);
        let id = if max != 0.0 { -127.0 / max } else { 0.0 };
        block[..4].copy_from_slice(&inverse(id).to_le_bytes());
        let (codes, sums) = block[4..].split_at_mut(256);
        for (code, w) in codes.iter_mut().zip(w) {
            *code = nearest(id * w).min(127) as u8;
        }
        for (sum, codes) in sums.as_chunks_mut::<2>().0.iter_mut().zip(codes.as_chunks::<16>().0) {
            *sum = codes.iter().map(|&q| i16::from(q as i8)).sum::<i16>().to_le_bytes();
        }
    }
}
