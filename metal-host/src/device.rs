//! The GPU of a Mac as a [`Device`].
#![forbid(unsafe_code)]

use crate::cache::MetalCache;
use crate::driver::{Dispatch, Driver};
use crate::error::{MetalFailure, Result};
use crate::kernel::{ARGMAX_SHARES, BatchShape, Kernel, Kernels, Pipelines};
use crate::lower::{CacheOp, Lowered, Scratch, Step, scratch_bytes};
use crate::weights::MetalModel;
use core::ops::Range;
use shohin_accelerator::{Accelerator, Backend, Cache, KvShape, MemoryPlan, new_id};
use shohin_core::device::{Readout, ScratchOptions, SessionOptions};
use shohin_core::model::{ModelConfig, Program};
use shohin_core::rows::{ReadoutGroup, Segment, tokens_and_angles};
use std::sync::Arc;

/// Bytes of the logits, and of argmax's candidates and results.
fn readout_bytes(vocab: usize, rows: usize) -> [u64; 3] {
    [4 * vocab * rows, 8 * ARGMAX_SHARES * rows, 8 * rows].map(|n| n as u64)
}

impl<D: Driver> MetalModel<D> {
    /// The memory of a device with `options` and a sequence with `session`, without the weights.
    ///
    /// # Errors
    /// For an option outside its range.
    pub fn memory_plan(&self, options: &ScratchOptions, session: &SessionOptions) -> Result<MemoryPlan> {
        let (options, program) = (options.fitted(self.config())?, self.program());
        let scratch = scratch_bytes(program, options.batch, options.activations);
        let readout: u64 = readout_bytes(program.vocab(), options.logit_rows).iter().sum();
        let session = SessionOptions { context: session.context.min(options.context), ..*session };
        Ok(MemoryPlan { kv: KvShape::new(program, &session).bytes(), scratch: scratch + readout })
    }

    /// A device that runs the model.
    ///
    /// # Errors
    /// For an option outside its range, a program without kernels, [`Error::OutOfMemory`](crate::Error::OutOfMemory), or errors
    /// of Metal when it compiles the kernels.
    pub fn device(self: &Arc<Self>, options: &ScratchOptions) -> Result<MetalDevice<D>> {
        Ok(Accelerator::new(MetalBackend::new(self, options)?))
    }
}

/// A model on the GPU of a Mac.
pub type MetalDevice<D> = Accelerator<MetalBackend<D>>;

/// Scratch memory for a batch, and the kernels of a program.
pub struct MetalBackend<D: Driver> {
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
}

impl<D: Driver> core::fmt::Debug for MetalBackend<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("MetalBackend").field("options", &self.options).finish_non_exhaustive()
    }
}

impl<D: Driver> MetalBackend<D> {
    /// Allocates scratch memory and prepares every kernel that does not use a cache.
    fn new(model: &Arc<MetalModel<D>>, options: &ScratchOptions) -> Result<MetalBackend<D>> {
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
        Ok(MetalBackend {
            id: new_id(),
            model: Arc::clone(model),
            options,
            pipelines,
            scratch,
            lowered,
            logits_buffer,
            best,
            argmax,
        })
    }

    fn write<T: bytemuck::Pod>(&self, buffer: &D::Buffer, content: &[T]) -> Result<()> {
        self.model.driver().write(buffer, 0, bytemuck::must_cast_slice(content))
    }

    /// Writes tokens and angles.
    fn write_inputs(&self, segments: &[Segment<'_>]) -> Result<()> {
        let (tokens, angles) = tokens_and_angles(self.model.program(), segments);
        self.write(&self.scratch.tokens, &tokens)?;
        let each = angles.len() / self.scratch.angles.len().max(1);
        let mut of_rotations = self.scratch.angles.iter().zip(angles.chunks(each.max(1)));
        of_rotations.try_for_each(|(buffer, angles)| self.write(buffer, angles))
    }

    /// The dispatches of the program's body over `segments`.
    fn body<'k>(
        &'k self,
        segments: &[Segment<'_>],
        caches: &'k [&mut Cache<MetalCache<D>>],
    ) -> Vec<Dispatch<'k, D>> {
        let rows = segments.iter().map(|segment| segment.tokens.len()).sum();
        let mut body = Vec::new();
        if rows == 0 {
            return body;
        }
        for step in &self.lowered.body {
            let Step::Cache(op) = *step else {
                body.extend(of_rows(step, rows));
                continue;
            };
            for segment in segments {
                let cache = &caches[segment.sequence];
                let (capacity, kernel) = (cache.options().context, &cache.memory().kernels[op]);
                let shape =
                    BatchShape::segment(segment.tokens.len(), segment.row, segment.position, capacity);
                body.push(kernel.dispatch(shape));
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

impl<D: Driver> Backend for MetalBackend<D> {
    type Memory = MetalCache<D>;
    type Failure = MetalFailure;

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

    async fn allocate(&mut self, shape: &KvShape) -> Result<MetalCache<D>> {
        let mut kernels = Kernels { driver: self.model.driver(), pipelines: &mut self.pipelines };
        MetalCache::new(shape, &self.lowered.cache_ops, &mut kernels)
    }

    async fn copy_from(&self, cache: &MetalCache<D>, spans: &[Range<u64>], out: &mut Vec<u8>) -> Result<()> {
        for buffer in cache.layers.iter().flatten() {
            for span in spans {
                let start = out.len();
                out.resize(start + (span.end - span.start) as usize, 0);
                self.model.driver().read(buffer, span.start, &mut out[start..])?;
            }
        }
        Ok(())
    }

    fn copy_into(&self, cache: &MetalCache<D>, part: usize, at: u64, bytes: &[u8]) -> Result<()> {
        self.model.driver().write(&cache.layers[part / 2][part % 2], at, bytes)
    }

    fn submit(
        &mut self,
        segments: &[Segment<'_>],
        caches: &[&mut Cache<MetalCache<D>>],
        groups: &[ReadoutGroup],
    ) -> Result<()> {
        if !segments.is_empty() {
            self.write_inputs(segments)?;
        }
        let mut dispatches = self.body(segments, caches);
        if let Some(group) = groups.first() {
            let rows: Vec<u32> = group.rows.iter().map(|wanted| wanted.row as u32).collect();
            self.write(&self.scratch.read_out, &rows)?;
            dispatches.extend(self.head(group));
        }
        self.model.driver().run(&dispatches)
    }

    async fn read(&mut self, group: &ReadoutGroup, bytes: &mut [u8]) -> Result<bool> {
        let from = match group.readout {
            Readout::Best => &self.best,
            Readout::Hidden => self.scratch.floats(self.model.program().hidden),
            Readout::Logits | Readout::Top(_) => &self.logits_buffer,
        };
        self.model.driver().read(from, 0, bytes)?;
        Ok(true)
    }
}
