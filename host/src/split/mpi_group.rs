//! Ranks that are processes, which an MPI launcher has started.
//!
//! Rank 0 gives orders, one text message to each of the others:
//!
//! ```text
//! load DESCRIPTION     load your part of the model, if you have the same model and options; answer
//! open ID OPTIONS      make device ID; answer
//! ID ORDER             an order to device ID, see `order.rs`
//! close ID             forget it
//! stop PROBLEM         end with this error
//! end                  end
//! ```
//! An answer is a text, too: empty, or the problem.

use super::device::Follower;
use super::group::{Group, Turn, fit, lost};
use super::numa::Cores;
use super::rank::{CpuRank, RankWeights};
use crate::error::{Error, Result};
use crate::source::Source;
use mpi::Threading;
use mpi::datatype::Equivalence;
use mpi::environment::Universe;
use mpi::point_to_point::MatchedReceiveVec;
use mpi::topology::SimpleCommunicator;
use mpi::traits::Source as _;
use mpi::traits::*;
use shohin_core::collective::Collective;
use shohin_core::model::{ModelConfig, Split};
use shohin_core::{CpuOptions, Error as CoreError};
use std::collections::HashMap;
use std::fmt::Display;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Kinds of messages.
const NUMBERS: i32 = 0;
const ORDER: i32 = 1;
const ANSWER: i32 = 2;

/// A rank polls for a message without pause for this long, then once per [`PAUSE`].
const BUSY: Duration = Duration::from_millis(50);
const PAUSE: Duration = Duration::from_millis(1);

/// More than libraries need for the bookkeeping of a buffered message.
const OVERHEAD: usize = 1024;

/// This process as one of the ranks that an MPI launcher, such as mpirun, has started. Every rank makes one before it loads
/// the model that is split among them: rank 0 by [`Builder::mpi`](crate::Builder::mpi), the others by [`Mpi::follow`]. MPI ends when it is dropped.
///
/// ```no_run
/// use shohin::{Model, ModelFile, Mpi};
///
/// # fn main() -> shohin::Result<()> {
/// let mpi = Mpi::start()?;
/// let builder = Model::builder().split("tensor:2".parse().unwrap());
/// if mpi.rank() > 0 {
///     return mpi.follow(&builder, || ModelFile::open("Bonsai-8B-Q1_0.gguf"));
/// }
/// let model = builder.mpi(&mpi).load("Bonsai-8B-Q1_0.gguf")?;
/// for piece in model.chat()?.send("Hello")? {
///     print!("{}", piece?.text);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Mpi {
    world: Arc<World>,
    /// MPI ends on the thread that it began on.
    thread: PhantomData<*const ()>,
}

impl Mpi {
    /// Starts MPI.
    ///
    /// # Errors
    /// If it has been started before, or the library does not support calls from several threads one after the other.
    pub fn start() -> Result<Mpi> {
        let problem = |problem: &str| Error::Mpi { problem: format!("MPI: {problem}") };
        let (universe, threading) = mpi::initialize_with_threading(Threading::Serialized)
            .ok_or_else(|| problem("it was started before in this process"))?;
        if threading < Threading::Serialized {
            return Err(problem("the library supports no calls from several threads"));
        }
        let all = universe.world();
        let world = World {
            rank: all.rank() as usize,
            ranks: all.size() as usize,
            universe: Mutex::new(Some(universe)),
            turn: Mutex::new(()),
            ended: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            loaded: AtomicBool::new(false),
            buffered: AtomicUsize::new(0),
            devices: AtomicUsize::new(0),
        };
        Ok(Mpi { world: Arc::new(world), thread: PhantomData })
    }

    /// Whether a launcher that sets the variables of Open MPI, MPICH or PMIx has started this process.
    pub fn is_launched() -> bool {
        ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"].iter().any(|name| std::env::var_os(name).is_some())
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.world.rank
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.world.ranks
    }

