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
