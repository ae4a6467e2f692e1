//! The gated delta rule: linear attention with a state that decays and is corrected.
#![forbid(unsafe_code)]

use super::dot;
use super::exp::exp;
use crate::cpu::cache::CpuCache;
use crate::cpu::context::Context;
use crate::cpu::parallel::for_each_chunk;
use crate::cpu::scratch::Scratch;
use crate::cpu::simd::{SimdOp, dispatch};
use crate::error::Result;
use crate::model::program::{BufferId, DeltaNet, GatedNorm};
use crate::model::weights::ModelBytes;
use crate::rows::Rows;

/// Added to the squares of keys and queries before their root.
const L2_EPS: f32 = 1e-6;

/// [`Op::DeltaNet`](crate::model::program::Op::DeltaNet).
pub(in crate::cpu) fn run<B: ModelBytes>(
    context: &Context<'_, B>,
    op: &DeltaNet,
    rows: &Rows<'_>,
    caches: &mut [&mut CpuCache<'_>],
    scratch: &mut Scratch<'_>,
) -> Result<()> {
    let (decay, dt) = (context.weights.vector(op.decay), context.weights.vector(op.dt));
    let (n, cols, values) = (rows.len(), op.cols(), op.value_heads * op.value_dim);
    let heads = op.value_heads;
    let [x, alpha, beta, out] = scratch.buffers.disjoint([
        (op.x, n * cols),
        (op.alpha, n * heads),
        (op.beta, n * heads),
        (op.out, n * values),
    ])?;
    for (alpha, beta) in alpha.chunks_exact_mut(heads).zip(beta.chunks_exact_mut(heads)) {
        gates(alpha, beta, decay, dt);
    }
    let isa = context.isa;
    let keys = op.key_heads * op.key_dim;
    for_each_chunk(context.pool_for(x.len()), x, cols, &|_, row| {
        dispatch(isa, NormalizeHeads { row: &mut row[..2 * keys], key_dim: op.key_dim, keys });
    });
    for segment in rows.segments() {
        let rows = segment.row..segment.row + segment.tokens.len();
        let state = &mut caches[segment.sequence].recurrent.current()[op.state..op.state + op.state_len()];
        let each = op.key_dim * op.value_dim;
        // A head's rows are computed one after another; heads do not depend on each other.
        for (head, state) in state.chunks_exact_mut(each).enumerate() {
            let step = Recurrence {
                op,
                head,
                x: &x[rows.start * cols..rows.end * cols],
                alpha: &alpha[rows.start * heads..rows.end * heads],
                beta: &beta[rows.start * heads..rows.end * heads],
                state,
                out: &mut out[rows.start * values..rows.end * values],
            };
            dispatch(isa, step);
        }
    }
    Ok(())
}

/// `alpha = e^(decay softplus(alpha + dt))` and `beta = sigmoid(beta)`, all `(heads)`; `decay` is not above 0.
fn gates(alpha: &mut [f32], beta: &mut [f32], decay: &[f32], dt: &[f32]) {
    for (((alpha, beta), decay), dt) in alpha.iter_mut().zip(beta).zip(decay).zip(dt) {
        let x = *alpha + dt;
        let softplus = x.max(0.0) + libm::log1pf(exp(-x.abs()));
        *alpha = exp(decay * softplus);
        *beta = 1.0 / (1.0 + exp(-*beta));
    }
}

/// `x / sqrt(sum(x^2) + eps)` of each head of queries and of keys, and queries divided by `sqrt(key_dim)`.
struct NormalizeHeads<'a> {
    /// Queries, then keys, `(2 keys)`.
    row: &'a mut [f32],
    key_dim: usize,
    /// Elements of all key heads.
    keys: usize,
}

impl SimdOp for NormalizeHeads<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (q, k) = self.row.split_at_mut(self.keys);
        let scale = 1.0 / libm::sqrtf(self.key_dim as f32);
        for (heads, scale) in [(q, scale), (k, 1.0)] {
            for head in heads.chunks_exact_mut(self.key_dim) {
                let scale = scale / libm::sqrtf(dot(head, head) + L2_EPS);
                head.iter_mut().for_each(|x| *x *= scale);
            }
        }
    }
}

/// The rows of one value head (Yang et al. 2024, arXiv 2412.06464):
///
/// ```text
/// S <- a S;  d = b (v - S^T k);  S <- S + k d^T;  o = S^T q
/// ```
struct Recurrence<'a> {
    op: &'a DeltaNet,
    head: usize,
    /// Normalized queries and keys, and values, `(rows, cols)`.
    x: &'a [f32],
    /// The decay of each row and head, `(rows, heads)`.
    alpha: &'a [f32],
    /// How far the state is corrected, `(rows, heads)`.
    beta: &'a [f32],
    /// `S`, `(key_dim, value_dim)`.
    state: &'a mut [f32],
    /// `(rows, heads value_dim)`
    out: &'a mut [f32],
}

