//! A rank on the CPU.

use super::group::RankDevice;
use super::numa::Cores;
use crate::error::{Error, Result};
use crate::shard::ShardBytes;
use crate::source::Source;
use crate::threads::ThreadPool;
use shohin_core::cpu::repack::repacks;
use shohin_core::cpu::{Cpu, CpuWeights};
use shohin_core::model::Split;
use shohin_core::{Activations, CpuOptions, Device};
use std::sync::Arc;

/// Its device.
pub(crate) type CpuRank = Cpu<'static, ShardBytes>;

impl RankDevice for CpuRank {
    fn leave_group(&mut self) {
        Cpu::leave_group(self);
    }

    fn head_runs(&self, cache: &Self::Cache, len: usize) -> Vec<usize> {
        vec![self.export_len(cache, len) / self.program().layers.max(1)]
    }
}

/// One rank's part of a model, and the threads that compute with it.
#[derive(Clone, Debug)]
pub(super) struct RankWeights {
    pub(super) weights: Arc<CpuWeights<ShardBytes>>,
    pub(super) pool: Arc<ThreadPool>,
    pub(super) cores: Cores,
}

impl RankWeights {
    pub(super) fn load(
        source: &Source<'_>,
        rank: (Split, usize),
        options: &CpuOptions,
        threads: usize,
        cores: Cores,
    ) -> Result<RankWeights> {
        // Memory is near the core that touches it first, and threads stay where the one that starts them is.
        let _bound = cores.bind();
        let pool = ThreadPool::new(threads).map_err(|source| Error::Threads { count: threads, source })?;
        let model = source.part(rank)?;
        let weights = match options.activations == Activations::Int8 && repacks(options.isa) {
            true => CpuWeights::repack(model, options.isa, &pool)?,
            false => CpuWeights::new(model)?,
        };
        Ok(RankWeights { weights: Arc::new(weights), pool: Arc::new(pool), cores })
    }

    pub(super) fn device(&self, options: &CpuOptions) -> shohin_core::Result<CpuRank> {
        Cpu::with_weights(Arc::clone(&self.weights), options, Arc::clone(&self.pool))
    }
}
