//! `out = to + sum_e p_e h_e D_e^T` over the experts `e` that a row uses, with `h_e = silu(g) u`, `g = x G_e^T`, `u = x U_e^T`
//!
//! ```text
//! q = softmax(l)          p_e = q_e, or q_e / (sum of q over the chosen); 0 for experts that are not chosen
//! t_e = dout D_e          dp_e = t_e . h_e           dh_e = p_e t_e        dx = sum_e dg G_e + du U_e        dto = dout
//! dl_e = p_e (dp_e - sum_k p_k dp_k), or with q_e before the bracket if p is not divided by the sum
//! out' = to' + sum_e (p'_e h_e + p_e h'_e) D_e^T             g' = x' G_e^T           u' = x' U_e^T
//! p'_e = p_e (l'_e - sum_k p_k l'_k), or with q_k in the sum if p is not divided by the sum
//! ```
//! `dg` and `du` follow from `dh`, and `h'` from `g'` and `u'`, as in [`gated`]. Experts that are not chosen have `dp = 0`: they have a gradient as
//! part of the softmax alone, and which ones are chosen has none. The experts' weights are frozen.
//!
//! An expert computes the rows that use it, in order and [`CHUNK`] at once; rows add up their experts in order.
#![forbid(unsafe_code)]

use alloc::vec::Vec;

use shohin_core::cpu::Isa;
use shohin_core::cpu::op::exp::exp;
use shohin_core::cpu::op::route::Route;
use shohin_core::cpu::parallel::for_each_chunk;
use shohin_core::cpu::simd::{SimdOp, dispatch};
use shohin_core::model::program::{Activation, Program};
use shohin_core::pool::Pool;

use super::{Gradient, ROWS, add, gated, linear};
use crate::gemm::{Gemm, Store, Weight};

/// Rows of an expert that are computed at once, for which its weights are decoded once.
const CHUNK: usize = 448;

/// The memory of a layer.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Of all rows, `(rows, experts)`.
    probabilities: Vec<f32>,
    /// Their gradients or tangents, `(rows, experts)`.
    gradients: Vec<f32>,
    /// Rows that use an expert, `(CHUNK, cols)`.
    routed: Vec<f32>,
    /// What it gives, or the gradients of that, `(CHUNK, cols)`.
    result: Vec<f32>,
    /// Its inner values, `(CHUNK, outputs)`.
    inner: [Vec<f32>; 3],
    /// The tangents of these, `(CHUNK, outputs)`.
    tangents: [Vec<f32>; 3],
}

impl Memory {
    /// Its bytes for at most `rows` rows.
    pub(crate) fn bytes(rows: usize, program: &Program) -> u64 {
        let of_layer = program.mixtures().map(|experts| {
            let count = program.tensor(experts.router).rows;
            let down = program.tensor(experts.down);
            let of_chunk = program.tensor(experts.gate).cols + down.rows_each() + 3 * down.cols;
            2 * rows * count + CHUNK.min(rows) * of_chunk
        });
        (of_layer.max().unwrap_or(0) * size_of::<f32>()) as u64
    }
}

impl Memory {
    /// Bytes that tangents take beside those of [`Memory::bytes`].
    pub(crate) fn tangent_bytes(rows: usize, program: &Program) -> u64 {
        let outputs = program.mixtures().map(|experts| program.tensor(experts.down).cols);
        (3 * CHUNK.min(rows) * outputs.max().unwrap_or(0) * size_of::<f32>()) as u64
    }
}

/// The first `len` floats of a buffer, which grows to no more than it needs.
fn part(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.len() < len {
        buffer.reserve_exact(len - buffer.len());
        buffer.resize(len, 0.0);
    }
    &mut buffer[..len]
}

/// Copies the rows `rows` of `from (.., cols)` to `to`.
fn gather(from: &[f32], cols: usize, rows: &[usize], to: &mut [f32]) {
    for (to, row) in to.chunks_exact_mut(cols).zip(rows) {
        to.copy_from_slice(&from[row * cols..][..cols]);
    }
}

