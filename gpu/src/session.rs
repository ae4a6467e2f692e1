//! A device with one sequence, for hosts that use one at a time.

use crate::device::{Counters, GpuDevice, GpuDeviceOptions, GpuMemory};
use crate::error::{Error, Result};
use crate::upload::{GpuModel, UploadPlan};
use shohin_core::device::{Output, Readout, SessionOptions, Wants};
use shohin_core::{Activations, KvFormat, SamplerConfig, Session};
use std::sync::Arc;

/// Options of a session on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuSessionOptions {
    /// Positions to hold; clamped to the model's context.
    pub context: usize,
    /// How keys and values are stored.
    pub kv: KvFormat,
    /// Precision of activations. Integers have one scale per 32, in 32-bit floats.
    pub activations: Activations,
    /// Prompt tokens computed together.
    pub batch: usize,
    /// Most tokens of [`Readout::Top`].
    pub top: usize,
}

impl Default for GpuSessionOptions {
    fn default() -> Self {
        let GpuDeviceOptions { context, activations, batch, top, .. } = GpuDeviceOptions::default();
        GpuSessionOptions { context, kv: KvFormat::default(), activations, batch, top }
    }
}

impl GpuSessionOptions {
    /// The options of the device, and those of the sequence.
    fn split(&self) -> (GpuDeviceOptions, SessionOptions) {
        let &GpuSessionOptions { context, kv, activations, batch, top } = self;
        let device = GpuDeviceOptions { context, activations, batch, top, ..GpuDeviceOptions::default() };
        (device, SessionOptions { context, kv })
    }
}

/// The part of the logits that a sampler with these options can choose from, and so must read: at most `most`
/// tokens, or all. Log-probabilities need all.
///
/// Penalties change the order, so with them everything is read back.
pub fn readback(config: &SamplerConfig, logprobs: bool, most: usize) -> Readout {
    let plain = config.repetition_penalty == 1.0
        && config.presence_penalty == 0.0
        && config.frequency_penalty == 0.0
        && config.dry_multiplier == 0.0;
    match config {
        _ if !plain || logprobs => Readout::Logits,
        c if c.temperature == 0.0 => Readout::Best,
        c if (1..=most).contains(&c.top_k) => Readout::Top(c.top_k),
        _ => Readout::Logits,
    }
}

/// Logits `(vocab)` with -inf for all tokens but `chosen`, assembled in `sparse`.
pub fn visible_logits<'s>(vocab: usize, chosen: &[(u32, f32)], sparse: &'s mut Vec<f32>) -> &'s [f32] {
    sparse.clear();
    sparse.resize(vocab, f32::NEG_INFINITY);
    for &(token, logit) in chosen {
        if let Some(place) = sparse.get_mut(token as usize) {
            *place = logit;
        }
    }
    sparse
}

impl UploadPlan {
    /// The memory of a session with `options`, without the weights.
    ///
    /// # Errors
    /// For an option outside its range.
    pub fn session_plan(&self, options: &GpuSessionOptions) -> Result<GpuMemory> {
        let (device, session) = options.split();
        self.memory_plan(&device, &session)
    }
}

/// A device and its one sequence.
#[derive(Debug)]
pub struct GpuSession {
    device: GpuDevice,
    session: Session<GpuDevice>,
    options: GpuSessionOptions,
}

impl GpuSession {
    /// Allocates memory and prepares every dispatch.
    ///
    /// # Errors
    /// For an option outside its range, [`Error::OutOfMemory`], or errors of the driver when it compiles the
    /// shaders.
    pub async fn new(model: &Arc<GpuModel>, options: &GpuSessionOptions) -> Result<GpuSession> {
        let (device, session) = options.split();
        let mut device = GpuDevice::new(model, &device).await?;
        let session = Session::open(&mut device, &session).await?;
        let &GpuDeviceOptions { batch, top, .. } = device.options();
        let options = GpuSessionOptions { context: session.capacity(), batch, top, ..*options };
        Ok(GpuSession { device, session, options })
    }

    /// The model this session runs.
    pub fn model(&self) -> &Arc<GpuModel> {
        self.device.model()
    }

    /// The effective options.
    pub fn options(&self) -> &GpuSessionOptions {
        &self.options
    }

    /// Tokens seen so far.
    pub fn position(&self) -> usize {
        self.session.position()
    }

    /// Most tokens that fit.
    pub fn capacity(&self) -> usize {
        self.session.capacity()
    }

    /// Work done on the GPU for this session.
    pub fn counters(&self) -> Counters {
        self.device.counters()
    }

    /// The error that made the GPU unusable, if any.
    pub fn failure(&self) -> Option<Error> {
        self.device.failure()
    }

    /// See [`Session::truncate`].
    ///
    /// # Errors
    /// Those of [`Session::truncate`].
    pub fn truncate(&mut self, len: usize) -> Result<()> {
        Ok(self.session.truncate(len)?)
    }

    /// See [`Session::set_len`].
    ///
    /// # Errors
    /// Those of [`Session::set_len`].
    pub fn assume(&mut self, len: usize) -> Result<()> {
        Ok(self.session.set_len(len)?)
    }

    /// Feeds `tokens` and reads out the last one.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub async fn forward(&mut self, tokens: &[u32], readout: Readout) -> Result<()> {
        self.session.run(&mut self.device, tokens, Wants::Last(readout), &mut |_, _, _| ()).await
    }

    /// Feeds `tokens`; calls `sink(i, hidden)` with the final hidden state `(hidden)` at each of them, in order.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub async fn forward_hidden(
        &mut self,
        tokens: &[u32],
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<()> {
        let mut each = |_, row, output: Output<'_>| {
            if let Output::Hidden(hidden) = output {
                sink(row, hidden);
            }
        };
        self.session.run(&mut self.device, tokens, Wants::Each(Readout::Hidden), &mut each).await
    }

    /// The logits `(vocab)`, as far as `readout` has read them: all others are -inf. They are assembled in
    /// `sparse`.
    pub fn visible_logits<'s>(&'s self, readout: Readout, sparse: &'s mut Vec<f32>) -> &'s [f32] {
        match readout {
            Readout::Best | Readout::Top(_) => {
                visible_logits(self.model().program().vocab(), self.device.top(), sparse)
            }
            Readout::Logits | Readout::Hidden => self.device.last_logits(),
        }
    }

    /// Bytes of the keys and values of all tokens seen.
    pub fn export_len(&self) -> usize {
        self.session.export_len(&self.device)
    }

    /// See [`Session::export`].
    ///
    /// # Errors
    /// Those of [`Session::export`].
    pub async fn export(&mut self, out: &mut Vec<u8>) -> Result<()> {
        self.session.export(&mut self.device, out).await
    }

    /// See [`Session::import`].
    ///
    /// # Errors
    /// Those of [`Session::import`].
    pub fn import(&mut self, len: usize, from: &[u8]) -> Result<()> {
        self.session.import(&mut self.device, len, from)
    }
}
