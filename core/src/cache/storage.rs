//! Keys and values of every layer in some format, over a slice of memory.
#![forbid(unsafe_code)]

use alloc::vec;
use core::marker::PhantomData;

use super::{BLOCK_POSITIONS, ChunkedPlacement, KvCodec};
use crate::arena::{Arena, Planner};
use crate::error::Result;

/// Shape of a cache: `(layers, kv_heads, capacity, head_dim)` keys, and values of the same shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Transformer layers.
    pub layers: usize,
    /// Key-value heads per layer.
    pub kv_heads: usize,
    /// Positions that can be held.
    pub capacity: usize,
    /// Elements per head.
    pub head_dim: usize,
}

impl KvShape {
    /// The placement of blocks stored by `C`.
    const fn placement(&self, keys: usize, values: usize) -> ChunkedPlacement {
        ChunkedPlacement::new(self, keys, values)
    }
}

/// Keys and values of every layer, stored by `C`. The initial content of the memory is arbitrary.
#[derive(Debug)]
pub(crate) struct KvStorage<'b, C> {
    shape: KvShape,
    placement: ChunkedPlacement,
    data: &'b mut [u8],
    codec: PhantomData<C>,
}

impl<'b, C: KvCodec> KvStorage<'b, C> {
    fn placement(shape: &KvShape) -> ChunkedPlacement {
        shape.placement(C::key_block(shape.head_dim), C::value_block(shape.head_dim))
    }

    /// Plans the memory of [`KvStorage::new`]; returns the bytes.
    pub(crate) fn plan(shape: KvShape, planner: &mut Planner) -> usize {
        planner.add::<u8>(Self::placement(&shape).len())
    }

    /// Takes the next bytes of `arena` with their current content.
    pub(crate) fn new(shape: KvShape, arena: &mut Arena<'b>) -> Result<Self> {
        let placement = Self::placement(&shape);
        Ok(KvStorage { shape, placement, data: arena.take(placement.len())?, codec: PhantomData })
    }

    /// The shape it was made with.
    pub(crate) fn shape(&self) -> KvShape {
        self.shape
    }

    /// Stores the key `(head_dim)` of `head`, counted over all layers.
    #[inline(always)]
    pub(crate) fn set_key(&mut self, head: usize, position: usize, key: &[f32]) {
        let (block, _) = self.placement.block(head, position / BLOCK_POSITIONS);
        C::put_key(&mut self.data[block], position % BLOCK_POSITIONS, key);
    }

    /// Stores the value `(head_dim)` of `head`, counted over all layers.
    #[inline(always)]
    pub(crate) fn set_value(&mut self, head: usize, position: usize, value: &[f32]) {
        let (_, block) = self.placement.block(head, position / BLOCK_POSITIONS);
        C::put_value(&mut self.data[block], position % BLOCK_POSITIONS, value);
    }

    /// Reads the key `(head_dim)` of `head`, counted over all layers.
    #[inline(always)]
    pub(crate) fn key(&self, head: usize, position: usize, key: &mut [f32]) {
        let (block, _) = self.placement.block(head, position / BLOCK_POSITIONS);
        C::get_key(&self.data[block], position % BLOCK_POSITIONS, key);
    }

    /// Copies the stored value of `head`, counted over all layers, to another position.
    #[inline(always)]
    pub(crate) fn copy_value(&mut self, head: usize, from: usize, to: usize) {
        let placement = self.placement;
        let place = |position: usize| {
            (placement.place(head, position / BLOCK_POSITIONS).1, position % BLOCK_POSITIONS)
        };
        C::copy_value(self.data, self.shape.head_dim, place(from), place(to));
    }

    /// Stores one token's keys and values of `layer`; both `(kv_heads, head_dim)`.
    #[inline(always)]
    pub(crate) fn write(&mut self, layer: usize, position: usize, keys: &[f32], values: &[f32]) {
        let KvShape { kv_heads, head_dim, .. } = self.shape;
        let heads = keys.chunks_exact(head_dim).zip(values.chunks_exact(head_dim));
        for (head, (key, value)) in (layer * kv_heads..).zip(heads) {
            self.set_key(head, position, key);
            self.set_value(head, position, value);
        }
    }

    /// The first `len` positions of one head of one layer.
    pub(crate) fn view(&self, layer: usize, head: usize, len: usize) -> KvView<'_, C> {
        KvView {
            data: self.data,
            placement: self.placement,
            head: layer * self.shape.kv_heads + head,
            len,
            head_dim: self.shape.head_dim,
            codec: PhantomData,
        }
    }

    /// Bytes that [`KvStorage::export`] writes for `len` positions, whatever the capacity.
    pub(crate) fn export_len(shape: KvShape, len: usize) -> usize {
        Self::placement(&shape).export_len(len)
    }

    /// Zeroes the positions after the first `len`, to the end of their last block: they belong to forgotten
    /// tokens.
    pub(crate) fn clear_rest(&mut self, len: usize) {
        let shape = self.shape;
        let zeros = vec![0.0; shape.head_dim];
        for head in 0..shape.layers * shape.kv_heads {
            for position in len..len.next_multiple_of(BLOCK_POSITIONS) {
                self.set_key(head, position, &zeros);
                self.set_value(head, position, &zeros);
            }
        }
    }

    /// Copies the blocks of the first `len` positions (at most the capacity) to `out`, head after head, keys
    /// before values.
    pub(crate) fn export(&self, len: usize, out: &mut [u8]) {
        self.placement.export(self.data, len, out);
    }

    /// Restores the output of [`KvStorage::export`] for the same number of positions.
    pub(crate) fn import(&mut self, len: usize, from: &[u8]) {
        self.placement.import(self.data, len, from);
    }
}

/// The first positions of one head of a [`KvStorage`].
#[derive(Debug)]
pub(crate) struct KvView<'a, C> {
    /// The bytes of all heads.
    pub(crate) data: &'a [u8],
    pub(crate) placement: ChunkedPlacement,
    /// The head, counted over all layers.
    pub(crate) head: usize,
    /// Positions.
    pub(crate) len: usize,
    /// Elements per head.
    pub(crate) head_dim: usize,
    codec: PhantomData<C>,
}

impl<C> Clone for KvView<'_, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> Copy for KvView<'_, C> {}

impl<C: KvCodec> KvView<'_, C> {
    /// Whether the view has at least `positions`.
    pub(crate) fn holds(&self, positions: usize) -> bool {
        let shaped = self.placement.shaped(C::key_block(self.head_dim), C::value_block(self.head_dim));
        let shaped = shaped && self.data.len() >= self.placement.len();
        shaped && positions <= self.len && self.placement.holds(self.head, self.len)
    }
}
