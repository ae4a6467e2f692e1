//! A sequence's keys and values in the CPU's memory.
#![forbid(unsafe_code)]

use core::ops::Range;

use crate::arena::{Arena, Planner};
use crate::attention::AttentionPattern;
use crate::cache::{BLOCK_POSITIONS, KvCodec, KvFormat, KvShape, KvStorage, Pages, with_codec};
use crate::device::SessionOptions;
use crate::error::{Error, Result};
use crate::memory::Memory;

/// Keys and values of one sequence. All memory is allocated when it is created, or in pages of 128 positions when
/// they are needed ([`Device::paged_cache`](crate::Device::paged_cache)).
pub struct CpuCache<'m> {
    pub(super) format: KvFormat,
    pub(super) shape: KvShape,
    pub(super) attention: AttentionPattern,
    data: Data<'m>,
}

/// Where the keys and values are.
enum Data<'m> {
    Chunks(Memory<'m>),
    Pages(Pages),
}

impl core::fmt::Debug for CpuCache<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CpuCache").field("format", &self.format).field("shape", &self.shape).finish()
    }
}

/// Bytes of a cache: of its keys and values, and including the slack for alignment.
pub(super) fn plan(format: KvFormat, shape: KvShape) -> Result<(usize, usize)> {
    let mut planner = Planner::default();
    let kv = with_codec!(format, C => KvStorage::<C>::plan(shape, &mut planner));
    Ok((kv, planner.total()?))
}

impl<'m> CpuCache<'m> {
    pub(super) fn new(options: &SessionOptions, shape: KvShape) -> Result<Self> {
        let data = Data::Chunks(Memory::zeroed(plan(options.kv, shape)?.1)?);
        Ok(CpuCache { format: options.kv, shape, attention: options.attention, data })
    }

    /// A cache in pages, of which there are none yet.
    #[cfg(target_has_atomic = "ptr")]
    pub(super) fn paged(
        options: &SessionOptions,
        shape: KvShape,
        pool: &crate::cache::PagePool,
    ) -> Result<Self> {
        // Whether all pages would fit the address space.
        plan(options.kv, shape)?;
        let page_len = with_codec!(options.kv, C => KvStorage::<C>::page_placement(shape).chunk_len());
        let data = Data::Pages(Pages::new(pool, shape.capacity, page_len)?);
        Ok(CpuCache { format: options.kv, shape, attention: options.attention, data })
    }

    /// A cache with the pages of the first `len` positions; `None` if this one has no pages.
    pub(super) fn fork(&self, len: usize) -> Result<Option<Self>> {
        let CpuCache { format, shape, attention, ref data } = *self;
        let Data::Pages(pages) = data else { return Ok(None) };
        let data = Data::Pages(pages.fork(len, shape.capacity)?);
        Ok(Some(CpuCache { format, shape, attention, data }))
    }

    /// Readies `positions` to be written. The first `kept` keep their content.
    pub(super) fn own(&mut self, positions: Range<usize>, kept: usize) -> Result<()> {
        let Data::Pages(pages) = &mut self.data else { return Ok(()) };
        let placement = with_codec!(self.format, C => KvStorage::<C>::page_placement(self.shape));
        pages.own(positions, kept, placement)
    }

    /// A cache in memory that the host supplies, with any content.
    pub(super) fn new_in(
        options: &SessionOptions,
        shape: KvShape,
        memory: impl AsMut<[u8]> + Send + Sync + 'm,
    ) -> Result<Self> {
        let data = Data::Chunks(Memory::custom(plan(options.kv, shape)?.1, memory)?);
        Ok(CpuCache { format: options.kv, shape, attention: options.attention, data })
    }

    pub(super) fn options(&self) -> SessionOptions {
        SessionOptions { context: self.shape.capacity, kv: self.format, attention: self.attention }
    }

    /// The keys and values, stored by `C`, which must be the codec of the cache's format.
    pub(super) fn storage<C: KvCodec>(&mut self) -> Result<KvStorage<'_, C>> {
        match &mut self.data {
            Data::Chunks(memory) => KvStorage::new(self.shape, &mut Arena::new(memory.bytes())),
            Data::Pages(pages) => Ok(KvStorage::over(self.shape, pages)),
        }
    }

    pub(super) fn export_len(&self, len: usize) -> usize {
        with_codec!(self.format, C => KvStorage::<C>::export_len(self.shape, len))
    }

    /// Writes the first `len` positions to `out`, of [`CpuCache::export_len`] bytes.
    pub(super) fn export(&mut self, len: usize, out: &mut [u8]) -> Result<()> {
        self.own(len..len.next_multiple_of(BLOCK_POSITIONS), len)?;
        with_codec!(self.format, C => {
            let mut storage = self.storage::<C>()?;
            storage.clear_rest(len);
            storage.export(len, out);
        });
        Ok(())
    }

    pub(super) fn import(&mut self, len: usize, from: &[u8]) -> Result<()> {
        let (expected, found) = (self.export_len(len) as u64, from.len() as u64);
        if expected != found {
            return Err(Error::Length { what: "imported keys and values", expected, found });
        }
        self.own(0..len, 0)?;
        with_codec!(self.format, C => self.storage::<C>()?.import(len, from));
        Ok(())
    }
}
