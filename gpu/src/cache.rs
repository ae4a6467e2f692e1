//! Keys and values of one sequence on the GPU, and the kernels that use them.

use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::kernel::{Layer, SEQUENCE_WORDS};
use crate::kv::KvStorage;
use crate::record::{CacheKernels, CacheOp, Scratch};
use crate::upload::GpuModel;
use core::ops::Range;
use shohin_accelerator::KvShape;
use shohin_core::model::Program;
use wgpu::{Buffer, BufferUsages, CommandEncoderDescriptor};

/// Keys and values of one sequence.
pub struct GpuCache {
    /// Keys and values of each layer.
    layers: Vec<[Buffer; 2]>,
    /// Parameters of the sequence's rows in the batch, see `sequence.wgsl`.
    pub(crate) sequence: Buffer,
    /// Indexed by operation on the cache.
    pub(crate) kernels: Vec<CacheKernels>,
}

impl core::fmt::Debug for GpuCache {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("GpuCache").finish_non_exhaustive()
    }
}

impl GpuCache {
    pub(crate) async fn new(
        model: &GpuModel,
        scratch: &Scratch,
        ops: &[CacheOp],
        shape: &KvShape,
    ) -> Result<GpuCache> {
        let (gpu, options) = (&*model.gpu, &shape.options);
        let (storage, bytes) = (KvStorage::of(options.kv), shape.layer_bytes());
        let mut layers = Vec::new();
        for _ in 0..shape.layers {
            layers.push([gpu.storage("keys", bytes).await?, gpu.storage("values", bytes).await?]);
        }
        let sequence = gpu.storage("sequence", 4 * SEQUENCE_WORDS as u64).await?;
        let Program { heads, query_scale, .. } = model.program();
        let score_scale = query_scale / (heads.dim as f32).sqrt();
        let layer = |at: usize, window| {
            let absent = Error::Operation { found: "a layer", expected: "one of the cache" };
            let [keys, values] = layers.get(at).ok_or(absent)?;
            Ok(Layer {
                storage,
                capacity: options.context,
                attention: options.attention.within(window)?,
                score_scale,
                keys,
                values,
                sequence: &sequence,
            })
        };
        let kernels = ops.iter().map(|op| CacheKernels::new(gpu, model.program(), scratch, op, &layer));
        let kernels = kernels.collect::<Result<_>>()?;
        gpu.check()?;
        Ok(GpuCache { layers, sequence, kernels })
    }

    /// Appends these spans of each part to `out`.
    pub(crate) async fn copy_from(&self, gpu: &Gpu, spans: &[Range<u64>], out: &mut Vec<u8>) -> Result<()> {
        let size = spans.iter().map(|span| span.end - span.start).sum();
        let into = gpu.buffer("export", size, BufferUsages::MAP_READ | BufferUsages::COPY_DST).await?;
        for buffer in self.layers.iter().flatten() {
            let mut encoder = gpu.device.create_command_encoder(&CommandEncoderDescriptor::default());
            let mut at = 0;
            for span in spans {
                let len = span.end - span.start;
                encoder.copy_buffer_to_buffer(buffer, span.start, &into, at, len);
                at += len;
            }
            gpu.queue.submit([encoder.finish()]);
            let start = out.len();
            out.resize(start + size as usize, 0);
            gpu.read(&into, &mut out[start..]).await?;
        }
        Ok(())
    }

    /// Writes `bytes` at byte `at` of a part.
    pub(crate) fn copy_into(&self, gpu: &Gpu, part: usize, at: u64, bytes: &[u8]) -> Result<()> {
        gpu.check()?;
        gpu.queue.write_buffer(&self.layers[part / 2][part % 2], at, bytes);
        Ok(())
    }
}
