//! An NVIDIA GPU as a [`Device`]: scratch memory, and the launches of each operation.

mod group;
mod kernels;
mod launches;

use self::group::Rank;
use self::kernels::{Kernels, THREADS};
use self::launches::{Choices, Epilogue, Products, Shape, inputs};
use crate::args::{ArgmaxArgs, CacheArgs};
use crate::driver::{Driver, HostMemory, Memory, Recording};
use crate::error::{Error, Result};
use crate::model::CudaModel;
use bytemuck::cast_slice;
use core::iter::repeat_n;
use shohin_core::cache::FlatKv;
use shohin_core::device::{
    Batch, BlockingDevice, Output, Readout, ScratchOptions, SessionOptions, Sink, check_caches, ready,
    unordered,
};
use shohin_core::model::program::Heads;
use shohin_core::model::{ModelConfig, Program};
use shohin_core::rows::{ReadoutGroup, Rows, Segment, tokens_and_angles};
use shohin_core::{Activations, Device, Error as CoreError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Rows of a prompt that a device computes together, unless told otherwise: weights are read once for all of them.
pub const BATCH: usize = 512;

/// The most parts of the positions among which the attention of a single row is divided, and of as many single tokens together; a
/// warp has a lane for each.
const PARTS: usize = 32;
const _: () = assert!(PARTS <= 32);

/// The most blocks that seek the most likely token of a row, one for each so many logits.
const ARGMAX_BLOCKS: usize = 64;
const ARGMAX_LOGITS: usize = 2048;

/// A buffer of the program.
struct Buffer<D: Driver> {
    /// `(batch, cols)`, or more rows, see [`Program::rows_with_pairs`].
    floats: Memory<D>,
    /// The same as integers, and their scales; only of inputs of products.
    integers: Option<[Memory<D>; 2]>,
}

/// The words of a step: tokens, positions and rows to read out `(rows)` each, then angles `(rows, head_dim)`.
struct Step<D: Driver> {
    /// For a batch.
    memory: Memory<D>,
    rows: usize,
}

impl<D: Driver> Step<D> {
    fn at(&self, part: usize) -> u64 {
        self.memory.address() + 4 * (part * self.rows) as u64
    }

    fn tokens(&self) -> u64 {
        self.at(0)
    }

    fn positions(&self) -> u64 {
        self.at(1)
    }

    fn read_out(&self) -> u64 {
        self.at(2)
    }

    fn angles(&self) -> u64 {
        self.at(3)
    }
}

/// Keys and values of one sequence. All memory is allocated when it is created.
pub struct CudaCache<D: Driver> {
    /// The device that it was made by.
    device: u64,
    /// Unique in the process.
    id: u64,
    options: SessionOptions,
    /// `(layers, keys and values, bytes)`
    memory: Memory<D>,
    layers: usize,
    /// Of the keys or the values of a layer, a multiple of 256.
    bytes: usize,
}

impl<D: Driver> CudaCache<D> {
    /// Where keys and values of each layer begin.
    fn buffers(&self) -> impl Iterator<Item = u64> + use<D> {
        let (address, bytes) = (self.memory.address(), self.bytes as u64);
        (0..2 * self.layers as u64).map(move |i| address + i * bytes)
    }

    fn args(&self, heads: Heads) -> CacheArgs {
        let FlatKv { bits, mantissa, .. } = FlatKv::of(self.options.kv);
        CacheArgs {
            keys: self.memory.address(),
            values: self.memory.address() + self.bytes as u64,
            layer: 2 * self.bytes as u64,
            capacity: self.options.context as u32,
            kv_heads: heads.kv as u32,
            dim: heads.dim as u32,
            bits: bits as u32,
            mantissa,
            pattern: self.options.attention.words(),
            unused: 0,
        }
    }
}

impl<D: Driver> core::fmt::Debug for CudaCache<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CudaCache").field("options", &self.options).finish_non_exhaustive()
    }
}

/// What the launches for a token of each of some sequences depend on, and what is read out of how many.
type GraphKey = (Shape, Option<(Readout, usize)>);

/// Graphs of a device, which sequences that come and go in a server may need in turn.
const GRAPHS: usize = 64;

