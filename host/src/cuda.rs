//! A model on an NVIDIA GPU, with CUDA.

use crate::any_device::AnyDevice;
use crate::device_model::DeviceModel;
use crate::error::Result;
use shohin_core::device::ScratchOptions;
use shohin_core::model::ModelConfig;
use shohin_core::{CpuOptions, Gguf, SessionOptions};
use shohin_cuda::{BATCH, Cuda, CudaModel, Driver};
use std::sync::Arc;

/// Weights on an NVIDIA GPU.
#[derive(Debug)]
pub(crate) struct CudaWeights(Arc<CudaModel<Cuda>>);

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
        Ok(Box::new(self.0.device(&scratch_options(options))?))
    }

    fn sequence_bytes(&self, _: &CpuOptions, session: &SessionOptions) -> Result<u64> {
        Ok(self.0.kv_bytes(session))
    }

    fn gpu(&self) -> Option<&str> {
        Some(self.0.driver().name())
    }

    fn fast_batch(&self) -> Option<usize> {
        Some(BATCH)
    }
}
