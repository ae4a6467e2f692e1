//! IQ1_S and IQ1_M: eight weights of -1, 0 or 1 are one of 2,048 points; an eighth is added to all of them or subtracted.
//!
//! ```text
//! IQ1_S  byte   0 1   2 ... 33   34 ... 49
//!             | d   | low      | a 16-bit number h for each 32 weights |
//! ```
//! The index of point j of 32 weights, 0 to 3, is its byte of `low` and bits 3 j to 3 j + 2 of h above it. The scale of the 32
//! weights is d * (2 s + 1) with s in bits 12 to 14 of h; the eighth is subtracted if bit 15 is set.
//!
//! ```text
//! IQ1_M  byte   0 ... 31   32 ... 47           48 ... 55
//!             | low      | a nibble for each 8 | four 16-bit numbers |
//! ```
//! The lower three bits of a nibble are those above the byte of `low`; the eighth is subtracted if the highest is set. Each
//! 16-bit number has s of four groups of 16 weights, from the lowest bits on three bits each, and in its upper four bits
//! a quarter of the f16 d, the first number the lowest.
//!
//! w = (8 t + 1) * d / 8 * (2 s + 1), or 8 t - 1. Source: GGUF types 19 and 29.
#![forbid(unsafe_code)]

use super::points::IQ1;
use super::{Codebook, Points, half_at};

/// The bytes of -1, 0 and 1: eight times as much, with 8 added.
pub(super) const DIGITS: [u8; 3] = [0, 8, 16];

/// The integers of IQ1_S and IQ1_M, eight times a weight without its scale; then zeros.
pub const LEVELS: [i8; 16] = [-9, -7, -1, 1, 7, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Twice an eighth of 8 for each weight, with which the zero point is 9; or nothing.
#[inline(always)]
fn eighths(is_subtracted: bool) -> u64 {
    if is_subtracted { 0 } else { 0x0202_0202_0202_0202 }
}

pub(crate) struct Iq1S;

impl Codebook for Iq1S {
    const SIZE: usize = 50;
    const SHARE: usize = 32;
    const UNIT: f32 = 0.125;
    const ZERO: i8 = 9;

    #[inline(always)]
    fn multiple(block: &[u8], group: usize) -> u8 {
        (half_at(block, 34 + 2 * group) >> 12 & 7) as u8 * 2 + 1
    }

    #[inline(always)]
    fn run(points: &Points, block: &[u8], run: usize) -> [u64; 4] {
        let high = usize::from(half_at(block, 34 + 2 * run));
        let mut all = [0; 4];
        for (j, eight) in all.iter_mut().enumerate() {
            let index = usize::from(block[2 + 4 * run + j]) | (high >> (3 * j) & 7) << 8;
            *eight = points.eight(IQ1, index) + eighths(high >> 15 == 1);
        }
        all
    }
}

pub(crate) struct Iq1M;

impl Codebook for Iq1M {
    const SIZE: usize = 56;
    const SHARE: usize = 16;
    const UNIT: f32 = 0.125;
    const ZERO: i8 = 9;

    #[inline(always)]
    fn d(block: &[u8]) -> u16 {
        (0..4).fold(0, |d, i| d | half_at(block, 48 + 2 * i) >> 12 << (4 * i))
    }

    #[inline(always)]
    fn multiple(block: &[u8], group: usize) -> u8 {
        (half_at(block, 48 + group / 4 * 2) >> (group % 4 * 3) & 7) as u8 * 2 + 1
    }

    #[inline(always)]
    fn run(points: &Points, block: &[u8], run: usize) -> [u64; 4] {
        let mut all = [0; 4];
        for (j, eight) in all.iter_mut().enumerate() {
            let nibble = block[32 + 2 * run + j / 2] >> (j % 2 * 4);
            let index = usize::from(block[4 * run + j]) | usize::from(nibble & 7) << 8;
            *eight = points.eight(IQ1, index) + eighths(nibble & 8 != 0);
        }
        all
    }
}
