//! A model on the GPU of a Mac, with Metal.

use crate::any_device::AnyDevice;
use crate::device_model::DeviceModel;
use crate::error::Result;
use shohin_core::device::ScratchOptions;
use shohin_core::model::ModelConfig;
use shohin_core::{BonsaiModel, CpuOptions, Gguf, SessionOptions};
use shohin_metal::{Driver, Metal, MetalModel};
use std::sync::Arc;

/// Weights in memory shared with the GPU.
#[derive(Debug)]
pub(crate) struct MetalWeights(Arc<MetalModel<Metal>>);

impl MetalWeights {
    /// Packs the model for the default device.
    pub(crate) fn load(gguf: &Gguf<'_>, config: ModelConfig) -> Result<MetalWeights> {
        let model = BonsaiModel::with_config(gguf, config)?;
        Ok(MetalWeights(MetalModel::new(Metal::open()?, &model)?))
    }
}

impl DeviceModel for MetalWeights {
    fn open(&self, options: &CpuOptions) -> Result<Box<dyn AnyDevice>> {
        let CpuOptions { context, activations, batch, .. } = *options;
        let options = ScratchOptions { context, activations, batch, ..ScratchOptions::default() };
        Ok(Box::new(self.0.device(&options)?))
    }

    fn sequence_bytes(&self, options: &CpuOptions, session: &SessionOptions) -> Result<u64> {
        let CpuOptions { context, activations, .. } = *options;
        let options = ScratchOptions { context, activations, ..ScratchOptions::default() };
        let plan = self.0.memory_plan(&options, session)?;
        Ok(plan.kv + plan.scratch)
    }

    fn gpu(&self) -> Option<&str> {
        Some(self.0.driver().name())
    }
}
