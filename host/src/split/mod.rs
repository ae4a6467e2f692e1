//! A model split among several ranks: each has a part of the weights, of the cache and of the work, see
//! [`Split`](shohin_core::model::Split).

#[cfg(feature = "cuda")]
mod cuda;
mod device;
#[cfg(feature = "mpi")]
mod mpi_group;
#[cfg(target_os = "linux")]
mod numa;
#[cfg(not(target_os = "linux"))]
#[path = "no_numa.rs"]
mod numa;
mod order;
mod recovering;
#[cfg(test)]
mod tests;
mod thread_group;

#[cfg(feature = "cuda")]
pub(crate) use cuda::CudaSplit;
pub(crate) use device::SplitDevice;
#[cfg(feature = "mpi")]
pub use mpi_group::Mpi;
#[cfg(feature = "mpi")]
pub(crate) use mpi_group::World;

use crate::any_device::{AnyDevice, Search};
use crate::device_model::DeviceModel;
use crate::error::{Error, Result};
use crate::file::ModelFile;
use crate::sequence::{OnDevice, Sequence};
use crate::shard::ShardBytes;
use crate::threads::ThreadPool;
use device::Follower;
use numa::Cores;
use recovering::Recovering;
use shohin_core::beam::Beam;
use shohin_core::chat::snapshot::Layout;
use shohin_core::collective::Collective;
use shohin_core::cpu::repack::repacks;
use shohin_core::cpu::{Cpu, CpuWeights};
use shohin_core::device::BlockingDevice;
use shohin_core::gguf::ReadOptions;
use shohin_core::model::{ModelBytes, ModelConfig, Program, Split};
use shohin_core::{Activations, CpuOptions, Device, Session, SessionOptions};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use thread_group::ThreadGroup;

/// A rank on the CPU.
pub(crate) type CpuRank = Cpu<'static, ShardBytes>;

/// What a group needs of the device of a rank.
pub(crate) trait RankDevice:
    BlockingDevice<Cache: Send, Error: Into<shohin_core::Error>> + Send + 'static
{
    /// Lets the other ranks know that this one will not answer.
    fn leave_group(&mut self);

    /// The lengths of the runs of heads that a block of an exported cache consists of, in bytes, for `len` positions: in the
    /// export of a whole model, those of all ranks that divide the heads are side by side in each run.
    fn head_runs(&self, cache: &Self::Cache, len: usize) -> Vec<usize>;
}

impl RankDevice for CpuRank {
    fn leave_group(&mut self) {
        Cpu::leave_group(self);
    }

    fn head_runs(&self, cache: &Self::Cache, len: usize) -> Vec<usize> {
        vec![self.export_len(cache, len) / self.program().layers.max(1)]
    }
}

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
    cores: Cores,
}

impl RankWeights {
    fn load(
        file: &ModelFile,
        read: &ReadOptions,
        config: &ModelConfig,
        rank: (Split, usize),
        options: &CpuOptions,
        threads: usize,
        cores: Cores,
    ) -> Result<RankWeights> {
        // Memory is near the core that touches it first, and threads stay where the one that starts them is.
        let _bound = cores.bind();
        let pool = ThreadPool::new(threads).map_err(|source| Error::Threads { count: threads, source })?;
        let model = file.split_model(read, config.clone(), rank)?;
        let weights = match options.activations == Activations::Int8 && repacks(options.isa) {
            true => CpuWeights::repack(model, options.isa, &pool)?,
            false => CpuWeights::new(model)?,
        };
        Ok(RankWeights { weights: Arc::new(weights), pool: Arc::new(pool), cores })
    }

    fn device(&self, options: &CpuOptions) -> shohin_core::Result<CpuRank> {
        Cpu::with_weights(Arc::clone(&self.weights), options, Arc::clone(&self.pool))
    }
}

/// The weights of the ranks that are in this process: of all, which are threads then, or with MPI of rank 0.
#[derive(Clone, Debug)]
pub(crate) struct SplitWeights {
    split: Split,
    /// The whole model's.
    config: ModelConfig,
    ranks: Vec<RankWeights>,
    #[cfg(feature = "mpi")]
    world: Option<Arc<World>>,
}

