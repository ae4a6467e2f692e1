//! Ternary weights as base-3 digits, five per byte: TQ1_0 and PTQ1_0.
//!
//! ```text
//! TQ1_0    byte  0 ....... 31   32 ........ 47   48 ....... 51   52 53
//!              | w[0..160)    | w[160..240)    | w[240..256)   | d    |
//! PTQ1_0   byte  0 ....... 15   16 ........ 23   24 25           26 27
//!              | w[0..80)     | w[80..120)     | w[120..128)   | d    |
//! ```
//! Each run of `c` bytes holds digit `n` of byte `m` at element `n * c + m` of its range; the last run holds
//! four digits per byte, the others five. A byte is ceil(v * 256 / 243) for the five-digit number v, most
//! significant digit first (four digits count as five with a trailing 0), so that digit n is the upper byte
//! of (byte * 3^n mod 256) * 3: no division when unpacking.
//!
//! w = (digit - 1) * d. Source: GGUF types 34 and 143. Quantizer as for Q2_0.
#![forbid(unsafe_code)]

use super::{Block, scale::f16_at, ternary_codes};

/// Runs of `A` and `B` bytes with five digits, then `C` bytes with four, then the scale.
pub(crate) struct Trits<const A: usize, const B: usize, const C: usize>;

pub(crate) type Tq1_0 = Trits<32, 16, 4>;
pub(crate) type Ptq1_0 = Trits<16, 8, 2>;

impl<const A: usize, const B: usize, const C: usize> Trits<A, B, C> {
    /// (first byte, bytes, digits per byte) of each run.
    const RUNS: [(usize, usize, usize); 3] = [(0, A, 5), (A, B, 5), (A + B, C, 4)];
}

impl<const A: usize, const B: usize, const C: usize> Block for Trits<A, B, C> {
    const LEN: usize = 5 * (A + B) + 4 * C;
    const BYTES: usize = A + B + C + 2;

    fn scale(block: &[u8], _: usize) -> f32 {
        f16_at(block, A + B + C)
    }

    #[inline(always)]
    fn integers(block: &[u8], w: &mut [i8]) {
        let mut at = 0;
        for (first, count, digits) in Self::RUNS {
            let bytes = &block[first..first + count];
            for power in [1u8, 3, 9, 27, 81].into_iter().take(digits) {
                for (w, &b) in w[at..at + count].iter_mut().zip(bytes) {
                    *w = ((u16::from(b.wrapping_mul(power)) * 3) >> 8) as i8 - 1;
                }
                at += count;
            }
        }
    }

    fn pack(w: &[f32], block: &mut [u8]) {
        let (d, code) = ternary_codes(w);
        block[A + B + C..A + B + C + 2].copy_from_slice(&d);
        let mut at = 0;
        for (first, count, digits) in Self::RUNS {
            for m in 0..count {
                let mut v = 0;
                for n in 0..5 {
                    let digit = if n < digits { code(w[at + n * count + m]).min(2) } else { 0 };
                    v = v * 3 + u32::from(digit);
                }
                block[first + m] = (v * 256).div_ceil(243) as u8;
            }
            at += digits * count;
        }
    }
}
