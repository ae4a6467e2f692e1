//! A GPU as a [`Device`].

use crate::cache::{Cache, KvShape};
use crate::error::{Error, Failure, Result};
use crate::outputs::{Kept, Outputs};
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use shohin_core::device::{
    Batch, Readout, ScratchOptions, SessionOptions, Sink, check_caches, check_count, check_run,
};
use shohin_core::model::{ModelConfig, Program};
use shohin_core::rows::{ReadoutGroup, Rows, Segment};
use shohin_core::{Device, Error as CoreError};

/// A model on one kind of GPU: its weights, scratch memory for a batch, and the kernels of its program.
pub trait Backend: Sized {
    /// Keys and values of one sequence, and what belongs to them.
    type Memory;
    /// Errors that only this kind of GPU has.
    type Failure: Failure;

    /// A number from [`new_id`]. Caches that were made under another one are refused.
    fn id(&self) -> u64;

    /// The model's configuration.
    fn config(&self) -> &ModelConfig;

    /// The model's forward pass.
    fn program(&self) -> &Program;

    /// The effective options.
    fn options(&self) -> &ScratchOptions;

    /// Maximum number of tokens of [`Readout::Top`]; for more, all logits are read.
    fn top(&self) -> usize {
        0
    }

    /// Checks whether anything can be computed.
    ///
    /// # Errors
    /// The reason why not.
    fn check(&self) -> Result<(), Self::Failure> {
        Ok(())
    }

    /// Allocates memory for the keys and values of a sequence.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; those of the backend.
    fn allocate(&mut self, shape: &KvShape) -> impl Future<Output = Result<Self::Memory, Self::Failure>>;

    /// Appends these spans of the keys of the first layer to `out`, then those of its values, and so on.
    ///
    /// # Errors
    /// Those of the backend.
    fn copy_from(
        &self,
        memory: &Self::Memory,
        spans: &[Range<u64>],
        out: &mut Vec<u8>,
    ) -> impl Future<Output = Result<(), Self::Failure>>;

    /// Writes `bytes` at byte `at` of a part: `2 * layer` for keys, the next one for values.
    ///
    /// # Errors
    /// Those of the backend.
    fn copy_into(
        &self,
        memory: &Self::Memory,
        part: usize,
        at: u64,
        bytes: &[u8],
    ) -> Result<(), Self::Failure>;

    /// Computes `segments` of the sequences in `caches`, then what the first of `groups` reads out of their rows. Without
    /// segments the rows are those of the last ones.
    ///
    /// # Errors
    /// Those of the backend.
    fn submit(
        &mut self,
        segments: &[Segment<'_>],
        caches: &[&mut Cache<Self::Memory>],
        groups: &[ReadoutGroup],
    ) -> Result<(), Self::Failure>;

    /// Waits for the output of the last [`Backend::submit`], which had `group` as the first. The output has
    /// [`row_bytes`](crate::row_bytes) for each row. Returns whether there is any: all ranks of a split model compute it,
    /// but only the first passes it on.
    ///
    /// # Errors
    /// Those of the backend.
    fn read(
        &mut self,
        group: &ReadoutGroup,
        bytes: &mut [u8],
    ) -> impl Future<Output = Result<bool, Self::Failure>>;

    /// Computes `batch`, part by part.
    ///
    /// # Errors
    /// Those of the backend.
    fn run(
        &mut self,
        batch: &Batch<'_>,
        caches: &[&mut Cache<Self::Memory>],
        out: &mut Outputs<'_>,
    ) -> impl Future<Output = Result<(), Self::Failure>> {
        run_rows(self, batch, caches, out)
    }
}

/// A number that is unique in the process.
pub fn new_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The outputs to read from `rows`, in order.
fn groups<B: Backend>(backend: &B, rows: Rows<'_>) -> Vec<ReadoutGroup> {
    let ScratchOptions { batch, logit_rows, .. } = *backend.options();
    rows.groups(|readout| match readout {
        Readout::Top(top) if (1..=backend.top()).contains(&top) => (readout, 1),
        Readout::Logits | Readout::Top(_) => (Readout::Logits, logit_rows),
        Readout::Best => (readout, logit_rows),
        Readout::Hidden => (readout, batch),
    })
}

/// Passes on what was computed for `group`.
async fn read<B: Backend>(
    backend: &mut B,
    group: &ReadoutGroup,
    out: &mut Outputs<'_>,
) -> Result<(), B::Failure> {
    let bytes = out.bytes(backend.program(), group);
    if backend.read(group, bytes).await? {
        out.pass(group);
    }
    Ok(())
}

/// Computes `batch`, part by part: the usual [`Backend::run`].
///
/// # Errors
/// Those of the backend.
pub async fn run_rows<B: Backend>(
    backend: &mut B,
    batch: &Batch<'_>,
    caches: &[&mut Cache<B::Memory>],
    out: &mut Outputs<'_>,
) -> Result<(), B::Failure> {
    for rows in Rows::parts(batch, backend.options().batch) {
        let segments: Vec<Segment<'_>> = rows.segments().collect();
        let groups = groups(backend, rows);
        backend.submit(&segments, caches, &groups)?;
        // The first group is a part of that.
        for (i, group) in groups.iter().enumerate() {
            if i > 0 {
                backend.submit(&[], caches, &groups[i..])?;
            }
            read(backend, group, out).await?;
        }
    }
    Ok(())
}

/// Reads out `rows`, which were computed last.
///
/// # Errors
/// Those of the backend.
pub async fn read_out<B: Backend>(
    backend: &mut B,
    rows: Rows<'_>,
    out: &mut Outputs<'_>,
) -> Result<(), B::Failure> {
    let groups = groups(backend, rows);
    for (i, group) in groups.iter().enumerate() {
        backend.submit(&[], &[], &groups[i..])?;
        read(backend, group, out).await?;
    }
    Ok(())
}

/// A model on a GPU, which runs any number of sequences.
pub struct Accelerator<B: Backend> {
    backend: B,
    kept: Kept,
}

impl<B: Backend> core::fmt::Debug for Accelerator<B> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Accelerator").field("options", self.options()).finish_non_exhaustive()
    }
}

