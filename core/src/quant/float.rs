//! F32, F16 and BF16: unpacked floats.
//!
//! ```text
//! F32  | b0 b1 b2 b3 |  little-endian IEEE single
//! F16  | b0 b1 |        little-endian IEEE half
//! BF16 | b0 b1 |        the upper two bytes of an IEEE single
//! ```
//! Source: GGUF types 0, 1 and 30. Narrowing rounds to nearest, ties to even.
#![forbid(unsafe_code)]

use super::Block;
use half::{bf16, f16};

/// The f16 at byte `at`, as f32; every block scale is read by this function.
#[inline(always)]
pub(crate) fn f16_at(bytes: &[u8], at: usize) -> f32 {
    let half = u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    // Without branches: the library's conversion takes longer than 32 products.
    let magnitude = (half & 0x7fff) << 13;
    let least_normal = (127 - 14) << 23;
    let wide = match magnitude >> 23 {
        0 => (f32::from_bits(magnitude + least_normal) - f32::from_bits(least_normal)).to_bits(),
        31 => magnitude + ((255 - 31) << 23),
        _ => magnitude + ((127 - 15) << 23),
    };
    f32::from_bits(wide | (half & 0x8000) << 16)
}

/// A format of unpacked floats, `$n` bytes each, converted by `$from` and `$to`.
macro_rules! float {
    ($name:ident $n:literal $from:expr, $to:expr) => {
        pub(crate) struct $name;

        impl Block for $name {
            const LEN: usize = 1;
            const BYTES: usize = $n;

            fn scale(_: &[u8], _: usize) -> f32 {
                1.0
            }

            fn integers(_: &[u8], _: &mut [i8]) {}

            fn pack(w: &[f32], packed: &mut [u8]) {
                for (b, w) in packed.as_chunks_mut::<$n>().0.iter_mut().zip(w) {
                    *b = $to(*w);
                }
            }

            fn unpack(packed: &[u8], out: &mut [f32]) {
                for (w, b) in out.iter_mut().zip(packed.as_chunks::<$n>().0) {
                    *w = $from(*b);
                }
            }
        }
    };
}

float!(F32 4 f32::from_le_bytes, f32::to_le_bytes);
float!(F16 2 |b| f16::from_le_bytes(b).to_f32_const(), |w| f16::from_f32_const(w).to_le_bytes());
float!(Bf16 2
    |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16),
    |w| bf16::from_f32_const(w).to_le_bytes()
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_ieee_halves() {
        for bits in 0..=u16::MAX {
            let (found, expected) = (f16_at(&bits.to_le_bytes(), 0), f16::from_bits(bits).to_f32());
            assert!(
                found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(),
                "{bits:#x}"
            );
        }
    }
}
