//! Table lookup of activation sums for repacked rows of one bit per weight, with vectors that hold a byte of
//! each of 16 rows several times, for different columns.
#![allow(unsafe_code)]

use core::mem::MaybeUninit;

use super::args::MatmulArgs;
use super::panel_kernel::{PanelKernel, panel_rows};
use super::scalar::integer_from;
use super::token_lanes::{self, FieldLanes, Fields};
use crate::cpu::activation_lut::{ActivationLut, LUT_COLS};
use crate::cpu::parallel::OutputRows;
use crate::cpu::repack::PANEL_ROWS;

/// Groups of rows that share the loads of lookup tables.
const GROUPS: usize = 4;
/// Sets of [`GROUPS`] groups that are multiplied by many tokens before the next ones.
const SETS: usize = 4;
/// Up to so many tokens wait for memory, which is read faster in fewer places: a set at a time.
const FEW: usize = 8;
/// Tokens whose sums are kept at the same time: 32 KB for all sets.
const TOKENS: usize = 32;
/// Groups of eight columns per part.
pub(super) const EIGHTS: usize = 4;
/// Bytes of the codes of 16 rows of 128 columns.
pub(super) const BLOCK_BYTES: usize = PANEL_ROWS * LUT_COLS / 8;

/// Safety: as for [`PanelKernel`].
pub(super) trait LutKernel: PanelKernel {
    /// Vectors that hold a byte of 16 rows of each part.
    const VECTORS: usize;
    /// Prefetch distance in blocks.
    const AHEAD: usize;
    /// The selected sums of 16 rows: of four columns, and of the next four.
    type Indices: Copy;

    /// Unpacks the `64 / VECTORS` bytes at `codes`.
    unsafe fn indices(codes: *const u8) -> Self::Indices;

    /// `start` plus twice the sums, multiplied by their factors, that `G` groups of rows select from `luts`
    /// with their `indices(group, vector)`.
    unsafe fn block<const G: usize>(
        luts: &ActivationLut,
        start: i32,
        indices: impl Fn(usize, usize) -> Self::Indices,
    ) -> [Self::Integers; G];

    /// As [`PanelKernel::prefetch`], but of the address itself and to the L2 cache: the L1 cache has too few
    /// line fill buffers to hide memory latency.
    fn prefetch_line(p: *const u8);
}

/// Fills `out`; without lookup tables, with the reference kernel.
#[inline(always)]
pub(super) unsafe fn rows<L: LutKernel + FieldLanes>(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
    if args.luts.is_empty() {
        return integer_from(0, args, out);
    }
    let end = panel_rows(args, out);
    let mut i = 0;
    // SAFETY: the caller has the instruction set; the groups are there.
    unsafe {
        let done = token_lanes::rows::<L, Fields>(args, out, end, LUT_COLS);
        if args.tokens == 1 {
            while i + GROUPS * PANEL_ROWS <= end {
                one_token::<L, GROUPS>(args, out, i);
                i += GROUPS * PANEL_ROWS;
            }
            while i < end {
                one_token::<L, 1>(args, out, i);
                i += PANEL_ROWS;
            }
        } else if done < args.tokens {
            while args.tokens - done > FEW && i + SETS * GROUPS * PANEL_ROWS <= end {
                tokens::<L, SETS, GROUPS>(args, out, i, done);
                i += SETS * GROUPS * PANEL_ROWS;
            }
            while i + GROUPS * PANEL_ROWS <= end {
                tokens::<L, 1, GROUPS>(args, out, i, done);
                i += GROUPS * PANEL_ROWS;
            }
            while i < end {
                tokens::<L, 1, 1>(args, out, i, done);
                i += PANEL_ROWS;
            }
        }
    }
    integer_from(end, args, out);
}

/// The initial value of block `b` of token `t`, which undoes the shift of its lookup tables.
#[inline(always)]
fn start(args: &MatmulArgs<'_>, t: usize, b: usize, luts: &ActivationLut) -> i32 {
    let at = t * (args.q8.len() / args.tokens) + 2 * b;
    let base = luts.base[0].wrapping_add(luts.base[1]).wrapping_mul(2);
    // SAFETY: a matrix with this kernel has whole blocks of 128 columns, and `q8` all of them.
    let (y, z) = unsafe { (args.q8.get_unchecked(at), args.q8.get_unchecked(at + 1)) };
    y.start.wrapping_add(z.start).wrapping_add(base)
}

/// The block that is `ahead` of block `b`, and how far the groups that it belongs to are away: the next ones at `next`.
#[inline(always)]
pub(super) fn later(ahead: usize, b: usize, blocks: usize, next: usize) -> (usize, usize) {
    match (b + ahead).checked_sub(blocks) {
        Some(b) => (b, next),
        None => (b + ahead, 0),
    }
}

