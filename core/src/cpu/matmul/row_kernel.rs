//! The loops around an integer dot product, for instruction sets with registers of up to 256 bits: either a
//! few rows share the activations of one token, or a tile of rows and tokens keeps its sums in registers
//! while the weights are unpacked once for many tokens.
#![allow(unsafe_code)]

use super::args::MatmulArgs;
use crate::cpu::activations::{Q8Block, q8_blocks};
use crate::cpu::parallel::OutputRows;

/// Tokens that share one unpacking of the weights.
const TOKEN_BLOCK: usize = 32;
/// Steps of a row that are unpacked at once.
const STEPS: usize = 16;

/// A format's dot product in one instruction set. A block of weights is `PARTS` steps, a step `VECTORS` times
/// 64 weights.
///
/// Safety: all functions need the instruction set, a whole block of weights at `block`, and `VECTORS` blocks
/// of activations at `y`.
pub(super) trait RowKernel {
    /// Bytes of a block.
    const BYTES: usize;
    const PARTS: usize;
    const VECTORS: usize;
    /// Rows that share the activations of one token.
    const GEMV_ROWS: usize;
    /// Rows and tokens of a tile.
    const ROWS: usize;
    const TOKENS: usize;

    /// The unpacked weights of a step; all-zero bits must be valid.
    type Codes: Copy;
    /// The activations of a step.
    type Acts: Copy;
    /// `n` of `scalar.rs`, possibly not fully reduced.
    type Integers: Copy;
    /// The scale of a block; all-zero bits must be valid.
    type Scale: Copy;
    /// The running sums of `scalar.rs`, one or eight.
    type Sum: Copy;

