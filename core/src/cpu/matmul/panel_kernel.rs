//! The loops around repacked rows whose codes are multiplied, one lane per row: for one token, or for a tile
//! of tokens for which the weights are unpacked once. No sum ever crosses lanes.
#![allow(unsafe_code)]

use core::mem::MaybeUninit;

use super::args::MatmulArgs;
use super::scalar::integer_from;
use crate::cpu::activations::{Q8_LEN, Q8Block, q8_blocks};
use crate::cpu::parallel::OutputRows;
use crate::cpu::repack::PANEL_ROWS;

/// Columns that share a factor of the activations.
pub(super) const PART: usize = 32;
/// Groups of four columns that a part is unpacked to.
pub(super) const QUADS: usize = PART / 4;
/// Columns that are unpacked at once in a product with many tokens: 8 KB, a quarter of the L1 cache.
const CHUNK: usize = 512;
/// Tokens that share one unpacking of the weights.
const TOKENS: usize = 128;

/// The instance of a kernel, generic over bits per code and columns per block, that serves a 2-bit `format`
/// in [`Layout::Panels32`](crate::cpu::repack::Layout::Panels32). An optional first argument serves one bit
/// in [`Layout::Panels8`](crate::cpu::repack::Layout::Panels8).
#[allow(unused_macros, reason = "not every target has an instruction set that uses it")]
macro_rules! kernel_of {
    ($one_bit:ident, $kernel:ident, $format:expr, $layout:expr) => {
        match ($format, $layout) {
            ($crate::quant::Format::Q1_0, $crate::cpu::repack::Layout::Panels8) => Some($one_bit),
            _ => kernel_of!($kernel, $format, $layout),
        }
    };
    ($kernel:ident, $format:expr, $layout:expr) => {
        match ($format, $layout) {
            ($crate::quant::Format::Q2_0, $crate::cpu::repack::Layout::Panels32) => Some($kernel::<2, 64>),
            ($crate::quant::Format::Pq2_0, $crate::cpu::repack::Layout::Panels32) => Some($kernel::<2, 128>),
            ($crate::quant::Format::Tq2_0, $crate::cpu::repack::Layout::Panels32) => Some($kernel::<2, 256>),
            _ => None,
        }
    };
}
#[allow(unused_imports, reason = "not every target has an instruction set that uses it")]
pub(super) use kernel_of;

/// The vectors of an instruction set, each over 16 rows. The codes of `BITS` bits have zero point 1.
///
/// Safety: all functions need the instruction set, and pointers to as much as they document.
pub(super) trait PanelKernel {
    /// The packed codes of 32 columns.
    type Part<const BITS: usize>: Copy;
    /// The codes of 4 columns, one per byte.
    type Quad: Copy;
    /// The sums of the products of 32 columns.
    type Sums: Copy;
    /// 16 integers.
    type Integers: Copy;
    /// 16 floats.
    type Floats: Copy;

    /// Columns `32 p .. 32 p + 32` of the group's `codes`.
    unsafe fn part<const BITS: usize>(codes: *const u8, p: usize) -> Self::Part<BITS>;
    /// Columns `4 s .. 4 s + 4` of a part.
    unsafe fn quad<const BITS: usize>(part: Self::Part<BITS>, s: usize) -> Self::Quad;
    unsafe fn no_sums() -> Self::Sums;
    /// Adds the products of a part with the 32 activations at each `q`.
    unsafe fn add_part<const T: usize>(
        sums: &mut [Self::Sums; T],
        quad: impl Fn(usize) -> Self::Quad,
        q: [*const i8; T],
    );
    /// The products of a part, as it is packed, with the 32 activations at `q`.
    #[inline(always)]
    unsafe fn part_sums<const BITS: usize>(part: Self::Part<BITS>, q: *const i8) -> Self::Sums {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [Self::no_sums()];
            Self::add_part(&mut sums, |s| Self::quad::<BITS>(part, s), [q]);
            sums[0]
        }
    }
    /// `n` in every lane.
    unsafe fn integers(n: i32) -> Self::Integers;
    /// `n + sums * factor`.
    unsafe fn add_sums(n: Self::Integers, sums: Self::Sums, factor: i32) -> Self::Integers;
    /// `x` in every lane.
    unsafe fn floats(x: f32) -> Self::Floats;
    /// 16 scales at `p`.
    unsafe fn scales(p: *const u8) -> Self::Floats;
    /// `sum + n * d`, each operation rounded.
    unsafe fn add_block(sum: Self::Floats, n: Self::Integers, d: Self::Floats) -> Self::Floats;
    /// `sum * step`.
    unsafe fn outputs(sum: Self::Floats, step: f32) -> [f32; PANEL_ROWS];
    /// [`PanelKernel::integers`] for each token. From here to [`PanelKernel::add_blocks`], those of two tokens may lie
    /// interleaved, as may the sums of [`PanelKernel::add_part`].
    #[inline(always)]
    unsafe fn all_integers<const T: usize>(n: [i32; T]) -> [Self::Integers; T] {
        // SAFETY: the caller's promise.
        unsafe {
            let mut all = [Self::integers(0); T];
            for t in 0..T {
                all[t] = Self::integers(n[t]);
            }
            all
        }
    }
    /// [`PanelKernel::add_sums`] for each token.
    #[inline(always)]
    unsafe fn add_all_sums<const T: usize>(
        n: &mut [Self::Integers; T],
        sums: [Self::Sums; T],
        factor: [i32; T],
    ) {
        for t in 0..T {
            // SAFETY: the caller's promise.
            n[t] = unsafe { Self::add_sums(n[t], sums[t], factor[t]) };
        }
    }
    /// [`PanelKernel::add_block`] for each token's sum at `sums`.
    #[inline(always)]
    unsafe fn add_blocks<const T: usize>(sums: *mut Self::Floats, n: [Self::Integers; T], d: Self::Floats) {
        for (t, n) in n.into_iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe {
                let sum = sums.add(t);
                *sum = Self::add_block(*sum, n, d);
            }
        }
    }
    /// Prefetches ahead of `p`, which may be any address.
    fn prefetch(p: *const u8);
}

