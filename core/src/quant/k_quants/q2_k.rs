//! Q2_K: 256 weights as 2-bit integers in 16 groups of 16, with scales and minima of 4 bits.
//!
//! ```text
//! byte   0 .......... 15   16 ........... 79   80 81   82 83
//!      | s and m         | codes             | d     | dmin  |
//!
//! byte m of 32 of codes    bits 1-0   bits 3-2    bits 5-4    bits 7-6
//!                          q[m]       q[m+32]     q[m+64]     q[m+96]
//! ```
//! The first 32 bytes of codes are weights 0 to 127, the others 128 to 255. Byte g has s of group g in its
//! low, m in its high half: w = q * (d * s) - dmin * m. Source: GGUF type 10.
#![forbid(unsafe_code)]

use crate::quant::{Block, float::f16_at};

pub(crate) struct Q2K;

impl Block for Q2K {
    const LEN: usize = 256;
    const BYTES: usize = 84;
    const PACKS: bool = false;
    const GROUP: usize = 16;
    const MINIMUM: bool = true;
    const LEAST: i8 = 0;

    fn scale(block: &[u8], group: usize) -> f32 {
        f16_at(block, 80) * f32::from(block[group] & 15)
    }

    fn minimum(block: &[u8], group: usize) -> f32 {
        -(f16_at(block, 82) * f32::from(block[group] >> 4))
    }

    #[inline(always)]
    fn integers(block: &[u8], w: &mut [i8]) {
        for (half, codes) in w.as_chunks_mut::<128>().0.iter_mut().zip(block[16..80].as_chunks::<32>().0) {
            for (plane, w) in half.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                for (w, &b) in w.iter_mut().zip(codes) {
                    *w = (b >> (2 * plane) & 3) as i8;
                }
            }
        }
    }
}
