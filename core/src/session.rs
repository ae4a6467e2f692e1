//! One sequence over a model: its cache on a device, and the position reached.
#![forbid(unsafe_code)]

use alloc::vec::Vec;

use crate::device::{BlockingDevice, Device, Output, Readout, Run, SessionOptions, Sink, Wants, check_run};
use crate::error::{Error, Result};
use crate::generate::Backend;

/// A sequence's state: tokens go in, logits come out. Scratch memory is the device's, which runs any number of
/// sessions, also several in one batch ([`Device::run`]).
pub struct Session<D: Device> {
    cache: D::Cache,
    capacity: usize,
    position: usize,
}

impl<D: Device> core::fmt::Debug for Session<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut debug = f.debug_struct("Session");
        debug.field("position", &self.position).field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

impl<D: Device> Session<D> {
    /// Takes memory for a sequence on `device`.
    ///
    /// # Errors
    /// For an option outside its range, or if there is no memory.
    pub async fn open(device: &mut D, options: &SessionOptions) -> Result<Self, D::Error> {
        let cache = device.cache(options).await?;
        let capacity = device.cache_options(&cache).context;
        Ok(Session::over(cache, capacity))
    }

    pub(crate) fn over(cache: D::Cache, capacity: usize) -> Self {
        Session { cache, capacity, position: 0 }
    }

    /// Its keys and values.
    pub fn cache(&self) -> &D::Cache {
        &self.cache
    }

    /// Tokens seen so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Tokens the session can hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Forgets everything after the first `len` tokens.
    ///
    /// # Errors
    /// [`Error::Option`] if it has not seen as many.
    pub fn truncate(&mut self, len: usize) -> Result<()> {
        if len > self.position {
            let expected = "at most the number of tokens seen";
            return Err(Error::Option { what: "truncated length", found: len as f64, expected });
        }
        self.position = len;
        Ok(())
    }

    /// Forgets the `drop` tokens after the first `keep` and moves the later ones forward, so that there is room for
    /// more: the first tokens stay, as attention needs them. Costs no computing of the model, but what it
    /// understood of the forgotten tokens is still in the later ones. A device that cannot move keys leaves the
    /// first `keep` only. See [`Overflow`](crate::generate::Overflow) for when to do that.
    ///
    /// # Errors
    /// [`Error::Option`] if it has not seen as many; what the device says.
    pub fn shift(&mut self, device: &mut D, keep: usize, drop: usize) -> Result<(), D::Error> {
        if keep.checked_add(drop).is_none_or(|end| end > self.position) {
            let expected = "with those kept at most the number of tokens seen";
            return Err(Error::Option { what: "dropped tokens", found: drop as f64, expected }.into());
        }
        self.position = device.shift(&mut self.cache, self.position, keep, drop)?;
        Ok(())
    }

    /// Takes `len` tokens as seen, with the keys and values that the session's memory already holds: to
    /// measure a long context without computing it, or to go on in memory that an equal session has left.
    ///
    /// # Errors
    /// [`Error::ContextFull`] if it cannot hold them.
    pub fn set_len(&mut self, len: usize) -> Result<()> {
        if len > self.capacity {
            let (position, adding) = (self.position as u64, len.saturating_sub(self.position) as u64);
            return Err(Error::ContextFull { position, adding, capacity: self.capacity as u64 });
        }
        self.position = len;
        Ok(())
    }

    /// Feeds `tokens`; hands what is wanted of each to `sink`, with the sequence 0. After an error the session is
    /// where it was.
    ///
    /// # Errors
    /// [`Error::ContextFull`], [`Error::Token`], [`Error::Length`] for no tokens; what the device says.
    pub async fn run(
        &mut self,
        device: &mut D,
        tokens: &[u32],
        wants: Wants,
        sink: &mut Sink<'_>,
    ) -> Result<(), D::Error> {
        run_batch(device, &mut [Feed { session: self, tokens, wants }], sink).await
    }

    /// Bytes that [`Session::export`] appends now.
    pub fn export_len(&self, device: &D) -> usize {
        device.export_len(&self.cache, self.position)
    }

    /// Appends the keys and values of all tokens seen to `out`, for a session of any capacity over the same model,
    /// on the same kind of device and with the same [`KvFormat`](crate::KvFormat), to go on from.
    ///
    /// # Errors
    /// [`Error::Memory`]; what the device says.
    pub async fn export(&mut self, device: &mut D, out: &mut Vec<u8>) -> Result<(), D::Error> {
        device.export(&mut self.cache, self.position, out).await
    }

    /// Goes on after the `len` tokens whose keys and values are in `from`, as [`Session::export`] wrote them.
    /// What it held before is forgotten, also when this fails. Content is not checked: other bytes of the right
    /// number give another conversation, or nonsense.
    ///
    /// # Errors
    /// [`Error::ContextFull`] if they do not fit, [`Error::Length`] for a wrong number of bytes; what the device says.
    pub fn import(&mut self, device: &mut D, len: usize, from: &[u8]) -> Result<(), D::Error> {
        self.position = 0;
        self.set_len(len)?;
        self.position = 0;
        device.import(&mut self.cache, len, from)?;
        self.position = len;
        Ok(())
    }
}

/// Tokens for one of several sessions of a batch.
#[derive(Debug)]
pub struct Feed<'f, D: Device> {
    /// The session they belong to.
    pub session: &'f mut Session<D>,
    /// The tokens; at least one.
    pub tokens: &'f [u32],
    /// What is read out.
    pub wants: Wants,
}

