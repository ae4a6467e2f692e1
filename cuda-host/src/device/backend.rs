//! Scratch memory for a batch, and what all launches need.

use super::kernels::{FLOAT_TOKENS, Kernels, THREADS};
use super::rank::Rank;
use super::shape::{PARTS, Shape};
use crate::args::{CacheArgs, QuantizeArgs};
use crate::driver::{Driver, HostMemory, LaunchSize, Memory};
use crate::error::Result;
use crate::model::CudaModel;
use bytemuck::{Pod, bytes_of};
use core::num::NonZeroU32;
use shohin_accelerator::new_id;
use shohin_core::device::{Readout, ScratchOptions};
use shohin_core::model::Program;
use shohin_core::model::program::{BufferId, Op, TensorId};
use shohin_core::rows::Segment;
use shohin_core::{Activations, Error as CoreError};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The most blocks that seek the most likely token of a row.
pub(super) const ARGMAX_BLOCKS: usize = 64;

/// A rank polls without pause for this long, then once per [`PAUSE`].
const BUSY: Duration = Duration::from_millis(5);
const PAUSE: Duration = Duration::from_micros(50);

/// A buffer of the program.
pub(super) struct Buffer<D: Driver> {
    /// `(batch, cols)`, or more rows, see [`Program::rows_with_pairs`].
    floats: Memory<D>,
    /// The same as integers, and their scales; only of inputs of products.
    integers: Option<[Memory<D>; 2]>,
}

/// The words of a step: tokens, positions and rows to read out `(rows)` each, then angles `(rotations, rows, head_dim)`.
pub(super) struct Step<D: Driver> {
    /// For a batch.
    memory: Memory<D>,
    pub(super) rows: usize,
}

impl<D: Driver> Step<D> {
    fn at(&self, part: usize) -> u64 {
        self.memory.address() + 4 * (part * self.rows) as u64
    }

    pub(super) fn tokens(&self) -> u64 {
        self.at(0)
    }

    pub(super) fn positions(&self) -> u64 {
        self.at(1)
    }

    pub(super) fn read_out(&self) -> u64 {
        self.at(2)
    }

    /// Of one of the program's rotations.
    pub(super) fn angles(&self, rotation: usize, dim: usize) -> u64 {
        self.at(3 + rotation * dim)
    }
}

/// The choices of a mixture of experts, for a batch; see `route.cu`.
pub(super) struct Choices<D: Driver> {
    /// `(batch, used)`
    pub(super) experts: Memory<D>,
    /// `(batch, used)`
    pub(super) weights: Memory<D>,
    /// `(batch * used)`
    pub(super) order: Memory<D>,
    /// Tiles of at least [`FLOAT_TOKENS`] pairs.
    pub(super) tiles: Memory<D>,
}

impl<D: Driver> Choices<D> {
    /// For the mixture with the most pairs and experts of a program; `None` without one.
    fn new(driver: &Arc<D>, program: &Program, batch: usize) -> Result<Option<Self>> {
        let Some(used) = program.mixtures().map(|experts| experts.used).max() else { return Ok(None) };
        let counts = program.mixtures().map(|experts| program.tensor(experts.router).rows);
        let most = counts.max().unwrap_or(0);
        let pairs = batch * used;
        Ok(Some(Choices {
            experts: Memory::new(driver, 4 * pairs)?,
            weights: Memory::new(driver, 4 * pairs)?,
            order: Memory::new(driver, 4 * pairs)?,
            tiles: Memory::new(driver, 16 * (pairs / FLOAT_TOKENS + most).max(used))?,
        }))
    }
}

