//! A device runs a model: it holds weights and scratch memory, and computes batches of tokens.
#![forbid(unsafe_code)]

use core::future::Future;
use core::pin::pin;
use core::task::{Context, Poll, Waker};

use alloc::vec::Vec;

use crate::attention::AttentionPattern;
use crate::cache::KvFormat;
use crate::error::{Error, Result};
use crate::model::{ModelConfig, Program};

/// Precision of the inputs of matrix products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Activations {
    /// 8-bit integers with one scale per 32: fast; noise of about 2% of the logits' spread.
    #[default]
    Int8,
    /// 32-bit floats: exact with respect to the weights, but slow.
    F32,
}

/// The kind of output read from a row of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Readout {
    /// The logits of the next token.
    #[default]
    Logits,
    /// The most likely next token.
    Best,
    /// The most likely next tokens; a device may return all logits instead.
    Top(usize),
    /// The final hidden state, before the head, which does not run.
    Hidden,
}

/// Which rows of a run are read out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Wants {
    /// None: the tokens only go into the cache.
    #[default]
    Nothing,
    /// The last.
    Last(Readout),
    /// Every one.
    Each(Readout),
}

impl Wants {
    /// The output read from row `row` of `rows`.
    pub fn of(self, row: usize, rows: usize) -> Option<Readout> {
        match self {
            Wants::Nothing => None,
            Wants::Last(readout) => (row + 1 == rows).then_some(readout),
            Wants::Each(readout) => Some(readout),
        }
    }
}

/// Rows of one sequence: tokens at consecutive positions.
#[derive(Clone, Copy, Debug)]
pub struct Run<'t> {
    /// The tokens; at least one.
    pub tokens: &'t [u32],
    /// The position of the first token, which is the number of tokens the sequence has seen.
    pub position: usize,
    /// The rows to read out.
    pub wants: Wants,
}

/// Rows of (token, sequence, position, wants): run `i` belongs to sequence `i`. Prompts, single tokens,
/// verification of guessed tokens and several sequences are one call.
pub type Batch<'t> = [Run<'t>];

/// The output of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Output<'o> {
    /// Logits `(vocab)`.
    Logits(&'o [f32]),
    /// Tokens and their logits, most likely first, the lower id first among equals.
    Top(&'o [(u32, f32)]),
    /// The final hidden state `(hidden)`.
    Hidden(&'o [f32]),
}

/// Receives each output with its sequence and its row within the run, in the order of the batch.
pub type Sink<'s> = dyn FnMut(usize, usize, Output<'_>) + 's;

/// Options of a sequence's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// Positions to hold; clamped to the limits of the device and the model.
    pub context: usize,
    /// How keys and values are stored.
    pub kv: KvFormat,
    /// The positions that each token attends to.
    pub attention: AttentionPattern,
}

impl Default for SessionOptions {
    fn default() -> Self {
        SessionOptions { context: 4096, kv: KvFormat::default(), attention: AttentionPattern::default() }
    }
}

/// Runs one model. Results are available at once (CPU) or later (GPU): every computing call is a future.
///
/// Creating a device fails, by name, if it lacks an operation or a format of the model's program.
pub trait Device {
    /// Keys and values of one sequence, in this device's memory.
    type Cache;
    /// The error type.
    type Error: From<Error>;

    /// The model's configuration.
    fn config(&self) -> &ModelConfig;

    /// The model's forward pass.
    fn program(&self) -> &Program;

    /// Maximum number of rows that are computed together; longer runs are divided.
    fn batch(&self) -> usize;

    /// Allocates memory for a sequence.
    ///
    /// # Errors
    /// [`Error::Option`] for a context of 0, [`Error::Memory`].
    fn cache(&mut self, options: &SessionOptions) -> impl Future<Output = Result<Self::Cache, Self::Error>>;

    /// As [`Device::cache`], for a sequence that others [fork](Device::fork): memory is allocated in pages, as the
    /// sequence grows, if the device has them.
    ///
    /// # Errors
    /// As [`Device::cache`].
    fn paged_cache(
        &mut self,
        options: &SessionOptions,
    ) -> impl Future<Output = Result<Self::Cache, Self::Error>> {
        self.cache(options)
    }

