//! NVFP4: 64 weights in 4 groups of 16, as 4-bit floats with an 8-bit float as scale.
//!
//! ```text
//! byte   0 1 2 3          4 ............. 35
//!      | d0 d1 d2 d3    | 8 bytes of nibbles for each group
//! ```
//! Within a group, the low nibble of byte j is n[j], the high nibble n[j+8]. A scale is an unsigned float with
//! 4 exponent bits (bias 7) and 3 mantissa bits; bit 7 is ignored, and 0x7f, which is not a number, counts as
//! 0.
//!
//! w = DOUBLED[n] * d / 2, with twice the values of the 4-bit floats, as in MXFP4. Source: GGUF type 40.
#![forbid(unsafe_code)]

use super::{Block, mxfp4::DOUBLED};

pub(crate) struct Nvfp4;

impl Block for Nvfp4 {
    const LEN: usize = 64;
    const BYTES: usize = 36;
    const PACKS: bool = false;
    const GROUP: usize = 16;
    const LEAST: i8 = -12;

    fn scale(block: &[u8], group: usize) -> f32 {
        let bits = u32::from(block[group] & 0x7f);
        match bits {
            0x7f => 0.0,
            0..8 => bits as f32 / 1024.0,
            // The exponent is rebased to that of f32, less one for the halving.
            _ => f32::from_bits((bits << 20) + ((127 - 7 - 1) << 23)),
        }
    }

    #[inline(always)]
    fn integers(block: &[u8], w: &mut [i8]) {
        for (w, bytes) in w.chunks_exact_mut(16).zip(block[4..36].chunks_exact(8)) {
            let (lo, hi) = w.split_at_mut(8);
            for ((lo, hi), &b) in lo.iter_mut().zip(hi).zip(bytes) {
                *lo = DOUBLED[usize::from(b & 15)];
                *hi = DOUBLED[usize::from(b >> 4)];
            }
        }
    }
}
