//! A loaded model with one timeline.

use crate::buffer::FileBuffer;
use crate::conversation::Conversation;
use crate::embedding::{Embedder, pooling_named};
use crate::error::{JsResult, js};
use crate::sampling::whole;
use crate::snapshot::Fingerprint;
use crate::team::pool;
use crate::timeline::Timeline;
use crate::words::know_words;
use js_sys::{Array, Object, Reflect};
use shohin_core::chat::{Style, Template};
use shohin_core::constrain::Vocabulary;
use shohin_core::cpu::{self, CpuWeights, Expansion, Isa};
use shohin_core::gguf::{Header, ReadOptions};
use shohin_core::model::{BonsaiModel, ModelConfig, ModelVariant};
use shohin_core::tokenizer::Tokenizer;
use shohin_core::{Activations, CpuOptions, KvFormat, MemoryPlan, SessionOptions};
use shohin_core::{Error, Format, Gguf, Name, Result, SamplerConfig};
use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;
use wasm_bindgen::prelude::*;

/// A conversation shorter than this is none: rather fail.
const LEAST_CONTEXT: usize = 512;

/// A model in memory; conversations over it are [`Timeline`]s.
#[wasm_bindgen]
pub struct Model {
    /// Made while loading, to know that there is memory for it.
    first: Option<Timeline>,
    loaded: Rc<Loaded>,
    context: usize,
    plan: MemoryPlan,
}

/// What all conversations share.
pub(crate) struct Loaded {
    pub(crate) tokenizer: Tokenizer<'static>,
    pub(crate) weights: Arc<CpuWeights<Vec<u8>>>,
    pub(crate) options: CpuOptions,
    pub(crate) kv: KvFormat,
    /// Bytes of the file as it came.
    file_bytes: usize,
    pub(crate) facts: Facts,
    pub(crate) fingerprint: [u8; 32],
}

impl Loaded {
    /// Prompt tokens in one step: enough to share the unpacking of a weight row, few enough to look for an abort within
    /// a second or so.
    pub(crate) fn batch(&self) -> usize {
        if self.weights.model().program().num_parameters() < 500_000_000 { 64 } else { 16 }
    }

    pub(crate) fn config(&self) -> &ModelConfig {
        self.weights.model().config()
    }
}

