//! The vocabulary in the file's own bytes: token texts by id, and ids by text while loading.
#![forbid(unsafe_code)]

use alloc::borrow::Cow;
use alloc::vec::Vec;

use hashbrown::HashTable;

use crate::error::{Error, Name, Result};

/// Keys of GGUF.
pub(super) const PRE: &str = "tokenizer.ggml.pre";
pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
pub(super) const MERGES: &str = "tokenizer.ggml.merges";
pub(super) const TYPES: &str = "tokenizer.ggml.token_type";
pub(super) const SCORES: &str = "tokenizer.ggml.scores";

/// Ids and merge ranks share 64-bit words (see [`super::merge`]), so they have 21 and 22 bits.
pub(super) const MAX_TOKENS: u64 = (1 << 21) - 1;
/// See [`MAX_TOKENS`].
pub(super) const MAX_MERGES: u64 = 1 << 22;

/// A vector with room for `n` elements, or an error if there is no such memory.
pub(super) fn reserved<T>(n: usize) -> Result<Vec<T>> {
    let mut v = Vec::new();
    match v.try_reserve_exact(n) {
        Ok(()) => Ok(v),
        Err(_) => Err(error!(Memory { need: (n as u64).saturating_mul(size_of::<T>() as u64), have: 0 })),
    }
}

/// An array of strings as GGUF stores it, each a 64-bit length and its bytes, with random access.
#[derive(Clone, Debug)]
pub(super) struct Texts<'a> {
    bytes: Cow<'a, [u8]>,
    len: usize,
    /// Offset of text `STEP * i`.
    starts: Vec<u32>,
}

/// Distance between texts whose offset is stored; those in between are reached by their lengths.
const STEP: usize = 8;

impl<'a> Texts<'a> {
    /// Checks every length of the array `bytes` of `len` strings, and that none exceeds `max`.
    pub(super) fn new(bytes: &'a [u8], len: usize, what: &'static str, max: u64) -> Result<Texts<'a>> {
        if bytes.len() as u64 >= u64::from(u32::MAX) {
            return Err(error!(Limit { what, found: bytes.len() as u64, max: u64::from(u32::MAX) }));
        }
        let mut starts = reserved(len.min(bytes.len() / 8).div_ceil(STEP))?;
        let mut at = 0;
        for i in 0..len {
            if i % STEP == 0 {
                starts.push(at as u32);
            }
            let (text, next) = text_at(bytes, at).ok_or(error!(Truncated {
                what,
                at: at as u64,
                need: 8,
                have: (bytes.len() - at) as u64,
            }))?;
            if text.len() as u64 > max {
                return Err(error!(Limit { what, found: text.len() as u64, max }));
            }
            at = next;
        }
        Ok(Texts { bytes: Cow::Borrowed(bytes), len, starts })
    }

    /// The same with a copy of the bytes.
    pub(super) fn into_owned(self) -> Texts<'static> {
        Texts { bytes: Cow::Owned(self.bytes.into_owned()), len: self.len, starts: self.starts }
    }

    /// Heap memory in bytes.
    pub(super) fn memory(&self) -> usize {
        let owned = if let Cow::Owned(bytes) = &self.bytes { bytes.capacity() } else { 0 };
        owned + self.starts.capacity() * size_of::<u32>()
    }

    /// Number of texts.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Text `i`.
    pub(super) fn get(&self, i: usize) -> Option<&[u8]> {
        if i >= self.len {
            return None;
        }
        let mut at = *self.starts.get(i / STEP)? as usize;
        for _ in 0..i % STEP {
            at = text_at(&self.bytes, at)?.1;
        }
        text_at(&self.bytes, at).map(|(text, _)| text)
    }

    /// All texts in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let bytes = &*self.bytes;
        let mut at = 0;
        (0..self.len).map_while(move |_| {
            let (text, next) = text_at(bytes, at)?;
            at = next;
            Some(text)
        })
    }
}

