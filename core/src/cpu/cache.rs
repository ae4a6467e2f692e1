//! A sequence's keys and values in the CPU's memory.
#![forbid(unsafe_code)]

use crate::arena::{Arena, Planner};
use crate::attention::AttentionPattern;
use crate::cache::{KvCodec, KvFormat, KvShape, KvStorage, with_codec};
use crate::device::SessionOptions;
use crate::error::{Error, Result};
use crate::memory::Memory;

/// Keys and values of one sequence. All memory is allocated when it is created.
pub struct CpuCache<'m> {
    pub(super) format: KvFormat,
    pub(super) shape: KvShape,
    pub(super) attention: AttentionPattern,
    memory: Memory<'m>,
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
        let memory = Memory::zeroed(plan(options.kv, shape)?.1)?;
        Ok(CpuCache { format: options.kv, shape, attention: options.attention, memory })
    }

    /// A cache in memory that the host supplies, with any content.
    pub(super) fn new_in(
        options: &SessionOptions,
        shape: KvShape,
        memory: impl AsMut<[u8]> + Send + Sync + 'm,
    ) -> Result<Self> {
        let memory = Memory::custom(plan(options.kv, shape)?.1, memory)?;
        Ok(CpuCache { format: options.kv, shape, attention: options.attention, memory })
    }

    pub(super) fn options(&self) -> SessionOptions {
        SessionOptions { context: self.shape.capacity, kv: self.format, attention: self.attention }
    }

    /// The keys and values, stored by `C`, which must be the codec of the cache's format.
    pub(super) fn storage<C: KvCodec>(&mut self) -> Result<KvStorage<'_, C>> {
        KvStorage::new(self.shape, &mut Arena::new(self.memory.bytes()))
    }

    pub(super) fn export_len(&self, len: usize) -> usize {
        with_codec!(self.format, C => KvStorage::<C>::export_len(self.shape, len))
    }

    /// Writes the first `len` positions to `out`, of [`CpuCache::export_len`] bytes.
    pub(super) fn export(&mut self, len: usize, out: &mut [u8]) -> Result<()> {
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
        with_codec!(self.format, C => self.storage::<C>()?.import(len, from));
        Ok(())
    }
}
