//! What a model is trained on, and in which order.
#![forbid(unsafe_code)]

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use shohin_core::error::Name;
use shohin_core::{Error, Result};

use crate::batch::Batch;
use crate::hash::hash;
use crate::text;

/// The share of sampled rows that begin at a document.
const DOCUMENTS: f64 = 0.85;

/// Tokens to learn from: one stream, of which rows are cut, or sequences that stay whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Data {
    tokens: Vec<u32>,
    /// How much predicting each token counts; empty for 1.
    weights: Vec<f32>,
    /// Empty for one stream.
    sequences: Vec<Range<usize>>,
    /// First tokens of the documents of a stream, in order.
    documents: Vec<usize>,
    /// What [`Order::Sampled`] draws from.
    parts: Vec<Part>,
}

/// A part of the data with a share of the rows.
#[derive(Clone, Debug, PartialEq)]
struct Part {
    tokens: Range<usize>,
    /// Its sequences, or its documents in a stream.
    items: Range<usize>,
    share: f64,
}

/// The order of rows or sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Each epoch has all of them once, in an order of its own that follows from the seed.
    #[default]
    Shuffled,
    /// As they are: row `r` of step `s` begins at token `(s * rows + r) * row_tokens`.
    Sequential,
    /// Each is drawn anew, from a part of the data by its [share](Data::mixed): a row begins at a document with a probability of
    /// 0.85, and anywhere else.
    Sampled,
}

impl core::str::FromStr for Order {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "shuffled" => Ok(Order::Shuffled),
            "sequential" => Ok(Order::Sequential),
            "sampled" => Ok(Order::Sampled),
            _ => Err(Error::Unsupported {
                key: Name::new("order"),
                found: Name::new(text),
                expected: "shuffled, sequential or sampled",
            }),
        }
    }
}

impl core::fmt::Display for Order {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Order::Shuffled => "shuffled",
            Order::Sequential => "sequential",
            Order::Sampled => "sampled",
        })
    }
}

/// How far training has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Times that everything was read.
    pub epoch: u64,
    /// Rows or sequences of this epoch that were read; of all that were drawn, for [`Order::Sampled`].
    pub next: u64,
}

/// The size of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSize {
    /// Rows.
    pub rows: usize,
    /// Tokens of a row.
    pub row_tokens: usize,
}

impl BatchSize {
    /// Tokens of a batch.
    pub const fn tokens(&self) -> usize {
        self.rows * self.row_tokens
    }
}

/// A [`Batch`] that owns its parts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    /// Of all sequences.
    pub tokens: Vec<u32>,
    /// Of each sequence.
    pub lengths: Vec<usize>,
    /// What follows each token.
    pub targets: Vec<u32>,
    /// How much each row counts.
    pub weights: Vec<f32>,
}

impl Rows {
    /// The batch.
    pub fn batch(&self) -> Batch<'_> {
        Batch {
            tokens: &self.tokens,
            lengths: &self.lengths,
            targets: &self.targets,
            weights: &self.weights,
            teacher: None,
            prefix: None,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.tokens.clear();
        self.lengths.clear();
        self.targets.clear();
        self.weights.clear();
    }
}

impl Data {
    /// A stream of tokens, of which rows are cut anywhere. `weights` says how much predicting each token counts, and is empty
    /// for 1.
    ///
    /// # Errors
    /// [`Error::Length`] for fewer than two tokens, or another number of weights.
    pub fn stream(tokens: Vec<u32>, weights: Vec<f32>) -> Result<Data> {
        let part = Part { tokens: 0..tokens.len(), items: 0..0, share: 1.0 };
        let data = Data { tokens, weights, parts: vec![part], ..Data::default() };
        data.check()?;
        Ok(data)
    }

    /// The same stream, with the first tokens of its documents, in order.
    ///
    /// # Errors
    /// [`Error::Limit`] for one outside of the stream.
    pub fn with_documents(mut self, documents: Vec<usize>) -> Result<Data> {
        let (max, last) = (self.tokens.len() - 1, documents.last().copied().unwrap_or(0));
        if last > max || !documents.is_sorted() || !self.sequences.is_empty() {
            let (found, max) = (last as u64, max as u64);
            return Err(Error::Limit { what: "the first token of a document", found, max });
        }
        for part in &mut self.parts {
            let before = |at: usize| documents.partition_point(|start| *start < at);
            part.items = before(part.tokens.start)..before(part.tokens.end);
        }
        self.documents = documents;
        Ok(self)
    }