/// A layer of experts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layer<'a> {
    /// `G (experts * outputs, cols)`, `U (experts * outputs, cols)` and `D (experts * cols, outputs)`.
    pub(crate) weights: [Weight<'a>; 3],
    /// Experts.
    pub(crate) count: usize,
    /// How many of them a row uses.
    pub(crate) used: usize,
    /// Whether the probabilities of these are divided by their sum.
    pub(crate) normalize: bool,
}

/// A row of an expert: its inner values, which become their gradients.
struct Row<'a> {
    /// `(outputs)`: `g`, then `dg`.
    gate: &'a mut [f32],
    /// `(outputs)`: `u`, then `du`.
    up: &'a mut [f32],
    /// `(outputs)`
    t: &'a [f32],
    p: f32,
    dp: f32,
}

impl SimdOp for &mut Row<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let mut lanes = [0.0f32; 16];
        let parts = self.gate.chunks_mut(16).zip(self.up.chunks_mut(16)).zip(self.t.chunks(16));
        for ((gate, up), t) in parts {
            for (((g, u), t), lane) in gate.iter_mut().zip(up).zip(t).zip(&mut lanes) {
                let s = 1.0 / (1.0 + exp(-*g));
                let silu = *g * s;
                *lane += t * (silu * *u);
                let dh = self.p * t;
                *g = dh * *u * s * (1.0 + *g * (1.0 - s));
                *u = dh * silu;
            }
        }
        self.dp = lanes.iter().fold(0.0, |sum, lane| sum + lane);
    }
}

/// Turns the gradients of a row's probabilities into those of its logits.
struct RouteBackward<'a> {
    /// `(experts)`
    logits: &'a [f32],
    /// `(experts)`, 0 for those that are not chosen.
    p: &'a [f32],
    normalize: bool,
    /// `(experts)`
    row: &'a mut [f32],
}

impl SimdOp for RouteBackward<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let RouteBackward { logits, p, normalize, row } = self;
        let along = p.iter().zip(&*row).fold(0.0, |sum, (p, dp)| sum + p * dp);
        if normalize {
            row.iter_mut().zip(p).for_each(|(d, p)| *d = p * (*d - along));
            return;
        }
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum = logits.iter().fold(0.0, |sum, l| sum + exp(l - max));
        row.iter_mut().zip(logits).for_each(|(d, l)| *d = exp(l - max) / sum * (*d - along));
    }
}

/// Turns the tangents of a row's logits into those of its probabilities.
struct RouteTangent<'a> {
    /// `(experts)`
    logits: &'a [f32],
    /// `(experts)`, 0 for those that are not chosen.
    p: &'a [f32],
    normalize: bool,
    /// `(experts)`
    row: &'a mut [f32],
}

impl SimdOp for RouteTangent<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let RouteTangent { logits, p, normalize, row } = self;
        let along = if normalize {
            p.iter().zip(&*row).fold(0.0, |sum, (p, d)| sum + p * d)
        } else {
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let parts = logits.iter().zip(&*row).fold([0.0; 2], |[sum, along], (l, d)| {
                let e = exp(l - max);
                [sum + e, along + e * d]
            });
            parts[1] / parts[0]
        };
        row.iter_mut().zip(p).for_each(|(d, p)| *d = p * (*d - along));
    }
}

/// A row of an expert: its inner value `h`, which becomes the tangent of `p h`.
struct RowTangent<'a> {
    /// `(outputs)`
    h: &'a mut [f32],
    /// `(outputs)`, the tangent of `h`.
    dh: &'a [f32],
    p: f32,
    dp: f32,
}

impl SimdOp for RowTangent<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        self.h.iter_mut().zip(self.dh).for_each(|(h, dh)| *h = self.dp * *h + self.p * dh);
    }
}

impl<'a> Layer<'a> {
    fn cols(&self) -> usize {
        self.weights[0].cols()
    }

    fn outputs(&self) -> usize {
        self.weights[2].cols()
    }

    fn out_cols(&self) -> usize {
        self.weights[2].rows() / self.count
    }

    /// The weights of an expert.
    fn expert(&self, expert: usize) -> [Weight<'a>; 3] {
        self.weights.map(|weight| {
            let rows = weight.rows() / self.count;
            weight.slice_rows(expert * rows..(expert + 1) * rows)
        })
    }

