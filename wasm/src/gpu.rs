//! A model on the GPU: weights are uploaded as they arrive. Calls that compute return promises.

use crate::chat::{Chat, Step};
use crate::embedder::Embedder;
use crate::error::{JsResult, js};
use crate::model::{DeviceInfo, FileInfo, Loaded, Model};
use crate::options::{activations_named, exact, kv_named, whole};
use crate::snapshot::Fingerprint;
use js_sys::Uint8Array;
use shohin_core::chat::TurnOptions;
use shohin_core::device::Readout;
use shohin_core::gguf::{Event, GgufStream, ReadOptions};
use shohin_core::model::ModelConfig;
use shohin_core::tokenizer::Tokenizer;
use shohin_core::{Activations, Device as _, Error, KvFormat, Session, SessionOptions};
use shohin_gpu::{Gpu, GpuDevice, GpuDeviceOptions, GpuModel, GpuOptions, Result, Upload};
use std::sync::Arc;
use wasm_bindgen::prelude::*;

/// The browser's GPU.
pub(crate) type Device = GpuDevice;
pub(crate) type DeviceError = shohin_gpu::Error;

/// Marks snapshots as those of a GPU.
pub(crate) const SNAPSHOT_LAYOUT: u8 = 1;

/// Tokens held unless another number is asked for.
const CONTEXT: usize = 4096;

/// The part of the logits that a turn needs: reading all of them back takes longer.
pub(crate) fn readout(options: &TurnOptions) -> Readout {
    options.readout()
}

/// Weights on a GPU.
pub(crate) struct Weights {
    pub(crate) model: Arc<GpuModel>,
    activations: Activations,
}

impl Weights {
    /// The model's numbers.
    pub(crate) fn config(&self) -> &ModelConfig {
        self.model.config()
    }

    pub(crate) fn activations(&self) -> Activations {
        self.activations
    }

    /// Prompt tokens in one step.
    pub(crate) fn batch(&self, device: &Device) -> usize {
        device.batch()
    }

    /// A device with scratch memory of its own, and a sequence on it.
    pub(crate) async fn session(&self, context: usize, kv: KvFormat) -> Result<(Device, Session<Device>)> {
        let mut device = GpuDevice::new(&self.model, &self.options(context)).await?;
        let session = Session::open(&mut device, &SessionOptions { context, kv }).await?;
        Ok((device, session))
    }

    pub(crate) fn info(&self, context: usize, kv: KvFormat) -> DeviceInfo {
        let plan = self.model.plan().memory_plan(&self.options(context), &SessionOptions { context, kv });
        let plan = plan.unwrap_or_default();
        DeviceInfo {
            backend: "webgpu",
            isa: self.model.gpu().name().into(),
            threads: 1,
            weights: self.model.bytes() as usize,
            kv: plan.kv as usize,
            scratch: plan.scratch as usize,
        }
    }

    fn options(&self, context: usize) -> GpuDeviceOptions {
        GpuDeviceOptions { context, activations: self.activations, ..GpuDeviceOptions::default() }
    }
}

#[wasm_bindgen]
impl Model {
    /// A new, empty conversation for `context` tokens (0: as many as the first).
    ///
    /// # Errors
    /// `gpu_memory` if there is not enough for its cache.
    pub async fn chat(&mut self, context: f64) -> JsResult<Chat> {
        self.open_chat(context).await
    }

    /// Begins to embed tokens. `pooling`: `mean` or `last`.
    ///
    /// # Errors
    /// `length` if there are no tokens, `context_full` if there are more than the model can see, `gpu_memory`.
    pub async fn embedder(&self, tokens: Vec<u32>, pooling: &str) -> JsResult<Embedder> {
        self.open_embedder(tokens, pooling).await
    }
}

#[wasm_bindgen]
impl Chat {
    /// Does the next bounded piece of work.
    ///
    /// # Errors
    /// `gpu_lost` and the like, after which the model is of no use; `logits` if its output is unusable.
    pub async fn step(&mut self) -> JsResult<Step> {
        self.advance().await.map_err(js)
    }

    /// The cache as bytes, for a GPU to go on from: the CPU orders keys and values otherwise. Ends a turn.
    ///
    /// # Errors
    /// `memory`; what the GPU says.
    pub async fn snapshot(&mut self) -> JsResult<Vec<u8>> {
        self.export().await.map_err(js)
    }
}

