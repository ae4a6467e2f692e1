//! IQ4_NL: 32 weights as indices of 16 unevenly spaced integers, with one scale.
//!
//! ```text
//! byte   0 1   2 ............. 17
//!      | d   | n0,16  ...  n15,31 |   low nibble of byte 2+j: n[j], high nibble: n[j+16]
//! ```
//! w = LEVELS[n] * d. Source: GGUF type 20.
#![forbid(unsafe_code)]

use super::{Block, float::f16_at, nibbles};

/// The integers of IQ4_NL and IQ4_XS, denser near zero, as weights are.
pub const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

pub(crate) struct Iq4Nl;

impl Block for Iq4Nl {
    const LEN: usize = 32;
    const BYTES: usize = 18;
    const PACKS: bool = false;

    fn scale(block: &[u8], _: usize) -> f32 {
        f16_at(block, 0)
    }

    #[inline(always)]
    fn integers(block: &[u8], w: &mut [i8]) {
        nibbles(&block[2..18], w, |n| LEVELS[usize::from(n)]);
    }
}
