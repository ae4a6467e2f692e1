//! Tokens outside the merges: control tokens and user-defined ones.
#![forbid(unsafe_code)]

use crate::sort;
use alloc::vec::Vec;

use super::automaton::{Automaton, Matches};
use super::token_kind::{Special, TokenKind};
use super::vocab::{Texts, reserved};
use crate::error::Result;

/// Control tokens whatever `tokenizer.ggml.token_type` states, so that text cannot form them in a file with
/// wrong or missing types. llama.cpp does the same with some of them.
const ALWAYS_CONTROL: [&[u8]; 8] = [
    b"<|im_start|>",
    b"<|im_end|>",
    b"<|endoftext|>",
    b"<|start_header_id|>",
    b"<|end_header_id|>",
    b"<|eot_id|>",
    b"<start_of_turn>",
    b"<end_of_turn>",
];

/// Flag in `by_id`: the token is a control token.
const CONTROL: u32 = 1 << 31;

/// All added tokens of a vocabulary.
#[derive(Clone, Debug)]
pub(super) struct Added {
    /// Ids sorted by text.
    by_text: Vec<u32>,
    /// Sorted ids, with the flag [`CONTROL`].
    by_id: Vec<u32>,
    /// Finds them in texts.
    automaton: Automaton,
}

/// The kind of a token, from GGUF's `token_type` and its text.
fn kind(type_id: i32, text: &[u8]) -> TokenKind {
    match type_id {
        _ if ALWAYS_CONTROL.contains(&text) => TokenKind::Control,
        2 | 3 => TokenKind::Control, // unknown, control
        4 => TokenKind::UserDefined,
        _ => TokenKind::Normal,
    }
}

fn kind_of(by_id: &[u32], id: u32) -> TokenKind {
    let at = by_id.partition_point(|entry| entry & !CONTROL < id);
    match by_id.get(at) {
        Some(entry) if *entry == id | CONTROL => TokenKind::Control,
        Some(entry) if *entry == id => TokenKind::UserDefined,
        _ => TokenKind::Normal,
    }
}

impl Added {
    pub(super) fn new(texts: &Texts<'_>, types: impl Fn(usize) -> i32) -> Result<Added> {
        let kinds = || texts.iter().enumerate().map(|(id, text)| (id, text, kind(types(id), text)));
        let count = kinds().filter(|(_, _, kind)| *kind != TokenKind::Normal).count();
        let (mut by_text, mut by_id) = (reserved(count)?, reserved(count)?);
        for (id, text, kind) in kinds() {
            if kind == TokenKind::Normal {
                continue;
            }
            by_id.push(id as u32 | if kind == TokenKind::Control { CONTROL } else { 0 });
            // Only UTF-8 can be found in a text, and only at character boundaries.
            if !text.is_empty() && core::str::from_utf8(text).is_ok() {
                by_text.push(id as u32);
            }
        }
        let text = |id: u32| texts.get(id as usize);
        sort::sort(&mut by_text, &|a, b| text(a).cmp(&text(b)));
        let automaton = Automaton::new(texts, &by_text, &|id| kind_of(&by_id, id))?;
        Ok(Added { by_text, by_id, automaton })
    }

    pub(super) fn kind(&self, id: u32) -> TokenKind {
        kind_of(&self.by_id, id)
    }

    /// The added token with this text.
    pub(super) fn find(&self, texts: &Texts<'_>, text: &[u8]) -> Option<u32> {
        let at = self.by_text.binary_search_by(|id| texts.get(*id as usize).unwrap_or(&[]).cmp(text)).ok()?;
        self.by_text.get(at).copied()
    }

    /// The added tokens in `text` that `special` allows, as [`Automaton::matches`].
    pub(super) fn matches<'a>(&'a self, text: &'a [u8], special: Special) -> Matches<'a> {
        self.automaton.matches(text, special)
    }

    /// Heap memory in bytes.
    pub(super) fn memory(&self) -> usize {
        (self.by_text.capacity() + self.by_id.capacity()) * size_of::<u32>() + self.automaton.memory()
    }
}
