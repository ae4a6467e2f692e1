//! A loaded model.

use crate::chat::Chat;
use crate::device::{Device, DeviceError, Weights};
use crate::embedder::Embedder;
use crate::error::{JsResult, js};
use crate::message::messages;
use crate::object::{count, object};
use crate::options::{template_options, whole};
use js_sys::Array;
use shohin_core::chat::openai::ChatCompletionRequest;
use shohin_core::chat::{ChatModel, Style, Template};
use shohin_core::constrain::Vocabulary;
use shohin_core::gguf::Header;
use shohin_core::model::ModelVariant;
use shohin_core::tokenizer::{Decoder, Special, Tokenizer};
use shohin_core::{Error, Format, KvFormat, Result, SamplerConfig, Session};
use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;
use wasm_bindgen::prelude::*;

/// A model on its device.
#[wasm_bindgen]
pub struct Model {
    /// Made while loading, to know that there is memory for it.
    first: Option<Chat>,
    pub(crate) loaded: Rc<Loaded>,
    context: usize,
}

/// The state that all conversations share.
pub(crate) struct Loaded {
    pub(crate) tokenizer: Tokenizer<'static>,
    pub(crate) weights: Weights,
    pub(crate) kv: KvFormat,
    pub(crate) fingerprint: [u8; 32],
    file: FileInfo,
    /// Built when a reply is first constrained.
    vocabulary: OnceCell<Arc<Vocabulary>>,
}

/// Facts about the file for `info`, and its chat template.
pub(crate) struct FileInfo {
    name: String,
    architecture: String,
    /// Type names of the matrices, most bytes first.
    formats: Vec<&'static str>,
    /// Of most of the layers' bytes.
    format: Format,
    bytes: u64,
    template: Template,
}

/// Facts about the device for `info`.
pub(crate) struct DeviceInfo {
    pub(crate) backend: &'static str,
    /// Instruction set, or the GPU's name.
    pub(crate) isa: String,
    pub(crate) threads: usize,
    /// Bytes.
    pub(crate) weights: usize,
    pub(crate) kv: usize,
    pub(crate) scratch: usize,
}

impl FileInfo {
    /// Of a file of `bytes`.
    pub(crate) fn new(header: &Header<'_>, tokenizer: &Tokenizer<'_>, bytes: u64) -> Result<FileInfo> {
        let text = |key| header.metadata().str(key).map(|found| found.unwrap_or_default().to_owned());
        let mut formats: Vec<(&'static str, u64)> = Vec::new();
        for tensor in header.tensors().iter().filter(|tensor| tensor.dims().len() > 1) {
            let name = tensor.type_name();
            match formats.iter_mut().find(|(known, _)| *known == name) {
                Some((_, sum)) => *sum += tensor.len(),
                None => formats.push((name, tensor.len())),
            }
        }
        let mut sorted = Vec::new();
        // A sort would be several kilobytes of the module.
        while let Some(most) = formats.iter().map(|format| format.1).max()
            && let Some(at) = formats.iter().position(|format| format.1 == most)
        {
            sorted.push(formats.remove(at).0);
        }
        Ok(FileInfo {
            name: text("general.name")?,
            architecture: text("general.architecture")?,
            formats: sorted,
            format: header.layer_format().unwrap_or(Format::F32),
            bytes,
            template: Template::from_metadata(header.metadata(), tokenizer)?,
        })
    }
}

impl Loaded {
    pub(crate) fn new(
        file: FileInfo,
        tokenizer: Tokenizer<'static>,
        weights: Weights,
        kv: KvFormat,
        fingerprint: [u8; 32],
    ) -> Rc<Loaded> {
        Rc::new(Loaded { tokenizer, weights, kv, fingerprint, file, vocabulary: OnceCell::new() })
    }

    /// A device and a sequence on it for `context` tokens.
    pub(crate) async fn session(&self, context: usize) -> Result<(Device, Session<Device>), DeviceError> {
        self.weights.session(context, self.kv).await
    }

