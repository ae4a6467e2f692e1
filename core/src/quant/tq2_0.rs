//! TQ2_0: 256 ternary weights as 2-bit codes in four strided planes.
//!
//! ```text
//! byte   0 ........... 31   32 .......... 63   64 65
//!      | w[0..128)        | w[128..256)      | d    |
//!
//! byte m of a half    bits 1-0   bits 3-2    bits 5-4    bits 7-6
//!                     w[m]       w[m+32]     w[m+64]     w[m+96]
//! ```
//! w = (code - 1) * d. Source: GGUF type 35. Quantizer as for Q2_0.
#![forbid(unsafe_code)]

use super::{Block, scale::f16_at, ternary_codes};

pub(crate) struct Tq2_0;

impl Block for Tq2_0 {
    const LEN: usize = 256;
    const BYTES: usize = 66;

    fn scale(block: &[u8], _: usize) -> f32 {
        f16_at(block, 64)
    }

    fn integers(block: &[u8], w: &mut [i8]) {
        for (half, codes) in w.as_chunks_mut::<128>().0.iter_mut().zip(block.as_chunks::<32>().0) {
            for (plane, w) in half.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                for (w, &b) in w.iter_mut().zip(codes) {
                    *w = (b >> (2 * plane) & 3) as i8 - 1;
                }
            }
        }
    }

    fn pack(w: &[f32], block: &mut [u8]) {
        let (d, code) = ternary_codes(w);
        block[64..66].copy_from_slice(&d);
        for (half, codes) in w.as_chunks::<128>().0.iter().zip(block.as_chunks_mut::<32>().0) {
            for (m, b) in codes.iter_mut().enumerate() {
                *b = code(half[m])
                    | code(half[m + 32]) << 2
                    | code(half[m + 64]) << 4
                    | code(half[m + 96]) << 6;
            }
        }
    }
}
