//! IQ2_XXS, IQ2_XS and IQ2_S: the magnitudes of eight weights, 8, 25 or 43 each, are one of 256, 512 or 1,024 points.
//!
//! ```text
//! IQ2_XXS  byte   0 1   2 ... 65
//!               | d   | for each 32 weights 4 bytes of indices and a 32-bit number h |
//! ```
//! Bits 7 j to 7 j + 6 of h are the signs of the first seven weights of point j, 0 to 3; that of the eighth makes the number
//! of negative ones even. The upper four bits of h are s.
//!
//! ```text
//! IQ2_XS   byte   0 1   2 ... 65                       66 ... 73
//!               | d   | a 16-bit number for each point | s, low nibble first |
//! ```
//! The lower nine bits of the number are the index, the upper seven the signs.
//!
//! ```text
//! IQ2_S    byte   0 1   2 ... 33   34 ... 65   66 ... 73   74 ... 81
//!               | d   | low      | signs     | high      | s, low nibble first |
//! ```
//! Above the byte of `low` are two bits of a byte of `high` for each 32 weights. Every weight has a sign.
//!
//! w = magnitude * d / 8 * (2 s + 1), with s for each 32 weights of IQ2_XXS, and for each 16 of the others. Source: GGUF types 16,
//! 17 and 22.
#![forbid(unsafe_code)]

use super::{Codebook, Points, even_signs, half_at, points, with_signs, word_at};

/// The magnitudes.
pub(super) const DIGITS: [u8; 3] = [8, 25, 43];

/// The integers of IQ2_XXS, IQ2_XS and IQ2_S; then zeros.
pub const LEVELS: [i8; 16] = [-43, -25, -8, 8, 25, 43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// `2 s + 1`, with s in the nibbles from byte `at` on.
#[inline(always)]
pub(super) fn nibble(block: &[u8], at: usize, group: usize) -> u8 {
    (block[at + group / 2] >> (group % 2 * 4) & 15) * 2 + 1
}

pub(crate) struct Iq2Xxs;

impl Codebook for Iq2Xxs {
    const SIZE: usize = 66;
    const SHARE: usize = 32;
    const UNIT: f32 = 0.125;

    #[inline(always)]
    fn multiple(block: &[u8], group: usize) -> u8 {
        (block[9 + 8 * group] >> 4) * 2 + 1
    }

    #[inline(always)]
    fn run(points: &Points, block: &[u8], run: usize) -> [u64; 4] {
        let signs = word_at(block, 6 + 8 * run);
        let mut all = [0; 4];
        for (j, eight) in all.iter_mut().enumerate() {
            let index = usize::from(block[2 + 8 * run + j]);
            *eight = with_signs(points.eight(points::IQ2_XXS, index), even_signs(signs >> (7 * j)));
        }
        all
    }
}

pub(crate) struct Iq2Xs;

impl Codebook for Iq2Xs {
    const SIZE: usize = 74;
    const SHARE: usize = 16;
    const UNIT: f32 = 0.125;

    #[inline(always)]
    fn multiple(block: &[u8], group: usize) -> u8 {
        nibble(block, 66, group)
    }

    #[inline(always)]
    fn run(points: &Points, block: &[u8], run: usize) -> [u64; 4] {
        let mut all = [0; 4];
        for (j, eight) in all.iter_mut().enumerate() {
            let both = half_at(block, 2 + 8 * run + 2 * j);
            let magnitudes = points.eight(points::IQ2_XS, usize::from(both & 511));
            *eight = with_signs(magnitudes, even_signs(u32::from(both >> 9)));
        }
        all
    }
}

pub(crate) struct Iq2S;

impl Codebook for Iq2S {
    const SIZE: usize = 82;
    const SHARE: usize = 16;
    const UNIT: f32 = 0.125;

    #[inline(always)]
    fn multiple(block: &[u8], group: usize) -> u8 {
        nibble(block, 74, group)
    }

    #[inline(always)]
    fn run(points: &Points, block: &[u8], run: usize) -> [u64; 4] {
        let high = usize::from(block[66 + run]);
        let mut all = [0; 4];
        for (j, eight) in all.iter_mut().enumerate() {
            let index = usize::from(block[2 + 4 * run + j]) | (high >> (2 * j) & 3) << 8;
            *eight = with_signs(points.eight(points::IQ2_S, index), block[34 + 4 * run + j]);
        }
        all
    }
}
