//! A model on the GPU of a Mac, with Metal.

use crate::error::Result;
use crate::source::Source;
use shohin_core::device::ScratchOptions;
use shohin_core::{CpuOptions, SessionOptions};
use shohin_metal::{Driver, Metal, MetalDevice, MetalModel};
use std::sync::Arc;

/// Weights in memory shared with the GPU.
#[derive(Debug)]
pub(crate) struct MetalWeights(Arc<MetalModel<Metal>>);

impl MetalWeights {
    /// Packs the model for the default device.
    pub(crate) fn load(source: &Source<'_>) -> Result<MetalWeights> {
        Ok(MetalWeights(MetalModel::new(Metal::open()?, &source.for_gpu()?)?))
    }

    pub(crate) fn device(&self, options: &CpuOptions) -> Result<MetalDevice<Metal>> {
        let CpuOptions { context, activations, batch, .. } = *options;
        let options = ScratchOptions { context, activations, batch, ..ScratchOptions::default() };
        Ok(self.0.device(&options)?)
    }

    pub(crate) fn sequence_bytes(&self, options: &CpuOptions, session: &SessionOptions) -> Result<u64> {
        let CpuOptions { context, activations, .. } = *options;
        let options = ScratchOptions { context, activations, ..ScratchOptions::default() };
        let plan = self.0.memory_plan(&options, session)?;
        Ok(plan.kv + plan.scratch)
    }

    pub(crate) fn name(&self) -> &str {
        self.0.driver().name()
    }
}
