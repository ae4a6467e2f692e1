//! One timeline over a model on the GPU: cache, working memory, and the dispatches of every kind of step.

mod states;

use crate::device::Gpu;
use crate::error::{Error, Result};
use crate::kernel::{
    self, ARGMAX_GROUPS, Acts, Extent, Heads, Kernel, Kv, MAX_PARTS, Output, Product, SORTED, STEP_HEAD, TILE,
};
use crate::weights::{GpuModel, Matrix};
use shohin_core::Error as CoreError;
use shohin_core::model::Qwen3Config;
use shohin_core::model::rope::Rope;
use shohin_core::{Activations, SamplerConfig};
use std::sync::Arc;
use wgpu::{Buffer, BufferUsages};

/// What a session on the GPU should be able to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuSessionOptions {
    /// Positions to hold; more than the model's own context is cut to it.
    pub context: usize,
    /// How keys and values are kept.
    pub kv: Kv,
    /// Precision of activations. Integers have one scale per 32, in 32-bit floats.
    pub activations: Activations,
    /// Prompt tokens that go through the model together.
    pub batch: usize,
    /// Most tokens that [`Want::Top`] can ask for, up to 256.
    pub top: usize,
}

impl Default for GpuSessionOptions {
    fn default() -> Self {
        GpuSessionOptions {
            context: 4096,
            kv: Kv::default(),
            activations: Activations::default(),
            batch: 128,
            top: 64,
        }
    }
}

/// What is read back after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Want {
    /// Nothing: the tokens only go into the cache.
    Nothing,
    /// The most likely token: 8 bytes.
    Best,
    /// The most likely tokens: 8 bytes each.
    Top(usize),
    /// Every logit.
    #[default]
    Logits,
}

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

/// Bytes on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct GpuMemory {
    /// Keys and values.
    pub kv: u64,
    /// Activations of one batch, logits and what is read back.
    pub scratch: u64,
}

/// What the GPU was made to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    /// Command submissions.
    pub submissions: u64,
    /// Dispatches in them.
    pub dispatches: u64,
    /// Bytes of packed weights that matrix products went over.
    pub weight_bytes: u64,
    /// Bytes copied back to the host.
    pub read_bytes: u64,
}

/// Elements of the buffers of a session.
struct Sizes {
    heads: Heads,
    vocab: usize,
    units: usize,
    top: usize,
}

impl Sizes {
    fn new(config: &Qwen3Config, options: &GpuSessionOptions) -> Result<(Sizes, GpuSessionOptions)> {
        for (what, value, max) in [
            ("context", options.context, usize::MAX),
            ("batch", options.batch, 1 << 12),
            ("top", options.top, 256),
        ] {
            if value == 0 {
                return Err(CoreError::Option { what, found: 0.0, expected: "at least 1" }.into());
            }
            if value > max {
                return Err(CoreError::Limit { what, found: value as u64, max: max as u64 }.into());
            }
        }
        let context = options.context.min(config.max_context_length);
        let top = options.top.min(config.vocab_size).min(SORTED);
        let options = GpuSessionOptions { context, batch: options.batch.min(context), top, ..*options };
        let heads = Heads {
            heads: config.num_attention_heads,
            kv_heads: config.num_kv_heads,
            head_dim: config.head_dim,
            capacity: context,
            batch: options.batch,
            eps: config.rms_norm_eps,
            kv: options.kv,
        };
        let widest = config.hidden_size.max(config.q_size()).max(config.intermediate_size);
        Ok((Sizes { heads, vocab: config.vocab_size, units: widest / 32, top }, options))
    }

    /// Bytes of a layer's keys (and of its values).
    fn kv(&self) -> u64 {
        self.heads.kv.bytes(self.heads.kv_heads * self.heads.capacity * self.heads.head_dim)
    }

    fn step(&self) -> u64 {
        4 * (STEP_HEAD + self.heads.batch + self.heads.batch * self.heads.head_dim) as u64
    }

    fn qkv(&self) -> u64 {
        4 * (self.heads.batch * (self.heads.heads + 2 * self.heads.kv_heads) * self.heads.head_dim) as u64
    }

    fn parts(&self) -> u64 {
        4 * (self.heads.heads * MAX_PARTS * (self.heads.head_dim + 4)) as u64
    }

    fn kept(&self) -> u64 {
        8 * (self.vocab.div_ceil(SORTED) * self.top) as u64
    }

    fn logits(&self) -> u64 {
        4 * self.vocab as u64
    }

    const BEST: u64 = 8 * (1 + ARGMAX_GROUPS as u64);
}

