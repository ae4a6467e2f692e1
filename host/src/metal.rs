//! A model on the GPU of a Mac, with Metal.

use crate::error::Result;
use crate::sequence::{OnDevice, Sequence};
use shohin_core::device::ScratchOptions;
use shohin_core::model::ModelConfig;
use shohin_core::{Activations, BonsaiModel, Gguf, Session, SessionOptions};
use shohin_metal::{Driver, Metal, MetalDevice, MetalModel};
use std::sync::Arc;

/// Weights in memory shared with the GPU.
#[derive(Clone, Debug)]
pub(crate) struct MetalWeights(Arc<MetalModel<Metal>>);

fn device_options(context: usize, activations: Activations) -> ScratchOptions {
    ScratchOptions { context, activations, ..ScratchOptions::default() }
}

impl MetalWeights {
    /// Packs the model for the default device.
    pub(crate) fn load(gguf: &Gguf<'_>, config: ModelConfig) -> Result<MetalWeights> {
        let model = BonsaiModel::with_config(gguf, config)?;
        Ok(MetalWeights(MetalModel::new(Metal::open()?, &model)?))
    }

    /// The device's name.
    pub(crate) fn name(&self) -> &str {
        self.0.driver().name()
    }

    /// Bytes of a sequence.
    pub(crate) fn session_bytes(&self, session: &SessionOptions, activations: Activations) -> Result<u64> {
        let plan = self.0.memory_plan(&device_options(session.context, activations), session)?;
        Ok(plan.kv + plan.scratch)
    }

    /// A device for several sequences, which computes `batch` rows together.
    pub(crate) fn device(
        &self,
        context: usize,
        activations: Activations,
        batch: usize,
    ) -> Result<MetalDevice<Metal>> {
        let options = ScratchOptions { batch, ..device_options(context, activations) };
        Ok(MetalDevice::new(&self.0, &options)?)
    }

    /// An empty sequence.
    pub(crate) fn sequence(
        &self,
        session: &SessionOptions,
        activations: Activations,
    ) -> Result<Box<dyn Sequence>> {
        let mut device = MetalDevice::new(&self.0, &device_options(session.context, activations))?;
        let session = Session::new(&mut device, session)?;
        Ok(Box::new(OnDevice::new(device, session, true)))
    }
}
