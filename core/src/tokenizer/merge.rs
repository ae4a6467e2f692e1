//! Byte-pair merges: the table, and merging one piece in `n log n` steps.
#![forbid(unsafe_code)]

use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::vocab::{Index, MAX_MERGES, Texts, reserved};
use crate::error::{Error, Name, Result};
use crate::sort;

/// Pairs of tokens, their merged token and their rank: 12 bytes per merge.
#[derive(Clone, Debug)]
pub(super) struct Merges {
    /// Left id (21 bits), right id (21), rank (22), sorted.
    pairs: Vec<u64>,
    /// The merged token of `pairs[i]`.
    products: Vec<u32>,
}

const RANK: u64 = (1 << 22) - 1;

fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << 43 | u64::from(right) << 22
}

/// A pair of tokens, and which of the possible products it makes.
#[cfg(feature = "sentencepiece")]
pub(super) fn pair_of(left: u32, right: u32, order: u32) -> u64 {
    key(left, right) | u64::from(order) & RANK
}

impl Merges {
    /// Resolves the texts `left right` of `list`, most important first. If two name the same pair, the first
    /// counts, as in llama.cpp. Pairs with a token for which `locked` is true are left out: such tokens are
    /// only reached by name.
    pub(super) fn new(
        list: &Texts<'_>,
        index: &mut Index<'_, '_>,
        texts: &Texts<'_>,
        locked: impl Fn(u32) -> bool,
    ) -> Result<Merges> {
        if list.len() as u64 > MAX_MERGES {
            return Err(error!(Limit {
                what: "number of merges",
                found: list.len() as u64,
                max: MAX_MERGES
            }));
        }
        let mut pairs = reserved(list.len())?;
        let mut by_rank = reserved(list.len())?;
        let mut guess = 0;
        for (rank, text) in list.iter().enumerate() {
            // A token may start with a space in vocabularies that are not byte-level, but never ends with
            // one.
            let space = text.iter().skip(1).position(|b| *b == b' ').map(|i| i + 1);
            let parts = space.and_then(|i| Some((text.get(..i)?, text.get(i + 1..)?)));
            let Some((left, right)) = parts else { return Err(unknown(text)) };
            let ids = (index.find([left, &[]])?, index.find([right, &[]])?);
            // In trained vocabularies the products of successive merges are successive tokens.
            let product = match texts.get(guess) {
                Some(token) if token.strip_prefix(left) == Some(right) => Some(guess as u32),
                _ => index.find([left, right])?,
            };
            let (Some(left), Some(right), Some(product)) = (ids.0, ids.1, product) else {
                return Err(unknown(text));
            };
            guess = product as usize + 1;
            by_rank.push(product);
            if ![left, right, product].into_iter().any(&locked) {
                pairs.push(key(left, right) | rank as u64);
            }
        }
        sort::sort_keys(&mut pairs);
        pairs.dedup_by_key(|pair| *pair & !RANK);
        let mut products = reserved(pairs.len())?;
        products.extend(pairs.iter().filter_map(|pair| by_rank.get((pair & RANK) as usize).copied()));
        Ok(Merges { pairs, products })
    }

    /// Merges with the scores of SentencePiece: `pairs` has a word of [`pair_of`] for each, whose product is
    /// `by_order[order]`. Their ranks become `ranks[order]`, which are equal for equal scores.
    #[cfg(feature = "sentencepiece")]
    pub(super) fn scored(mut pairs: Vec<u64>, by_order: &[u32], ranks: &[u32]) -> Result<Merges> {
        sort::sort_keys(&mut pairs);
        let mut products = reserved(pairs.len())?;
        for pair in &mut pairs {
            let order = (*pair & RANK) as usize;
            products.push(by_order.get(order).copied().unwrap_or(NONE));
            *pair = *pair & !RANK | u64::from(ranks.get(order).copied().unwrap_or(0));
        }
        pairs.shrink_to_fit();
        Ok(Merges { pairs, products })
    }

    /// Rank and merged token of a pair.
    fn find(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        let key = key(left, right);
        let at = self.pairs.partition_point(|pair| *pair < key);
        let pair = *self.pairs.get(at)?;
        if pair & !RANK != key {
            return None;
        }
        Some(((pair & RANK) as u32, *self.products.get(at)?))
    }

    /// Heap memory in bytes.
    pub(super) fn memory(&self) -> usize {
        self.pairs.capacity() * size_of::<u64>() + self.products.capacity() * size_of::<u32>()
    }
}

fn unknown(text: &[u8]) -> Error {
    error!(Unsupported {
        key: Name::new(super::vocab::MERGES),
        found: Name::new(text),
        expected: "two tokens that make a third, with a space between",
    })
}

/// The token of each byte, or [`NONE`].
pub(super) type ByteTokens = [u32; 256];

