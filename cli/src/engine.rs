//! A model ready to run: the file in memory, everything read from it, and the threads.

use crate::args::{Act, EngineArgs, Id42Layout};
use crate::failure::{At, Failure, Outcome};
use crate::terminal;
use shohin::file::ShardBytes;
use shohin::gpu::Device;
use shohin::timeline::{OnCpu, Timeline};
use shohin::{ModelFile, ThreadPool, memory};
use shohin_core::chat::{ChatModel, Conversation, Finish, Piece, Progress, Style, Template, drive};
use shohin_core::constrain::Vocabulary;
use shohin_core::cpu::repack::repacks;
use shohin_core::cpu::{CpuWeights, Isa, MemoryPlan};
use shohin_core::generate::Detokenizer;
use shohin_core::gguf::{Id42, ReadOptions};
use shohin_core::model::ModelVariant;
use shohin_core::quant::WeightClass;
use shohin_core::tokenizer::Special;
use shohin_core::{
    Activations, BonsaiModel, Cpu, CpuOptions, Format, Gguf, KvFormat, Pool, SessionOptions, Tokenizer,
};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Opens the file that `--model` names, or the built-in model without one.
pub(crate) fn open(args: &EngineArgs) -> Outcome<ModelFile> {
    match &args.model {
        Some(path) => Ok(ModelFile::open(path)?),
        None => Ok(ModelFile::built_in()),
    }
}

fn isa(args: &EngineArgs) -> Outcome<Isa> {
    let Some(name) = &args.isa else { return Ok(Isa::detect()) };
    Isa::named(name).map_err(|_| {
        let have: Vec<&str> = Isa::available().map(Isa::name).collect();
        let have = have.join(", ");
        Failure::usage(format_args!("--isa is {name:?}, expected one this machine has: {have}"))
    })
}

fn threads(args: &EngineArgs) -> Outcome<ThreadPool> {
    let threads = args.threads.map_or_else(default_threads, usize::from);
    Ok(ThreadPool::new(threads).map_err(|source| shohin::Error::Threads { count: threads, source })?)
}

pub(crate) fn read_options(args: &EngineArgs) -> ReadOptions {
    let id42 = match args.id42 {
        Id42Layout::Auto => Id42::Auto,
        Id42Layout::Group64 => Id42::Group64,
        Id42Layout::Group128 => Id42::Group128,
        Id42Layout::CodesFirst => Id42::CodesFirst,
    };
    ReadOptions { id42, ..ReadOptions::default() }
}

/// Everything a command needs.
pub(crate) struct Engine<'f> {
    pub(crate) gguf: Gguf<'f>,
    pub(crate) weights: Arc<CpuWeights<ShardBytes>>,
    pub(crate) tokenizer: Tokenizer<'f>,
    pub(crate) template: Template,
    pub(crate) options: CpuOptions,
    pub(crate) kv: KvFormat,
    pub(crate) pool: ThreadPool,
    /// Where `--gpu` has put the weights.
    pub(crate) gpu: Option<Device>,
    pub(crate) load_time: Duration,
    /// Of most of the weights in the file.
    format: Option<Format>,
    file_bytes: usize,
    /// Bytes of the weights while the model runs.
    pub(crate) held_bytes: usize,
    /// The context that was asked for, 0 if none was.
    asked: usize,
}

impl<'f> Engine<'f> {
    /// Loads the model, its weights rearranged in memory for the instruction set.
    pub(crate) fn load(file: &'f ModelFile, args: &EngineArgs) -> Outcome<Self> {
        Engine::new(file, args, args.act == Act::Int8 && args.gpu.is_none())
    }

    /// The same with the weights as they are in the file.
    pub(crate) fn of_file(file: &'f ModelFile, args: &EngineArgs) -> Outcome<Self> {
        Engine::new(file, args, false)
    }

    fn new(file: &'f ModelFile, args: &EngineArgs, repack: bool) -> Outcome<Self> {
        let start = Instant::now();
        let pool = threads(args)?;
        let isa = isa(args)?;
        let read = read_options(args);
        let gguf = file.gguf(&read)?;
        let weights = file.weights(&read, repack, args.compact, isa, &pool, |config| config)?;
        let tokenizer = Tokenizer::from_gguf(&gguf).at(file.name())?;
        let template = Template::from_metadata(gguf.metadata(), &tokenizer).at(file.name())?;
        let options = CpuOptions {
            context: args.context.map_or(4096, |n| n as usize),
            activations: match args.act {
                Act::Int8 => Activations::Int8,
                Act::F32 => Activations::F32,
            },
            isa,
            ..CpuOptions::default()
        };
        let gpu = args.gpu.as_deref().map(|name| Device::load(name, &gguf)).transpose()?;
        let load_time = start.elapsed();
        let format = file.format(&read)?;
        let expands = args.act == Act::Int8 && args.gpu.is_none() && !args.compact && repacks(isa);
        let held_bytes = file.resident_len(&read, expands)?;
        let file_bytes = file.file_len();
        Ok(Engine {
            gguf,
            weights: Arc::new(weights),
            tokenizer,
            template,
            options,
            kv: args.kv,
            pool,
            gpu,
            load_time,
            format,
            file_bytes,
            held_bytes,
            asked: args.context.map_or(0, |n| n as usize),
        })
    }