    /// Streams, or sequences, one after another: [`Order::Sampled`] takes `share` of the rows from each, relative to the sum of all
    /// shares.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for shares that are not numbers over 0, and for streams beside sequences.
    pub fn mixed(parts: Vec<(Data, f64)>) -> Result<Data> {
        let mut all = Data::default();
        for (data, share) in parts {
            text::check(share > 0.0 && share.is_finite(), "share", share, "a number over 0")?;
            if !all.parts.is_empty() && all.sequences.is_empty() != data.sequences.is_empty() {
                let (key, found) = (Name::new("a mixture"), Name::new("a stream beside sequences"));
                return Err(Error::Unsupported { key, found, expected: "parts of one kind" });
            }
            let (tokens, items) = (all.tokens.len(), all.sequences.len() + all.documents.len());
            // Weights of all, if one has any.
            if all.weights.is_empty() && !data.weights.is_empty() {
                all.weights.resize(tokens, 1.0);
            }
            if !all.weights.is_empty() && data.weights.is_empty() {
                all.weights.resize(tokens + data.tokens.len(), 1.0);
            }
            all.tokens.extend(data.tokens);
            all.weights.extend(data.weights);
            let moved = |range: Range<usize>, by: usize| range.start + by..range.end + by;
            all.sequences.extend(data.sequences.into_iter().map(|range| moved(range, tokens)));
            all.documents.extend(data.documents.into_iter().map(|start| start + tokens));
            all.parts.extend(data.parts.into_iter().map(|part| Part {
                tokens: moved(part.tokens, tokens),
                items: moved(part.items, items),
                share: part.share * share,
            }));
        }
        all.check()?;
        Ok(all)
    }

    /// Sequences that stay whole: tokens of all, the length of each, and how much predicting each token counts.
    ///
    /// # Errors
    /// [`Error::Length`] as for [`Data::stream`], or if a sequence has fewer than two tokens.
    pub fn sequences(tokens: Vec<u32>, lengths: &[usize], weights: Vec<f32>) -> Result<Data> {
        let mut start = 0;
        let mut sequences = Vec::with_capacity(lengths.len());
        for len in lengths {
            if *len < 2 {
                return Err(Error::Length { what: "tokens of a sequence", expected: 2, found: *len as u64 });
            }
            sequences.push(start..start + len);
            start += len;
        }
        if start != tokens.len() {
            let (expected, found) = (start as u64, tokens.len() as u64);
            return Err(Error::Length { what: "tokens of all sequences", expected, found });
        }
        let part = Part { tokens: 0..tokens.len(), items: 0..sequences.len(), share: 1.0 };
        let data = Data { tokens, weights, sequences, parts: vec![part], ..Data::default() };
        data.check()?;
        Ok(data)
    }

    fn check(&self) -> Result<()> {
        let n = self.tokens.len();
        if n < 2 {
            return Err(Error::Length { what: "tokens to train on", expected: 2, found: n as u64 });
        }
        if !self.weights.is_empty() && self.weights.len() != n {
            let (expected, found) = (n as u64, self.weights.len() as u64);
            return Err(Error::Length { what: "weights of tokens", expected, found });
        }
        Ok(())
    }

    /// All tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// How much predicting each token counts; empty for 1.
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// The longest sequence, if they stay whole.
    pub fn longest(&self) -> Option<usize> {
        self.sequences.iter().map(|range| range.len() - 1).max()
    }

    /// Rows of `row_tokens` tokens, or sequences, of an epoch.
    pub fn len(&self, row_tokens: usize) -> usize {
        match self.sequences.len() {
            // A row needs one token more, as the target of its last.
            0 => ((self.tokens.len() - 1) / row_tokens.max(1)).max(1),
            sequences => sequences,
        }
    }

    /// The tokens of item `i`, and the target of its last.
    fn item(&self, i: usize, row_tokens: usize) -> Range<usize> {
        match self.sequences.get(i) {
            Some(range) => range.clone(),
            None => i * row_tokens..(i * row_tokens + row_tokens + 1).min(self.tokens.len()),
        }
    }

