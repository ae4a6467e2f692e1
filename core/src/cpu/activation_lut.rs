//! Lookup tables of activation sums, for kernels that look up instead of multiplying.
//!
//! Four activations have sixteen subset sums; four bits of a row select one of them, and one instruction
//! looks up as many rows as a vector has bytes. A 2-bit code is two such bits, in two planes, and both use
//! the same table.
//!
//! A sum of four activations has ten bits, too many for a byte, and widening every looked-up sum would take
//! longer than the lookup. So the sums are shifted to 0 .. 512 and stored as four low bits and five high
//! bits: eight of either kind, those of 32 columns, still add up to less than 256.
#![allow(unsafe_code)]

use crate::cpu::activations::{Q8_LEN, Q8Block};

/// Columns of an [`ActivationLut`].
pub const LUT_COLS: usize = 128;
/// Activations per table.
pub(crate) const FOUR: usize = 4;
/// Columns that share a factor.
const PART: usize = 32;
/// Parts of an [`ActivationLut`].
const PARTS: usize = LUT_COLS / PART;

/// The subset sums of 128 activations.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct ActivationLut {
    /// For activations `q = 32 p + 8 i + 4 n ..`: the low four bits of `sum - shift` at `[i][n][0][p]` and
    /// the high bits at `[i][n][1][p]`; entry `[m]` there is the sum of those `q[j]` for which bit `j` of `m`
    /// is set.
    pub(crate) sums: [[[[[u8; 16]; PARTS]; 2]; 2]; 4],
    /// The sum of `shift * factor` per 64 columns.
    pub(crate) base: [i32; 2],
    /// The factors of parts 0 and 2, and those of parts 1 and 3, the first of each in the lower 16 bits.
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

/// Computes subset sums with one instruction set. Safety: the processor supports it.
pub(crate) trait Subsets {
    /// Half the sum of each four activations, rounded down, minus 254. A subset sum is at most 254 away from
    /// that half, so subtracting the shift makes it non-negative.
    unsafe fn shifts(q: &[i8; Q8_LEN]) -> [i32; Q8_LEN / FOUR];

    /// The table of four activations: the low four bits and the high bits of each sum minus `shift`.
    unsafe fn table(q: [i8; FOUR], shift: i32, low: &mut [u8; 16], high: &mut [u8; 16]);
}

/// Builds one token's lookup tables.
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