/// A model on an NVIDIA GPU: scratch memory for a batch. Runs any number of sequences.
pub struct CudaDevice<D: Driver> {
    /// The latest used last. NCCL waits for the end of graphs with its exchanges before its own, and needs
    /// the GPU for that: they are dropped before `rank`, and before the memory.
    graphs: Vec<(GraphKey, D::Graph)>,
    /// Unique among the devices of the process; another one after joining or leaving a group.
    id: u64,
    model: Arc<CudaModel<D>>,
    options: ScratchOptions,
    kernels: Kernels<D::Kernel>,
    buffers: Vec<Buffer<D>>,
    step: Step<D>,
    /// The cache of each row, `(batch)`, and their ids.
    cache_table: Memory<D>,
    cache_ids: Vec<u64>,
    /// Of attention, of a few rows: `(rows, heads, parts, head_dim + 2)`.
    parts: Memory<D>,
    /// `(rows, heads)`
    ended: Memory<D>,
    /// Of a mixture of experts.
    choices: Option<Choices<D>>,
    logits_memory: Memory<D>,
    /// `(logit_rows)`, on the host.
    best: HostMemory<D>,
    /// Of blocks: `(logit_rows, blocks)`, then the numbers of those that have ended.
    best_of_blocks: Memory<D>,
    /// Of a split program.
    rank: Option<Rank<D>>,
    logits: Vec<f32>,
    bytes: Vec<u8>,
}

impl<D: Driver> core::fmt::Debug for CudaDevice<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CudaDevice").field("options", &self.options).finish_non_exhaustive()
    }
}

