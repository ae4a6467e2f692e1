//! IQ1, IQ2 and IQ3: 256 weights, eight or four at a time an index into a codebook of points, with signs beside it.
//!
//! A codebook is a set of points that are dense where groups of weights are, so that an index takes fewer bits than its
//! weights one by one. [`points`] has the codebooks; the files beside it have the bytes of the formats.
//!
//! ```text
//! w = integer * (unit * d) * (2 s + 1)     with s of 3 or 4 bits for each 16 or 32 weights
//! ```
//! The unit is a power of two that makes the levels of the points integers. Every step but the last product is exact.
//!
//! Nothing writes these formats. Source: the Python package `gguf`, whose `dequantize` gives the same bits.
#![forbid(unsafe_code)]

mod iq1;
mod iq2;
mod iq3;
mod points;

use super::{Block, scale::f16_at};
pub use iq1::LEVELS as IQ1_LEVELS;
pub(crate) use iq1::{Iq1M, Iq1S};
pub use iq2::LEVELS as IQ2_LEVELS;
pub(crate) use iq2::{Iq2S, Iq2Xs, Iq2Xxs};
pub(crate) use iq3::{Iq3S, Iq3Xxs};
pub use iq3::{LEVELS_S as IQ3_S_LEVELS, LEVELS_XXS as IQ3_XXS_LEVELS};
pub(crate) use points::{Points, points};

/// Weights in a run.
pub(crate) const RUN: usize = 32;

/// A format whose weights are points of a codebook, with signs. Blocks have 256 weights in groups of [`Codebook::SHARE`].
pub(crate) trait Codebook {
    /// Bytes of a block.
    const SIZE: usize;
    /// Weights that share a scale: 16 or 32.
    const SHARE: usize;
    /// What `d` is multiplied by.
    const UNIT: f32;
    /// What has been added to the integers of [`Codebook::run`]; 0 where they have signs.
    const ZERO: i8 = 0;

    /// The bits of the f16 `d` of a block.
    #[inline(always)]
    fn d(block: &[u8]) -> u16 {
        u16::from_le_bytes([block[0], block[1]])
    }

    /// `2 s + 1` of group `group`.
    fn multiple(block: &[u8], group: usize) -> u8;

    /// The integers of run `run`, 0 to 7: a byte for each of 32 weights, the first in the lowest.
    fn run(points: &Points, block: &[u8], run: usize) -> [u64; 4];
}

impl<C: Codebook> Block for C {
    const LEN: usize = 256;
    const BYTES: usize = C::SIZE;
    const GROUP: usize = C::SHARE;
    const LEAST: i8 = if C::ZERO == 0 { i8::MIN } else { -C::ZERO };
    const PACKS: bool = false;

    fn scale(block: &[u8], group: usize) -> f32 {
        common_scale::<C>(block) * f32::from(C::multiple(block, group))
    }

    fn integers(block: &[u8], q: &mut [i8]) {
        let points = points();
        for (run, q) in q.chunks_exact_mut(RUN).enumerate() {
            for (q, eight) in q.chunks_exact_mut(8).zip(C::run(points, block, run)) {
                for (q, byte) in q.iter_mut().zip(eight.to_le_bytes()) {
                    *q = byte.cast_signed().wrapping_sub(C::ZERO);
                }
            }
        }
    }

    fn pack(_: &[f32], _: &mut [u8]) {}
}

/// What the scales of all groups of a block are multiples of.
pub(crate) fn common_scale<C: Codebook>(block: &[u8]) -> f32 {
    f16_at(&C::d(block).to_le_bytes(), 0) * C::UNIT
}

/// The bytes of `x`, none of which is 0, the i-th negated where bit i of `signs` is set.
#[inline(always)]
fn with_signs(x: u64, signs: u8) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let spread = (u64::from(signs) * EACH) & 0x8040_2010_0804_0201;
    let ones = (spread + 0x7f * EACH) >> 7 & EACH;
    // No byte carries into the next: of none is the complement 255.
    (x ^ (ones * 0xff)) + ones
}

/// Eight signs of seven bits: an even number of them is set.
#[inline(always)]
fn even_signs(seven: u32) -> u8 {
    let seven = seven as u8 & 127;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// The little-endian 32-bit word at byte `at`.
#[inline(always)]
fn word_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// The little-endian 16-bit number at byte `at`.
#[inline(always)]
fn half_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}
