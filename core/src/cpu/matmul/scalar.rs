//! The reference kernels: plain Rust that every other instruction set matches bit for bit.
//!
//! * Float dot: element `i` is added to running sum `i % 16`: `sum += w * x`, multiplication and addition
//!   rounded separately, since not every target has a fused multiply-add. [`finish_float`] reduces the sums.
//! * Integer dot: a block of weights yields one exact integer `n = sum of w * q * factor`, in i32; then
//!   `sum += f32(n) * d` with the block's scale `d`, rounded separately, block after block, and the result is
//!   multiplied by the token's step.
//! * Formats with at most 32 weights per scale (Q8_0, Q4_K, Q6_K): each group of 16 or 32 weights yields one
//!   exact integer `n = sum of w * q`, then `sum += (f32(n) * f32(factor)) * d` with the group's scale `d`, every
//!   operation rounded, group after group. A format with minima then adds `sum += (f32(s) * f32(factor)) * m`, where
//!   `m` is the group's minimum and `s` the sum of its `q`. The result is multiplied by the token's step.
//!
//! No `n` overflows: |w| <= 2 with at most 256 products of at most 127 times 32767, or |w| <= 128 with 32 products
//! of at most 127, stay below 2^31, the latter below 2^24, so that they are exact as floats. Intermediate sums may
//! wrap.
#![forbid(unsafe_code)]

use super::args::MatmulArgs;
use crate::cpu::activations::{Q8Block, q8_blocks};
use crate::cpu::op::finish_float;
use crate::cpu::parallel::OutputRows;
use crate::quant::{MAX_BLOCK, block_integers, block_minimum, block_scale};

/// Tokens that share one unpacking of the weights.
const TOKENS: usize = 16;

/// f32 activations, every format. `args.x` is (tokens, cols).
#[inline(always)]
pub(super) fn float(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
    const CHUNK: usize = 256; // a multiple of every block
    let cols = args.w.cols();
    let mut w = [0.0; CHUNK];
    for i in 0..out.len() {
        let row = out.first() + i;
        for first in (0..args.tokens).step_by(TOKENS) {
            let tokens = TOKENS.min(args.tokens - first);
            let mut sums = [[0.0; 16]; TOKENS];
            for at in (0..cols).step_by(CHUNK) {
                let w = &mut w[..CHUNK.min(cols - at)];
                args.w.unpack_part(row, at, w);
                for (sum, x) in sums[..tokens].iter_mut().zip(args.x[first * cols..].chunks_exact(cols)) {
                    dot_float(w, &x[at..at + w.len()], sum);
                }
            }
            for (t, sum) in sums[..tokens].iter().enumerate() {
                out.put(first + t, i, finish_float(sum));
            }
        }
    }
}

#[inline(always)]
pub(super) fn dot_float(w: &[f32], x: &[f32], sum: &mut [f32; 16]) {
    let (w16, w_rest) = w.as_chunks::<16>();
    let (x16, x_rest) = x.as_chunks::<16>();
    for (w, x) in w16.iter().zip(x16) {
        for i in 0..16 {
            sum[i] += w[i] * x[i];
        }
    }
    for ((sum, w), x) in sum.iter_mut().zip(w_rest).zip(x_rest) {
        *sum += w * x;
    }
}

/// Int8 activations, quantized formats. `args.q8` is (tokens, q8_blocks(cols)).
pub(super) fn integer(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
    integer_from(0, args, out);
}

/// [`integer`] for the rows from the `start`-th of `out`.
pub(super) fn integer_from(start: usize, args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
    let format = args.w.format();
    for i in start..out.len() {
        match (format.group(), format.has_minimum()) {
            (..=32, false) => integer_row(args, out, i, groups::<false>),
            (..=32, true) => integer_row(args, out, i, groups::<true>),
            _ => integer_row(args, out, i, whole),
        }
    }
}

/// Maximum number of groups per block of formats with at most 32 weights per scale, for groups of at least 16 weights.
const MAX_GROUPS: usize = MAX_BLOCK / 16;

/// A block of weights, unpacked.
struct Unpacked<'w> {
    integers: &'w [i8],
    /// Weights per group.
    group: usize,
    scales: [f32; MAX_GROUPS],
    minima: [f32; MAX_GROUPS],
}

#[inline(always)]
fn integer_row(
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
    i: usize,
    add_block: impl Fn(&Unpacked<'_>, usize, &[Q8Block], &mut f32),
) {
    let (format, blocks) = (args.w.format(), q8_blocks(args.w.cols()));
    let (len, group) = (format.block(), format.group());
    let mut w = [0; MAX_BLOCK];
    let w = &mut w[..len];
    for first in (0..args.tokens).step_by(TOKENS) {
        let tokens = TOKENS.min(args.tokens - first);
        let mut sums = [0.0; TOKENS];
        for b in 0..args.w.cols() / len {
            let mut copy = [0; 66];
            let packed = args.w.block(out.first() + i, b, &mut copy);
            block_integers(format, packed, w);
            let (mut scales, mut minima) = ([0.0; MAX_GROUPS], [0.0; MAX_GROUPS]);
            for g in 0..len / group {
                scales[g] = block_scale(format, packed, g);
                minima[g] = block_minimum(format, packed, g);
            }
            let block = Unpacked { integers: w, group, scales, minima };
            for (t, sum) in sums[..tokens].iter_mut().enumerate() {
                add_block(&block, b * len, &args.q8[(first + t) * blocks..][..blocks], sum);
            }
        }
        for (t, sum) in sums[..tokens].iter().enumerate() {
            out.put(first + t, i, sum * args.step(first + t));
        }
    }
}

/// Adds a block at activation `at` as one integer.
#[inline(always)]
fn whole(block: &Unpacked<'_>, at: usize, y: &[Q8Block], sum: &mut f32) {
    let runs = block.integers.as_chunks::<32>().0.iter().enumerate();
    let n = runs.fold(0, |n, (g, w)| {
        let i = at % 64 + 32 * g;
        let y = &y[at / 64 + i / 64];
        let q = &y.q[i % 64..][..32];
        let dot: i32 = w.iter().zip(q).map(|(&w, &q)| i32::from(w) * i32::from(q)).sum();
        n + dot * y.factor[i % 64 / 32]
    });
    *sum += n as f32 * block.scales[0];
}

/// Adds each group of a block at activation `at` as one integer, with its minimum if `MINIMUM`.
#[inline(always)]
fn groups<const MINIMUM: bool>(block: &Unpacked<'_>, at: usize, y: &[Q8Block], sum: &mut f32) {
    for (g, w) in block.integers.chunks_exact(block.group).enumerate() {
        let at = at + block.group * g;
        let y = &y[at / 64];
        let (q, factor) = (&y.q[at % 64..], y.factor[at % 64 / 32] as f32);
        let (mut n, mut s) = (0, 0);
        for (w, q) in w.iter().zip(q) {
            n += i32::from(*w) * i32::from(*q);
            s += i32::from(*q);
        }
        *sum += n as f32 * factor * block.scales[g];
        if MINIMUM {
            *sum += s as f32 * factor * block.minima[g];
        }
    }
}
