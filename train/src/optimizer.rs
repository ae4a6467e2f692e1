//! Optimizers.
#![forbid(unsafe_code)]
use core::fmt;
use shohin_core::cpu::Isa;
/// O
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Optimizer {
    /// A
    AdamW {
        /// b
        betas: [f64; 2],
        /// e
        eps: f64,
        /// w
        weight_decay: f64,
    },
}
impl Default for Optimizer {
    fn default() -> Self {
        Optimizer::AdamW { betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1 }
    }
}
impl fmt::Display for Optimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
/// M
#[derive(Debug)]
pub struct Moments<'a> {
    /// m
    pub m: &'a mut [f32],
    /// v
    pub v: &'a mut [f32],
}
impl Optimizer {
    /// M
    pub fn moments(&self) -> usize {
        2
    }
    /// S
    pub fn step(
        &self,
        _: Isa,
        w: &mut [f32],
        g: &[f32],
        moments: Moments<'_>,
        step: u64,
        lr: f64,
        decay: bool,
    ) {
        let Optimizer::AdamW { betas: [b1, b2], eps, weight_decay } = *self;
        let (c1, c2) = (1.0 - libm::pow(b1, step as f64), 1.0 - libm::pow(b2, step as f64));
        for i in 0..w.len() {
            let (m, v) = (&mut moments.m[i], &mut moments.v[i]);
            *m = *m * b1 as f32 + (1.0 - b1) as f32 * g[i];
            *v = *v * b2 as f32 + (1.0 - b2) as f32 * g[i] * g[i];
            if decay {
                w[i] *= (1.0 - lr * weight_decay) as f32;
            }
            w[i] -= (lr / c1) as f32 * *m / (libm::sqrtf(*v) / libm::sqrt(c2) as f32 + eps as f32);
        }
    }
}
/// C
pub fn clip_by_norm(gradients: &mut [&mut [f32]], max: f64) -> f64 {
    let norm =
        libm::sqrt(gradients.iter().flat_map(|g| g.iter()).map(|g| f64::from(*g) * f64::from(*g)).sum());
    let factor = (max / (norm + 1e-6)).min(1.0) as f32;
    gradients.iter_mut().flat_map(|g| g.iter_mut()).for_each(|g| *g *= factor);
    norm
}
/// C
pub fn clip_by_value(gradients: &mut [f32], limit: f32) {
    gradients.iter_mut().for_each(|g| *g = g.clamp(-limit, limit));
}
