//! An NVIDIA GPU: scratch memory, and the launches of each operation.

mod backend;
mod group;
mod kernels;
mod launches;
mod rank;
mod shape;

use self::backend::ARGMAX_BLOCKS;
pub use self::backend::CudaBackend;
use self::kernels::THREADS;
use self::launches::{Epilogue, Products};
use self::rank::Rank;
use self::shape::Shape;
use crate::args::{ArgmaxArgs, CacheArgs};
use crate::driver::{Driver, Memory, Recording};
use crate::error::{CudaFailure, Result};
use crate::model::CudaModel;
use bytemuck::cast_slice;
use core::iter::repeat_n;
use core::num::NonZeroU32;
use core::ops::Range;
use shohin_accelerator::{Accelerator, Backend, Cache, KvShape, Outputs, new_id, run_rows};
use shohin_core::cache::FlatKv;
use shohin_core::device::{Batch, Readout, ScratchOptions, SessionOptions};
use shohin_core::model::program::Heads;
use shohin_core::model::{ModelConfig, Program};
use shohin_core::rows::{ReadoutGroup, Rows, Segment, tokens_and_angles};
use std::sync::Arc;

/// Rows of a prompt that a device computes together, unless told otherwise: weights are read once for all of them.
pub const BATCH: usize = 512;

/// A block that seeks the most likely token of a row has so many logits, as far as there are blocks.
const ARGMAX_LOGITS: usize = 2048;

/// Keys and values of one sequence.
pub struct CudaCache<D: Driver> {
    /// Unique in the process.
    id: u64,
    options: SessionOptions,
    /// `(layers, keys and values, bytes)`
    memory: Memory<D>,
    /// Of the keys or the values of a layer, a multiple of 256.
    bytes: usize,
}

impl<D: Driver> CudaCache<D> {
    /// Where a part begins: keys and values of each layer in turn.
    fn part(&self, part: usize) -> u64 {
        self.memory.address() + (part * self.bytes) as u64
    }

    fn args(&self, heads: Heads, window: Option<NonZeroU32>) -> Result<CacheArgs> {
        let FlatKv { bits, mantissa, .. } = FlatKv::of(self.options.kv);
        Ok(CacheArgs {
            keys: self.memory.address(),
            values: self.memory.address() + self.bytes as u64,
            layer: 2 * self.bytes as u64,
            capacity: self.options.context as u32,
            kv_heads: heads.kv as u32,
            dim: heads.dim as u32,
            bits: bits as u32,
            mantissa,
            pattern: self.options.attention.within(window)?.words(),
            unused: 0,
        })
    }
}

impl<D: Driver> core::fmt::Debug for CudaCache<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CudaCache").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Graphs of a device, which sequences that come and go in a server may need in turn.
const GRAPHS: usize = 64;

/// A model on an NVIDIA GPU.
pub type CudaDevice<D> = Accelerator<CudaBackend<D>>;

impl<D: Driver> CudaModel<D> {
    /// A device that runs the model.
    ///
    /// # Errors
    /// For an option outside its range, or [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn device(self: &Arc<Self>, options: &ScratchOptions) -> Result<CudaDevice<D>> {
        Ok(Accelerator::new(CudaBackend::new(self, options)?))
    }
}

impl<D: Driver> CudaBackend<D> {
    /// The model this device runs.
    pub fn model(&self) -> &Arc<CudaModel<D>> {
        &self.model
    }

    /// What `group` reads out, from the residual stream of its rows, which are on the GPU.
    fn head_of(&self, group: &ReadoutGroup) -> Result<()> {
        let only = if let [wanted] = &group.rows[..] { Some(wanted.row) } else { None };
        self.head(group.readout, group.rows.len(), only)
    }

