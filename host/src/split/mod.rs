//! A model split among several ranks: each has a part of the weights, of the cache and of the work, see
//! [`Split`](shohin_core::model::Split).

mod device;
#[cfg(feature = "mpi")]
mod mpi_group;
mod order;
mod recovering;
mod thread_group;

pub(crate) use device::SplitDevice;
#[cfg(feature = "mpi")]
pub use mpi_group::Mpi;
#[cfg(feature = "mpi")]
pub(crate) use mpi_group::World;

use crate::error::{Error, Result};
use crate::file::ModelFile;
use crate::sequence::{OnDevice, Sequence};
use crate::shard::ShardBytes;
use crate::threads::ThreadPool;
use device::Follower;
use recovering::Recovering;
use shohin_core::collective::Collective;
use shohin_core::cpu::repack::repacks;
use shohin_core::cpu::{Cpu, CpuWeights};
use shohin_core::gguf::ReadOptions;
use shohin_core::model::{ModelConfig, Split};
use shohin_core::{Activations, CpuOptions, Session, SessionOptions};
use std::sync::{Arc, MutexGuard};
use std::thread;
use thread_group::ThreadGroup;

type RankDevice = Cpu<'static, ShardBytes>;

/// The error of ranks that find another one gone.
pub(crate) fn lost() -> shohin_core::Error {
    shohin_core::Error::Device { problem: "a rank of the split model was lost" }
}

/// Refuses another count of numbers than was expected of another rank.
fn fit(expected: usize, found: usize) -> shohin_core::Result<()> {
    let (expected, found) = (expected as u64, found as u64);
    match expected == found {
        true => Ok(()),
        false => Err(shohin_core::Error::Length { what: "numbers of another rank", expected, found }),
    }
}

/// A thread's turn to use a group that several devices share.
#[derive(Debug, Default)]
pub(crate) struct Turn<'g> {
    _held: Option<MutexGuard<'g, ()>>,
}

/// A rank's side of a group: numbers among all ranks, and orders from rank 0 to the others.
pub(crate) trait Group: Collective {
    /// On rank 0, gives an order to all others.
    fn order(&self, order: &str) -> shohin_core::Result<()>;

    /// Waits for a turn, which lasts from an order to the end of what all ranks then do.
    fn turn(&self) -> shohin_core::Result<Turn<'_>> {
        Ok(Turn::default())
    }

    /// Ends the group, as its ranks are out of step: all later calls are errors.
    fn fail(&self);
}

/// One rank's part of a model, and the threads that compute with it.
#[derive(Clone, Debug)]
struct RankWeights {
    weights: Arc<CpuWeights<ShardBytes>>,
    pool: Arc<ThreadPool>,
}

impl RankWeights {
    fn load(
        file: &ModelFile,
        read: &ReadOptions,
        config: &ModelConfig,
        rank: (Split, usize),
        options: &CpuOptions,
        threads: usize,
    ) -> Result<RankWeights> {
        let pool = ThreadPool::new(threads).map_err(|source| Error::Threads { count: threads, source })?;
        let model = file.split_model(read, config.clone(), rank)?;
        let weights = match options.activations == Activations::Int8 && repacks(options.isa) {
            true => CpuWeights::repack(model, options.isa, &pool)?,
            false => CpuWeights::new(model)?,
        };
        Ok(RankWeights { weights: Arc::new(weights), pool: Arc::new(pool) })
    }

    fn device(&self, options: &CpuOptions) -> shohin_core::Result<RankDevice> {
        Cpu::with_weights(Arc::clone(&self.weights), options, Arc::clone(&self.pool))
    }
}

/// The weights of the ranks that are in this process: of all, which are threads then, or with MPI of rank 0.
#[derive(Clone, Debug)]
pub(crate) struct SplitWeights {
    split: Split,
    ranks: Vec<RankWeights>,
    #[cfg(feature = "mpi")]
    world: Option<Arc<World>>,
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
        let load = |rank| RankWeights::load(file, read, config, (split, rank), options, count);
        Ok(SplitWeights {
            split,
            ranks: (0..split.ranks()).map(load).collect::<Result<_>>()?,
            #[cfg(feature = "mpi")]
            world: None,
        })
    }

    /// Loads rank 0's part of a model whose other ranks are processes.
    #[cfg(feature = "mpi")]
    pub(crate) fn load_first(
        file: &ModelFile,
        read: &ReadOptions,
        config: &ModelConfig,
        split: Split,
        options: &CpuOptions,
        threads: usize,
        world: &Arc<World>,
    ) -> Result<SplitWeights> {
        let first = RankWeights::load(file, read, config, (split, 0), options, threads)?;
        Ok(SplitWeights { split, ranks: vec![first], world: Some(Arc::clone(world)) })
    }

    /// How the model is split.
    pub(crate) fn split(&self) -> Split {
        self.split
    }

    /// Whether the other ranks are other processes.
    pub(crate) fn is_distributed(&self) -> bool {
        #[cfg(feature = "mpi")]
        return self.world.is_some();
        #[cfg(not(feature = "mpi"))]
        false
    }

    /// Bytes that this process holds in memory; other weights are read in the file.
    pub(crate) fn bytes(&self) -> usize {
        use shohin_core::model::ModelBytes;
        let parts = self.ranks.iter().flat_map(|rank| rank.weights.model().weights().parts());
        parts.filter(|part| part.is_copy()).map(|part| part.bytes().len()).sum()
    }

    /// Bytes of a sequence and its devices on all ranks in this process.
    pub(crate) fn session_bytes(&self, options: &CpuOptions, session: &SessionOptions) -> Result<u64> {
        let bytes =
            self.ranks.iter().map(|rank| Ok(rank.weights.memory_plan(options, session)?.total as u64));
        bytes.sum()
    }

    /// Devices of all ranks: those after the first run on threads of their own, or in other processes.
    pub(crate) fn device(&self, config: &ModelConfig, options: &CpuOptions) -> Result<SplitDevice> {
        let program = config.program();
        #[cfg(feature = "mpi")]
        if let (Some(world), Some(first)) = (&self.world, self.ranks.first()) {
            let (device, group) = world.open(first, config, options)?;
            return Ok(SplitDevice::new(device, group, Vec::new(), self.split, &program));
        }
        let mut devices = Vec::new();
        for (rank, group) in self.ranks.iter().zip(ThreadGroup::new(self.split.ranks())) {
            let group = Arc::new(group);
            devices.push((rank.device(options)?.in_group(group.clone()), group));
        }
        let mut devices = devices.into_iter();
        let first = devices.next();
        let mut followers = Vec::new();
        for (rank, (device, group)) in (1..).zip(devices) {
            let follower = Follower::new(device, self.split);
            let thread = thread::Builder::new().name(format!("shohin-rank-{rank}"));
            let thread = thread.spawn(move || follower.follow(&group));
            followers.push(thread.map_err(|source| Error::Threads { count: self.ranks.len(), source })?);
        }
        match first {
            Some((device, group)) => Ok(SplitDevice::new(device, group, followers, self.split, &program)),
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
        let (weights, config, options, session) = (self.clone(), config.clone(), *options, *session);
        let open = move || {
            let mut device = weights.device(&config, &options)?;
            let session = Session::new(&mut device, &session)?;
            Ok(OnDevice::new(device, session, false))
        };
        // Where a process was lost, its launcher ends the others.
        match self.is_distributed() {
            true => Ok(Box::new(open()?)),
            false => Ok(Box::new(Recovering::new(open)?)),
        }
    }
}
