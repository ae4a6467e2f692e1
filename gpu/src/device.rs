//! The GPU as a [`Device`]: scratch memory, the recorded program, and what is read back.

use crate::cache::GpuCache;
use crate::error::{Error, Result};
use crate::gpu::{Gpu, MAX_BINDING};
use crate::kernel::{
    self, ARGMAX_GROUPS, DispatchShape, Kernel, MAX_PARTS, MAX_TOP, SORTED, STEP_HEAD, TILE,
};
use crate::record::{BufferPlan, Recording, Scratch, Step, other_bytes};
use crate::upload::{GpuModel, UploadPlan};
use shohin_core::cache::FlatKv;
use shohin_core::device::{
    Batch, Output, Readout, ScratchOptions, SessionOptions, Sink, check_caches, check_count, unordered,
};
use shohin_core::model::{ModelConfig, Program};
use shohin_core::rows::{ReadoutGroup, Rows, Segment, tokens_and_angles};
use shohin_core::{Activations, Device, Error as CoreError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use wgpu::{Buffer, BufferUsages, CommandEncoder, CommandEncoderDescriptor, ComputePassDescriptor};

/// Options of a GPU device, which decide how much scratch memory it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuDeviceOptions {
    /// Most positions of a sequence; clamped to the model's context.
    pub context: usize,
    /// Precision of activations. Integers have one scale per 32, in 32-bit floats.
    pub activations: Activations,
    /// Rows computed together.
    pub batch: usize,
    /// Rows whose logits are computed together when many rows are read out.
    pub logit_rows: usize,
    /// Most tokens of [`Readout::Top`], up to 256; for more, all logits are read.
    pub top: usize,
}

impl Default for GpuDeviceOptions {
    fn default() -> Self {
        let activations = Activations::default();
        GpuDeviceOptions { context: 4096, activations, batch: 128, logit_rows: 8, top: 64 }
    }
}

impl GpuDeviceOptions {
    /// The options, checked and clamped to the model's limits.
    fn fitted(&self, config: &ModelConfig) -> Result<GpuDeviceOptions> {
        check_count("top", self.top, MAX_TOP)?;
        let GpuDeviceOptions { context, activations, batch, logit_rows, .. } = *self;
        let fitted = ScratchOptions { context, activations, batch, logit_rows }.fitted(config)?;
        let ScratchOptions { context, batch, logit_rows, .. } = fitted;
        let fit = MAX_BINDING as usize / (4 * config.vocab_size);
        let logit_rows = logit_rows.min(fit).max(1);
        let top = self.top.min(config.vocab_size);
        Ok(GpuDeviceOptions { context, batch, logit_rows, top, ..*self })
    }
}

/// Memory on the GPU, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct GpuMemory {
    /// Keys and values of a sequence.
    pub kv: u64,
    /// Activations of one batch, logits and readback buffers.
    pub scratch: u64,
}

/// Work done on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    /// Command submissions.
    pub submissions: u64,
    /// Dispatches in them.
    pub dispatches: u64,
    /// Bytes of packed weights read by matrix products.
    pub weight_bytes: u64,
    /// Bytes copied back to the host.
    pub read_bytes: u64,
}

/// Bytes of the logits, of argmax's candidates and results, of each of two top-k buffers, and of the mapped
/// buffers for small and for large readbacks.
fn readout_bytes(vocab: usize, hidden: usize, options: &GpuDeviceOptions) -> [u64; 6] {
    let rows = options.logit_rows as u64;
    let few = 8 * options.top.max(options.logit_rows) as u64;
    let logits = 4 * vocab as u64 * rows;
    let top_k = 8 * (vocab.div_ceil(SORTED) * options.top) as u64;
    let many = logits.max(4 * (hidden * options.batch) as u64);
    [logits, 8 * ARGMAX_GROUPS as u64 * rows, 8 * rows, top_k, few, many]
}