/// The text whose length is at offset `at`, and the offset of the next one.
fn text_at(bytes: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let (len, rest) = bytes.get(at..)?.split_first_chunk::<8>()?;
    let text = rest.get(..usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
    Some((text, at + 8 + text.len()))
}

/// A hash table of ids by text; the texts are stored elsewhere.
#[derive(Clone, Debug)]
pub(super) struct Table {
    ids: HashTable<u32>,
    /// Maximum number of texts compared to insert one, and so the most to compare when looking one up.
    reach: u64,
}

/// A table being filled, and used while loading to resolve merges.
pub(super) struct Index<'v, 'a> {
    texts: &'v Texts<'a>,
    table: Table,
    /// Texts that may still be compared: a vocabulary made to collide is an error instead of a long wait.
    budget: u64,
}

fn hash(parts: [&[u8]; 2]) -> u64 {
    let mut h: u64 = 0xcbf2_9ce4_8422_2325; // FNV-1a
    for part in parts {
        for b in part {
            h = (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3);
        }
    }
    h ^= h >> 32;
    h.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Result of a search in a [`Table`].
struct Probe {
    id: Option<u32>,
    /// Texts compared.
    visited: u64,
}

impl Table {
    /// The id of this text.
    pub(super) fn find(&self, texts: &Texts<'_>, text: &[u8]) -> Option<u32> {
        self.probe(texts, [text, &[]], self.reach)?.id
    }

    /// Searches for the text made of these two parts; `None` after comparing `max` texts without a result.
    fn probe(&self, texts: &Texts<'_>, parts: [&[u8]; 2], max: u64) -> Option<Probe> {
        let mut visited = 0;
        let found = self.ids.find(hash(parts), |&id| {
            visited += 1;
            let text = texts.get(id as usize).unwrap_or(&[]);
            // Exceeding the limit ends the search as if the text had been found.
            visited > max || text.strip_prefix(parts[0]) == Some(parts[1])
        });
        (visited <= max).then_some(Probe { id: found.copied(), visited })
    }

    /// Heap memory in bytes.
    pub(super) fn memory(&self) -> usize {
        self.ids.allocation_size()
    }
}

impl<'v, 'a> Index<'v, 'a> {
    /// Indexes every text but empty ones; two equal ones are an error. `merges` is the number that will be
    /// resolved.
    pub(super) fn new(texts: &'v Texts<'a>, merges: usize) -> Result<Index<'v, 'a>> {
        let n = texts.len();
        let mut ids = HashTable::new();
        let rehash = |&id: &u32| hash([texts.get(id as usize).unwrap_or(&[]), &[]]);
        let full = error!(Memory { need: n as u64 * size_of::<u32>() as u64, have: 0 });
        ids.try_reserve(n, rehash).map_err(|_| full)?;
        let budget = 64 * (n as u64 + 3 * merges as u64) + (1 << 14);
        let mut index = Index { texts, table: Table { ids, reach: 0 }, budget };
        for (id, text) in texts.iter().enumerate() {
            if text.is_empty() {
                continue;
            }
            let probe = index.probe([text, &[]])?;
            if probe.id.is_some() {
                return Err(error!(Duplicate { what: "token", name: Name::new(text) }));
            }
            index.table.ids.insert_unique(hash([text, &[]]), id as u32, rehash);
            index.table.reach = index.table.reach.max(probe.visited + 1);
        }
        Ok(index)
    }

    /// The id of the text made of these two parts.
    pub(super) fn find(&mut self, parts: [&[u8]; 2]) -> Result<Option<u32>> {
        Ok(self.probe(parts)?.id)
    }

    /// The id of this text. Long texts use up the budget faster, so that finding all parts of long tokens takes bounded time.
    #[cfg(feature = "sentencepiece")]
    pub(super) fn find_hashing(&mut self, text: &[u8]) -> Result<Option<u32>> {
        let (found, max) = (self.texts.len() as u64, 64);
        let long = error!(Limit { what: "number of long tokens", found, max });
        self.budget = self.budget.checked_sub(text.len() as u64).ok_or(long)?;
        self.find([text, &[]])
    }

    /// The table alone, to look up texts after loading.
    pub(super) fn into_table(self) -> Table {
        self.table
    }

    fn probe(&mut self, parts: [&[u8]; 2]) -> Result<Probe> {
        let found = self.texts.len() as u64;
        let colliding = error!(Limit { what: "number of colliding tokens", found, max: 64 });
        let probe = self.table.probe(self.texts, parts, self.budget).ok_or(colliding)?;
        // Of texts with colliding hashes, one in 128 is compared, and eight are examined per step.
        const TAGS: u64 = 16;
        self.budget = self.budget.checked_sub(1 + TAGS * probe.visited).ok_or(colliding)?;
        Ok(probe)
    }
}
