//! Keys and values of every layer in some format, over a slice of memory or over pages.
#![forbid(unsafe_code)]

use alloc::vec;
use core::marker::PhantomData;
use core::ops::Range;

use super::{BLOCK_POSITIONS, CHUNK_POSITIONS, ChunkedPlacement, KvCodec, KvShape, Pages};
use crate::arena::{Arena, Planner};
use crate::error::Result;

/// Keys and values of every layer, stored by `C`. The initial content of the memory is arbitrary.
#[derive(Debug)]
pub(crate) struct KvStorage<'b, C> {
    shape: KvShape,
    placement: ChunkedPlacement,
    data: DataMut<'b>,
    codec: PhantomData<C>,
}

#[derive(Debug)]
enum DataMut<'b> {
    Chunks(&'b mut [u8]),
    Pages(&'b mut Pages),
}

impl DataMut<'_> {
    fn get(&self) -> KvData<'_> {
        match self {
            DataMut::Chunks(data) => KvData::Chunks(data),
            DataMut::Pages(pages) => KvData::Pages(pages),
        }
    }

    #[inline(never)]
    fn chunk(&mut self, placement: ChunkedPlacement, chunk: usize) -> &mut [u8] {
        match self {
            DataMut::Chunks(data) => &mut data[chunk * placement.chunk_len()..],
            DataMut::Pages(pages) => pages.page_mut(chunk),
        }
    }

    fn import(&mut self, placement: ChunkedPlacement, len: usize, from: &[u8]) {
        let mut rest = from;
        for (chunk, run) in placement.runs(len) {
            let run = &mut self.chunk(placement, chunk)[run];
            let (front, back) = rest.split_at(run.len());
            run.copy_from_slice(front);
            rest = back;
        }
    }
}

impl<'b, C: KvCodec> KvStorage<'b, C> {
    fn placement(shape: &KvShape) -> ChunkedPlacement {
        ChunkedPlacement::new(shape, C::key_block(shape.head_dim), C::value_block(shape.head_dim))
    }

    /// The placement in pages, which are all of the same size.
    pub(crate) fn page_placement(shape: KvShape) -> ChunkedPlacement {
        let capacity = shape.capacity.checked_next_multiple_of(CHUNK_POSITIONS).unwrap_or(usize::MAX);
        Self::placement(&KvShape { capacity, ..shape })
    }

    /// Plans the memory of [`KvStorage::new`]; returns the bytes.
    pub(crate) fn plan(shape: KvShape, planner: &mut Planner) -> usize {
        planner.add::<u8>(Self::placement(&shape).len())
    }

    /// Takes the next bytes of `arena` with their current content.
    pub(crate) fn new(shape: KvShape, arena: &mut Arena<'b>) -> Result<Self> {
        let placement = Self::placement(&shape);
        let data = DataMut::Chunks(arena.take(placement.len())?);
        Ok(KvStorage { shape, placement, data, codec: PhantomData })
    }

    /// Over pages of [`KvStorage::page_placement`]. Positions are written where pages [are owned](Pages::own).
    pub(crate) fn over(shape: KvShape, pages: &'b mut Pages) -> Self {
        let (placement, data) = (Self::page_placement(shape), DataMut::Pages(pages));
        KvStorage { shape, placement, data, codec: PhantomData }
    }

    /// The shape it was made with.
    pub(crate) fn shape(&self) -> KvShape {
        self.shape
    }

    /// Stores the key `(head_dim)` of `head`, counted over all layers. In WebAssembly, where code is downloaded, one copy for
    /// all callers, as the next.
    #[cfg_attr(target_arch = "wasm32", inline(never))]
    #[cfg_attr(not(target_arch = "wasm32"), inline(always))]
    pub(crate) fn set_key(&mut self, head: usize, position: usize, key: &[f32]) {
        let (chunk, block, _) = self.placement.block(head, position / BLOCK_POSITIONS);
        let chunk = self.data.chunk(self.placement, chunk);
        C::put_key(&mut chunk[block], position % BLOCK_POSITIONS, key);
    }

    /// Stores the value `(head_dim)` of `head`, counted over all layers.
    #[cfg_attr(target_arch = "wasm32", inline(never))]
    #[cfg_attr(not(target_arch = "wasm32"), inline(always))]
    pub(crate) fn set_value(&mut self, head: usize, position: usize, value: &[f32]) {
        let (chunk, _, block) = self.placement.block(head, position / BLOCK_POSITIONS);
        let chunk = self.data.chunk(self.placement, chunk);
        C::put_value(&mut chunk[block], position % BLOCK_POSITIONS, value);
    }

