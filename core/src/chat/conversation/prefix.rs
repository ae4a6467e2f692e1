//! The tokens of a conversation that a session holds.
#![forbid(unsafe_code)]

use crate::generate::{Overflow, common_prefix};
use alloc::vec::Vec;
use core::ops::Range;

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

    /// What of the session a prompt goes on from, whose first `known` tokens precede the messages that it answers.
    pub(super) fn reuse(&self, prompt: &[u32], known: usize, overflow: Overflow) -> Reuse {
        // If the same conversation continues beyond the context, so does its session.
        let PrefixState { tokens: seen, kept, dropped } = self;
        let same = seen.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let whole = same == seen.len() && prompt.len() > seen.len();
        let again = known >= kept + dropped && same >= known;
        let goes_on = *dropped > 0 && overflow == Overflow::Shift { keep: *kept } && (whole || again);
        let hole = if goes_on { *kept..kept + dropped } else { 0..0 };
        let left = [prompt.get(..hole.start).unwrap_or_default(), prompt.get(hole.end..).unwrap_or_default()]
            .concat();
        let held = match goes_on {
            true => (same - dropped).min(left.len().saturating_sub(1)),
            false => common_prefix(self.intact(), &left),
        };
        Reuse { hole, left, held }
    }

    /// Keeps what is used again.
    pub(super) fn keep(&mut self, reuse: &Reuse, overflow: Overflow) {
        self.tokens.truncate(reuse.cached());
        if reuse.hole.is_empty() {
            let kept = if let Overflow::Shift { keep } = overflow { keep } else { 0 };
            (self.kept, self.dropped) = (kept, 0);
        }
    }
}

/// What of a session is used again for a prompt.
#[derive(Debug)]
pub(super) struct Reuse {
    /// Tokens of the prompt that the session has dropped; empty unless the conversation goes on beyond the context.
    hole: Range<usize>,
    /// The tokens of the prompt without them.
    pub(super) left: Vec<u32>,
    /// How many of those the session holds.
    pub(super) held: usize,
}

impl Reuse {
    /// Tokens of the prompt that the session holds or has dropped.
    pub(super) fn cached(&self) -> usize {
        self.held + self.hole.len()
    }
}
