//! One timeline over a model: a cache, working memory, and the position reached.
#![forbid(unsafe_code)]

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::qwen3::{BonsaiModel, Buffers, Pass};
use crate::arena::{Arena, Planner};
use crate::attention::full::spare_len;
use crate::cache::shift::Shift;
use crate::cache::{KvCache, KvCacheFp16, KvFormat, KvShape, QuantizedKvCache, Store};
use crate::error::{Error, Result};
use crate::kernel::{Isa, Q8Block, Tables, q8_blocks, tables, vectorize};
use crate::op::argmax;
use crate::pool::Pool;
use crate::quant::Layout;

/// Precision of the inputs of matrix products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Activations {
    /// 8-bit integers with one scale per 32: fast; noise of the order of 2% of the logits' spread.
    #[default]
    Int8,
    /// 32-bit floats: the model exactly as its weights say, slowly.
    F32,
}

/// What a session should be able to do; it decides how much memory it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// Positions to hold; more than the model's own context is cut to it.
    pub context: usize,
    /// How keys and values are kept.
    pub kv: KvFormat,
    /// Precision of activations.
    pub activations: Activations,
    /// Prompt tokens that go through the model together.
    pub batch: usize,
    /// Positions whose logits are computed together when logits at many positions are asked for.
    pub logit_rows: usize,
    /// Instruction set of the kernels.
    pub isa: Isa,
}

impl Default for SessionOptions {
    fn default() -> Self {
        SessionOptions {
            context: 4096,
            kv: KvFormat::default(),
            activations: Activations::default(),
            batch: 64,
            logit_rows: 1,
            isa: Isa::detect(),
        }
    }
}

/// Bytes of a session, all taken when it is made. The weights are not counted: they stay in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Keys and values.
    pub kv: usize,
    /// Activations of one batch.
    pub scratch: usize,
    /// Output scores.
    pub logits: usize,
    /// All of it, with alignment: what [`Session::new_in`] must be given.
    pub total: usize,
}

enum Memory<'m> {
    Owned(Vec<u8>),
    Borrowed(&'m mut [u8]),
    Given(Box<dyn AsMut<[u8]> + Send + Sync + 'm>),
}

impl Memory<'_> {
    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Memory::Owned(memory) => memory,
            Memory::Borrowed(memory) => memory,
            Memory::Given(memory) => (**memory).as_mut(),
        }
    }
}

/// A conversation's state: tokens go in, logits come out. All memory is taken when it is made, and no
/// call allocates.
pub struct Session<'m> {
    model: &'m BonsaiModel<'m>,
    options: SessionOptions,
    memory: Memory<'m>,
    position: usize,
}

impl core::fmt::Debug for Session<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Session").field("position", &self.position).field("options", &self.options).finish()
    }
}

