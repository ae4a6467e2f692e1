//! Log-probabilities of the model's own distribution.
#![forbid(unsafe_code)]

use alloc::vec::Vec;

/// Maximum number of tokens kept: memory for their list is allocated in advance.
const MAX_TOP: usize = 1 << 16;

/// A token and the natural logarithm of its probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Logprob {
    /// Token id.
    pub token: u32,
    /// `ln p`, at most 0.
    pub logprob: f32,
}

/// Measures log-probabilities and keeps the `n` most likely tokens.
///
/// They are those of the model: the log-softmax of the original logits, before penalties, temperature and
/// filters. So they do not depend on how the token was then chosen.
#[derive(Clone, Debug)]
pub struct Logprobs {
    top: Vec<Logprob>,
    n: usize,
}

impl Logprobs {
    /// Keeps the `n` most likely tokens of each measurement, at most 65,536; 0 measures only the chosen one.
    pub fn new(n: usize) -> Self {
        let n = n.min(MAX_TOP);
        Logprobs { top: Vec::with_capacity(n + 1), n }
    }

    /// Log-probability of `chosen`. NaN counts as impossible, +inf as the largest finite logit.
    /// Allocates nothing.
    pub fn measure(&mut self, logits: &[f32], chosen: u32) -> f32 {
        let norm = log_sum_exp(logits);
        let logprob = |logit: f32| {
            if logit > f32::NEG_INFINITY {
                (f64::from(logit.min(f32::MAX)) - norm) as f32
            } else {
                f32::NEG_INFINITY
            }
        };
        self.top.clear();
        for (token, &logit) in (0..).zip(logits) {
            let beats = |other: &Logprob| logit > other.logprob;
            if !logit.is_nan() && (self.top.len() < self.n || self.top.last().is_some_and(beats)) {
                let at = self.top.partition_point(|kept| kept.logprob >= logit);
                self.top.insert(at, Logprob { token, logprob: logit });
                self.top.truncate(self.n);
            }
        }
        for kept in &mut self.top {
            kept.logprob = logprob(kept.logprob);
        }
        logits.get(chosen as usize).map_or(f32::NEG_INFINITY, |&logit| logprob(logit))
    }

    /// The most likely tokens of the last measurement, best first (the lower id among equals).
    pub fn top(&self) -> &[Logprob] {
        &self.top
    }
}

/// `ln(sum(exp(logits)))`. NaN is ignored, +inf counts as the largest finite number; -inf if nothing is left.
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().fold(f32::NEG_INFINITY, |max, &l| if l > max { l } else { max }).min(f32::MAX);
    if max == f32::NEG_INFINITY {
        return f64::from(max);
    }
    let weight = |&l: &f32| f64::from(libm::expf(l.min(f32::MAX) - max));
    let sum: f64 = logits.iter().filter(|l| !l.is_nan()).map(weight).sum();
    f64::from(max) + libm::log(sum)
}
