//! The CPU as a [`Device`].
#![forbid(unsafe_code)]

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::future::Future;

use super::cache::{self, CpuCache};
use super::context::Context;
use super::forward;
use super::matmul::Lookups;
use super::op::readout::read_out;
use super::op::shift::Shift;
use super::options::{CpuOptions, MemoryPlan};
use super::recurrent::Recurrent;
use super::scratch::{CurrentRows, Scratch, ScratchPlan};
use super::simd::dispatch;
use super::weights::CpuWeights;
use crate::arena::{Arena, Planner};
use crate::attention::AttentionPattern;
#[cfg(all(target_has_atomic = "ptr", feature = "serving"))]
use crate::cache::PagePool;
use crate::cache::{KvShape, presence, with_codec};
use crate::collective::Collective;
use crate::device::{
    Activations, Batch, BlockingDevice, Device, SessionOptions, Sink, check_run, copy_cache, ready,
};
use crate::error::{Error, Name, Result};
use crate::memory::Memory;
use crate::model::program::Op;
use crate::model::weights::ModelBytes;
use crate::model::{BonsaiModel, ModelConfig, Program};
use crate::pool::Pool;
use crate::rows::Rows;
use crate::session::Session;
use crate::sync::Arc;

/// A model on the CPU: its weights, scratch memory for a batch, and the thread pool. No computing call
/// allocates.
pub struct Cpu<'m, B> {
    weights: Arc<CpuWeights<B>>,
    options: CpuOptions,
    plan: ScratchPlan,
    memory: Memory<'m>,
    pool: Box<dyn Pool + Send + 'm>,
    /// The row of the logits that were read out last, if they are still in the buffer.
    last: Option<usize>,
    /// Counts pages, from the first cache on that has some.
    #[cfg(all(target_has_atomic = "ptr", feature = "serving"))]
    pages: Option<PagePool>,
    /// The other ranks of a split program.
    collective: Option<Arc<dyn Collective>>,
    #[cfg(feature = "taps")]
    tap: Option<Arc<dyn super::tap::Tap>>,
}

impl<B> core::fmt::Debug for Cpu<'_, B> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Cpu").field("options", &self.options).finish_non_exhaustive()
    }
}

impl<B: ModelBytes> CpuWeights<B> {
    /// The memory of a device with `options` and a sequence with `session`.
    ///
    /// # Errors
    /// For an option outside its range; [`Error::Memory`] if the size exceeds the address space.
    pub fn memory_plan(&self, options: &CpuOptions, session: &SessionOptions) -> Result<MemoryPlan> {
        let (config, luts) = (self.model().config(), self.lookups(options.isa));
        MemoryPlan::new(config, self.program(), (luts, self.window()?), options, session)
    }

    /// As [`CpuWeights::memory_plan`], if the weights were repacked for `options.isa`, and expanded unless `compact`.
    ///
    /// # Errors
    /// As there.
    pub fn repacked_memory_plan(
        &self,
        options: &CpuOptions,
        session: &SessionOptions,
        compact: bool,
    ) -> Result<MemoryPlan> {
        let luts = self.repacked_lookups(options.isa, compact);
        MemoryPlan::new(self.model().config(), self.program(), (luts, self.window()?), options, session)
    }
}

impl MemoryPlan {
    /// Plans memory for any model with this configuration, which is checked. Lookup tables are included,
    /// whether its weights need them or not.
    ///
    /// # Errors
    /// As [`CpuWeights::memory_plan`].
    pub fn for_config(config: &ModelConfig, options: &CpuOptions, session: &SessionOptions) -> Result<Self> {
        MemoryPlan::new(config, &config.program(), (Lookups::Always, 0), options, session)
    }

