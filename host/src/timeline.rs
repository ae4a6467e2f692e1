//! A conversation's state, wherever it is computed.

use crate::file::ShardBytes;
use shohin_core::generate::Backend;
use shohin_core::session::Decoder;
use shohin_core::{Cpu, Result, SamplerConfig, Session};

/// What chat, run and bench drive.
pub trait Timeline: Backend {
    /// What will choose from the logits that [`Backend::feed`] returns: others than it can choose from may show as
    /// -inf. Log-probabilities need all.
    fn chosen_by(&mut self, config: &SamplerConfig, logprobs: bool);

    /// Takes `len` tokens as seen, whatever is in the memory for them.
    ///
    /// # Errors
    /// If they are more than it can hold.
    fn set_len(&mut self, len: usize) -> Result<()>;
}

/// On the CPU.
pub struct OnCpu<'e> {
    /// What computes.
    pub device: Cpu<'e, ShardBytes>,
    /// The session.
    pub session: Session<Cpu<'e, ShardBytes>>,
}

impl Timeline for OnCpu<'_> {
    fn chosen_by(&mut self, _: &SamplerConfig, _: bool) {}

    fn set_len(&mut self, len: usize) -> Result<()> {
        self.session.set_len(len)
    }
}

impl Backend for OnCpu<'_> {
    fn position(&self) -> usize {
        self.session.position()
    }

    fn capacity(&self) -> usize {
        self.session.capacity()
    }

    fn feed(&mut self, tokens: &[u32]) -> Result<&[f32]> {
        self.session.forward_prefill(&mut self.device, tokens)
    }

    fn truncate(&mut self, len: usize) -> Result<()> {
        self.session.truncate(len)
    }

    fn shift(&mut self, keep: usize, drop: usize) -> Result<()> {
        Decoder { device: &mut self.device, session: &mut self.session }.shift(keep, drop)
    }
}
