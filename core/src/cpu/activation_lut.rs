//! Sums of activations, for kernels that look up instead of multiplying.
//!
//! Four activations have sixteen sums of a subset; which of them a row needs, four of its bits say, and
//! one instruction looks up as many rows as a vector has bytes. A code of two bits is two such bits, in
//! two planes, and both look into the same table.
//!
//! A sum of four activations has ten bits, too many for a byte, and widening every one that is looked
//! up would take longer than the lookup. So the sums are moved to 0 .. 512 and kept as four low bits
//! and five high ones: eight of either kind, those of 32 columns, still add up to less than 256.
#![allow(unsafe_code)]

use crate::cpu::activations::{Q8_LEN, Q8Block};

/// Columns of a [`ActivationLut`].
pub const LUT_COLS: usize = 128;
/// Activations that a table has the sums of.
pub(crate) const FOUR: usize = 4;
/// Columns that share a factor.
const PART: usize = 32;
/// Parts of a [`ActivationLut`].
const PARTS: usize = LUT_COLS / PART;

/// The sums of subsets of 128 activations.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct ActivationLut {
    /// Of activations `q = 32 p + 8 i + 4 n ..` at `[i][n][0][p]` the low four bits and at `[i][n][1][p]`
    /// the high ones of `sum - shift`; there at `[m]` the sum of those `q[j]` for which bit `j` of `m` is
    /// set.
    pub(crate) sums: [[[[[u8; 16]; PARTS]; 2]; 2]; 4],
    /// Per 64 columns the sum of `shift * factor`.
    pub(crate) base: [i32; 2],
    /// The factors of parts 0 and 2, and those of parts 1 and 3, the first in the lower 16 bits.
    pub(crate) factor: [i32; 2],
    pad: [u32; 12],
}

// SAFETY: integers and arrays of them, without padding (1024 + 8 + 8 + 48 = 1088), so that every bit
// pattern, zero included, is a value.
unsafe impl bytemuck::Zeroable for ActivationLut {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for ActivationLut {}

impl Default for ActivationLut {
    fn default() -> Self {
        bytemuck::Zeroable::zeroed()
    }
}

/// The sums of subsets by the instructions of one set. Safety: the processor has them.
pub(crate) trait Subsets {
    /// Half the sum of each four, rounded down, less 254: taken from the sums, which are at most 254 away
    /// from that half, it makes them 0 or more.
    unsafe fn shifts(q: &[i8; Q8_LEN]) -> [i32; Q8_LEN / FOUR];

    /// The table of four activations: of each sum, less `shift`, the low four bits and the high ones.
    unsafe fn table(q: [i8; FOUR], shift: i32, low: &mut [u8; 16], high: &mut [u8; 16]);
}

/// One token's lookup tables.
#[inline(always)]
pub(crate) unsafe fn fill<S: Subsets>(q8: &[Q8Block], out: &mut [ActivationLut]) {
    const HALVES: usize = LUT_COLS / Q8_LEN;
    for (q8, out) in q8.chunks(HALVES).zip(out) {
        (out.base, out.factor) = ([0; 2], [0; 2]);
        for (half, block) in q8.iter().enumerate() {
            // SAFETY: the caller has the instruction set.
            let shifts = unsafe { S::shifts(&block.q) };
            let shifts = shifts.as_chunks::<{ PART / FOUR }>().0;
            for (part, (q, shifts)) in block.q.as_chunks::<PART>().0.iter().zip(shifts).enumerate() {
                let p = half * HALVES + part;
                for (k, (q, shift)) in q.as_chunks::<FOUR>().0.iter().zip(shifts).enumerate() {
                    let [low, high] = &mut out.sums[k / 2][k % 2];
                    // SAFETY: as above.
                    unsafe { S::table(*q, *shift, &mut low[p], &mut high[p]) };
                }
                let base = shifts.iter().sum::<i32>().wrapping_mul(block.factor[part]);
                out.base[half] = out.base[half].wrapping_add(base);
                out.factor[part] |= block.factor[part] << (16 * half);
            }
        }
    }
}