fn new_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl<D: Driver> CudaDevice<D> {
    /// Allocates scratch memory.
    ///
    /// # Errors
    /// For an option outside its range, or [`Error::OutOfMemory`].
    pub fn new(model: &Arc<CudaModel<D>>, options: &ScratchOptions) -> Result<CudaDevice<D>> {
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
        let heads = program.heads;
        // Stages of a pipeline after the first read out nothing.
        let logit_rows = if program.head.is_empty() { 0 } else { options.logit_rows };
        Ok(CudaDevice {
            graphs: Vec::new(),
            id: new_id(),
            model: Arc::clone(model),
            options,
            kernels: Kernels::new(&**driver)?,
            buffers,
            step: Step { memory: Memory::new(driver, 4 * batch * (3 + heads.dim))?, rows: 0 },
            cache_table: Memory::new(driver, size_of::<CacheArgs>() * batch)?,
            cache_ids: Vec::new(),
            parts: Memory::new(driver, 4 * heads.query * PARTS * (heads.dim + 2))?,
            ended: Memory::new(driver, 4 * heads.query * batch)?,
            choices: Choices::new(driver, program, batch)?,
            logits_memory: Memory::new(driver, 4 * logit_rows * program.vocab())?,
            best: HostMemory::new(driver, 8 * logit_rows)?,
            best_of_blocks: Memory::new(driver, (8 * ARGMAX_BLOCKS + 4) * logit_rows)?,
            rank: None,
            logits: Vec::new(),
            bytes: Vec::new(),
        })
    }

    /// The model this device runs.
    pub fn model(&self) -> &Arc<CudaModel<D>> {
        &self.model
    }

    /// The lengths of the runs of heads that a layer of an exported cache consists of, in bytes, for `len` positions: all heads
    /// of the keys, all of the values, and of formats with scales those apart.
    pub fn head_runs(&self, cache: &CudaCache<D>, len: usize) -> Vec<usize> {
        let spans: Vec<usize> = self.spans(cache, len).map(|span| (span.end - span.start) as usize).collect();
        let runs = || spans.chunks(self.model.program().heads.kv.max(1)).map(|run| run.iter().sum());
        runs().chain(runs()).collect()
    }

    /// The effective options.
    pub fn options(&self) -> &ScratchOptions {
        &self.options
    }

    /// From the residual stream of the rows that are read out to what is read. `only`: the row of the batch, if it is a known one.
    fn head(&self, kind: Readout, rows: usize, only: Option<usize>) -> Result<()> {
        let program = self.model.program();
        let outputs = [(program.output, program.hidden)];
        let normalized = match only {
            Some(row) if kind != Readout::Hidden => self.normalized_head(&outputs, row)?,
            _ => None,
        };
        if normalized.is_none() {
            for op in &program.head {
                self.rmsnorm(op, rows, self.step.read_out())?;
            }
        }
        if kind == Readout::Hidden {
            return Ok(());
        }
        let logits = self.logits_memory.address();
        let products = Products::new(program.hidden, &outputs, Epilogue::Store, rows);
        let products = normalized.unwrap_or(products);
        match program.divided_vocab {
            None => self.products(products.at(logits))?,
            Some(_) => {
                self.products(products.at(self.in_rank()?.logits()))?;
                self.gather_logits(rows)?;
            }
        }
        if kind != Readout::Best {
            return Ok(());
        }
        let blocks = program.vocab().div_ceil(ARGMAX_LOGITS).clamp(1, ARGMAX_BLOCKS);
        let (best, found) = (self.best.address(), self.best_of_blocks.address());
        let ended = found + (8 * ARGMAX_BLOCKS * self.options.logit_rows) as u64;
        let args = ArgmaxArgs { logits, best, found, ended, vocab: program.vocab() as u32, unused: 0 };
        self.launch(self.kernels.argmax, [blocks, rows, 1], 2 * THREADS, args)
    }

    /// Writes tokens, positions, the rows that are read out first, angles, and where the caches of the rows are, if they are
    /// others than before.
    fn write_step(
        &mut self,
        segments: &[Segment<'_>],
        group: Option<&ReadoutGroup>,
        caches: &[&mut CudaCache<D>],
    ) -> Result<()> {
        let cache_of = |s: &Segment<'_>| &*caches[s.sequence];
        let ids = segments.iter().flat_map(|s| repeat_n(cache_of(s).id, s.tokens.len()));
        let mut known = self.cache_ids.iter();
        if !ids.clone().all(|id| known.next() == Some(&id)) {
            // If the write fails, nothing is known.
            self.cache_ids.clear();
            let heads = self.model.program().heads;
            let rows = segments.iter().flat_map(|s| repeat_n(cache_of(s).args(heads), s.tokens.len()));
            self.driver().write(self.cache_table.address(), cast_slice(&rows.collect::<Vec<_>>()))?;
            self.cache_ids.extend(ids);
        }
        let (mut words, angles) = tokens_and_angles(self.model.program(), segments);
        let rows = words.len();
        self.step.rows = rows;
        let positions = segments.iter().flat_map(|s| s.position..s.position + s.tokens.len());
        words.extend(positions.map(|position| position as u32));
        words.extend(group.iter().flat_map(|group| &group.rows).map(|wanted| wanted.row as u32));
        words.resize(3 * rows, 0);
        words.extend(angles.iter().map(|angle| angle.to_bits()));
        self.driver().write(self.step.tokens(), cast_slice(&words))
    }

    /// A token of each of some sequences: one graph, recorded the first time.
    fn single_tokens(&mut self, shape: Shape, group: Option<&ReadoutGroup>) -> Result<()> {
        let key = (shape, group.map(|group| (group.readout, group.rows.len())));
        match self.graphs.iter().position(|(known, _)| *known == key) {
            Some(at) => self.graphs[at..].rotate_left(1),
            None => {
                let recording = Recording::begin(self.driver())?;
                let launched = self.body(shape).and_then(|()| self.tail(shape));
                let only = (shape.rows == 1).then_some(0);
                let launched = launched
                    .and_then(|()| key.1.map_or(Ok(()), |(readout, rows)| self.head(readout, rows, only)));
                let graph = launched.and_then(|()| recording.end())?;
                if self.graphs.len() == GRAPHS {
                    self.graphs.remove(0);
                }
                self.graphs.push((key, graph));
            }
        }
        self.graphs.last().map_or(Ok(()), |(_, graph)| self.driver().replay(graph))
    }

    fn part(
        &mut self,
        segments: &[Segment<'_>],
        groups: &[ReadoutGroup],
        caches: &mut [&mut CudaCache<D>],
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        self.write_step(segments, groups.first(), caches)?;
        let shape = self.shape(segments);
        if shape.rows == segments.len() {
            let [group] = groups else {
                self.single_tokens(shape, None)?;
                return self.read_out(groups, 1, sink);
            };
            self.single_tokens(shape, Some(group))?;
            return self.read(group, sink);
        }
        self.body(shape)?;
        self.tail(shape)?;
        self.read_out(groups, 1, sink)
    }

    /// Reads these groups from the residual stream. The rows of the first `written` are on the GPU.
    fn read_out(&mut self, groups: &[ReadoutGroup], written: usize, sink: &mut Sink<'_>) -> Result<()> {
        for (i, group) in groups.iter().enumerate() {
            if i >= written {
                let rows: Vec<u32> = group.rows.iter().map(|wanted| wanted.row as u32).collect();
                self.driver().write(self.step.read_out(), cast_slice(&rows))?;
            }
            let only = if let [wanted] = &group.rows[..] { Some(wanted.row) } else { None };
            self.head(group.readout, group.rows.len(), only)?;
            self.read(group, sink)?;
        }
        Ok(())
    }

    fn read(&mut self, group: &ReadoutGroup, sink: &mut Sink<'_>) -> Result<()> {
        self.wait()?;
        if self.rank.as_ref().is_some_and(|rank| !rank.is_first()) {
            return Ok(());
        }
        let program = self.model.program();
        let row = match group.readout {
            Readout::Logits | Readout::Top(_) => 4 * program.vocab(),
            Readout::Best => 8,
            Readout::Hidden => 4 * program.tensor(program.output).cols,
        };
        let mut bytes = core::mem::take(&mut self.bytes);
        bytes.resize(row * group.rows.len(), 0);
        let read = match group.readout {
            Readout::Logits | Readout::Top(_) => self.driver().read(self.logits_memory.address(), &mut bytes),
            Readout::Best => self.best.read(&mut bytes),
            Readout::Hidden => self.driver().read(self.floats(program.hidden), &mut bytes),
        };
        self.bytes = bytes;
        read?;
        self.logits.clear();
        for (wanted, bytes) in group.rows.iter().zip(self.bytes.chunks_exact(row.max(1))) {
            let floats = bytes.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word));
            let mut output = |output: Output<'_>| sink(wanted.sequence, wanted.run_row, output);
            match group.readout {
                Readout::Logits | Readout::Top(_) => {
                    self.logits.clear();
                    self.logits.extend(floats);
                    output(Output::Logits(&self.logits));
                }
                Readout::Hidden => output(Output::Hidden(&floats.collect::<Vec<_>>())),
                Readout::Best => {
                    let words: Vec<u32> =
                        bytes.as_chunks().0.iter().map(|&w| u32::from_le_bytes(w)).collect();
                    match words[..] {
                        [token, bits] if bits != 0 => output(Output::Top(&[(!token, unordered(bits))])),
                        // Nothing to choose from.
                        _ => output(Output::Top(&[])),
                    }
                }
            }
        }
        Ok(())
    }

    fn compute(
        &mut self,
        batch: &Batch<'_>,
        caches: &mut [&mut CudaCache<D>],
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        if self.model.program().stages > 1 && Rows::parts(batch, self.options.batch).nth(1).is_some() {
            return self.pipeline(batch, caches, sink);
        }
        for (i, rows) in Rows::parts(batch, self.options.batch).enumerate() {
            if i > 0 {
                self.wait()?;
            }
            let segments: Vec<Segment<'_>> = rows.segments().collect();
            self.part(&segments, &self.groups(rows), caches, sink)?;
        }
        Ok(())
    }

    /// The outputs to read from `rows`, in order. All logits are read for [`Readout::Top`].
    fn groups(&self, rows: Rows<'_>) -> Vec<ReadoutGroup> {
        rows.groups(|readout| match readout {
            Readout::Logits | Readout::Top(_) => (Readout::Logits, self.options.logit_rows),
            Readout::Best => (Readout::Best, self.options.logit_rows),
            Readout::Hidden => (Readout::Hidden, self.options.batch),
        })
    }

    /// The spans of the first `len` positions of each head, in a buffer of keys or of values.
    fn spans(
        &self,
        cache: &CudaCache<D>,
        len: usize,
    ) -> impl Iterator<Item = core::ops::Range<u64>> + use<D> {
        let heads = self.model.program().heads;
        let [kv, capacity, d, len] = [heads.kv, cache.options.context, heads.dim, len].map(|n| n as u64);
        FlatKv::of(cache.options.kv).spans(kv, capacity, d, len)
    }
}