impl BonsaiModel<'_> {
    /// The bytes a session with `options` takes.
    pub fn memory_plan(&self, options: &SessionOptions) -> Result<MemoryPlan> {
        let options = self.fitted(options)?;
        let mut planner = Planner::default();
        let shape = self.kv_shape(&options);
        let kv = match options.kv {
            KvFormat::F32 => KvCache::plan(shape, &mut planner),
            KvFormat::F16 => KvCacheFp16::plan(shape, &mut planner),
            KvFormat::Q8 => QuantizedKvCache::plan(shape, &mut planner),
        };
        let logits = planner.add::<f32>(options.logit_rows.saturating_mul(self.config().vocab_size));
        for len in self.buffer_lengths(&options) {
            planner.add::<f32>(len);
        }
        if options.activations == Activations::Int8 {
            planner.add::<Q8Block>(options.batch.saturating_mul(q8_blocks(self.widest_input())));
            planner.add::<Tables>(self.tables(&options));
        }
        let total = planner.total()?;
        Ok(MemoryPlan { kv, logits, scratch: total - kv - logits, total })
    }

    /// `options` checked and cut to what the model can use.
    fn fitted(&self, options: &SessionOptions) -> Result<SessionOptions> {
        for (what, value, max) in [
            ("context", options.context, usize::MAX),
            ("batch", options.batch, 1 << 16),
            ("logit rows", options.logit_rows, 1 << 16),
        ] {
            if value == 0 {
                return Err(Error::Option { what, found: 0.0, expected: "at least 1" });
            }
            if value > max {
                return Err(Error::Limit { what, found: value as u64, max: max as u64 });
            }
        }
        let context = options.context.min(self.config().max_context_length);
        let batch = options.batch.min(context);
        Ok(SessionOptions { context, batch, logit_rows: options.logit_rows.min(batch), ..*options })
    }

    fn kv_shape(&self, options: &SessionOptions) -> KvShape {
        let c = self.config();
        KvShape {
            layers: c.num_layers,
            kv_heads: c.num_kv_heads,
            capacity: options.context,
            head_dim: c.head_dim,
        }
    }

    /// Elements of the f32 buffers, in the order of [`Buffers`].
    fn buffer_lengths(&self, options: &SessionOptions) -> [usize; 11] {
        let (c, batch) = (self.config(), options.batch);
        let (h, q, kv, f) = (c.hidden_size, c.q_size(), c.kv_size(), c.intermediate_size);
        let spare = spare_len(&self.kv_shape(options), c.num_attention_heads, batch);
        let each = |n: usize| batch.saturating_mul(n);
        let half = each(c.head_dim / 2);
        [each(h), each(h.max(q)), each(q), each(kv), each(kv), each(f), each(f), each(h), half, half, spare]
    }

    /// Columns of the widest matrix input.
    fn widest_input(&self) -> usize {
        let c = self.config();
        c.hidden_size.max(c.q_size()).max(c.intermediate_size)
    }

    /// Tables that a batch, a part of one or a single token may have a use for.
    fn tables(&self, options: &SessionOptions) -> usize {
        if !self.weights().any_layout(Layout::Bytes) {
            return 0;
        }
        let wanted = |tokens| tables(options.isa, tokens, self.widest_input());
        (1..=options.batch.max(1)).map(wanted).max().unwrap_or(0)
    }
}

impl<'m> Session<'m> {
    /// Allocates the planned bytes.
    pub fn new(model: &'m BonsaiModel<'m>, options: &SessionOptions) -> Result<Self> {
        let total = model.memory_plan(options)?.total;
        // Most systems give zeros without touching them: a long context costs nothing before it is used.
        let memory = bytemuck::allocation::try_zeroed_vec(total)
            .map_err(|()| Error::Memory { need: total as u64, have: 0 })?;
        Ok(Session { model, options: model.fitted(options)?, memory: Memory::Owned(memory), position: 0 })
    }

    /// Uses `memory`, which must hold at least [`MemoryPlan::total`] bytes, at any alignment and with
    /// any content: static RAM on firmware, say.
    pub fn new_in(
        model: &'m BonsaiModel<'m>,
        options: &SessionOptions,
        memory: &'m mut [u8],
    ) -> Result<Self> {
        enough(model.memory_plan(options)?.total, memory)?;
        Ok(Session { model, options: model.fitted(options)?, memory: Memory::Borrowed(memory), position: 0 })
    }

    /// As [`Session::new_in`], with memory that the session keeps: what a host has mapped in large pages, say,
    /// which make a long context a third faster to read.
    pub fn with_memory(
        model: &'m BonsaiModel<'m>,
        options: &SessionOptions,
        mut memory: impl AsMut<[u8]> + Send + Sync + 'm,
    ) -> Result<Self> {
        enough(model.memory_plan(options)?.total, memory.as_mut())?;
        let memory = Memory::Given(Box::new(memory));
        Ok(Session { model, options: model.fitted(options)?, memory, position: 0 })
    }

    /// The model this session runs.
    pub fn model(&self) -> &'m BonsaiModel<'m> {
        self.model
    }

