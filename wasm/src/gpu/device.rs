//! Weights on a GPU, and the GPU that computes with them.

use crate::info::DeviceInfo;
use shohin_core::chat::TurnOptions;
use shohin_core::chat::snapshot::Layout;
use shohin_core::device::Readout;
use shohin_core::model::ModelConfig;
use shohin_core::{Activations, Device as _, Session, SessionOptions};
use shohin_gpu::{GpuDevice, GpuDeviceOptions, GpuModel, Result};
use std::sync::Arc;

/// The browser's GPU.
pub(crate) type Device = GpuDevice;
pub(crate) type DeviceError = shohin_gpu::Error;

/// Snapshots are those of a GPU.
pub(crate) const LAYOUT: Layout = Layout::Gpu;

/// The part of the logits that a turn needs: reading all of them back takes longer.
pub(crate) fn readout(options: &TurnOptions) -> Readout {
    options.readout()
}

/// Weights on a GPU.
pub(crate) struct Weights {
    pub(crate) model: Arc<GpuModel>,
    pub(crate) activations: Activations,
}

impl Weights {
    /// The model's numbers.
    pub(crate) fn config(&self) -> &ModelConfig {
        self.model.config()
    }

    pub(crate) fn activations(&self) -> Activations {
        self.activations
    }

    /// Prompt tokens in one step.
    pub(crate) fn batch(&self, device: &Device) -> usize {
        device.batch()
    }

    /// A device with scratch memory of its own, and a sequence on it.
    pub(crate) async fn session(&self, session: &SessionOptions) -> Result<(Device, Session<Device>)> {
        let mut device = self.model.device(&self.options(session.context)).await?;
        let session = Session::open(&mut device, session).await?;
        Ok((device, session))
    }

    pub(crate) fn info(&self, session: &SessionOptions) -> DeviceInfo {
        let plan = self.model.plan().memory_plan(&self.options(session.context), session);
        let plan = plan.unwrap_or_default();
        let gpu = self.model.gpu();
        let mut isa: String = gpu.name().into();
        if gpu.extensions().subgroups {
            isa += ", subgroups";
        }
        DeviceInfo {
            backend: "webgpu",
            isa,
            threads: 1,
            weights: self.model.bytes() as usize,
            kv: plan.kv as usize,
            scratch: plan.scratch as usize,
        }
    }

    fn options(&self, context: usize) -> GpuDeviceOptions {
        GpuDeviceOptions { context, activations: self.activations, ..GpuDeviceOptions::default() }
    }
}
