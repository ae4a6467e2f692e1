//! Weights in memory, and the CPU that computes with them.

use crate::error::{JsResult, js};
use crate::info::DeviceInfo;
use crate::threads::pool;
use shohin_core::chat::TurnOptions;
use shohin_core::chat::snapshot::Layout;
use shohin_core::cpu::CpuWeights;
use shohin_core::device::{Readout, ready};
use shohin_core::model::ModelConfig;
use shohin_core::{Activations, Cpu, CpuOptions, Error, MemoryPlan, Result, Session, SessionOptions};
use std::sync::Arc;

/// The CPU over weights that this module owns.
pub(crate) type Device = Cpu<'static, Bytes>;
pub(crate) type DeviceError = Error;

/// A file in memory, which a model shares with those that have adapters beside it.
pub(crate) type Bytes = Arc<Vec<u8>>;

/// Snapshots are those of the CPU.
pub(crate) const LAYOUT: Layout = Layout::Cpu;

/// The part of the logits that a turn needs: all, as they are in this memory anyway.
pub(crate) fn readout(_: &TurnOptions) -> Readout {
    Readout::Logits
}

/// The output of a future that never waits, as none on the CPU does.
pub(crate) fn wait<T>(future: impl Future<Output = JsResult<T>>) -> JsResult<T> {
    ready(future).unwrap_or_else(|| Err(js(Error::Device { problem: "it did not answer" })))
}

/// Weights in memory.
pub(crate) struct Weights {
    pub(crate) weights: Arc<CpuWeights<Bytes>>,
    pub(crate) options: CpuOptions,
}

impl Weights {
    /// The model's numbers.
    pub(crate) fn config(&self) -> &ModelConfig {
        self.weights.model().config()
    }

    pub(crate) fn activations(&self) -> Activations {
        self.options.activations
    }

    /// Prompt tokens in one step: enough to share the unpacking of a weight row, few enough to look for an abort within
    /// a second or so.
    pub(crate) fn batch(&self, _: &Device) -> usize {
        if self.weights.model().program().num_parameters() < 500_000_000 { 64 } else { 16 }
    }

    /// A device with scratch memory of its own, and a sequence on it.
    pub(crate) async fn session(&self, session: &SessionOptions) -> Result<(Device, Session<Device>)> {
        let mut device = self.device(session.context)?;
        let session = Session::open(&mut device, session).await?;
        Ok((device, session))
    }

    /// A device for a sequence of `context` tokens.
    pub(crate) fn device(&self, context: usize) -> Result<Device> {
        let options = CpuOptions { context, ..self.options };
        Cpu::with_weights(Arc::clone(&self.weights), &options, pool())
    }

    pub(crate) fn info(&self, session: &SessionOptions) -> DeviceInfo {
        let options = CpuOptions { context: session.context, ..self.options };
        let plan = self.weights.memory_plan(&options, session);
        let (kv, scratch) = plan.map_or((0, 0), |MemoryPlan { kv, total, .. }| (kv, total - kv));
        DeviceInfo {
            backend: "cpu",
            isa: self.options.isa.name().into(),
            threads: pool().workers(),
            weights: self.weights.model().weights().parts().iter().map(|part| part.len()).sum(),
            kv,
            scratch,
        }
    }
}