/// The rows of `out` that are in panels.
pub(super) fn panel_rows(args: &MatmulArgs<'_>, out: &OutputRows<'_>) -> usize {
    args.w.rows_in_panels().saturating_sub(out.first()).min(out.len()) / PANEL_ROWS * PANEL_ROWS
}

/// Fills `out`, for codes of `BITS` bits in blocks of `BLOCK`, with the sums of `T` tokens in registers. The rows
/// in panels of the first `done` tokens are not computed.
#[inline(always)]
pub(super) unsafe fn rows<W: PanelKernel, const BITS: usize, const BLOCK: usize, const T: usize>(
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
    done: usize,
) {
    let end = panel_rows(args, out);
    for i in (0..end).step_by(PANEL_ROWS) {
        // SAFETY: the caller has the instruction set, and the group is there.
        unsafe {
            if args.tokens == 1 {
                gemv::<W, BITS, BLOCK>(args, out, i);
            } else if done < args.tokens {
                gemm::<W, BITS, BLOCK, T>(args, out, i, done);
            }
        }
    }
    integer_from(end, args, out);
}

/// The initial value of a block.
#[inline(always)]
pub(super) unsafe fn start<W: PanelKernel, const BLOCK: usize>(y: *const Q8Block) -> W::Integers {
    // SAFETY: the caller has the instruction set, and the activations of the block.
    unsafe { W::integers(first::<BLOCK>(y)) }
}

/// The initial value of a block, once.
#[inline(always)]
unsafe fn first<const BLOCK: usize>(y: *const Q8Block) -> i32 {
    let mut start = 0i32;
    for i in 0..BLOCK / Q8_LEN {
        // SAFETY: the caller has the activations of the block.
        start = start.wrapping_add(unsafe { (*y.add(i)).start });
    }
    start
}

/// The activations of part `p` from `y` on, and their factor.
#[inline(always)]
unsafe fn activations(y: *const Q8Block, p: usize) -> (*const i8, i32) {
    // SAFETY: the caller has the part.
    let y = unsafe { &*y.add(p / 2) };
    (y.q[p % 2 * PART..].as_ptr(), y.factor[p % 2])
}

/// Computes 16 rows from row `i` for one token.
#[inline(always)]
unsafe fn gemv<W: PanelKernel, const BITS: usize, const BLOCK: usize>(
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
    i: usize,
) {
    let blocks = args.w.cols() / BLOCK;
    let group = args.w.panel(out.first() + i).as_ptr();
    let bytes = PANEL_ROWS * (2 + BITS * BLOCK / 8);
    let mut y = args.q8.as_ptr();
    // SAFETY: the caller has the instruction set and the group; `y` has all columns.
    unsafe {
        let codes = group.add(blocks * 2 * PANEL_ROWS);
        let mut sum = W::floats(0.0);
        for b in 0..blocks {
            // Scales and codes alike, as memory is read sequentially.
            for line in 0..bytes.div_ceil(64) {
                W::prefetch(group.wrapping_add(b * bytes + 64 * line));
            }
            let mut n = start::<W, BLOCK>(y);
            for p in 0..BLOCK / PART {
                let part = W::part::<BITS>(codes, b * (BLOCK / PART) + p);
                let (q, factor) = activations(y, p);
                n = W::add_sums(n, W::part_sums::<BITS>(part, q), factor);
            }
            y = y.add(BLOCK / Q8_LEN);
            sum = W::add_block(sum, n, W::scales(group.add(b * 2 * PANEL_ROWS)));
        }
        out.put_all(0, i, &W::outputs(sum, args.step(0)));
    }
}

