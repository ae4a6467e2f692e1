//! Keys and values of one sequence, and the kernels that use them.
#![forbid(unsafe_code)]

use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::kernel::{Kernel, Kernels};
use crate::lower::CacheOp;
use shohin_accelerator::KvShape;

/// Keys and values of one sequence.
pub struct MetalCache<D: Driver> {
    /// Keys and values of each layer.
    pub(crate) layers: Vec<[D::Buffer; 2]>,
    /// By operation on the cache.
    pub(crate) kernels: Vec<Kernel<D>>,
}

impl<D: Driver> core::fmt::Debug for MetalCache<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("MetalCache").finish_non_exhaustive()
    }
}

impl<D: Driver> MetalCache<D> {
    pub(crate) fn new(
        shape: &KvShape,
        ops: &[CacheOp<D>],
        kernels: &mut Kernels<'_, D>,
    ) -> Result<MetalCache<D>> {
        let KvShape { options, heads, .. } = shape;
        // Indices of the kernels have 32 bits.
        let numbers = shape.numbers();
        if u32::try_from(numbers).is_err() {
            let (what, expected) = ("the number of keys of a layer", "less than 2^32");
            return Err(Error::Unsupported { what, found: numbers, expected });
        }
        let (mut layers, bytes) = (Vec::new(), shape.layer_bytes());
        for _ in 0..shape.layers {
            layers.push([kernels.driver.buffer(bytes)?, kernels.driver.buffer(bytes)?]);
        }
        let mut made = Vec::new();
        for op in ops {
            made.push(match op {
                CacheOp::RopeStore(op) => kernels.rope_store(heads, op, options.kv, &layers[op.layer])?,
                CacheOp::Attention { layer, window, query_scale, q, out, parts, .. } => {
                    let kind = (options.kv, options.attention.within(*window)?, *query_scale);
                    kernels.attention(heads, kind, &layers[*layer], [q, out, parts])?
                }
            });
        }
        Ok(MetalCache { layers, kernels: made })
    }
}
