//! The reference kernels: plain Rust that every other instruction set equals bit for bit.
//!
//! Sixteen running sums per output, added up at the end by [`finish`]; multiplications and additions
//! are rounded one by one, since not every target has a fused multiply-add.
//!
//! * Float dot: element `i` goes to sum `i % 16`: `sum += w * x`.
//! * Integer dot, per 64 weights: sum `j` gets the exact integer `n_j` of the four products of weights
//!   `4 j ..= 4 j + 3` (natural order) or `16 (j % 4) + j / 4 + {0, 4, 8, 12}` (strided order, for the
//!   sequential 2-bit formats), all in one activation group of scale `s_j`. Formats whose blocks are
//!   128 or 256 weights: `sum += (n_j s_j + n'_j s'_j) d`, the primes being the second 64 of 128.
//!   Smaller blocks: `sum += (n_j s_j) d`.
#![forbid(unsafe_code)]

use super::act::{Q8Block, q8_blocks};
use super::{OutRows, Work};
use crate::quant::{Format, block_integers, block_scale, unpack_exact};

/// Tokens that share one unpacking of the weights.
const TOKENS: usize = 16;

/// Adds up the sixteen running sums: halves onto each other until one is left.
#[inline(always)]
pub(super) fn finish(sum: &[f32; 16]) -> f32 {
    let mut four = [0.0; 4];
    for i in 0..4 {
        four[i] = (sum[i] + sum[i + 8]) + (sum[i + 4] + sum[i + 12]);
    }
    (four[0] + four[2]) + (four[1] + four[3])
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
                out.put(first + t, i, finish(sum));
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
    // Whole weight blocks, at least 64 weights.
    let len = format.block();
    let unit = len.max(64);
    let unit_bytes = unit / len * format.block_bytes();
    for i in 0..out.len() {
        let row = work.w.row(out.first() + i);
        for first in (0..work.tokens).step_by(TOKENS) {
            let tokens = TOKENS.min(work.tokens - first);
            let mut sums = [[0.0; 16]; TOKENS];
            for (u, packed) in row.chunks(unit_bytes).enumerate() {
                let (mut w, mut d) = ([0; 256], [0.0; 2]);
                for (k, block) in packed.chunks_exact(format.block_bytes()).enumerate() {
                    block_integers(format, block, &mut w[k * len..(k + 1) * len]);
                    d[k] = block_scale(format, block);
                }
                let w = &w.as_chunks::<64>().0[..unit / 64];
                for (t, sum) in sums[..tokens].iter_mut().enumerate() {
                    let y = &work.q8[(first + t) * blocks + u * unit / 64..][..w.len()];
                    add_unit(format, w, d, y, sum);
                }
            }
            for (t, sum) in sums[..tokens].iter().enumerate() {
                out.put(first + t, i, finish(sum));
            }
        }
    }
}

#[inline(always)]
fn add_unit(format: Format, w: &[[i8; 64]], d: [f32; 2], y: &[Q8Block], sum: &mut [f32; 16]) {
    let strided = strided(format);
    match format.block() {
        32 => {
            let part = scaled(strided, &w[0], &y[0]);
            for j in 0..16 {
                sum[j] += part[j] * d[j / 8];
            }
        }
        64 => {
            let part = scaled(strided, &w[0], &y[0]);
            for j in 0..16 {
                sum[j] += part[j] * d[0];
            }
        }
        _ => {
            for (w, y) in w.chunks_exact(2).zip(y.chunks_exact(2)) {
                let (a, b) = (scaled(strided, &w[0], &y[0]), scaled(strided, &w[1], &y[1]));
                for j in 0..16 {
                    sum[j] += (a[j] + b[j]) * d[0];
                }
            }
        }
    }
}

/// `n_j * s_j` of 64 weights in natural order.
#[inline(always)]
fn scaled(strided: bool, w: &[i8; 64], y: &Q8Block) -> [f32; 16] {
    let mut lanes = [0i32; 16];
    let (q, scale) = (&y.natural.q, &y.natural.scale);
    for j in 0..16 {
        let (start, step) = if strided { (16 * (j % 4) + j / 4, 4) } else { (4 * j, 1) };
        for k in 0..4 {
            let i = start + k * step;
            lanes[j] += i32::from(w[i]) * i32::from(q[i]);
        }
    }
    core::array::from_fn(|j| lanes[j] as f32 * scale[if strided { j % 4 } else { j / 4 }])
}
