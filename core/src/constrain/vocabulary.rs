//! A vocabulary sorted by bytes, walked as a tree.
#![forbid(unsafe_code)]

use super::quoted;
use super::writable::Writable;
use crate::sort;
use crate::tokenizer::Tokenizer;
use alloc::vec;
use alloc::vec::Vec;

/// Tokens sorted by their bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Sorted {
    pub(super) tokens: Vec<Entry>,
    pub(super) bytes: Vec<u8>,
}

/// A token: where its bytes end, and how many of them it shares with the token before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) token: u32,
    pub(super) end: u32,
    pub(super) shared: u16,
    /// The next entry that shares fewer bytes with the one before it.
    pub(super) next: u32,
}

impl Sorted {
    /// The tokens of `order` for which `keep` returns true.
    fn of<'b>(order: &[u32], text: &dyn Fn(u32) -> &'b [u8], keep: &dyn Fn(u32, &[u8]) -> bool) -> Sorted {
        let mut sorted = Sorted::default();
        let mut last: &[u8] = &[];
        for &token in order {
            let text = text(token);
            if !keep(token, text) {
                continue;
            }
            let shared = last.iter().zip(text).take_while(|(a, b)| a == b).count() as u16;
            sorted.bytes.extend_from_slice(text);
            sorted.tokens.push(Entry { token, end: sorted.bytes.len() as u32, shared, next: 0 });
            last = text;
        }
        let mut open: Vec<(u16, u32)> = Vec::new();
        for (i, entry) in sorted.tokens.iter_mut().enumerate().rev() {
            while open.last().is_some_and(|&(shared, _)| shared >= entry.shared) {
                open.pop();
            }
            entry.next = open.last().map_or(u32::MAX, |&(_, at)| at);
            open.push((entry.shared, i as u32));
        }
        sorted
    }

    pub(super) fn text(&self, at: usize) -> &[u8] {
        let from = at.checked_sub(1).and_then(|before| self.tokens.get(before)).map_or(0, |e| e.end);
        let to = self.tokens.get(at).map_or(from, |e| e.end);
        self.bytes.get(from as usize..to as usize).unwrap_or_default()
    }

    /// Calls `visit` with the lengths of the tokens that are prefixes of `text`.
    pub(super) fn beginnings(&self, text: &[u8], mut visit: impl FnMut(usize)) {
        let (mut from, mut to) = (0, self.tokens.len());
        for (len, &byte) in text.iter().enumerate() {
            // Among tokens equal in `len` bytes, find those equal in one more.
            let edge = |after: bool| {
                let (mut low, mut high) = (from, to);
                while low < high {
                    let mid = low + (high - low) / 2;
                    let next = self.text(mid).get(len).copied();
                    if next < Some(byte) || (after && next == Some(byte)) {
                        low = mid + 1;
                    } else {
                        high = mid;
                    }
                }
                low
            };
            (from, to) = (edge(false), edge(true));
            if from == to {
                return;
            }
            if self.text(from).len() == len + 1 {
                visit(len + 1);
            }
        }
    }
}

/// The texts of a model's tokens, prepared for constraints: about 40 bytes per token and its text.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    pub(super) all: Sorted,
    /// Tokens that a JSON string does not contain unescaped.
    pub(super) rest: Sorted,
    /// For each token the number of characters that a JSON string contains unescaped, or [`NOT_PLAIN`].
    pub(super) plain: Vec<u16>,
    /// Tokens of one byte.
    pub(super) single: Sorted,
    /// Tokens with a `<`, which may begin a marker.
    pub(super) tagged: Sorted,
    /// One bit per token: those without a `<`.
    pub(super) untagged: Vec<u32>,
    pub(super) ends: Vec<u32>,
    pub(super) writable: Writable,
    /// The range of each token's bytes in `all`.
    ranges: Vec<(u32, u32)>,
    /// Maximum number of bytes of a token.
    pub(super) longest: u32,
}

impl Vocabulary {
    /// The tokens of a tokenizer.
    pub fn new(tokenizer: &Tokenizer<'_>) -> Vocabulary {
        let texts = (0..tokenizer.vocab_size() as u32).map(|token| {
            let shown = !tokenizer.is_end(token) && tokenizer.is_shown(token);
            tokenizer.token_bytes(token).filter(|_| shown).into_iter().flatten()
        });
        Vocabulary::from_texts(texts, tokenizer.ends())
    }