impl<D: Driver> Device for CudaDevice<D> {
    type Cache = CudaCache<D>;
    type Error = Error;

    fn config(&self) -> &ModelConfig {
        self.model.config()
    }

    fn program(&self) -> &Program {
        self.model.program()
    }

    fn batch(&self) -> usize {
        self.options.batch
    }

    async fn cache(&mut self, options: &SessionOptions) -> Result<CudaCache<D>> {
        if options.context == 0 {
            return Err(CoreError::Option { what: "context", found: 0.0, expected: "at least 1" }.into());
        }
        options.attention.check()?;
        let options = SessionOptions { context: options.context.min(self.options.context), ..*options };
        let (program, driver) = (self.model.program(), &self.model.driver);
        let heads = program.heads;
        let numbers = heads.kv as u64 * options.context as u64 * heads.dim as u64;
        let (bytes, layers) = (FlatKv::of(options.kv).bytes(numbers).next_multiple_of(256), program.layers);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let memory = Memory::new(driver, bytes.saturating_mul(2 * layers))?;
        Ok(CudaCache { device: self.id, id: new_id(), options, memory, layers, bytes })
    }

    fn cache_options(&self, cache: &CudaCache<D>) -> SessionOptions {
        cache.options
    }

    async fn run(
        &mut self,
        batch: &Batch<'_>,
        caches: &mut [&mut CudaCache<D>],
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        if self.model.program().ranks > 1 {
            self.in_rank()?;
        }
        check_caches(batch, caches.iter().map(|cache| cache.device), self.id)?;
        let Some(turn) = self.rank.as_ref().map(Rank::begin).transpose()? else {
            return self.compute(batch, caches, sink);
        };
        // What ranks after the first compute is complete before the next order.
        let done = self.compute(batch, caches, sink).and_then(|()| self.wait());
        turn.end(done)
    }