impl<B: Backend> Accelerator<B> {
    /// The device over a backend.
    pub fn new(backend: B) -> Accelerator<B> {
        Accelerator { backend, kept: Kept::default() }
    }

    /// The effective options.
    pub fn options(&self) -> &ScratchOptions {
        self.backend.options()
    }

    /// What only this kind of GPU has.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// What only this kind of GPU has.
    pub fn backend_mut(&mut self) -> &mut B {
        &mut self.backend
    }
}

impl<B: Backend> Device for Accelerator<B> {
    type Cache = Cache<B::Memory>;
    type Error = Error<B::Failure>;

    fn config(&self) -> &ModelConfig {
        self.backend.config()
    }

    fn program(&self) -> &Program {
        self.backend.program()
    }

    fn batch(&self) -> usize {
        self.options().batch
    }

    async fn cache(&mut self, options: &SessionOptions) -> Result<Cache<B::Memory>, B::Failure> {
        check_count("context", options.context, usize::MAX)?;
        options.attention.check()?;
        let options = SessionOptions { context: options.context.min(self.options().context), ..*options };
        let shape = KvShape::new(self.backend.program(), &options);
        Ok(Cache { device: self.backend.id(), shape, memory: self.backend.allocate(&shape).await? })
    }

    fn cache_options(&self, cache: &Cache<B::Memory>) -> SessionOptions {
        *cache.options()
    }

    async fn run(
        &mut self,
        batch: &Batch<'_>,
        caches: &mut [&mut Cache<B::Memory>],
        sink: &mut Sink<'_>,
    ) -> Result<(), B::Failure> {
        self.backend.check()?;
        check_caches(batch, caches.iter().map(|cache| cache.device), self.backend.id())?;
        for (run, cache) in batch.iter().zip(caches.iter()) {
            check_run(run, cache.options().context, self.backend.program().vocab())?;
        }
        self.backend.run(batch, caches, &mut Outputs { kept: &mut self.kept, sink }).await
    }

    fn logits(&mut self) -> &[f32] {
        &self.kept.logits
    }

    /// Keys cannot be moved yet.
    fn shift(
        &mut self,
        _: &mut Cache<B::Memory>,
        _: usize,
        keep: usize,
        _: usize,
    ) -> Result<usize, B::Failure> {
        Ok(keep)
    }

    fn export_len(&self, cache: &Cache<B::Memory>, len: usize) -> usize {
        cache.export_len(len)
    }

    async fn export(
        &mut self,
        cache: &mut Cache<B::Memory>,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), B::Failure> {
        let need = cache.export_len(len);
        out.try_reserve(need).map_err(|_| CoreError::Memory { need: need as u64, have: 0 })?;
        let spans: Vec<Range<u64>> = cache.shape.spans(len).collect();
        if spans.is_empty() { Ok(()) } else { self.backend.copy_from(&cache.memory, &spans, out).await }
    }

    fn import(&mut self, cache: &mut Cache<B::Memory>, len: usize, from: &[u8]) -> Result<(), B::Failure> {
        let (expected, found) = (cache.export_len(len) as u64, from.len() as u64);
        if expected != found {
            return Err(CoreError::Length { what: "imported keys and values", expected, found }.into());
        }
        let mut rest = from;
        for part in 0..2 * cache.shape.layers {
            for span in cache.shape.spans(len) {
                let (now, after) = rest.split_at((span.end - span.start) as usize);
                self.backend.copy_into(&cache.memory, part, span.start, now)?;
                rest = after;
            }
        }
        Ok(())
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl<B: Backend> shohin_core::device::BlockingDevice for Accelerator<B> {
    fn wait<F: Future<Output = Result<T, B::Failure>>, T>(future: F) -> Result<T, B::Failure> {
        pollster::block_on(future)
    }
}
