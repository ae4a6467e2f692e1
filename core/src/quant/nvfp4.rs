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
//! Quantizer: d = max|w| / 6, rounded to its format.
#![forbid(unsafe_code)]

use super::mxfp4::{DOUBLED, nearest_float};
use super::{Block, max_abs, put_nibbles};

/// The bits of the unsigned 8-bit float that is nearest to `x`, halves rounded up; the largest, 448, from 248, as
/// in llama.cpp.
fn to_ue4m3(x: f32) -> u8 {
    if x.is_nan() || x <= 0.0 {
        return 0;
    }
    // Subnormals are multiples of 2^-9.
    const LEAST_NORMAL: f32 = 1.0 / 64.0;
    if x < LEAST_NORMAL {
        return ((x * 512.0 + 0.5) as u8).min(7);
    }
    // Rounding the mantissa up may carry into the exponent, as it should.
    let rounded = ((x.to_bits() >> 19) + 1) >> 1;
    match rounded - ((127 - 7) << 3) {
        bits @ 0..0x78 => bits as u8,
        _ => 0x7e,
    }
}

pub(crate) struct Nvfp4;

impl Block for Nvfp4 {
    const LEN: usize = 64;
    const BYTES: usize = 36;
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

    fn pack(w: &[f32], block: &mut [u8]) {
        for (g, w) in w.chunks_exact(16).enumerate() {
            block[g] = to_ue4m3(max_abs(w) / 6.0);
            let d = Self::scale(block, g);
            put_nibbles(w, &mut block[4 + 8 * g..][..8], |x| nearest_float(x, d));
        }
    }
}