    pub(crate) fn world(&self) -> &Arc<World> {
        &self.world
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        let world = &self.world;
        // Others may wait for what this one will not do: only the end of all ends them.
        if world.failed.load(Relaxed) || thread::panicking() || world.turn.is_poisoned() {
            SimpleCommunicator::world().abort(1);
        }
        let _turn = world.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if !world.ended.swap(true, Relaxed) && world.rank == 0 {
            world.tell("end");
        }
        // Models may outlive this: they find that it has ended.
        drop(world.universe.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// The part of a model that a rank after the first has loaded.
pub(crate) struct Loaded {
    split: Split,
    weights: RankWeights,
    config: ModelConfig,
    options: CpuOptions,
}

impl Loaded {
    pub(crate) fn new(
        source: &Source<'_>,
        rank: (Split, usize),
        options: CpuOptions,
        threads: usize,
    ) -> Result<Loaded> {
        let weights = RankWeights::load(source, rank, &options, threads, Cores::default())?;
        Ok(Loaded { split: rank.0, weights, config: source.config.clone(), options })
    }

    /// A device, and the word by which orders name it.
    fn open(&self, words: &str, world: &Arc<World>) -> Result<(String, Follower<CpuRank>), String> {
        let mut words = words.split_ascii_whitespace();
        let id = words.next().unwrap_or_default().into();
        let mut number = || words.next().and_then(|word| word.parse().ok()).unwrap_or_default();
        let (context, batch, logit_rows) = (number(), number(), number());
        let options = CpuOptions { context, batch, logit_rows, ..self.options };
        let device =
            world.device(&self.weights, &self.config, &options).map_err(|error| error.to_string())?;
        Ok((id, Follower::new(device, self.split)))
    }
}

/// All ranks.
pub(crate) struct World {
    rank: usize,
    ranks: usize,
    /// MPI, until it ends.
    universe: Mutex<Option<Universe>>,
    /// Held from an order to the end of what all ranks then do.
    turn: Mutex<()>,
    ended: AtomicBool,
    /// Whether ranks are out of step.
    failed: AtomicBool,
    /// On rank 0, whether there has been a model.
    loaded: AtomicBool,
    /// Bytes of the largest message that is sent without waiting for its receiver.
    buffered: AtomicUsize,
    /// Devices so far.
    devices: AtomicUsize,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.ranks)
    }
}

impl World {
    /// On the ranks after the first, does what rank 0 says until it ends; `load` loads a part of the model that rank 0 describes.
    pub(crate) fn follow(self: &Arc<Self>, load: impl FnOnce(&str) -> Result<Loaded, String>) -> Result<()> {
        if self.rank == 0 {
            return Err(Error::Mpi { problem: "rank 0 follows no other".into() });
        }
        let failed = |problem: &dyn Display| {
            self.failed.store(true, Relaxed);
            Error::Mpi { problem: self.named(problem) }
        };
        let (mut load, mut loaded, mut devices) = (Some(load), None, HashMap::new());
        loop {
            let order = self.next_text(0, ORDER);
            let (name, rest) = order.split_once(' ').unwrap_or((&order, ""));
            match (name, &loaded, devices.get_mut(name)) {
                ("end", ..) => return Ok(()),
                ("stop", ..) => return Err(Error::Mpi { problem: rest.into() }),
                ("load", ..) => {
                    let found = load.take().map(|load| load(rest));
                    loaded = self.answer(found.unwrap_or_else(|| Err("it has loaded a model before".into())));
                }
                ("open", Some(loaded), _) => devices.extend(self.answer(loaded.open(rest, self))),
                ("close", ..) => drop(devices.remove(rest)),
                (_, _, Some(device)) => device.obey(&**self, rest).map_err(|error| failed(&error))?,
                (_, _, None) => {
                    return Err(failed(&format_args!("rank 0 orders {name:?}, which is not known")));
                }
            }
        }
    }

    /// On rank 0, loads the model, or stops the others.
    pub(crate) fn lead<T>(&self, load: impl FnOnce() -> Result<T>) -> Result<T> {
        let problem = |problem: &str| Err(Error::Mpi { problem: self.named(&problem) });
        if self.rank > 0 {
            return problem("only rank 0 loads a model, which the others follow");
        }
        if self.loaded.swap(true, Relaxed) {
            return problem("MPI ranks hold one model, and have one already");
        }
        let done = load();
        if let Err(error) = &done
            && let Ok(_turn) = self.turn()
        {
            self.tell(&format!("stop {error}"));
            self.ended.store(true, Relaxed);
        }
        done
    }

    /// On rank 0, loads its part while the others load theirs.
    pub(crate) fn load<T>(&self, description: &str, load: impl FnOnce() -> Result<T>) -> Result<T> {
        let _turn = self.turn()?;
        self.tell(&format!("load {description}"));
        let (mine, others) = (load(), self.answers());
        let mine = mine?;
        others.map(|()| mine)
    }

    /// On rank 0, makes a device on all ranks.
    pub(super) fn open(
        self: &Arc<Self>,
        first: &RankWeights,
        config: &ModelConfig,
        options: &CpuOptions,
    ) -> Result<(CpuRank, Arc<dyn Group>)> {
        let _turn = self.turn()?;
        let id = self.devices.fetch_add(1, Relaxed);
        let CpuOptions { context, batch, logit_rows, .. } = options;
        self.tell(&format!("open {id} {context} {batch} {logit_rows}"));
        let (mine, others) = (self.device(first, config, options), self.answers());
        match (mine, others) {
            (Ok(device), Ok(())) => Ok((device, Arc::new(OfDevice { world: Arc::clone(self), id }))),
            (mine, others) => {
                self.tell(&format!("close {id}"));
                mine?;
                Err(others.err().unwrap_or(lost().into()))
            }
        }
    }

