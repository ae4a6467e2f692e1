//! A model on the CPU.

use crate::error::Result;
use crate::plan::Storage;
use crate::shard::ShardBytes;
use crate::source::Source;
use crate::threads::ThreadPool;
use crate::weight_cache::{CacheWriter, WeightCache};
use shohin_core::cpu::{CpuWeights, Isa};
use shohin_core::{Cpu, CpuOptions, MemoryPlan, SessionOptions};
use std::sync::Arc;

/// Weights in the layout of the kernels, or in that of the file, and the threads that compute with them.
#[derive(Clone, Debug)]
pub(crate) struct CpuModel {
    pub(crate) weights: Arc<CpuWeights<ShardBytes>>,
    pub(crate) pool: Arc<ThreadPool>,
    /// If memory is planned for repacked weights, though these are not: whether base-3 weights would be kept compact.
    pub(crate) plans_repacked: Option<bool>,
}

impl CpuModel {
    /// Loads the weights. Repacked ones come from `cache`, or they are then being kept there; `compact` ones keep base-3 digits.
    pub(crate) fn load(
        source: &Source<'_>,
        storage: Storage,
        compact: bool,
        isa: Isa,
        pool: Arc<ThreadPool>,
        cache: Option<&WeightCache>,
    ) -> Result<(CpuModel, Option<CacheWriter>)> {
        let (weights, writer) = match storage {
            Storage::Mapped | Storage::Inspected => (Arc::new(source.mapped()?), None),
            Storage::Window(bytes) => (Arc::new(source.paged(bytes)?), None),
            Storage::Repacked => {
                let entry = cache.and_then(|cache| cache.entry(source.file, &source.read, compact, isa));
                let kept = entry.as_ref().and_then(|entry| entry.open(&pool));
                match kept.and_then(|files| source.cached(files, isa).ok()) {
                    Some(weights) => (Arc::new(weights), None),
                    None => {
                        let weights = Arc::new(source.repacked(compact, isa, &*pool)?);
                        let parts = source.file.parts();
                        let writer = entry.map(|entry| entry.start_writing(&weights, parts));
                        (weights, writer)
                    }
                }
            }
        };
        let plans_repacked = (storage == Storage::Inspected).then_some(compact);
        Ok((CpuModel { weights, pool, plans_repacked }, writer))
    }

    pub(crate) fn device(&self, options: &CpuOptions) -> shohin_core::Result<Cpu<'static, ShardBytes>> {
        Cpu::with_weights(Arc::clone(&self.weights), options, Arc::clone(&self.pool))
    }

    /// Bytes of a sequence, including its device's scratch memory.
    pub(crate) fn memory_plan(&self, options: &CpuOptions, session: &SessionOptions) -> Result<MemoryPlan> {
        Ok(match self.plans_repacked {
            Some(compact) => self.weights.repacked_memory_plan(options, session, compact)?,
            None => self.weights.memory_plan(options, session)?,
        })
    }
}
