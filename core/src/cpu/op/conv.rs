//! Short causal convolutions along a sequence.
#![forbid(unsafe_code)]

use super::exp::exp;
use crate::cpu::cache::CpuCache;
use crate::cpu::context::Context;
use crate::cpu::scratch::Scratch;
use crate::cpu::simd::{SimdOp, dispatch};
use crate::error::Result;
use crate::model::program::Conv;
use crate::model::weights::ModelBytes;
use crate::rows::Rows;

/// [`Op::Conv`](crate::model::program::Op::Conv).
pub(in crate::cpu) fn run<B: ModelBytes>(
    context: &Context<'_, B>,
    op: &Conv,
    rows: &Rows<'_>,
    caches: &mut [&mut CpuCache<'_>],
    scratch: &mut Scratch<'_>,
) -> Result<()> {
    let Conv { x, weight, cols, taps, gated, silu, state, out } = *op;
    let weight = context.weights.vector(weight);
    let width = if gated { 3 * cols } else { cols };
    let [x, out] = scratch.buffers.disjoint([(x, rows.len() * width), (out, rows.len() * cols)])?;
    for segment in rows.segments() {
        let rows = segment.row..segment.row + segment.tokens.len();
        let state = &mut caches[segment.sequence].recurrent.current()[state..state + (taps - 1) * cols];
        let (x, out) =
            (&mut x[rows.start * width..rows.end * width], &mut out[rows.start * cols..rows.end * cols]);
        dispatch(context.isa, CausalConv { x, weight, cols, taps, gated, silu, state, out });
    }
    Ok(())
}

/// A depthwise causal convolution along the rows of one sequence:
///
/// ```text
/// y[t][c] = sum_j w[c][j] u[t - (taps - 1) + j][c]
/// ```
/// With `gated`, a row of `x` is `B`, `C` and `X` side by side, `u = B X`, and the result is `C y` (LFM2: Liquid AI 2025, arXiv
/// 2511.23404); otherwise `u = x`. With `silu`, the result is `silu(y)`.
struct CausalConv<'a> {
    /// `(rows, cols)`, or `(rows, 3 cols)`: overwritten.
    x: &'a mut [f32],
    /// `(cols, taps)`: tap 0 is that of the oldest row.
    weight: &'a [f32],
    cols: usize,
    taps: usize,
    gated: bool,
    silu: bool,
    /// The last `u`, `(taps - 1, cols)`, oldest first; updated.
    state: &'a mut [f32],
    /// `(rows, cols)`
    out: &'a mut [f32],
}

impl SimdOp for CausalConv<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let CausalConv { x, weight, cols, taps, gated, silu, state, out } = self;
        let width = if gated { 3 * cols } else { cols };
        for (x, out) in x.chunks_exact_mut(width).zip(out.chunks_exact_mut(cols)) {
            let (u, gate) = if gated {
                let (b, rest) = x.split_at_mut(cols);
                let (c, x) = rest.split_at_mut(cols);
                b.iter_mut().zip(x).for_each(|(b, x)| *b *= *x);
                (b, Some(c))
            } else {
                (x, None)
            };
            let last = taps - 1;
            for (c, (y, u)) in out.iter_mut().zip(u.iter()).enumerate() {
                let taps = &weight[c * taps..(c + 1) * taps];
                let mut sum = 0.0;
                for (j, tap) in taps[..last].iter().enumerate() {
                    sum += tap * state[j * cols + c];
                }
                *y = sum + taps[last] * u;
            }
            state.copy_within(cols.min(last * cols).., 0);
            state[last.saturating_sub(1) * cols..].copy_from_slice(&u[..if last == 0 { 0 } else { cols }]);
            if let Some(gate) = gate {
                out.iter_mut().zip(gate).for_each(|(y, c)| *y *= *c);
            }
            if silu {
                out.iter_mut().for_each(|y| *y = *y / (1.0 + exp(-*y)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::Isa;
    use alloc::vec;
    use alloc::vec::Vec;

    fn numbers(n: usize, seed: f32) -> Vec<f32> {
        (0..n).map(|i| libm::sinf(i as f32 * 1.7 + seed) * 1.5).collect()
    }

    /// The formula in f64, and the same result whether rows come at once or one by one.
    #[test]
    fn agrees_with_f64_in_any_steps() {
        let (rows, cols) = (9, 21);
        for (taps, gated, silu) in [(3, true, false), (4, false, true), (1, false, false), (2, true, true)] {
            let width = if gated { 3 * cols } else { cols };
            let (x, weight) = (numbers(rows * width, 0.3), numbers(cols * taps, 0.9));
            let u = |t: usize, c: usize| {
                let row = &x[t * width..];
                if gated { f64::from(row[c] * row[2 * cols + c]) } else { f64::from(row[c]) }
            };
            for isa in Isa::available() {
                let mut all = Vec::new();
                for step in [rows, 1, 4] {
                    let (mut x, mut state) = (x.clone(), vec![0.0; (taps - 1) * cols]);
                    let mut out = vec![0.0; rows * cols];
                    for (x, out) in x.chunks_mut(step * width).zip(out.chunks_mut(step * cols)) {
                        let (weight, state) = (&weight[..], &mut state[..]);
                        dispatch(isa, CausalConv { x, weight, cols, taps, gated, silu, state, out });
                    }
                    all.push(out);
                }
                assert!(all[0] == all[1] && all[0] == all[2]);
                for (i, found) in all[0].iter().enumerate() {
                    let (t, c) = (i / cols, i % cols);
                    let taps_of = (0..taps).filter(|j| t + j + 1 >= taps);
                    let mut y: f64 =
                        taps_of.map(|j| f64::from(weight[c * taps + j]) * u(t + j + 1 - taps, c)).sum();
                    if gated {
                        y *= f64::from(x[t * width + cols + c]);
                    }
                    if silu {
                        y /= 1.0 + libm::exp(-y);
                    }
                    assert!((f64::from(*found) - y).abs() < 2e-6 * (1.0 + y.abs()), "{found} {y}");
                }
            }
        }
    }
}