    fn new(
        config: &ModelConfig,
        program: &Program,
        (luts, window): (Lookups, usize),
        options: &CpuOptions,
        session: &SessionOptions,
    ) -> Result<MemoryPlan> {
        let options = options.fitted(config)?;
        let plan = ScratchPlan::new(program, &options, luts, window)?;
        let mut planner = Planner::default();
        let logits = plan.plan(&mut planner);
        let device = planner.total()?;
        let shape = shape(program, &options, session)?;
        let (kv, session) = cache::plan(session.kv, shape, program.routed_layers.len())?;
        let too_large = error!(Memory { need: u64::MAX, have: isize::MAX as u64 });
        let state = Recurrent::bytes(program.state_len, kv).ok_or(too_large)?;
        let session = session.checked_add(state).ok_or(too_large)?;
        let total = device.checked_add(session).ok_or(too_large)?;
        Ok(MemoryPlan { kv, logits, scratch: total - kv - logits, total, device, session })
    }
}

/// The shape of a cache for a sequence of a device.
fn shape(program: &Program, options: &CpuOptions, session: &SessionOptions) -> Result<KvShape> {
    if session.context == 0 {
        return Err(error!(Option { what: "context", found: 0.0, expected: "at least 1" }));
    }
    if !session.kv.is_available() {
        let (key, found) = (Name::new("cache format"), Name::new(session.kv.name()));
        return Err(error!(Unsupported { key, found, expected: "q8, the only format of this build" }));
    }
    session.attention.check()?;
    // They count positions of the cache, which lacks the tokens that skip a block.
    if session.attention != AttentionPattern::Full && !program.routed_layers.is_empty() {
        let (key, found) = (Name::new("attention"), Name::new("a pattern"));
        let expected = "full, in a model whose tokens skip blocks (blk.N.depth_router.weight)";
        return Err(error!(Unsupported { key, found, expected }));
    }
    Ok(KvShape {
        layers: program.layers,
        kv_heads: program.heads.kv,
        capacity: session.context.min(options.context),
        head_dim: program.heads.dim,
    })
}

impl<'m, B: ModelBytes> Cpu<'m, B> {
    /// A device that reads the weights of `model` in the layout of the file.
    ///
    /// # Errors
    /// For an option outside its range; [`Error::Memory`].
    pub fn new(model: BonsaiModel<B>, options: &CpuOptions, pool: impl Pool + Send + 'm) -> Result<Self> {
        Self::with_weights(Arc::new(CpuWeights::new(model)?), options, pool)
    }

    /// A device that first repacks the weights in place into the layout its kernels read fastest (if
    /// activations are integers). Results are the same.
    ///
    /// # Errors
    /// As [`Cpu::new`].
    pub fn repacked(
        model: BonsaiModel<B>,
        options: &CpuOptions,
        pool: impl Pool + Send + 'm,
    ) -> Result<Self> {
        let weights = match options.activations {
            Activations::Int8 => CpuWeights::repack(model, options.isa, &pool)?,
            Activations::F32 => CpuWeights::new(model)?,
        };
        Self::with_weights(Arc::new(weights), options, pool)
    }

    /// A device over weights that can be shared with other devices.
    ///
    /// # Errors
    /// As [`Cpu::new`].
    pub fn with_weights(
        weights: Arc<CpuWeights<B>>,
        options: &CpuOptions,
        pool: impl Pool + Send + 'm,
    ) -> Result<Self> {
        let (options, plan, bytes) = Self::plan(&weights, options)?;
        Ok(Cpu {
            weights,
            options,
            plan,
            memory: Memory::zeroed(bytes)?,
            pool: Box::new(pool),
            last: None,
            #[cfg(all(target_has_atomic = "ptr", feature = "serving"))]
            pages: None,
            collective: None,
            #[cfg(feature = "taps")]
            tap: None,
        })
    }

