//! Placement of keys and values in the memory of a cache, or in its [pages](super::paged).
//!
//! ```text
//! chunk of 128 positions | chunk | ... | chunk of the remaining positions
//! chunk: head of layer 0 | head | ... | head of the last layer
//! head:  keys, block after block | values, block after block
//! ```
//!
//! The first positions of all layers are stored first, next to each other. Memory therefore fills up as a
//! conversation grows, even if the system allocates large pages; one large page per head would exceed most of
//! the cache. Large pages make a long context a third faster to read.
#![forbid(unsafe_code)]

use core::ops::Range;

use super::{BLOCK_POSITIONS, KvShape};

/// Blocks per chunk. Fewer would leave short runs of memory; more would make a short conversation with a
/// large model take more than the large pages that it fills.
const CHUNK: usize = 8;

/// Positions per chunk.
pub(crate) const CHUNK_POSITIONS: usize = CHUNK * BLOCK_POSITIONS;

/// Offsets of the blocks of every head, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkedPlacement {
    /// Heads of all layers.
    heads: usize,
    /// Blocks per head.
    blocks: usize,
    /// Bytes of a block's keys.
    keys: usize,
    /// Bytes of a block's values.
    values: usize,
}

impl ChunkedPlacement {
    /// The placement for blocks with `keys` bytes of keys and `values` bytes of values.
    pub(crate) const fn new(shape: &KvShape, keys: usize, values: usize) -> Self {
        let heads = shape.layers.saturating_mul(shape.kv_heads);
        ChunkedPlacement { heads, blocks: shape.capacity.div_ceil(BLOCK_POSITIONS), keys, values }
    }

    /// Bytes of the whole cache; saturates, so that plans report the overflow.
    pub(crate) const fn len(&self) -> usize {
        let block = self.keys.saturating_add(self.values);
        self.heads.saturating_mul(self.blocks).saturating_mul(block)
    }

    /// Whether blocks have `keys` bytes of keys and `values` bytes of values.
    pub(crate) const fn shaped(&self, keys: usize, values: usize) -> bool {
        self.keys == keys && self.values == values
    }

    /// Whether `head` exists and has room for `positions`.
    pub(crate) const fn holds(&self, head: usize, positions: usize) -> bool {
        head < self.heads && positions.div_ceil(BLOCK_POSITIONS) <= self.blocks
    }

    /// Bytes of a chunk of [`CHUNK_POSITIONS`].
    pub(crate) const fn chunk_len(&self) -> usize {
        let block = self.keys.saturating_add(self.values);
        self.heads.saturating_mul(CHUNK).saturating_mul(block)
    }

    /// Where `block` of `head` is. The later blocks of the chunk follow it.
    #[inline(always)]
    pub(crate) const fn place(&self, head: usize, block: usize) -> Place {
        let (chunk, block) = (block / CHUNK, block % CHUNK);
        let left = self.blocks - chunk * CHUNK;
        let blocks = if left < CHUNK { left } else { CHUNK };
        let start = head * blocks * (self.keys + self.values);
        Place {
            chunk,
            keys: start + block * self.keys,
            values: start + blocks * self.keys + block * self.values,
        }
    }

    /// The chunk of `block` of `head`, and in it the byte ranges of its keys and of its values.
    #[inline(always)]
    pub(crate) const fn block(&self, head: usize, block: usize) -> (usize, Range<usize>, Range<usize>) {
        let Place { chunk, keys, values } = self.place(head, block);
        (chunk, keys..keys + self.keys, values..values + self.values)
    }
}

/// Where a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) chunk: usize,
    /// Offsets of its keys and of its values in the chunk.
    pub(crate) keys: usize,
    pub(crate) values: usize,
}

impl ChunkedPlacement {
    /// Bytes of the blocks that hold the first `positions` of all heads.
    pub(crate) const fn export_len(&self, positions: usize) -> usize {
        self.heads * positions.div_ceil(BLOCK_POSITIONS) * (self.keys + self.values)
    }

    /// The blocks of the first `positions` (at most the capacity) of every head: the keys, then the values of each. A
    /// chunk, and a byte range in it.
    pub(crate) fn runs(self, positions: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
        let blocks = positions.div_ceil(BLOCK_POSITIONS);
        (0..self.heads).flat_map(move |head| {
            let block = move |block| self.block(head, block);
            (0..blocks).map(block).flat_map(|(chunk, keys, values)| [(chunk, keys), (chunk, values)])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_has_one_place_and_early_positions_come_first() {
        for (layers, kv_heads, capacity) in [(1, 1, 1), (2, 3, 100), (3, 2, 128), (2, 2, 129), (5, 1, 700)] {
            let shape = KvShape { layers, kv_heads, capacity, head_dim: 0 };
            let chunks = ChunkedPlacement::new(&shape, 7, 5);
            let mut owner = alloc::vec![usize::MAX; chunks.len()];
            let blocks = capacity.div_ceil(BLOCK_POSITIONS);
            assert_eq!(chunks.len(), layers * kv_heads * blocks * 12);
            for head in 0..layers * kv_heads {
                assert!(chunks.holds(head, capacity) && !chunks.holds(head, blocks * BLOCK_POSITIONS + 1));
                for block in 0..blocks {
                    let (chunk, keys, values) = chunks.block(head, block);
                    assert_eq!(chunk, block / CHUNK);
                    for at in keys.chain(values).map(|at| chunk * chunks.chunk_len() + at) {
                        assert_eq!(owner[at], usize::MAX);
                        owner[at] = block / CHUNK;
                    }
                    if block % CHUNK > 0 {
                        let Place { chunk, keys, values } = chunks.place(head, block - 1);
                        assert_eq!(
                            chunks.place(head, block),
                            Place { chunk, keys: keys + 7, values: values + 5 }
                        );
                    }
                }
            }
            assert!(!chunks.holds(layers * kv_heads, 1));
            assert!(owner.is_sorted() && owner.last() < Some(&usize::MAX));
        }
    }
}