/// A conversation's state on the GPU. All its memory is taken when it is made.
pub struct GpuSession {
    model: Arc<GpuModel>,
    options: GpuSessionOptions,
    rope: Rope,
    position: usize,
    sizes: Sizes,
    step: Buffer,
    /// The residual stream, `(batch, hidden)`.
    x: Buffer,
    /// Keys and values of each layer.
    caches: Vec<[Buffer; 2]>,
    logits_buffer: Buffer,
    best: Buffer,
    kept: [Buffer; 2],
    read_few: Buffer,
    read_logits: Buffer,
    /// Kernels of a step of one token with few positions, of one with many, and of several tokens.
    short: Vec<Kernel>,
    long: Vec<Kernel>,
    many: Vec<Kernel>,
    head: Vec<Kernel>,
    argmax: [Kernel; 2],
    topk: Option<(usize, Vec<Kernel>, usize)>,
    /// What was read back last.
    bytes: Vec<u8>,
    logits: Vec<f32>,
    chosen: Vec<(u32, f32)>,
    counters: Counters,
}

impl core::fmt::Debug for GpuSession {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("GpuSession")
            .field("position", &self.position)
            .field("options", &self.options)
            .finish()
    }
}

/// The bytes a session with `options` takes on the GPU, beside the weights.
///
/// # Errors
/// For an option outside its range.
pub fn memory_plan(config: &Qwen3Config, options: &GpuSessionOptions) -> Result<GpuMemory> {
    let (s, options) = Sizes::new(config, options)?;
    let b = options.batch as u64;
    let acts: u64 = Acts::bytes(options.activations, options.batch * s.units).iter().sum();
    let x = 4 * b * config.hidden_size as u64;
    let h = 4 * b * config.intermediate_size as u64;
    let few = 8 * s.top as u64;
    let scratch =
        s.step() + acts + x + h + s.qkv() + s.parts() + 2 * s.logits() + Sizes::BEST + 2 * s.kept() + few;
    Ok(GpuMemory { kv: 2 * s.kv() * config.num_layers as u64, scratch })
}

