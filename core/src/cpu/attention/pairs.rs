//! Pairs of small integers as vectors of 16-bit integers.
#![allow(unsafe_code)]

use crate::cache::{Codes, PairCodec};
use crate::cpu::simd::Simd;

/// Smaller magnitudes count as zero, so that no reciprocal overflows.
pub(super) const LEAST: f32 = f32::from_bits((127 - 100) << 23);

/// Pairs of codes that vectors are loaded from.
pub(crate) trait LoadPairs: PairCodec {
    /// The largest magnitude of the integers for queries and weights.
    const MOST: f32;

    /// Whether a pair is one byte.
    #[cfg(target_arch = "x86_64")]
    const NIBBLES: bool = Self::PAIR == 1;

    /// 16 pairs of codes at `p`, widened.
    ///
    /// Safety: as for [`Simd`].
    unsafe fn pairs<L: Simd>(p: *const u8) -> L::Pairs;
}

impl LoadPairs for Codes<8> {
    const MOST: f32 = 32767.0;

    #[inline(always)]
    unsafe fn pairs<L: Simd>(p: *const u8) -> L::Pairs {
        // SAFETY: the caller's promise.
        unsafe { L::pairs(p.cast()) }
    }
}

impl LoadPairs for Codes<4> {
    /// 256 times a byte with a sign, plus another, see `nibbles.rs`.
    const MOST: f32 = (256 * 127 + 127) as f32;

    #[inline(always)]
    unsafe fn pairs<L: Simd>(p: *const u8) -> L::Pairs {
        // SAFETY: the caller's promise.
        unsafe { L::pairs_of_halves(p) }
    }
}
