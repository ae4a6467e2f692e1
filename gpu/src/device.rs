//! Scratch memory, the recorded program, and what is read back.

use crate::cache::GpuCache;
use crate::error::{Error, GpuFailure, Result};
use crate::gpu::{Gpu, MAX_BINDING};
use crate::kernel::{
    self, ARGMAX_GROUPS, DispatchShape, Kernel, MAX_PARTS, MAX_TOP, SORTED, STEP_HEAD, TILE,
};
use crate::record::{BufferPlan, Recording, Scratch, Step, other_bytes};
use crate::upload::{GpuModel, UploadPlan};
use core::ops::Range;
use shohin_accelerator::{Accelerator, Backend, Cache, KvShape, MemoryPlan, new_id, row_bytes};
use shohin_core::Activations;
use shohin_core::device::{Readout, ScratchOptions, SessionOptions, check_count};
use shohin_core::model::{ModelConfig, Program};
use shohin_core::rows::{ReadoutGroup, Segment, tokens_and_angles};
use std::sync::Arc;
use wgpu::{Buffer, BufferUsages, CommandEncoder, CommandEncoderDescriptor, ComputePassDescriptor};

/// Options of a GPU device, which decide how much scratch memory it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuDeviceOptions {
    /// Maximum number of positions of a sequence; clamped to the model's context.
    pub context: usize,
    /// Precision of activations. Integers have one scale per 32, in 32-bit floats.
    pub activations: Activations,
    /// Rows computed together.
    pub batch: usize,
    /// Rows whose logits are computed together when many rows are read out.
    pub logit_rows: usize,
    /// Maximum number of tokens of [`Readout::Top`], up to 256; for more, all logits are read.
    pub top: usize,
}

impl Default for GpuDeviceOptions {
    fn default() -> Self {
        let activations = Activations::default();
        GpuDeviceOptions { context: 4096, activations, batch: 128, logit_rows: 8, top: 64 }
    }
}

impl GpuDeviceOptions {
    /// The options and the most tokens of [`Readout::Top`], checked and clamped to the model's limits.
    fn fitted(&self, config: &ModelConfig) -> Result<(ScratchOptions, usize)> {
        check_count("top", self.top, MAX_TOP)?;
        let GpuDeviceOptions { context, activations, batch, logit_rows, .. } = *self;
        let fitted = ScratchOptions { context, activations, batch, logit_rows }.fitted(config)?;
        let fit = MAX_BINDING as usize / (4 * config.vocab_size);
        let logit_rows = fitted.logit_rows.min(fit).max(1);
        Ok((ScratchOptions { logit_rows, ..fitted }, self.top.min(config.vocab_size)))
    }
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
fn readout_bytes(program: &Program, options: &ScratchOptions, top: usize) -> [u64; 6] {
    let (vocab, hidden) = (program.vocab(), program.tensor(program.output).cols);
    let rows = options.logit_rows as u64;
    let few = 8 * top.max(options.logit_rows) as u64;
    let logits = 4 * vocab as u64 * rows;
    let top_k = 8 * (vocab.div_ceil(SORTED) * top) as u64;
    let many = logits.max(4 * (hidden * options.batch) as u64);
    [logits, 8 * ARGMAX_GROUPS as u64 * rows, 8 * rows, top_k, few, many]
}

impl UploadPlan {
    /// The memory of a device with `options` and a sequence with `session`, without the weights.
    ///
    /// # Errors
    /// For an option outside its range.
    pub fn memory_plan(&self, options: &GpuDeviceOptions, session: &SessionOptions) -> Result<MemoryPlan> {
        let (options, top) = options.fitted(self.config())?;
        let program = self.program();
        let buffers = BufferPlan::new(self, options.activations).bytes(options.batch);
        let other: u64 = other_bytes(program, options.batch).iter().sum();
        let [logits, candidates, best, top_k, few, many] = readout_bytes(program, &options, top);
        let scratch = buffers + other + logits + candidates + best + 2 * top_k + few + many;
        let session = SessionOptions { context: session.context.min(options.context), ..*session };
        Ok(MemoryPlan { kv: KvShape::new(program, &session).bytes(), scratch })
    }
}

/// The kernels of a top-k, the number of tokens it keeps, and the index of the result buffer.
struct TopK {
    top: usize,
    kernels: Vec<Kernel>,
    result: usize,
}

/// A model on a GPU.
pub type GpuDevice = Accelerator<GpuBackend>;

/// Scratch memory for a batch, and every dispatch of a program.
pub struct GpuBackend {
    /// Unique among the devices of the process.
    id: u64,
    model: Arc<GpuModel>,
    options: ScratchOptions,
    /// Maximum number of tokens of [`Readout::Top`].
    top: usize,
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
    counters: Counters,
}

impl core::fmt::Debug for GpuBackend {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("GpuBackend").field("options", &self.options).finish_non_exhaustive()
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

impl GpuModel {
    /// A device that runs the model.
    ///
    /// # Errors
    /// For an option outside its range, a program without kernels, [`Error::OutOfMemory`], or errors of the
    /// driver when it compiles the shaders.
    pub async fn device(self: &Arc<Self>, options: &GpuDeviceOptions) -> Result<GpuDevice> {
        Ok(Accelerator::new(GpuBackend::new(self, options).await?))
    }
}

impl GpuBackend {
    /// Allocates scratch memory and prepares every dispatch that does not use a cache.
    async fn new(model: &Arc<GpuModel>, options: &GpuDeviceOptions) -> Result<GpuBackend> {
        let gpu = &*model.gpu;
        let (options, top) = options.fitted(model.config())?;
        let program = model.program();
        let plan = BufferPlan::new(model.plan(), options.activations);
        let scratch = Scratch::new(gpu, program, &plan, options.batch, options.activations).await?;
        let vocab = program.vocab();
        let [logits, candidates, best, top_k, few, many] = readout_bytes(program, &options, top);
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
        Ok(GpuBackend {
            id: new_id(),
            model: Arc::clone(model),
            options,
            top,
            scratch,
            recording,
            logits_buffer,
            best,
            top_k_buffers,
            read_few,
            read_many,
            argmax,
            top_k: None,
            counters: Counters::default(),
        })
    }