impl UploadPlan {
    /// The memory of a device with `options` and a sequence with `session`, without the weights.
    ///
    /// # Errors
    /// For an option outside its range.
    pub fn memory_plan(&self, options: &GpuDeviceOptions, session: &SessionOptions) -> Result<GpuMemory> {
        let options = options.fitted(self.config())?;
        let program = self.program();
        let buffers = BufferPlan::new(self, options.activations).bytes(options.batch);
        let other: u64 = other_bytes(program, options.batch).iter().sum();
        let [logits, candidates, best, top_k, few, many] =
            readout_bytes(program.vocab(), program.tensor(program.output).cols, &options);
        let scratch = buffers + other + logits + candidates + best + 2 * top_k + few + many;
        let context = session.context.min(options.context);
        let heads = program.heads;
        let numbers = heads.kv as u64 * context as u64 * heads.dim as u64;
        let kv = 2 * program.layers as u64 * FlatKv::of(session.kv).bytes(numbers);
        Ok(GpuMemory { kv, scratch })
    }
}

/// The kernels of a top-k, the number of tokens it keeps, and the index of the result buffer.
struct TopK {
    top: usize,
    kernels: Vec<Kernel>,
    result: usize,
}

/// A model on a GPU: scratch memory for a batch, and every dispatch of its program. Runs any number of
/// sequences.
pub struct GpuDevice {
    /// Unique among the devices of the process.
    id: u64,
    model: Arc<GpuModel>,
    options: GpuDeviceOptions,
    scratch: Scratch,
    recording: Recording,
    logits_buffer: Buffer,
    best: Buffer,
    /// Results of the rounds of top-k, alternating.
    top_k_buffers: [Buffer; 2],
    read_few: Buffer,
    read_many: Buffer,
    argmax: [Kernel; 2],
    top_k: Option<TopK>,
    /// The bytes of the last readback.
    bytes: Vec<u8>,
    floats: Vec<f32>,
    logits: Vec<f32>,
    chosen: Vec<(u32, f32)>,
    counters: Counters,
}

impl core::fmt::Debug for GpuDevice {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("GpuDevice").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Parts of flash decoding for a segment, and positions in each.
fn attention_parts(segment: &Segment<'_>) -> (usize, usize) {
    let (rows, positions) = (segment.tokens.len(), segment.position + segment.tokens.len());
    // A part is a whole number of tiles.
    let wanted = if rows == 1 { positions.div_ceil(TILE).min(MAX_PARTS) } else { 1 };
    let span = positions.div_ceil(wanted).next_multiple_of(TILE);
    (positions.div_ceil(span), span)
}

/// Records commands and counts them.
struct Commands<'c> {
    encoder: CommandEncoder,
    counters: &'c mut Counters,
}

impl Commands<'_> {
    fn record<'k>(&mut self, kernels: impl IntoIterator<Item = (&'k Kernel, DispatchShape)>) {
        let mut pass = self.encoder.begin_compute_pass(&ComputePassDescriptor::default());
        for (kernel, shape) in kernels {
            kernel.record(&mut pass, shape);
            self.counters.dispatches += 1;
            self.counters.weight_bytes += kernel.weight_bytes;
        }
    }

    fn submit(self, gpu: &Gpu) -> Result<()> {
        gpu.queue.submit([self.encoder.finish()]);
        self.counters.submissions += 1;
        gpu.check()
    }
}

