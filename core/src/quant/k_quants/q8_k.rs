//! Q8_K: 256 weights as signed bytes with one scale.
//!
//! ```text
//! byte   0 1 2 3   4 ........... 259   260 ............ 291
//!      | d: f32  | q0 ........ q255   | sums of 16: i16     |
//! ```
//! w = q * d. The sums serve llama.cpp's products and are not read here. Source: GGUF type 15.
#![forbid(unsafe_code)]

use crate::quant::Block;

pub(crate) struct Q8K;

impl Block for Q8K {
    const LEN: usize = 256;
    const BYTES: usize = 292;
    const PACKS: bool = false;
    const GROUP: usize = 32;

    fn scale(block: &[u8], _: usize) -> f32 {
        f32::from_le_bytes([block[0], block[1], block[2], block[3]])
    }

    #[inline(always)]
    fn integers(block: &[u8], w: &mut [i8]) {
        w.iter_mut().zip(&block[4..260]).for_each(|(w, &q)| *w = q as i8);
    }
}