impl GpuSession {
    /// Takes memory and prepares every dispatch.
    ///
    /// # Errors
    /// For an option outside its range, [`Error::OutOfMemory`], or whatever the driver says of the shaders.
    pub async fn new(model: &Arc<GpuModel>, options: &GpuSessionOptions) -> Result<GpuSession> {
        let (gpu, c) = (&*model.gpu, &model.config);
        let (sizes, options) = Sizes::new(c, options)?;
        let b = options.batch;
        let (h, f) = (c.hidden_size, c.intermediate_size);
        let step = gpu.storage("step", sizes.step()).await?;
        let x = gpu.storage("x", 4 * (b * h) as u64).await?;
        let qkv = gpu.storage("qkv", sizes.qkv()).await?;
        let hidden = gpu.storage("hidden", 4 * (b * f) as u64).await?;
        let parts = gpu.storage("parts", sizes.parts()).await?;
        let logits = gpu.storage("logits", sizes.logits()).await?;
        let best = gpu.storage("best", Sizes::BEST).await?;
        let kept = [gpu.storage("kept", sizes.kept()).await?, gpu.storage("kept", sizes.kept()).await?];
        let [words, scale] = Acts::bytes(options.activations, b * sizes.units);
        let acts = match options.activations {
            Activations::Int8 => Acts::Int8 {
                words: gpu.storage("activations", words).await?,
                scale: gpu.storage("activation scales", scale).await?,
            },
            Activations::F32 => Acts::F32(gpu.storage("activations", words).await?),
        };
        let readable = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
        let read_few = gpu.buffer("read", 8 * sizes.top as u64, readable).await?;
        let read_logits = gpu.buffer("read logits", sizes.logits(), readable).await?;

        let heads = sizes.heads;
        let embed: Vec<Kernel> = model
            .token_embd
            .chunks
            .iter()
            .map(|chunk| kernel::embed(gpu, model.token_embd.form, h, chunk, &step, &x))
            .collect();
        let (mut short, mut long, mut many) = (embed.clone(), embed.clone(), embed);
        let mut caches = Vec::new();
        for block in &model.blocks {
            let keys = gpu.storage("keys", sizes.kv()).await?;
            let values = gpu.storage("values", sizes.kv()).await?;
            caches.push([keys.clone(), values.clone()]);
            let product =
                |matrix, acts, output, into, stride| products(gpu, matrix, acts, output, into, stride, &step);
            let norm = |weight| kernel::rmsnorm(gpu, h, c.rms_norm_eps, false, &x, weight, &step, &acts);
            let mut both = |[one, several]: [Vec<Kernel>; 2]| {
                short.extend(one.iter().cloned());
                long.extend(one);
                many.extend(several);
            };
            let same = |kernel: Kernel| [vec![kernel.clone()], vec![kernel]];
            both(same(norm(&block.attn_norm)));
            both(product(&block.qkv, &acts, Output::Store, &qkv, c.q_size() + 2 * c.kv_size()));
            both(same(kernel::rope(gpu, &heads, &qkv, &block.qk_norm, &keys, &values, &step)));
            short.push(kernel::attention(gpu, &heads, false, &qkv, &keys, &values, &step, &acts));
            long.push(kernel::attention_part(gpu, &heads, &qkv, &keys, &values, &step, &parts));
            long.push(kernel::attention_combine(gpu, &heads, &parts, &step, &acts));
            many.push(kernel::attention(gpu, &heads, true, &qkv, &keys, &values, &step, &acts));
            let mut both = |[one, several]: [Vec<Kernel>; 2]| {
                short.extend(one.iter().cloned());
                long.extend(one);
                many.extend(several);
            };
            both(product(&block.attn_output, &acts, Output::Add, &x, h));
            both(same(norm(&block.ffn_norm)));
            both(product(&block.gate_up, &acts, Output::Swiglu, &hidden, f));
            match options.activations {
                Activations::Int8 => {
                    both(same(kernel::quantize(gpu, f, &hidden, &acts)));
                    both(product(&block.ffn_down, &acts, Output::Add, &x, h));
                }
                Activations::F32 => {
                    both(product(&block.ffn_down, &Acts::F32(hidden.clone()), Output::Add, &x, h));
                }
            }
        }
        let mut head =
            vec![kernel::rmsnorm(gpu, h, c.rms_norm_eps, true, &x, &model.output_norm, &step, &acts)];
        let [last, _] = products(gpu, model.output(), &acts, Output::Store, &logits, sizes.vocab, &step);
        head.extend(last);
        let argmax = kernel::argmax(gpu, sizes.vocab, &logits, &best);
        gpu.check()?;
        Ok(GpuSession {
            rope: Rope::new(c.head_dim, c.rope_freq_base, c.rope_scaling),
            model: Arc::clone(model),
            options,
            position: 0,
            sizes,
            step,
            x,
            caches,
            logits_buffer: logits,
            best,
            kept,
            read_few,
            read_logits,
            short,
            long,
            many,
            head,
            argmax,
            topk: None,
            bytes: Vec::new(),
            logits: Vec::new(),
            chosen: Vec::new(),
            counters: Counters::default(),
        })
    }

    /// The model this session runs.
    pub fn model(&self) -> &Arc<GpuModel> {
        &self.model
    }

    /// The options in force.
    pub fn options(&self) -> &GpuSessionOptions {
        &self.options
    }

    /// Tokens seen so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Tokens the session can hold.
    pub fn capacity(&self) -> usize {
        self.options.context
    }

    /// What the GPU did for this session.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Forgets everything after the first `len` tokens.
    ///
    /// # Errors
    /// [`CoreError::Option`] if it holds fewer.
    pub fn truncate(&mut self, len: usize) -> Result<()> {
        if len > self.position {
            let expected = "at most the number of tokens seen";
            return Err(CoreError::Option { what: "truncated length", found: len as f64, expected }.into());
        }
        self.position = len;
        Ok(())
    }

    /// Takes `len` tokens as seen, with whatever the cache holds for them (zeros at first): to measure a long context
    /// without computing it.
    ///
    /// # Errors
    /// [`CoreError::ContextFull`] if it cannot hold them.
    pub fn assume(&mut self, len: usize) -> Result<()> {
        if len > self.capacity() {
            let (position, adding) = (self.position as u64, len.saturating_sub(self.position) as u64);
            return Err(CoreError::ContextFull { position, adding, capacity: self.capacity() as u64 }.into());
        }
        self.position = len;
        Ok(())
    }

    /// Feeds `tokens` and reads back what is wanted of the last one.
    ///
    /// # Errors
    /// [`CoreError::ContextFull`], [`CoreError::Token`], [`CoreError::Option`] for more tokens than the session's `top`, or what the GPU
    /// says; in that case nothing was fed.
    pub async fn forward(&mut self, tokens: &[u32], want: Want) -> Result<()> {
        self.check(tokens, want)?;
        let start = self.position;
        let done = self.run(tokens, want).await;
        if done.is_err() {
            self.position = start;
        }
        done
    }