impl GpuDevice {
    /// Allocates scratch memory and prepares every dispatch that does not use a cache.
    ///
    /// # Errors
    /// For an option outside its range, a program without kernels, [`Error::OutOfMemory`], or errors of the
    /// driver when it compiles the shaders.
    pub async fn new(model: &Arc<GpuModel>, options: &GpuDeviceOptions) -> Result<GpuDevice> {
        let gpu = &*model.gpu;
        let options = options.fitted(model.config())?;
        let program = model.program();
        let plan = BufferPlan::new(model.plan(), options.activations);
        let scratch = Scratch::new(gpu, program, &plan, options.batch, options.activations).await?;
        let vocab = program.vocab();
        let [logits, candidates, best, top_k, few, many] =
            readout_bytes(vocab, program.tensor(program.output).cols, &options);
        let logits_buffer = gpu.storage("logits", logits).await?;
        let candidates = gpu.storage("argmax candidates", candidates).await?;
        let best = gpu.storage("best", best).await?;
        let top_k_buffers = [gpu.storage("top-k", top_k).await?, gpu.storage("top-k", top_k).await?];
        let readable = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
        let read_few = gpu.buffer("read", few, readable).await?;
        let read_many = gpu.buffer("read logits", many, readable).await?;
        let recording = Recording::new(model, &plan, &scratch, &logits_buffer)?;
        let argmax = kernel::argmax(gpu, vocab, &logits_buffer, &candidates, &best);
        gpu.check()?;
        static DEVICES: AtomicU64 = AtomicU64::new(0);
        Ok(GpuDevice {
            id: DEVICES.fetch_add(1, Ordering::Relaxed),
            model: Arc::clone(model),
            options,
            scratch,
            recording,
            logits_buffer,
            best,
            top_k_buffers,
            read_few,
            read_many,
            argmax,
            top_k: None,
            bytes: Vec::new(),
            floats: Vec::new(),
            logits: Vec::new(),
            chosen: Vec::new(),
            counters: Counters::default(),
        })
    }

    /// The model this device runs.
    pub fn model(&self) -> &Arc<GpuModel> {
        &self.model
    }

    /// The effective options.
    pub fn options(&self) -> &GpuDeviceOptions {
        &self.options
    }

    /// Work done on the GPU for this device.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The error that made the GPU unusable, if any.
    pub fn failure(&self) -> Option<Error> {
        self.model.gpu.check().err()
    }