    /// Reads the key `(head_dim)` of `head`, counted over all layers.
    #[inline(always)]
    pub(crate) fn key(&self, head: usize, position: usize, key: &mut [f32]) {
        let (chunk, block, _) = self.placement.block(head, position / BLOCK_POSITIONS);
        let chunk = self.data.get().chunk(self.placement, chunk);
        C::get_key(&chunk[block], position % BLOCK_POSITIONS, key);
    }

    /// Copies the stored value of `head`, counted over all layers, to another position.
    #[inline(always)]
    pub(crate) fn copy_value(&mut self, head: usize, from: usize, to: usize) {
        let (placement, d) = (self.placement, self.shape.head_dim);
        let place = |position: usize| {
            let place = placement.place(head, position / BLOCK_POSITIONS);
            (place.chunk, (place.values, position % BLOCK_POSITIONS))
        };
        let ((from_chunk, from), (to_chunk, to)) = (place(from), place(to));
        match &mut self.data {
            DataMut::Chunks(data) => {
                let at = |chunk, (block, t)| (chunk * placement.chunk_len() + block, t);
                C::copy_value(data, None, d, at(from_chunk, from), at(to_chunk, to));
            }
            DataMut::Pages(pages) if from_chunk == to_chunk => {
                C::copy_value(pages.page_mut(to_chunk), None, d, from, to);
            }
            DataMut::Pages(pages) => {
                if let Some([source, page]) = pages.two_mut([from_chunk, to_chunk]) {
                    C::copy_value(page, Some(source), d, from, to);
                }
            }
        }
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
            data: self.data.get(),
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

    /// Zeroes `positions` of `layer`.
    pub(crate) fn clear(&mut self, layer: usize, positions: Range<usize>) {
        let KvShape { kv_heads, head_dim, .. } = self.shape;
        let zeros = vec![0.0; kv_heads * head_dim];
        for position in positions {
            self.write(layer, position, &zeros, &zeros);
        }
    }

    /// Copies the blocks of the first `len` positions (at most the capacity) to `out`, head after head, keys
    /// before values.
    pub(crate) fn export(&self, len: usize, out: &mut [u8]) {
        self.data.get().export(self.placement, len, out);
    }

    /// Restores the output of [`KvStorage::export`] for the same number of positions.
    pub(crate) fn import(&mut self, len: usize, from: &[u8]) {
        self.data.import(self.placement, len, from);
    }
}

/// The bytes of all heads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KvData<'a> {
    Chunks(&'a [u8]),
    Pages(&'a Pages),
}

impl<'a> KvData<'a> {
    /// The bytes from the start of a chunk on; none beyond the last. Inlined into every kernel of attention, it makes modules
    /// for the web 1 % larger, and no token faster.
    #[inline(never)]
    pub(crate) fn chunk(self, placement: ChunkedPlacement, chunk: usize) -> &'a [u8] {
        match self {
            KvData::Chunks(data) => data.get(chunk * placement.chunk_len()..).unwrap_or(&[]),
            KvData::Pages(pages) => pages.page(chunk),
        }
    }

    fn export(self, placement: ChunkedPlacement, len: usize, out: &mut [u8]) {
        let mut rest = out;
        for (chunk, run) in placement.runs(len) {
            let run = &self.chunk(placement, chunk)[run];
            let (front, back) = core::mem::take(&mut rest).split_at_mut(run.len());
            front.copy_from_slice(run);
            rest = back;
        }
    }
}

/// The first positions of one head of a [`KvStorage`].
#[derive(Debug)]
pub(crate) struct KvView<'a, C> {
    pub(crate) data: KvData<'a>,
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
        let exists = match self.data {
            KvData::Chunks(data) => data.len() >= self.placement.len(),
            KvData::Pages(pages) => pages.hold(self.len, self.placement.chunk_len()),
        };
        shaped && exists && positions <= self.len && self.placement.holds(self.head, self.len)
    }

    /// Where the keys and the values of the block of `head` with `position` begin: within the memory if the view
    /// [holds](KvView::holds) the position. The later blocks of the chunk follow them.
    #[inline(never)]
    pub(crate) fn block(&self, head: usize, position: usize) -> (*const u8, *const u8) {
        let place = self.placement.place(head, position / BLOCK_POSITIONS);
        let chunk = self.data.chunk(self.placement, place.chunk).as_ptr();
        (chunk.wrapping_add(place.keys), chunk.wrapping_add(place.values))
    }
}