/// Type names of the matrices of a file, most bytes first.
fn formats(header: &Header<'_>) -> Vec<&'static str> {
    let mut formats: Vec<(&'static str, u64)> = Vec::new();
    for tensor in header.tensors().iter().filter(|tensor| tensor.dims().len() > 1) {
        let name = tensor.type_name();
        match formats.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += tensor.len(),
            None => formats.push((name, tensor.len())),
        }
    }
    let mut sorted = Vec::new();
    while let Some(most) = formats.iter().map(|format| format.1).max()
        && let Some(at) = formats.iter().position(|format| format.1 == most)
    {
        sorted.push(formats.remove(at).0);
    }
    sorted
}

/// The file with 2-bit codes for base-3 digits, which are several times as fast; as it is where it has none,
/// or where there is no memory for them.
fn expanded(mut bytes: Vec<u8>, isa: Isa) -> Result<Vec<u8>> {
    let len = bytes.len();
    // Larger than the address space is as good as larger than memory.
    let Ok(Some(Expansion { room, .. })) = cpu::expansion(&Gguf::parse(&bytes)?, len) else {
        return Ok(bytes);
    };
    if bytes.try_reserve_exact(room - len).is_err() {
        return Ok(bytes);
    }
    bytes.resize(room, 0);
    bytes.copy_within(..len, room - len);
    let len = cpu::expand_file(&mut bytes, len, &ReadOptions::default(), isa, pool())?;
    bytes.truncate(len);
    Ok(bytes)
}

/// What `info` tells of the file.
pub(crate) struct Facts {
    name: String,
    architecture: String,
    /// Type names, most bytes first.
    formats: Vec<&'static str>,
    /// Of the first block's weights.
    format: Format,
    /// How it wants a conversation written.
    pub(crate) template: Template,
    /// Made when a reply is first kept to a form.
    vocabulary: OnceCell<Arc<Vocabulary>>,
}

/// Bytes.
pub(crate) struct Memory {
    pub(crate) weights: usize,
    pub(crate) kv: usize,
    pub(crate) scratch: usize,
}

impl Facts {
    pub(crate) fn of(header: &Header<'_>, tokenizer: &Tokenizer<'_>) -> Result<Facts> {
        let text = |key| header.metadata().str(key).map(|found| found.unwrap_or_default().to_owned());
        let first = header.tensor("blk.0.attn_q.weight").and_then(|tensor| tensor.format());
        Ok(Facts {
            name: text("general.name")?,
            architecture: text("general.architecture")?,
            formats: formats(header),
            format: first.unwrap_or(Format::F32),
            template: Template::from_metadata(header.metadata(), tokenizer)?,
            vocabulary: OnceCell::new(),
        })
    }

    pub(crate) fn vocabulary(&self, tokenizer: &Tokenizer<'_>) -> Arc<Vocabulary> {
        self.vocabulary.get_or_init(|| Arc::new(Vocabulary::new(tokenizer))).clone()
    }

    /// `EngineInfo` of the TypeScript side.
    pub(crate) fn info(
        &self,
        config: &ModelConfig,
        backend: &str,
        isa: &str,
        threads: usize,
        file_bytes: usize,
        context: usize,
        memory: &Memory,
    ) -> JsValue {
        let number = |n: usize| JsValue::from_f64(n as f64);
        let formats: Array = self.formats.iter().map(|&name| JsValue::from_str(name)).collect();
        let template = match self.template.style {
            Style::Qwen3 => "qwen3",
            Style::Plain => "chatml",
        };
        let variant = ModelVariant::detect(config, self.format);
        let presets = object(SamplerConfig::PRESETS.map(|name| (name, preset(name))));
        let memory = object([
            ("weights", number(memory.weights)),
            ("kv", number(memory.kv)),
            ("scratch", number(memory.scratch)),
        ]);
        let model = object([
            ("name", JsValue::from_str(&self.name)),
            ("architecture", JsValue::from_str(&self.architecture)),
            ("variant", JsValue::from_str(variant.name())),
            ("parameters", JsValue::from_f64(config.num_parameters() as f64)),
            ("fileBytes", number(file_bytes)),
            ("layers", number(config.num_layers)),
            ("hidden", number(config.hidden_size)),
            ("heads", number(config.num_attention_heads)),
            ("kvHeads", number(config.num_kv_heads)),
            ("vocabulary", number(config.vocab_size)),
            ("contextLength", number(config.max_context_length)),
            ("formats", formats.into()),
            ("template", JsValue::from_str(template)),
            ("templateKnown", JsValue::from_bool(self.template.known)),
        ]);
        object([
            ("backend", JsValue::from_str(backend)),
            ("isa", JsValue::from_str(isa)),
            ("version", JsValue::from_str(env!("CARGO_PKG_VERSION"))),
            ("model", model),
            ("context", number(context)),
            ("threads", number(threads)),
            ("memory", memory),
            ("presets", presets),
        ])
    }
}

/// # Errors
/// `unsupported` for another word.
pub(crate) fn activations_named(name: &str) -> JsResult<Activations> {
    match name {
        "int8" => Ok(Activations::Int8),
        "f32" => Ok(Activations::F32),
        _ => Err(unknown("activations", name, "int8 or f32")),
    }
}

/// # Errors
/// `unsupported` for another word.
pub(crate) fn kv_named(name: &str) -> JsResult<KvFormat> {
    KvFormat::named(name).ok_or_else(|| unknown("kv", name, "f32, f16, q8 or q4"))
}

pub(crate) fn unknown(key: &'static str, found: &str, expected: &'static str) -> JsValue {
    js(Error::Unsupported { key: Name::new(key), found: Name::new(found), expected })
}

know_words!(Model);

#[wasm_bindgen]
impl Model {
    /// Reads the model in `file` where it lies, and takes the memory for a first conversation of `context` tokens (0: the
    /// model's own limit, at most 4096, less where memory is short).
    ///
    /// # Errors
    /// What is wrong with the file, an unknown option, or `memory`.
    pub fn load(file: FileBuffer, context: f64, kv: &str, activations: &str) -> JsResult<Model> {
        let kv = kv_named(kv)?;
        let mut options =
            CpuOptions { activations: activations_named(activations)?, ..CpuOptions::default() };
        let asked = whole("context", context)?;
        if asked > 0 {
            options.context = asked;
        }
        Self::build(file.into_bytes(), &options, kv, asked == 0).map_err(js)
    }

    /// Everything there is to know, as `EngineInfo` of the TypeScript side.
    pub fn info(&self) -> JsValue {
        let MemoryPlan { kv, total, .. } = self.plan;
        let Loaded { facts, file_bytes, weights, options, .. } = &*self.loaded;
        let bytes = weights.model().weights().parts().iter().map(Vec::len).sum();
        let memory = Memory { weights: bytes, kv, scratch: total - kv };
        let (isa, capacity) = (options.isa.name(), self.context);
        facts.info(self.loaded.config(), "cpu", isa, pool().workers(), *file_bytes, capacity, &memory)
    }

    /// A new, empty conversation for `context` tokens (0: as many as the first).
    ///
    /// # Errors
    /// `memory` if there is not enough for its cache.
    pub fn timeline(&mut self, context: f64) -> JsResult<Timeline> {
        let asked = whole("context", context)?;
        match self.first.take() {
            Some(first) if asked == 0 => Ok(first),
            first => {
                self.first = first;
                let context = if asked == 0 { self.context } else { asked };
                Timeline::new(self.loaded.clone(), context).map_err(js)
            }
        }
    }

    /// Begins to embed a text. `pooling`: `mean` or `last`.
    ///
    /// # Errors
    /// `length` if there are no tokens, `context_full` if there are more than the model can see, `memory`.
    pub fn embedder(&self, tokens: Vec<u32>, pooling: &str) -> JsResult<Embedder> {
        let pooling = pooling_named(pooling)?;
        Embedder::new(self.loaded.clone(), tokens, pooling).map_err(js)
    }
}

impl Model {
    fn build(mut bytes: Vec<u8>, options: &CpuOptions, kv: KvFormat, shrink: bool) -> Result<Model> {
        let file_bytes = bytes.len();
        let mut fingerprint = Fingerprint::default();
        fingerprint.push(&bytes);
        let (tokenizer, facts) = {
            let gguf = Gguf::parse(&bytes)?;
            let tokenizer = Tokenizer::from_gguf(&gguf)?.into_owned();
            let facts = Facts::of(gguf.header(), &tokenizer)?;
            (tokenizer, facts)
        };
        let int8 = options.activations == Activations::Int8;
        if int8 {
            bytes = expanded(bytes, options.isa)?;
        }
        let model = BonsaiModel::load(bytes)?;
        // The copy is ours: the weights may lie as the kernels read them fastest.
        let weights =
            if int8 { CpuWeights::repack(model, options.isa, pool())? } else { CpuWeights::new(model)? };
        let loaded = Rc::new(Loaded {
            tokenizer,
            weights: Arc::new(weights),
            options: *options,
            kv,
            file_bytes,
            facts,
            fingerprint: fingerprint.finish(),
        });
        let mut context = options.context;
        let first = loop {
            match Timeline::new(loaded.clone(), context) {
                Err(Error::Memory { .. }) if shrink && context > LEAST_CONTEXT => context /= 2,
                first => break first?,
            }
        };
        let context = first.context();
        let plan = loaded
            .weights
            .memory_plan(&CpuOptions { context, ..loaded.options }, &SessionOptions { context, kv })?;
        Ok(Model { first: Some(first), loaded, context, plan })
    }
}

/// The numbers of a preset that a page shows.
fn preset(name: &str) -> JsValue {
    let config = SamplerConfig::preset(name).unwrap_or(SamplerConfig::greedy());
    // f32 to f64 by way of decimal digits, so that 0.7 stays 0.7.
    let number = |x: f32| JsValue::from_f64(x.to_string().parse().unwrap_or(f64::from(x)));
    object([
        ("temperature", number(config.temperature)),
        ("topK", JsValue::from_f64(config.top_k as f64)),
        ("topP", number(config.top_p)),
        ("repetitionPenalty", number(config.repetition_penalty)),
    ])
}

/// A plain object.
fn object<const N: usize>(fields: [(&str, JsValue); N]) -> JsValue {
    let object = Object::new();
    for (name, value) in fields {
        // Setting a property of a fresh, extensible object cannot fail.
        let _ = Reflect::set(&object, &JsValue::from_str(name), &value);
    }
    object.into()
}