    /// Computes at most [`GpuDeviceOptions::batch`] rows, and reads out `groups` of them.
    async fn part(
        &mut self,
        segments: &[Segment<'_>],
        groups: &[ReadoutGroup],
        caches: &mut [&mut GpuCache],
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        self.write_step(segments, caches);
        // The first group belongs to the submission of the body.
        for (i, group) in groups.iter().enumerate() {
            self.prepare(group);
            self.submit(if i == 0 { segments } else { &[] }, caches, Some(group))?;
            self.read(group, sink).await?;
        }
        if groups.is_empty() { self.submit(segments, caches, None) } else { Ok(()) }
    }

    /// Writes tokens, positions and angles.
    fn write_step(&self, segments: &[Segment<'_>], caches: &[&mut GpuCache]) {
        let program = self.model.program();
        let queue = &self.model.gpu.queue;
        for segment in segments {
            let (rows, (_, span)) = (segment.tokens.len(), attention_parts(segment));
            let words = [rows, segment.position, segment.row, span].map(|word| word as u32);
            queue.write_buffer(caches[segment.sequence].sequence(), 0, bytemuck::cast_slice(&words));
        }
        let (tokens, angles) = tokens_and_angles(program, segments);
        let mut words = vec![0; STEP_HEAD];
        words[0] = tokens.len() as u32;
        words.extend(tokens);
        queue.write_buffer(&self.scratch.step, 0, bytemuck::cast_slice(&words));
        let at = 4 * (STEP_HEAD + self.options.batch) as u64;
        queue.write_buffer(&self.scratch.step, at, bytemuck::cast_slice(&angles));
    }

    /// The dispatches of the program's body over `segments`.
    fn body<'k>(
        recording: &'k Recording,
        segments: &[Segment<'_>],
        caches: &'k [&mut GpuCache],
    ) -> Vec<(&'k Kernel, DispatchShape)> {
        let rows = segments.iter().map(|segment| segment.tokens.len()).sum();
        let mut body = Vec::new();
        if rows == 0 {
            return body;
        }
        for step in &recording.body {
            match step {
                Step::Rows(pair) => {
                    let shape = DispatchShape { rows, parts: 1 };
                    body.extend(pair.of(rows).iter().map(|kernel| (kernel, shape)));
                }
                Step::Cache(op) => {
                    for segment in segments {
                        let (parts, _) = attention_parts(segment);
                        let shape = DispatchShape { rows: segment.tokens.len(), parts };
                        let kernels = caches[segment.sequence].kernels(*op).of(shape.rows, parts);
                        body.extend(kernels.iter().map(|kernel| (kernel, shape)));
                    }
                }
            }
        }
        body
    }

    /// Writes the rows to read out, and compiles the shaders they need.
    fn prepare(&mut self, group: &ReadoutGroup) {
        let gpu = &*self.model.gpu;
        let mut words = vec![group.rows.len() as u32];
        words.extend(group.rows.iter().map(|wanted| wanted.row as u32));
        gpu.queue.write_buffer(&self.scratch.read_out, 0, bytemuck::cast_slice(&words));
        if let Readout::Top(top) = group.readout
            && self.top_k.as_ref().is_none_or(|made| made.top != top)
        {
            let vocab = self.model.program().vocab();
            let (kernels, result) = kernel::topk(gpu, vocab, top, &self.logits_buffer, &self.top_k_buffers);
            self.top_k = Some(TopK { top, kernels, result });
        }
    }

    /// Submits the program's body over `segments`, then the readout of `group`.
    fn submit(
        &mut self,
        segments: &[Segment<'_>],
        caches: &[&mut GpuCache],
        group: Option<&ReadoutGroup>,
    ) -> Result<()> {
        let gpu = &*self.model.gpu;
        let copy = group.map(|group| {
            let (from, into) = self.readback(group.readout);
            (from.clone(), into.clone(), self.readback_len(group))
        });
        let encoder = gpu.device.create_command_encoder(&CommandEncoderDescriptor::default());
        let mut commands = Commands { encoder, counters: &mut self.counters };
        let rows = group.map_or(0, |group| group.rows.len());
        let shape = DispatchShape { rows, parts: 1 };
        let head: &[Kernel] = match group.map(|group| group.readout) {
            None => &[],
            Some(Readout::Hidden) => core::slice::from_ref(&self.recording.hidden),
            Some(Readout::Logits | Readout::Best | Readout::Top(_)) => self.recording.logits.of(rows),
        };
        let choice: &[Kernel] = match (group.map(|group| group.readout), &self.top_k) {
            (Some(Readout::Best), _) => &self.argmax,
            (Some(Readout::Top(_)), Some(top_k)) => &top_k.kernels,
            (Some(Readout::Top(_)), None) | (Some(Readout::Hidden | Readout::Logits) | None, _) => &[],
        };
        let body = Self::body(&self.recording, segments, caches);
        commands.record(body.into_iter().chain(head.iter().chain(choice).map(|kernel| (kernel, shape))));
        if let Some((from, into, len)) = copy {
            commands.encoder.copy_buffer_to_buffer(&from, 0, &into, 0, len);
        }
        commands.submit(gpu)
    }

    /// The buffer with the output, and the mapped buffer it is read through.
    fn readback(&self, readout: Readout) -> (&Buffer, &Buffer) {
        match (readout, &self.top_k) {
            (Readout::Best, _) => (&self.best, &self.read_few),
            (Readout::Top(_), Some(top_k)) => (&self.top_k_buffers[top_k.result], &self.read_few),
            (Readout::Hidden, _) => (&self.scratch.hidden, &self.read_many),
            (Readout::Logits, _) | (Readout::Top(_), None) => (&self.logits_buffer, &self.read_many),
        }
    }

    /// Bytes read back for a group.
    fn readback_len(&self, group: &ReadoutGroup) -> u64 {
        let program = self.model.program();
        let row = match group.readout {
            Readout::Best => 8,
            Readout::Top(top) => 8 * top,
            Readout::Logits => 4 * program.vocab(),
            Readout::Hidden => 4 * program.tensor(program.output).cols,
        };
        (row * group.rows.len()) as u64
    }

    /// Waits for the copies of the last submission.
    async fn read(&mut self, group: &ReadoutGroup, sink: &mut Sink<'_>) -> Result<()> {
        let size = self.readback_len(group);
        let (_, buffer) = self.readback(group.readout);
        let buffer = buffer.clone();
        self.model.gpu.read(&buffer, size, &mut self.bytes).await?;
        self.counters.read_bytes += size;
        let row_len = size as usize / group.rows.len().max(1);
        for (wanted, bytes) in group.rows.iter().zip(self.bytes.chunks_exact(row_len.max(1))) {
            let (sequence, row) = (wanted.sequence, wanted.run_row);
            let words = bytes.as_chunks::<4>().0;
            let floats = words.iter().map(|b| f32::from_le_bytes(*b));
            match group.readout {
                Readout::Logits => {
                    self.logits.clear();
                    self.logits.extend(floats);
                    sink(sequence, row, Output::Logits(&self.logits));
                }
                Readout::Hidden => {
                    self.logits.clear();
                    self.floats.clear();
                    self.floats.extend(floats);
                    sink(sequence, row, Output::Hidden(&self.floats));
                }
                Readout::Best | Readout::Top(_) => {
                    self.logits.clear();
                    self.chosen.clear();
                    let pairs = words.as_chunks::<2>().0.iter().map(|pair| pair.map(u32::from_le_bytes));
                    let found = pairs.filter(|pair| pair[0] != 0);
                    self.chosen.extend(found.map(|[bits, id]| (id, unordered(bits))));
                    sink(sequence, row, Output::Top(&self.chosen));
                }
            }
        }
        Ok(())
    }

    /// The outputs to read from `rows`, in order.
    fn groups(&self, rows: Rows<'_>) -> Vec<ReadoutGroup> {
        rows.groups(|readout| match readout {
            Readout::Top(top) if (1..=self.options.top).contains(&top) => (readout, 1),
            Readout::Logits | Readout::Top(_) => (Readout::Logits, self.options.logit_rows),
            Readout::Best => (readout, self.options.logit_rows),
            Readout::Hidden => (readout, self.options.batch),
        })
    }
}

impl Device for GpuDevice {
    type Cache = GpuCache;
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

    async fn cache(&mut self, options: &SessionOptions) -> Result<GpuCache> {
        if options.context == 0 {
            return Err(CoreError::Option { what: "context", found: 0.0, expected: "at least 1" }.into());
        }
        options.attention.check()?;
        let context = options.context.min(self.options.context);
        let options = SessionOptions { context, ..*options };
        GpuCache::new(&self.model, self.id, &self.scratch, &self.recording.cache_ops, options).await
    }

    fn cache_options(&self, cache: &GpuCache) -> SessionOptions {
        cache.options()
    }

    async fn run(
        &mut self,
        batch: &Batch<'_>,
        caches: &mut [&mut GpuCache],
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        self.model.gpu.check()?;
        check_caches(batch, caches.iter().map(|cache| cache.device()), self.id)?;
        for rows in Rows::parts(batch, self.options.batch) {
            let segments: Vec<Segment<'_>> = rows.segments().collect();
            self.part(&segments, &self.groups(rows), caches, sink).await?;
        }
        Ok(())
    }

    fn logits(&mut self) -> &[f32] {
        &self.logits
    }

    /// Keys cannot be moved yet.
    fn shift(&mut self, _: &mut GpuCache, _: usize, keep: usize, _: usize) -> Result<usize> {
        Ok(keep)
    }

    fn export_len(&self, cache: &GpuCache, len: usize) -> usize {
        cache.export_len(len)
    }

    async fn export(&mut self, cache: &mut GpuCache, len: usize, out: &mut Vec<u8>) -> Result<()> {
        cache.export(&self.model.gpu, len, out).await
    }

    fn import(&mut self, cache: &mut GpuCache, len: usize, from: &[u8]) -> Result<()> {
        cache.import(&self.model.gpu, len, from)
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl shohin_core::device::BlockingDevice for GpuDevice {
    fn wait<F: Future<Output = Result<T>>, T>(future: F) -> Result<T> {
        pollster::block_on(future)
    }
}