    /// A session for `context` tokens at most.
    pub(crate) fn session(&self, context: usize) -> Outcome<Box<dyn Timeline + '_>> {
        let options = SessionOptions { context, kv: self.kv };
        if let Some(gpu) = &self.gpu {
            return Ok(gpu.timeline(&options, self.options.activations)?);
        }
        let mut device = self.device(context, self.options.logit_rows)?;
        let session = memory::session(&mut device, &options)?;
        Ok(Box::new(OnCpu { device, session }))
    }

    /// The CPU, for sequences of `context` tokens, with room for the logits of `logit_rows`.
    pub(crate) fn device(&self, context: usize, logit_rows: usize) -> Outcome<Cpu<'_, ShardBytes>> {
        let options = CpuOptions { context, logit_rows, ..self.options };
        Ok(Cpu::with_weights(Arc::clone(&self.weights), &options, &self.pool)?)
    }

    /// The model.
    pub(crate) fn model(&self) -> &BonsaiModel<ShardBytes> {
        self.weights.model()
    }

    /// The bytes that a session takes with its device.
    pub(crate) fn memory_plan(&self, context: usize) -> Outcome<MemoryPlan> {
        let options = CpuOptions { context, ..self.options };
        Ok(self.weights.memory_plan(&options, &SessionOptions { context, kv: self.kv })?)
    }

    /// What to say of a chat template that is not one of those this runtime writes.
    pub(crate) fn template_warning(&self) -> Option<String> {
        let style = match self.template.style {
            Style::Qwen3 => "Qwen3's",
            Style::Plain => "plain ChatML",
        };
        (!self.template.known).then(|| format!("(this model's chat template is unknown; {style} is used)"))
    }

    /// Says on standard error which options have not the effect that they were given for.
    pub(crate) fn remark_on(&self, think: bool) {
        let most = self.model().config().max_context_length;
        if self.asked > most {
            terminal::remark(format_args!("(the context is {most} tokens, the most this model can)"));
        }
        if think && self.template.style != Style::Qwen3 {
            terminal::remark("(this model cannot think before it answers; --think does nothing)");
        }
    }

    /// What conversations need of the model.
    pub(crate) fn chat_model<'e>(&'e self, vocabulary: &'e dyn Fn() -> Arc<Vocabulary>) -> ChatModel<'e> {
        let logits = self.model().config().vocab_size;
        ChatModel { tokenizer: &self.tokenizer, template: self.template, logits, vocabulary }
    }

    /// The vocabulary in the form that constraints need.
    pub(crate) fn vocabulary(&self) -> Arc<Vocabulary> {
        Arc::new(Vocabulary::new(&self.tokenizer))
    }

    /// The name in the file's metadata, else of the published model it equals.
    pub(crate) fn name(&self) -> String {
        let named = self.gguf.metadata().str("general.name").ok().flatten().unwrap_or_default();
        let variant = self.variant();
        match (named, variant) {
            ("", ModelVariant::Custom) => "unnamed model".into(),
            ("", known) => known.name().into(),
            (named, _) => named.chars().filter(|c| !c.is_control()).take(60).collect(),
        }
    }

    pub(crate) fn variant(&self) -> ModelVariant {
        self.model().variant()
    }

    /// Bytes of the model's files.
    pub(crate) fn file_bytes(&self) -> usize {
        self.file_bytes
    }

    /// `ternary (PQ2_0)`
    pub(crate) fn kind(&self) -> String {
        let Some(format) = self.format else { return "no layers".into() };
        let bits = match format.class() {
            WeightClass::OneBit => "1-bit",
            WeightClass::Ternary => "ternary",
            WeightClass::Integer | WeightClass::Float => return format.name().into(),
        };
        format!("{bits} ({})", format.name())
    }

    /// `2 threads, avx512vnni, int8 activations, f16 cache`
    pub(crate) fn settings(&self) -> String {
        if let Some(gpu) = &self.gpu {
            return format!("{}, {} activations, {} cache", gpu.name(), self.act_name(), self.kv_name());
        }
        let threads = match self.pool.workers() {
            1 => "1 thread".into(),
            n => format!("{n} threads"),
        };
        let isa = self.options.isa.name();
        format!("{threads}, {isa}, {} activations, {} cache", self.act_name(), self.kv_name())
    }

    pub(crate) fn act_name(&self) -> &'static str {
        match self.options.activations {
            Activations::Int8 => "int8",
            Activations::F32 => "f32",
        }
    }

    pub(crate) fn kv_name(&self) -> &'static str {
        self.kv.name()
    }

    /// The tokens of a text that is no chat, with the token that texts begin with if the model has one.
    pub(crate) fn encode_plain(&self, text: &str, special: Special) -> Vec<u32> {
        let mut ids = Vec::from_iter(self.tokenizer.leading_bos());
        self.tokenizer.encode(text, special, &mut ids);
        ids
    }
}

