//! An NVIDIA GPU as a [`Device`]: scratch memory, and the launches of each operation.

mod group;
mod kernels;
mod launches;

use self::group::Rank;
use self::kernels::Kernels;
use self::launches::{Choices, Epilogue, Products, inputs};
use crate::args::ArgmaxArgs;
use crate::driver::{Driver, Memory, Recording};
use crate::error::{Error, Result};
use crate::model::CudaModel;
use crate::nccl::Communicator;
use bytemuck::cast_slice;
use shohin_core::cache::FlatKv;
use shohin_core::device::{
    Batch, BlockingDevice, Output, Readout, ScratchOptions, SessionOptions, Sink, check_caches, ready,
    unordered,
};
use shohin_core::model::{ModelConfig, Program};
use shohin_core::rows::{ReadoutGroup, Rows, Segment, tokens_and_angles};
use shohin_core::{Activations, Device, Error as CoreError, KvFormat};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The formats of caches that the kernels store.
pub const KV_FORMATS: [KvFormat; 6] =
    [KvFormat::F32, KvFormat::F16, KvFormat::Q8, KvFormat::Q4, KvFormat::Fp8E4M3, KvFormat::Fp8E5M2];

/// Parts of the positions among which the attention of a single row is divided; `attention_join` has a
/// lane for each.
const PARTS: usize = 16;
const _: () = assert!(PARTS <= 32);

/// A buffer of the program.
struct Buffer<D: Driver> {
    /// `(batch, cols)`, or more rows, see [`Program::rows_with_pairs`].
    floats: Memory<D>,
    /// The same as integers, and their scales; only of inputs of products.
    integers: Option<[Memory<D>; 2]>,
}

/// The words of a step: tokens, positions and rows to read out `(batch)` each, then angles `(batch, head_dim)`.
struct Step<D: Driver> {
    memory: Memory<D>,
    batch: usize,
}

impl<D: Driver> Step<D> {
    fn at(&self, part: usize) -> u64 {
        self.memory.address() + 4 * (part * self.batch) as u64
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
    /// The device that it was made by: its graphs use that device's buffers.
    device: u64,
    options: SessionOptions,
    /// A single row, by what is read out.
    graphs: Vec<(Option<Readout>, D::Graph)>,
    /// Whose exchanges are in the graphs. NCCL waits for their end before its own, and needs the GPU for that: it is dropped
    /// after them, and before the memory.
    _communicator: Option<Arc<Communicator>>,
    /// Keys and values of each layer.
    layers: Vec<[Memory<D>; 2]>,
}

impl<D: Driver> core::fmt::Debug for CudaCache<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CudaCache").field("options", &self.options).finish_non_exhaustive()
    }
}

/// A model on an NVIDIA GPU: scratch memory for a batch. Runs any number of sequences.
pub struct CudaDevice<D: Driver> {
    /// Unique among the devices of the process; another one after joining or leaving a group.
    id: u64,
    model: Arc<CudaModel<D>>,
    options: ScratchOptions,
    kernels: Kernels<D::Kernel>,
    buffers: Vec<Buffer<D>>,
    step: Step<D>,
    /// Of attention: `(rows, heads, parts, head_dim + 2)`.
    parts: Memory<D>,
    /// Of a mixture of experts.
    choices: Option<Choices<D>>,
    logits_memory: Memory<D>,
    best: Memory<D>,
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
    static DEVICES: AtomicU64 = AtomicU64::new(0);
    DEVICES.fetch_add(1, Ordering::Relaxed)
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
            id: new_id(),
            model: Arc::clone(model),
            options,
            kernels: Kernels::new(&**driver)?,
            buffers,
            step: Step { memory: Memory::new(driver, 4 * batch * (3 + heads.dim))?, batch },
            parts: Memory::new(driver, 4 * heads.query * batch.max(PARTS) * (heads.dim + 2))?,
            choices: Choices::new(driver, program, batch)?,
            logits_memory: Memory::new(driver, 4 * logit_rows * program.vocab())?,
            best: Memory::new(driver, 8 * logit_rows)?,
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

    /// From the residual stream of the rows that are read out to what is read.
    fn head(&self, kind: Readout, rows: usize) -> Result<()> {
        let program = self.model.program();
        for op in &program.head {
            self.rmsnorm(op, rows, self.step.read_out())?;
        }
        if kind == Readout::Hidden {
            return Ok(());
        }
        let logits = self.logits_memory.address();
        let outputs = [(program.output, program.hidden)];
        let products = Products::new(program.hidden, &outputs, Epilogue::Store, rows);
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
        let vocab = program.vocab() as u32;
        let args = ArgmaxArgs { logits, best: self.best.address(), vocab, unused: 0 };
        self.launch(self.kernels.argmax, [rows, 1, 1], 1024, args)
    }

