//! One sequence of tokens on any device.

use crate::device::HostDevice;
use crate::error;
use crate::split::lost;
use shohin_core::device::{BlockingDevice, Device, Readout};
use shohin_core::generate::Backend;
use shohin_core::sample::SparseLogits;
use shohin_core::{Result, Session};

/// A sequence with its own device, for generations and measurements.
///
/// On a model that is split among threads, a sequence that loses one continues with a new group: the weights outlive a group, so
/// the new one computes the tokens again, and then what failed. A group that is lost meanwhile is an error. Of a sequence whose keys
/// were [shifted](Sequence::shift), only the remaining tokens are computed, as if they had been the first.
pub struct Sequence {
    device: HostDevice,
    session: Session<HostDevice>,
    readout: Readout,
    /// Logits read back from a GPU.
    sparse: SparseLogits,
    recovery: Option<Recovery>,
}

pub(crate) type Opened = (HostDevice, Session<HostDevice>);

/// What it takes to continue with another device.
struct Recovery {
    open: Box<dyn Fn() -> error::Result<Opened> + Send>,
    /// The tokens whose keys and values the cache holds.
    tokens: Vec<u32>,
    count: usize,
}

impl std::fmt::Debug for Sequence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sequence").field("session", &self.session).finish_non_exhaustive()
    }
}

impl Sequence {
    /// An empty sequence.
    pub(crate) fn new((device, session): Opened) -> Sequence {
        let (readout, sparse) = (Readout::Logits, SparseLogits::default());
        Sequence { device, session, readout, sparse, recovery: None }
    }

    /// The same, which opens another device when a rank of this one is lost.
    pub(crate) fn recovering(
        open: impl Fn() -> error::Result<Opened> + Send + 'static,
    ) -> error::Result<Sequence> {
        let sequence = Sequence::new(open()?);
        let tokens = Vec::with_capacity(sequence.capacity());
        let recovery = Recovery { open: Box::new(open), tokens, count: 0 };
        Ok(Sequence { recovery: Some(recovery), ..sequence })
    }

    /// Computes something, again on a new device if a rank was lost.
    fn attempt<T>(
        &mut self,
        mut call: impl FnMut(&mut HostDevice, &mut Session<HostDevice>) -> Result<T>,
    ) -> Result<T> {
        match (call(&mut self.device, &mut self.session), &mut self.recovery) {
            (Err(error), Some(recovery)) if error == lost() => {
                let (mut device, mut session) = (recovery.open)().map_err(|_| error)?;
                if !recovery.tokens.is_empty() {
                    session.forward_prefill(&mut device, &recovery.tokens)?;
                }
                (self.device, self.session) = (device, session);
                recovery.count += 1;
                call(&mut self.device, &mut self.session)
            }
            (done, _) => done,
        }
    }

    /// Passes on rows, each once even if they are computed again.
    fn rows(
        &mut self,
        tokens: &[u32],
        sink: &mut dyn FnMut(usize, &[f32]),
        mut call: impl FnMut(
            &mut HostDevice,
            &mut Session<HostDevice>,
            &mut dyn FnMut(usize, &[f32]),
        ) -> Result<()>,
    ) -> Result<()> {
        let mut passed = 0;
        self.attempt(|device, session| {
            call(device, session, &mut |i, row| {
                if i >= passed {
                    passed = i + 1;
                    sink(i, row);
                }
            })
        })?;
        self.appended(tokens);
        Ok(())
    }

    fn appended(&mut self, tokens: &[u32]) {
        if let Some(recovery) = &mut self.recovery {
            recovery.tokens.extend_from_slice(tokens);
        }
    }

    /// Tokens seen so far.
    pub fn position(&self) -> usize {
        self.session.position()
    }

    /// Maximum number of tokens.
    pub fn capacity(&self) -> usize {
        self.session.capacity()
    }

