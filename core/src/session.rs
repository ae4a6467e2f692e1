//! A session: one sequence over a model, with its cache on a device and its position.
#![forbid(unsafe_code)]

use alloc::vec::Vec;

use crate::device::{BlockingDevice, Device, Output, Readout, Run, SessionOptions, Sink, Wants, check_run};
use crate::error::{Error, Result};
use crate::generate::Backend;
use crate::sample::SparseLogits;

/// A sequence's state: takes tokens, returns logits. Scratch memory belongs to the device, which runs any
/// number of sessions, also several in one batch ([`Device::run`]).
pub struct Session<D: Device> {
    cache: D::Cache,
    capacity: usize,
    position: usize,
    /// The tokens seen, if the model has a recurrent state, to compute it again after some were forgotten.
    tokens: Option<Vec<u32>>,
}

impl<D: Device> core::fmt::Debug for Session<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut debug = f.debug_struct("Session");
        debug.field("position", &self.position).field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

impl<D: Device> Session<D> {
    /// Allocates memory for a sequence on `device`.
    ///
    /// # Errors
    /// If an option is out of range, or if there is no memory.
    pub async fn open(device: &mut D, options: &SessionOptions) -> Result<Self, D::Error> {
        let cache = device.cache(options).await?;
        Ok(Session::over(device, cache))
    }