    /// As [`Cpu::with_weights`], in `memory` of at least [`MemoryPlan::device`] bytes, at any alignment and
    /// with any content, such as static RAM on firmware.
    ///
    /// # Errors
    /// As [`Cpu::with_weights`].
    pub fn new_in(
        weights: Arc<CpuWeights<B>>,
        options: &CpuOptions,
        pool: impl Pool + Send + 'm,
        memory: impl AsMut<[u8]> + Send + Sync + 'm,
    ) -> Result<Self> {
        let (options, plan, bytes) = Self::plan(&weights, options)?;
        Ok(Cpu {
            weights,
            options,
            plan,
            memory: Memory::custom(bytes, memory)?,
            pool: Box::new(pool),
            last: None,
            #[cfg(all(target_has_atomic = "ptr", feature = "serving"))]
            pages: None,
            collective: None,
            #[cfg(feature = "taps")]
            tap: None,
        })
    }

    /// Runs a split program as one rank of a group.
    pub fn in_group(mut self, group: Arc<dyn Collective>) -> Self {
        self.collective = Some(group);
        self
    }

    /// Leaves the group: other ranks then know that this one will not answer.
    pub fn leave_group(&mut self) {
        self.collective = None;
    }

    /// Shows `tap` each product from now on.
    #[cfg(feature = "taps")]
    pub fn set_tap(&mut self, tap: Arc<dyn super::tap::Tap>) {
        self.tap = Some(tap);
    }

    fn plan(weights: &CpuWeights<B>, options: &CpuOptions) -> Result<(CpuOptions, ScratchPlan, usize)> {
        let options = options.fitted(weights.model().config())?;
        let (luts, window) = (weights.lookups(options.isa), weights.window()?);
        let plan = ScratchPlan::new(weights.program(), &options, luts, window)?;
        let mut planner = Planner::default();
        plan.plan(&mut planner);
        Ok((options, plan, planner.total()?))
    }

    /// A session in `memory` of at least [`MemoryPlan::session`] bytes, such as large pages, which make a
    /// long context a third faster to read.
    ///
    /// # Errors
    /// For an option outside its range; [`Error::Memory`] for too few bytes.
    pub fn session_in(
        &self,
        options: &SessionOptions,
        memory: impl AsMut<[u8]> + Send + Sync + 'm,
    ) -> Result<Session<Self>> {
        Ok(Session::over(self, self.cache_in(options, memory)?))
    }

