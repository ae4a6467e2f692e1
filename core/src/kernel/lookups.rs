//! Lookups of sums of activations for interleaved rows of one bit a weight, by vectors that hold a byte
//! of each of 16 rows several times over, of other columns each time.
#![allow(unsafe_code)]

use core::mem::MaybeUninit;

use super::scalar::integer_from;
use super::tables::{TABLES_LEN, Tables};
use super::words::Words;
use super::{OutRows, Work};
use crate::quant::GROUP;

/// Groups of rows for which tables are loaded once.
const GROUPS: usize = 4;
/// Such sets of groups that many tokens are multiplied with before the next ones are.
const SETS: usize = 4;
/// Tokens whose sums are kept meanwhile: 32 KB with those of all sets.
const TOKENS: usize = 32;
/// Blocks between a product and the weights that are asked for meanwhile.
const AHEAD: usize = 16;
/// Eights of columns of a part.
pub(super) const EIGHTS: usize = 4;
/// Bytes of the codes of 16 rows of 128 columns.
const BLOCK_BYTES: usize = GROUP * TABLES_LEN / 8;

/// Safety: as for [`Words`].
pub(super) trait Lookups: Words {
    /// Vectors that hold a byte of 16 rows of each part.
    const VECTORS: usize;
    /// Which sums 16 rows select: of four columns, and of the next four.
    type Indices: Copy;

    /// Those of the `64 / VECTORS` bytes at `codes`.
    unsafe fn indices(codes: *const u8) -> Self::Indices;

    /// `start` plus twice the sums, times their factors, that `G` groups of rows select of `tables` with
    /// their `indices(group, vector)`.
    unsafe fn block<const G: usize>(
        tables: &Tables,
        start: i32,
        indices: impl Fn(usize, usize) -> Self::Indices,
    ) -> [Self::Integers; G];

    /// As [`Words::prefetch`], but of the address itself and to the second cache: lines for the first are
    /// too few to hide the way to memory.
    fn prefetch_line(p: *const u8);
}

/// Fills `out`; without tables, as the reference does.
#[inline(always)]
pub(super) unsafe fn rows<L: Lookups>(work: &Work<'_>, out: &mut OutRows<'_>) {
    if work.tables.is_empty() {
        return integer_from(0, work, out);
    }
    let end = work.w.grouped_rows().saturating_sub(out.first()).min(out.len()) / GROUP * GROUP;
    let mut i = 0;
    // SAFETY: the caller has the instruction set; the groups are there.
    unsafe {
        if work.tokens == 1 {
            while i + GROUPS * GROUP <= end {
                one_token::<L, GROUPS>(work, out, i);
                i += GROUPS * GROUP;
            }
            while i < end {
                one_token::<L, 1>(work, out, i);
                i += GROUP;
            }
        } else {
            while i + SETS * GROUPS * GROUP <= end {
                tokens::<L, SETS, GROUPS>(work, out, i);
                i += SETS * GROUPS * GROUP;
            }
            while i + GROUPS * GROUP <= end {
                tokens::<L, 1, GROUPS>(work, out, i);
                i += GROUPS * GROUP;
            }
            while i < end {
                tokens::<L, 1, 1>(work, out, i);
                i += GROUP;
            }
        }
    }
    integer_from(end, work, out);
}

/// What block `b` of token `t` starts from, its tables having been moved.
#[inline(always)]
fn start(work: &Work<'_>, t: usize, b: usize, tables: &Tables) -> i32 {
    let at = t * (work.q8.len() / work.tokens) + 2 * b;
    let base = tables.base[0].wrapping_add(tables.base[1]).wrapping_mul(2);
    // SAFETY: a matrix with this kernel has whole blocks of 128 columns, and `q8` all of them.
    let (y, z) = unsafe { (work.q8.get_unchecked(at), work.q8.get_unchecked(at + 1)) };
    y.start.wrapping_add(z.start).wrapping_add(base)
}

