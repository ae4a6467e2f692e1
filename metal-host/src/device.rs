//! The GPU of a Mac as a [`Device`].
#![forbid(unsafe_code)]

use crate::cache::{MetalCache, cache_bytes};
use crate::driver::{Dispatch, Driver};
use crate::error::{Error, Result};
use crate::kernel::{ARGMAX_SHARES, BatchShape, Kernel, Kernels, Pipelines};
use crate::lower::{CacheOp, Lowered, Scratch, Step, scratch_bytes};
use crate::weights::MetalModel;
use shohin_core::device::{
    Batch, BlockingDevice, Output, Readout, ScratchOptions, SessionOptions, Sink, check_caches, check_run,
    ready, unordered,
};
use shohin_core::model::{ModelConfig, Program};
use shohin_core::rows::{ReadoutGroup, Rows, Segment, tokens_and_angles};
use shohin_core::{Device, Error as CoreError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory of a device and a sequence, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct MetalMemory {
    /// Keys and values of a sequence.
    pub kv: u64,
    /// Activations of one batch, and logits.
    pub scratch: u64,
}

/// Bytes of the logits, and of argmax's candidates and results.
fn readout_bytes(vocab: usize, rows: usize) -> [u64; 3] {
    [4 * vocab * rows, 8 * ARGMAX_SHARES * rows, 8 * rows].map(|n| n as u64)
}

impl<D: Driver> MetalModel<D> {
    /// The memory of a device with `options` and a sequence with `session`, without the weights.
    ///
    /// # Errors
    /// For an option outside its range.
    pub fn memory_plan(&self, options: &ScratchOptions, session: &SessionOptions) -> Result<MetalMemory> {
        let (options, program) = (options.fitted(self.config())?, self.program());
        let scratch = scratch_bytes(program, options.batch, options.activations);
        let readout: u64 = readout_bytes(program.vocab(), options.logit_rows).iter().sum();
        let session = SessionOptions { context: session.context.min(options.context), ..*session };
        Ok(MetalMemory { kv: cache_bytes(program, &session), scratch: scratch + readout })
    }
}

/// A model on the GPU of a Mac: scratch memory for a batch, and the kernels of its program. Runs any number of
/// sequences.
pub struct MetalDevice<D: Driver> {
    /// Unique among the devices of the process.
    id: u64,
    model: Arc<MetalModel<D>>,
    options: ScratchOptions,
    pipelines: Pipelines<D>,
    scratch: Scratch<D::Buffer>,
    lowered: Lowered<D>,
    logits_buffer: D::Buffer,
    best: D::Buffer,
    argmax: [Kernel<D>; 2],
    floats: Vec<f32>,
    logits: Vec<f32>,
}

impl<D: Driver> core::fmt::Debug for MetalDevice<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("MetalDevice").field("options", &self.options).finish_non_exhaustive()
    }
}

impl<D: Driver> MetalDevice<D> {
    /// Allocates scratch memory and prepares every kernel that does not use a cache.
    ///
    /// # Errors
    /// For an option outside its range, a program without kernels, [`Error::OutOfMemory`], or errors of Metal when
    /// it compiles the kernels.
    pub fn new(model: &Arc<MetalModel<D>>, options: &ScratchOptions) -> Result<MetalDevice<D>> {
        let (driver, program) = (model.driver(), model.program());
        let options = options.fitted(model.config())?;
        let scratch = Scratch::new(driver, program, options.batch, options.activations)?;
        let vocab = program.vocab();
        let [logits, candidates, best] = readout_bytes(vocab, options.logit_rows);
        let (logits_buffer, candidates, best) =
            (driver.buffer(logits)?, driver.buffer(candidates)?, driver.buffer(best)?);
        let mut pipelines = Pipelines::new();
        let lowered = Lowered::new(model, &scratch, &mut pipelines, options.activations, &logits_buffer)?;
        let mut kernels = Kernels { driver, pipelines: &mut pipelines };
        let argmax = kernels.argmax(vocab, &logits_buffer, &candidates, &best)?;
        static DEVICES: AtomicU64 = AtomicU64::new(0);
        Ok(MetalDevice {
            id: DEVICES.fetch_add(1, Ordering::Relaxed),
            model: Arc::clone(model),
            options,
            pipelines,
            scratch,
            lowered,
            logits_buffer,
            best,
            argmax,
            floats: Vec::new(),
            logits: Vec::new(),
        })
    }

