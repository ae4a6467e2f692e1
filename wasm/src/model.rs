//! A loaded model.

use crate::chat::Chat;
use crate::embedder::Embedder;
use crate::error::{JsResult, js};
use crate::info::DeviceInfo;
use crate::loaded::Loaded;
use crate::message::messages;
use crate::object::{count, object};
use crate::options::{template_options, whole};
use js_sys::{Array, Uint32Array};
use shohin_core::chat::openai::ChatCompletionRequest;
use shohin_core::chat::{ChatOptions, Style, encode_replies};
use shohin_core::model::ModelVariant;
use shohin_core::{SamplerConfig, SessionOptions};
use std::rc::Rc;
use wasm_bindgen::prelude::*;

/// A model on its device.
#[wasm_bindgen]
pub struct Model {
    /// Made while loading, to know that there is memory for it.
    pub(crate) first: Option<Chat>,
    pub(crate) loaded: Rc<Loaded>,
    pub(crate) context: usize,
}

#[wasm_bindgen]
impl Model {
    /// Everything there is to know, as `EngineInfo` of the TypeScript side.
    pub fn info(&self) -> JsValue {
        let Loaded { weights, session, file, .. } = &*self.loaded;
        let config = weights.config();
        let DeviceInfo { backend, isa, threads, weights, kv, scratch } =
            weights.info(&SessionOptions { context: self.context, ..*session });
        let formats: Array = file.formats.iter().map(|&name| JsValue::from_str(name)).collect();
        let style = match file.template.style {
            Style::Qwen3 | Style::Qwen3Thinking | Style::Qwen3Instruct => "qwen3",
            Style::Plain => "chatml",
            Style::Llama3 | Style::Llama31 => "llama3",
            Style::Gemma => "gemma",
            Style::File(_) => "file",
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

    /// Text to token ids, with the beginning-of-sequence token if the model uses one; with `special`, control tokens in the text
    /// become themselves.
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
    /// If it is malformed, or an option is out of its range.
    pub fn check_request(&self, request: &str) -> JsResult<()> {
        let options = ChatCompletionRequest::parse(request).map_err(js)?.options;
        options.sampler.check().map_err(js)?;
        options.grammar().map(drop).map_err(js)
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

    /// A whole conversation as the model sees and writes it, for training: its token ids, and where each reply begins and ends in them.
    ///
    /// # Errors
    /// As [`Model::encode_chat`]; `argument` without a reply.
    pub fn encode_replies(&self, messages: &Array) -> JsResult<Array> {
        let messages = self::messages(messages)?;
        let options = ChatOptions { template: self.loaded.file.template, ..ChatOptions::default() };
        let mut ids = Vec::new();
        let replies = encode_replies(&self.loaded.tokenizer, &messages, &options, &mut ids).map_err(js)?;
        let ends: Vec<u32> =
            replies.into_iter().flat_map(|reply| [reply.start as u32, reply.end as u32]).collect();
        Ok(Array::of2(&Uint32Array::from(&ids[..]), &Uint32Array::from(&ends[..])))
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

    /// Begins to embed a text.
    pub(crate) async fn open_embedder(&self, text: &str, pooling: Option<&str>) -> JsResult<Embedder> {
        Embedder::open(&self.loaded, text, pooling).await
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
