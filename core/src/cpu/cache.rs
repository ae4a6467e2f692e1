//! A sequence's keys and values in the CPU's memory.
#![forbid(unsafe_code)]

use alloc::vec::Vec;
use core::ops::Range;

use super::recurrent::Recurrent;
use crate::arena::{Arena, Planner};
use crate::attention::AttentionPattern;
use crate::cache::{BLOCK_POSITIONS, KvCodec, KvFormat, KvShape, KvStorage, Pages, presence, with_codec};
use crate::device::SessionOptions;
use crate::error::{Error, Result};
use crate::memory::Memory;

/// Keys and values of one sequence. All memory is allocated when it is created, or in pages of 128 positions when
/// they are needed ([`Device::paged_cache`](crate::Device::paged_cache)).
pub struct CpuCache<'m> {
    pub(super) format: KvFormat,
    pub(super) shape: KvShape,
    pub(super) attention: AttentionPattern,
    /// The layers that tokens skip, in order.
    pub(super) routed: Vec<usize>,
    /// What operations carry from row to row.
    pub(super) recurrent: Recurrent,
    data: Data<'m>,
}

/// Where the keys and values are, and which positions of the routed layers have some, `(routed, words)`.
enum Data<'m> {
    /// The words come first.
    Chunks(Memory<'m>),
    Pages(Pages, Vec<u64>),
}

impl core::fmt::Debug for CpuCache<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CpuCache").field("format", &self.format).field("shape", &self.shape).finish()
    }
}

/// Bytes of a cache: of its keys and values, and including the slack for alignment.
pub(super) fn plan(format: KvFormat, shape: KvShape, routed: usize) -> Result<(usize, usize)> {
    let mut planner = Planner::default();
    planner.add::<u64>(routed.saturating_mul(presence::words(shape.capacity)));
    let kv = with_codec!(format, C => KvStorage::<C>::plan(shape, &mut planner));
    Ok((kv, planner.total()?))
}

impl<'m> CpuCache<'m> {
    pub(super) fn new(options: &SessionOptions, shape: KvShape, routed: &[usize]) -> Result<Self> {
        let data = Data::Chunks(Memory::zeroed(plan(options.kv, shape, routed.len())?.1)?);
        Ok(Self::over(options, shape, routed, data))
    }

    fn over(options: &SessionOptions, shape: KvShape, routed: &[usize], data: Data<'m>) -> Self {
        let SessionOptions { kv: format, attention, .. } = *options;
        CpuCache { format, shape, attention, routed: routed.to_vec(), recurrent: Recurrent::default(), data }
    }

    /// A cache in pages, of which there are none yet.
    #[cfg(all(target_has_atomic = "ptr", feature = "serving"))]
    pub(super) fn paged(
        options: &SessionOptions,
        shape: KvShape,
        routed: &[usize],
        pool: &crate::cache::PagePool,
    ) -> Result<Self> {
        // Whether all pages would fit the address space.
        plan(options.kv, shape, routed.len())?;
        let page_len = with_codec!(options.kv, C => KvStorage::<C>::page_placement(shape).chunk_len());
        let pages = Pages::new(pool, shape.capacity, page_len)?;
        let words = routed.len() * presence::words(shape.capacity);
        let need = (words * size_of::<u64>()) as u64;
        let zeroed = bytemuck::allocation::try_zeroed_vec(words);
        let present = zeroed.map_err(|()| error!(Memory { need, have: 0 }))?;
        Ok(Self::over(options, shape, routed, Data::Pages(pages, present)))
    }

    /// A cache with the pages of the first `len` positions; `None` if this one has no pages.
    pub(super) fn fork(&self, len: usize) -> Result<Option<Self>> {
        let Data::Pages(pages, present) = &self.data else { return Ok(None) };
        let data = Data::Pages(pages.fork(len, self.shape.capacity)?, present.clone());
        let mut fork = Self::over(&self.options(), self.shape, &self.routed, data);
        fork.recurrent = self.recurrent.copy()?;
        Ok(Some(fork))
    }

    /// Readies `positions` to be written, and where routed layers have them. The first `kept` keep their content.
    pub(super) fn own(&mut self, positions: Range<usize>, kept: usize) -> Result<()> {
        let Data::Pages(pages, present) = &mut self.data else { return Ok(()) };
        let placement = with_codec!(self.format, C => KvStorage::<C>::page_placement(self.shape));
        let layers = present.chunks_exact(presence::words(self.shape.capacity));
        let first = layers.map(|bits| presence::before(bits, positions.start)).min();
        pages.own(first.unwrap_or(positions.start)..positions.end, kept, placement)
    }