/// Computes `G` groups of rows from row `i` on for one token.
#[inline(always)]
unsafe fn one_token<L: LutKernel, const G: usize>(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>, i: usize) {
    let blocks = args.w.cols() / LUT_COLS;
    let group = args.w.panel(out.first() + i);
    let (stride, group) = (group.len(), group.as_ptr());
    let vector = 64 / L::VECTORS;
    // SAFETY: the caller has the groups, one after the other; there are lookup tables and activations for all
    // columns.
    unsafe {
        let mut sums = [L::floats(0.0); G];
        for b in 0..blocks {
            let codes = group.add(blocks * 2 * PANEL_ROWS + b * BLOCK_BYTES);
            // Lines of these groups or of the next, scales and codes alike, as memory is read sequentially.
            let (later, next) = later(L::AHEAD, b, blocks, G * stride);
            let later_codes = group.wrapping_add(next + blocks * 2 * PANEL_ROWS + later * BLOCK_BYTES);
            let luts = args.luts.get_unchecked(b);
            let n = L::block::<G>(luts, start(args, 0, b, luts), |g, v| {
                if v % L::VECTORS == 0 {
                    L::prefetch_line(later_codes.wrapping_add(g * stride + vector * v));
                }
                L::indices(codes.add(g * stride + vector * v))
            });
            for g in 0..G {
                L::prefetch_line(group.wrapping_add(g * stride + next + later * 2 * PANEL_ROWS));
                let d = L::scales(group.add(g * stride + b * 2 * PANEL_ROWS));
                sums[g] = L::add_block(sums[g], n[g], d);
            }
        }
        for (g, sum) in sums.into_iter().enumerate() {
            out.put_all(0, i + g * PANEL_ROWS, &L::outputs(sum, args.step(0)));
        }
    }
}

/// Computes `S` sets of `G` groups of rows from row `i` on for the tokens after the first `done`.
#[inline(always)]
unsafe fn tokens<L: LutKernel, const S: usize, const G: usize>(
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
    i: usize,
    done: usize,
) {
    let blocks = args.w.cols() / LUT_COLS;
    let group = args.w.panel(out.first() + i);
    let (stride, group) = (group.len(), group.as_ptr());
    let mut sums = [[[MaybeUninit::<L::Floats>::uninit(); G]; S]; TOKENS];
    let mut indices = [[[MaybeUninit::<L::Indices>::uninit(); 2 * EIGHTS]; G]; S];
    let mut d = [[MaybeUninit::<L::Floats>::uninit(); G]; S];
    // SAFETY: the caller has the groups, one after the other; there are lookup tables and activations for all
    // columns and tokens. Only the written part of the buffers is read.
    unsafe {
        for first in (done..args.tokens).step_by(TOKENS) {
            let sums = &mut sums[..TOKENS.min(args.tokens - first)];
            sums.as_flattened_mut().as_flattened_mut().fill(MaybeUninit::new(L::floats(0.0)));
            for b in 0..blocks {
                let (later, next) = later(L::AHEAD, b, blocks, S * G * stride);
                for s in 0..S {
                    for g in 0..G {
                        let group = group.add((s * G + g) * stride);
                        // Many tokens hide that memory is read in many places.
                        if args.tokens - done <= TOKENS {
                            let later =
                                group.wrapping_add(next + blocks * 2 * PANEL_ROWS + later * BLOCK_BYTES);
                            for line in 0..BLOCK_BYTES / 64 {
                                L::prefetch_line(later.wrapping_add(64 * line));
                            }
                            L::prefetch_line(group.wrapping_add(next + b * 2 * PANEL_ROWS));
                        }
                        d[s][g].write(L::scales(group.add(b * 2 * PANEL_ROWS)));
                        let codes = group.add(blocks * 2 * PANEL_ROWS + b * BLOCK_BYTES);
                        for v in 0..EIGHTS * L::VECTORS {
                            indices[s][g][v].write(L::indices(codes.add(64 / L::VECTORS * v)));
                        }
                    }
                }
                for (t, sums) in sums.iter_mut().enumerate() {
                    let luts = args.luts.get_unchecked((first + t) * blocks + b);
                    let start = start(args, first + t, b, luts);
                    for s in 0..S {
                        let n = L::block::<G>(luts, start, |g, v| indices[s][g][v].assume_init());
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
                    let outputs = L::outputs(sum.assume_init(), args.step(t));
                    out.put_all(t, i + (s * G + g) * PANEL_ROWS, &outputs);
                }
            }
        }
    }
}
