//! A model on an NVIDIA GPU, with CUDA.

use crate::error::Result;
use crate::sequence::{OnDevice, Sequence};
use shohin_core::cache::FlatKv;
use shohin_core::device::ScratchOptions;
use shohin_core::model::ModelConfig;
use shohin_core::{Activations, Gguf, Session, SessionOptions};
use shohin_cuda::{BATCH, Cuda, CudaDevice, CudaModel, Driver};
use std::sync::Arc;

/// Weights on an NVIDIA GPU.
#[derive(Clone, Debug)]
pub(crate) struct CudaWeights(Arc<CudaModel<Cuda>>);

/// Bytes of the keys and values of a sequence on the GPU of a model, or of a part of one.
pub(crate) fn session_bytes(model: &CudaModel<Cuda>, session: &SessionOptions) -> u64 {
    let (heads, layers) = (model.program().heads, model.program().layers);
    let context = session.context.min(model.config().max_context_length);
    let numbers = heads.kv as u64 * context as u64 * heads.dim as u64;
    2 * layers as u64 * FlatKv::of(session.kv).bytes(numbers)
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

    /// The GPU's name.
    pub(crate) fn name(&self) -> &str {
        self.0.driver().name()
    }

    /// Bytes of the keys and values of a sequence.
    pub(crate) fn session_bytes(&self, session: &SessionOptions) -> u64 {
        session_bytes(&self.0, session)
    }

    /// A device for several sequences, which computes `batch` rows together.
    pub(crate) fn device(
        &self,
        context: usize,
        activations: Activations,
        batch: usize,
    ) -> Result<CudaDevice<Cuda>> {
        let options = ScratchOptions { context, activations, batch, ..ScratchOptions::default() };
        Ok(CudaDevice::new(&self.0, &options)?)
    }

    /// An empty sequence.
    pub(crate) fn sequence(
        &self,
        session: &SessionOptions,
        activations: Activations,
    ) -> Result<Box<dyn Sequence>> {
        let mut device = self.device(session.context, activations, BATCH)?;
        let session = Session::new(&mut device, session)?;
        Ok(Box::new(OnDevice::new(device, session, true)))
    }
}
