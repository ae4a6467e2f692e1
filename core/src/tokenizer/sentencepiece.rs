//! SentencePiece's BPE (Kudo & Richardson 2018): a text's characters are merged, spaces among them.
//!
//! Of all adjacent symbols whose joined text is a token, those of the token with the highest score are merged, the leftmost ones
//! among equals, until there are none. Symbols begin as characters, a space as U+2581; a character that is no token becomes
//! the tokens of its bytes (`<0xE2>`), which do not merge.
//!
//! What can merge is computed while loading: for every token, the pairs of tokens that make it. Encoding is then as fast as with a list of
//! merges. A token with a character that is no token itself is never formed; sentencepiece does not train such tokens.
#![forbid(unsafe_code)]

use alloc::vec::Vec;

use super::added::Added;
use super::alphabet::{SPACE, may_lack_token};
use super::merge::{ByteTokens, MAX_PIECE, Merger, Merges, NONE, pair_of};
use super::token_kind::TokenKind;
use super::vocab::{Index, MAX_MERGES, SCORES, TOKENS, Texts, reserved};
use crate::error::{Error, Name, Result};
use crate::sort;

/// Types of tokens in files.
pub(super) const CONTROL: i32 = 3;
const UNUSED: i32 = 5;

/// What a tokenizer of this kind has beside merges and the tokens of bytes.
#[derive(Clone, Debug)]
pub(super) struct SentencePiece {
    /// Characters that are tokens (in the upper half of a word), sorted, and their ids.
    chars: Vec<u64>,
    /// Characters that come before a space in some token, sorted. After any other character, a space begins a piece of its own.
    before_space: Vec<u32>,
    pub(super) add_space_prefix: bool,
}

/// The byte of a token `<0xXX>`.
pub(super) fn byte_of(text: &[u8]) -> Option<u8> {
    let [high, low] = *text.strip_prefix(b"<0x")?.strip_suffix(b">")?.as_array()?;
    let digit = |c: u8| matches!(c, b'0'..=b'9' | b'A'..=b'F').then(|| char::from(c).to_digit(16)).flatten();
    Some((digit(high)? * 16 + digit(low)?) as u8)
}

/// Validates and indexes the tokens of a vocabulary with these `scores`.
pub(super) fn load(
    scores: &[u8],
    add_space_prefix: bool,
    texts: &Texts<'_>,
    type_of: &dyn Fn(usize) -> i32,
) -> Result<(Added, Merges, ByteTokens, SentencePiece)> {
    let scores = scores.as_chunks::<4>().0;
    if scores.len() != texts.len() {
        let (expected, found) = (texts.len() as u64, scores.len() as u64);
        return Err(error!(Length { what: SCORES, expected, found }));
    }
    let added = Added::new(texts, type_of)?;
    // Enough for every part of tokens of up to some 50 bytes, and of some longer ones.
    let total: usize = texts.iter().map(<[u8]>::len).sum();
    let mut index = Index::new(texts, total / 4)?;
    let bytes = byte_tokens(&added, texts);

    // Tokens that merges may form, from the highest score to the lowest.
    let is_byte = |text: &[u8], id| byte_of(text).is_some_and(|byte| bytes[usize::from(byte)] == id);
    let mut order: Vec<u64> = reserved(texts.len())?;
    for ((id, text), score) in (0u32..).zip(texts.iter()).zip(scores) {
        let score = f32::from_le_bytes(*score);
        if score.is_nan() {
            let (key, found) = (Name::new(SCORES), Name::new("NaN"));
            return Err(error!(Unsupported { key, found, expected: "numbers" }));
        }
        let normal = added.kind(id) == TokenKind::Normal && type_of(id as usize) != UNUSED;
        if normal && !is_byte(text, id) && core::str::from_utf8(text).is_ok_and(|text| !text.is_empty()) {
            order.push(u64::from(descending(score)) << 32 | u64::from(id));
        }
    }
    sort::sort_keys(&mut order);
    let mut formed =
        Formed { by_order: reserved(order.len())?, ranks: reserved(order.len())?, order_of: Vec::new() };
    formed.order_of = reserved(texts.len())?;
    formed.order_of.resize(texts.len(), NONE);
    let (mut rank, mut last) = (0, None);
    for (i, entry) in (0u32..).zip(&order) {
        let (score, id) = (entry >> 32, *entry as u32);
        if last.replace(score).is_some_and(|last| last != score) {
            rank += 1;
        }
        formed.by_order.push(id);
        formed.ranks.push(rank);
        if let Some(slot) = formed.order_of.get_mut(id as usize) {
            *slot = i;
        }
    }
    drop(order);

    let kind = SentencePiece::new(&formed, texts, add_space_prefix)?;
    if kind.token_of(SPACE).is_none() {
        let (key, found) = (Name::new(TOKENS), Name::new("without U+2581"));
        return Err(error!(Unsupported { key, found, expected: "a normal token for the space, U+2581" }));
    }
    check_bytes(&bytes, &kind, &added, texts)?;
    let pairs = formed.pairs(&mut index, texts)?;
    let merges = Merges::scored(pairs, &formed.by_order, &formed.ranks)?;
    Ok((added, merges, bytes, kind))
}

/// A number that is smaller for higher scores, and equal for equal ones.
fn descending(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits(); // -0 becomes 0
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !ascending
}

/// The tokens `<0x00>` to `<0xFF>`.
fn byte_tokens(added: &Added, texts: &Texts<'_>) -> ByteTokens {
    let mut bytes = [NONE; 256];
    for (id, text) in (0u32..).zip(texts.iter()) {
        if let Some(byte) = byte_of(text)
            && added.kind(id) == TokenKind::Normal
        {
            bytes[usize::from(byte)] = id;
        }
    }
    bytes
}