    /// The keys and values of a session, as in [`Cpu::session_in`].
    ///
    /// # Errors
    /// As [`Cpu::session_in`].
    pub fn cache_in(
        &self,
        options: &SessionOptions,
        memory: impl AsMut<[u8]> + Send + Sync + 'm,
    ) -> Result<CpuCache<'m>> {
        let shape = shape(self.program(), &self.options, options)?;
        let mut cache = CpuCache::new_in(options, shape, &self.program().routed_layers, memory)?;
        self.add_state(&mut cache)?;
        Ok(cache)
    }

    /// The weights.
    pub fn weights(&self) -> &Arc<CpuWeights<B>> {
        &self.weights
    }

    /// The model.
    pub fn model(&self) -> &BonsaiModel<B> {
        self.weights.model()
    }

    /// The effective options.
    pub fn options(&self) -> &CpuOptions {
        &self.options
    }

    /// The memory of this device and a sequence with `session`.
    ///
    /// # Errors
    /// As [`CpuWeights::memory_plan`].
    pub fn memory_plan(&self, session: &SessionOptions) -> Result<MemoryPlan> {
        self.weights.memory_plan(&self.options, session)
    }

    /// Memory for what operations carry from row to row, if there are any that do. Refuses patterns that a layer's window cannot be
    /// combined with.
    fn add_state(&self, cache: &mut CpuCache<'_>) -> Result<()> {
        if !cfg!(feature = "variants") {
            return Ok(());
        }
        for op in &self.program().body {
            if let Op::Attention { window, .. } = op {
                cache.attention.within(*window)?;
            }
        }
        let state_len = self.program().state_len;
        if state_len > 0 {
            let kv = cache::plan(cache.format, cache.shape, cache.routed.len())?.0;
            cache.recurrent = Recurrent::new(state_len, kv)?;
        }
        Ok(())
    }

    fn compute(
        &mut self,
        batch: &Batch<'_>,
        caches: &mut [&mut CpuCache<'m>],
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        if batch.len() != caches.len() {
            let (expected, found) = (batch.len() as u64, caches.len() as u64);
            return Err(error!(Length { what: "caches of a batch", expected, found }));
        }
        for (run, cache) in batch.iter().zip(caches.iter()) {
            let shape = shape(self.program(), &self.options, &cache.options())?;
            if cache.shape != shape || cache.routed != self.program().routed_layers {
                return Err(error!(Device { problem: "the cache was made by another one" }));
            }
            check_run(run, cache.shape.capacity, self.program().vocab())?;
            cache.recurrent.check(run.position)?;
        }
        for (run, cache) in batch.iter().zip(caches.iter_mut()) {
            cache.own(run.position..run.position + run.tokens.len(), run.position)?;
            cache.recurrent.begin(run.tokens.len());
        }
        let mut scratch = self.plan.take(&mut Arena::new(self.memory.bytes()))?;
        let collective = self.collective.as_deref();
        let context = Context {
            weights: &*self.weights,
            isa: self.options.isa,
            pool: &*self.pool,
            collective,
            #[cfg(feature = "taps")]
            tap: self.tap.as_deref(),
        };
        let mut finish = |rows: Rows<'_>, caches: &mut [&mut CpuCache<'m>], scratch: &mut Scratch<'_>| {
            forward::tail(&context, &rows, caches, scratch)?;
            read_out(&context, &rows, scratch, sink, &mut self.last)
        };
        // All stages of a pipeline are busy: as many parts are on their way as there are stages.
        let most = self.weights.program().stages;
        let (mut unfinished, mut begun) = (Rows::parts(batch, self.options.batch), 0);
        for rows in Rows::parts(batch, self.options.batch) {
            forward::body(&context, &rows, caches, &mut scratch)?;
            for segment in rows.segments() {
                let end = segment.position + segment.tokens.len();
                caches[segment.sequence].recurrent.advance(end, segment.tokens.len());
            }
            begun += 1;
            if begun == most
                && let Some(rows) = unfinished.next()
            {
                begun -= 1;
                finish(rows, caches, &mut scratch)?;
            }
        }
        unfinished.try_for_each(|rows| finish(rows, caches, &mut scratch))
    }
}

impl<'m, B: ModelBytes> Device for Cpu<'m, B> {
    type Cache = CpuCache<'m>;
    type Error = Error;

    fn config(&self) -> &ModelConfig {
        self.model().config()
    }

    fn program(&self) -> &Program {
        self.model().program()
    }

    fn batch(&self) -> usize {
        self.options.batch
    }

