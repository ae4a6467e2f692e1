//! The loops around products of formats with at most 32 weights per scale, for every instruction set. A row
//! is runs of 32 weights. For one token, a few rows share its activations; for several, the runs of a few
//! rows are unpacked once for all tokens.
#![allow(unsafe_code)]

use super::args::{Kernel, MatmulArgs};
use super::run_format::{RunFormat, WithFormat, with_format};
use crate::cpu::activations::{Q8Block, q8_blocks};
use crate::cpu::op::finish;
use crate::cpu::parallel::OutputRows;
use crate::quant::{Block, Format, MAX_BLOCK};

/// Weights in a run.
const RUN: usize = 32;
/// Most groups per block.
pub(super) const MAX_GROUPS: usize = MAX_BLOCK / 16;
/// Runs of a row that are unpacked at once.
const RUNS: usize = 32;
/// Tokens that share one unpacking of the weights.
const TOKEN_BLOCK: usize = 32;

/// What an instruction set does with runs.
///
/// Safety: all functions need the instruction set and as many bytes at a pointer as they say.
pub(super) trait RunIsa {
    /// 32 bytes.
    type Bytes: Copy;
    /// 32 integers of weights, ready to be multiplied.
    type Codes: Copy;
    /// The activations of a run.
    type Acts: Copy;
    /// Eight floats.
    type Floats: Copy;

    /// The 32 bytes at `p`.
    unsafe fn load(p: *const u8) -> Self::Bytes;
    /// The low nibbles of 16 bytes at `p`, then the high ones.
    unsafe fn nibbles(p: *const u8) -> Self::Bytes;
    /// `(x >> shift) & mask` of each byte; `mask` has at most `8 - shift` bits.
    unsafe fn field(x: Self::Bytes, shift: usize, mask: u8) -> Self::Bytes;
    /// `x << shift` of each byte, which overflows no byte.
    unsafe fn shl(x: Self::Bytes, shift: usize) -> Self::Bytes;
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// `value` where bit j of `bits` is set, else 0, as byte j.
    unsafe fn bits(bits: u32, value: u8) -> Self::Bytes;
    /// Each byte, below 16, replaced by its element of `table`.
    unsafe fn look_up(table: &[i8; 16], x: Self::Bytes) -> Self::Bytes;
    /// Exchanges bytes 8 to 15 with bytes 16 to 23.
    unsafe fn swap_middle(x: Self::Bytes) -> Self::Bytes;
    /// The f16 in the two bytes at `p`.
    unsafe fn f16(p: *const u8) -> f32;

