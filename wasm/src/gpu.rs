//! A model on the GPU: it goes there while it is downloaded, and stays there.

use crate::conversation::Conversation;
use crate::embedding::{check, pooling_named};
use crate::error::{JsResult, js};
use crate::model::{Facts, Memory, activations_named, kv_named};
use crate::reply::{Past, Reply, Step, tell_of_reply};
use crate::sampling::{Sampling, whole};
use crate::snapshot::{self, Fingerprint};
use crate::words::know_words;
use js_sys::Uint8Array;
use shohin_core::device::Readout;
use shohin_core::gguf::{Event as Arrival, GgufStream, ReadOptions};
use shohin_core::model::{Embedding, Pooling};
use shohin_core::tokenizer::Tokenizer;
use shohin_core::{Error, KvFormat};
use shohin_gpu::{
    Error as GpuError, Gpu, GpuModel as Weights, GpuOptions, GpuSession, GpuSessionOptions,
    Result as GpuResult, Upload, readback,
};
use std::rc::Rc;
use std::sync::Arc;
use wasm_bindgen::prelude::*;

/// Tokens held where nothing else is asked for.
const CONTEXT: usize = 4096;

/// As JavaScript sees it.
fn fail(error: GpuError) -> JsValue {
    match error {
        GpuError::Core(error) => js(error),
        other => crate::error::named(&other.to_string(), other.code()),
    }
}

/// A part of a tensor that came with the end of the header.
struct Part {
    index: usize,
    offset: u64,
    bytes: Vec<u8>,
}

/// Takes a file piece by piece and puts its weights onto the GPU. No more than a few pieces are in this memory.
#[wasm_bindgen]
pub struct GpuLoader {
    gpu: Arc<Gpu>,
    stream: GgufStream,
    fingerprint: Fingerprint,
    upload: Option<Upload>,
    file_len: u64,
}

#[wasm_bindgen]
impl GpuLoader {
    /// Opens a GPU for a file of `length` bytes; one in software only if `software` is set. Without `extensions` it
    /// uses only what every GPU has.
    ///
    /// # Errors
    /// `gpu_absent`
    pub async fn open(length: f64, software: bool, extensions: bool) -> JsResult<GpuLoader> {
        let file_len = whole("length", length)? as u64;
        let options = GpuOptions {
            software,
            subgroups: extensions,
            f16: extensions,
            packed_dot: extensions,
            ..GpuOptions::default()
        };
        #[allow(clippy::arc_with_non_send_sync, reason = "in browsers a device belongs to one thread")]
        let gpu = Arc::new(Gpu::open(&options).await.map_err(fail)?);
        let stream = GgufStream::new(file_len, ReadOptions::default());
        Ok(GpuLoader { gpu, stream, fingerprint: Fingerprint::default(), upload: None, file_len })
    }

    /// What the browser calls the GPU.
    #[wasm_bindgen(getter)]
    pub fn name(&self) -> String {
        self.gpu.name().into()
    }

    /// Takes the next bytes of the file.
    ///
    /// # Errors
    /// What is wrong with the file; `gpu_unsupported` for a model without kernels on the GPU, `gpu_memory`, `gpu_lost`.
    pub async fn append(&mut self, piece: Uint8Array) -> JsResult<()> {
        self.take(&piece.to_vec()).await.map_err(fail)
    }

    /// The model, once all of the file has been taken, with room for `context` tokens (0: at most 4096).
    ///
    /// # Errors
    /// `truncated`, an unknown option, or what the GPU says.
    pub async fn finish(self, context: f64, kv: &str, activations: &str) -> JsResult<GpuModel> {
        let asked = whole("context", context)?;
        let kv = kv_named(kv)?;
        let options = GpuSessionOptions {
            context: if asked > 0 { asked } else { CONTEXT },
            kv,
            activations: activations_named(activations)?,
            ..GpuSessionOptions::default()
        };
        self.complete(options, kv).await.map_err(fail)
    }
}

