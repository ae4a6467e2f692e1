//! Keys and values of one sequence on the GPU, and the kernels that use them.

use crate::error::Result;
use crate::gpu::Gpu;
use crate::kernel::{Layer, SEQUENCE_WORDS};
use crate::kv::KvStorage;
use crate::record::{CacheKernels, CacheOp, Scratch};
use crate::upload::GpuModel;
use shohin_core::Error as CoreError;
use shohin_core::cache::FlatKv;
use shohin_core::device::SessionOptions;
use shohin_core::model::program::Heads;
use std::ops::Range;
use wgpu::{Buffer, BufferUsages, CommandEncoderDescriptor};

/// Keys and values of one sequence. All memory is allocated when it is created.
pub struct GpuCache {
    /// The device that it was made by: its kernels use that device's buffers.
    device: u64,
    options: SessionOptions,
    heads: Heads,
    /// Keys and values of each layer.
    layers: Vec<[Buffer; 2]>,
    /// Parameters of the sequence's rows in the batch, see `sequence.wgsl`.
    sequence: Buffer,
    /// Indexed by operation on the cache.
    kernels: Vec<CacheKernels>,
}

impl core::fmt::Debug for GpuCache {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("GpuCache").field("options", &self.options).finish_non_exhaustive()
    }
}

impl GpuCache {
    pub(crate) async fn new(
        model: &GpuModel,
        device: u64,
        scratch: &Scratch,
        ops: &[CacheOp],
        options: SessionOptions,
    ) -> Result<GpuCache> {
        let (gpu, program) = (&*model.gpu, model.program());
        let heads = program.heads;
        let storage = KvStorage::of(options.kv);
        let bytes = FlatKv::of(options.kv).bytes(heads.kv as u64 * options.context as u64 * heads.dim as u64);
        let mut layers = Vec::new();
        for _ in 0..program.layers {
            layers.push([gpu.storage("keys", bytes).await?, gpu.storage("values", bytes).await?]);
        }
        let sequence = gpu.storage("sequence", 4 * SEQUENCE_WORDS as u64).await?;
        let layer = |at: usize| {
            let [keys, values] = layers.get(at)?;
            Some(Layer {
                storage,
                capacity: options.context,
                attention: options.attention,
                keys,
                values,
                sequence: &sequence,
            })
        };
        let kernels = ops.iter().map(|op| CacheKernels::new(gpu, program, scratch, op, &layer));
        let kernels = kernels.collect::<Result<_>>()?;
        gpu.check()?;
        Ok(GpuCache { device, options, heads, layers, sequence, kernels })
    }

    pub(crate) fn device(&self) -> u64 {
        self.device
    }

    pub(crate) fn options(&self) -> SessionOptions {
        self.options
    }

    pub(crate) fn sequence(&self) -> &Buffer {
        &self.sequence
    }

    /// The kernels of an operation on the cache.
    pub(crate) fn kernels(&self, op: usize) -> &CacheKernels {
        &self.kernels[op]
    }

    /// The ranges of the first `len` positions of each head in a buffer of keys or of values.
    fn spans(&self, len: usize) -> Vec<Range<u64>> {
        let [kv, capacity, d, len] =
            [self.heads.kv, self.options.context, self.heads.dim, len].map(|n| n as u64);
        FlatKv::of(self.options.kv).spans(kv, capacity, d, len).collect()
    }

    /// Bytes of the keys and values of the first `len` positions.
    pub(crate) fn export_len(&self, len: usize) -> usize {
        let buffers = 2 * self.layers.len() as u64;
        (buffers * self.spans(len).iter().map(|span| span.end - span.start).sum::<u64>()) as usize
    }

    /// Appends them to `out`, in a layout that does not depend on the capacity.
    pub(crate) async fn export(&self, gpu: &Gpu, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let spans = self.spans(len);
        let size = spans.iter().map(|span| span.end - span.start).sum();
        if size == 0 {
            return Ok(());
        }
        let into = gpu.buffer("export", size, BufferUsages::MAP_READ | BufferUsages::COPY_DST).await?;
        let mut bytes = Vec::new();
        for buffer in self.layers.iter().flatten() {
            let mut encoder = gpu.device.create_command_encoder(&CommandEncoderDescriptor::default());
            let mut at = 0;
            for span in &spans {
                let len = span.end - span.start;
                encoder.copy_buffer_to_buffer(buffer, span.start, &into, at, len);
                at += len;
            }
            gpu.queue.submit([encoder.finish()]);
            gpu.read(&into, size, &mut bytes).await?;
            out.extend_from_slice(&bytes);
        }
        Ok(())
    }

    /// Restores the output of [`GpuCache::export`] for `len` positions.
    pub(crate) fn import(&mut self, gpu: &Gpu, len: usize, from: &[u8]) -> Result<()> {
        let (expected, found) = (self.export_len(len) as u64, from.len() as u64);
        if expected != found {
            return Err(CoreError::Length { what: "imported keys and values", expected, found }.into());
        }
        gpu.check()?;
        let spans = self.spans(len);
        let mut rest = from;
        for buffer in self.layers.iter().flatten() {
            for span in &spans {
                let (part, after) = rest.split_at((span.end - span.start) as usize);
                gpu.queue.write_buffer(buffer, span.start, part);
                rest = after;
            }
        }
        Ok(())
    }
}