fn threads_of_rank(threads: usize, split: Split) -> usize {
    (threads / split.ranks()).max(1)
}

impl SplitWeights {
    /// Divides the weights of `file`, and `threads` and the memory nodes of the machine among the ranks.
    pub(crate) fn load(
        file: &ModelFile,
        read: &ReadOptions,
        config: &ModelConfig,
        split: Split,
        options: &CpuOptions,
        threads: usize,
    ) -> Result<SplitWeights> {
        let cores = Cores::of_ranks(split.ranks(), threads_of_rank(threads, split));
        Self::load_on(cores, file, read, config, split, options, threads)
    }

    /// The same, with the cores of each rank.
    fn load_on(
        cores: Vec<Cores>,
        file: &ModelFile,
        read: &ReadOptions,
        config: &ModelConfig,
        split: Split,
        options: &CpuOptions,
        threads: usize,
    ) -> Result<SplitWeights> {
        let count = threads_of_rank(threads, split);
        let load =
            |(rank, cores)| RankWeights::load(file, read, config, (split, rank), options, count, cores);
        Ok(SplitWeights {
            split,
            config: config.clone(),
            ranks: cores.into_iter().enumerate().map(load).collect::<Result<_>>()?,
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
        let first = RankWeights::load(file, read, config, (split, 0), options, threads, Cores::default())?;
        let (config, world) = (config.clone(), Some(Arc::clone(world)));
        Ok(SplitWeights { split, config, ranks: vec![first], world })
    }

    /// Devices of all ranks: those after the first run on threads of their own, or in other processes.
    fn device(&self, options: &CpuOptions) -> Result<SplitDevice<CpuRank>> {
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
}

impl DeviceModel for SplitWeights {
    fn open(&self, options: &CpuOptions) -> Result<Box<dyn AnyDevice>> {
        Ok(Box::new(self.device(options)?))
    }

    /// On all ranks in this process.
    fn sequence_bytes(&self, options: &CpuOptions, session: &SessionOptions) -> Result<u64> {
        let bytes =
            self.ranks.iter().map(|rank| Ok(rank.weights.memory_plan(options, session)?.total as u64));
        bytes.sum()
    }

    fn split(&self) -> Option<Split> {
        Some(self.split)
    }

    fn is_distributed(&self) -> bool {
        #[cfg(feature = "mpi")]
        return self.world.is_some();
        #[cfg(not(feature = "mpi"))]
        false
    }

    /// Those that this process holds; others are read in the file.
    fn weight_bytes(&self) -> Option<usize> {
        let parts = self.ranks.iter().flat_map(|rank| rank.weights.model().weights().parts());
        Some(parts.filter(|part| part.is_copy()).map(|part| part.bytes().len()).sum())
    }

    fn layout(&self) -> Layout {
        Layout::Cpu
    }

    fn sequence(&self, options: &CpuOptions, session: &SessionOptions) -> Result<Box<dyn Sequence>> {
        let (weights, options, session) = (self.clone(), *options, *session);
        let open = move || {
            let mut device = weights.device(&options)?;
            let session = Session::new(&mut device, &session)?;
            Ok(OnDevice::new(device, session, false))
        };
        // Where a process was lost, its launcher ends the others.
        match self.is_distributed() {
            true => Ok(Box::new(open()?)),
            false => Ok(Box::new(Recovering::new(open)?)),
        }
    }

    /// On the whole, as the ranks have parts of the weights.
    fn beam_search(
        &self,
        options: &CpuOptions,
        search: Search<'_>,
        whole: &dyn DeviceModel,
    ) -> Result<Vec<Beam>> {
        if self.is_distributed() {
            return Err(Error::Option {
                name: "beams",
                found: search.options.beams.to_string(),
                expected: "none over MPI: beam search runs on one device".into(),
            });
        }
        whole.beam_search(options, search, whole)
    }

    fn reopen(&self, options: &CpuOptions) -> Option<Box<dyn AnyDevice>> {
        self.open(options).ok()
    }
}

/// Devices of ranks that are threads: those after the first run on threads of their own. `device` makes that of a rank, which
/// computes on its `cores`; groups with the same `turn` work one after the other.
fn lead<R: RankDevice>(
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