    /// The positions with keys and values in a layer that tokens skip; none of another layer.
    pub(super) fn present(&mut self, layer: usize) -> Result<Option<&mut [u64]>> {
        let words = presence::words(self.shape.capacity);
        let Some(at) = self.routed.iter().position(|routed| *routed == layer) else { return Ok(None) };
        let all = match &mut self.data {
            Data::Chunks(memory) => Arena::new(memory.bytes()).take(self.routed.len() * words)?,
            Data::Pages(_, present) => present,
        };
        Ok(Some(&mut all[at * words..][..words]))
    }

    /// How many keys and values of `layer` the first `positions` have.
    pub(super) fn stored(&mut self, layer: usize, positions: usize) -> Result<usize> {
        Ok(self.present(layer)?.map_or(positions, |bits| presence::before(bits, positions)))
    }

    /// A cache in memory that the host supplies, with any content.
    pub(super) fn new_in(
        options: &SessionOptions,
        shape: KvShape,
        routed: &[usize],
        memory: impl AsMut<[u8]> + Send + Sync + 'm,
    ) -> Result<Self> {
        let data = Data::Chunks(Memory::custom(plan(options.kv, shape, routed.len())?.1, memory)?);
        Ok(Self::over(options, shape, routed, data))
    }

    pub(super) fn options(&self) -> SessionOptions {
        SessionOptions { context: self.shape.capacity, kv: self.format, attention: self.attention }
    }

    /// The keys and values, stored by `C`, which must be the codec of the cache's format.
    pub(super) fn storage<C: KvCodec>(&mut self) -> Result<KvStorage<'_, C>> {
        match &mut self.data {
            Data::Chunks(memory) => {
                let mut arena = Arena::new(memory.bytes());
                arena.take::<u64>(self.routed.len() * presence::words(self.shape.capacity))?;
                KvStorage::new(self.shape, &mut arena)
            }
            Data::Pages(pages, _) => Ok(KvStorage::over(self.shape, pages)),
        }
    }

    pub(super) fn export_len(&self, len: usize) -> usize {
        let kv = with_codec!(self.format, C => KvStorage::<C>::export_len(self.shape, len));
        kv + self.present_len(len) + self.recurrent.export_len()
    }

    /// Bytes that say which of the first `len` positions are present in the routed layers.
    fn present_len(&self, len: usize) -> usize {
        self.routed.len() * presence::words(len) * size_of::<u64>()
    }

    /// Writes the first `len` positions to `out`, of [`CpuCache::export_len`] bytes.
    pub(super) fn export(&mut self, len: usize, out: &mut [u8]) -> Result<()> {
        let end = len.next_multiple_of(BLOCK_POSITIONS);
        self.own(len..end, len)?;
        let (out, state) = out.split_at_mut(out.len() - self.recurrent.export_len());
        self.recurrent.export(len, state)?;
        let (kv, present) = out.split_at_mut(out.len() - self.present_len(len));
        let mut present = present.as_chunks_mut().0.iter_mut();
        for layer in 0..self.shape.layers {
            // What comes after belongs to forgotten tokens.
            let from = self.stored(layer, len)?;
            with_codec!(self.format, C => self.storage::<C>()?.clear(layer, from..end));
            if let Some(bits) = self.present(layer)? {
                (len..presence::words(len) * 64).for_each(|position| presence::set(bits, position, false));
                for (bits, out) in bits.iter().zip(present.by_ref().take(presence::words(len))) {
                    *out = bits.to_le_bytes();
                }
            }
        }
        with_codec!(self.format, C => self.storage::<C>()?.export(len, kv));
        Ok(())
    }

    pub(super) fn import(&mut self, len: usize, from: &[u8]) -> Result<()> {
        let (expected, found) = (self.export_len(len) as u64, from.len() as u64);
        if expected != found {
            return Err(error!(Length { what: "imported keys and values", expected, found }));
        }
        self.own(0..len, 0)?;
        let (from, state) = from.split_at(from.len() - self.recurrent.export_len());
        self.recurrent.import(len, state);
        let (kv, present) = from.split_at(from.len() - self.present_len(len));
        with_codec!(self.format, C => self.storage::<C>()?.import(len, kv));
        let mut present = present.as_chunks().0.iter();
        for layer in 0..self.shape.layers {
            let Some(bits) = self.present(layer)? else { continue };
            for (bits, from) in bits.iter_mut().zip(present.by_ref().take(presence::words(len))) {
                *bits = u64::from_le_bytes(*from);
            }
        }
        Ok(())
    }
}