    /// The model this device runs.
    pub fn model(&self) -> &Arc<GpuModel> {
        &self.model
    }

    /// Work done on the GPU for this device.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The error that made the GPU unusable, if any.
    pub fn failure(&self) -> Option<Error> {
        self.model.gpu.check().err()
    }

    /// Writes tokens, positions and angles.
    fn write_step(&self, segments: &[Segment<'_>], caches: &[&mut Cache<GpuCache>]) {
        let program = self.model.program();
        let queue = &self.model.gpu.queue;
        for segment in segments {
            let (rows, (_, span)) = (segment.tokens.len(), attention_parts(segment));
            let words = [rows, segment.position, segment.row, span].map(|word| word as u32);
            queue.write_buffer(&caches[segment.sequence].memory().sequence, 0, bytemuck::cast_slice(&words));
        }
        let (tokens, angles) = tokens_and_angles(program, segments);
        let rows = tokens.len();
        let mut words = vec![0; STEP_HEAD];
        words[0] = rows as u32;
        words.extend(tokens);
        queue.write_buffer(&self.scratch.step, 0, bytemuck::cast_slice(&words));
        // (rotations, batch, head_dim), of which the first rows are written.
        let (batch, dim) = (self.options.batch, program.heads.dim);
        for (rotation, angles) in angles.chunks(rows * dim).enumerate() {
            let at = 4 * (STEP_HEAD + batch + rotation * batch * dim) as u64;
            queue.write_buffer(&self.scratch.step, at, bytemuck::cast_slice(angles));
        }
    }

    /// The dispatches of the program's body over `segments`.
    fn body<'k>(
        recording: &'k Recording,
        segments: &[Segment<'_>],
        caches: &'k [&mut Cache<GpuCache>],
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
                        let kernels = caches[segment.sequence].memory().kernels[*op].of(shape.rows, parts);
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

    /// The buffer with the output, and the mapped buffer it is read through.
    fn readback(&self, readout: Readout) -> (&Buffer, &Buffer) {
        match (readout, &self.top_k) {
            (Readout::Best, _) => (&self.best, &self.read_few),
            (Readout::Top(_), Some(top_k)) => (&self.top_k_buffers[top_k.result], &self.read_few),
            (Readout::Hidden, _) => (&self.scratch.hidden, &self.read_many),
            (Readout::Logits, _) | (Readout::Top(_), None) => (&self.logits_buffer, &self.read_many),
        }
    }
}

impl Backend for GpuBackend {
    type Memory = GpuCache;
    type Failure = GpuFailure;

    fn id(&self) -> u64 {
        self.id
    }

    fn config(&self) -> &ModelConfig {
        self.model.config()
    }

    fn program(&self) -> &Program {
        self.model.program()
    }

    fn options(&self) -> &ScratchOptions {
        &self.options
    }

    fn top(&self) -> usize {
        self.top
    }

    fn check(&self) -> Result<()> {
        self.model.gpu.check()
    }

    async fn allocate(&mut self, shape: &KvShape) -> Result<GpuCache> {
        GpuCache::new(&self.model, &self.scratch, &self.recording.cache_ops, shape).await
    }

    async fn copy_from(&self, cache: &GpuCache, spans: &[Range<u64>], out: &mut Vec<u8>) -> Result<()> {
        cache.copy_from(&self.model.gpu, spans, out).await
    }

    fn copy_into(&self, cache: &GpuCache, part: usize, at: u64, bytes: &[u8]) -> Result<()> {
        cache.copy_into(&self.model.gpu, part, at, bytes)
    }

    fn submit(
        &mut self,
        segments: &[Segment<'_>],
        caches: &[&mut Cache<GpuCache>],
        groups: &[ReadoutGroup],
    ) -> Result<()> {
        if !segments.is_empty() {
            self.write_step(segments, caches);
        }
        let group = groups.first();
        if let Some(group) = group {
            self.prepare(group);
        }
        let gpu = &*self.model.gpu;
        let copy = group.map(|group| {
            let (from, into) = self.readback(group.readout);
            (from.clone(), into.clone(), (row_bytes(self.program(), group.readout) * group.rows.len()) as u64)
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

    async fn read(&mut self, group: &ReadoutGroup, bytes: &mut [u8]) -> Result<bool> {
        let (_, buffer) = self.readback(group.readout);
        self.model.gpu.read(buffer, bytes).await?;
        self.counters.read_bytes += bytes.len() as u64;
        Ok(true)
    }
}
