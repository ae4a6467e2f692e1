//! Tokens outside the merges: control tokens and user-defined ones.
#![forbid(unsafe_code)]

use crate::sort;
use alloc::vec::Vec;

use super::vocab::{Texts, reserved};
use super::{Special, TokenKind};
use crate::error::Result;

/// Control tokens whatever `tokenizer.ggml.token_type` states, so that text cannot form them in a file with
/// wrong or missing types. llama.cpp does the same.
const ALWAYS_CONTROL: [&[u8]; 3] = [b"<|im_start|>", b"<|im_end|>", b"<|endoftext|>"];

/// Flag in `by_id`: the token is a control token.
const CONTROL: u32 = 1 << 31;

/// All added tokens of a vocabulary: 8 bytes each.
#[derive(Clone, Debug)]
pub(super) struct Added {
    /// Ids sorted by text.
    by_text: Vec<u32>,
    /// Sorted ids, with the flag [`CONTROL`].
    by_id: Vec<u32>,
    /// One bit for each first byte of such a token.
    first: [u32; 8],
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

impl Added {
    pub(super) fn new(texts: &Texts<'_>, types: impl Fn(usize) -> i32) -> Result<Added> {
        let kinds = || texts.iter().enumerate().map(|(id, text)| (id, text, kind(types(id), text)));
        let count = kinds().filter(|(_, _, kind)| *kind != TokenKind::Normal).count();
        let mut added = Added { by_text: reserved(count)?, by_id: reserved(count)?, first: [0; 8] };
        for (id, text, kind) in kinds() {
            if kind == TokenKind::Normal {
                continue;
            }
            added.by_id.push(id as u32 | if kind == TokenKind::Control { CONTROL } else { 0 });
            // Only UTF-8 can be found in a text, and only at character boundaries.
            if let Some(b) = text.first()
                && core::str::from_utf8(text).is_ok()
            {
                added.by_text.push(id as u32);
                added.first[usize::from(b / 32)] |= 1 << (b % 32);
            }
        }
        let text = |id: u32| texts.get(id as usize);
        sort::sort(&mut added.by_text, &|a, b| text(a).cmp(&text(b)));
        Ok(added)
    }

    pub(super) fn kind(&self, id: u32) -> TokenKind {
        let at = self.by_id.partition_point(|entry| entry & !CONTROL < id);
        match self.by_id.get(at) {
            Some(entry) if *entry == id | CONTROL => TokenKind::Control,
            Some(entry) if *entry == id => TokenKind::UserDefined,
            _ => TokenKind::Normal,
        }
    }

    /// The added token with this text.
    pub(super) fn find(&self, texts: &Texts<'_>, text: &[u8]) -> Option<u32> {
        let at = self.by_text.binary_search_by(|id| texts.get(*id as usize).unwrap_or(&[]).cmp(text)).ok()?;
        self.by_text.get(at).copied()
    }

    /// The leftmost added token in `text` that `special` allows, and the longest one there: its offset,
    /// length and id.
    pub(super) fn next(
        &self,
        texts: &Texts<'_>,
        text: &[u8],
        special: Special,
    ) -> Option<(usize, usize, u32)> {
        if special == Special::Text {
            return None;
        }
        let starts = |b: &u8| self.first[usize::from(b / 32)] >> (b % 32) & 1 == 1;
        text.iter().enumerate().filter(|(_, b)| starts(b)).find_map(|(at, _)| {
            let (len, id) = self.longest(texts, text.get(at..)?, special)?;
            Some((at, len, id))
        })
    }

    /// The longest allowed added token that `text` starts with.
    fn longest(&self, texts: &Texts<'_>, text: &[u8], special: Special) -> Option<(usize, u32)> {
        let token = |id: &u32| texts.get(*id as usize).unwrap_or(&[]);
        let mut found = None;
        // All tokens that match the first `depth` bytes; the shortest comes first.
        let mut same = self.by_text.as_slice();
        for depth in 0..=text.len() {
            if let [id, rest @ ..] = same
                && token(id).len() == depth
            {
                if special == Special::Parse || self.kind(*id) == TokenKind::UserDefined {
                    found = Some((depth, *id));
                }
                same = rest;
            }
            let (Some(b), [_, ..]) = (text.get(depth), same) else { break };
            let from = same.partition_point(|id| token(id).get(depth) < Some(b));
            same = same.get(from..).unwrap_or(&[]);
            let to = same.partition_point(|id| token(id).get(depth) <= Some(b));
            same = same.get(..to).unwrap_or(&[]);
        }
        found
    }

    /// Heap memory in bytes.
    pub(super) fn memory(&self) -> usize {
        (self.by_text.capacity() + self.by_id.capacity()) * size_of::<u32>()
    }
}