    /// From the residual stream of the rows that are read out to what is read. `only`: the row of the batch, if it is a known one.
    fn head(&self, kind: Readout, rows: usize, only: Option<usize>) -> Result<()> {
        let program = self.model.program();
        let outputs = [(program.output, program.hidden)];
        let normalized = match only {
            Some(row) if kind != Readout::Hidden => self.normalized_head(&outputs, row)?,
            _ => None,
        };
        if normalized.is_none() {
            // A factor is one of the norm's weights.
            for op in &program.head {
                self.rmsnorm(op, rows, self.step.read_out())?;
            }
        }
        if kind == Readout::Hidden {
            return Ok(());
        }
        let logits = self.logits_memory.address();
        let products = Products::new(program.hidden, &outputs, Epilogue::Store, rows);
        let products = normalized.unwrap_or(products);
        match program.divided_vocab {
            None => self.products(products.at(logits))?,
            Some(_) => {
                self.products(products.at(self.in_rank()?.logits()))?;
                self.gather_logits(rows)?;
            }
        }
        if kind != Readout::Best {
            return Ok(());
        }
        let blocks = program.vocab().div_ceil(ARGMAX_LOGITS).clamp(1, ARGMAX_BLOCKS);
        let (best, found) = (self.best.address(), self.best_of_blocks.address());
        let ended = found + (8 * ARGMAX_BLOCKS * self.options.logit_rows) as u64;
        let args = ArgmaxArgs { logits, best, found, ended, vocab: program.vocab() as u32, unused: 0 };
        self.launch(self.kernels.argmax, [blocks, rows, 1], 2 * THREADS, args)
    }

    /// Writes tokens, positions, the rows that are read out first, angles, and where the caches of the rows are, if they are
    /// others than before.
    fn write_step(
        &mut self,
        segments: &[Segment<'_>],
        group: Option<&ReadoutGroup>,
        caches: &[&mut Cache<CudaCache<D>>],
    ) -> Result<()> {
        let cache_of = |s: &Segment<'_>| caches[s.sequence].memory();
        let ids = segments.iter().flat_map(|s| repeat_n(cache_of(s).id, s.tokens.len()));
        let mut known = self.cache_ids.iter();
        if !ids.clone().all(|id| known.next() == Some(&id)) {
            // If the write fails, nothing is known.
            self.cache_ids.clear();
            let heads = self.model.program().heads;
            for &window in &self.windows {
                let mut rows = Vec::new();
                for segment in segments {
                    rows.extend(repeat_n(cache_of(segment).args(heads, window)?, segment.tokens.len()));
                }
                self.driver().write(self.caches(window), cast_slice(&rows))?;
            }
            self.cache_ids.extend(ids);
        }
        let (mut words, angles) = tokens_and_angles(self.model.program(), segments);
        let rows = words.len();
        self.step.rows = rows;
        let positions = segments.iter().flat_map(|s| s.position..s.position + s.tokens.len());
        words.extend(positions.map(|position| position as u32));
        words.extend(group.iter().flat_map(|group| &group.rows).map(|wanted| wanted.row as u32));
        words.resize(3 * rows, 0);
        words.extend(angles.iter().map(|angle| angle.to_bits()));
        self.driver().write(self.step.tokens(), cast_slice(&words))
    }

    /// A token of each of some sequences: one graph, recorded the first time.
    fn single_tokens(&mut self, shape: Shape, group: Option<&ReadoutGroup>) -> Result<()> {
        let key = (shape, group.map(|group| (group.readout, group.rows.len())));
        match self.graphs.iter().position(|(known, _)| *known == key) {
            Some(at) => self.graphs[at..].rotate_left(1),
            None => {
                let recording = Recording::begin(self.driver())?;
                let launched = self.body(shape).and_then(|()| self.tail(shape));
                let only = (shape.rows == 1).then_some(0);
                let launched = launched
                    .and_then(|()| key.1.map_or(Ok(()), |(readout, rows)| self.head(readout, rows, only)));
                let graph = launched.and_then(|()| recording.end())?;
                if self.graphs.len() == GRAPHS {
                    self.graphs.remove(0);
                }
                self.graphs.push((key, graph));
            }
        }
        self.graphs.last().map_or(Ok(()), |(_, graph)| self.driver().replay(graph))
    }
}

impl<D: Driver> Backend for CudaBackend<D> {
    type Memory = CudaCache<D>;
    type Failure = CudaFailure;

