//! The reference kernels: plain Rust that every other instruction set equals bit for bit.
//!
//! * Float dot: element `i` goes to running sum `i % 16`: `sum += w * x`, multiplication and addition
//!   rounded one by one, since not every target has a fused multiply-add. [`finish_float`] adds up.
//! * Integer dot: a block of weights makes eight exact integers `n[l] = sum of w * q * factor`, in i32;
//!   then `sum[l] += f32(n[l]) * d` with the block's scale `d`, rounded one by one. [`finish`] adds up,
//!   and the result is multiplied by the token's step. The weight at position `p` of 64 goes to lane
//!   `p / 4 % 8`; positions are natural, or for the formats with sequential 2-bit codes the strided
//!   ones of [`Q8Block`].
//!
//! No `n` overflows: it has at most `|w| <= 128` times 127 times 32767, times 4 products for Q8_0, which
//! is 2^31 less 16 million; the other formats have |w| <= 8 with 4 products, or codes <= 3 with 32.
#![forbid(unsafe_code)]

use super::act::{Q8Block, q8_blocks};
use super::{OutRows, Work};
use crate::quant::{Format, block_integers, block_scale, unpack_exact};

/// Tokens that share one unpacking of the weights.
const TOKENS: usize = 16;

/// Adds up the eight running sums of an integer dot: halves onto each other until one is left.
#[inline(always)]
pub(super) fn finish(sum: &[f32; 8]) -> f32 {
    ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]))
}

/// Adds up the sixteen running sums of a float dot in the same way.
#[inline(always)]
pub(super) fn finish_float(sum: &[f32; 16]) -> f32 {
    finish(&core::array::from_fn(|i| sum[i] + sum[i + 8]))
}

/// Whether the lanes of `format` follow the strided order of the activations.
pub(super) const fn strided(format: Format) -> bool {
    matches!(format, Format::Q2_0 | Format::Pq2_0 | Format::Tq2_0G128)
}

/// f32 activations, every format. `work.x` is (tokens, cols).
#[inline(always)]
pub(super) fn float(work: &Work<'_>, out: &mut OutRows<'_>) {
    const CHUNK: usize = 256; // a multiple of every block
    let (format, cols) = (work.w.format(), work.w.cols());
    let chunk_bytes = CHUNK / format.block() * format.block_bytes();
    let mut w = [0.0; CHUNK];
    for i in 0..out.len() {
        let row = work.w.row(out.first() + i);
        for first in (0..work.tokens).step_by(TOKENS) {
            let tokens = TOKENS.min(work.tokens - first);
            let mut sums = [[0.0; 16]; TOKENS];
            for (packed, at) in row.chunks(chunk_bytes).zip((0..cols).step_by(CHUNK)) {
                let w = &mut w[..CHUNK.min(cols - at)];
                unpack_exact(format, packed, w);
                for (sum, x) in sums[..tokens].iter_mut().zip(work.x[first * cols..].chunks_exact(cols)) {
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

/// Int8 activations, quantized formats. `work.q8` is (tokens, q8_blocks(cols)).
pub(super) fn integer(work: &Work<'_>, out: &mut OutRows<'_>) {
    let (format, blocks) = (work.w.format(), q8_blocks(work.w.cols()));
    let (len, strided) = (format.block(), strided(format));
    let mut w = [0; 256];
    let w = &mut w[..len];
    for i in 0..out.len() {
        let row = work.w.row(out.first() + i);
        for first in (0..work.tokens).step_by(TOKENS) {
            let tokens = TOKENS.min(work.tokens - first);
            let mut sums = [[0.0; 8]; TOKENS];
            for (b, block) in row.chunks_exact(format.block_bytes()).enumerate() {
                block_integers(format, block, w);
                let d = block_scale(format, block);
                for (t, sum) in sums[..tokens].iter_mut().enumerate() {
                    let n = lanes(strided, w, b * len, &work.q8[(first + t) * blocks..][..blocks]);
                    for l in 0..8 {
                        sum[l] += n[l] as f32 * d;
                    }
                }
            }
            for (t, sum) in sums[..tokens].iter().enumerate() {
                out.put(first + t, i, finish(sum) * work.step(first + t));
            }
        }
    }
}

/// The eight integers of the weights `w` at activation `at`.
#[inline(always)]
fn lanes(strided: bool, w: &[i8], at: usize, y: &[Q8Block]) -> [i32; 8] {
    let mut n = [0; 8];
    for (four, w) in w.as_chunks::<4>().0.iter().enumerate() {
        let i = at % 64 + 4 * four;
        let y = &y[at / 64 + i / 64].natural;
        let (q, factor) = (&y.q[i % 64..][..4], i32::from(y.factor[i % 64 / 16 * 2]));
        let product = |k: usize| i32::from(w[k]) * i32::from(q[k]);
        if strided {
            // Activation 4 i + s is at position 16 s + i.
            n[i / 16 % 4] += (product(0) + product(2)) * factor;
            n[4 + i / 16 % 4] += (product(1) + product(3)) * factor;
        } else {
            n[i / 4 % 8] += (product(0) + product(1) + product(2) + product(3)) * factor;
        }
    }
    n
}
