//! A model on an NVIDIA GPU, with CUDA.

use crate::any_device::AnyDevice;
use crate::device_model::DeviceModel;
use crate::error::Result;
use shohin_core::cache::FlatKv;
use shohin_core::device::ScratchOptions;
use shohin_core::model::ModelConfig;
use shohin_core::{CpuOptions, Gguf, SessionOptions};
use shohin_cuda::{BATCH, Cuda, CudaDevice, CudaModel, Driver};
use std::sync::Arc;

/// Weights on an NVIDIA GPU.
#[derive(Debug)]
pub(crate) struct CudaWeights(Arc<CudaModel<Cuda>>);

/// Bytes of the keys and values of a sequence on the GPU of a model, or of a part of one.
pub(crate) fn session_bytes(model: &CudaModel<Cuda>, session: &SessionOptions) -> u64 {
    let (heads, layers) = (model.program().heads, model.program().layers);
    let context = session.context.min(model.config().max_context_length);
    let numbers = heads.kv as u64 * context as u64 * heads.dim as u64;
    2 * layers as u64 * FlatKv::of(session.kv).bytes(numbers)
}

/// The options of a device on a GPU.
pub(crate) fn scratch_options(options: &CpuOptions) -> ScratchOptions {
    let CpuOptions { context, activations, batch, .. } = *options;
    ScratchOptions { context, activations, batch, ..ScratchOptions::default() }
}

impl CudaWeights {
    /// Uploads the model to GPU `number`; `compiling` as for [`Cuda::open_with`].
    pub(crate) fn load(
        number: usize,
        compiling: fn(),
        gguf: &Gguf<'_>,
        config: ModelConfig,
    ) -> Result<CudaWeights> {
        let gpu = Arc::new(Cuda::open_with(number, compiling)?);
        Ok(CudaWeights(CudaModel::with_config(gpu, gguf, config)?))
    }
}

impl DeviceModel for CudaWeights {
    fn open(&self, options: &CpuOptions) -> Result<Box<dyn AnyDevice>> {
        Ok(Box::new(CudaDevice::new(&self.0, &scratch_options(options))?))
    }

    fn sequence_bytes(&self, _: &CpuOptions, session: &SessionOptions) -> Result<u64> {
        Ok(session_bytes(&self.0, session))
    }

    fn gpu(&self) -> Option<&str> {
        Some(self.0.driver().name())
    }

    fn fast_batch(&self) -> Option<usize> {
        Some(BATCH)
    }
}