    /// The probabilities of the chosen experts, and 0 for the others, `(rows, experts)`.
    fn route(&self, pool: &dyn Pool, isa: Isa, logits: &[f32], p: &mut [f32]) {
        p.copy_from_slice(logits);
        for_each_chunk(pool, p, ROWS * self.count, &|_, rows| {
            for row in rows.chunks_exact_mut(self.count) {
                dispatch(isa, Route { row, used: self.used, normalize: self.normalize });
            }
        });
    }

    /// The rows that use an expert.
    fn users(&self, p: &[f32], expert: usize) -> Vec<usize> {
        let of_expert = p.iter().skip(expert).step_by(self.count);
        of_expert.enumerate().filter(|(_, p)| **p != 0.0).map(|(row, _)| row).collect()
    }

    /// Adds to `out (rows, cols)` what the experts make of `x (rows, cols)` for `logits (rows, experts)`.
    pub(crate) fn forward(
        &self,
        gemm: &mut Gemm<'_>,
        memory: &mut Memory,
        [x, logits]: [&[f32]; 2],
        out: &mut [f32],
    ) {
        let (isa, pool) = (gemm.isa(), gemm.pool());
        let (cols, outputs, out_cols) = (self.cols(), self.outputs(), self.out_cols());
        let p = part(&mut memory.probabilities, logits.len());
        self.route(pool, isa, logits, p);
        for expert in 0..self.count {
            let [gate, up, down] = self.expert(expert);
            for rows in self.users(p, expert).chunks(CHUNK) {
                let n = rows.len();
                let routed = part(&mut memory.routed, n * cols);
                let [g, u, h] = memory.inner.each_mut().map(|inner| part(inner, n * outputs));
                let y = part(&mut memory.result, n * out_cols);
                gather(x, cols, rows, routed);
                linear::forward(gemm, routed, gate, g, Store::Replace);
                linear::forward(gemm, routed, up, u, Store::Replace);
                gated::forward(pool, isa, Activation::Silu, [g, u], h);
                linear::forward(gemm, h, down, y, Store::Replace);
                for (row, y) in rows.iter().zip(y.chunks_exact(out_cols)) {
                    let p = p[row * self.count + expert];
                    let out = &mut out[row * out_cols..][..out_cols];
                    out.iter_mut().zip(y).for_each(|(out, y)| *out += p * y);
                }
            }
        }
    }

    /// Adds to `out (rows, cols)` the tangent of what the experts make of `x (rows, cols)` for `logits (rows, experts)`, from the
    /// tangents of these; one that is not there is 0.
    pub(crate) fn tangent(
        &self,
        gemm: &mut Gemm<'_>,
        memory: &mut Memory,
        [x, logits]: [&[f32]; 2],
        [dx, dlogits]: [Option<&[f32]>; 2],
        out: &mut [f32],
    ) {
        let (isa, pool) = (gemm.isa(), gemm.pool());
        let (cols, outputs, out_cols) = (self.cols(), self.outputs(), self.out_cols());
        let p = part(&mut memory.probabilities, logits.len());
        let dp = part(&mut memory.gradients, logits.len());
        self.route(pool, isa, logits, p);
        match dlogits {
            Some(dlogits) => dp.copy_from_slice(dlogits),
            None => dp.fill(0.0),
        }
        let rows = logits.chunks_exact(self.count).zip(p.chunks_exact(self.count));
        for ((logits, p), row) in rows.zip(dp.chunks_exact_mut(self.count)) {
            dispatch(isa, RouteTangent { logits, p, normalize: self.normalize, row });
        }
        for expert in 0..self.count {
            let [gate, up, down] = self.expert(expert);
            for rows in self.users(p, expert).chunks(CHUNK) {
                let n = rows.len();
                let routed = part(&mut memory.routed, n * cols);
                let [g, u, h] = memory.inner.each_mut().map(|inner| part(inner, n * outputs));
                let y = part(&mut memory.result, n * out_cols);
                gather(x, cols, rows, routed);
                linear::forward(gemm, routed, gate, g, Store::Replace);
                linear::forward(gemm, routed, up, u, Store::Replace);
                gated::forward(pool, isa, Activation::Silu, [g, u], h);
                let [dg, du, dh] = memory.tangents.each_mut().map(|inner| part(inner, n * outputs));
                if let Some(dx) = dx {
                    gather(dx, cols, rows, routed);
                    linear::forward(gemm, routed, gate, dg, Store::Replace);
                    linear::forward(gemm, routed, up, du, Store::Replace);
                    gated::tangent(pool, isa, Activation::Silu, [g, u], [Some(dg), Some(du)], dh);
                } else {
                    dh.fill(0.0);
                }
                for_each_chunk(pool, h, ROWS * outputs, &|i, part| {
                    for (i, h) in (i * ROWS..).zip(part.chunks_exact_mut(outputs)) {
                        let (at, dh) = (rows[i] * self.count + expert, &dh[i * outputs..][..outputs]);
                        dispatch(isa, RowTangent { h, dh, p: p[at], dp: dp[at] });
                    }
                });
                linear::forward(gemm, h, down, y, Store::Replace);
                for (row, y) in rows.iter().zip(y.chunks_exact(out_cols)) {
                    let out = &mut out[row * out_cols..][..out_cols];
                    out.iter_mut().zip(y).for_each(|(out, y)| *out += y);
                }
            }
        }
    }