    /// A cache that begins with the first `len` of the `seen` positions of another one: with the same pages, which are
    /// copied when either writes to them, or with copies.
    ///
    /// # Errors
    /// [`Error::Memory`]; those of the device.
    fn fork(
        &mut self,
        cache: &mut Self::Cache,
        len: usize,
        seen: usize,
    ) -> impl Future<Output = Result<Self::Cache, Self::Error>> {
        // An export of fewer positions may clear the others.
        let _ = len;
        copy_cache(self, cache, seen)
    }

    /// Bytes of the pages of all caches, those of several caches once. `None` if the device has no pages.
    fn page_bytes(&self) -> Option<usize> {
        None
    }

    /// Positions that a cache holds, and its format.
    fn cache_options(&self, cache: &Self::Cache) -> SessionOptions;

    /// Readies a cache to go on after its first `len` positions. A recurrent state, which cannot forget tokens, goes back to a
    /// position that the device has kept a copy of; what was kept after `len` is lost. Returns that position, at most `len`: the
    /// tokens from there on have to be run again. Caches of keys and values alone return `len`.
    ///
    /// # Errors
    /// Those of the device.
    fn rewind(&mut self, cache: &mut Self::Cache, len: usize) -> Result<usize, Self::Error> {
        let _ = cache;
        Ok(len)
    }

    /// Bytes of a cache's recurrent state and its copies, beside its keys and values; 0 without one.
    fn state_bytes(&self, cache: &Self::Cache) -> usize {
        let _ = cache;
        0
    }

    /// Computes `batch`, whose run `i` belongs to `caches[i]`, and passes the requested outputs to `sink`.
    /// The tokens and positions have been checked by [`check_run`].
    ///
    /// # Errors
    /// Those of the device; the caches then keep their content before the `position` of their runs.
    fn run(
        &mut self,
        batch: &Batch<'_>,
        caches: &mut [&mut Self::Cache],
        sink: &mut Sink<'_>,
    ) -> impl Future<Output = Result<(), Self::Error>>;

    /// The logits `(vocab)` that were read out last; empty if there are none, or if other rows were read out
    /// since.
    fn logits(&mut self) -> &[f32];

    /// Forgets the `drop` of `len` positions after the first `keep` and moves the later ones forward. Returns
    /// the number of positions held afterwards: `len - drop`, or `keep` on a device that cannot move keys.
    ///
    /// # Errors
    /// Those of the device.
    fn shift(
        &mut self,
        cache: &mut Self::Cache,
        len: usize,
        keep: usize,
        drop: usize,
    ) -> Result<usize, Self::Error>;

    /// Bytes that [`Device::export`] appends for `len` positions.
    fn export_len(&self, cache: &Self::Cache, len: usize) -> usize;

    /// Appends the keys and values of the first `len` positions to `out`.
    ///
    /// # Errors
    /// Those of the device.
    fn export(
        &mut self,
        cache: &mut Self::Cache,
        len: usize,
        out: &mut Vec<u8>,
    ) -> impl Future<Output = Result<(), Self::Error>>;

    /// Restores the output of [`Device::export`] for `len` positions, at most those that the cache holds. The
    /// content is not checked.
    ///
    /// # Errors
    /// [`Error::Length`] for another number of bytes; those of the device.
    fn import(&mut self, cache: &mut Self::Cache, len: usize, from: &[u8]) -> Result<(), Self::Error>;
}

/// A cache with copies of the first `len` positions of another one.
pub(crate) async fn copy_cache<D: Device + ?Sized>(
    device: &mut D,
    cache: &mut D::Cache,
    len: usize,
) -> Result<D::Cache, D::Error> {
    let options = device.cache_options(cache);
    let mut copy = device.cache(&options).await?;
    let mut bytes = Vec::new();
    device.export(cache, len, &mut bytes).await?;
    device.import(&mut copy, len, &bytes)?;
    Ok(copy)
}

