//! Root-mean-square normalisation.
#![forbid(unsafe_code)]

use super::dot;
use crate::cpu::context::Context;
use crate::cpu::isa::Isa;
use crate::cpu::scratch::Scratch;
use crate::cpu::simd::{SimdOp, dispatch};
use crate::error::Result;
use crate::model::program::{BufferId, TensorId};
use crate::model::weights::ModelBytes;

/// [`Op::RmsNorm`](crate::model::program::Op::RmsNorm), of `n` rows.
pub(in crate::cpu) fn run<B: ModelBytes>(
    context: &Context<'_, B>,
    x: BufferId,
    weight: TensorId,
    eps: f32,
    out: BufferId,
    n: usize,
    scratch: &mut Scratch<'_>,
) -> Result<()> {
    let weight = context.weights.vector(weight);
    let len = n * weight.len();
    let [x, y] = scratch.buffers.disjoint([(x, len), (out, len)])?;
    rmsnorm(context.isa, RmsNorm { x, weight, eps, y });
    Ok(())
}

/// `y[i] = weight[i] * x[i] / sqrt(mean(x^2) + eps)` for every row (Zhang & Sennrich 2019).
#[derive(Debug)]
pub struct RmsNorm<'a> {
    /// `(rows, n)`
    pub x: &'a [f32],
    /// `(n)`
    pub weight: &'a [f32],
    /// Avoids division by zero.
    pub eps: f32,
    /// `(rows, n)`
    pub y: &'a mut [f32],
}

impl SimdOp for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let n = self.weight.len();
        for (x, y) in self.x.chunks_exact(n).zip(self.y.chunks_exact_mut(n)) {
            let scale = 1.0 / libm::sqrtf(dot(x, x) / n as f32 + self.eps);
            for ((y, x), w) in y.iter_mut().zip(x).zip(self.weight) {
                *y = x * scale * w;
            }
        }
    }
}

/// [`RmsNorm`], compiled for `isa` with this crate's options, as [`swiglu`](super::swiglu::swiglu) is.
#[cfg_attr(not(target_os = "none"), inline(never))]
pub fn rmsnorm(isa: Isa, norm: RmsNorm<'_>) {
    dispatch(isa, norm);
}

/// [`RmsNorm`] of one row in place, as used for each head of q and k.
#[inline(always)]
pub fn rmsnorm_in_place(x: &mut [f32], weight: &[f32], eps: f32) {
    let scale = 1.0 / libm::sqrtf(dot(x, x) / x.len() as f32 + eps);
    for (x, w) in x.iter_mut().zip(weight) {
        *x *= scale * w;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn agrees_with_f64() {
        for n in [1, 15, 16, 64, 100, 2048] {
            let x: Vec<f32> = (0..n).map(|i| libm::sinf(i as f32 * 1.7) * 3.0 + 0.1).collect();
            let w: Vec<f32> = (0..n).map(|i| 1.0 + libm::cosf(i as f32)).collect();
            let mean = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / n as f64;
            let mut y = alloc::vec![0.0; n];
            RmsNorm { x: &x, weight: &w, eps: 1e-6, y: &mut y }.run();
            let mut z = x.clone();
            rmsnorm_in_place(&mut z, &w, 1e-6);
            for i in 0..n {
                let want = f64::from(x[i]) * f64::from(w[i]) / libm::sqrt(mean + 1e-6);
                assert!((f64::from(y[i]) - want).abs() <= 1e-6 * (1.0 + want.abs()));
                assert!((f64::from(z[i]) - want).abs() <= 1e-6 * (1.0 + want.abs()));
            }
        }
    }
}
