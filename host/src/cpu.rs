//! A model on the CPU.

use crate::any_device::AnyDevice;
use crate::device_model::DeviceModel;
use crate::error::Result;
use crate::memory;
use crate::sequence::{OnDevice, Sequence};
use crate::shard::ShardBytes;
use crate::threads::ThreadPool;
use shohin_core::chat::snapshot::Layout;
use shohin_core::cpu::CpuWeights;
use shohin_core::{Cpu, CpuOptions, Error, MemoryPlan, SessionOptions};
use std::sync::Arc;

/// Weights in the layout of the kernels, or in that of the file, and the threads that compute with them.
#[derive(Clone, Debug)]
pub(crate) struct CpuModel {
    pub(crate) weights: Arc<CpuWeights<ShardBytes>>,
    pub(crate) pool: Arc<ThreadPool>,
    /// If memory is planned for repacked weights, though these are not: whether base-3 weights would be kept compact.
    pub(crate) plans_repacked: Option<bool>,
}

impl CpuModel {
    fn device(&self, options: &CpuOptions) -> shohin_core::Result<Cpu<'static, ShardBytes>> {
        Cpu::with_weights(Arc::clone(&self.weights), options, Arc::clone(&self.pool))
    }

    /// Bytes of a sequence, including its device's scratch memory.
    pub(crate) fn memory_plan(&self, options: &CpuOptions, session: &SessionOptions) -> Result<MemoryPlan> {
        Ok(match self.plans_repacked {
            Some(compact) => self.weights.repacked_memory_plan(options, session, compact)?,
            None => self.weights.memory_plan(options, session)?,
        })
    }
}

impl DeviceModel for CpuModel {
    fn open(&self, options: &CpuOptions) -> Result<Box<dyn AnyDevice>> {
        Ok(Box::new(self.device(options)?))
    }

    fn sequence_bytes(&self, options: &CpuOptions, session: &SessionOptions) -> Result<u64> {
        Ok(self.memory_plan(options, session)?.total as u64)
    }

    fn layout(&self) -> Layout {
        Layout::Cpu
    }

    fn sequence(&self, options: &CpuOptions, session: &SessionOptions) -> Result<Box<dyn Sequence>> {
        let mut device = self.device(options)?;
        let session = memory::session(&mut device, session)?;
        Ok(Box::new(OnDevice::new(device, session, false)))
    }

    fn filled_sequence(&self, options: &CpuOptions, session: &SessionOptions) -> Result<Box<dyn Sequence>> {
        let device = self.device(options)?;
        let bytes = device.memory_plan(session)?.session;
        let need = Error::Memory { need: bytes as u64, have: 0 };
        let mut memory = memory::large_pages(bytes).map_err(|_| need)?;
        memory.fill(0x2e);
        let session = device.session_in(session, memory)?;
        Ok(Box::new(OnDevice::new(device, session, false)))
    }
}
