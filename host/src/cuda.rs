//! A model on an NVIDIA GPU, with CUDA.

use crate::error::Result;
use crate::source::Source;
use shohin_core::device::ScratchOptions;
use shohin_core::{CpuOptions, SessionOptions};
use shohin_cuda::{Cuda, CudaDevice, CudaModel, Driver};
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
    pub(crate) fn load(number: usize, compiling: fn(), source: &Source<'_>) -> Result<CudaWeights> {
        let gpu = Arc::new(Cuda::open_with(number, compiling)?);
        Ok(CudaWeights(CudaModel::from_model(gpu, &source.for_gpu()?)?))
    }

    pub(crate) fn device(&self, options: &CpuOptions) -> Result<CudaDevice<Cuda>> {
        Ok(self.0.device(&scratch_options(options))?)
    }

    pub(crate) fn sequence_bytes(&self, session: &SessionOptions) -> u64 {
        self.0.kv_bytes(session)
    }

    pub(crate) fn name(&self) -> &str {
        self.0.driver().name()
    }
}
