//! IQ3_XXS and IQ3_S: the magnitudes of four weights, of eight levels each, are one of 256 or 512 points.
//!
//! ```text
//! IQ3_XXS  byte   0 1   2 ... 65                  66 ... 97
//!               | d   | a byte for each 4 weights | a 32-bit number for each 32 weights |
//! ```
//! Signs and s in the 32-bit number are as those of IQ2_XXS, for eight weights at a time. The levels are
//! 4, 12, 20, 28, 36, 44, 52 and 62: w = level * d / 4 * (2 s + 1).
//!
//! ```text
//! IQ3_S    byte   0 1   2 ... 65   66 ... 73   74 ... 105   106 ... 109
//!               | d   | low      | high      | signs      | s for each 32 weights, low nibble first |
//! ```
//! Above the byte of `low` for each four weights is a bit of `high`. Every weight has a sign. The levels are 1, 3, 5, 7, 9, 11, 13
//! and 15: w = level * d * (2 s + 1).
//!
//! Source: GGUF types 18 and 21.
#![forbid(unsafe_code)]

use super::iq2::nibble;
use super::{Codebook, Points, even_signs, points, with_signs, word_at};

/// Half the levels of IQ3_XXS, which leaves more room in a byte.
pub(super) const DIGITS_XXS: [u8; 8] = [2, 6, 10, 14, 18, 22, 26, 31];

/// The levels of IQ3_S.
pub(super) const DIGITS_S: [u8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];

/// The integers of IQ3_XXS, half its levels.
pub const LEVELS_XXS: [i8; 16] = [-31, -26, -22, -18, -14, -10, -6, -2, 2, 6, 10, 14, 18, 22, 26, 31];

/// The integers of IQ3_S.
pub const LEVELS_S: [i8; 16] = [-15, -13, -11, -9, -7, -5, -3, -1, 1, 3, 5, 7, 9, 11, 13, 15];

pub(crate) struct Iq3Xxs;

impl Codebook for Iq3Xxs {
    const SIZE: usize = 98;
    const SHARE: usize = 32;
    const UNIT: f32 = 0.5;

    #[inline(always)]
    fn multiple(block: &[u8], group: usize) -> u8 {
        (block[69 + 4 * group] >> 4) * 2 + 1
    }

    #[inline(always)]
    fn run(points: &Points, block: &[u8], run: usize) -> [u64; 4] {
        let signs = word_at(block, 66 + 4 * run);
        let mut all = [0; 4];
        for (j, eight) in all.iter_mut().enumerate() {
            let four = |i: usize| {
                let index = block[2 + 8 * run + 2 * j + i];
                u64::from(points.four(points::IQ3_XXS, usize::from(index)))
            };
            *eight = with_signs(four(0) | four(1) << 32, even_signs(signs >> (7 * j)));
        }
        all
    }
}

pub(crate) struct Iq3S;

impl Codebook for Iq3S {
    const SIZE: usize = 110;
    const SHARE: usize = 32;
    const UNIT: f32 = 1.0;

    #[inline(always)]
    fn multiple(block: &[u8], group: usize) -> u8 {
        nibble(block, 106, group)
    }

    #[inline(always)]
    fn run(points: &Points, block: &[u8], run: usize) -> [u64; 4] {
        let high = usize::from(block[66 + run]);
        let mut all = [0; 4];
        for (j, eight) in all.iter_mut().enumerate() {
            let four = |i: usize| {
                let index = usize::from(block[2 + 8 * run + 2 * j + i]) | (high >> (2 * j + i) & 1) << 8;
                u64::from(points.four(points::IQ3_S, index))
            };
            *eight = with_signs(four(0) | four(1) << 32, block[74 + 4 * run + j]);
        }
        all
    }
}