impl SimdOp for Recurrence<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Recurrence { op, head, x, alpha, beta, state, out } = self;
        let (heads, dk, dv) = (op.value_heads, op.key_dim, op.value_dim);
        let keys = op.key_heads * dk;
        let key_head = head % op.key_heads;
        let rows = x.chunks_exact(op.cols()).zip(out.chunks_exact_mut(heads * dv));
        let gates = alpha.chunks_exact(heads).zip(beta.chunks_exact(heads));
        for ((x, out), (alpha, beta)) in rows.zip(gates) {
            let q = &x[key_head * dk..][..dk];
            let k = &x[keys + key_head * dk..][..dk];
            let v = &x[2 * keys + head * dv..][..dv];
            let out = &mut out[head * dv..][..dv];
            let (a, b) = (alpha[head], beta[head]);
            out.fill(0.0);
            for (row, k) in state.chunks_exact_mut(dv).zip(k) {
                for (s, sum) in row.iter_mut().zip(out.iter_mut()) {
                    *s *= a;
                    *sum += *s * k;
                }
            }
            // What is to be added to the state; then the result takes its place.
            out.iter_mut().zip(v).for_each(|(d, v)| *d = b * (v - *d));
            for (row, k) in state.chunks_exact_mut(dv).zip(k) {
                row.iter_mut().zip(out.iter()).for_each(|(s, d)| *s += k * d);
            }
            out.fill(0.0);
            for (row, q) in state.chunks_exact(dv).zip(q) {
                out.iter_mut().zip(row).for_each(|(o, s)| *o += q * s);
            }
        }
    }
}

/// [`Op::GatedNorm`](crate::model::program::Op::GatedNorm), of `n` rows.
pub(in crate::cpu) fn gated_norm<B: ModelBytes>(
    context: &Context<'_, B>,
    op: &GatedNorm,
    n: usize,
    scratch: &mut Scratch<'_>,
) -> Result<()> {
    let weight = context.weights.vector(op.weight);
    let cols = op.heads * weight.len();
    let [x, gate] = scratch.buffers.disjoint([(op.x, n * cols), (op.gate, n * cols)])?;
    let (isa, eps) = (context.isa, op.eps);
    for_each_chunk(context.pool_for(x.len()), x, cols, &|t, x| {
        dispatch(isa, NormGate { x, gate: &gate[t * cols..(t + 1) * cols], weight, eps });
    });
    Ok(())
}

/// `x = x / sqrt(mean(x^2) + eps) * weight * silu(gate)` of each head.
struct NormGate<'a> {
    /// `(heads, head_dim)`
    x: &'a mut [f32],
    /// `(heads, head_dim)`
    gate: &'a [f32],
    /// `(head_dim)`
    weight: &'a [f32],
    eps: f32,
}

impl SimdOp for NormGate<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let n = self.weight.len();
        for (x, gate) in self.x.chunks_exact_mut(n).zip(self.gate.chunks_exact(n)) {
            let scale = 1.0 / libm::sqrtf(dot(x, x) / n as f32 + self.eps);
            for ((x, gate), weight) in x.iter_mut().zip(gate).zip(self.weight) {
                *x *= scale * weight * (gate / (1.0 + exp(-gate)));
            }
        }
    }
}

