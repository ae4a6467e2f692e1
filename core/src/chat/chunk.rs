//! Pieces of a reply, collected until they are sent.
#![forbid(unsafe_code)]

use super::conversation::Piece;
use super::message::FunctionCall;
use crate::generate::{Detokenizer, Reason};
use crate::sample::Logprob;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;

/// A token with its log-probability, and those of the most likely ones in its place.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token that was chosen.
    pub chosen: Logprob,
    /// The most likely ones, best first.
    pub top: Vec<Logprob>,
}

/// Pieces of a reply that are handed over together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chunk {
    /// Text as the model writes it, markers included.
    pub text: String,
    /// The part of it for the reader.
    pub content: String,
    /// The part of it that is thoughts.
    pub reasoning: String,
    /// Calls that are complete.
    pub tool_calls: Vec<FunctionCall>,
    /// The tokens that are part of the reply.
    pub tokens: Vec<u32>,
    /// For each of them that the model chose, if log-probabilities are measured.
    pub logprobs: Vec<TokenLogprob>,
}

impl Chunk {
    /// Adds a piece.
    pub fn push(&mut self, piece: &Piece<'_>) {
        self.text.push_str(piece.text);
        self.content.push_str(piece.content);
        self.reasoning.push_str(piece.reasoning);
        self.tool_calls.extend_from_slice(piece.tool_calls);
        self.tokens.extend_from_slice(piece.tokens);
        if let (Some(token), Some(logprob)) =
            (piece.token.filter(|t| piece.tokens.first() == Some(t)), piece.logprob)
        {
            self.logprobs.push(TokenLogprob { chosen: Logprob { token, logprob }, top: piece.top.into() });
        }
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        *self == Chunk::default()
    }
}

/// Collects pieces, and holds back the log-probabilities of tokens whose text is held back: of a stop string neither is part of the
/// reply.
#[derive(Debug, Default)]
pub struct ChunkCollector {
    /// Bytes of text that were released.
    released: usize,
    /// Bytes of the text of all tokens.
    written: usize,
    /// Those that are held, with where their text begins.
    held: VecDeque<(usize, TokenLogprob)>,
    bytes: Vec<u8>,
}

impl ChunkCollector {
    /// Adds the next piece of a reply to `chunk`.
    pub fn push(&mut self, chunk: &mut Chunk, piece: &Piece<'_>, detokenizer: &dyn Detokenizer) {
        let before = chunk.logprobs.len();
        chunk.push(piece);
        let mut measured = chunk.logprobs.drain(before..);
        for &token in piece.tokens {
            if let Some(logprob) = measured.next() {
                self.held.push_back((self.written, logprob));
            }
            self.bytes.clear();
            detokenizer.append_text(token, &mut self.bytes);
            self.written += self.bytes.len();
        }
        drop(measured);
        self.released += piece.text.len();
        let all = piece.done.is_some_and(|reason| reason != Reason::StopString);
        while self.held.front().is_some_and(|(start, _)| all || *start < self.released) {
            chunk.logprobs.extend(self.held.pop_front().map(|(_, logprob)| logprob));
        }
    }
}