    /// The options in force.
    pub fn options(&self) -> &SessionOptions {
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

    /// Forgets everything after the first `len` tokens.
    pub fn truncate(&mut self, len: usize) -> Result<()> {
        if len > self.position {
            let expected = "at most the number of tokens seen";
            return Err(Error::Option { what: "truncated length", found: len as f64, expected });
        }
        self.position = len;
        Ok(())
    }

    /// Forgets the `drop` tokens behind the first `keep` and moves those behind them to the front, so that there is
    /// room for more: the first tokens stay, as attention needs them. Costs no computing of the model, but
    /// what it had understood of the forgotten tokens is still in the later ones. See
    /// [`Overflow`](crate::generate::Overflow) for when to do that, and the cache's `shift.rs` for what it does to
    /// keys.
    pub fn shift(&mut self, keep: usize, drop: usize) -> Result<()> {
        if keep.checked_add(drop).is_none_or(|end| end > self.position) {
            let expected = "with those kept at most the number of tokens seen";
            return Err(Error::Option { what: "dropped tokens", found: drop as f64, expected });
        }
        match self.options.kv {
            KvFormat::F32 => self.shift_in::<KvCache<'_>>(keep, drop)?,
            KvFormat::F16 => self.shift_in::<KvCacheFp16<'_>>(keep, drop)?,
            KvFormat::Q8 => self.shift_in::<QuantizedKvCache<'_>>(keep, drop)?,
        }
        self.position -= drop;
        Ok(())
    }

    fn shift_in<'s, C: Store<'s>>(&'s mut self, keep: usize, drop: usize) -> Result<()> {
        let (model, options) = (self.model, self.options);
        let mut arena = Arena::new(self.memory.bytes());
        let mut cache = C::new(model.kv_shape(&options), &mut arena)?;
        arena.take::<f32>(options.logit_rows * model.config().vocab_size)?;
        let Buffers { cos, sin, k, .. } = model.buffers(&options, &mut arena)?;
        let d = model.config().head_dim;
        let (cos, sin, key) = (&mut cos[..d / 2], &mut sin[..d / 2], &mut k[..d]);
        model.rope().angles_back(drop, cos, sin);
        let from = keep + drop..self.position;
        vectorize(options.isa, Shift { cache: &mut cache, from, by: drop, cos, sin, key });
        Ok(())
    }

    /// Takes `len` tokens as seen, with the keys and values that the session's memory already holds: to
    /// measure a long context without computing it, or to go on in memory that an equal session has left.
    pub fn assume(&mut self, len: usize) -> Result<()> {
        if len > self.capacity() {
            let (position, adding) = (self.position as u64, len.saturating_sub(self.position) as u64);
            return Err(Error::ContextFull { position, adding, capacity: self.capacity() as u64 });
        }
        self.position = len;
        Ok(())
    }

    /// Feeds one token; returns the logits `(vocab)` of what follows it.
    pub fn forward(&mut self, token: u32, pool: &dyn Pool) -> Result<&[f32]> {
        self.forward_prefill(&[token], pool)
    }

    /// Feeds `tokens` in batches; returns the logits `(vocab)` after the last of them. The head runs for
    /// that position only.
    pub fn forward_prefill(&mut self, tokens: &[u32], pool: &dyn Pool) -> Result<&[f32]> {
        self.check(tokens)?;
        let logits = self.run(tokens, pool, Wanted::Last, &mut |_, _| ())?;
        Ok(logits)
    }

    /// Feeds `tokens`; writes to `out` `(tokens)` the most likely next token after each of them: what a
    /// greedy decoder would have said, for checking a guessed continuation in one pass.
    pub fn forward_prefill_verify(&mut self, tokens: &[u32], pool: &dyn Pool, out: &mut [u32]) -> Result<()> {
        if out.len() != tokens.len() {
            let (expected, found) = (tokens.len() as u64, out.len() as u64);
            return Err(Error::Length { what: "verified tokens", expected, found });
        }
        let mut failed = None;
        self.forward_logits(tokens, pool, &mut |i, logits| match argmax(logits) {
            Ok(best) => out[i] = best,
            Err(error) => failed = Some(error),
        })?;
        failed.map_or(Ok(()), Err)
    }

    /// Feeds `tokens`; calls `sink(i, logits)` with the logits `(vocab)` after each of them, in order.
    pub fn forward_logits(
        &mut self,
        tokens: &[u32],
        pool: &dyn Pool,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<()> {
        self.check(tokens)?;
        self.run(tokens, pool, Wanted::All, sink).map(|_| ())
    }

    /// Feeds `tokens`; calls `sink(i, hidden)` with the final hidden state `(hidden)` at each of them, in
    /// order: the residual stream after the last norm, from which the head makes logits. The head does not run.
    pub fn forward_hidden(
        &mut self,
        tokens: &[u32],
        pool: &dyn Pool,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<()> {
        self.check(tokens)?;
        self.run(tokens, pool, Wanted::Hidden, sink).map(|_| ())
    }

    /// Bytes that [`Session::export`] writes now.
    pub fn export_len(&self) -> usize {
        let (shape, len) = (self.model.kv_shape(&self.options), self.position);
        match self.options.kv {
            KvFormat::F32 => KvCache::export_len(shape, len),
            KvFormat::F16 => KvCacheFp16::export_len(shape, len),
            KvFormat::Q8 => QuantizedKvCache::export_len(shape, len),
        }
    }

    /// Writes the keys and values of all tokens seen to `out`, which must be of [`Session::export_len`] bytes,
    /// for a session of any capacity over the same model and with the same [`KvFormat`] to go on from.
    pub fn export(&mut self, out: &mut [u8]) -> Result<()> {
        same_len("exported keys and values", self.export_len(), out.len())?;
        let (shape, len) = (self.model.kv_shape(&self.options), self.position);
        let mut arena = Arena::new(self.memory.bytes());
        match self.options.kv {
            KvFormat::F32 => export(KvCache::new(shape, &mut arena)?, len, out),
            KvFormat::F16 => export(KvCacheFp16::new(shape, &mut arena)?, len, out),
            KvFormat::Q8 => export(QuantizedKvCache::new(shape, &mut arena)?, len, out),
        }
        Ok(())
    }

    /// Goes on behind the `len` tokens whose keys and values are in `from`, as [`Session::export`] wrote them.
    /// What it held before is forgotten, also when this fails. Content is not checked: other bytes of the right
    /// number give another conversation, or nonsense.
    pub fn import(&mut self, len: usize, from: &[u8]) -> Result<()> {
        self.position = 0;
        self.assume(len)?;
        if let Err(error) = same_len("imported keys and values", self.export_len(), from.len()) {
            self.position = 0;
            return Err(error);
        }
        let shape = self.model.kv_shape(&self.options);
        let mut arena = Arena::new(self.memory.bytes());
        match self.options.kv {
            KvFormat::F32 => KvCache::new(shape, &mut arena)?.import(len, from),
            KvFormat::F16 => KvCacheFp16::new(shape, &mut arena)?.import(len, from),
            KvFormat::Q8 => QuantizedKvCache::new(shape, &mut arena)?.import(len, from),
        }
        Ok(())
    }

    fn check(&self, tokens: &[u32]) -> Result<()> {
        if tokens.is_empty() {
            return Err(Error::Length { what: "tokens", expected: 1, found: 0 });
        }
        if tokens.len() > self.capacity() - self.position {
            return Err(Error::ContextFull {
                position: self.position as u64,
                adding: tokens.len() as u64,
                capacity: self.capacity() as u64,
            });
        }
        self.model.check_tokens(tokens)
    }

    fn run<'s>(
        &'s mut self,
        tokens: &[u32],
        pool: &dyn Pool,
        wanted: Wanted,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<&'s [f32]> {
        match self.options.kv {
            KvFormat::F32 => self.run_with::<KvCache<'s>>(tokens, pool, wanted, sink),
            KvFormat::F16 => self.run_with::<KvCacheFp16<'s>>(tokens, pool, wanted, sink),
            KvFormat::Q8 => self.run_with::<QuantizedKvCache<'s>>(tokens, pool, wanted, sink),
        }
    }

    fn run_with<'s, C: Store<'s>>(
        &'s mut self,
        tokens: &[u32],
        pool: &dyn Pool,
        wanted: Wanted,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<&'s [f32]> {
        let (model, options) = (self.model, self.options);
        let vocab = model.config().vocab_size;
        let mut arena = Arena::new(self.memory.bytes());
        let mut cache = C::new(model.kv_shape(&options), &mut arena)?;
        let logits = arena.take::<f32>(options.logit_rows * vocab)?;
        let mut buffers = model.buffers(&options, &mut arena)?;

        let mut done = 0;
        for chunk in tokens.chunks(options.batch) {
            let pass = Pass { isa: options.isa, pool, start: self.position };
            model.forward_blocks(chunk, &mut cache, &mut buffers, &pass)?;
            self.position += chunk.len();
            done += chunk.len();
            match wanted {
                Wanted::Last if done < tokens.len() => {}
                Wanted::Last => model.head(chunk.len() - 1..chunk.len(), &mut buffers, logits, &pass)?,
                Wanted::Hidden => {
                    let h = model.config().hidden_size;
                    let rows = model.normed(0..chunk.len(), &mut buffers, &pass);
                    for (row, hidden) in rows.chunks_exact(h).enumerate() {
                        sink(done - chunk.len() + row, hidden);
                    }
                }
                Wanted::All => {
                    for first in (0..chunk.len()).step_by(options.logit_rows) {
                        let rows = first..chunk.len().min(first + options.logit_rows);
                        model.head(rows.clone(), &mut buffers, logits, &pass)?;
                        for (row, logits) in rows.zip(logits.chunks_exact(vocab)) {
                            sink(done - chunk.len() + row, logits);
                        }
                    }
                }
            }
        }
        Ok(&logits[..vocab])
    }
}

fn export<'b>(mut cache: impl Store<'b>, len: usize, out: &mut [u8]) {
    cache.clear_rest(len);
    cache.export(len, out);
}

fn same_len(what: &'static str, expected: usize, found: usize) -> Result<()> {
    let (expected, found) = (expected as u64, found as u64);
    if expected == found { Ok(()) } else { Err(Error::Length { what, expected, found }) }
}

fn enough(need: usize, memory: &[u8]) -> Result<()> {
    let (need, have) = (need as u64, memory.len() as u64);
    if have < need { Err(Error::Memory { need, have }) } else { Ok(()) }
}

#[derive(Clone, Copy)]
enum Wanted {
    /// Logits after the last token.
    Last,
    /// Logits after every token.
    All,
    /// The final hidden state at every token.
    Hidden,
}

impl BonsaiModel<'_> {
    fn buffers<'b>(&self, options: &SessionOptions, arena: &mut Arena<'b>) -> Result<Buffers<'b>> {
        let [x, input, q, k, v, gate, up, delta, cos, sin, spare] = self.buffer_lengths(options);
        Ok(Buffers {
            x: arena.take(x)?,
            input: arena.take(input)?,
            q: arena.take(q)?,
            k: arena.take(k)?,
            v: arena.take(v)?,
            gate: arena.take(gate)?,
            up: arena.take(up)?,
            delta: arena.take(delta)?,
            cos: arena.take(cos)?,
            sin: arena.take(sin)?,
            spare: arena.take(spare)?,
            q8: match options.activations {
                Activations::Int8 => Some(arena.take(options.batch * q8_blocks(self.widest_input()))?),
                Activations::F32 => None,
            },
            tables: match options.activations {
                Activations::Int8 => arena.take(self.tables(options))?,
                Activations::F32 => &mut [],
            },
        })
    }
}
