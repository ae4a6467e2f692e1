//! A loaded model with one timeline.

use crate::buffer::FileBuffer;
use crate::conversation::Conversation;
use crate::embedding::{Embedder, pooling_named};
use crate::error::{JsResult, js};
use crate::lent::Lent;
use crate::sampling::whole;
use crate::snapshot::Fingerprint;
use crate::team::pool;
use crate::timeline::Timeline;
use crate::words::know_words;
use js_sys::{Array, Object, Reflect};
use shohin_core::KvFormat;
use shohin_core::chat::{Style, Template};
use shohin_core::constrain::Vocabulary;
use shohin_core::gguf::{self, Expansion, Header, ReadOptions};
use shohin_core::kernel::Isa;
use shohin_core::model::{Activations, BonsaiModel, MemoryPlan, ModelVariant, Qwen3Config, SessionOptions};
use shohin_core::tokenizer::Tokenizer;
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
    options: SessionOptions,
    plan: MemoryPlan,
}

/// What all conversations share.
// The fields are dropped in this order: each borrows only from those after it.
pub(crate) struct Loaded {
    pub(crate) tokenizer: Tokenizer<'static>,
    pub(crate) model: Lent<BonsaiModel<'static>>,
    bytes: Lent<Vec<u8>>,
    /// Bytes of the file as it came.
    file_bytes: usize,
    pub(crate) facts: Facts,
    pub(crate) fingerprint: [u8; 32],
}

impl Loaded {
    /// Prompt tokens in one step: enough to share the unpacking of a weight row, few enough to look for an abort within
    /// a second or so.
    pub(crate) fn batch(&self) -> usize {
        // SAFETY: used within this call only.
        if unsafe { self.model.lend() }.config().num_parameters() < 500_000_000 { 64 } else { 16 }
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
    let Ok(Some(Expansion { room, .. })) = gguf::expansion(&Gguf::parse(&bytes)?, len) else {
        return Ok(bytes);
    };
    if bytes.try_reserve_exact(room - len).is_err() {
        return Ok(bytes);
    }
    bytes.resize(room, 0);
    bytes.copy_within(..len, room - len);
    let len = gguf::expand(&mut bytes, len, &ReadOptions::default(), isa, pool())?;
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
        config: &Qwen3Config,
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
    KvFormat::named(name).ok_or_else(|| unknown("kv", name, "f32, f16 or q8"))
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
        let mut options = SessionOptions {
            kv: kv_named(kv)?,
            activations: activations_named(activations)?,
            ..SessionOptions::default()
        };
        let asked = whole("context", context)?;
        if asked > 0 {
            options.context = asked;
        }
        Self::build(file.into_bytes(), &options, asked == 0).map_err(js)
    }

    /// Everything there is to know, as `EngineInfo` of the TypeScript side.
    pub fn info(&self) -> JsValue {
        // SAFETY: used within this call only.
        let (model, bytes) = unsafe { (self.loaded.model.lend(), self.loaded.bytes.lend()) };
        let MemoryPlan { kv, total, .. } = self.plan;
        let memory = Memory { weights: bytes.len(), kv, scratch: total - kv };
        let (isa, capacity) = (self.options.isa.name(), self.options.context);
        let Loaded { facts, file_bytes, .. } = &*self.loaded;
        facts.info(model.config(), "cpu", isa, pool().workers(), *file_bytes, capacity, &memory)
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
                let context = if asked == 0 { self.options.context } else { asked };
                let options = SessionOptions { context, ..self.options };
                Timeline::new(self.loaded.clone(), &options).map_err(js)
            }
        }
    }

    /// Begins to embed a text. `pooling`: `mean` or `last`.
    ///
    /// # Errors
    /// `length` if there are no tokens, `context_full` if there are more than the model can see, `memory`.
    pub fn embedder(&self, tokens: Vec<u32>, pooling: &str) -> JsResult<Embedder> {
        let pooling = pooling_named(pooling)?;
        Embedder::new(self.loaded.clone(), &self.options, tokens, pooling).map_err(js)
    }
}

impl Model {
    fn build(mut bytes: Vec<u8>, options: &SessionOptions, shrink: bool) -> Result<Model> {
        let (file_bytes, formats) = (bytes.len(), formats(Gguf::parse(&bytes)?.header()));
        let mut fingerprint = Fingerprint::default();
        fingerprint.push(&bytes);
        if options.activations == Activations::Int8 {
            // The copy is ours: the weights may lie as the kernels like them best.
            bytes = expanded(bytes, options.isa)?;
            gguf::interleave(
                &mut bytes,
                &ReadOptions::default(),
                |format| options.isa.layout(format),
                pool(),
            )?;
        }
        // Declared in the order in which they lend to each other: should a later step fail, they are dropped in reverse.
        let bytes = Lent::new(bytes);
        // SAFETY: everything that borrows from `bytes` is a variable declared after it here, or a field before it.
        let gguf = Gguf::parse(unsafe { bytes.lend() })?;
        let model = Lent::new(BonsaiModel::from_gguf(&gguf)?);
        let tokenizer = Tokenizer::from_gguf(&gguf)?;
        let facts = Facts { formats, ..Facts::of(gguf.header(), &tokenizer)? };
        let fingerprint = fingerprint.finish();
        let loaded = Rc::new(Loaded { tokenizer, model, bytes, file_bytes, facts, fingerprint });
        let mut options = *options;
        let first = loop {
            match Timeline::new(loaded.clone(), &options) {
                Err(Error::Memory { .. }) if shrink && options.context > LEAST_CONTEXT => {
                    options.context /= 2
                }
                first => break first?,
            }
        };
        let options = *first.options();
        // SAFETY: used within this call only.
        let plan = unsafe { loaded.model.lend() }.memory_plan(&options)?;
        Ok(Model { first: Some(first), loaded, options, plan })
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
