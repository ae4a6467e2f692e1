//! A model on a GPU.

use crate::any_device::AnyDevice;
use crate::device_model::DeviceModel;
use crate::error::{Error, Result};
use shohin_core::model::ModelConfig;
use shohin_core::{CpuOptions, Gguf, SessionOptions};
use shohin_gpu::{Gpu, GpuDeviceOptions, GpuModel, GpuOptions};
use std::sync::Arc;

/// Weights on a GPU.
#[derive(Debug)]
pub(crate) struct GpuWeights(Arc<GpuModel>);

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
}

impl DeviceModel for GpuWeights {
    fn open(&self, options: &CpuOptions) -> Result<Box<dyn AnyDevice>> {
        let CpuOptions { context, activations, batch, .. } = *options;
        let options = GpuDeviceOptions { context, activations, batch, ..GpuDeviceOptions::default() };
        Ok(Box::new(pollster::block_on(self.0.device(&options))?))
    }

    fn sequence_bytes(&self, options: &CpuOptions, session: &SessionOptions) -> Result<u64> {
        let CpuOptions { context, activations, .. } = *options;
        let options = GpuDeviceOptions { context, activations, ..GpuDeviceOptions::default() };
        let plan = self.0.plan().memory_plan(&options, session)?;
        Ok(plan.kv + plan.scratch)
    }

    fn gpu(&self) -> Option<&str> {
        Some(self.0.gpu().name())
    }
}