/// Feeds tokens to several sessions of one device at once: every weight is read once for all of them.
/// [`MAX_SEQUENCES`] at most. After an error all sessions are where they were.
///
/// # Errors
/// As [`Session::run`], and [`Error::Limit`] for more sessions.
pub async fn run_batch<D: Device>(
    device: &mut D,
    feeds: &mut [Feed<'_, D>],
    sink: &mut Sink<'_>,
) -> Result<(), D::Error> {
    let vocab = device.program().vocab();
    let limit =
        Error::Limit { what: "sequences of a batch", found: feeds.len() as u64, max: MAX_SEQUENCES as u64 };
    {
        let mut runs = heapless::Vec::<_, MAX_SEQUENCES>::new();
        let mut caches = heapless::Vec::<_, MAX_SEQUENCES>::new();
        for feed in feeds.iter_mut() {
            let run = Run { tokens: feed.tokens, position: feed.session.position, wants: feed.wants };
            check_run(&run, feed.session.capacity, vocab)?;
            runs.push(run).map_err(|_| limit)?;
            caches.push(&mut feed.session.cache).map_err(|_| limit)?;
        }
        device.run(&runs, &mut caches, sink).await?;
    }
    for feed in feeds {
        feed.session.position += feed.tokens.len();
    }
    Ok(())
}

/// Sequences of a batch.
pub const MAX_SEQUENCES: usize = 64;

impl<D: BlockingDevice> Session<D> {
    /// As [`Session::open`], waiting for it.
    ///
    /// # Errors
    /// As there.
    pub fn new(device: &mut D, options: &SessionOptions) -> Result<Self, D::Error> {
        D::wait(Session::open(device, options))
    }

    /// Feeds one token; returns the logits `(vocab)` of what follows it.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn forward<'d>(&mut self, device: &'d mut D, token: u32) -> Result<&'d [f32], D::Error> {
        self.forward_prefill(device, &[token])
    }

    /// Feeds `tokens`; returns the logits `(vocab)` after the last of them. The head runs for that position only.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn forward_prefill<'d>(&mut self, device: &'d mut D, tokens: &[u32]) -> Result<&'d [f32], D::Error> {
        D::wait(self.run(device, tokens, Wants::Last(Readout::Logits), &mut |_, _, _| ()))?;
        Ok(device.logits())
    }

    /// Feeds `tokens`; writes to `out` `(tokens)` the most likely next token after each of them: what a
    /// greedy decoder would have said, for checking a guessed continuation in one pass.
    ///
    /// # Errors
    /// As [`Session::run`]; [`Error::Length`] for another length of `out`, [`Error::Logits`] where none is most likely.
    pub fn forward_prefill_verify(
        &mut self,
        device: &mut D,
        tokens: &[u32],
        out: &mut [u32],
    ) -> Result<(), D::Error> {
        if out.len() != tokens.len() {
            let (expected, found) = (tokens.len() as u64, out.len() as u64);
            return Err(Error::Length { what: "verified tokens", expected, found }.into());
        }
        let mut chosen = 0;
        D::wait(self.run(device, tokens, Wants::Each(Readout::Best), &mut |_, row, output| {
            if let (Output::Top([(best, _), ..]), Some(out)) = (output, out.get_mut(row)) {
                *out = *best;
                chosen += 1;
            }
        }))?;
        if chosen < tokens.len() {
            return Err(Error::Logits { problem: "every logit is NaN or -inf" }.into());
        }
        Ok(())
    }

    /// Feeds `tokens`; calls `sink(i, logits)` with the logits `(vocab)` after each of them, in order.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn forward_logits(
        &mut self,
        device: &mut D,
        tokens: &[u32],
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), D::Error> {
        D::wait(self.run(device, tokens, Wants::Each(Readout::Logits), &mut |_, row, output| {
            if let Output::Logits(logits) = output {
                sink(row, logits);
            }
        }))
    }

    /// Feeds `tokens`; calls `sink(i, hidden)` with the final hidden state `(hidden)` at each of them, in
    /// order: the residual stream after the last norm, from which the head makes logits. The head does not run.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn forward_hidden(
        &mut self,
        device: &mut D,
        tokens: &[u32],
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), D::Error> {
        D::wait(self.run(device, tokens, Wants::Each(Readout::Hidden), &mut |_, row, output| {
            if let Output::Hidden(hidden) = output {
                sink(row, hidden);
            }
        }))
    }
}

/// A session on its device, as a generation drives it.
#[derive(Debug)]
pub struct Decoder<'s, D: Device> {
    /// The device.
    pub device: &'s mut D,
    /// The session.
    pub session: &'s mut Session<D>,
}

impl<D: BlockingDevice<Error: Into<Error>>> Backend for Decoder<'_, D> {
    fn position(&self) -> usize {
        self.session.position()
    }

    fn capacity(&self) -> usize {
        self.session.capacity()
    }

    fn feed(&mut self, tokens: &[u32]) -> Result<&[f32]> {
        self.session.forward_prefill(self.device, tokens).map_err(Into::into)
    }

    fn truncate(&mut self, len: usize) -> Result<()> {
        self.session.truncate(len)
    }

    fn shift(&mut self, keep: usize, drop: usize) -> Result<()> {
        self.session.shift(self.device, keep, drop).map_err(Into::into)
    }
}