    /// The model this device runs.
    pub fn model(&self) -> &Arc<MetalModel<D>> {
        &self.model
    }

    /// The effective options.
    pub fn options(&self) -> &ScratchOptions {
        &self.options
    }

    fn compute(
        &mut self,
        batch: &Batch<'_>,
        caches: &mut [&mut MetalCache<D>],
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        check_caches(batch, caches.iter().map(|cache| cache.device()), self.id)?;
        for (run, cache) in batch.iter().zip(caches.iter()) {
            check_run(run, cache.options().context, self.model.program().vocab())?;
        }
        for rows in Rows::parts(batch, self.options.batch) {
            let segments: Vec<Segment<'_>> = rows.segments().collect();
            self.write_inputs(&segments)?;
            let groups = self.groups(rows);
            // The first group belongs to the command buffer of the body.
            for (i, group) in groups.iter().enumerate() {
                let list: Vec<u32> = group.rows.iter().map(|wanted| wanted.row as u32).collect();
                self.write(&self.scratch.read_out, &list)?;
                let body = if i == 0 { self.body(&segments, caches) } else { Vec::new() };
                let head = self.head(group);
                self.model.driver().run(&body.into_iter().chain(head).collect::<Vec<_>>())?;
                self.read(group, sink)?;
            }
            if groups.is_empty() {
                self.model.driver().run(&self.body(&segments, caches))?;
            }
        }
        Ok(())
    }

    fn write<T: bytemuck::Pod>(&self, buffer: &D::Buffer, content: &[T]) -> Result<()> {
        self.model.driver().write(buffer, 0, bytemuck::must_cast_slice(content))
    }

    /// Writes tokens and angles.
    fn write_inputs(&self, segments: &[Segment<'_>]) -> Result<()> {
        let (tokens, angles) = tokens_and_angles(self.model.program(), segments);
        self.write(&self.scratch.tokens, &tokens)?;
        self.write(&self.scratch.angles, &angles)
    }

    /// The dispatches of the program's body over `segments`.
    fn body<'k>(
        &'k self,
        segments: &[Segment<'_>],
        caches: &'k [&mut MetalCache<D>],
    ) -> Vec<Dispatch<'k, D>> {
        let rows = segments.iter().map(|segment| segment.tokens.len()).sum();
        let mut body = Vec::new();
        for step in &self.lowered.body {
            let Step::Cache(op) = *step else {
                body.extend(of_rows(step, rows));
                continue;
            };
            for segment in segments {
                let cache = &caches[segment.sequence];
                let capacity = cache.options().context;
                let shape =
                    BatchShape::segment(segment.tokens.len(), segment.row, segment.position, capacity);
                body.push(cache.kernel(op).dispatch(shape));
                if let CacheOp::Attention { combine, .. } = &self.lowered.cache_ops[op]
                    && shape.parts > 1
                {
                    body.push(combine.dispatch(shape));
                }
            }
        }
        body
    }

