//! A loaded model with one timeline.

use crate::buffer::FileBuffer;
use crate::conversation::Conversation;
use crate::error::{JsResult, js};
use crate::lent::Lent;
use crate::sampling::{Sampling, whole};
use crate::team::pool;
use js_sys::{Array, Object, Reflect};
use shohin_core::KvFormat;
use shohin_core::chat::{self, Style, Template};

use shohin_core::generate::{self, Event, Generation, Need, Reason};
use shohin_core::gguf::{self, Header, ReadOptions};
use shohin_core::kernel::Isa;
use shohin_core::model::{
    Activations, BonsaiModel, MemoryPlan, ModelVariant, Qwen3Config, Session, SessionOptions,
};
use shohin_core::sample::DRY_BREAKERS;
use shohin_core::tokenizer::{Decoder, Special, Tokenizer};
use shohin_core::{Error, Format, Gguf, Name, Result, SamplerConfig};
use wasm_bindgen::prelude::*;

/// A conversation shorter than this is none: rather fail.
const LEAST_CONTEXT: usize = 512;

/// What a step did.
#[wasm_bindgen]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Part of the prompt was read.
    Prefill = 0,
    /// There is a new token, and perhaps text.
    Token = 1,
    /// The generation is over; there may be text that was held back.
    Done = 2,
}

/// A model in memory, and the conversation it remembers.
// The fields are dropped in this order: each borrows only from those after it.
#[wasm_bindgen]
pub struct Model {
    generation: Option<Generation>,
    session: Session<'static>,
    tokenizer: Tokenizer<'static>,
    model: Lent<BonsaiModel<'static>>,
    bytes: Lent<Vec<u8>>,

    /// Bytes of the file as it came.
    file_bytes: usize,
    facts: Facts,
    plan: MemoryPlan,
    /// The tokens in the cache.
    held: Vec<u32>,
    text: String,
    token: u32,
    reason: Option<Reason>,
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
    formats.sort_by_key(|&(_, bytes)| std::cmp::Reverse(bytes));
    formats.into_iter().map(|(name, _)| name).collect()
}

/// The file with 2-bit codes for base-3 digits, which are several times as fast; as it is where it has none,
/// or where there is no memory for both.
fn expanded(bytes: Vec<u8>, isa: Isa) -> Result<Vec<u8>> {
    // Larger than the address space is as good as larger than memory.
    let Ok(Some(len)) = gguf::expanded_len(&Gguf::parse(&bytes)?) else { return Ok(bytes) };
    let mut out = Vec::new();
    if out.try_reserve_exact(len).is_err() {
        return Ok(bytes);
    }
    out.resize(len, 0);
    gguf::expand(&bytes, &ReadOptions::default(), isa, pool(), &mut out)?;
    Ok(out)
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
    template: Template,
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
        })
    }

    #[cfg(feature = "gpu")]
    pub(crate) fn template(&self) -> Template {
        self.template
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
        _ => {
            let (key, found) = (Name::new("activations"), Name::new(name));
            Err(js(Error::Unsupported { key, found, expected: "int8 or f32" }))
        }
    }
}

