//! MXFP4: 32 weights as 4-bit floats (one sign, two exponent and one mantissa bit) with a power of two.
//!
//! ```text
//! byte   0     1 ............. 16
//!      | e   | n0,16  ...  n15,31 |   low nibble of byte 1+j: n[j], high nibble: n[j+16]
//! ```
//! w = DOUBLED[n] * 2^(e - 128), with twice the values of the floats, which are integers. Source: GGUF type
//! 39, OCP Microscaling Formats.
#![forbid(unsafe_code)]

use super::{Block, nibbles};

/// Twice the values of the 4-bit floats; bit 3 is the sign.
pub const DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

pub(crate) struct Mxfp4;

impl Block for Mxfp4 {
    const LEN: usize = 32;
    const BYTES: usize = 17;
    const PACKS: bool = false;
    const LEAST: i8 = -12;

    fn scale(block: &[u8], _: usize) -> f32 {
        match block[0] {
            // 2^-128 and 2^-127 are below the smallest normal float.
            e @ 0..2 => f32::from_bits(1 << (21 + e)),
            e => f32::from_bits(u32::from(e - 1) << 23),
        }
    }

    #[inline(always)]
    fn integers(block: &[u8], w: &mut [i8]) {
        nibbles(&block[1..17], w, |n| DOUBLED[usize::from(n)]);
    }
}