    /// Appends `tokens`, of a prompt or the next one; returns the logits `(vocab)` after the last of them.
    ///
    /// # Errors
    /// [`Error::ContextFull`](shohin_core::Error::ContextFull), [`Error::Token`](shohin_core::Error::Token) for an unknown one;
    /// those of the device. The sequence is unchanged then.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<&[f32]> {
        if self.recovery.is_none() {
            let Sequence { device, session, readout, sparse, .. } = self;
            return HostDevice::wait(session.read_out(device, tokens, *readout, sparse));
        }
        self.attempt(|device, session| session.forward_prefill(device, tokens).map(drop))?;
        self.appended(tokens);
        Ok(self.device.logits())
    }

    /// Reads out only this from now on, if that is cheaper than all logits; other logits of [`Sequence::feed`] are
    /// then -inf. See [`TurnOptions::readout`](shohin_core::chat::TurnOptions::readout).
    pub fn read_out(&mut self, readout: Readout) {
        self.readout = if self.device.is_remote() { readout } else { Readout::Logits };
    }

    /// Forgets everything after the first `len` tokens.
    ///
    /// # Errors
    /// If it has seen fewer tokens.
    pub fn truncate(&mut self, len: usize) -> Result<()> {
        self.session.truncate(len)?;
        if let Some(recovery) = &mut self.recovery {
            recovery.tokens.truncate(len);
        }
        Ok(())
    }

    /// Forgets the `drop` tokens after the first `keep`, and moves the later ones forward: see [`Session::shift`].
    ///
    /// # Errors
    /// If it has seen fewer tokens; those of the device.
    pub fn shift(&mut self, keep: usize, drop: usize) -> Result<()> {
        self.attempt(|device, session| session.shift(device, keep, drop))?;
        if let Some(recovery) = &mut self.recovery {
            recovery.tokens.drain(keep..keep + drop);
        }
        Ok(())
    }

    /// Sets the number of tokens seen to `len`, whatever the cache holds at their positions: for
    /// measurements.
    ///
    /// # Errors
    /// If they do not fit.
    pub fn set_len(&mut self, len: usize) -> Result<()> {
        self.session.set_len(len)?;
        if let Some(recovery) = &mut self.recovery {
            recovery.tokens.resize(len, 0);
        }
        Ok(())
    }

    /// Appends `tokens`; writes the most likely token after each of them to `out`, all in one pass.
    ///
    /// # Errors
    /// As [`Sequence::feed`], and if `out` has another length.
    pub fn verify(&mut self, tokens: &[u32], out: &mut [u32]) -> Result<()> {
        self.attempt(|device, session| session.forward_prefill_verify(device, tokens, out))?;
        self.appended(tokens);
        Ok(())
    }

    /// Appends `tokens`; calls `sink(i, logits)` with the logits `(vocab)` after each of them, in order.
    ///
    /// # Errors
    /// As [`Sequence::feed`].
    pub fn logits(&mut self, tokens: &[u32], sink: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        self.rows(tokens, sink, |device, session, sink| session.forward_logits(device, tokens, sink))
    }

    /// Appends `tokens`; calls `sink(i, hidden)` with the final hidden state `(hidden)` at each of them, in order.
    ///
    /// # Errors
    /// As [`Sequence::feed`].
    pub fn hidden(&mut self, tokens: &[u32], sink: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        self.rows(tokens, sink, |device, session, sink| session.forward_hidden(device, tokens, sink))
    }

    /// Bytes that [`Sequence::export`] would append.
    pub fn export_len(&self) -> usize {
        self.session.export_len(&self.device)
    }

    /// Appends the keys and values of all tokens to `out`.
    ///
    /// # Errors
    /// If there is no memory; those of the device.
    pub fn export(&mut self, out: &mut Vec<u8>) -> Result<()> {
        let len = out.len();
        self.attempt(|device, session| {
            out.truncate(len);
            HostDevice::wait(session.export(device, out))
        })
    }

    /// Continues after `tokens`, whose keys and values are in `from`. The previous tokens are lost.
    ///
    /// # Errors
    /// If they do not fit, or `from` has another length.
    pub fn import(&mut self, tokens: &[u32], from: &[u8]) -> Result<()> {
        let imported = self.attempt(|device, session| session.import(device, tokens.len(), from));
        let position = self.position();
        if let Some(recovery) = &mut self.recovery {
            match imported {
                Ok(()) => recovery.tokens = tokens.to_vec(),
                Err(_) => recovery.tokens.truncate(position),
            }
        }
        imported
    }

    /// Times that a rank of a split model was lost, after which a new group has computed the tokens again.
    pub fn recoveries(&self) -> usize {
        self.recovery.as_ref().map_or(0, |recovery| recovery.count)
    }
}

impl Backend for Sequence {
    fn position(&self) -> usize {
        self.position()
    }

    fn capacity(&self) -> usize {
        self.capacity()
    }

    fn feed(&mut self, tokens: &[u32]) -> Result<&[f32]> {
        self.feed(tokens)
    }

    fn truncate(&mut self, len: usize) -> Result<()> {
        self.truncate(len)
    }

    fn shift(&mut self, keep: usize, drop: usize) -> Result<()> {
        self.shift(keep, drop)
    }
}

#[cfg(test)]
mod tests;