/// One symbol of the piece being merged, in a linked list by index.
#[derive(Debug)]
struct Symbol {
    id: u32,
    prev: u32,
    next: u32,
    /// Rank of the merge with the next symbol, or [`NONE`].
    rank: u32,
    /// The result of that merge.
    product: u32,
}

/// Not a token, a rank or a position.
pub(super) const NONE: u32 = u32::MAX;

/// Bytes merged at a time. Longer pieces, which do not occur in real text, are cut so that positions fit.
pub(super) const MAX_PIECE: usize = 1 << 30;

/// Applies merges to pieces; its buffers are reused from piece to piece.
#[derive(Debug, Default)]
pub(super) struct Merger {
    symbols: Vec<Symbol>,
    /// Possible merges, as rank and position: the lowest rank first, then the leftmost.
    queue: BinaryHeap<Reverse<u64>>,
    /// Merges ever put in the queue, for tests of `n log n` time.
    pub(super) queued: u64,
}

impl Merger {
    /// Merges pieces of up to `bytes` without allocating.
    pub(super) fn with_capacity(bytes: usize) -> Self {
        // A merge takes one entry from the queue and adds two at most.
        let queue = BinaryHeap::with_capacity(bytes.saturating_mul(2));
        Merger { symbols: Vec::with_capacity(bytes), queue, queued: 0 }
    }

    /// Appends the tokens of `piece`. A byte without a token is removed before merging, as in Hugging Face
    /// tokenizers; llama.cpp removes it afterwards, so that its neighbours do not merge.
    pub(super) fn encode(&mut self, merges: &Merges, bytes: &ByteTokens, piece: &[u8], out: &mut Vec<u32>) {
        for part in piece.chunks(MAX_PIECE) {
            self.encode_part(merges, bytes, part, out);
        }
    }

    fn encode_part(&mut self, merges: &Merges, bytes: &ByteTokens, piece: &[u8], out: &mut Vec<u32>) {
        let tokens = piece.iter().map(|byte| bytes[usize::from(*byte)]).filter(|id| *id != NONE);
        if piece.len() == 1 {
            out.extend(tokens);
            return;
        }
        tokens.for_each(|id| self.push(id));
        self.finish(merges, out);
    }

    /// Adds a symbol to the piece that [`Merger::finish`] merges, which has fewer than [`MAX_PIECE`].
    pub(super) fn push(&mut self, id: u32) {
        let i = self.symbols.len() as u32;
        self.symbols.push(Symbol { id, prev: i.wrapping_sub(1), next: i + 1, rank: NONE, product: 0 });
    }

    /// Symbols since the last [`Merger::finish`].
    #[cfg(feature = "sentencepiece")]
    pub(super) fn len(&self) -> usize {
        self.symbols.len()
    }

    /// Merges the symbols that were added, and appends the tokens that are left.
    pub(super) fn finish(&mut self, merges: &Merges, out: &mut Vec<u32>) {
        self.queue.clear();
        for i in 0..self.symbols.len() {
            self.consider(merges, i as u32);
        }
        while let Some(Reverse(entry)) = self.queue.pop() {
            self.merge(merges, (entry >> 32) as u32, entry as u32);
        }
        let mut at = 0;
        while let Some(symbol) = self.symbols.get(at) {
            out.push(symbol.id);
            at = symbol.next as usize;
        }
        self.symbols.clear();
    }

    /// Queues the merge of the symbol at `at` with the next one, if there is such a merge.
    fn consider(&mut self, merges: &Merges, at: u32) {
        let symbols = &mut self.symbols;
        let Some(left) = symbols.get(at as usize) else { return };
        let found = symbols.get(left.next as usize).and_then(|right| merges.find(left.id, right.id));
        let (rank, product) = found.unwrap_or((NONE, 0));
        if let Some(left) = symbols.get_mut(at as usize) {
            (left.rank, left.product) = (rank, product);
        }
        if rank != NONE {
            self.queue.push(Reverse(u64::from(rank) << 32 | u64::from(at)));
            self.queued += 1;
        }
    }

    /// Applies a queued merge, unless its symbols have changed since. (If their merge now has that rank, too, it comes next.)
    fn merge(&mut self, merges: &Merges, rank: u32, at: u32) {
        let Some(left) = self.symbols.get_mut(at as usize).filter(|s| s.rank == rank) else { return };
        left.id = left.product;
        let (gone, prev) = (left.next, left.prev);
        let Some(right) = self.symbols.get_mut(gone as usize) else { return };
        right.rank = NONE;
        let next = right.next;
        if let Some(left) = self.symbols.get_mut(at as usize) {
            left.next = next;
        }
        if let Some(after) = self.symbols.get_mut(next as usize) {
            after.prev = at;
        }
        self.consider(merges, at);
        self.consider(merges, prev);
    }
}