    /// Writes tokens, positions, the rows that are read out first, and angles.
    fn write_step(&self, segments: &[Segment<'_>], group: Option<&ReadoutGroup>) -> Result<()> {
        let (program, batch) = (self.model.program(), self.options.batch);
        let (tokens, angles) = tokens_and_angles(program, segments);
        let mut words = vec![0; 3 * batch];
        words[..tokens.len()].copy_from_slice(&tokens);
        let positions = segments.iter().flat_map(|s| s.position..s.position + s.tokens.len());
        words[batch..].iter_mut().zip(positions).for_each(|(word, position)| *word = position as u32);
        for (word, wanted) in words[2 * batch..].iter_mut().zip(group.iter().flat_map(|group| &group.rows)) {
            *word = wanted.row as u32;
        }
        words.extend(angles.iter().map(|angle| angle.to_bits()));
        self.driver().write(self.step.tokens(), cast_slice(&words))
    }

    /// A single row: one graph, recorded the first time.
    fn single(
        &mut self,
        segment: Segment<'_>,
        group: Option<&ReadoutGroup>,
        caches: &mut [&mut CudaCache<D>],
    ) -> Result<()> {
        let (kind, at) = (group.map(|group| group.readout), segment.sequence);
        if !caches[at].graphs.iter().any(|(known, _)| *known == kind) {
            let recording = Recording::begin(self.driver())?;
            let launched = self.body(&[segment], caches).and_then(|()| self.tail(&[segment], caches));
            let launched = launched.and_then(|()| kind.map_or(Ok(()), |kind| self.head(kind, 1)));
            let graph = launched.and_then(|()| recording.end())?;
            caches[at].graphs.push((kind, graph));
        }
        let found = caches[at].graphs.iter().find(|(known, _)| *known == kind);
        found.map_or(Ok(()), |(_, graph)| self.driver().replay(graph))
    }

    fn part(
        &mut self,
        segments: &[Segment<'_>],
        groups: &[ReadoutGroup],
        caches: &mut [&mut CudaCache<D>],
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        self.write_step(segments, groups.first())?;
        if let ([segment], [] | [_]) = (segments, groups)
            && segment.tokens.len() == 1
        {
            self.single(*segment, groups.first(), caches)?;
            return groups.iter().try_for_each(|group| self.read(group, sink));
        }
        self.body(segments, caches)?;
        self.tail(segments, caches)?;
        self.read_out(groups, 1, sink)
    }

    /// Reads these groups from the residual stream. The rows of the first `written` are on the GPU.
    fn read_out(&mut self, groups: &[ReadoutGroup], written: usize, sink: &mut Sink<'_>) -> Result<()> {
        for (i, group) in groups.iter().enumerate() {
            if i >= written {
                let rows: Vec<u32> = group.rows.iter().map(|wanted| wanted.row as u32).collect();
                self.driver().write(self.step.read_out(), cast_slice(&rows))?;
            }
            self.head(group.readout, group.rows.len())?;
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
        let (from, row) = match group.readout {
            Readout::Logits | Readout::Top(_) => (self.logits_memory.address(), 4 * program.vocab()),
            Readout::Best => (self.best.address(), 8),
            Readout::Hidden => (self.floats(program.hidden), 4 * program.tensor(program.output).cols),
        };
        let mut bytes = core::mem::take(&mut self.bytes);
        bytes.resize(row * group.rows.len(), 0);
        let read = self.driver().read(from, &mut bytes);
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
        let bytes = FlatKv::of(options.kv).bytes(numbers) as usize;
        let mut layers = Vec::new();
        for _ in 0..program.layers {
            layers.push([Memory::new(driver, bytes)?, Memory::new(driver, bytes)?]);
        }
        let _communicator = self.rank.as_ref().map(|rank| Arc::clone(rank.communicator()));
        Ok(CudaCache { device: self.id, options, layers, graphs: Vec::new(), _communicator })
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
        2 * cache.layers.len() * bytes as usize
    }

    async fn export(&mut self, cache: &mut CudaCache<D>, len: usize, out: &mut Vec<u8>) -> Result<()> {
        for memory in cache.layers.iter().flatten() {
            for span in self.spans(cache, len) {
                let at = out.len();
                out.resize(at + (span.end - span.start) as usize, 0);
                self.driver().read(memory.address() + span.start, &mut out[at..])?;
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
        for memory in cache.layers.iter().flatten() {
            for span in self.spans(cache, len) {
                let (part, after) = rest.split_at((span.end - span.start) as usize);
                self.driver().write(memory.address() + span.start, part)?;
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
