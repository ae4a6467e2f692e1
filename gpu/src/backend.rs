//! The session as a [`Backend`] for hosts that wait: the same generation drives CPU and GPU.

use crate::error::{Error, Result};
use crate::session::{GpuSession, Want};
use shohin_core::generate::Backend;
use shohin_core::{Result as CoreResult, SamplerConfig};

/// What of the logits a sampler with these options can choose from, and so needs to see. Log-probabilities need all.
///
/// Penalties change the order, so with them everything is read back.
pub fn wanted(config: &SamplerConfig, logprobs: bool, most: usize) -> Want {
    let plain = config.repetition_penalty == 1.0
        && config.presence_penalty == 0.0
        && config.frequency_penalty == 0.0
        && config.dry_multiplier == 0.0;
    match config {
        _ if !plain || logprobs => Want::Logits,
        c if c.temperature == 0.0 => Want::Best,
        c if (1..=most).contains(&c.top_k) => Want::Top(c.top_k),
        _ => Want::Logits,
    }
}

/// A [`GpuSession`] that waits for the GPU.
#[derive(Debug)]
pub struct GpuBackend {
    session: GpuSession,
    want: Want,
    /// Logits, of which those that were not read back are -inf.
    sparse: Vec<f32>,
    failure: Option<Error>,
}

impl GpuBackend {
    /// Reads back everything, until told otherwise.
    pub fn new(session: GpuSession) -> GpuBackend {
        GpuBackend { session, want: Want::Logits, sparse: Vec::new(), failure: None }
    }

    /// The session.
    pub fn session(&self) -> &GpuSession {
        &self.session
    }

    /// Reads back only this from now on; every other logit shows as -inf. [`Want::Nothing`] counts as everything.
    pub fn want(&mut self, want: Want) {
        self.want = if want == Want::Nothing { Want::Logits } else { want };
    }

    /// The GPU's own error behind one that [`Backend::feed`] returned.
    pub fn failure(&self) -> Option<Error> {
        self.failure
    }

    fn run(&mut self, tokens: &[u32]) -> Result<()> {
        pollster::block_on(self.session.forward(tokens, self.want))?;
        if self.want != Want::Logits {
            self.sparse.clear();
            self.sparse.resize(self.session.model().config().vocab_size, f32::NEG_INFINITY);
            for &(token, logit) in self.session.top() {
                if let Some(place) = self.sparse.get_mut(token as usize) {
                    *place = logit;
                }
            }
        }
        Ok(())
    }
}

impl Backend for GpuBackend {
    fn position(&self) -> usize {
        self.session.position()
    }

    fn capacity(&self) -> usize {
        self.session.capacity()
    }

    fn feed(&mut self, tokens: &[u32]) -> CoreResult<&[f32]> {
        if let Err(error) = self.run(tokens) {
            self.failure = Some(error);
            return Err(error.into());
        }
        Ok(if self.want == Want::Logits { self.session.logits() } else { &self.sparse })
    }

    fn truncate(&mut self, len: usize) -> CoreResult<()> {
        Ok(self.session.truncate(len)?)
    }
}
