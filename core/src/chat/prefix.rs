//! The tokens of a conversation that a session holds.
#![forbid(unsafe_code)]

use alloc::vec::Vec;

/// The tokens that a session has seen, of which `dropped` were removed after the first `kept`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixState {
    /// All tokens, including the dropped ones.
    pub tokens: Vec<u32>,
    /// Tokens kept at the front.
    pub kept: usize,
    /// Tokens dropped.
    pub dropped: usize,
}

impl PrefixState {
    /// Tokens that the session holds.
    pub fn held(&self) -> usize {
        self.tokens.len().saturating_sub(self.dropped)
    }

    /// The tokens that the session holds, in order.
    pub fn held_tokens(&self) -> Vec<u32> {
        let end = self.kept.saturating_add(self.dropped);
        match (self.dropped, self.tokens.get(..self.kept), self.tokens.get(end..)) {
            (1.., Some(front), Some(rest)) => [front, rest].concat(),
            _ => self.tokens.clone(),
        }
    }

    /// The tokens that it holds as if it had seen no others.
    pub(super) fn intact(&self) -> &[u32] {
        let intact = if self.dropped == 0 { self.tokens.len() } else { self.kept };
        self.tokens.get(..intact).unwrap_or(&self.tokens)
    }

    /// Keeps only the first `held` tokens of the session.
    pub(super) fn truncate(&mut self, held: usize) {
        if held <= self.kept {
            self.dropped = 0;
        }
        self.tokens.truncate(held.saturating_add(self.dropped));
    }
}