/// Token ids to text, control tokens included.
pub(crate) fn detokenize(tokenizer: &Tokenizer<'_>, ids: &[u32]) -> Result<String> {
    let vocab = tokenizer.vocab_size();
    let mut decoder = Decoder::new(tokenizer).show_control(true);
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

#[wasm_bindgen]
impl Model {
    /// Reads the model in `file` where it lies, and takes the memory for `context` tokens (0: the model's own limit, at
    /// most 4096, less where memory is short).
    ///
    /// # Errors
    /// What is wrong with the file, an unknown option, or `memory`.
    pub fn load(file: FileBuffer, context: f64, kv: &str, activations: &str) -> JsResult<Model> {
        let unknown = |key, found, expected| {
            js(Error::Unsupported { key: Name::new(key), found: Name::new(found), expected })
        };
        let mut options = SessionOptions {
            kv: KvFormat::named(kv).ok_or_else(|| unknown("kv", kv, "f32, f16 or q8"))?,
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
        let (model, bytes) = unsafe { (self.model.lend(), self.bytes.lend()) };
        let MemoryPlan { kv, total, .. } = self.plan;
        let memory = Memory { weights: bytes.len(), kv, scratch: total - kv };
        let (isa, capacity) = (self.session.options().isa.name(), self.session.capacity());
        self.facts.info(model.config(), "cpu", isa, pool().workers(), self.file_bytes, capacity, &memory)
    }

    /// Text to token ids; with `special`, control tokens in the text become themselves.
    pub fn tokenize(&self, text: &str, special: bool) -> Vec<u32> {
        let mut ids = Vec::new();
        self.tokenizer.encode(text, if special { Special::Parse } else { Special::Text }, &mut ids);
        ids
    }

    /// Token ids to text, control tokens included.
    ///
    /// # Errors
    /// `token` for an id that is not in the vocabulary.
    pub fn detokenize(&self, ids: &[u32]) -> JsResult<String> {
        detokenize(&self.tokenizer, ids).map_err(js)
    }

    /// Token ids of a conversation up to where the model's reply begins.
    ///
    /// # Errors
    /// If the vocabulary has no control tokens for a chat, or there are tools and the model's template has none.
    pub fn encode_chat(&self, conversation: &Conversation, thinking: bool) -> JsResult<Vec<u32>> {
        conversation
            .with(self.facts.template, thinking, |messages, options| {
                chat::encode(&self.tokenizer, messages, options)
            })
            .map_err(js)
    }

    /// Begins a generation; returns how many tokens of the prompt are in the cache already.
    ///
    /// # Errors
    /// `option` for a setting outside its range, `context_full` if the prompt does not fit, `length` if it is empty.
    pub fn begin(&mut self, prompt: &[u32], sampling: Sampling) -> JsResult<usize> {
        self.start(prompt, sampling).map_err(js)
    }

    /// Does the next bounded piece of work.
    ///
    /// # Errors
    /// `logits` if the model's output is unusable.
    pub fn step(&mut self) -> JsResult<Step> {
        self.advance().map_err(js)
    }

    /// The text since the last call.
    pub fn take_text(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    /// The newest token.
    pub fn last_token(&self) -> u32 {
        self.token
    }

    /// Why the generation ended; empty before.
    pub fn reason(&self) -> String {
        self.reason.map_or("", Reason::code).to_owned()
    }

    /// Ends the generation; what it computed stays in the cache. Does nothing if there is none.
    pub fn end(&mut self) {
        if let Some(generation) = self.generation.take() {
            self.held.clear();
            self.held.extend_from_slice(generation.held());
        }
        // After a failure the two can differ: keep what both agree on.
        let agreed = self.held.len().min(self.session.position());
        self.held.truncate(agreed);
        if self.session.truncate(agreed).is_err() {
            self.held.clear();
        }
        self.text.clear();
    }
}

impl Model {
    fn build(mut bytes: Vec<u8>, options: &SessionOptions, shrink: bool) -> Result<Model> {
        let (file_bytes, formats) = (bytes.len(), formats(Gguf::parse(&bytes)?.header()));
        if options.activations == Activations::Int8 {
            // The copy is ours: the weights may lie as the kernels like them best.
            bytes = expanded(bytes, options.isa)?;
            gguf::interleave(&mut bytes, &ReadOptions::default(), options.isa.layout(), pool())?;
        }
        // Declared in the order in which they lend to each other: should a later step fail, they are dropped in reverse.
        let bytes = Lent::new(bytes);
        // SAFETY: everything that borrows from `bytes` is a variable declared after it here, or a field before it.
        let gguf = Gguf::parse(unsafe { bytes.lend() })?;
        let model = Lent::new(BonsaiModel::from_gguf(&gguf)?);
        let tokenizer = Tokenizer::from_gguf(&gguf)?;
        let facts = Facts { formats, ..Facts::of(gguf.header(), &tokenizer)? };
        // SAFETY: as for `bytes`.
        let borrowed = unsafe { model.lend() };
        let mut options = *options;
        let session = loop {
            match Session::new(borrowed, &options) {
                Err(Error::Memory { .. }) if shrink && options.context > LEAST_CONTEXT => {
                    options.context /= 2
                }
                session => break session?,
            }
        };
        let plan = borrowed.memory_plan(session.options())?;
        Ok(Model {
            generation: None,
            session,
            tokenizer,
            model,
            bytes,
            file_bytes,
            facts,
            plan,
            held: Vec::new(),
            text: String::new(),
            token: 0,
            reason: None,
        })
    }

    fn start(&mut self, prompt: &[u32], sampling: Sampling) -> Result<usize> {
        self.end();
        self.reason = None;
        let Sampling { config, mut options } = sampling;
        options.batch = self.batch();
        let mut sampler = shohin_core::Sampler::new(&config, self.session.model().config().vocab_size)?;
        sampler.break_at_bytes(&self.tokenizer, DRY_BREAKERS);
        let cached = generate::reusable(&self.held, prompt);
        let generation = Generation::new(prompt, cached, self.session.capacity(), sampler, options)?;
        self.session.truncate(cached)?;
        self.held.truncate(cached);
        self.generation = Some(generation);
        Ok(cached)
    }

    /// Prompt tokens in one step: enough to share the unpacking of a weight row, few enough to look for an abort within
    /// a second or so.
    fn batch(&self) -> usize {
        if self.session.model().config().num_parameters() < 500_000_000 { 64 } else { 16 }
    }

    fn advance(&mut self) -> Result<Step> {
        let Some(generation) = &mut self.generation else { return Ok(Step::Done) };
        let logits = match generation.next() {
            Need::Feed(tokens) => self.session.forward_prefill(tokens, pool())?,
            Need::Done(reason) => {
                self.reason = Some(reason);
                return Ok(Step::Done);
            }
        };
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