impl GpuLoader {
    async fn take(&mut self, piece: &[u8]) -> GpuResult<()> {
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
                (None, Arrival::TensorData { index, offset, bytes }) => {
                    parts.push(Part { index, offset, bytes: bytes.to_vec() });
                    Ok(())
                }
                (None, Arrival::CodesFirst) => {
                    codes_first = true;
                    Ok(())
                }
                (None, Arrival::Header(_)) => Ok(()),
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
                upload.event(&Arrival::CodesFirst)?;
            }
            for Part { index, offset, bytes } in parts {
                upload.push(index, offset, &bytes)?;
            }
            self.upload = Some(upload);
        }
        Ok(())
    }

    async fn complete(mut self, options: GpuSessionOptions, kv: KvFormat) -> GpuResult<GpuModel> {
        self.stream.finish()?;
        let missing = Error::Truncated { what: "header", at: 0, need: 1, have: 0 };
        let weights = self.upload.ok_or(missing)?.finish()?;
        let header = self.stream.header()?.ok_or(missing)?;
        let tokenizer = Tokenizer::from_metadata(header.metadata())?.into_owned();
        let facts = Facts::of(&header, &tokenizer)?;
        let first = GpuSession::new(&weights, &options).await?;
        let options = *first.options();
        let (fingerprint, file_len) = (self.fingerprint.finish(), self.file_len);
        let loaded = Rc::new(Loaded { tokenizer, weights, facts, fingerprint, file_len, kv });
        let first = Some(GpuTimeline::new(first, Rc::clone(&loaded)));
        Ok(GpuModel { first, loaded, options })
    }
}

/// What all conversations share.
struct Loaded {
    tokenizer: Tokenizer<'static>,
    weights: Arc<Weights>,
    facts: Facts,
    fingerprint: [u8; 32],
    file_len: u64,
    kv: KvFormat,
}

/// A model on the GPU; conversations over it are [`GpuTimeline`]s. Behaves as `Model` does, but for waiting.
#[wasm_bindgen]
pub struct GpuModel {
    /// Made while loading, to know that there is memory for it.
    first: Option<GpuTimeline>,
    loaded: Rc<Loaded>,
    options: GpuSessionOptions,
}

know_words!(GpuModel);

#[wasm_bindgen]
impl GpuModel {
    /// As `Model.info`.
    pub fn info(&self) -> JsValue {
        let Loaded { weights, facts, file_len, .. } = &*self.loaded;
        let plan = weights.plan().session_plan(&self.options).unwrap_or_default();
        let memory = Memory {
            weights: weights.bytes() as usize,
            kv: plan.kv as usize,
            scratch: plan.scratch as usize,
        };
        let (name, capacity) = (weights.gpu().name(), self.options.context);
        facts.info(weights.config(), "webgpu", name, 1, *file_len as usize, capacity, &memory)
    }

    /// As `Model.timeline`.
    ///
    /// # Errors
    /// `gpu_memory` if there is not enough for its cache.
    pub async fn timeline(&mut self, context: f64) -> JsResult<GpuTimeline> {
        let asked = whole("context", context)?;
        if asked == 0
            && let Some(first) = self.first.take()
        {
            return Ok(first);
        }
        let context = if asked == 0 { self.options.context } else { asked };
        let options = GpuSessionOptions { context, ..self.options };
        let session = GpuSession::new(&self.loaded.weights, &options).await.map_err(fail)?;
        Ok(GpuTimeline::new(session, Rc::clone(&self.loaded)))
    }

    /// As `Model.embedder`.
    ///
    /// # Errors
    /// As there; `gpu_memory`.
    pub async fn embedder(&self, tokens: Vec<u32>, pooling: &str) -> JsResult<GpuEmbedder> {
        let pooling = pooling_named(pooling)?;
        GpuEmbedder::new(&self.loaded.weights, &self.options, tokens, pooling).await.map_err(fail)
    }

    /// Gives the GPU back at once; every further step fails with `gpu_lost`.
    pub fn destroy(&self) {
        self.loaded.weights.gpu().destroy();
    }
}

/// A conversation's cache on the GPU. Behaves as `Timeline` does, but for waiting.
#[wasm_bindgen]
pub struct GpuTimeline {
    reply: Reply,
    /// What the reply's sampler needs to see.
    readout: Readout,
    sparse: Vec<f32>,
    session: GpuSession,
    loaded: Rc<Loaded>,
}

tell_of_reply!(GpuTimeline);

#[wasm_bindgen]
impl GpuTimeline {
    /// As `Timeline.begin`.
    ///
    /// # Errors
    /// As there.
    pub fn begin(&mut self, prompt: &[u32], sampling: Sampling) -> JsResult<usize> {
        self.start(prompt, sampling).map_err(fail)
    }

    /// Does the next bounded piece of work on the GPU.
    ///
    /// # Errors
    /// `gpu_lost` and the like, after which the model is of no use; `logits` if its output is.
    pub async fn step(&mut self) -> JsResult<Step> {
        self.advance().await.map_err(fail)
    }