    fn id(&self) -> u64 {
        self.id
    }

    fn config(&self) -> &ModelConfig {
        self.model.config()
    }

    fn program(&self) -> &Program {
        self.model.program()
    }

    fn options(&self) -> &ScratchOptions {
        &self.options
    }

    fn check(&self) -> Result<()> {
        if self.model.program().ranks > 1 { self.in_rank().map(|_| ()) } else { Ok(()) }
    }

    async fn allocate(&mut self, shape: &KvShape) -> Result<CudaCache<D>> {
        for window in &self.windows {
            shape.options.attention.within(*window)?;
        }
        let bytes = usize::try_from(shape.layer_bytes().next_multiple_of(256)).unwrap_or(usize::MAX);
        let memory = Memory::new(&self.model.driver, bytes.saturating_mul(2 * shape.layers))?;
        Ok(CudaCache { id: new_id(), options: shape.options, memory, bytes })
    }

    async fn copy_from(&self, cache: &CudaCache<D>, spans: &[Range<u64>], out: &mut Vec<u8>) -> Result<()> {
        for part in 0..2 * self.model.program().layers {
            for span in spans {
                let at = out.len();
                out.resize(at + (span.end - span.start) as usize, 0);
                self.driver().read(cache.part(part) + span.start, &mut out[at..])?;
            }
        }
        Ok(())
    }

    fn copy_into(&self, cache: &CudaCache<D>, part: usize, at: u64, bytes: &[u8]) -> Result<()> {
        self.driver().write(cache.part(part) + at, bytes)
    }

    fn submit(
        &mut self,
        segments: &[Segment<'_>],
        caches: &[&mut Cache<CudaCache<D>>],
        groups: &[ReadoutGroup],
    ) -> Result<()> {
        if segments.is_empty() {
            let Some(group) = groups.first() else { return Ok(()) };
            let rows: Vec<u32> = group.rows.iter().map(|wanted| wanted.row as u32).collect();
            self.driver().write(self.step.read_out(), cast_slice(&rows))?;
            return self.head_of(group);
        }
        self.wait()?;
        self.write_step(segments, groups.first(), caches)?;
        let shape = self.shape(segments);
        if shape.rows > segments.len() {
            self.body(shape)?;
            self.tail(shape)?;
        } else if let [group] = groups {
            return self.single_tokens(shape, Some(group));
        } else {
            self.single_tokens(shape, None)?;
        }
        groups.first().map_or(Ok(()), |group| self.head_of(group))
    }

    async fn read(&mut self, group: &ReadoutGroup, bytes: &mut [u8]) -> Result<bool> {
        self.wait()?;
        if self.rank.as_ref().is_some_and(|rank| !rank.is_first()) {
            return Ok(false);
        }
        match group.readout {
            Readout::Logits | Readout::Top(_) => self.driver().read(self.logits_memory.address(), bytes)?,
            Readout::Hidden => self.driver().read(self.floats(self.model.program().hidden), bytes)?,
            Readout::Best => {
                self.best.read(bytes)?;
                // The greatest of them was chosen, the lower token among equals: it is inverted.
                for pair in bytes.as_chunks_mut::<4>().0.as_chunks_mut::<2>().0 {
                    let [token, logit] = *pair;
                    *pair = [logit, token.map(|byte| !byte)];
                }
            }
        }
        Ok(true)
    }

    async fn run(
        &mut self,
        batch: &Batch<'_>,
        caches: &[&mut Cache<CudaCache<D>>],
        out: &mut Outputs<'_>,
    ) -> Result<()> {
        let Some(turn) = self.rank.as_ref().map(Rank::begin).transpose()? else {
            return run_rows(self, batch, caches, out).await;
        };
        let several = Rows::parts(batch, self.options.batch).nth(1).is_some();
        let done = match self.model.program().stages > 1 && several {
            true => self.pipeline(batch, caches, out).await,
            false => run_rows(self, batch, caches, out).await,
        };
        // What ranks after the first compute is complete before the next order.
        turn.end(done.and_then(|()| self.wait()))
    }
}
