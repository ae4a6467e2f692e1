//! The session as a [`Backend`] for blocking hosts: the same generation code drives CPU and GPU.

use crate::error::{Error, Result};
use crate::session::GpuSession;
use shohin_core::Result as CoreResult;
use shohin_core::device::Readout;
use shohin_core::generate::Backend;

/// A [`GpuSession`] that waits for the GPU.
#[derive(Debug)]
pub struct GpuBackend {
    session: GpuSession,
    readout: Readout,
    /// Logits; those that were not read back are -inf.
    sparse: Vec<f32>,
    failure: Option<Error>,
}

impl GpuBackend {
    /// Reads back everything until [`GpuBackend::read_out`] is called.
    pub fn new(session: GpuSession) -> GpuBackend {
        GpuBackend { session, readout: Readout::Logits, sparse: Vec::new(), failure: None }
    }

    /// The session.
    pub fn session(&self) -> &GpuSession {
        &self.session
    }

    /// Reads back only this from now on; every other logit is -inf.
    pub fn read_out(&mut self, readout: Readout) {
        self.readout = readout;
    }

    /// See [`GpuSession::assume`].
    ///
    /// # Errors
    /// Those of [`GpuSession::assume`].
    pub fn assume(&mut self, len: usize) -> Result<()> {
        self.session.assume(len)
    }

    /// The GPU's own error for an error that [`Backend::feed`] returned.
    pub fn failure(&self) -> Option<Error> {
        self.failure
    }

    fn run(&mut self, tokens: &[u32]) -> Result<()> {
        pollster::block_on(self.session.forward(tokens, self.readout))
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
        Ok(self.session.visible_logits(self.readout, &mut self.sparse))
    }

    fn truncate(&mut self, len: usize) -> CoreResult<()> {
        Ok(self.session.truncate(len)?)
    }
}