    /// A vocabulary from the bytes of each token, none for tokens that may not be written, and the tokens
    /// that end a text. Tokens over 4096 bytes, and those beyond the first 2^21, may not be written either.
    pub fn from_texts<T: IntoIterator<Item = u8>>(
        texts: impl IntoIterator<Item = T>,
        ends: &[u32],
    ) -> Vocabulary {
        let (mut bytes, mut ranges) = (Vec::new(), Vec::new());
        for text in texts.into_iter().take(1 << 21) {
            let start = bytes.len() as u32;
            // A truncated text would be mistaken for another.
            let before = bytes.len();
            bytes.extend(text.into_iter().take(MAX_TOKEN + 1));
            if bytes.len() - before > MAX_TOKEN || bytes.len() > MAX_TEXT {
                bytes.truncate(before);
            }
            ranges.push((start, bytes.len() as u32));
        }
        for &end in ends {
            if let Some(range) = ranges.get_mut(end as usize) {
                range.1 = range.0;
            }
        }
        let text = |token: u32| {
            let (from, to) = ranges.get(token as usize).copied().unwrap_or_default();
            bytes.get(from as usize..to as usize).unwrap_or_default()
        };
        let mut order = sort::sorted(ranges.len(), &|a, b| text(a).cmp(text(b)));
        order.retain(|&token| !text(token).is_empty());
        let mut single = [false; 256];
        for &token in &order {
            if let [byte] = *text(token)
                && let Some(found) = single.get_mut(usize::from(byte))
            {
                *found = true;
            }
        }
        let writable = Writable::new(|byte| single.get(usize::from(byte)) == Some(&true));
        let (mut plain, mut longest) = (vec![NOT_PLAIN; ranges.len()], 0);
        let mut untagged = vec![0u32; ranges.len().div_ceil(32)];
        for &token in &order {
            let text = text(token);
            longest = longest.max(text.len() as u32);
            let chars = quoted::plain(text).filter(|_| writable.has_all(text));
            if let Some((slot, chars)) = plain.get_mut(token as usize).zip(chars) {
                *slot = chars;
            }
            if let Some(word) = untagged.get_mut(token as usize / 32)
                && !text.contains(&b'<')
            {
                *word |= 1 << (token % 32);
            }
        }
        let is_plain = |token: u32| plain.get(token as usize).is_some_and(|&chars| chars != NOT_PLAIN);
        let all = Sorted::of(&order, &text, &|_, _| true);
        let rest = Sorted::of(&order, &text, &|token, _| !is_plain(token));
        let single = Sorted::of(&order, &text, &|_, text| text.len() == 1);
        let tagged = Sorted::of(&order, &text, &|_, text| text.contains(&b'<'));
        let mut ranges = vec![(0, 0); ranges.len()];
        let mut start = 0;
        for entry in &all.tokens {
            if let Some(range) = ranges.get_mut(entry.token as usize) {
                *range = (start, entry.end);
            }
            start = entry.end;
        }
        Vocabulary {
            all,
            rest,
            plain,
            single,
            tagged,
            untagged,
            ends: ends.into(),
            writable,
            ranges,
            longest,
        }
    }

    /// Sets the bits of tokens of `least` to `most` characters.
    pub(super) fn mark_plain(&self, least: u32, most: u32, bits: &mut [u32]) {
        let most = most.min(u32::from(NOT_PLAIN) - 1) as u16;
        let Ok(least) = u16::try_from(least) else { return };
        for (word, chars) in bits.iter_mut().zip(self.plain.chunks(32)) {
            let marks = chars.iter().enumerate().map(|(i, c)| u32::from((least..=most).contains(c)) << i);
            *word |= marks.fold(0, |all, mark| all | mark);
        }
    }

    /// Number of tokens.
    pub fn size(&self) -> usize {
        self.ranges.len()
    }

    /// The token's bytes; none if it may not be written.
    pub(super) fn text(&self, token: u32) -> &[u8] {
        let (from, to) = self.ranges.get(token as usize).copied().unwrap_or_default();
        self.all.bytes.get(from as usize..to as usize).unwrap_or_default()
    }
}

/// Marks a token with quotes, escapes, control characters, incomplete characters or bytes that are no tokens by themselves.
pub(super) const NOT_PLAIN: u16 = u16::MAX;

/// Maximum number of bytes of all tokens together.
const MAX_TEXT: usize = 1 << 30;

/// Maximum number of bytes of a token that may be written.
const MAX_TOKEN: usize = 1 << 12;