/// A device that the calling thread can wait for.
pub trait BlockingDevice: Device {
    /// Waits for a future returned by the device.
    ///
    /// # Errors
    /// Those of the call.
    fn wait<F: Future<Output = Result<T, Self::Error>>, T>(future: F) -> Result<T, Self::Error>;
}

/// Options of a device with memory of its own, which decide how much scratch memory it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScratchOptions {
    /// Maximum number of positions of a sequence; clamped to the model's context.
    pub context: usize,
    /// Precision of activations.
    pub activations: Activations,
    /// Rows computed together.
    pub batch: usize,
    /// Rows whose logits are computed together when many rows are read out.
    pub logit_rows: usize,
}

impl Default for ScratchOptions {
    fn default() -> Self {
        ScratchOptions { context: 4096, activations: Activations::default(), batch: 128, logit_rows: 8 }
    }
}

impl ScratchOptions {
    /// The options, checked and clamped to the model's limits.
    ///
    /// # Errors
    /// [`Error::Option`] for a 0, [`Error::Limit`] for more than 4096 rows.
    pub fn fitted(&self, config: &ModelConfig) -> Result<ScratchOptions> {
        check_count("context", self.context, usize::MAX)?;
        let context = self.context.min(config.max_context_length);
        let batch = self.batch.min(context);
        check_count("batch", batch, 1 << 12)?;
        check_count("logit rows", self.logit_rows, 1 << 12)?;
        Ok(ScratchOptions { context, batch, logit_rows: self.logit_rows.min(batch), ..*self })
    }
}

/// Checks that an option of a device is at least 1 and at most `max`.
///
/// # Errors
/// [`Error::Option`] for a 0, [`Error::Limit`] for more.
pub fn check_count(what: &'static str, found: usize, max: usize) -> Result<()> {
    match found {
        0 => Err(error!(Option { what, found: 0.0, expected: "at least 1" })),
        _ if found > max => Err(error!(Limit { what, found: found as u64, max: max as u64 })),
        _ => Ok(()),
    }
}

/// Checks that a batch has a cache for each run, and that `device` has made them: `makers` are the devices that have.
///
/// # Errors
/// [`Error::Length`], [`Error::Device`].
pub fn check_caches(
    batch: &Batch<'_>,
    mut makers: impl ExactSizeIterator<Item = u64>,
    device: u64,
) -> Result<()> {
    if batch.len() != makers.len() {
        let (expected, found) = (batch.len() as u64, makers.len() as u64);
        return Err(error!(Length { what: "caches of a batch", expected, found }));
    }
    match makers.all(|maker| maker == device) {
        true => Ok(()),
        false => Err(error!(Device { problem: "the cache was made by another one" })),
    }
}

/// A logit from an integer by which GPUs compare logits: its bits, inverted if it is negative, and otherwise with the
/// highest bit set.
pub fn unordered(bits: u32) -> f32 {
    f32::from_bits(if bits >> 31 == 1 { bits ^ 0x8000_0000 } else { !bits })
}

/// The output of a future that never waits; `None` if it does.
pub fn ready<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Checks the tokens of a run, and that they fit into `capacity` positions.
///
/// # Errors
/// [`Error::Length`] for no tokens, [`Error::ContextFull`], [`Error::Token`] for an unknown one.
pub fn check_run(run: &Run<'_>, capacity: usize, vocab: usize) -> Result<()> {
    if run.tokens.is_empty() {
        return Err(error!(Length { what: "tokens", expected: 1, found: 0 }));
    }
    if run.tokens.len() > capacity.saturating_sub(run.position) {
        return Err(error!(ContextFull {
            position: run.position as u64,
            adding: run.tokens.len() as u64,
            capacity: capacity as u64,
        }));
    }
    let vocab = vocab as u32;
    run.tokens.iter().find(|&&id| id >= vocab).map_or(Ok(()), |&id| Err(error!(Token { id, vocab })))
}
