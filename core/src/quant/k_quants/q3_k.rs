//! Q3_K: 256 weights as 3-bit integers in 16 groups of 16, with scales of 6 bits.
//!
//! ```text
//! byte   0 ......... 31   32 .......... 95   96 ...... 107   108 109
//!      | high bits      | codes            | scales        | d       |
//!
//! byte m of 32 of codes    bits 1-0   bits 3-2    bits 5-4    bits 7-6
//!                          c[m]       c[m+32]     c[m+64]     c[m+96]
//! ```
//! The first 32 bytes of codes are weights 0 to 127, the others 128 to 255. The high bit h of weight
//! 32 p + m is bit p of byte m. The low four bits of scale s of group g are in byte g % 8 of the scales (low
//! half for g < 8), the high two in byte 8 + g % 4, from bit 2 (g / 4).
//!
//! w = (c + 4 h - 4) * (d * (s - 32)). Source: GGUF type 11.
#![forbid(unsafe_code)]

use crate::quant::{Block, float::f16_at};

pub(crate) struct Q3K;

impl Block for Q3K {
    const LEN: usize = 256;
    const BYTES: usize = 110;
    const PACKS: bool = false;
    const GROUP: usize = 16;
    const LEAST: i8 = -4;

    fn scale(block: &[u8], group: usize) -> f32 {
        let low = block[96 + group % 8] >> (4 * (group / 8)) & 15;
        let high = block[104 + group % 4] >> (2 * (group / 4)) & 3;
        f16_at(block, 108) * f32::from((low | high << 4) as i8 - 32)
    }

    #[inline(always)]
    fn integers(block: &[u8], w: &mut [i8]) {
        let high = &block[..32];
        for (p, w) in w.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let codes = &block[32 + p / 4 * 32..][..32];
            for ((w, &c), &h) in w.iter_mut().zip(codes).zip(high) {
                *w = (c >> (2 * (p % 4)) & 3 | (h >> p & 1) << 2) as i8 - 4;
            }
        }
    }
}
