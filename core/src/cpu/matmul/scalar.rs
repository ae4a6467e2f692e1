//! The reference kernels: plain Rust that every other instruction set equals bit for bit.
//!
//! * Float dot: element `i` goes to running sum `i % 16`: `sum += w * x`, multiplication and addition
//!   rounded one by one, since not every target has a fused multiply-add. [`finish_float`] adds up.
//! * Integer dot: a block of weights makes one exact integer `n = sum of w * q * factor`, in i32; then
//!   `sum += f32(n) * d` with the block's scale `d`, rounded one by one, block after block, and the
//!   result is multiplied by the token's step.
//! * Q8_0 and Q4_0 are the exception: their blocks make eight integers for eight running sums, since
//!   one of Q8_0 would not fit an i32. The weight at position `p` goes to number `p / 4 % 8`;
//!   [`finish`] adds up.
//!
//! No `n` overflows: |w| <= 2 with at most 256 products, or |w| <= 128 with 4, each product at most
//! 127 times 32767, stay below 2^31. What is added up on the way may wrap.
#![forbid(unsafe_code)]

use super::args::MatmulArgs;
use crate::cpu::activations::{Q8Block, q8_blocks};
use crate::cpu::op::{finish, finish_float};
use crate::cpu::parallel::OutputRows;
use crate::quant::{block_integers, block_scale};

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
    for i in start..out.len() {
        if args.w.format().block() == 32 {
            integer_row(args, out, i, lanes, finish);
        } else {
            integer_row(args, out, i, whole, |&[sum]| sum);
        }
    }
}

#[inline(always)]
fn integer_row<const N: usize>(
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
    i: usize,
    integers: impl Fn(&[i8], usize, &[Q8Block]) -> [i32; N],
    finish: impl Fn(&[f32; N]) -> f32,
) {
    let (format, blocks) = (args.w.format(), q8_blocks(args.w.cols()));
    let len = format.block();
    let mut w = [0; 256];
    let w = &mut w[..len];
    for first in (0..args.tokens).step_by(TOKENS) {
        let tokens = TOKENS.min(args.tokens - first);
        let mut sums = [[0.0; N]; TOKENS];
        for b in 0..args.w.cols() / len {
            let mut copy = [0; 66];
            let block = args.w.block(out.first() + i, b, &mut copy);
            block_integers(format, block, w);
            let d = block_scale(format, block);
            for (t, sum) in sums[..tokens].iter_mut().enumerate() {
                let n = integers(w, b * len, &args.q8[(first + t) * blocks..][..blocks]);
                for (sum, n) in sum.iter_mut().zip(n) {
                    *sum += n as f32 * d;
                }
            }
        }
        for (t, sum) in sums[..tokens].iter().enumerate() {
            out.put(first + t, i, finish(sum) * args.step(first + t));
        }
    }
}

/// The integer of the weights `w` at activation `at`.
#[inline(always)]
fn whole(w: &[i8], at: usize, y: &[Q8Block]) -> [i32; 1] {
    let groups = w.as_chunks::<32>().0.iter().enumerate();
    [groups.fold(0, |n, (g, w)| {
        let i = at % 64 + 32 * g;
        let y = &y[at / 64 + i / 64];
        let q = &y.q[i % 64..][..32];
        let dot: i32 = w.iter().zip(q).map(|(&w, &q)| i32::from(w) * i32::from(q)).sum();
        n + dot * y.factor[i % 64 / 32]
    })]
}

/// The eight integers of the 32 weights `w` at activation `at`.
#[inline(always)]
fn lanes(w: &[i8], at: usize, y: &[Q8Block]) -> [i32; 8] {
    let y = &y[at / 64];
    let (q, factor) = (y.q[at % 64..][..32].as_chunks::<4>().0, y.factor[at % 64 / 32]);
    let mut n = [0; 8];
    for ((n, w), q) in n.iter_mut().zip(w.as_chunks::<4>().0).zip(q) {
        let dot: i32 = w.iter().zip(q).map(|(&w, &q)| i32::from(w) * i32::from(q)).sum();
        *n = dot * factor;
    }
    n
}