/// The inputs of products.
fn inputs(program: &Program) -> Vec<(BufferId, TensorId)> {
    let mut found = Vec::new();
    if !program.head.is_empty() {
        found.push((program.hidden, program.output));
    }
    for op in &program.body {
        match op {
            Op::Linear { x, outputs } => found.extend(outputs.iter().map(|(weight, _)| (*x, *weight))),
            Op::LinearAdd { x, weight, .. } => found.push((*x, *weight)),
            Op::LinearSwiglu { x, gate, .. } => found.push((*x, *gate)),
            Op::Experts(e) => found.extend([(e.x, e.router), (e.x, e.gate), (e.gated, e.down)]),
            // Refused when the model is uploaded.
            Op::Select { .. } | Op::Merge { .. } => {}
            Op::Embed { .. }
            | Op::RmsNorm { .. }
            | Op::Gated { .. }
            | Op::Bias { .. }
            | Op::Add { .. }
            | Op::Scale { .. }
            | Op::Conv(_)
            | Op::DeltaNet(_)
            | Op::GatedNorm(_)
            | Op::SplitHeads { .. }
            | Op::Factor { .. }
            | Op::Hadamard(_)
            | Op::RopeStore { .. }
            | Op::Attention { .. }
            | Op::Exchange(_) => {}
        }
    }
    found
}

/// The windows of layers, each once, no window first.
fn windows(program: &Program) -> Vec<Option<NonZeroU32>> {
    let mut found = vec![None];
    for op in &program.body {
        if let Op::Attention { window, .. } = op
            && !found.contains(window)
        {
            found.push(*window);
        }
    }
    found
}

/// What the launches for a token of each of some sequences depend on, and what is read out of how many.
pub(super) type GraphKey = (Shape, Option<(Readout, usize)>);

/// Scratch memory for a batch, and the kernels.
pub struct CudaBackend<D: Driver> {
    /// The latest used last. NCCL waits for the end of graphs with its exchanges before its own, and needs
    /// the GPU for that: they are dropped before `rank`, and before the memory.
    pub(super) graphs: Vec<(GraphKey, D::Graph)>,
    /// Unique among the devices of the process; another one after joining or leaving a group.
    pub(super) id: u64,
    pub(super) model: Arc<CudaModel<D>>,
    pub(super) options: ScratchOptions,
    pub(super) kernels: Kernels<D::Kernel>,
    pub(super) buffers: Vec<Buffer<D>>,
    pub(super) step: Step<D>,
    /// The windows of layers, no window first.
    pub(super) windows: Vec<Option<NonZeroU32>>,
    /// The cache of each row, `(windows, batch)`, and their ids.
    pub(super) cache_table: Memory<D>,
    pub(super) cache_ids: Vec<u64>,
    /// Of attention, of a few rows: `(rows, heads, parts, head_dim + 2)`.
    pub(super) parts: Memory<D>,
    /// `(rows, heads)`
    pub(super) ended: Memory<D>,
    /// Of a mixture of experts.
    pub(super) choices: Option<Choices<D>>,
    pub(super) logits_memory: Memory<D>,
    /// `(logit_rows)`, on the host.
    pub(super) best: HostMemory<D>,
    /// Of blocks: `(logit_rows, blocks)`, then the numbers of those that have ended.
    pub(super) best_of_blocks: Memory<D>,
    /// Of a split program.
    pub(super) rank: Option<Rank<D>>,
}

impl<D: Driver> core::fmt::Debug for CudaBackend<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CudaBackend").field("options", &self.options).finish_non_exhaustive()
    }
}

