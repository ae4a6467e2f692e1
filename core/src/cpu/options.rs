//! Options of a CPU device.
#![forbid(unsafe_code)]

use super::isa::Isa;
use crate::device::Activations;
use crate::error::{Error, Result};
use crate::model::ModelConfig;

/// Options of a CPU device, which decide how much scratch memory it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuOptions {
    /// Maximum number of positions of a sequence; clamped to the model's context.
    pub context: usize,
    /// Precision of activations.
    pub activations: Activations,
    /// Rows computed together.
    pub batch: usize,
    /// Rows whose logits are computed together when logits of many rows are requested.
    pub logit_rows: usize,
    /// Instruction set of the kernels.
    pub isa: Isa,
}

impl Default for CpuOptions {
    fn default() -> Self {
        CpuOptions {
            context: 4096,
            activations: Activations::default(),
            batch: 64,
            logit_rows: 1,
            isa: Isa::detect(),
        }
    }
}

impl CpuOptions {
    /// The options, checked and clamped to the model's limits.
    pub(super) fn fitted(&self, config: &ModelConfig) -> Result<CpuOptions> {
        for (what, value, max) in [
            ("context", self.context, usize::MAX),
            ("batch", self.batch, 1 << 16),
            ("logit rows", self.logit_rows, 1 << 16),
        ] {
            if value == 0 {
                return Err(error!(Option { what, found: 0.0, expected: "at least 1" }));
            }
            if value > max {
                return Err(error!(Limit { what, found: value as u64, max: max as u64 }));
            }
        }
        let context = self.context.min(config.max_context_length);
        let batch = self.batch.min(context);
        Ok(CpuOptions { context, batch, logit_rows: self.logit_rows.min(batch), ..*self })
    }
}

/// Memory of a device and one sequence. The weights are not counted: they stay in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Keys and values of the sequence.
    pub kv: usize,
    /// Activations of one batch.
    pub scratch: usize,
    /// Logits.
    pub logits: usize,
    /// Everything, including alignment.
    pub total: usize,
    /// The device's share: [`Cpu::new_in`](super::Cpu::new_in) needs this much.
    pub device: usize,
    /// The sequence's share: [`Cpu::session_in`](super::Cpu::session_in) needs this much.
    pub session: usize,
}
