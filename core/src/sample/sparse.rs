//! Logits of which a device read out only the largest.
#![forbid(unsafe_code)]

use alloc::vec::Vec;

/// Logits `(vocab)` of which only a few are known; the others are -inf. The buffer is reused from token to token.
#[derive(Clone, Debug, Default)]
pub struct SparseLogits {
    logits: Vec<f32>,
    known: Vec<u32>,
}

impl SparseLogits {
    /// Replaces the known logits by those of `top`, `(token, logit)`; unknown tokens are ignored.
    pub fn set(&mut self, vocab: usize, top: &[(u32, f32)]) {
        if self.logits.len() != vocab {
            self.logits.clear();
            self.logits.resize(vocab, f32::NEG_INFINITY);
            self.known.clear();
        }
        for token in self.known.drain(..) {
            if let Some(logit) = self.logits.get_mut(token as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
        for &(token, value) in top {
            if let Some(logit) = self.logits.get_mut(token as usize) {
                *logit = value;
                self.known.push(token);
            }
        }
    }

    /// All logits, `(vocab)`.
    pub fn as_slice(&self) -> &[f32] {
        &self.logits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_latest_logits_are_known() {
        const NONE: f32 = f32::NEG_INFINITY;
        let mut sparse = SparseLogits::default();
        sparse.set(4, &[(1, 0.5), (3, -2.0), (9, 1.0)]);
        assert_eq!(sparse.as_slice(), [NONE, 0.5, NONE, -2.0]);
        sparse.set(4, &[(0, 7.0)]);
        assert_eq!(sparse.as_slice(), [7.0, NONE, NONE, NONE]);
        sparse.set(2, &[]);
        assert_eq!(sparse.as_slice(), [NONE, NONE]);
    }
}