    /// The `n`th row or sequence of [`Order::Sampled`].
    fn sampled(&self, n: u64, seed: u64, row_tokens: usize) -> Range<usize> {
        let key = hash(seed ^ hash(n));
        let draw = |which: u64| hash(key ^ hash(which));
        // The product is less than `len`.
        let below = |which: u64, len: usize| ((u128::from(draw(which)) * len as u128) >> 64) as usize;
        let unit = |which: u64| (draw(which) >> 11) as f64 / (1u64 << 53) as f64;
        let mut left = unit(0) * self.parts.iter().map(|part| part.share).sum::<f64>();
        let chosen = self.parts.iter().find(|part| {
            left -= part.share;
            left < 0.0
        });
        let Some(Part { tokens, items, .. }) = chosen.or(self.parts.last()) else { return 0..0 };
        if !self.sequences.is_empty() {
            return self.sequences[items.start + below(1, items.len())].clone();
        }
        let last = tokens.end.saturating_sub(row_tokens + 1).max(tokens.start);
        let start = match items.is_empty() || unit(2) >= DOCUMENTS {
            true => tokens.start + below(1, last - tokens.start + 1),
            false => self.documents[items.start + below(1, items.len())].min(last),
        };
        start..(start + row_tokens + 1).min(tokens.end)
    }

    fn push(&self, range: Range<usize>, to: &mut Rows) {
        let (inputs, targets) = (range.start..range.end - 1, range.start + 1..range.end);
        to.lengths.push(inputs.len());
        to.tokens.extend_from_slice(&self.tokens[inputs]);
        to.targets.extend_from_slice(&self.tokens[targets.clone()]);
        if self.weights.is_empty() {
            to.weights.resize(to.tokens.len(), 1.0);
        } else {
            to.weights.extend_from_slice(&self.weights[targets]);
        }
    }

    /// The next batch in `order`: `size.rows` rows of the stream, or as many sequences as fit into them. `cursor` moves on.
    ///
    /// # Errors
    /// [`Error::Limit`] for a sequence that is longer than a batch.
    pub fn next(
        &self,
        size: BatchSize,
        order: Order,
        seed: u64,
        cursor: &mut Cursor,
        to: &mut Rows,
    ) -> Result<()> {
        to.clear();
        let n = self.len(size.row_tokens) as u64;
        loop {
            let full = match self.sequences.is_empty() {
                true => to.lengths.len() >= size.rows,
                false => to.tokens.len() >= size.tokens(),
            };
            if full {
                return Ok(());
            }
            let (mut at, mut epoch) = (cursor.next, cursor.epoch);
            if at >= n && order != Order::Sampled {
                (at, epoch) = (0, epoch + 1);
            }
            let range = match order {
                Order::Sequential => self.item(at as usize, size.row_tokens),
                Order::Shuffled => self.item(permuted(at, n, seed ^ hash(epoch)) as usize, size.row_tokens),
                Order::Sampled => self.sampled(at, seed, size.row_tokens),
            };
            let room = size.tokens() - to.tokens.len();
            if !self.sequences.is_empty() && range.len() - 1 > room {
                if to.lengths.is_empty() {
                    let (found, max) = (range.len() as u64 - 1, size.tokens() as u64);
                    return Err(Error::Limit { what: "tokens of a sequence to train on", found, max });
                }
                return Ok(());
            }
            self.push(range, to);
            *cursor = Cursor { epoch, next: at + 1 };
        }
    }

    /// Batches of everything once, in order.
    pub fn each(&self, size: BatchSize, mut job: impl FnMut(&Rows) -> Result<()>) -> Result<()> {
        let n = self.len(size.row_tokens) as u64;
        let (mut cursor, mut rows) = (Cursor::default(), Rows::default());
        while cursor.epoch == 0 && cursor.next < n {
            // The last batch is smaller.
            let left = (n - cursor.next) as usize;
            let rows_left = if self.sequences.is_empty() { size.rows.min(left) } else { size.rows };
            let before = cursor.next;
            self.next(BatchSize { rows: rows_left, ..size }, Order::Sequential, 0, &mut cursor, &mut rows)?;
            if cursor.epoch > 0 {
                // It went on with the first sequence: leave those out.
                let again = cursor.next as usize;
                let keep = rows.lengths.len() - again;
                rows.lengths.truncate(keep);
                let tokens: usize = rows.lengths.iter().sum();
                rows.tokens.truncate(tokens);
                rows.targets.truncate(tokens);
                rows.weights.truncate(tokens);
                debug_assert_eq!(before as usize + keep, n as usize);
            }
            job(&rows)?;
        }
        Ok(())
    }
}

