//! Conversations that a host renders with the template in a model's file, for templates that are not built in.
//!
//! Core executes no template. A [`Renderer`] returns the text with the places of what is not the template's own: those parts
//! are encoded as plain text, whatever they say.
#![forbid(unsafe_code)]

use super::template::{ChatOptions, Message};
use crate::error::Result;
use crate::tokenizer::{EncodeBuffers, EncodeOptions, Tokenizer};
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

/// Renders conversations with the template of a file.
pub trait Renderer {
    /// The conversation as the template shows it, with the start of the model's reply if
    /// [`ChatOptions::add_generation_prompt`] asks for it. [`ChatOptions::template`] and [`ChatOptions::encode`] are of no effect.
    ///
    /// # Errors
    /// [`Error::Rendering`](crate::Error::Rendering) if the template cannot show it.
    fn render(&self, messages: &[Message<'_>], options: &ChatOptions<'_>) -> Result<Rendering>;
}

/// A conversation as a template shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendering {
    /// The whole text.
    pub text: String,
    /// The parts of it that come from messages and descriptions of tools: byte ranges in ascending order, not empty, without
    /// overlaps. Everything else is the template's own.
    pub foreign: Vec<Range<usize>>,
}

impl Rendering {
    /// Appends the ids. Only the template's own text forms added tokens; between two of them, text is encoded in one piece, as in
    /// training.
    pub fn encode(&self, tokenizer: &Tokenizer<'_>, options: &EncodeOptions, ids: &mut Vec<u32>) {
        let (plain, mut buffers) = (options.plain(), EncodeBuffers::default());
        let mut encode = |range: Range<usize>, ids: &mut Vec<u32>| {
            tokenizer.encode_in(self.text.get(range).unwrap_or_default(), &plain, &mut buffers, ids);
        };
        let (mut done, mut from) = (0, 0);
        let end = self.text.len()..self.text.len();
        for foreign in self.foreign.iter().chain(core::iter::once(&end)) {
            let own = self.text.get(from..foreign.start).unwrap_or_default();
            for (at, len, id) in tokenizer.formed(own) {
                encode(done..from + at, ids);
                ids.push(id);
                done = from + at + len;
            }
            from = foreign.end;
        }
        encode(done..self.text.len(), ids);
    }
}