/// [`Op::SplitHeads`](crate::model::program::Op::SplitHeads), of `n` rows: `x` has for each head `dim` elements of `a`, then as
/// many of `b`.
pub(in crate::cpu) fn split_heads(
    (x, a, b): (BufferId, BufferId, BufferId),
    (heads, dim): (usize, usize),
    n: usize,
    scratch: &mut Scratch<'_>,
) -> Result<()> {
    let cols = n * heads * dim;
    let [x, a, b] = scratch.buffers.disjoint([(x, 2 * cols), (a, cols), (b, cols)])?;
    let parts = a.chunks_exact_mut(dim).zip(b.chunks_exact_mut(dim));
    for (x, (a, b)) in x.chunks_exact(2 * dim).zip(parts) {
        a.copy_from_slice(&x[..dim]);
        b.copy_from_slice(&x[dim..]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;
    use crate::cpu::isa::Isa;
    use crate::model::program::TensorId;

    const OP: DeltaNet = DeltaNet {
        x: BufferId::at(0),
        alpha: BufferId::at(1),
        beta: BufferId::at(2),
        decay: TensorId::at(0),
        dt: TensorId::at(1),
        key_heads: 2,
        value_heads: 6,
        key_dim: 24,
        value_dim: 20,
        state: 0,
        out: BufferId::at(3),
    };
    const ROWS: usize = 40;

    fn numbers(n: usize, seed: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 7919 + seed * 4001 + i * i % 31) % 1009) as f32 / 504.0 - 1.0).collect()
    }

    /// The formulas of [`DeltaNet`] in f64, with a matrix for each head and no order of sums in common; `(rows, heads value_dim)`.
    fn in_f64(x: &[f32], alpha: &[f32], beta: &[f32], decay: &[f32], dt: &[f32]) -> Vec<f64> {
        let wide = |x: &[f32]| -> Vec<f64> { x.iter().map(|x| f64::from(*x)).collect() };
        let unit = |x: &[f32]| -> Vec<f64> {
            let x = wide(x);
            let length = libm::sqrt(x.iter().map(|x| x * x).sum::<f64>() + 1e-6);
            x.iter().map(|x| x / length).collect()
        };
        let (dk, dv, heads) = (OP.key_dim, OP.value_dim, OP.value_heads);
        let keys = OP.key_heads * dk;
        let mut out = vec![0.0; ROWS * heads * dv];
        for h in 0..heads {
            let mut state = vec![vec![0.0; dv]; dk];
            for (t, row) in x.chunks_exact(OP.cols()).enumerate() {
                let at = h % OP.key_heads * dk;
                let q: Vec<f64> = unit(&row[at..][..dk]).iter().map(|q| q / libm::sqrt(dk as f64)).collect();
                let k = unit(&row[keys + at..][..dk]);
                let v = wide(&row[2 * keys + h * dv..][..dv]);
                let softplus = libm::log(1.0 + libm::exp(f64::from(alpha[t * heads + h]) + f64::from(dt[h])));
                let decay = libm::exp(f64::from(decay[h]) * softplus);
                let beta = 1.0 / (1.0 + libm::exp(-f64::from(beta[t * heads + h])));
                for j in 0..dv {
                    let decayed: Vec<f64> = (0..dk).map(|i| decay * state[i][j]).collect();
                    let seen: f64 = decayed.iter().zip(&k).map(|(s, k)| s * k).sum();
                    let d = beta * (v[j] - seen);
                    for i in 0..dk {
                        state[i][j] = decayed[i] + k[i] * d;
                    }
                    out[(t * heads + h) * dv + j] = (0..dk).map(|i| state[i][j] * q[i]).sum();
                }
            }
        }
        out
    }

    #[test]
    fn equals_the_formula() {
        let heads = OP.value_heads;
        let x = numbers(ROWS * OP.cols(), 1);
        let (alpha, beta) = (numbers(ROWS * heads, 2), numbers(ROWS * heads, 3));
        let decay: Vec<f32> = numbers(heads, 4).iter().map(|x| -0.05 - x.abs()).collect();
        let dt = numbers(heads, 5);
        let want = in_f64(&x, &alpha, &beta, &decay, &dt);
        assert!(want.iter().any(|x| x.abs() > 0.05));
        let mut first: Option<Vec<f32>> = None;
        for isa in Isa::available() {
            let (mut x, mut alpha, mut beta) = (x.clone(), alpha.clone(), beta.clone());
            for (alpha, beta) in alpha.chunks_exact_mut(heads).zip(beta.chunks_exact_mut(heads)) {
                gates(alpha, beta, &decay, &dt);
            }
            let keys = OP.key_heads * OP.key_dim;
            for row in x.chunks_exact_mut(OP.cols()) {
                dispatch(isa, NormalizeHeads { row: &mut row[..2 * keys], key_dim: OP.key_dim, keys });
            }
            let mut out = vec![0.0; ROWS * heads * OP.value_dim];
            for head in 0..heads {
                let (x, alpha, beta) = (&x, &alpha, &beta);
                let mut state = vec![0.0; OP.key_dim * OP.value_dim];
                let (state, out) = (&mut state, &mut out);
                dispatch(isa, Recurrence { op: &OP, head, x, alpha, beta, state, out });
            }
            for (i, (found, want)) in out.iter().zip(&want).enumerate() {
                assert!((f64::from(*found) - want).abs() < 2e-6, "{isa:?} {i}: {found} {want}");
            }
            assert!(*first.get_or_insert_with(|| out.clone()) == out, "{isa:?}");
        }
    }
}