/// Where `i` of `n` is in a permutation that follows from `key`: four rounds of a Feistel network over the next power of four,
/// repeated until the result is one of `n`.
fn permuted(i: u64, n: u64, key: u64) -> u64 {
    let bits = (64 - n.saturating_sub(1).leading_zeros()).div_ceil(2).max(1);
    let mask = (1 << bits) - 1;
    let mut x = i;
    loop {
        let (mut left, mut right) = (x >> bits, x & mask);
        for round in 0..4 {
            let mixed = hash(key ^ hash(right ^ round << 60)) & mask;
            (left, right) = (right, left ^ mixed);
        }
        x = left << bits | right;
        if x < n {
            return x;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permutations_have_everything_once() {
        for n in [1, 2, 3, 5, 64, 65, 1000] {
            for key in [0, 7] {
                let mut seen: Vec<u64> = (0..n).map(|i| permuted(i, n, key)).collect();
                if n > 5 {
                    assert!(seen.iter().enumerate().any(|(i, x)| i as u64 != *x), "{n} {key}");
                }
                seen.sort_unstable();
                assert!(seen.iter().copied().eq(0..n), "{n} {key}");
            }
        }
        assert_ne!(
            (0..100).map(|i| permuted(i, 100, 1)).collect::<Vec<_>>(),
            (0..100).map(|i| permuted(i, 100, 2)).collect::<Vec<_>>()
        );
    }

    #[test]
    fn sequential_rows_begin_where_they_should() {
        let data = Data::stream((0..1000).collect(), Vec::new()).unwrap();
        let size = BatchSize { rows: 3, row_tokens: 10 };
        let (mut cursor, mut rows) = (Cursor::default(), Rows::default());
        for step in 0..20 {
            data.next(size, Order::Sequential, 1, &mut cursor, &mut rows).unwrap();
            assert_eq!(rows.lengths, [10; 3]);
            for r in 0..3 {
                let start = (step * 3 + r) * 10;
                assert!(rows.tokens[r * 10..][..10].iter().copied().eq(start as u32..start as u32 + 10));
                assert_eq!(rows.targets[r * 10 + 9], start as u32 + 10);
            }
        }
    }

    #[test]
    fn an_epoch_has_every_sequence_once() {
        let lengths = [4, 7, 2, 9, 5];
        let weights: Vec<f32> = (0..27).map(|i| i as f32).collect();
        let data = Data::sequences((0..27).collect(), &lengths, weights).unwrap();
        let size = BatchSize { rows: 2, row_tokens: 6 };
        for order in [Order::Shuffled, Order::Sequential] {
            let (mut cursor, mut rows) = (Cursor::default(), Rows::default());
            let mut seen = Vec::new();
            while seen.len() < 10 {
                data.next(size, order, 3, &mut cursor, &mut rows).unwrap();
                assert!(rows.tokens.len() <= 12 && !rows.tokens.is_empty());
                assert!(rows.tokens.iter().zip(&rows.targets).all(|(a, b)| a + 1 == *b));
                assert!(rows.targets.iter().zip(&rows.weights).all(|(a, b)| *a as f32 == *b));
                let mut at = 0;
                for len in &rows.lengths {
                    seen.push(rows.tokens[at]);
                    at += len;
                }
            }
            for epoch in seen.chunks_exact(5).take(2) {
                let mut epoch = epoch.to_vec();
                epoch.sort_unstable();
                assert_eq!(epoch, [0, 4, 11, 13, 22]);
            }
        }
        let mut tokens = 0;
        data.each(size, |rows| {
            tokens += rows.tokens.len();
            Ok(())
        })
        .unwrap();
        assert_eq!(tokens, 22);
    }

    #[test]
    fn samples_have_the_shares_of_their_parts() {
        let part = |first: u32, n: u32| Data::stream((first..first + n).collect(), Vec::new()).unwrap();
        let documents = vec![0, 50, 500, 985];
        let parts =
            vec![(part(0, 1000).with_documents(documents.clone()).unwrap(), 3.0), (part(1000, 8), 1.0)];
        let data = Data::mixed(parts).unwrap();
        let size = BatchSize { rows: 8000, row_tokens: 20 };
        let (mut cursor, mut rows, mut again) = (Cursor::default(), Rows::default(), Rows::default());
        data.next(size, Order::Sampled, 1, &mut cursor, &mut rows).unwrap();
        assert_eq!(cursor, Cursor { epoch: 0, next: 8000 });
        assert!(rows.tokens.iter().zip(&rows.targets).all(|(a, b)| a + 1 == *b));
        let mut starts = Vec::new();
        let mut at = 0;
        for len in &rows.lengths {
            starts.push(rows.tokens[at] as usize);
            at += len;
        }
        // Six standard deviations of what is drawn 8,000 times.
        let second = starts.iter().filter(|start| **start >= 1000).count();
        assert!((2000 - 233..2000 + 233).contains(&second), "{second}");
        assert!(rows.lengths.iter().zip(&starts).all(|(len, at)| *len == if *at < 1000 { 20 } else { 7 }));
        // The last document has no whole row.
        let at_documents = starts.iter().filter(|at| [0, 50, 500, 979].contains(at)).count();
        assert!((5100 - 270..5140 + 270).contains(&at_documents), "{at_documents}");
        // Rows do not depend on how many a step has.
        let half = BatchSize { rows: 4000, ..size };
        let mut cursor = Cursor { epoch: 0, next: 4000 };
        data.next(half, Order::Sampled, 1, &mut cursor, &mut again).unwrap();
        assert_eq!(again.lengths, rows.lengths[4000..]);
        assert!(rows.tokens.ends_with(&again.tokens));
    }

    #[test]
    fn a_mixture_keeps_sequences_and_weights() {
        let stream = || Data::stream((0..10).collect(), Vec::new()).unwrap();
        let chats =
            |first: u32| Data::sequences((first..first + 6).collect(), &[2, 4], vec![0.5; 6]).unwrap();
        let data = Data::mixed(vec![(chats(0), 1.0), (chats(6), 2.0)]).unwrap();
        let size = BatchSize { rows: 4, row_tokens: 16 };
        let (mut cursor, mut rows) = (Cursor::default(), Rows::default());
        data.next(size, Order::Sampled, 1, &mut cursor, &mut rows).unwrap();
        let mut at = 0;
        for len in &rows.lengths {
            let start = rows.tokens[at];
            assert!([(0, 1), (2, 3), (6, 1), (8, 3)].contains(&(start, *len)), "{start} {len}");
            at += len;
        }
        let weighted = Data::stream((0..4).collect(), vec![0.25; 4]).unwrap();
        let data = Data::mixed(vec![(stream(), 1.0), (weighted, 1.0), (stream(), 1.0)]).unwrap();
        assert_eq!(data.weights(), [vec![1.0; 10], vec![0.25; 4], vec![1.0; 10]].concat());
        for parts in [vec![(stream(), 1.0), (chats(0), 1.0)], vec![(stream(), -1.0)], vec![]] {
            assert!(Data::mixed(parts).is_err());
        }
        assert!(stream().with_documents(vec![3, 10]).is_err());
    }

    #[test]
    fn everything_once_has_the_last_rows() {
        let data = Data::stream((0..102).collect(), Vec::new()).unwrap();
        let mut lengths = Vec::new();
        let size = BatchSize { rows: 4, row_tokens: 10 };
        data.each(size, |rows| {
            lengths.push(rows.lengths.len());
            Ok(())
        })
        .unwrap();
        assert_eq!(lengths, [4, 4, 2]);
        let size = BatchSize { rows: 1, row_tokens: 5 };
        let long = Data::sequences((0..9).collect(), &[9], Vec::new()).unwrap();
        let (mut cursor, mut rows) = (Cursor::default(), Rows::default());
        let error = long.next(size, Order::Shuffled, 0, &mut cursor, &mut rows).unwrap_err();
        assert!(matches!(error, Error::Limit { found: 8, max: 5, .. }), "{error}");
    }
}