    /// Feeds `tokens`; calls `sink(i, logits)` with the logits `(vocab)` after each of them, in order.
    ///
    /// # Errors
    /// As [`GpuSession::forward`].
    pub async fn forward_logits(
        &mut self,
        tokens: &[u32],
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<()> {
        self.check(tokens, Want::Logits)?;
        let start = self.position;
        let done = self.run_logits(tokens, sink).await;
        if done.is_err() {
            self.position = start;
        }
        done
    }

    async fn run_logits(&mut self, tokens: &[u32], sink: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        for (first, chunk) in (0..).step_by(self.options.batch).zip(tokens.chunks(self.options.batch)) {
            self.feed(chunk, Want::Nothing, 0)?;
            for row in 0..chunk.len() {
                self.gpu().queue.write_buffer(&self.step, 8, bytemuck::bytes_of(&(row as u32)));
                let extent = Extent { tokens: chunk.len(), parts: 1 };
                self.submit(&[], extent, Want::Logits)?;
                self.read(Want::Logits).await?;
                sink(first + row, &self.logits);
            }
        }
        Ok(())
    }

    /// The logits `(vocab)` that [`Want::Logits`] brought last; empty before.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// The tokens and logits that [`Want::Best`] or [`Want::Top`] brought last, most likely first, the lower id first
    /// among equals. Without those that cannot be chosen (NaN and -inf).
    pub fn top(&self) -> &[(u32, f32)] {
        &self.chosen
    }

    /// The logits `(vocab)` as far as the last step brought them: of a [`Want::Best`] or [`Want::Top`] all others are
    /// -inf. `sparse` is where they are put together.
    pub fn visible_logits<'s>(&'s self, want: Want, sparse: &'s mut Vec<f32>) -> &'s [f32] {
        if want == Want::Logits {
            return &self.logits;
        }
        sparse.clear();
        sparse.resize(self.sizes.vocab, f32::NEG_INFINITY);
        for &(token, logit) in &self.chosen {
            if let Some(place) = sparse.get_mut(token as usize) {
                *place = logit;
            }
        }
        sparse
    }

    fn gpu(&self) -> &Gpu {
        &self.model.gpu
    }

    fn check(&self, tokens: &[u32], want: Want) -> Result<()> {
        if tokens.is_empty() {
            return Err(CoreError::Length { what: "tokens (at least 1)", expected: 1, found: 0 }.into());
        }
        if tokens.len() > self.capacity() - self.position {
            return Err(CoreError::ContextFull {
                position: self.position as u64,
                adding: tokens.len() as u64,
                capacity: self.capacity() as u64,
            }
            .into());
        }
        if let Want::Top(n) = want
            && !(1..=self.sizes.top).contains(&n)
        {
            let expected = "at least 1 and at most the session's option";
            return Err(CoreError::Option { what: "top", found: n as f64, expected }.into());
        }
        let vocab = self.sizes.vocab as u32;
        match tokens.iter().find(|&&id| id >= vocab) {
            Some(&id) => Err(CoreError::Token { id, vocab }.into()),
            None => self.gpu().check(),
        }
    }

    async fn run(&mut self, tokens: &[u32], want: Want) -> Result<()> {
        let mut rest = tokens.len();
        for chunk in tokens.chunks(self.options.batch) {
            rest -= chunk.len();
            let want = if rest == 0 { want } else { Want::Nothing };
            self.feed(chunk, want, chunk.len() - 1)?;
        }
        self.read(want).await
    }

    /// Submits one batch. `row` is the one whose logits are wanted.
    fn feed(&mut self, tokens: &[u32], want: Want, row: usize) -> Result<()> {
        let n = tokens.len();
        let positions = self.position + n;
        // A part is a whole number of tiles.
        let wanted = if n == 1 { positions.div_ceil(TILE).min(MAX_PARTS) } else { 1 };
        let span = positions.div_ceil(wanted).next_multiple_of(TILE);
        let extent = Extent { tokens: n, parts: positions.div_ceil(span) };

        let mut words = vec![n as u32, self.position as u32, row as u32, span as u32];
        words.extend_from_slice(tokens);
        let d = self.sizes.heads.head_dim;
        let mut angles = vec![0.0; n * d];
        for (t, angles) in angles.chunks_exact_mut(d).enumerate() {
            let (cos, sin) = angles.split_at_mut(d / 2);
            self.rope.angles(self.position + t, cos, sin);
        }
        let queue = &self.gpu().queue;
        queue.write_buffer(&self.step, 0, bytemuck::cast_slice(&words));
        let at = 4 * (STEP_HEAD + self.options.batch) as u64;
        queue.write_buffer(&self.step, at, bytemuck::cast_slice(&angles));

        let kernels = match (n, extent.parts) {
            (1, 1) => core::mem::take(&mut self.short),
            (1, _) => core::mem::take(&mut self.long),
            _ => core::mem::take(&mut self.many),
        };
        let done = self.submit(&kernels, extent, want);
        match (n, extent.parts) {
            (1, 1) => self.short = kernels,
            (1, _) => self.long = kernels,
            _ => self.many = kernels,
        }
        self.position += n;
        done
    }

    /// Records `kernels`, then the head if anything is wanted of it, and submits.
    fn submit(&mut self, kernels: &[Kernel], extent: Extent, want: Want) -> Result<()> {
        if let Want::Top(n) = want
            && self.topk.as_ref().is_none_or(|(made_for, ..)| *made_for != n)
        {
            let (kernels, into) =
                kernel::topk(self.gpu(), self.sizes.vocab, n, &self.logits_buffer, &self.kept);
            self.topk = Some((n, kernels, into));
        }
        let gpu = &*self.model.gpu;
        let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let counters = &mut self.counters;
        {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            let mut record = |kernels: &[Kernel], extent| {
                for kernel in kernels {
                    kernel.record(&mut pass, extent);
                    counters.dispatches += 1;
                    counters.weight_bytes += kernel.weight_bytes;
                }
            };
            record(kernels, extent);
            let one = Extent { tokens: 1, parts: 1 };
            if want != Want::Nothing {
                record(&self.head, one);
            }
            match (want, &self.topk) {
                (Want::Best, _) => record(&self.argmax, one),
                (Want::Top(_), Some((_, kernels, _))) => record(kernels, one),
                _ => {}
            }
        }
        match (want, &self.topk) {
            (Want::Best, _) => encoder.copy_buffer_to_buffer(&self.best, 0, &self.read_few, 0, 8),
            (Want::Top(n), Some((.., into))) => {
                encoder.copy_buffer_to_buffer(&self.kept[*into], 0, &self.read_few, 0, 8 * n as u64);
            }
            (Want::Logits, _) => {
                encoder.copy_buffer_to_buffer(
                    &self.logits_buffer,
                    0,
                    &self.read_logits,
                    0,
                    self.sizes.logits(),
                );
            }
            _ => {}
        }
        gpu.queue.submit([encoder.finish()]);
        counters.submissions += 1;
        gpu.check()
    }

    /// Waits for what the last submission copied.
    async fn read(&mut self, want: Want) -> Result<()> {
        let gpu = &*self.model.gpu;
        let (buffer, size) = match want {
            Want::Nothing => return Ok(()),
            Want::Best => (&self.read_few, 8),
            Want::Top(n) => (&self.read_few, 8 * n as u64),
            Want::Logits => (&self.read_logits, self.sizes.logits()),
        };
        gpu.read(buffer, size, &mut self.bytes).await?;
        self.counters.read_bytes += size;
        let words = self.bytes.as_chunks::<4>().0;
        if want == Want::Logits {
            self.logits.clear();
            self.logits.extend(words.iter().map(|b| f32::from_le_bytes(*b)));
        } else {
            self.chosen.clear();
            let pairs = words.as_chunks::<2>().0.iter().map(|pair| pair.map(u32::from_le_bytes));
            self.chosen.extend(pairs.filter(|pair| pair[0] != 0).map(|[bits, id]| (id, unordered(bits))));
        }
        Ok(())
    }
}

/// The float whose bits the shaders have made to order as floats do.
fn unordered(bits: u32) -> f32 {
    f32::from_bits(if bits >> 31 == 1 { bits ^ 0x8000_0000 } else { !bits })
}

/// A product for one token and for several.
fn products(
    gpu: &Gpu,
    matrix: &Matrix,
    acts: &Acts,
    output: Output,
    into: &Buffer,
    stride: usize,
    step: &Buffer,
) -> [Vec<Kernel>; 2] {
    let product = |chunk| Product { form: matrix.form, cols: matrix.cols, chunk, acts, output, into, stride };
    let one = matrix.chunks.iter().map(|chunk| product(chunk).gemv(gpu)).collect();
    let several = matrix.chunks.iter().map(|chunk| product(chunk).gemm(gpu, step)).collect();
    [one, several]
}

/// The state of a device that must not be used after an error: callers may want to know why.
impl GpuSession {
    /// The error that made the GPU useless, if one did.
    pub fn failure(&self) -> Option<Error> {
        self.gpu().check().err()
    }
}
