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

use super::act::{Q8_LEN, Q8Block};
use super::isa::Isa;
use super::vectorize::{Vectorize, vectorize};
use crate::error::{Error, Result};

/// Columns of a [`Tables`].
pub const TABLES_LEN: usize = 128;
/// Activations that a table has the sums of.
const FOUR: usize = 4;
/// Columns that share a factor.
const PART: usize = 32;
/// Parts of a [`Tables`].
const PARTS: usize = TABLES_LEN / PART;

/// The sums of subsets of 128 activations.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct Tables {
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
unsafe impl bytemuck::Zeroable for Tables {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for Tables {}

impl Default for Tables {
    fn default() -> Self {
        bytemuck::Zeroable::zeroed()
    }
}

/// The [`Tables`] that the kernels of `isa` want for a product of `(tokens, cols)` with matrices in
/// [`Layout::Bytes`](crate::quant::Layout::Bytes); without them, the reference computes.
pub const fn tables(isa: Isa, tokens: usize, cols: usize) -> usize {
    cols.div_ceil(TABLES_LEN).saturating_mul(isa.table_tokens(tokens))
}

/// Fills `out`, which [`tables`] gives the length of, from `q8` of shape `(tokens, q8_blocks(cols))`.
///
/// # Errors
/// [`Error::Length`] if a length does not fit the shapes.
pub fn fill_tables(isa: Isa, q8: &[Q8Block], cols: usize, out: &mut [Tables]) -> Result<()> {
    let (blocks, each) = (super::q8_blocks(cols), cols.div_ceil(TABLES_LEN));
    let tokens = q8.len().checked_div(blocks).unwrap_or(0);
    let lengths = [
        ("quantized activations (a multiple of the columns)", tokens * blocks, q8.len()),
        ("tables", tables(isa, tokens, cols), out.len()),
    ];
    for (what, expected, found) in lengths {
        if expected != found {
            return Err(Error::Length { what, expected: expected as u64, found: found as u64 });
        }
    }
    if out.is_empty() {
        return Ok(());
    }
    for (q8, out) in q8.chunks_exact(blocks).zip(out.chunks_exact_mut(each)) {
        vectorize(isa, Fill { q8, out });
    }
    Ok(())
}

/// One token's.
struct Fill<'a> {
    q8: &'a [Q8Block],
    out: &'a mut [Tables],
}

impl Vectorize for Fill<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        const HALVES: usize = TABLES_LEN / Q8_LEN;
        for (q8, out) in self.q8.chunks(HALVES).zip(self.out) {
            (out.base, out.factor) = ([0; 2], [0; 2]);
            for (half, block) in q8.iter().enumerate() {
                for (k, q) in block.q.as_chunks::<FOUR>().0.iter().enumerate() {
                    let part = k * FOUR / PART;
                    let (i, nibble) = (k % (PART / FOUR) / 2, k % 2);
                    let [low, high] = &mut out.sums[i][nibble];
                    let p = half * HALVES + part;
                    let shift = four(*q, &mut low[p], &mut high[p]);
                    out.base[half] = out.base[half].wrapping_add(shift.wrapping_mul(block.factor[part]));
                }
                for (part, factor) in block.factor.iter().enumerate() {
                    out.factor[part] |= factor << (16 * half);
                }
            }
        }
    }
}

/// The table of four activations; returns what was taken from the sums.
#[inline(always)]
fn four(q: [i8; FOUR], low: &mut [u8; 16], high: &mut [u8; 16]) -> i32 {
    const BITS: [[i16; 16]; FOUR] = {
        let mut bits = [[0; 16]; FOUR];
        let mut at = 0;
        while at < FOUR * 16 {
            bits[at / 16][at % 16] = -(((at % 16) >> (at / 16) & 1) as i16);
            at += 1;
        }
        bits
    };
    let q = q.map(i16::from);
    // The middle of the sums, which are at most 254 away from it, becomes 254.
    let shift = ((q[0] + q[1] + q[2] + q[3]) >> 1) - 254;
    for m in 0..16 {
        let sum =
            (q[0] & BITS[0][m]) + (q[1] & BITS[1][m]) + (q[2] & BITS[2][m]) + (q[3] & BITS[3][m]) - shift;
        low[m] = (sum & 15) as u8;
        high[m] = (sum >> 4) as u8;
    }
    i32::from(shift)
}