    /// Calls `work` with the parts of the model that conversations need.
    pub(crate) fn with_chat_model<T>(&self, work: impl FnOnce(&ChatModel<'_>) -> T) -> T {
        let Loaded { tokenizer, weights, file, .. } = self;
        let make = || Arc::new(Vocabulary::new(tokenizer));
        let vocabulary = || Arc::clone(self.vocabulary.get_or_init(make));
        let logits = weights.config().vocab_size;
        work(&ChatModel { tokenizer, template: file.template, logits, vocabulary: &vocabulary })
    }

    pub(crate) fn tokenize(&self, text: &str, special: bool) -> Vec<u32> {
        let mut ids = Vec::new();
        self.tokenizer.encode(text, if special { Special::Parse } else { Special::Text }, &mut ids);
        ids
    }

    /// The name in the file.
    pub(crate) fn name(&self) -> &str {
        &self.file.name
    }

    fn detokenize(&self, ids: &[u32]) -> Result<String> {
        let vocab = self.tokenizer.vocab_size();
        let mut decoder = Decoder::new(&self.tokenizer).show_control(true);
        let mut text = String::new();
        for &id in ids {
            if id as usize >= vocab {
                return Err(Error::Token { id, vocab: vocab as u32 });
            }
            text.push_str(decoder.push(id));
        }
        text.push_str(decoder.finish());
        Ok(text)
    }
}

#[wasm_bindgen]
impl Model {
    /// Everything there is to know, as `EngineInfo` of the TypeScript side.
    pub fn info(&self) -> JsValue {
        let Loaded { weights, kv, file, .. } = &*self.loaded;
        let config = weights.config();
        let DeviceInfo { backend, isa, threads, weights, kv, scratch } = weights.info(self.context, *kv);
        let formats: Array = file.formats.iter().map(|&name| JsValue::from_str(name)).collect();
        let style = match file.template.style {
            Style::Qwen3 => "qwen3",
            Style::Plain => "chatml",
        };
        let memory = [("weights", count(weights)), ("kv", count(kv)), ("scratch", count(scratch))];
        let model = object([
            ("name", (&file.name).into()),
            ("architecture", (&file.architecture).into()),
            ("variant", ModelVariant::detect(config, file.format).name().into()),
            ("parameters", JsValue::from_f64(config.num_parameters() as f64)),
            ("fileBytes", JsValue::from_f64(file.bytes as f64)),
            ("layers", count(config.num_layers)),
            ("hidden", count(config.hidden_size)),
            ("heads", count(config.num_attention_heads)),
            ("kvHeads", count(config.num_kv_heads)),
            ("vocabulary", count(config.vocab_size)),
            ("contextLength", count(config.max_context_length)),
            ("formats", formats.into()),
            ("template", style.into()),
            ("thinking", file.template.style.can_think().into()),
            ("tools", file.template.style.has_tools().into()),
            ("templateKnown", file.template.known.into()),
        ]);
        object([
            ("backend", backend.into()),
            ("isa", isa.into()),
            ("version", env!("CARGO_PKG_VERSION").into()),
            ("model", model.into()),
            ("context", count(self.context)),
            ("threads", count(threads)),
            ("memory", object(memory).into()),
            ("presets", object(SamplerConfig::PRESETS.map(|name| (name, preset(name)))).into()),
        ])
        .into()
    }

    /// Text to token ids; with `special`, control tokens in the text become themselves.
    pub fn tokenize(&self, text: &str, special: bool) -> Vec<u32> {
        self.loaded.tokenize(text, special)
    }

    /// Token ids to text, control tokens included.
    ///
    /// # Errors
    /// `token` for an id that is not in the vocabulary.
    pub fn detokenize(&self, ids: &[u32]) -> JsResult<String> {
        self.loaded.detokenize(ids).map_err(js)
    }

    /// Reads a request in OpenAI's form only to refuse it.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn check_request(&self, request: &str) -> JsResult<()> {
        ChatCompletionRequest::parse(request).map(drop).map_err(js)
    }

    /// Token ids of a conversation up to where the model's reply begins, by `TemplateOptions` of the TypeScript side.
    ///
    /// # Errors
    /// If the vocabulary has no control tokens for a chat, or there are tools and the model's template has none.
    pub fn encode_chat(&self, messages: &Array, options: &JsValue) -> JsResult<Vec<u32>> {
        let messages = self::messages(messages)?;
        let options = template_options(options)?;
        self.loaded.with_chat_model(|model| options.encode(model, &messages)).map_err(js)
    }
}

impl Model {
    pub(crate) fn new(loaded: Rc<Loaded>, first: Chat) -> Model {
        let context = first.capacity();
        Model { first: Some(first), loaded, context }
    }

    /// A new, empty conversation for `context` tokens (0: as many as the first).
    pub(crate) async fn open_chat(&mut self, context: f64) -> JsResult<Chat> {
        let asked = whole("context", context)?;
        match self.first.take() {
            Some(first) if asked == 0 => Ok(first),
            first => {
                self.first = first;
                let context = if asked == 0 { self.context } else { asked };
                Chat::open(&self.loaded, context).await.map_err(js)
            }
        }
    }

    /// Begins to embed tokens.
    pub(crate) async fn open_embedder(&self, tokens: Vec<u32>, pooling: &str) -> JsResult<Embedder> {
        Embedder::open(&self.loaded, tokens, pooling).await
    }
}

/// The numbers of a preset that a page shows.
fn preset(name: &str) -> JsValue {
    let config = SamplerConfig::preset(name).unwrap_or(SamplerConfig::greedy());
    // f32 to f64 by way of decimal digits, so that 0.7 stays 0.7.
    let number = |x: f32| JsValue::from_f64(x.to_string().parse().unwrap_or(f64::from(x)));
    object([
        ("temperature", number(config.temperature)),
        ("topK", count(config.top_k)),
        ("topP", number(config.top_p)),
        ("repetitionPenalty", number(config.repetition_penalty)),
    ])
    .into()
}
