//! Ternary weights as 2-bit codes in sequence: Q2_0, PQ2_0 and the codes-first form of PQ2_0.
//!
//! ```text
//! Q2_0       | d (2) | codes of 64 weights (16)  |    GGUF type 42 as mainline llama.cpp writes it
//! PQ2_0      | d (2) | codes of 128 weights (32) |    GGUF type 142, and 42 in older files
//! TQ2_0_G128 | codes of 128 weights (32) | d (2) |    GGUF type 42 as oxibonsai writes it
//!
//! code byte    bits 1-0   bits 3-2   bits 5-4   bits 7-6
//! j/4          w[j]       w[j+1]     w[j+2]     w[j+3]
//! ```
//! w = (code - 1) * d, so 0 is -d, 1 is 0, 2 is +d (and 3, which does not occur in ternary files, +2d).
//! Quantizer: d = max|w|, code = round(w / d) + 1, ties away from zero; lossless on ternary data.
#![forbid(unsafe_code)]

use super::{Block, scale::f16_at, ternary_codes};

/// `LEN` weights per block; the scale is at byte `SCALE`, the codes begin at byte `CODES`.
pub(crate) struct Codes<const LEN: usize, const SCALE: usize, const CODES: usize>;

pub(crate) type Q2_0 = Codes<64, 0, 2>;
pub(crate) type Pq2_0 = Codes<128, 0, 2>;
pub(crate) type Tq2_0G128 = Codes<128, 32, 0>;

impl<const LEN: usize, const SCALE: usize, const CODES: usize> Block for Codes<LEN, SCALE, CODES> {
    const LEN: usize = LEN;
    const BYTES: usize = LEN / 4 + 2;

    fn scale(block: &[u8], _: usize) -> f32 {
        f16_at(block, SCALE)
    }

    fn integers(block: &[u8], w: &mut [i8]) {
        for (w, &b) in w.as_chunks_mut::<4>().0.iter_mut().zip(&block[CODES..]) {
            *w = [0, 2, 4, 6].map(|shift| (b >> shift & 3) as i8 - 1);
        }
    }

    fn pack(w: &[f32], block: &mut [u8]) {
        let (d, code) = ternary_codes(w);
        block[SCALE..SCALE + 2].copy_from_slice(&d);
        for (b, w) in block[CODES..CODES + LEN / 4].iter_mut().zip(w.as_chunks::<4>().0) {
            *b = code(w[0]) | code(w[1]) << 2 | code(w[2]) << 4 | code(w[3]) << 6;
        }
    }
}
