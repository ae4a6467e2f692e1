//! A model on the GPU: it goes there while it is downloaded, and stays there.

use crate::conversation::Conversation;
use crate::error::{JsResult, js};
use crate::lent::Lent;
use crate::model::{Facts, Memory, Step, activations_named, detokenize};
use crate::sampling::{Sampling, whole};
use js_sys::Uint8Array;
use shohin_core::chat;
use shohin_core::generate::{self, Event, Generation, Need, Reason};
use shohin_core::gguf::{Event as Arrival, GgufStream, ReadOptions};
use shohin_core::sample::DRY_BREAKERS;
use shohin_core::tokenizer::{Special, Tokenizer};
use shohin_core::{Error, KvFormat, Name, Result, Sampler};
use shohin_gpu::{
    Error as GpuError, Gpu, GpuOptions, GpuSession, GpuSessionOptions, Result as GpuResult, Upload, Want,
    memory_plan, wanted,
};
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
        Ok(GpuLoader { gpu, stream, upload: None, file_len })
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
        let kv = KvFormat::named(kv).ok_or_else(|| {
            let (key, found) = (Name::new("kv"), Name::new(kv));
            js(Error::Unsupported { key, found, expected: "f32, f16 or q8" })
        })?;
        let options = GpuSessionOptions {
            context: if asked > 0 { asked } else { CONTEXT },
            kv: kv.into(),
            activations: activations_named(activations)?,
            ..GpuSessionOptions::default()
        };
        self.complete(options).await.map_err(fail)
    }
}

impl GpuLoader {
    async fn take(&mut self, piece: &[u8]) -> GpuResult<()> {
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

    async fn complete(mut self, options: GpuSessionOptions) -> GpuResult<GpuModel> {
        self.stream.finish()?;
        let missing = Error::Truncated { what: "header", at: 0, need: 1, have: 0 };
        let model = self.upload.ok_or(missing)?.finish()?;
        let stream = Lent::new(self.stream);
        // SAFETY: what borrows from it is declared after it here, and a field before it in the struct.
        let header = unsafe { stream.lend() }.header()?.ok_or(missing)?;
        let tokenizer = Tokenizer::from_metadata(header.metadata())?;
        let facts = Facts::of(&header, &tokenizer)?;
        let session = GpuSession::new(&model, &options).await?;
        Ok(GpuModel {
            generation: None,
            want: Want::Logits,
            session,
            tokenizer,
            _stream: stream,
            facts,
            file_len: self.file_len,
            held: Vec::new(),
            sparse: Vec::new(),
            text: String::new(),
            token: 0,
            reason: None,
        })
    }
}

/// A model on the GPU, and the conversation it remembers. Behaves as `Model` does, but for waiting.
// The tokenizer is dropped before what it borrows from.
#[wasm_bindgen]
pub struct GpuModel {
    generation: Option<Generation>,
    /// What the generation's sampler needs to see.
    want: Want,
    session: GpuSession,
    tokenizer: Tokenizer<'static>,
    _stream: Lent<GgufStream>,
    facts: Facts,
    file_len: u64,
    held: Vec<u32>,
    sparse: Vec<f32>,
    text: String,
    token: u32,
    reason: Option<Reason>,
}

#[wasm_bindgen]
impl GpuModel {
    /// As `Model.info`.
    pub fn info(&self) -> JsValue {
        let model = self.session.model();
        let plan = memory_plan(model.config(), self.session.options()).unwrap_or_default();
        let memory =
            Memory { weights: model.bytes() as usize, kv: plan.kv as usize, scratch: plan.scratch as usize };
        let name = model.gpu().name();
        let capacity = self.session.capacity();
        self.facts.info(model.config(), "webgpu", name, 1, self.file_len as usize, capacity, &memory)
    }

    /// As `Model.tokenize`.
    pub fn tokenize(&self, text: &str, special: bool) -> Vec<u32> {
        let mut ids = Vec::new();
        self.tokenizer.encode(text, if special { Special::Parse } else { Special::Text }, &mut ids);
        ids
    }

    /// As `Model.detokenize`.
    ///
    /// # Errors
    /// As there.
    pub fn detokenize(&self, ids: &[u32]) -> JsResult<String> {
        detokenize(&self.tokenizer, ids).map_err(js)
    }

    /// As `Model.encode_chat`.
    ///
    /// # Errors
    /// As there.
    pub fn encode_chat(&self, conversation: &Conversation, thinking: bool) -> JsResult<Vec<u32>> {
        conversation
            .with(self.facts.template(), thinking, |messages, options| {
                chat::encode(&self.tokenizer, messages, options)
            })
            .map_err(js)
    }

    /// As `Model.begin`.
    ///
    /// # Errors
    /// As there.
    pub fn begin(&mut self, prompt: &[u32], sampling: Sampling) -> JsResult<usize> {
        self.start(prompt, sampling).map_err(js)
    }

    /// Does the next bounded piece of work on the GPU.
    ///
    /// # Errors
    /// `gpu_lost` and the like, after which the model is of no use; `logits` if its output is.
    pub async fn step(&mut self) -> JsResult<Step> {
        self.advance().await.map_err(fail)
    }

    /// As `Model.take_text`.
    pub fn take_text(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    /// As `Model.last_token`.
    pub fn last_token(&self) -> u32 {
        self.token
    }

    /// As `Model.reason`.
    pub fn reason(&self) -> String {
        self.reason.map_or("", Reason::code).to_owned()
    }

    /// As `Model.end`.
    pub fn end(&mut self) {
        if let Some(generation) = self.generation.take() {
            self.held.clear();
            self.held.extend_from_slice(generation.held());
        }
        let agreed = self.held.len().min(self.session.position());
        self.held.truncate(agreed);
        if self.session.truncate(agreed).is_err() {
            self.held.clear();
        }
        self.text.clear();
    }

    /// Gives the GPU back at once; every further step fails with `gpu_lost`.
    pub fn destroy(&self) {
        self.session.model().gpu().destroy();
    }
}

impl GpuModel {
    fn start(&mut self, prompt: &[u32], sampling: Sampling) -> Result<usize> {
        self.end();
        self.reason = None;
        let Sampling { config, mut options } = sampling;
        options.batch = self.session.options().batch;
        let mut sampler = Sampler::new(&config, self.session.model().config().vocab_size)?;
        sampler.break_at_bytes(&self.tokenizer, DRY_BREAKERS);
        self.want = wanted(&config, options.logprobs.is_some(), self.session.options().top);
        let cached = generate::reusable(&self.held, prompt);
        let generation = Generation::new(prompt, cached, self.session.capacity(), sampler, options)?;
        self.session.truncate(cached)?;
        self.held.truncate(cached);
        self.generation = Some(generation);
        Ok(cached)
    }

    async fn advance(&mut self) -> GpuResult<Step> {
        let Some(generation) = &mut self.generation else { return Ok(Step::Done) };
        match generation.next() {
            Need::Feed(tokens) => self.session.forward(tokens, self.want).await?,
            Need::Done(reason) => {
                self.reason = Some(reason);
                return Ok(Step::Done);
            }
        }
        let logits = self.session.visible_logits(self.want, &mut self.sparse);
        let Some(Event { token, text, done, .. }) = generation.logits(&self.tokenizer, logits)? else {
            return Ok(Step::Prefill);
        };
        self.text.push_str(text);
        self.token = token;
        self.reason = done;
        // The token that ends a reply is not part of it.
        Ok(if done == Some(Reason::Stop) { Step::Done } else { Step::Token })
    }
}