#[wasm_bindgen]
impl Embedder {
    /// Does the next bounded piece of work; true when all is done.
    ///
    /// # Errors
    /// `token` for an id that is not in the vocabulary; what the GPU says.
    pub async fn step(&mut self) -> JsResult<bool> {
        self.advance().await.map_err(js)
    }
}

/// A part of a tensor that came with the end of the header.
struct Part {
    index: usize,
    offset: u64,
    bytes: Vec<u8>,
}

/// Takes a file piece by piece and uploads its weights. No more than a few pieces are in this memory.
#[wasm_bindgen]
pub struct Loader {
    gpu: Arc<Gpu>,
    stream: GgufStream,
    fingerprint: Fingerprint,
    upload: Option<Upload>,
    file_len: u64,
}

#[wasm_bindgen]
impl Loader {
    /// Opens a GPU for a file of `length` bytes; a software adapter only if `software` is set.
    ///
    /// # Errors
    /// `gpu_absent`
    pub async fn open(length: f64, software: bool) -> JsResult<Loader> {
        let file_len = exact("length", length)?;
        let options = GpuOptions { software, ..GpuOptions::default() };
        #[allow(clippy::arc_with_non_send_sync, reason = "in browsers a device belongs to one thread")]
        let gpu = Arc::new(Gpu::open(&options).await.map_err(js)?);
        let stream = GgufStream::new(file_len, ReadOptions::default());
        Ok(Loader { gpu, stream, fingerprint: Fingerprint::default(), upload: None, file_len })
    }

    /// Takes the next bytes of the file.
    ///
    /// # Errors
    /// If the file is malformed; `gpu_unsupported` for a model without kernels on the GPU, `gpu_memory`, `gpu_lost`.
    pub async fn append(&mut self, piece: Uint8Array) -> JsResult<()> {
        self.take(&piece.to_vec()).await.map_err(js)
    }

    /// The model, once all of the file has been taken, and memory for a first conversation of `context` tokens (0: at most
    /// 4096).
    ///
    /// # Errors
    /// `truncated`, an unknown option, or what the GPU says.
    pub async fn finish(self, context: f64, kv: &str, activations: &str) -> JsResult<Model> {
        let asked = whole("context", context)?;
        let context = if asked > 0 { asked } else { CONTEXT };
        let (kv, activations) = (kv_named(kv)?, activations_named(activations)?);
        self.complete(context, kv, activations).await.map_err(js)
    }
}

impl Loader {
    async fn take(&mut self, piece: &[u8]) -> Result<()> {
        self.fingerprint.push(piece);
        let mut parts = Vec::new();
        let mut codes_first = false;
        let mut failed = None;
        let upload = &mut self.upload;
        let pushed = self.stream.push(piece, &mut |event| {
            match (&mut *upload, event) {
                (Some(upload), event) => upload.event(&event).map_err(|error| {
                    failed = Some(error);
                    error.into()
                }),
                // Memory can be asked for only after this.
                (None, Event::TensorData { index, offset, bytes }) => {
                    parts.push(Part { index, offset, bytes: bytes.to_vec() });
                    Ok(())
                }
                (None, Event::CodesFirst) => {
                    codes_first = true;
                    Ok(())
                }
                (None, Event::Header(_)) => Ok(()),
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        pushed?;
        if self.upload.is_none()
            && let Some(header) = self.stream.header()?
        {
            let mut upload = Upload::new(Arc::clone(&self.gpu), &header).await?;
            if codes_first {
                upload.event(&Event::CodesFirst)?;
            }
            for Part { index, offset, bytes } in parts {
                upload.push(index, offset, &bytes)?;
            }
            self.upload = Some(upload);
        }
        Ok(())
    }

    async fn complete(mut self, context: usize, kv: KvFormat, activations: Activations) -> Result<Model> {
        self.stream.finish()?;
        let missing = Error::Truncated { what: "header", at: 0, need: 1, have: 0 };
        let model = self.upload.ok_or(missing)?.finish()?;
        let header = self.stream.header()?.ok_or(missing)?;
        let tokenizer = Tokenizer::from_metadata(header.metadata())?.into_owned();
        let file = FileInfo::new(&header, &tokenizer, self.file_len)?;
        let weights = Weights { model, activations };
        let loaded = Loaded::new(file, tokenizer, weights, kv, self.fingerprint.finish());
        let first = Chat::open(&loaded, context).await?;
        Ok(Model::new(loaded, first))
    }
}