/// Checks that no byte of a text is lost.
fn check_bytes(bytes: &ByteTokens, kind: &SentencePiece, added: &Added, texts: &Texts<'_>) -> Result<()> {
    for (byte, id) in (0..=255).zip(bytes) {
        // The first files of Gemma have a token for the tab in the place of that of its byte.
        let is_char = || byte < 0x80 && (kind.token_of(byte.into()).or(added.find(texts, &[byte])).is_some());
        if *id == NONE && !may_lack_token(byte) && !is_char() {
            let digit =
                |value: u8| char::from_digit(value.into(), 16).map_or(b'?', |c| c.to_ascii_uppercase() as u8);
            let name = [b'<', b'0', b'x', digit(byte >> 4), digit(byte & 15), b'>'];
            return Err(error!(Unsupported {
                key: Name::new(TOKENS),
                found: Name::new(&name[..]),
                expected: "a token for every byte, this one too",
            }));
        }
    }
    Ok(())
}

/// The tokens that merges may form, while loading.
struct Formed {
    /// From the highest score to the lowest.
    by_order: Vec<u32>,
    /// The rank of each of them: equal for equal scores.
    ranks: Vec<u32>,
    /// For each id its place in `by_order`, or [`NONE`].
    order_of: Vec<u32>,
}

impl Formed {
    /// Which of these tokens has the text.
    fn find(&self, index: &mut Index<'_, '_>, text: &[u8]) -> Result<Option<u32>> {
        let id = index.find_hashing(text)?;
        Ok(id.filter(|id| self.order_of.get(*id as usize).is_some_and(|order| *order != NONE)))
    }

    /// The pairs of tokens that make another one, as [`Merges::scored`] takes them.
    fn pairs(&self, index: &mut Index<'_, '_>, texts: &Texts<'_>) -> Result<Vec<u64>> {
        let mut pairs = Vec::new();
        for (order, id) in (0u32..).zip(&self.by_order) {
            let text = texts.get(*id as usize).unwrap_or_default();
            let text = core::str::from_utf8(text).unwrap_or_default();
            for (at, _) in text.char_indices().skip(1) {
                let Some((left, right)) = text.split_at_checked(at) else { continue };
                let Some(left) = self.find(index, left.as_bytes())? else { continue };
                let Some(right) = self.find(index, right.as_bytes())? else { continue };
                if pairs.len() as u64 >= MAX_MERGES {
                    let found = MAX_MERGES + 1;
                    return Err(error!(Limit { what: "number of merges", found, max: MAX_MERGES }));
                }
                pairs.try_reserve(1).map_err(|_| error!(Memory { need: 8 * pairs.len() as u64, have: 0 }))?;
                pairs.push(pair_of(left, right, order));
            }
        }
        Ok(pairs)
    }
}

impl SentencePiece {
    fn new(formed: &Formed, texts: &Texts<'_>, add_space_prefix: bool) -> Result<SentencePiece> {
        let (mut chars, mut before) = (Vec::new(), Vec::new());
        let full = |n: usize| error!(Memory { need: 8 * n as u64, have: 0 });
        for id in &formed.by_order {
            let text = texts.get(*id as usize).unwrap_or_default();
            let text = core::str::from_utf8(text).unwrap_or_default();
            let mut all = text.chars();
            if let (Some(c), None) = (all.next(), all.next()) {
                chars.try_reserve(1).map_err(|_| full(chars.len()))?;
                chars.push(u64::from(u32::from(c)) << 32 | u64::from(*id));
            }
            for (c, after) in text.chars().zip(text.chars().skip(1)) {
                if after == SPACE && c != SPACE {
                    before.try_reserve(1).map_err(|_| full(before.len()))?;
                    before.push(u64::from(u32::from(c)));
                }
            }
        }
        sort::sort_keys(&mut chars);
        sort::sort_keys(&mut before);
        before.dedup();
        let before_space = before.into_iter().map(|c| c as u32).collect();
        Ok(SentencePiece { chars, before_space, add_space_prefix })
    }

    /// The token of a character.
    fn token_of(&self, c: char) -> Option<u32> {
        let first = u64::from(u32::from(c)) << 32;
        let found = *self.chars.get(self.chars.partition_point(|entry| *entry < first))?;
        (found >> 32 == first >> 32).then_some(found as u32)
    }

    /// Appends the tokens of `text`.
    pub(super) fn encode(
        &self,
        merges: &Merges,
        bytes: &ByteTokens,
        text: &str,
        merger: &mut Merger,
        out: &mut Vec<u32>,
    ) {
        if text.is_empty() {
            return;
        }
        let mut last = SPACE;
        for c in self.add_space_prefix.then_some(SPACE).into_iter().chain(text.chars()) {
            let c = if c == ' ' { SPACE } else { c };
            let begins =
                c == SPACE && last != SPACE && self.before_space.binary_search(&last.into()).is_err();
            // A character has up to four bytes.
            if begins || merger.len() > MAX_PIECE - 4 {
                merger.finish(merges, out);
            }
            match self.token_of(c) {
                Some(id) => merger.push(id),
                None => {
                    let mut utf8 = [0; 4];
                    let tokens = c.encode_utf8(&mut utf8).bytes().map(|byte| bytes[usize::from(byte)]);
                    tokens.filter(|id| *id != NONE).for_each(|id| merger.push(id));
                }
            }
            last = c;
        }
        merger.finish(merges, out);
    }

    /// Heap memory in bytes.
    pub(super) fn memory(&self) -> usize {
        self.chars.capacity() * size_of::<u64>() + self.before_space.capacity() * size_of::<u32>()
    }
}
