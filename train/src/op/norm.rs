//! `y = x s w` with `s = 1 / sqrt(mean(x^2) + eps)`, row by row
//!
//! ```text
//! dx = s (w dy) - x s^3 / n sum(x w dy)        dw += sum over rows of dy x s
//! y' = w (s x' - x s^3 / n sum(x x')) + w' x s
//! ```
#![forbid(unsafe_code)]

use alloc::vec;
use alloc::vec::Vec;

use shohin_core::cpu::Isa;
use shohin_core::cpu::op::dot;
use shohin_core::cpu::op::rmsnorm::{RmsNorm, rmsnorm};
use shohin_core::cpu::parallel::for_each_chunk;
use shohin_core::cpu::simd::{SimdOp, dispatch};
use shohin_core::pool::Pool;

use super::{Gradient, ROWS};

/// The norm of `x (rows, weight.len())`, to `out`.
pub(crate) fn forward(pool: &dyn Pool, isa: Isa, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let len = ROWS * weight.len();
    for_each_chunk(pool, out, len, &|i, y| {
        rmsnorm(isa, RmsNorm { x: &x[i * len..][..y.len()], weight, eps, y });
    });
}

/// The tangent of some rows.
struct Tangent<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    dx: Option<&'a [f32]>,
    dw: Option<&'a [f32]>,
    out: &'a mut [f32],
}

impl SimdOp for Tangent<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let n = self.weight.len();
        for (r, (x, out)) in self.x.chunks_exact(n).zip(self.out.chunks_exact_mut(n)).enumerate() {
            let s = 1.0 / libm::sqrtf(dot(x, x) / n as f32 + self.eps);
            match self.dx {
                Some(dx) => {
                    let dx = &dx[r * n..][..n];
                    let back = s * s * s / n as f32 * dot(x, dx);
                    for i in 0..n {
                        out[i] = self.weight[i] * (s * dx[i] - x[i] * back);
                    }
                }
                None => out.fill(0.0),
            }
            if let Some(dw) = self.dw {
                out.iter_mut().zip(dw).zip(x).for_each(|((out, dw), x)| *out += dw * x * s);
            }
        }
    }
}

/// The tangent of the norm of `x (rows, cols)`, to `out`, from those of `x` and of the weights, `(cols)`.
pub(crate) fn tangent(
    pool: &dyn Pool,
    isa: Isa,
    x: &[f32],
    weight: &[f32],
    eps: f32,
    [dx, dw]: [Option<&[f32]>; 2],
    out: &mut [f32],
) {
    let len = ROWS * weight.len();
    for_each_chunk(pool, out, len, &|i, out| {
        let part = i * len..i * len + out.len();
        let (x, dx) = (&x[part.clone()], dx.map(|dx| &dx[part]));
        dispatch(isa, Tangent { x, weight, eps, dx, dw, out });
    });
}

/// The derivative of some rows.
struct Backward<'a> {
    x: &'a [f32],
    dy: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    dx: &'a mut [f32],
    add: bool,
    /// `(cols)`, or empty.
    dw: &'a mut [f32],
}

impl SimdOp for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let n = self.weight.len();
        let rows = self.x.chunks_exact(n).zip(self.dy.chunks_exact(n));
        let mut dxs = self.dx.chunks_exact_mut(n);
        for (x, dy) in rows {
            let s = 1.0 / libm::sqrtf(dot(x, x) / n as f32 + self.eps);
            let along = sum(x, self.weight, dy);
            let back = s * s * s / n as f32 * along;
            if let Some(dx) = dxs.next() {
                for i in 0..n {
                    let d = s * (self.weight[i] * dy[i]) - x[i] * back;
                    dx[i] = if self.add { dx[i] + d } else { d };
                }
            }
            for ((dw, x), dy) in self.dw.iter_mut().zip(x).zip(dy) {
                *dw += dy * x * s;
            }
        }
    }
}

/// `sum(a b c)` in sixteen running sums.
#[inline(always)]
fn sum(a: &[f32], b: &[f32], c: &[f32]) -> f32 {
    let n = a.len().min(b.len()).min(c.len());
    let mut lanes = [0.0f32; 16];
    let whole = n / 16 * 16;
    for i in (0..whole).step_by(16) {
        for l in 0..16 {
            lanes[l] += a[i + l] * b[i + l] * c[i + l];
        }
    }
    let mut total = 0.0;
    for i in whole..n {
        total += a[i] * b[i] * c[i];
    }
    lanes.iter().fold(total, |total, lane| total + lane)
}

/// The gradient of `x (rows, cols)`, unless it is not wanted, and what `dw (cols)`, if there is one, gets more.
pub(crate) fn backward(
    pool: &dyn Pool,
    isa: Isa,
    [x, dy]: [&[f32]; 2],
    weight: &[f32],
    eps: f32,
    dx: Option<Gradient<'_>>,
    dw: Option<&mut [f32]>,
) {
    let n = weight.len();
    let len = ROWS * n;
    let jobs = x.len().div_ceil(len);
    let add = dx.as_ref().is_some_and(|dx| dx.add);
    let mut partial = vec![0.0; if dw.is_some() { jobs * n } else { 0 }];
    let mut dxs = dx.map(|dx| dx.data.chunks_mut(len));
    let mut dws = partial.chunks_mut(n);
    let mut parts: Vec<(&mut [f32], &mut [f32])> = (0..jobs)
        .map(|_| {
            let dx = dxs.as_mut().and_then(Iterator::next);
            (dx.unwrap_or(&mut []), dws.next().unwrap_or(&mut []))
        })
        .collect();
    for_each_chunk(pool, &mut parts, 1, &|i, part| {
        let [(dx, dw)] = part else { return };
        let rows = i * len..(i * len + len).min(x.len());
        dispatch(isa, Backward { x: &x[rows.clone()], dy: &dy[rows], weight, eps, dx, add, dw });
    });
    if let Some(dw) = dw {
        for partial in partial.chunks_exact(n) {
            dw.iter_mut().zip(partial).for_each(|(dw, partial)| *dw += partial);
        }
    }
}
