//! One sequence of tokens on any device.

use crate::speculate::Guesses;
use shohin_core::device::{BlockingDevice, Readout};
use shohin_core::generate::Backend;
use shohin_core::sample::SparseLogits;
use shohin_core::{Error, Result, Session};

/// A sequence with its own device, for generations and measurements. [`Backend::feed`] is prefill and decode.
pub trait Sequence: Backend + Send {
    /// Reads out only this from now on, if that is cheaper than all logits; other logits of [`Backend::feed`] are
    /// then -inf. See [`TurnOptions::readout`](shohin_core::chat::TurnOptions::readout).
    fn read_out(&mut self, readout: Readout);

    /// Sets the number of tokens seen to `len`, whatever the cache holds at their positions: for
    /// measurements.
    ///
    /// # Errors
    /// If they do not fit.
    fn set_len(&mut self, len: usize) -> Result<()>;

    /// Appends `tokens`; writes the most likely token after each of them to `out`, all in one pass.
    ///
    /// # Errors
    /// As [`Backend::feed`], and if `out` has another length.
    fn verify(&mut self, tokens: &[u32], out: &mut [u32]) -> Result<()>;

    /// Appends `tokens`; calls `sink(i, logits)` with the logits `(vocab)` after each of them, in order.
    ///
    /// # Errors
    /// As [`Backend::feed`].
    fn logits(&mut self, tokens: &[u32], sink: &mut dyn FnMut(usize, &[f32])) -> Result<()>;

    /// Appends `tokens`; calls `sink(i, hidden)` with the final hidden state `(hidden)` at each of them, in order.
    ///
    /// # Errors
    /// As [`Backend::feed`].
    fn hidden(&mut self, tokens: &[u32], sink: &mut dyn FnMut(usize, &[f32])) -> Result<()>;

    /// Bytes that [`Sequence::export`] would append.
    ///
    /// # Errors
    /// What a GPU says.
    fn export_len(&mut self) -> Result<usize>;

    /// Appends the keys and values of all tokens to `out`.
    ///
    /// # Errors
    /// If there is no memory; what a GPU says.
    fn export(&mut self, out: &mut Vec<u8>) -> Result<()>;

    /// Continues after `tokens`, whose keys and values are in `from`. The previous tokens are lost.
    ///
    /// # Errors
    /// If they do not fit, or `from` has another length.
    fn import(&mut self, tokens: &[u32], from: &[u8]) -> Result<()>;

    /// Guessed tokens so far, with [`Speculation`](crate::speculate::Speculation).
    fn guesses(&self) -> Guesses {
        Guesses::default()
    }

    /// Times that a rank of a split model was lost, after which a new group has computed the tokens again.
    fn recoveries(&self) -> usize {
        0
    }
}

/// A session and its device.
pub(crate) struct OnDevice<D: BlockingDevice> {
    device: D,
    session: Session<D>,
    /// Whether logits are read from another memory, so that a few are cheaper than all.
    remote: bool,
    readout: Readout,
    /// Logits read back from a GPU.
    sparse: SparseLogits,
}

impl<D: BlockingDevice> OnDevice<D> {
    pub(crate) fn new(device: D, session: Session<D>, remote: bool) -> Self {
        OnDevice { device, session, remote, readout: Readout::Logits, sparse: SparseLogits::default() }
    }

    /// The logits that [`Backend::feed`] has returned, of a device in the same memory.
    pub(crate) fn last_logits(&mut self) -> &[f32] {
        self.device.logits()
    }
}

impl<D> Sequence for OnDevice<D>
where
    D: BlockingDevice<Error: Into<Error>> + Send,
    D::Cache: Send,
{
    fn read_out(&mut self, readout: Readout) {
        self.readout = if self.remote { readout } else { Readout::Logits };
    }

    fn set_len(&mut self, len: usize) -> Result<()> {
        self.session.set_len(len)
    }

    fn verify(&mut self, tokens: &[u32], out: &mut [u32]) -> Result<()> {
        self.session.forward_prefill_verify(&mut self.device, tokens, out).map_err(Into::into)
    }

    fn logits(&mut self, tokens: &[u32], sink: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        self.session.forward_logits(&mut self.device, tokens, sink).map_err(Into::into)
    }

    fn hidden(&mut self, tokens: &[u32], sink: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        self.session.forward_hidden(&mut self.device, tokens, sink).map_err(Into::into)
    }

    fn export_len(&mut self) -> Result<usize> {
        Ok(self.session.export_len(&self.device))
    }

    fn export(&mut self, out: &mut Vec<u8>) -> Result<()> {
        D::wait(self.session.export(&mut self.device, out)).map_err(Into::into)
    }

    fn import(&mut self, tokens: &[u32], from: &[u8]) -> Result<()> {
        self.session.import(&mut self.device, tokens.len(), from).map_err(Into::into)
    }
}

impl<D: BlockingDevice<Error: Into<Error>>> Backend for OnDevice<D> {
    fn position(&self) -> usize {
        self.session.position()
    }

    fn capacity(&self) -> usize {
        self.session.capacity()
    }

    fn feed(&mut self, tokens: &[u32]) -> Result<&[f32]> {
        let OnDevice { device, session, readout, sparse, .. } = self;
        D::wait(session.read_out(device, tokens, *readout, sparse)).map_err(Into::into)
    }

    fn truncate(&mut self, len: usize) -> Result<()> {
        self.session.truncate(len)
    }

    fn shift(&mut self, keep: usize, drop: usize) -> Result<()> {
        self.session.shift(&mut self.device, keep, drop).map_err(Into::into)
    }
}
