//! A model split among several ranks: each has a part of the weights, of the cache and of the work, see
//! [`Split`](shohin_core::model::Split).

mod device;
mod order;
mod thread_group;

pub(crate) use device::SplitDevice;

use crate::error::{Error, Result};
use crate::file::ModelFile;
use crate::sequence::{OnDevice, Sequence};
use crate::shard::ShardBytes;
use crate::threads::ThreadPool;
use device::follow;
use shohin_core::collective::Collective;
use shohin_core::cpu::repack::repacks;
use shohin_core::cpu::{Cpu, CpuWeights};
use shohin_core::gguf::ReadOptions;
use shohin_core::model::{ModelConfig, Split};
use shohin_core::{Activations, CpuOptions, Session, SessionOptions};
use std::sync::Arc;
use std::thread;
use thread_group::ThreadGroup;

/// A rank's side of a group: numbers among all ranks, and orders from rank 0 to the others.
pub(crate) trait Group: Collective {
    /// Of rank 0: gives an order to all others.
    fn order(&self, order: &str) -> shohin_core::Result<()>;

    /// Of the others: waits for the next one; `None` if there will be none.
    fn next_order(&self) -> Option<Arc<str>>;
}

/// The weights of all ranks, which are threads of this process.
#[derive(Clone, Debug)]
pub(crate) struct SplitWeights {
    split: Split,
    ranks: Vec<(Arc<CpuWeights<ShardBytes>>, Arc<ThreadPool>)>,
}

impl SplitWeights {
    /// Divides the weights of `file`, and `threads` among the ranks.
    pub(crate) fn load(
        file: &ModelFile,
        read: &ReadOptions,
        config: &ModelConfig,
        split: Split,
        options: &CpuOptions,
        threads: usize,
    ) -> Result<SplitWeights> {
        let count = (threads / split.ranks()).max(1);
        let ranks = (0..split.ranks()).map(|rank| {
            let pool = ThreadPool::new(count).map_err(|source| Error::Threads { count, source })?;
            let model = file.split_model(read, config.clone(), (split, rank))?;
            let weights = match options.activations == Activations::Int8 && repacks(options.isa) {
                true => CpuWeights::repack(model, options.isa, &pool)?,
                false => CpuWeights::new(model)?,
            };
            Ok((Arc::new(weights), Arc::new(pool)))
        });
        Ok(SplitWeights { split, ranks: ranks.collect::<Result<_>>()? })
    }

    /// How the model is split.
    pub(crate) fn split(&self) -> Split {
        self.split
    }

    /// Bytes that are held in memory; other weights are read in the file.
    pub(crate) fn bytes(&self) -> usize {
        use shohin_core::model::ModelBytes;
        let parts = self.ranks.iter().flat_map(|(weights, _)| weights.model().weights().parts());
        parts.filter(|part| part.is_copy()).map(|part| part.bytes().len()).sum()
    }

    /// Bytes of a sequence and its devices on all ranks.
    pub(crate) fn session_bytes(&self, options: &CpuOptions, session: &SessionOptions) -> Result<u64> {
        let bytes =
            self.ranks.iter().map(|(weights, _)| Ok(weights.memory_plan(options, session)?.total as u64));
        bytes.sum()
    }

    /// Devices of all ranks, of which those after the first run on threads of their own.
    pub(crate) fn device(&self, config: &ModelConfig, options: &CpuOptions) -> Result<SplitDevice> {
        let mut devices = Vec::new();
        for ((weights, pool), group) in self.ranks.iter().zip(ThreadGroup::new(self.split.ranks())) {
            let group = Arc::new(group);
            let device = Cpu::with_weights(Arc::clone(weights), options, Arc::clone(pool))?;
            devices.push((device.in_group(group.clone()), group));
        }
        let mut devices = devices.into_iter();
        let first = devices.next();
        let mut followers = Vec::new();
        for (rank, (mut device, group)) in (1..).zip(devices) {
            let split = self.split;
            let follower = thread::Builder::new().name(format!("shohin-rank-{rank}"));
            let follower = follower.spawn(move || follow(&mut device, &*group, split));
            followers.push(follower.map_err(|source| Error::Threads { count: self.ranks.len(), source })?);
        }
        match first {
            Some((device, group)) => {
                Ok(SplitDevice::new(device, group, followers, self.split, &config.program()))
            }
            None => Err(shohin_core::Error::Device { problem: "a group has at least one rank" }.into()),
        }
    }

    /// An empty sequence.
    pub(crate) fn sequence(
        &self,
        config: &ModelConfig,
        options: &CpuOptions,
        session: &SessionOptions,
    ) -> Result<Box<dyn Sequence>> {
        let mut device = self.device(config, options)?;
        let session = Session::new(&mut device, session)?;
        Ok(Box::new(OnDevice::new(device, session, false)))
    }
}