    /// As [`Session::open`], for a sequence that others [fork](Session::fork): memory is allocated as it grows, in pages
    /// of 128 tokens on a CPU.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub async fn open_paged(device: &mut D, options: &SessionOptions) -> Result<Self, D::Error> {
        let cache = device.paged_cache(options).await?;
        Ok(Session::over(device, cache))
    }

    /// An empty sequence in a cache that `device` has made.
    pub fn over(device: &D, cache: D::Cache) -> Self {
        let capacity = device.cache_options(&cache).context;
        let tokens = (cfg!(feature = "variants") && device.program().state_len > 0).then(|| {
            let mut tokens = Vec::new();
            // As for keys and values, so that no token allocates; otherwise it grows.
            let _ = tokens.try_reserve_exact(capacity);
            tokens
        });
        Session { cache, capacity, position: 0, tokens }
    }

    /// Its keys and values.
    pub fn cache(&self) -> &D::Cache {
        &self.cache
    }

    /// Tokens seen so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Maximum number of tokens that fit.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Forgets everything after the first `len` tokens.
    ///
    /// # Errors
    /// [`Error::Option`] if it has seen fewer tokens.
    pub fn truncate(&mut self, len: usize) -> Result<()> {
        if len > self.position {
            let expected = "at most the number of tokens seen";
            return Err(error!(Option { what: "truncated length", found: len as f64, expected }));
        }
        self.set_position(len);
        Ok(())
    }

    fn set_position(&mut self, len: usize) {
        self.position = len;
        if let Some(tokens) = self.tokens.as_mut().filter(|_| cfg!(feature = "variants")) {
            tokens.resize(len, 0);
        }
    }

    /// Computes what the device has not kept of the state after the tokens seen.
    async fn settle(&mut self, device: &mut D) -> Result<(), D::Error> {
        if !cfg!(feature = "variants") {
            return Ok(());
        }
        let Some(tokens) = &self.tokens else { return Ok(()) };
        let from = device.rewind(&mut self.cache, self.position)?;
        if let Some(again) = tokens.get(from..).filter(|again| !again.is_empty()) {
            let run = Run { tokens: again, position: from, wants: Wants::Nothing };
            device.run(&[run], &mut [&mut self.cache], &mut |_, _, _| ()).await?;
        }
        Ok(())
    }

    /// Forgets the `drop` tokens after the first `keep` and moves the later ones forward, to make room for
    /// more: the first tokens stay, as attention needs them. The model computes nothing, so the later tokens
    /// still depend on the forgotten ones. A device that cannot move keys only leaves the first `keep`. See
    /// [`Overflow`](crate::generate::Overflow) for when to do that.
    ///
    /// # Errors
    /// [`Error::Option`] if it has seen fewer tokens; those of the device.
    pub fn shift(&mut self, device: &mut D, keep: usize, drop: usize) -> Result<(), D::Error> {
        if keep.checked_add(drop).is_none_or(|end| end > self.position) {
            let expected = "with those kept at most the number of tokens seen";
            return Err(error!(Option { what: "dropped tokens", found: drop as f64, expected }).into());
        }
        let len = device.shift(&mut self.cache, self.position, keep, drop)?;
        self.set_position(len);
        Ok(())
    }

    /// Sets the number of tokens seen to `len`, with the keys and values already in the session's memory: to
    /// measure a long context without computing it, or to continue in memory of an equal session.
    ///
    /// # Errors
    /// [`Error::ContextFull`] if it cannot hold them.
    pub fn set_len(&mut self, len: usize) -> Result<()> {
        if len > self.capacity {
            let (position, adding) = (self.position as u64, len.saturating_sub(self.position) as u64);
            return Err(error!(ContextFull { position, adding, capacity: self.capacity as u64 }));
        }
        self.set_position(len);
        Ok(())
    }

    /// Feeds `tokens`; returns the logits `(vocab)` after the last of them, as far as `readout` has them. If the device
    /// reads out only the largest, they are in `sparse`, and the others are -inf.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub async fn read_out<'d>(
        &mut self,
        device: &'d mut D,
        tokens: &[u32],
        readout: Readout,
        sparse: &'d mut SparseLogits,
    ) -> Result<&'d [f32], D::Error> {
        let (vocab, mut few) = (device.program().vocab(), false);
        let mut take = |_: usize, _: usize, output: Output<'_>| {
            if let Output::Top(top) = output {
                few = true;
                sparse.set(vocab, top);
            }
        };
        self.run(device, tokens, Wants::Last(readout), &mut take).await?;
        Ok(if few { sparse.as_slice() } else { device.logits() })
    }

    /// Feeds `tokens`; passes the requested outputs to `sink`, with sequence 0. After an error the session is
    /// unchanged.
    ///
    /// # Errors
    /// [`Error::ContextFull`], [`Error::Token`], [`Error::Length`] for no tokens; those of the device.
    pub async fn run(
        &mut self,
        device: &mut D,
        tokens: &[u32],
        wants: Wants,
        sink: &mut Sink<'_>,
    ) -> Result<(), D::Error> {
        run_batch(device, &mut [Feed { session: self, tokens, wants }], sink).await
    }

    /// Bytes that [`Session::export`] would append.
    pub fn export_len(&self, device: &D) -> usize {
        device.export_len(&self.cache, self.position) + self.tokens_len(self.position)
    }

    /// Appends the keys and values of all tokens seen to `out`. A session of any capacity over the same
    /// model, on the same kind of device and with the same [`KvFormat`](crate::KvFormat), can continue from
    /// them.
    ///
    /// # Errors
    /// [`Error::Memory`]; those of the device.
    pub async fn export(&mut self, device: &mut D, out: &mut Vec<u8>) -> Result<(), D::Error> {
        self.settle(device).await?;
        device.export(&mut self.cache, self.position, out).await?;
        if cfg!(feature = "variants") {
            for token in self.tokens.iter().flatten() {
                out.extend_from_slice(&token.to_le_bytes());
            }
        }
        Ok(())
    }

    /// Bytes of `len` exported tokens, of a model with a recurrent state.
    fn tokens_len(&self, len: usize) -> usize {
        if self.tokens.is_some() { len * size_of::<u32>() } else { 0 }
    }

    /// A session of the same capacity that continues after the first `len` tokens of this one. A
    /// [paged](Session::open_paged) one shares their memory: only the last page is copied, when either writes to it, or
    /// all pages from the first that a [mixture of depths](crate::model::depths) writes to.
    ///
    /// # Errors
    /// [`Error::Option`] if this one has seen fewer tokens; those of the device.
    pub async fn fork(&mut self, device: &mut D, len: usize) -> Result<Session<D>, D::Error> {
        if len > self.position {
            let expected = "at most the number of tokens seen";
            return Err(error!(Option { what: "forked length", found: len as f64, expected }).into());
        }
        let known = self.tokens.as_ref().filter(|_| cfg!(feature = "variants"));
        let tokens = known.map(|tokens| tokens.get(..len).unwrap_or(tokens).to_vec());
        if tokens.is_some() {
            self.settle(device).await?;
        }
        let cache = device.fork(&mut self.cache, len, self.position).await?;
        Ok(Session { cache, capacity: self.capacity, position: len, tokens })
    }

    /// Continues after the `len` tokens whose keys and values are in `from`, as written by
    /// [`Session::export`]. The previous state is lost, even if this fails. The content is not checked: other
    /// bytes of the right length give another conversation, or nonsense.
    ///
    /// # Errors
    /// [`Error::ContextFull`] if they do not fit, [`Error::Length`] for a wrong number of bytes; those of the
    /// device.
    pub fn import(&mut self, device: &mut D, len: usize, from: &[u8]) -> Result<(), D::Error> {
        self.set_position(0);
        self.set_len(len)?;
        self.set_position(0);
        let ids = self.tokens_len(len);
        let Some(kv) = from.len().checked_sub(ids) else {
            let (expected, found) = (ids as u64, from.len() as u64);
            return Err(error!(Length { what: "imported tokens", expected, found }).into());
        };
        let (kv, ids) = from.split_at(kv);
        device.import(&mut self.cache, len, kv)?;
        self.set_position(len);
        if let Some(tokens) = self.tokens.as_mut().filter(|_| cfg!(feature = "variants")) {
            let ids = ids.as_chunks().0.iter().map(|&id| u32::from_le_bytes(id));
            tokens.iter_mut().zip(ids).for_each(|(token, id)| *token = id);
        }
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
    /// The rows to read out.
    pub wants: Wants,
}