    /// Integers to multiply; not negative unless `SIGNED`.
    unsafe fn codes<const SIGNED: bool>(x: Self::Bytes) -> Self::Codes;
    /// The 32 activations at `q` with their factor, for weights to which `zero` was added.
    unsafe fn acts(q: *const i8, factor: i32, zero: i8) -> Self::Acts;
    /// The sums of four activations each, times their factor.
    unsafe fn sums(acts: Self::Acts) -> Self::Floats;
    /// The eight `n` of `scalar.rs`.
    unsafe fn dot<const SIGNED: bool>(w: Self::Codes, acts: Self::Acts) -> Self::Floats;
    /// `a` in the first four lanes, `b` in the others.
    unsafe fn lanes(a: f32, b: f32) -> Self::Floats;
    /// `sum + a * b`, each operation rounded.
    unsafe fn add(sum: Self::Floats, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    unsafe fn store(sum: Self::Floats) -> [f32; 8];
    /// Prefetches ahead of the bytes at `p`, which may be any address.
    fn prefetch(p: *const u8, bytes: usize);
}

/// The kernels of an instruction set: [`rows`] compiled for it.
pub(super) trait RunKernels {
    fn kernel<F: RunFormat>() -> Kernel;
}

/// The kernel for `format`, if it has at most 32 weights per scale.
pub(super) fn of<K: RunKernels>(format: Format) -> Option<Kernel> {
    struct Of<K>(core::marker::PhantomData<K>);
    impl<K: RunKernels> WithFormat for Of<K> {
        type Output = Kernel;

        fn with<F: RunFormat>(self) -> Kernel {
            K::kernel::<F>()
        }
    }
    with_format(format, Of::<K>(core::marker::PhantomData))
}

/// Fills `out` in tiles of `R` rows and `T` tokens, or of `G` rows for one token.
///
/// Safety: the caller has the instruction set.
#[inline(always)]
pub(super) unsafe fn rows<I: RunIsa, F: RunFormat, const G: usize, const R: usize, const T: usize>(
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
) {
    let mut i = 0;
    // SAFETY: the caller has the instruction set.
    unsafe {
        while i < out.len() {
            let left = out.len() - i;
            i += match args.tokens {
                1 if left >= G => gemv::<I, F, G>(args, out, i),
                1 => gemv::<I, F, 1>(args, out, i),
                _ if left >= R => gemm::<I, F, R, T>(args, out, i),
                _ => gemm::<I, F, 1, T>(args, out, i),
            };
        }
    }
}

/// The activations of run `run` of a token, for weights of `F`.
#[inline(always)]
unsafe fn acts<I: RunIsa, F: RunFormat>(y: *const Q8Block, run: usize) -> I::Acts {
    // SAFETY: the caller has the instruction set, and this run.
    unsafe {
        let (y, half) = (&*y.add(run / 2), run % 2);
        I::acts(y.q.as_ptr().add(RUN * half), y.factor[half], F::ZERO)
    }
}

/// The values of `groups` for the weights of run `run`.
#[inline(always)]
unsafe fn of_run<I: RunIsa, B: Block>(groups: &[f32; MAX_GROUPS], run: usize) -> I::Floats {
    let (first, second) = (run * RUN / B::GROUP, (run * RUN + 16) / B::GROUP);
    // SAFETY: the caller has the instruction set.
    unsafe { I::lanes(groups[first], groups[second]) }
}

/// Computes R rows from row `i` for one token; returns R.
#[inline(always)]
unsafe fn gemv<I: RunIsa, F: RunFormat, const R: usize>(
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
    i: usize,
) -> usize {
    let row_bytes = args.w.row_bytes();
    let base = args.w.row(out.first() + i).as_ptr();
    let per_block = F::Block::LEN / RUN;
    // SAFETY: the caller has the instruction set and R rows; the token has as many runs.
    unsafe {
        let mut sums = [I::lanes(0.0, 0.0); R];
        for b in 0..row_bytes / F::Block::BYTES {
            let block = |r: usize| base.wrapping_add(r * row_bytes + b * F::Block::BYTES);
            I::prefetch(base.wrapping_add(b * F::Block::BYTES * R), F::Block::BYTES * R);
            let mut scales = [[[0.0; MAX_GROUPS]; 2]; R];
            for r in 0..R {
                scales[r] = F::scales::<I>(block(r));
            }
            for run in 0..per_block {
                let acts = acts::<I, F>(args.q8.as_ptr(), b * per_block + run);
                for r in 0..R {
                    let n = dot::<I, F>(codes::<I, F>(block(r), run), acts);
                    sums[r] = I::add(sums[r], n, of_run::<I, F::Block>(&scales[r][0], run));
                    if F::Block::MINIMUM {
                        let minimum = of_run::<I, F::Block>(&scales[r][1], run);
                        sums[r] = I::add(sums[r], I::sums(acts), minimum);
                    }
                }
            }
        }
        for r in 0..R {
            out.put(0, i + r, finish(&I::store(sums[r])) * args.step(0));
        }
    }
    R
}

/// Run `run` of a block, ready to be multiplied.
#[inline(always)]
unsafe fn codes<I: RunIsa, F: RunFormat>(block: *const u8, run: usize) -> I::Codes {
    // SAFETY: the caller has the instruction set and the block.
    unsafe {
        let x = F::run::<I>(block, run);
        if F::SIGNED { I::codes::<true>(x) } else { I::codes::<false>(x) }
    }
}

#[inline(always)]
unsafe fn dot<I: RunIsa, F: RunFormat>(w: I::Codes, acts: I::Acts) -> I::Floats {
    // SAFETY: the caller has the instruction set.
    unsafe { if F::SIGNED { I::dot::<true>(w, acts) } else { I::dot::<false>(w, acts) } }
}

/// Unpacked runs of R rows.
struct Unpacked<I: RunIsa, const R: usize> {
    codes: [[I::Codes; R]; RUNS],
    scales: [[I::Floats; R]; RUNS],
    minima: [[I::Floats; R]; RUNS],
}

/// Computes R rows from row `i` for many tokens; returns R.
#[inline(always)]
unsafe fn gemm<I: RunIsa, F: RunFormat, const R: usize, const T: usize>(
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
    i: usize,
) -> usize {
    let row_bytes = args.w.row_bytes();
    let (runs, per_block) = (args.w.cols() / RUN, F::Block::LEN / RUN);
    let base = args.w.row(out.first() + i).as_ptr();
    // SAFETY: the caller has the instruction set and R rows; each token has as many runs. All-zero bits are
    // valid for vectors.
    unsafe {
        let mut w: Unpacked<I, R> = core::mem::zeroed();
        for first in (0..args.tokens).step_by(TOKEN_BLOCK) {
            let tokens = TOKEN_BLOCK.min(args.tokens - first);
            let mut sums = [[I::lanes(0.0, 0.0); R]; TOKEN_BLOCK];
            for start in (0..runs).step_by(RUNS) {
                let n = RUNS.min(runs - start);
                for r in 0..R {
                    for b in 0..n / per_block {
                        let block = base.add(r * row_bytes + (start / per_block + b) * F::Block::BYTES);
                        let scales = F::scales::<I>(block);
                        for run in 0..per_block {
                            let at = b * per_block + run;
                            w.codes[at][r] = codes::<I, F>(block, run);
                            w.scales[at][r] = of_run::<I, F::Block>(&scales[0], run);
                            if F::Block::MINIMUM {
                                w.minima[at][r] = of_run::<I, F::Block>(&scales[1], run);
                            }
                        }
                    }
                }
                let y_blocks = q8_blocks(args.w.cols());
                let y = args.q8.as_ptr().add(first * y_blocks + start / 2);
                let mut t = 0;
                while t + T <= tokens {
                    tile::<I, F, R, T>(&w, n, y.add(t * y_blocks), y_blocks, &mut sums[t..]);
                    t += T;
                }
                while t < tokens {
                    tile::<I, F, R, 1>(&w, n, y.add(t * y_blocks), y_blocks, &mut sums[t..]);
                    t += 1;
                }
            }
            for t in 0..tokens {
                for r in 0..R {
                    out.put(first + t, i + r, finish(&I::store(sums[t][r])) * args.step(first + t));
                }
            }
        }
    }
    R
}

/// Adds `n` runs to the sums of R rows and of T tokens, which are `y_blocks` apart at `y`.
#[inline(always)]
unsafe fn tile<I: RunIsa, F: RunFormat, const R: usize, const T: usize>(
    w: &Unpacked<I, R>,
    n: usize,
    y: *const Q8Block,
    y_blocks: usize,
    sums: &mut [[I::Floats; R]],
) {
    // SAFETY: the caller has the instruction set and these runs.
    unsafe {
        let mut tile: [[I::Floats; R]; T] = core::array::from_fn(|t| sums[t]);
        let runs = w.codes.iter().zip(&w.scales).zip(&w.minima).take(n);
        for (run, ((codes, scales), minima)) in runs.enumerate() {
            for t in 0..T {
                let acts = acts::<I, F>(y.add(t * y_blocks), run);
                for r in 0..R {
                    tile[t][r] = I::add(tile[t][r], dot::<I, F>(codes[r], acts), scales[r]);
                    if F::Block::MINIMUM {
                        tile[t][r] = I::add(tile[t][r], I::sums(acts), minima[r]);
                    }
                }
            }
        }
        sums[..T].copy_from_slice(&tile);
    }
}