/// `G` groups of rows from row `i` on.
#[inline(always)]
unsafe fn one_token<L: Lookups, const G: usize>(work: &Work<'_>, out: &mut OutRows<'_>, i: usize) {
    let blocks = work.w.cols() / TABLES_LEN;
    let group = work.w.group(out.first() + i);
    let (stride, group) = (group.len(), group.as_ptr());
    let vector = 64 / L::VECTORS;
    // SAFETY: the caller has the groups, one behind the other; there are tables and activations of all
    // columns.
    unsafe {
        let mut sums = [L::floats(0.0); G];
        for b in 0..blocks {
            let codes = group.add(blocks * 2 * GROUP + b * BLOCK_BYTES);
            // Of these groups or of the next, scales and codes alike, as memory is read in one go.
            let (later, next) = match (b + AHEAD).checked_sub(blocks) {
                Some(b) => (b, G * stride),
                None => (b + AHEAD, 0),
            };
            let later_codes = group.wrapping_add(next + blocks * 2 * GROUP + later * BLOCK_BYTES);
            let tables = work.tables.get_unchecked(b);
            let n = L::block::<G>(tables, start(work, 0, b, tables), |g, v| {
                if v % L::VECTORS == 0 {
                    L::prefetch_line(later_codes.wrapping_add(g * stride + vector * v));
                }
                L::indices(codes.add(g * stride + vector * v))
            });
            for g in 0..G {
                L::prefetch_line(group.wrapping_add(g * stride + next + later * 2 * GROUP));
                let d = L::scales(group.add(g * stride + b * 2 * GROUP));
                sums[g] = L::add_block(sums[g], n[g], d);
            }
        }
        for (g, sum) in sums.into_iter().enumerate() {
            out.put16(0, i + g * GROUP, &L::outputs(sum, work.step(0)));
        }
    }
}

/// `S` sets of `G` groups of rows from row `i` on.
#[inline(always)]
unsafe fn tokens<L: Lookups, const S: usize, const G: usize>(
    work: &Work<'_>,
    out: &mut OutRows<'_>,
    i: usize,
) {
    let blocks = work.w.cols() / TABLES_LEN;
    let group = work.w.group(out.first() + i);
    let (stride, group) = (group.len(), group.as_ptr());
    let mut sums = [[[MaybeUninit::<L::Floats>::uninit(); G]; S]; TOKENS];
    let mut indices = [[[MaybeUninit::<L::Indices>::uninit(); 2 * EIGHTS]; G]; S];
    let mut d = [[MaybeUninit::<L::Floats>::uninit(); G]; S];
    // SAFETY: the caller has the groups, one behind the other; there are tables and activations of all
    // columns and tokens. Of the buffers, only what was written is read.
    unsafe {
        for first in (0..work.tokens).step_by(TOKENS) {
            let sums = &mut sums[..TOKENS.min(work.tokens - first)];
            sums.as_flattened_mut().as_flattened_mut().fill(MaybeUninit::new(L::floats(0.0)));
            for b in 0..blocks {
                for s in 0..S {
                    for g in 0..G {
                        let group = group.add((s * G + g) * stride);
                        d[s][g].write(L::scales(group.add(b * 2 * GROUP)));
                        let codes = group.add(blocks * 2 * GROUP + b * BLOCK_BYTES);
                        for v in 0..EIGHTS * L::VECTORS {
                            indices[s][g][v].write(L::indices(codes.add(64 / L::VECTORS * v)));
                        }
                    }
                }
                for (t, sums) in sums.iter_mut().enumerate() {
                    let tables = work.tables.get_unchecked((first + t) * blocks + b);
                    let start = start(work, first + t, b, tables);
                    for s in 0..S {
                        let n = L::block::<G>(tables, start, |g, v| indices[s][g][v].assume_init());
                        for g in 0..G {
                            let sum = sums[s][g].assume_init();
                            sums[s][g].write(L::add_block(sum, n[g], d[s][g].assume_init()));
                        }
                    }
                }
            }
            for (t, sums) in sums.as_flattened().iter().enumerate() {
                let (t, s) = (first + t / S, t % S);
                for (g, sum) in sums.iter().enumerate() {
                    let outputs = L::outputs(sum.assume_init(), work.step(t));
                    out.put16(t, i + (s * G + g) * GROUP, &outputs);
                }
            }
        }
    }
}
