//! Losses of a row of logits.
#![forbid(unsafe_code)]
use shohin_core::cpu::Isa;
use shohin_core::cpu::op::exp::exp;
use shohin_core::cpu::simd::{SimdOp, dispatch};

/// What a row should have been.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The token that follows.
    pub token: u32,
    /// The teacher's logits; empty without a teacher.
    pub teacher: &'a [f32],
}

/// A loss.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Loss {
    /// `-log p(token)`
    CrossEntropy {
        /// Label smoothing.
        smoothing: f32,
    },
}

struct Row<'a> {
    logits: &'a mut [f32],
    token: usize,
    scale: f32,
}

impl SimdOp for Row<'_> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        let z = self.logits;
        let mut lanes = [f32::NEG_INFINITY; 16];
        for part in z.chunks(16) {
            for (lane, x) in lanes.iter_mut().zip(part) {
                *lane = if *x > *lane { *x } else { *lane };
            }
        }
        let max = lanes.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let picked = f64::from(z[self.token] - max);
        let mut sums = [0.0f32; 16];
        for part in z.chunks_mut(16) {
            for (sum, x) in sums.iter_mut().zip(part) {
                *x = exp(*x - max);
                *sum += *x;
            }
        }
        let sum = sums.iter().fold(0.0, |sum, lane| sum + lane);
        let scale = self.scale / sum;
        z.iter_mut().for_each(|x| *x *= scale);
        z[self.token] -= self.scale;
        libm::log(f64::from(sum)) - picked
    }
}

impl Loss {
    /// The loss of `logits`, which become its gradient times `scale`.
    pub fn row(&self, isa: Isa, logits: &mut [f32], target: &Target<'_>, scale: f32) -> f64 {
        dispatch(isa, Row { logits, token: target.token as usize, scale })
    }
}

impl Default for Loss {
    fn default() -> Self {
        Loss::CrossEntropy { smoothing: 0.0 }
    }
}

impl core::fmt::Display for Loss {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{self:?}")
    }
}