    fn logits(&mut self) -> &[f32] {
        &self.logits
    }

    /// Keys cannot be moved yet.
    fn shift(&mut self, _: &mut CudaCache<D>, _: usize, keep: usize, _: usize) -> Result<usize> {
        Ok(keep)
    }

    fn export_len(&self, cache: &CudaCache<D>, len: usize) -> usize {
        let bytes: u64 = self.spans(cache, len).map(|span| span.end - span.start).sum();
        2 * cache.layers * bytes as usize
    }

    async fn export(&mut self, cache: &mut CudaCache<D>, len: usize, out: &mut Vec<u8>) -> Result<()> {
        for address in cache.buffers() {
            for span in self.spans(cache, len) {
                let at = out.len();
                out.resize(at + (span.end - span.start) as usize, 0);
                self.driver().read(address + span.start, &mut out[at..])?;
            }
        }
        Ok(())
    }

    fn import(&mut self, cache: &mut CudaCache<D>, len: usize, from: &[u8]) -> Result<()> {
        let (expected, found) = (self.export_len(cache, len) as u64, from.len() as u64);
        if expected != found {
            return Err(CoreError::Length { what: "imported keys and values", expected, found }.into());
        }
        let mut rest = from;
        for address in cache.buffers() {
            for span in self.spans(cache, len) {
                let (part, after) = rest.split_at((span.end - span.start) as usize);
                self.driver().write(address + span.start, part)?;
                rest = after;
            }
        }
        Ok(())
    }
}

impl<D: Driver> BlockingDevice for CudaDevice<D> {
    fn wait<F: Future<Output = Result<T>>, T>(future: F) -> Result<T> {
        // No call of this device waits for anything but the driver.
        ready(future).unwrap_or(Err(CoreError::Device { problem: "a future of another one" }.into()))
    }
}