    unsafe fn codes(block: *const u8, part: usize) -> Self::Codes;
    unsafe fn scale(block: *const u8) -> Self::Scale;
    unsafe fn acts(y: *const Q8Block) -> Self::Acts;
    unsafe fn dot(codes: Self::Codes, acts: Self::Acts) -> Self::Integers;
    unsafe fn add(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    unsafe fn zero() -> Self::Sum;
    /// `sum + n * scale`, each operation rounded.
    unsafe fn add_block(sum: Self::Sum, n: Self::Integers, scale: Self::Scale) -> Self::Sum;
    unsafe fn finish(sum: Self::Sum) -> f32;
    /// Prefetches ahead of the bytes at `p`, which may be any address.
    fn prefetch(p: *const u8, bytes: usize);
}

/// Fills `out`. `R` and `T` are `D::ROWS` and `D::TOKENS`, `G` is `D::GEMV_ROWS`.
#[inline(always)]
pub(super) unsafe fn rows<D: RowKernel, const G: usize, const R: usize, const T: usize>(
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
) {
    const { assert!(G == D::GEMV_ROWS && R == D::ROWS && T == D::TOKENS) };
    let mut i = 0;
    // SAFETY: the caller has the instruction set.
    unsafe {
        while i < out.len() {
            let left = out.len() - i;
            i += match args.tokens {
                1 if left >= G => gemv::<D, G>(args, out, i),
                1 => gemv::<D, 1>(args, out, i),
                _ if left >= R => gemm::<D, R, T>(args, out, i),
                _ => gemm::<D, 1, T>(args, out, i),
            };
        }
    }
}

/// Computes R rows from row `i` for one token; returns R.
#[inline(always)]
unsafe fn gemv<D: RowKernel, const R: usize>(
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
    i: usize,
) -> usize {
    let row_bytes = args.w.row_bytes();
    let base = args.w.row(out.first() + i).as_ptr();
    let mut y = args.q8.as_ptr();
    // SAFETY: the caller has the instruction set and R rows; `y` has `VECTORS` blocks for each step.
    unsafe {
        let mut sums = [D::zero(); R];
        for at in (0..row_bytes).step_by(D::BYTES) {
            D::prefetch(base.wrapping_add(at * R), D::BYTES * R);
            let first = D::acts(y);
            let second = if D::PARTS == 2 { D::acts(y.add(D::VECTORS)) } else { first };
            y = y.add(D::VECTORS * D::PARTS);
            for r in 0..R {
                let block = base.add(r * row_bytes + at);
                let mut n = D::dot(D::codes(block, 0), first);
                if D::PARTS == 2 {
                    n = D::add(n, D::dot(D::codes(block, 1), second));
                }
                sums[r] = D::add_block(sums[r], n, D::scale(block));
            }
        }
        for r in 0..R {
            out.put(0, i + r, D::finish(sums[r]) * args.step(0));
        }
    }
    R
}

/// Computes R rows from row `i` for many tokens; returns R.
#[inline(always)]
unsafe fn gemm<D: RowKernel, const R: usize, const T: usize>(
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
    i: usize,
) -> usize {
    let row_bytes = args.w.row_bytes();
    let blocks = row_bytes / D::BYTES;
    let y_blocks = q8_blocks(args.w.cols());
    let base = args.w.row(out.first() + i).as_ptr();
    // SAFETY: the caller has the instruction set and R rows; each token has `y_blocks` blocks, `VECTORS`
    // for each step.
    unsafe {
        let mut codes: [[D::Codes; R]; STEPS] = core::mem::zeroed();
        let mut scales: [[D::Scale; R]; STEPS] = core::mem::zeroed();
        for first in (0..args.tokens).step_by(TOKEN_BLOCK) {
            let tokens = TOKEN_BLOCK.min(args.tokens - first);
            let mut sums = [[D::zero(); R]; TOKEN_BLOCK];
            for start in (0..blocks).step_by(STEPS / D::PARTS) {
                let n = (STEPS / D::PARTS).min(blocks - start);
                for r in 0..R {
                    for b in 0..n {
                        let block = base.add(r * row_bytes + (start + b) * D::BYTES);
                        for part in 0..D::PARTS {
                            codes[b * D::PARTS + part][r] = D::codes(block, part);
                        }
                        scales[b][r] = D::scale(block);
                    }
                }
                let (codes, scales) = (&codes[..n * D::PARTS], &scales[..n]);
                let y = args.q8.as_ptr().add(first * y_blocks + start * D::PARTS * D::VECTORS);
                let mut t = 0;
                while t + T <= tokens {
                    tile::<D, R, T>(codes, scales, y.add(t * y_blocks), y_blocks, &mut sums[t..]);
                    t += T;
                }
                while t < tokens {
                    tile::<D, R, 1>(codes, scales, y.add(t * y_blocks), y_blocks, &mut sums[t..]);
                    t += 1;
                }
            }
            for t in 0..tokens {
                for r in 0..R {
                    out.put(first + t, i + r, D::finish(sums[t][r]) * args.step(first + t));
                }
            }
        }
    }
    R
}

/// Adds to the sums of R rows and T tokens.
#[inline(always)]
unsafe fn tile<D: RowKernel, const R: usize, const T: usize>(
    codes: &[[D::Codes; R]],
    scales: &[[D::Scale; R]],
    y: *const Q8Block,
    y_blocks: usize,
    sums: &mut [[D::Sum; R]],
) {
    // SAFETY: the caller has the instruction set, and T tokens of `VECTORS` blocks a step, `y_blocks`
    // apart, at `y`.
    unsafe {
        let mut tile: [[D::Sum; R]; T] = core::array::from_fn(|t| sums[t]);
        for (b, (codes, scales)) in codes.chunks_exact(D::PARTS).zip(scales).enumerate() {
            for t in 0..T {
                let y = y.add(t * y_blocks + b * D::PARTS * D::VECTORS);
                let first = D::acts(y);
                let second = if D::PARTS == 2 { D::acts(y.add(D::VECTORS)) } else { first };
                for r in 0..R {
                    let mut n = D::dot(codes[0][r], first);
                    if D::PARTS == 2 {
                        n = D::add(n, D::dot(codes[1][r], second));
                    }
                    tile[t][r] = D::add_block(tile[t][r], n, scales[r]);
                }
            }
        }
        sums[..T].copy_from_slice(&tile);
    }
}