    async fn cache(&mut self, options: &SessionOptions) -> Result<CpuCache<'m>> {
        let shape = shape(self.program(), &self.options, options)?;
        let mut cache = CpuCache::new(options, shape, &self.program().routed_layers)?;
        self.add_state(&mut cache)?;
        Ok(cache)
    }

    #[cfg(all(target_has_atomic = "ptr", feature = "serving"))]
    async fn paged_cache(&mut self, options: &SessionOptions) -> Result<CpuCache<'m>> {
        let shape = shape(self.program(), &self.options, options)?;
        let routed = &self.weights.model().program().routed_layers;
        let pool = self.pages.get_or_insert_with(PagePool::default);
        let mut cache = CpuCache::paged(options, shape, routed, pool)?;
        self.add_state(&mut cache)?;
        Ok(cache)
    }

    async fn fork(&mut self, cache: &mut CpuCache<'m>, len: usize, seen: usize) -> Result<CpuCache<'m>> {
        match cache.fork(len)? {
            Some(fork) => Ok(fork),
            None => {
                let mut copy = copy_cache(self, cache, seen).await?;
                copy.recurrent = cache.recurrent.copy()?;
                Ok(copy)
            }
        }
    }

    #[cfg(all(target_has_atomic = "ptr", feature = "serving"))]
    fn page_bytes(&self) -> Option<usize> {
        Some(self.pages.as_ref().map_or(0, PagePool::bytes))
    }

    fn cache_options(&self, cache: &CpuCache<'m>) -> SessionOptions {
        cache.options()
    }

    async fn run(
        &mut self,
        batch: &Batch<'_>,
        caches: &mut [&mut CpuCache<'m>],
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        self.compute(batch, caches, sink)
    }

    fn logits(&mut self) -> &[f32] {
        let (vocab, Some(last)) = (self.program().vocab(), self.last) else { return &[] };
        let logits: &[f32] = Arena::new(self.memory.bytes()).take((last + 1) * vocab).map_or(&[], |all| all);
        logits.get(last * vocab..).unwrap_or(&[])
    }

    fn state_bytes(&self, cache: &CpuCache<'m>) -> usize {
        cache.recurrent.held_bytes()
    }

    fn rewind(&mut self, cache: &mut CpuCache<'m>, len: usize) -> Result<usize> {
        Ok(cache.recurrent.rewind(len))
    }

    fn shift(&mut self, cache: &mut CpuCache<'m>, len: usize, keep: usize, drop: usize) -> Result<usize> {
        if self.program().state_len > 0 {
            // A state does not forget tokens.
            return Ok(keep);
        }
        let (program, isa) = (self.weights.model().program(), self.options.isa);
        let (pairing, d) = (program.pairing, program.heads.dim);
        // A batch has at least one row of each.
        let Scratch { current: CurrentRows { cos, sin, .. }, key, .. } =
            self.plan.take(&mut Arena::new(self.memory.bytes()))?;
        cache.own(keep..len, len)?;
        for layer in 0..program.layers {
            let [to, from, end] = [keep, keep + drop, len].map(|position| cache.stored(layer, position));
            let (to, from, key) = (to?, from?..end?, &mut *key);
            let by = from.start - to;
            let rope = program
                .rotation(layer)
                .ok_or(error!(Device { problem: "a layer of the cache without keys" }))?;
            let pairs = rope.speeds().len().min(d / 2);
            let (cos, sin) = (&mut cos[..pairs], &mut sin[..pairs]);
            rope.angles_back(drop, cos, sin);
            let (cos, sin) = (&*cos, &*sin);
            with_codec!(cache.format, C => {
                let mut cache = cache.storage::<C>()?;
                dispatch(isa, Shift { cache: &mut cache, layer, from, by, pairing, cos, sin, key });
            });
            if let Some(bits) = cache.present(layer)? {
                (keep + drop..len).for_each(|at| presence::set(bits, at - drop, presence::get(bits, at)));
            }
        }
        Ok(len - drop)
    }

    fn export_len(&self, cache: &CpuCache<'m>, len: usize) -> usize {
        cache.export_len(len)
    }

    async fn export(&mut self, cache: &mut CpuCache<'m>, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let (start, need) = (out.len(), cache.export_len(len));
        out.try_reserve(need).map_err(|_| error!(Memory { need: need as u64, have: 0 }))?;
        out.resize(start + need, 0);
        cache.export(len, &mut out[start..])
    }

    fn import(&mut self, cache: &mut CpuCache<'m>, len: usize, from: &[u8]) -> Result<()> {
        cache.import(len, from)
    }
}

impl<B: ModelBytes> BlockingDevice for Cpu<'_, B> {
    fn wait<F: Future<Output = Result<T>>, T>(future: F) -> Result<T> {
        // Nothing on the CPU waits.
        ready(future).unwrap_or(Err(error!(Device { problem: "it did not answer" })))
    }
}
