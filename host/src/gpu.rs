//! The model on a GPU.

use crate::error::{Error, Result};
use crate::timeline::Timeline;
use shohin_core::generate::Backend;
use shohin_core::{Activations, Gguf, Result as CoreResult, SamplerConfig, SessionOptions};
use shohin_gpu::{Gpu, GpuBackend, GpuModel, GpuOptions, GpuSession, GpuSessionOptions, readback};
use std::sync::Arc;

/// A model whose weights are on a GPU.
#[derive(Debug)]
pub struct Device(Arc<GpuModel>);

fn options(session: &SessionOptions, activations: Activations) -> GpuSessionOptions {
    GpuSessionOptions {
        context: session.context,
        kv: session.kv,
        activations,
        ..GpuSessionOptions::default()
    }
}

impl Device {
    /// Puts the model onto the GPU of this name; an empty one takes the system's choice.
    ///
    /// # Errors
    /// Those of the GPU.
    pub fn load(name: &str, gguf: &Gguf<'_>) -> Result<Device> {
        let named = (!name.is_empty()).then(|| name.to_string());
        // Who names one in software means it.
        let options = GpuOptions { software: named.is_some(), name: named, ..GpuOptions::default() };
        let gpu = pollster::block_on(Gpu::open(&options)).map_err(|source| Error::Gpu {
            source: Box::new(source),
            names: pollster::block_on(Gpu::names()),
        })?;
        Ok(Device(pollster::block_on(GpuModel::from_gguf(Arc::new(gpu), gguf))?))
    }

    /// The GPU's name.
    pub fn name(&self) -> &str {
        self.0.gpu().name()
    }

    /// Bytes on the GPU: of the weights, and of a session.
    ///
    /// # Errors
    /// Those of the GPU.
    pub fn bytes(&self, session: &SessionOptions, activations: Activations) -> Result<(u64, u64)> {
        let plan = self.0.plan().session_plan(&options(session, activations))?;
        Ok((self.0.bytes(), plan.kv + plan.scratch))
    }

    /// An empty conversation.
    ///
    /// # Errors
    /// Those of the GPU.
    pub fn timeline(&self, session: &SessionOptions, activations: Activations) -> Result<Box<dyn Timeline>> {
        let options = options(session, activations);
        Ok(Box::new(OnGpu(GpuBackend::new(pollster::block_on(GpuSession::new(&self.0, &options))?))))
    }
}

/// On the GPU.
struct OnGpu(GpuBackend);

impl Timeline for OnGpu {
    fn chosen_by(&mut self, config: &SamplerConfig, logprobs: bool) {
        let most = self.0.session().options().top;
        self.0.read_out(readback(config, logprobs, most));
    }

    fn set_len(&mut self, len: usize) -> CoreResult<()> {
        Ok(self.0.assume(len)?)
    }
}

impl Backend for OnGpu {
    fn position(&self) -> usize {
        self.0.position()
    }

    fn capacity(&self) -> usize {
        self.0.capacity()
    }

    fn feed(&mut self, tokens: &[u32]) -> CoreResult<&[f32]> {
        self.0.feed(tokens)
    }

    fn truncate(&mut self, len: usize) -> CoreResult<()> {
        self.0.truncate(len)
    }
}