/// Computes 16 rows from row `i` for the tokens after the first `done`.
#[inline(always)]
unsafe fn gemm<W: PanelKernel, const BITS: usize, const BLOCK: usize, const T: usize>(
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
    i: usize,
    done: usize,
) {
    let cols = args.w.cols();
    let stride = q8_blocks(cols);
    let group = args.w.panel(out.first() + i).as_ptr();
    // SAFETY: the caller has the instruction set and the group; each token has `stride` blocks of
    // activations. Only the written part of the buffers is read.
    unsafe {
        let codes = group.add(cols / BLOCK * 2 * PANEL_ROWS);
        let mut quads = [MaybeUninit::<W::Quad>::uninit(); CHUNK / 4];
        let mut d = [MaybeUninit::<W::Floats>::uninit(); CHUNK / 64];
        let mut sums = [MaybeUninit::<W::Floats>::uninit(); TOKENS];
        for first in (done..args.tokens).step_by(TOKENS) {
            let tokens = TOKENS.min(args.tokens - first);
            sums[..tokens].fill(MaybeUninit::new(W::floats(0.0)));
            for at in (0..cols).step_by(CHUNK) {
                let len = CHUNK.min(cols - at);
                // The next tokens find them in a cache.
                if first == done {
                    let bytes = PANEL_ROWS * (2 + BITS * BLOCK / 8) * (len / BLOCK);
                    let chunk = group.wrapping_add(PANEL_ROWS * (2 + BITS * BLOCK / 8) * (at / BLOCK));
                    for line in 0..bytes.div_ceil(64) {
                        W::prefetch(chunk.wrapping_add(64 * line));
                    }
                }
                for p in 0..len / PART {
                    let part = W::part::<BITS>(codes, at / PART + p);
                    for s in 0..QUADS {
                        quads[p * QUADS + s].write(W::quad::<BITS>(part, s));
                    }
                }
                for b in 0..len / BLOCK {
                    d[b].write(W::scales(group.add((at / BLOCK + b) * 2 * PANEL_ROWS)));
                }
                let tile = Tile {
                    quads: quads.as_ptr().cast(),
                    d: d.as_ptr().cast(),
                    blocks: len / BLOCK,
                    y: args.q8.as_ptr().add(first * stride + at / Q8_LEN),
                    stride,
                };
                let sums = sums.as_mut_ptr().cast();
                let mut t = 0;
                while t + T <= tokens {
                    tile.add::<W, BLOCK, T>(t, sums);
                    t += T;
                }
                while t + 2 <= tokens {
                    tile.add::<W, BLOCK, 2>(t, sums);
                    t += 2;
                }
                if t < tokens {
                    tile.add::<W, BLOCK, 1>(t, sums);
                }
            }
            for (t, sum) in sums[..tokens].iter().enumerate() {
                let outputs = W::outputs(sum.assume_init(), args.step(first + t));
                out.put_all(first + t, i, &outputs);
            }
        }
    }
}

/// Some columns of 16 rows, unpacked, and the activations of the same columns.
struct Tile<Q, F> {
    /// `(blocks, BLOCK / 4)`
    quads: *const Q,
    /// `(blocks)`
    d: *const F,
    blocks: usize,
    /// `(tokens, stride)`
    y: *const Q8Block,
    stride: usize,
}

impl<Q, F> Tile<Q, F> {
    /// Adds the products with tokens `t .. t + T` to their `sums`.
    #[inline(always)]
    unsafe fn add<W: PanelKernel<Quad = Q, Floats = F>, const BLOCK: usize, const T: usize>(
        &self,
        t: usize,
        sums: *mut F,
    ) where
        Q: Copy,
        F: Copy,
    {
        // SAFETY: the caller has the instruction set, the tokens and their sums.
        unsafe {
            for b in 0..self.blocks {
                let y = self.y.add(t * self.stride + b * (BLOCK / Q8_LEN));
                let quads = self.quads.add(b * (BLOCK / 4));
                let mut start = [0; T];
                for i in 0..T {
                    start[i] = first::<BLOCK>(y.add(i * self.stride));
                }
                let mut n = W::all_integers(start);
                for p in 0..BLOCK / PART {
                    let mut q = [core::ptr::null(); T];
                    let mut factor = [0; T];
                    for i in 0..T {
                        (q[i], factor[i]) = activations(y.add(i * self.stride), p);
                    }
                    let mut part = [W::no_sums(); T];
                    W::add_part(&mut part, |s| *quads.add(p * QUADS + s), q);
                    W::add_all_sums(&mut n, part, factor);
                }
                W::add_blocks(sums.add(t), n, *self.d.add(b));
            }
        }
    }
}
