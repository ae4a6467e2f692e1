//! Keys and values of one sequence, and the kernels that use them.
#![forbid(unsafe_code)]

use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::kernel::{Kernel, Kernels};
use crate::lower::CacheOp;
use shohin_core::Error as CoreError;
use shohin_core::cache::FlatKv;
use shohin_core::device::SessionOptions;
use shohin_core::model::Program;
use shohin_core::model::program::Heads;
use std::ops::Range;

/// Bytes of the keys of a layer, and so of its values.
fn layer_bytes(heads: &Heads, options: &SessionOptions) -> u64 {
    let numbers = heads.kv as u64 * options.context as u64 * heads.dim as u64;
    FlatKv::of(options.kv).bytes(numbers)
}

/// Bytes of the cache of a sequence.
pub(crate) fn cache_bytes(program: &Program, options: &SessionOptions) -> u64 {
    2 * program.layers as u64 * layer_bytes(&program.heads, options)
}

/// Keys and values of one sequence. All memory is allocated when it is created.
pub struct MetalCache<D: Driver> {
    /// The device that it was made by: its kernels use that device's buffers.
    device: u64,
    options: SessionOptions,
    heads: Heads,
    /// Keys and values of each layer.
    layers: Vec<[D::Buffer; 2]>,
    /// By operation on the cache.
    kernels: Vec<Kernel<D>>,
}

impl<D: Driver> core::fmt::Debug for MetalCache<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("MetalCache").field("options", &self.options).finish_non_exhaustive()
    }
}

impl<D: Driver> MetalCache<D> {
    pub(crate) fn new(
        device: u64,
        program: &Program,
        ops: &[CacheOp<D>],
        kernels: &mut Kernels<'_, D>,
        options: SessionOptions,
    ) -> Result<MetalCache<D>> {
        let (heads, bytes) = (program.heads, layer_bytes(&program.heads, &options));
        // Indices of the kernels have 32 bits.
        let numbers = (heads.kv * heads.dim) as u64 * options.context as u64;
        if u32::try_from(numbers).is_err() {
            let (what, expected) = ("the number of keys of a layer", "less than 2^32");
            return Err(Error::Unsupported { what, found: numbers, expected });
        }
        let mut layers = Vec::new();
        for _ in 0..program.layers {
            layers.push([kernels.driver.buffer(bytes)?, kernels.driver.buffer(bytes)?]);
        }
        let mut made = Vec::new();
        for op in ops {
            made.push(match op {
                CacheOp::RopeStore(op) => kernels.rope_store(&heads, op, options.kv, &layers[op.layer])?,
                CacheOp::Attention { layer, q, out, parts, .. } => {
                    let kind = (options.kv, options.attention);
                    kernels.attention(&heads, kind, &layers[*layer], [q, out, parts])?
                }
            });
        }
        Ok(MetalCache { device, options, heads, layers, kernels: made })
    }

    pub(crate) fn device(&self) -> u64 {
        self.device
    }

    pub(crate) fn options(&self) -> SessionOptions {
        self.options
    }

    /// The kernel of an operation on the cache.
    pub(crate) fn kernel(&self, op: usize) -> &Kernel<D> {
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
        let bytes: u64 = self.spans(len).iter().map(|span| span.end - span.start).sum();
        2 * self.layers.len() * bytes as usize
    }

    /// Appends them to `out`, in a layout that does not depend on the capacity.
    pub(crate) fn export(&self, driver: &D, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let need = self.export_len(len);
        out.try_reserve(need).map_err(|_| CoreError::Memory { need: need as u64, have: 0 })?;
        let spans = self.spans(len);
        for buffer in self.layers.iter().flatten() {
            for span in &spans {
                let start = out.len();
                out.resize(start + (span.end - span.start) as usize, 0);
                driver.read(buffer, span.start, &mut out[start..])?;
            }
        }
        Ok(())
    }

    /// Restores the output of [`MetalCache::export`] for `len` positions.
    pub(crate) fn import(&mut self, driver: &D, len: usize, from: &[u8]) -> Result<()> {
        let (expected, found) = (self.export_len(len) as u64, from.len() as u64);
        if expected != found {
            return Err(CoreError::Length { what: "imported keys and values", expected, found }.into());
        }
        let spans = self.spans(len);
        let mut rest = from;
        for buffer in self.layers.iter().flatten() {
            for span in &spans {
                let (part, after) = rest.split_at((span.end - span.start) as usize);
                driver.write(buffer, span.start, part)?;
                rest = after;
            }
        }
        Ok(())
    }
}
