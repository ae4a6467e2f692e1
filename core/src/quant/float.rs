//! F32, F16 and BF16: weights stored one by one.
//!
//! ```text
//! F32  | b0 b1 b2 b3 |  little-endian IEEE single
//! F16  | b0 b1 |        little-endian IEEE half
//! BF16 | b0 b1 |        the upper two bytes of an IEEE single
//! ```
//! Source: GGUF types 0, 1 and 30. Narrowing rounds to nearest, ties to even.
#![forbid(unsafe_code)]

use half::{bf16, f16};

/// The f16 in the first two of `bytes`, as f32; every block scale is read through this.
#[inline(always)]
pub(crate) fn f16_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32_const()
}

pub(super) fn unpack_f32(packed: &[u8], out: &mut [f32]) {
    for (w, b) in out.iter_mut().zip(packed.as_chunks::<4>().0) {
        *w = f32::from_le_bytes(*b);
    }
}

pub(super) fn unpack_f16(packed: &[u8], out: &mut [f32]) {
    for (w, b) in out.iter_mut().zip(packed.as_chunks::<2>().0) {
        *w = f16::from_le_bytes(*b).to_f32_const();
    }
}

pub(super) fn unpack_bf16(packed: &[u8], out: &mut [f32]) {
    for (w, b) in out.iter_mut().zip(packed.as_chunks::<2>().0) {
        *w = f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16);
    }
}

pub(super) fn pack_f32(w: &[f32], packed: &mut [u8]) {
    for (b, w) in packed.as_chunks_mut::<4>().0.iter_mut().zip(w) {
        *b = w.to_le_bytes();
    }
}

pub(super) fn pack_f16(w: &[f32], packed: &mut [u8]) {
    for (b, w) in packed.as_chunks_mut::<2>().0.iter_mut().zip(w) {
        *b = f16::from_f32_const(*w).to_le_bytes();
    }
}

pub(super) fn pack_bf16(w: &[f32], packed: &mut [u8]) {
    for (b, w) in packed.as_chunks_mut::<2>().0.iter_mut().zip(w) {
        *b = bf16::from_f32_const(*w).to_le_bytes();
    }
}