impl<D: Driver> CudaBackend<D> {
    /// Allocates scratch memory.
    pub(super) fn new(model: &Arc<CudaModel<D>>, options: &ScratchOptions) -> Result<CudaBackend<D>> {
        let options = options.fitted(model.config())?;
        let (driver, program, batch) = (&model.driver, model.program(), options.batch);
        let mut integers = vec![false; program.buffers.len()];
        for (x, weight) in inputs(program) {
            let int8 = model.matrix(weight)?.1.input(options.activations) == Activations::Int8;
            integers[x.index()] |= int8;
        }
        let mut buffers = Vec::new();
        for ((spec, rows), integers) in program.buffers.iter().zip(program.rows_with_pairs()).zip(integers) {
            let count = batch * rows * spec.cols;
            let integers = match integers {
                true => Some([Memory::new(driver, count)?, Memory::new(driver, count / 32 * 8)?]),
                false => None,
            };
            buffers.push(Buffer { floats: Memory::new(driver, 4 * count)?, integers });
        }
        let (heads, windows) = (program.heads, windows(program));
        // Stages of a pipeline after the first read out nothing.
        let logit_rows = if program.head.is_empty() { 0 } else { options.logit_rows };
        Ok(CudaBackend {
            graphs: Vec::new(),
            id: new_id(),
            model: Arc::clone(model),
            options,
            kernels: Kernels::new(&**driver)?,
            buffers,
            step: Step {
                memory: Memory::new(driver, 4 * batch * (3 + program.rotations.len() * heads.dim))?,
                rows: 0,
            },
            cache_table: Memory::new(driver, size_of::<CacheArgs>() * batch * windows.len())?,
            windows,
            cache_ids: Vec::new(),
            parts: Memory::new(driver, 4 * heads.query * PARTS * (heads.dim + 2))?,
            ended: Memory::new(driver, 4 * heads.query * batch)?,
            choices: Choices::new(driver, program, batch)?,
            logits_memory: Memory::new(driver, 4 * logit_rows * program.vocab())?,
            best: HostMemory::new(driver, 8 * logit_rows)?,
            best_of_blocks: Memory::new(driver, (8 * ARGMAX_BLOCKS + 4) * logit_rows)?,
            rank: None,
        })
    }

    pub(super) fn driver(&self) -> &D {
        &self.model.driver
    }

    pub(super) fn shape(&self, segments: &[Segment<'_>]) -> Shape {
        Shape::of(segments, self.model.program(), self.driver().multiprocessors())
    }

    pub(super) fn launch<A: Pod>(
        &self,
        kernel: D::Kernel,
        grid: [usize; 3],
        threads: u32,
        args: A,
    ) -> Result<()> {
        let size = LaunchSize { grid: grid.map(|n| n as u32), threads, shared: 0, cluster: 1 };
        self.driver().launch(kernel, size, bytes_of(&args))
    }

    pub(super) fn floats(&self, id: BufferId) -> u64 {
        self.buffers[id.index()].floats.address()
    }

    /// The caches of rows, with the pattern of layers with this window.
    pub(super) fn caches(&self, window: Option<NonZeroU32>) -> u64 {
        let index = self.windows.iter().position(|found| *found == window).unwrap_or(0);
        self.cache_table.address() + (index * size_of::<CacheArgs>() * self.options.batch) as u64
    }

    /// Integers and scales of a buffer; 0 without.
    pub(super) fn integers(&self, id: BufferId) -> [u64; 2] {
        let integers = self.buffers[id.index()].integers.as_ref();
        integers.map_or([0; 2], |integers| integers.each_ref().map(Memory::address))
    }

    /// The integers of a buffer that was written as floats only, if a product reads them.
    pub(super) fn quantize(&self, id: BufferId, rows: usize, cols: usize) -> Result<()> {
        let [words, meta] = self.integers(id);
        if words == 0 {
            return Ok(());
        }
        let units = rows * cols / 32;
        let args = QuantizeArgs { x: self.floats(id), words, meta, units: units as u32, unused: 0 };
        self.launch(self.kernels.quantize, [units.div_ceil(4), 1, 1], THREADS, args)
    }

    pub(super) fn in_rank(&self) -> Result<&Rank<D>> {
        self.rank
            .as_ref()
            .ok_or(CoreError::Device { problem: "a split program needs the other ranks" }.into())
    }

    /// In a group, waits for the work of this GPU, or for the loss of a rank that it needs.
    ///
    /// Before each part of a batch too: CUDA has room for about a thousand launches, and waits with one more, asking nobody. Stages
    /// of a pipeline still work at the same time, as a GPU that has finished a part has passed it on.
    pub(super) fn wait(&self) -> Result<()> {
        let Some(rank) = &self.rank else { return Ok(()) };
        let start = Instant::now();
        while !self.driver().is_idle()? {
            rank.check()?;
            match start.elapsed() < BUSY {
                true => thread::yield_now(),
                false => thread::sleep(PAUSE),
            }
        }
        // An exchange that failed may have left the GPU idle.
        rank.communicator.check()
    }
}
