//! What a session holds of a conversation's tokens.
#![forbid(unsafe_code)]

use alloc::vec::Vec;

/// The tokens that a session has seen. After the first `kept` it has dropped `dropped` of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixState {
    /// All of them, the dropped ones too.
    pub tokens: Vec<u32>,
    /// How many were kept in front.
    pub kept: usize,
    /// How many were dropped.
    pub dropped: usize,
}

impl PrefixState {
    /// How many tokens the session holds.
    pub fn held(&self) -> usize {
        self.tokens.len().saturating_sub(self.dropped)
    }

    /// Those that it holds as if it had seen nothing else.
    pub(super) fn intact(&self) -> &[u32] {
        let intact = if self.dropped == 0 { self.tokens.len() } else { self.kept };
        self.tokens.get(..intact).unwrap_or(&self.tokens)
    }

    /// Leaves the first `held` tokens in the session.
    pub(super) fn truncate(&mut self, held: usize) {
        if held <= self.kept {
            self.dropped = 0;
        }
        self.tokens.truncate(held.saturating_add(self.dropped));
    }
}
