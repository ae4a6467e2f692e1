//! A model on a GPU.

use crate::error::{Error, Result};
use crate::source::Source;
use shohin_core::{CpuOptions, SessionOptions};
use shohin_gpu::{Gpu, GpuDevice, GpuDeviceOptions, GpuModel, GpuOptions};
use std::sync::Arc;

/// Weights on a GPU.
#[derive(Debug)]
pub(crate) struct GpuWeights(Arc<GpuModel>);

impl GpuWeights {
    /// Uploads the model to the GPU whose name contains `name`, or to the system's choice if it is empty.
    pub(crate) fn load(name: &str, source: &Source<'_>) -> Result<GpuWeights> {
        let name = Some(name).filter(|name| !name.is_empty());
        // A software implementation must be requested by name.
        let software = name.is_some();
        let options = GpuOptions { software, name: name.map(String::from), ..GpuOptions::default() };
        let gpu = pollster::block_on(Gpu::open(&options)).map_err(|source| Error::Gpu {
            source: Box::new(source),
            names: pollster::block_on(Gpu::names()),
        })?;
        let model = source.for_gpu()?;
        Ok(GpuWeights(pollster::block_on(GpuModel::from_model(Arc::new(gpu), &model))?))
    }

    pub(crate) fn device(&self, options: &CpuOptions) -> Result<GpuDevice> {
        let CpuOptions { context, activations, batch, .. } = *options;
        let options = GpuDeviceOptions { context, activations, batch, ..GpuDeviceOptions::default() };
        Ok(pollster::block_on(self.0.device(&options))?)
    }

    pub(crate) fn sequence_bytes(&self, options: &CpuOptions, session: &SessionOptions) -> Result<u64> {
        let CpuOptions { context, activations, .. } = *options;
        let options = GpuDeviceOptions { context, activations, ..GpuDeviceOptions::default() };
        let plan = self.0.plan().memory_plan(&options, session)?;
        Ok(plan.kv + plan.scratch)
    }

    pub(crate) fn name(&self) -> &str {
        self.0.gpu().name()
    }
}