/// Cores this program may use.
fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Times and counts of one reply.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timings {
    /// Prompt tokens that were computed, and that were held already.
    pub(crate) prompt: usize,
    pub(crate) reused: usize,
    pub(crate) prompt_time: Duration,
    /// Tokens generated, the one that ended the reply included.
    pub(crate) reply: usize,
    /// Those of the reply itself.
    pub(crate) shown: usize,
    /// From the first token's choice to the end.
    pub(crate) reply_time: Duration,
}

impl Timings {
    pub(crate) fn prompt_speed(&self) -> f64 {
        speed(self.prompt, self.prompt_time)
    }

    /// The first token costs no decoding: its scores come from the prompt.
    pub(crate) fn reply_speed(&self) -> f64 {
        speed(self.reply.saturating_sub(1), self.reply_time)
    }

    /// One line for people.
    pub(crate) fn line(&self) -> String {
        let reused = match self.reused {
            0 => String::new(),
            n => format!(" (+ {n} remembered)"),
        };
        let (prompt, reply) = (terminal::short(self.prompt_speed()), terminal::short(self.reply_speed()));
        let (n, m) = (self.prompt, self.shown);
        format!("prompt {n} tokens{reused}, {prompt} tok/s; reply {m} tokens, {reply} tok/s")
    }
}

fn speed(tokens: usize, time: Duration) -> f64 {
    if tokens == 0 { 0.0 } else { tokens as f64 / time.as_secs_f64().max(1e-9) }
}

/// Runs the turn that was begun to its end, or to Ctrl-C, with a progress bar while a long prompt is read.
pub(crate) fn reply(
    conversation: &mut Conversation,
    session: &mut dyn Timeline,
    engine: &Engine<'_>,
    interrupted: &dyn Fn() -> bool,
    on_piece: &mut dyn FnMut(Piece<'_>) -> Outcome,
) -> Outcome<(Finish, Timings)> {
    let start = Instant::now();
    let held = conversation.held();
    let (_, total) = conversation.prompt_progress();
    let mut timings = Timings { prompt: total - held, reused: held, ..Timings::default() };
    let mut bar = None;
    let mut failed = None;
    let mut first_token = None;
    let finish = drive(conversation, session, &engine.tokenizer, &mut |progress| {
        match progress {
            Progress::Prompt(decoded, of) => {
                // Only prompts that take a while are worth a bar.
                if start.elapsed() > Duration::from_millis(500) || bar.is_some() {
                    let bar = bar.get_or_insert_with(|| terminal::progress("reading", "tokens", of - held));
                    bar.set_position((decoded - held) as u64);
                }
            }
            Progress::Piece(piece) => {
                if piece.token.is_some() {
                    if first_token.is_none() {
                        first_token = Some(Instant::now());
                        if let Some(bar) = bar.take() {
                            bar.finish_and_clear();
                        }
                    }
                    timings.reply += 1;
                }
                failed = failed.take().or(on_piece(piece).err());
            }
        }
        if failed.is_some() || interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    if let Some(failure) = failed {
        return Err(failure);
    }
    let first_token = first_token.unwrap_or_else(Instant::now);
    timings.prompt_time = first_token - start;
    timings.reply_time = first_token.elapsed();
    let finish = finish?.ok_or_else(|| Failure::new("nothing was asked"))?;
    timings.shown = finish.usage.completion_tokens;
    Ok((finish, timings))
}

/// The text of a single token for listings: whole only if the token is.
pub(crate) fn token_text(tokenizer: &Tokenizer<'_>, token: u32) -> String {
    let mut bytes = Vec::new();
    tokenizer.append_text(token, &mut bytes);
    if bytes.is_empty() {
        // A control token: by its name.
        bytes.extend(tokenizer.token_bytes(token).into_iter().flatten());
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