    /// The gradients of `x` and `logits` from `dout (rows, cols)`.
    pub(crate) fn backward(
        &self,
        gemm: &mut Gemm<'_>,
        memory: &mut Memory,
        [x, logits]: [&[f32]; 2],
        dout: &[f32],
        [mut dx, dlogits]: [Option<Gradient<'_>>; 2],
    ) {
        let (isa, pool) = (gemm.isa(), gemm.pool());
        let (cols, outputs, out_cols) = (self.cols(), self.outputs(), self.out_cols());
        let p = part(&mut memory.probabilities, logits.len());
        let dp = part(&mut memory.gradients, logits.len());
        self.route(pool, isa, logits, p);
        dp.fill(0.0);
        if let Some(dx) = dx.as_mut().filter(|dx| !dx.add) {
            dx.data.fill(0.0);
        }
        for expert in 0..self.count {
            let [gate, up, down] = self.expert(expert);
            for rows in self.users(p, expert).chunks(CHUNK) {
                let n = rows.len();
                let routed = part(&mut memory.routed, n * cols);
                let [g, u, t] = memory.inner.each_mut().map(|inner| part(inner, n * outputs));
                let dy = part(&mut memory.result, n * out_cols);
                gather(x, cols, rows, routed);
                gather(dout, out_cols, rows, dy);
                linear::forward(gemm, routed, gate, g, Store::Replace);
                linear::forward(gemm, routed, up, u, Store::Replace);
                linear::backward_input(gemm, dy, down, Gradient { data: t, add: false });
                let inner = g.chunks_exact_mut(outputs).zip(u.chunks_exact_mut(outputs));
                let inner = inner.zip(t.chunks_exact(outputs)).zip(rows);
                let of_row = |(((gate, up), t), row): (((_, _), _), &usize)| Row {
                    gate,
                    up,
                    t,
                    p: p[row * self.count + expert],
                    dp: 0.0,
                };
                let mut derivatives: Vec<Row<'_>> = inner.map(of_row).collect();
                for_each_chunk(pool, &mut derivatives, ROWS, &|_, part| {
                    part.iter_mut().for_each(|row| dispatch(isa, row));
                });
                for (row, derivative) in rows.iter().zip(&derivatives) {
                    dp[row * self.count + expert] = derivative.dp;
                }
                if let Some(dx) = &mut dx {
                    linear::backward_input(gemm, g, gate, Gradient { data: &mut *routed, add: false });
                    linear::backward_input(gemm, u, up, Gradient { data: &mut *routed, add: true });
                    for (row, d) in rows.iter().zip(routed.chunks_exact(cols)) {
                        let dx = &mut dx.data[row * cols..][..cols];
                        dx.iter_mut().zip(d).for_each(|(dx, d)| *dx += d);
                    }
                }
            }
        }
        if let Some(dlogits) = dlogits {
            let rows = logits.chunks_exact(self.count).zip(p.chunks_exact(self.count));
            for ((logits, p), row) in rows.zip(dp.chunks_exact_mut(self.count)) {
                dispatch(isa, RouteBackward { logits, p, normalize: self.normalize, row });
            }
            add::backward(pool, dp, dlogits);
        }
    }
}