    /// This rank's device.
    fn device(
        self: &Arc<Self>,
        weights: &RankWeights,
        config: &ModelConfig,
        options: &CpuOptions,
    ) -> shohin_core::Result<CpuRank> {
        let device = weights.device(options)?;
        // A rank of a pipeline sends a part of a prompt while the one before is still on its way: as many as there are
        // ranks, and as many again of which it is not yet known that they have arrived.
        let bytes = device.options().batch.saturating_mul(4 * config.hidden_size);
        if bytes > self.buffered.load(Relaxed) {
            let all = (bytes + OVERHEAD).saturating_mul(2 * self.ranks + 2);
            if i32::try_from(all).is_err() {
                return Err(CoreError::Device {
                    problem: "MPI buffers less than the messages of such a batch",
                });
            }
            let mut universe = self.universe.lock().map_err(|_| lost())?;
            universe.as_mut().ok_or(lost())?.set_buffer_size(all);
            self.buffered.store(bytes, Relaxed);
        }
        Ok(device.in_group(self.clone()))
    }

    fn turn(&self) -> shohin_core::Result<Turn<'_>> {
        let turn = self.turn.lock().map_err(|_| lost())?;
        match self.ended.load(Relaxed) || self.failed.load(Relaxed) {
            true => Err(lost()),
            false => Ok(Turn { _held: Some(turn) }),
        }
    }

    fn named(&self, problem: &dyn Display) -> String {
        format!("rank {}: {problem}", self.rank)
    }

    /// On rank 0, gives an order to all others.
    fn tell(&self, order: &str) {
        let world = SimpleCommunicator::world();
        (1..self.ranks)
            .for_each(|rank| world.process_at_rank(rank as i32).send_with_tag(order.as_bytes(), ORDER));
    }

    /// On the other ranks, answers rank 0.
    fn answer<T>(&self, found: Result<T, String>) -> Option<T> {
        let problem = found.as_ref().err().map(|problem| self.named(problem)).unwrap_or_default();
        SimpleCommunicator::world().process_at_rank(0).send_with_tag(problem.as_bytes(), ANSWER);
        found.ok()
    }

    /// On rank 0, waits for the answers of all others. The error is that of the first with a problem.
    fn answers(&self) -> Result<()> {
        let answers: Vec<String> = (1..self.ranks).map(|rank| self.next_text(rank, ANSWER)).collect();
        match answers.into_iter().find(|problem| !problem.is_empty()) {
            Some(problem) => Err(Error::Mpi { problem }),
            None => Ok(()),
        }
    }

    /// Waits for a text. Libraries wait without pause: a rank that has nothing to do would take a core.
    fn next_text(&self, from: usize, tag: i32) -> String {
        let world = SimpleCommunicator::world();
        let (from, start) = (world.process_at_rank(from as i32), Instant::now());
        loop {
            if let Some(message) = from.immediate_matched_probe_with_tag(tag) {
                let (bytes, _) = message.matched_receive_vec::<u8>();
                return String::from_utf8_lossy(&bytes).into_owned();
            }
            match start.elapsed() < BUSY {
                true => thread::yield_now(),
                false => thread::sleep(PAUSE),
            }
        }
    }
}

/// Errors of MPI end all ranks.
impl Collective for World {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn all_gather(&self, mine: &[f32], all: &mut [f32]) -> shohin_core::Result<()> {
        fit(self.ranks * mine.len(), all.len())?;
        SimpleCommunicator::world().all_gather_into(mine, all);
        Ok(())
    }

    fn send(&self, to: usize, x: &[f32]) -> shohin_core::Result<()> {
        let world = SimpleCommunicator::world();
        let to = world.process_at_rank(to as i32);
        match size_of_val(x) <= self.buffered.load(Relaxed) {
            true => to.buffered_send_with_tag(x, NUMBERS),
            false => to.send_with_tag(x, NUMBERS),
        }
        Ok(())
    }

    fn receive(&self, from: usize, x: &mut [f32]) -> shohin_core::Result<()> {
        let world = SimpleCommunicator::world();
        let status = world.process_at_rank(from as i32).receive_into_with_tag(x, NUMBERS);
        fit(x.len(), status.count(f32::equivalent_datatype()) as usize)
    }
}

/// The ranks, as the group of one device: rank 0's side.
#[derive(Debug)]
struct OfDevice {
    world: Arc<World>,
    id: usize,
}

impl Collective for OfDevice {
    fn rank(&self) -> usize {
        self.world.rank
    }

    fn ranks(&self) -> usize {
        self.world.ranks
    }

    fn all_gather(&self, mine: &[f32], all: &mut [f32]) -> shohin_core::Result<()> {
        self.world.all_gather(mine, all)
    }

    fn send(&self, to: usize, x: &[f32]) -> shohin_core::Result<()> {
        self.world.send(to, x)
    }

    fn receive(&self, from: usize, x: &mut [f32]) -> shohin_core::Result<()> {
        self.world.receive(from, x)
    }
}

impl Group for OfDevice {
    fn order(&self, order: &str) -> shohin_core::Result<()> {
        self.world.tell(&format!("{} {order}", self.id));
        Ok(())
    }

    fn turn(&self) -> shohin_core::Result<Turn<'_>> {
        self.world.turn()
    }

    fn fail(&self) {
        self.world.failed.store(true, Relaxed);
    }
}

impl Drop for OfDevice {
    fn drop(&mut self) {
        if let Ok(_turn) = self.turn() {
            self.world.tell(&format!("close {}", self.id));
        }
    }
}