    /// The dispatches from the residual stream to the output of a group.
    fn head(&self, group: &ReadoutGroup) -> Vec<Dispatch<'_, D>> {
        let rows = group.rows.len();
        let mut head = vec![self.lowered.norm.dispatch(BatchShape::rows(rows))];
        if group.readout != Readout::Hidden {
            head.extend(self.lowered.logits.iter().flat_map(|step| of_rows(step, rows)));
        }
        if group.readout == Readout::Best {
            head.extend(self.argmax.iter().map(|kernel| kernel.dispatch(BatchShape::rows(rows))));
        }
        head
    }

    /// Passes the outputs of a group to `sink`.
    fn read(&mut self, group: &ReadoutGroup, sink: &mut Sink<'_>) -> Result<()> {
        let program = self.model.program();
        let (from, cols) = match group.readout {
            Readout::Best => (&self.best, 2),
            Readout::Hidden => (self.scratch.floats(program.hidden), program.tensor(program.output).cols),
            Readout::Logits | Readout::Top(_) => (&self.logits_buffer, program.vocab()),
        };
        self.logits.clear();
        for (row, wanted) in group.rows.iter().enumerate() {
            let (sequence, run_row, at) = (wanted.sequence, wanted.run_row, 4 * (row * cols) as u64);
            let driver = self.model.driver();
            match group.readout {
                Readout::Logits | Readout::Top(_) => {
                    self.logits.resize(cols, 0.0);
                    driver.read(from, at, bytemuck::must_cast_slice_mut(&mut self.logits))?;
                    sink(sequence, run_row, Output::Logits(&self.logits));
                }
                Readout::Hidden => {
                    self.floats.resize(cols, 0.0);
                    driver.read(from, at, bytemuck::must_cast_slice_mut(&mut self.floats))?;
                    sink(sequence, run_row, Output::Hidden(&self.floats));
                }
                Readout::Best => {
                    let mut best = [0u32; 2];
                    driver.read(from, at, bytemuck::must_cast_slice_mut(&mut best))?;
                    // 0 is no choice: every logit is NaN or -inf.
                    let found = [(best[1], unordered(best[0]))];
                    sink(sequence, run_row, Output::Top(if best[0] == 0 { &[] } else { &found }));
                }
            }
        }
        Ok(())
    }

    /// The outputs to read from `rows`, in order. All logits are read for [`Readout::Top`]: they are in shared memory.
    fn groups(&self, rows: Rows<'_>) -> Vec<ReadoutGroup> {
        rows.groups(|readout| match readout {
            Readout::Logits | Readout::Top(_) => (Readout::Logits, self.options.logit_rows),
            Readout::Best => (Readout::Best, self.options.logit_rows),
            Readout::Hidden => (Readout::Hidden, self.options.batch),
        })
    }
}

/// The dispatch of a step over `rows` rows; none for operations on a cache.
fn of_rows<D: Driver>(step: &Step<D>, rows: usize) -> Option<Dispatch<'_, D>> {
    let kernel = match step {
        Step::Rows { one, several } => Some(if rows == 1 { one } else { several }),
        Step::Any(kernel) => Some(kernel),
        Step::Several(kernel) => (rows > 1).then_some(kernel),
        Step::Cache(_) => None,
    };
    kernel.map(|kernel| kernel.dispatch(BatchShape::rows(rows)))
}

impl<D: Driver> Device for MetalDevice<D> {
    type Cache = MetalCache<D>;
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

    async fn cache(&mut self, options: &SessionOptions) -> Result<MetalCache<D>> {
        if options.context == 0 {
            return Err(CoreError::Option { what: "context", found: 0.0, expected: "at least 1" }.into());
        }
        options.attention.check()?;
        let options = SessionOptions { context: options.context.min(self.options.context), ..*options };
        let mut kernels = Kernels { driver: self.model.driver(), pipelines: &mut self.pipelines };
        MetalCache::new(self.id, self.model.program(), &self.lowered.cache_ops, &mut kernels, options)
    }

    fn cache_options(&self, cache: &MetalCache<D>) -> SessionOptions {
        cache.options()
    }

    async fn run(
        &mut self,
        batch: &Batch<'_>,
        caches: &mut [&mut MetalCache<D>],
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        self.compute(batch, caches, sink)
    }

    fn logits(&mut self) -> &[f32] {
        &self.logits
    }

    /// Keys cannot be moved yet.
    fn shift(&mut self, _: &mut MetalCache<D>, _: usize, keep: usize, _: usize) -> Result<usize> {
        Ok(keep)
    }

    fn export_len(&self, cache: &MetalCache<D>, len: usize) -> usize {
        cache.export_len(len)
    }

    async fn export(&mut self, cache: &mut MetalCache<D>, len: usize, out: &mut Vec<u8>) -> Result<()> {
        cache.export(self.model.driver(), len, out)
    }

    fn import(&mut self, cache: &mut MetalCache<D>, len: usize, from: &[u8]) -> Result<()> {
        cache.import(self.model.driver(), len, from)
    }
}

impl<D: Driver> BlockingDevice for MetalDevice<D> {
    fn wait<F: Future<Output = Result<T>>, T>(future: F) -> Result<T> {
        // Every call waits for the GPU itself.
        ready(future).unwrap_or(Err(CoreError::Device { problem: "it did not answer" }.into()))
    }
}
