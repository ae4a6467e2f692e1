//! MXFP4: 32 weights as 4-bit floats (one sign, two exponent and one mantissa bit) with a power of two.
//!
//! ```text
//! byte   0     1 ............. 16
//!      | e   | n0,16  ...  n15,31 |   low nibble of byte 1+j: n[j], high nibble: n[j+16]
//! ```
//! w = DOUBLED[n] * 2^(e - 128), with twice the values of the floats, which are integers. Source: GGUF type
//! 39, OCP Microscaling Formats. Quantizer: 2^e' with e' = floor(log2(max|w|)) - 2 is the scale of the floats,
//! each the nearest to its weight, the one of the lower index if there are two.
#![forbid(unsafe_code)]

use super::{Block, max_abs, nibbles, put_nibbles};

/// Twice the values of the 4-bit floats; bit 3 is the sign.
pub const DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The index of the integer whose multiple of `d` is nearest to `x`, the lowest of several.
pub(super) fn nearest_float(x: f32, d: f32) -> u8 {
    let mut best = (0, (f32::from(DOUBLED[0]) * d - x).abs());
    for (n, &value) in DOUBLED.iter().enumerate().skip(1) {
        let error = (f32::from(value) * d - x).abs();
        if error < best.1 {
            best = (n, error);
        }
    }
    best.0 as u8
}

pub(crate) struct Mxfp4;

impl Block for Mxfp4 {
    const LEN: usize = 32;
    const BYTES: usize = 17;
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

    fn pack(w: &[f32], block: &mut [u8]) {
        let largest = max_abs(w);
        // The logarithm is rounded to f32, and the exponent of subnormal weights wraps, as in llama.cpp.
        let log = libm::log2(f64::from(largest)) as f32;
        block[0] = if largest > 0.0 { (libm::floorf(log) - 2.0 + 127.0) as i32 as u8 } else { 0 };
        let d = Self::scale(block, 0);
        put_nibbles(w, &mut block[1..17], |x| nearest_float(x, d));
    }
}
