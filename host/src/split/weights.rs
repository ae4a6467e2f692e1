//! The weights of the ranks in this process, and their devices.

use super::device::{Follower, SplitDevice};
use super::group::RankDevice;
#[cfg(feature = "mpi")]
use super::mpi_group::World;
use super::numa::Cores;
use super::rank::{CpuRank, RankWeights};
use super::thread_group::ThreadGroup;
use crate::error::{Error, Result};
use crate::source::Source;
use shohin_core::model::{ModelBytes, ModelConfig, Program, Split};
use shohin_core::{CpuOptions, SessionOptions};
use std::sync::{Arc, Mutex};
use std::thread;

/// The weights of the ranks that are in this process: of all, which are threads then, or with MPI of rank 0.
#[derive(Clone, Debug)]
pub(crate) struct SplitWeights {
    split: Split,
    /// The whole model's.
    config: Box<ModelConfig>,
    pub(super) ranks: Vec<RankWeights>,
    #[cfg(feature = "mpi")]
    world: Option<Arc<World>>,
}

fn threads_of_rank(threads: usize, split: Split) -> usize {
    (threads / split.ranks()).max(1)
}

impl SplitWeights {
    /// Divides the weights, and `threads` and the memory nodes of the machine among the ranks.
    pub(crate) fn load(
        source: &Source<'_>,
        split: Split,
        options: &CpuOptions,
        threads: usize,
    ) -> Result<SplitWeights> {
        let cores = Cores::of_ranks(split.ranks(), threads_of_rank(threads, split));
        Self::load_on(cores, source, split, options, threads)
    }

    /// The same, with the cores of each rank.
    pub(super) fn load_on(
        cores: Vec<Cores>,
        source: &Source<'_>,
        split: Split,
        options: &CpuOptions,
        threads: usize,
    ) -> Result<SplitWeights> {
        let count = threads_of_rank(threads, split);
        let load = |(rank, cores)| RankWeights::load(source, (split, rank), options, count, cores);
        Ok(SplitWeights {
            split,
            config: Box::new(source.config.clone()),
            ranks: cores.into_iter().enumerate().map(load).collect::<Result<_>>()?,
            #[cfg(feature = "mpi")]
            world: None,
        })
    }

    /// Loads rank 0's part of a model whose other ranks are processes.
    #[cfg(feature = "mpi")]
    pub(crate) fn load_first(
        source: &Source<'_>,
        split: Split,
        options: &CpuOptions,
        threads: usize,
        world: &Arc<World>,
    ) -> Result<SplitWeights> {
        let first = RankWeights::load(source, (split, 0), options, threads, Cores::default())?;
        let (config, world) = (Box::new(source.config.clone()), Some(Arc::clone(world)));
        Ok(SplitWeights { split, config, ranks: vec![first], world })
    }

    /// Devices of all ranks: those after the first run on threads of their own, or in other processes.
    pub(crate) fn device(&self, options: &CpuOptions) -> Result<SplitDevice<CpuRank>> {
        let program = self.config.program();
        #[cfg(feature = "mpi")]
        if let (Some(world), Some(first)) = (&self.world, self.ranks.first()) {
            let (device, group) = world.open(first, &self.config, options)?;
            return Ok(SplitDevice::new(device, group, Vec::new(), self.split, &program, Cores::default()));
        }
        let cores = self.ranks.iter().map(|rank| rank.cores.clone());
        lead(self.split, &program, None, cores, |rank, group| {
            Ok(self.ranks[rank].device(options)?.in_group(group))
        })
    }

    /// Bytes of a sequence on all ranks in this process.
    pub(crate) fn sequence_bytes(&self, options: &CpuOptions, session: &SessionOptions) -> Result<u64> {
        let bytes =
            self.ranks.iter().map(|rank| Ok(rank.weights.memory_plan(options, session)?.total as u64));
        bytes.sum()
    }

    pub(crate) fn split(&self) -> Split {
        self.split
    }

    /// Whether the ranks are processes.
    pub(crate) fn is_distributed(&self) -> bool {
        #[cfg(feature = "mpi")]
        return self.world.is_some();
        #[cfg(not(feature = "mpi"))]
        false
    }

    /// Bytes of the weights that this process holds; others are read in the file.
    pub(crate) fn weight_bytes(&self) -> usize {
        let parts = self.ranks.iter().flat_map(|rank| rank.weights.model().weights().parts());
        parts.filter(|part| part.is_copy()).map(|part| part.bytes().len()).sum()
    }
}

/// Devices of ranks that are threads: those after the first run on threads of their own. `device` makes that of a rank, which
/// computes on its `cores`; groups with the same `turn` work one after the other.
pub(super) fn lead<R: RankDevice>(
    split: Split,
    program: &Program,
    turn: Option<&Arc<Mutex<()>>>,
    cores: impl IntoIterator<Item = Cores>,
    device: impl Fn(usize, Arc<ThreadGroup>) -> Result<R>,
) -> Result<SplitDevice<R>> {
    let mut devices = Vec::new();
    for ((rank, group), cores) in ThreadGroup::new(split.ranks(), turn).into_iter().enumerate().zip(cores) {
        let group = Arc::new(group);
        devices.push((device(rank, Arc::clone(&group))?, group, cores));
    }
    let mut devices = devices.into_iter();
    let Some((first, leader, first_cores)) = devices.next() else {
        return Err(shohin_core::Error::Device { problem: "a group has at least one rank" }.into());
    };
    let mut followers = Vec::new();
    for (rank, (device, group, cores)) in (1..).zip(devices) {
        let follower = Follower::new(device, split);
        let thread = thread::Builder::new().name(format!("shohin-rank-{rank}"));
        let thread = thread.spawn(move || {
            let _bound = cores.bind();
            follower.follow(&group);
        });
        followers.push(thread.map_err(|source| Error::Threads { count: split.ranks(), source })?);
    }
    Ok(SplitDevice::new(first, leader, followers, split, program, first_cores))
}