    /// As `Timeline.snapshot`. Only for engines on a GPU to go on from: on the CPU caches lie otherwise.
    ///
    /// # Errors
    /// `memory`; what the GPU says.
    pub async fn snapshot(&mut self) -> JsResult<Vec<u8>> {
        self.end();
        self.kept().await.map_err(fail)
    }

    /// As `Timeline.restore`.
    ///
    /// # Errors
    /// As there; what the GPU says.
    pub fn restore(&mut self, bytes: &[u8]) -> JsResult<()> {
        self.end();
        self.reply.past = Past::default();
        let _ = self.session.truncate(0); // always as much as it holds
        let (past, kv) = snapshot::open(bytes, &self.origin())?;
        self.session.import(past.held(), kv).map_err(fail)?;
        self.reply.past = past;
        Ok(())
    }
}

impl GpuTimeline {
    fn new(session: GpuSession, loaded: Rc<Loaded>) -> GpuTimeline {
        GpuTimeline { reply: Reply::default(), readout: Readout::Logits, sparse: Vec::new(), session, loaded }
    }

    fn origin(&self) -> snapshot::Origin {
        let (layout, activations) = (snapshot::Layout::Gpu, self.session.options().activations);
        snapshot::Origin::new(self.loaded.fingerprint, layout, self.loaded.kv, activations)
    }

    async fn kept(&mut self) -> GpuResult<Vec<u8>> {
        let mut bytes = snapshot::begin(&self.origin(), &self.reply.past, self.session.export_len())?;
        self.session.export(&mut bytes).await?;
        Ok(snapshot::seal(bytes))
    }

    fn start(&mut self, prompt: &[u32], sampling: Sampling) -> GpuResult<usize> {
        self.end();
        let options = *self.session.options();
        let all = sampling.options.logprobs.is_some() || sampling.grammar.is_some();
        self.readout = readback(&sampling.config, all, options.top);
        let Loaded { weights, tokenizer, facts, .. } = &*self.loaded;
        let (config, batch, context) = (weights.config(), options.batch, options.context);
        let cached = self.reply.start(prompt, sampling, batch, config, context, tokenizer, facts)?;
        self.session.truncate(self.reply.past.held())?;
        Ok(cached)
    }

    async fn advance(&mut self) -> GpuResult<Step> {
        if let Some((keep, _)) = self.reply.room() {
            // The GPU cannot turn keys: what is left is fed again.
            self.session.truncate(keep)?;
            self.reply.shifted(keep);
        }
        let Some(tokens) = self.reply.wanted() else { return Ok(Step::Done) };
        self.session.forward(tokens, self.readout).await?;
        let logits = self.session.visible_logits(self.readout, &mut self.sparse);
        Ok(self.reply.take(&self.loaded.tokenizer, logits)?)
    }
}

/// A text on its way to becoming a vector, in a cache of its own. Behaves as `Embedder` does, but for waiting.
#[wasm_bindgen]
pub struct GpuEmbedder {
    session: GpuSession,
    embedding: Embedding,
    tokens: Vec<u32>,
}

#[wasm_bindgen]
impl GpuEmbedder {
    /// As `Embedder.step`.
    ///
    /// # Errors
    /// As there; what the GPU says.
    pub async fn step(&mut self) -> JsResult<bool> {
        let fed = self.session.position();
        let end = self.tokens.len().min(fed + self.session.options().batch);
        if end > fed {
            let mut push = |_, row: &[f32]| self.embedding.push(row);
            self.session.forward_hidden(&self.tokens[fed..end], &mut push).await.map_err(fail)?;
        }
        Ok(end == self.tokens.len())
    }

    /// As `Embedder.result`.
    pub fn result(&self, normalize: bool) -> Vec<f32> {
        self.embedding.finish(normalize)
    }
}

impl GpuEmbedder {
    async fn new(
        weights: &Arc<Weights>,
        options: &GpuSessionOptions,
        tokens: Vec<u32>,
        pooling: Pooling,
    ) -> GpuResult<GpuEmbedder> {
        check(&tokens, weights.config())?;
        let options = GpuSessionOptions { context: tokens.len(), ..*options };
        let session = GpuSession::new(weights, &options).await?;
        let embedding = Embedding::new(weights.config().hidden_size, pooling);
        Ok(GpuEmbedder { session, embedding, tokens })
    }
}
