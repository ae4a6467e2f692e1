//! The device that a model runs on, of any kind.

use crate::error::{self, Error};
use crate::memory;
use crate::split::{CpuRank, SplitDevice};
use shohin_core::cpu::MemoryPlan;
use shohin_core::device::{Batch, BlockingDevice, Device, SessionOptions, Sink, ready};
use shohin_core::model::{ModelConfig, Program};
use shohin_core::session::MAX_SEQUENCES;
use shohin_core::{Error as CoreError, Result, Session};
use std::any::Any;
use std::pin::pin;

/// A device of any kind: the host crates' one implementation of [`Device`] over all of them.
pub(crate) enum HostDevice {
    Cpu(CpuRank),
    Split(SplitDevice<CpuRank>),
    #[cfg(feature = "gpu")]
    Gpu(Box<shohin_gpu::GpuDevice>),
    #[cfg(feature = "cuda")]
    Cuda(Box<shohin_cuda::CudaDevice<shohin_cuda::Cuda>>),
    #[cfg(feature = "cuda")]
    CudaSplit(Box<SplitDevice<shohin_cuda::CudaDevice<shohin_cuda::Cuda>>>),
    #[cfg(all(feature = "metal", target_os = "macos"))]
    Metal(Box<shohin_metal::MetalDevice<shohin_metal::Metal>>),
}

/// The cache of a device of any kind. Boxed once per sequence; a call only compares its type.
pub(crate) struct HostCache(Box<dyn Any + Send>);

impl HostCache {
    fn of(cache: impl Any + Send) -> HostCache {
        HostCache(Box::new(cache))
    }

    /// The cache of a device of one kind.
    fn own<C: Any>(&mut self) -> Result<&mut C> {
        self.0.downcast_mut().ok_or(CoreError::Device { problem: "the cache was made by another one" })
    }
}

/// Evaluates an expression with the device of any kind.
macro_rules! each {
    ($self:expr, $device:ident => $body:expr) => {
        match $self {
            HostDevice::Cpu($device) => $body,
            HostDevice::Split($device) => $body,
            #[cfg(feature = "gpu")]
            HostDevice::Gpu($device) => $body,
            #[cfg(feature = "cuda")]
            HostDevice::Cuda($device) => $body,
            #[cfg(feature = "cuda")]
            HostDevice::CudaSplit($device) => $body,
            #[cfg(all(feature = "metal", target_os = "macos"))]
            HostDevice::Metal($device) => $body,
        }
    };
}

/// The result of a device's call, with the error of all.
fn done<T, E: Into<CoreError>>(result: Result<T, E>) -> Result<T> {
    result.map_err(Into::into)
}

/// A cache that a device has made.
fn made<C: Any + Send, D: Into<E>, E>(cache: Result<C, D>) -> Result<HostCache, E> {
    cache.map(HostCache::of).map_err(Into::into)
}

/// Waits for a future: those of most devices are ready at once, which takes no allocation.
fn wait<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    match ready(future.as_mut()) {
        Some(output) => output,
        None => pollster::block_on(future),
    }
}

impl HostDevice {
    /// An empty session, on the CPU in large pages if it is large; errors are those of the device.
    pub(crate) fn session(&mut self, options: &SessionOptions) -> error::Result<Session<HostDevice>> {
        let cache = match self {
            HostDevice::Cpu(cpu) => HostCache::of(memory::cache(cpu, options)?),
            _ => each!(self, device => made::<_, _, Error>(wait(device.cache(options))))?,
        };
        Ok(Session::over(self, cache))
    }

    /// The same, with all of the cache's memory resident, where memory is not before it is written.
    pub(crate) fn filled_session(&mut self, options: &SessionOptions) -> error::Result<Session<HostDevice>> {
        let HostDevice::Cpu(cpu) = self else { return self.session(options) };
        let MemoryPlan { session: bytes, .. } = cpu.memory_plan(options)?;
        let need = CoreError::Memory { need: bytes as u64, have: 0 };
        let mut memory = memory::large_pages(bytes).map_err(|_| need)?;
        memory.fill(0x2e);
        let cache = HostCache::of(cpu.cache_in(options, memory)?);
        Ok(Session::over(self, cache))
    }

    /// Whether logits are read from another memory, so that a few are cheaper than all.
    pub(crate) fn is_remote(&self) -> bool {
        !matches!(self, HostDevice::Cpu(_) | HostDevice::Split(_))
    }
}

impl Device for HostDevice {
    type Cache = HostCache;
    type Error = CoreError;

    fn config(&self) -> &ModelConfig {
        each!(self, device => device.config())
    }

    fn program(&self) -> &Program {
        each!(self, device => device.program())
    }

    fn batch(&self) -> usize {
        each!(self, device => device.batch())
    }

    async fn cache(&mut self, options: &SessionOptions) -> Result<HostCache> {
        each!(self, device => made(device.cache(options).await))
    }

    async fn paged_cache(&mut self, options: &SessionOptions) -> Result<HostCache> {
        each!(self, device => made(device.paged_cache(options).await))
    }

    async fn fork(&mut self, cache: &mut HostCache, len: usize, seen: usize) -> Result<HostCache> {
        each!(self, device => made(device.fork(cache.own()?, len, seen).await))
    }

    fn page_bytes(&self) -> Option<usize> {
        each!(self, device => device.page_bytes())
    }

    fn cache_options(&self, cache: &HostCache) -> SessionOptions {
        let foreign = SessionOptions { context: 0, ..SessionOptions::default() };
        each!(self, device => cache.0.downcast_ref().map_or(foreign, |own| device.cache_options(own)))
    }

    fn state_bytes(&self, cache: &HostCache) -> usize {
        each!(self, device => cache.0.downcast_ref().map_or(0, |own| device.state_bytes(own)))
    }

    fn rewind(&mut self, cache: &mut HostCache, len: usize) -> Result<usize> {
        each!(self, device => done(device.rewind(cache.own()?, len)))
    }

    async fn run(
        &mut self,
        batch: &Batch<'_>,
        caches: &mut [&mut HostCache],
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        each!(self, device => {
            let mut own = heapless::Vec::<_, MAX_SEQUENCES>::new();
            for cache in caches {
                let too_many = CoreError::Limit {
                    what: "sequences of a batch",
                    found: batch.len() as u64,
                    max: MAX_SEQUENCES as u64,
                };
                own.push(cache.own()?).map_err(|_| too_many)?;
            }
            done(device.run(batch, &mut own, sink).await)
        })
    }

    fn logits(&mut self) -> &[f32] {
        each!(self, device => device.logits())
    }

    fn shift(&mut self, cache: &mut HostCache, len: usize, keep: usize, drop: usize) -> Result<usize> {
        each!(self, device => done(device.shift(cache.own()?, len, keep, drop)))
    }

    fn export_len(&self, cache: &HostCache, len: usize) -> usize {
        each!(self, device => cache.0.downcast_ref().map_or(0, |own| device.export_len(own, len)))
    }

    async fn export(&mut self, cache: &mut HostCache, len: usize, out: &mut Vec<u8>) -> Result<()> {
        each!(self, device => done(device.export(cache.own()?, len, out).await))
    }

    fn import(&mut self, cache: &mut HostCache, len: usize, from: &[u8]) -> Result<()> {
        each!(self, device => done(device.import(cache.own()?, len, from)))
    }
}

impl BlockingDevice for HostDevice {
    fn wait<F: Future<Output = Result<T>>, T>(future: F) -> Result<T> {
        wait(future)
    }
}