/// Feeds tokens to several sessions of one device at once: every weight is read once for all of them. At most
/// [`MAX_SEQUENCES`]. After an error all sessions are unchanged.
///
/// # Errors
/// As [`Session::run`], and [`Error::Limit`] for more sessions.
pub async fn run_batch<D: Device>(
    device: &mut D,
    feeds: &mut [Feed<'_, D>],
    sink: &mut Sink<'_>,
) -> Result<(), D::Error> {
    let vocab = device.program().vocab();
    for feed in feeds.iter_mut() {
        feed.session.settle(device).await?;
    }
    let limit =
        error!(Limit { what: "sequences of a batch", found: feeds.len() as u64, max: MAX_SEQUENCES as u64 });
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
        if let Some(tokens) = feed.session.tokens.as_mut().filter(|_| cfg!(feature = "variants")) {
            tokens.extend_from_slice(feed.tokens);
        }
    }
    Ok(())
}

/// Maximum number of sequences of a batch.
pub const MAX_SEQUENCES: usize = 64;

impl<D: BlockingDevice> Session<D> {
    /// As [`Session::open`], blocking.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub fn new(device: &mut D, options: &SessionOptions) -> Result<Self, D::Error> {
        D::wait(Session::open(device, options))
    }

    /// As [`Session::open_paged`], blocking.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub fn paged(device: &mut D, options: &SessionOptions) -> Result<Self, D::Error> {
        D::wait(Session::open_paged(device, options))
    }

    /// Feeds one token; returns the logits `(vocab)` of the next.
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

    /// Feeds `tokens`; writes the most likely next token after each of them to `out` `(tokens)`: the choices
    /// of a greedy decoder, for checking a guessed continuation in one pass.
    ///
    /// # Errors
    /// As [`Session::run`]; [`Error::Length`] for another length of `out`, [`Error::Logits`] if no token is
    /// most likely.
    pub fn forward_prefill_verify(
        &mut self,
        device: &mut D,
        tokens: &[u32],
        out: &mut [u32],
    ) -> Result<(), D::Error> {
        if out.len() != tokens.len() {
            let (expected, found) = (tokens.len() as u64, out.len() as u64);
            return Err(error!(Length { what: "verified tokens", expected, found }).into());
        }
        let (before, mut chosen) = (self.position(), 0);
        D::wait(self.run(device, tokens, Wants::Each(Readout::Best), &mut |_, row, output| {
            if let (Output::Top([(best, _), ..]), Some(out)) = (output, out.get_mut(row)) {
                *out = *best;
                chosen += 1;
            }
        }))?;
        if chosen < tokens.len() {
            self.truncate(before)?;
            return Err(error!(Logits { problem: "every logit is NaN or -inf" }).into());
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
    /// order: the residual stream after the last norm. The head does not run.
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

/// A session on its device, as a [`Backend`].
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
