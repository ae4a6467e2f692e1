//! A model on a GPU.

use crate::error::{Error, Result};
use crate::sequence::{OnDevice, Sequence};
use shohin_core::model::ModelConfig;
use shohin_core::{Activations, Gguf, Session, SessionOptions};
use shohin_gpu::{Gpu, GpuDevice, GpuDeviceOptions, GpuModel, GpuOptions};
use std::sync::Arc;

/// Weights on a GPU.
#[derive(Clone, Debug)]
pub(crate) struct GpuWeights(Arc<GpuModel>);

fn device_options(context: usize, activations: Activations) -> GpuDeviceOptions {
    GpuDeviceOptions { context, activations, ..GpuDeviceOptions::default() }
}

impl GpuWeights {
    /// Uploads the model to the GPU whose name contains `name`, or to the system's choice.
    pub(crate) fn load(name: Option<&str>, gguf: &Gguf<'_>, config: ModelConfig) -> Result<GpuWeights> {
        // A software implementation must be requested by name.
        let software = name.is_some();
        let options = GpuOptions { software, name: name.map(String::from), ..GpuOptions::default() };
        let gpu = pollster::block_on(Gpu::open(&options)).map_err(|source| Error::Gpu {
            source: Box::new(source),
            names: pollster::block_on(Gpu::names()),
        })?;
        Ok(GpuWeights(pollster::block_on(GpuModel::with_config(Arc::new(gpu), gguf, config))?))
    }

    /// The GPU's name.
    pub(crate) fn name(&self) -> &str {
        self.0.gpu().name()
    }

    /// Bytes of a sequence on the GPU.
    pub(crate) fn session_bytes(&self, session: &SessionOptions, activations: Activations) -> Result<u64> {
        let plan = self.0.plan().memory_plan(&device_options(session.context, activations), session)?;
        Ok(plan.kv + plan.scratch)
    }

    /// A device for several sequences, which computes `batch` rows together.
    pub(crate) fn device(&self, context: usize, activations: Activations, batch: usize) -> Result<GpuDevice> {
        let options = GpuDeviceOptions { batch, ..device_options(context, activations) };
        Ok(pollster::block_on(GpuDevice::new(&self.0, &options))?)
    }

    /// An empty sequence.
    pub(crate) fn sequence(
        &self,
        session: &SessionOptions,
        activations: Activations,
    ) -> Result<Box<dyn Sequence>> {
        let options = device_options(session.context, activations);
        let mut device = pollster::block_on(GpuDevice::new(&self.0, &options))?;
        let session = Session::new(&mut device, session)?;
        Ok(Box::new(OnDevice::new(device, session, true)))
    }
}
