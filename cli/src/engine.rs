//! A model ready to run: the file in memory, everything read from it, and the threads.

use crate::args::{Act, EngineArgs, Id42Layout, Kv};
use crate::failure::{At, Failure, Outcome, file_error};
use crate::gpu::Device;
use crate::memory;
use crate::pool::Threads;
use crate::terminal;
use crate::timeline::{OnCpu, Timeline};
use memmap2::{Mmap, MmapMut};
use shohin_core::chat::{Style, Template};
use shohin_core::generate::{Detokenizer, Generation, Reason, Step, drive};
use shohin_core::gguf::{self, Expansion, Id42, MAX_PARTS, ReadOptions};
use shohin_core::kernel::Isa;
use shohin_core::model::ModelVariant;
use shohin_core::sample::DRY_BREAKERS;
use shohin_core::tokenizer::Special;
use shohin_core::{
    Activations, BonsaiModel, Format, Gguf, KvFormat, Pool, Sampler, SamplerConfig, SessionOptions, Tokenizer,
};
use std::fs::File;
use std::io::{Read, Seek};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The model that needs no download.
static BUILT_IN: &[u8] = include_bytes!("../../models/sprout.gguf");

/// A model file in memory, or all files of a model in parts.
pub(crate) struct ModelFile {
    /// What to call it in messages.
    pub(crate) name: String,
    /// At least one.
    parts: Vec<Part>,
    /// What most of the weights were before they were rearranged.
    format: Option<Format>,
}

struct Part {
    /// What to call it in messages.
    name: String,
    bytes: Bytes,
}

enum Bytes {
    BuiltIn,
    Mapped(Mmap, File),
    /// Read, to be interleaved: its first `len` bytes are the model, made of a file of `stored` bytes.
    Read {
        memory: MmapMut,
        len: usize,
        stored: usize,
    },
}

/// The parts of the model that `path` is one of, first to last, by its name: `name-00001-of-00003.gguf`.
fn part_paths(path: &Path) -> Option<Vec<PathBuf>> {
    let name = path.file_name()?.to_str()?;
    let (stem, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, no) = stem.rsplit_once('-')?;
    let number = |digits: &str| {
        let digits = digits.as_bytes().iter().all(u8::is_ascii_digit).then_some(digits)?;
        (digits.len() == 5).then(|| digits.parse::<u32>().ok())?
    };
    let (no, count) = (number(no)?, number(count)?);
    let path = |i| path.with_file_name(format!("{stem}-{i:05}-of-{count:05}.gguf"));
    (1..=count).contains(&no).then(|| (1..=count).map(path).collect())
}

impl Part {
    /// Maps the file: nothing is read until it is used, and the system shares it between programs.
    #[allow(unsafe_code)]
    fn open(path: &Path) -> Outcome<Part> {
        let url = path.to_str().filter(|path| path.starts_with("https://") || path.starts_with("http://"));
        if let Some(url) = url {
            return Err(Failure::usage(format_args!(
                "--model is an address, but nothing is downloaded here; get the file first: curl -LO {url}"
            )));
        }
        let file = File::open(path).map_err(|e| file_error("open the model", path, &e))?;
        let meta = file.metadata().map_err(|e| file_error("open the model", path, &e))?;
        if meta.is_dir() {
            let path = path.display();
            return Err(Failure::new(format_args!("{path} is a directory, expected a GGUF file")));
        }
        if !meta.is_file() {
            let path = path.display();
            return Err(Failure::new(format_args!(
                "{path} is a pipe or a device, but a model must be a regular file"
            )));
        }
        if meta.len() == 0 {
            return Err(Failure::new(format_args!("{} is empty, expected a GGUF file", path.display())));
        }
        // SAFETY: the mapping is read-only. As with every mapped file, a program that cuts the file short
        // meanwhile ends this one; one that changes its bytes changes the model's weights.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| file_error("map the model", path, &e))?;
        Ok(Part { name: path.display().to_string(), bytes: Bytes::Mapped(map, file) })
    }

    fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::BuiltIn => BUILT_IN,
            Bytes::Mapped(map, _) => map,
            Bytes::Read { memory, len, .. } => &memory[..*len],
        }
    }

    /// Bytes of the file itself.
    fn file_len(&self) -> usize {
        match &self.bytes {
            Bytes::Read { stored, .. } => *stored,
            _ => self.bytes().len(),
        }
    }

    /// What expanding its base-3 matrices takes, if it has such.
    fn expansion(&self, options: &ReadOptions) -> Outcome<Option<Expansion>> {
        let gguf = Gguf::parse_with(self.bytes(), options).at(&self.name)?;
        gguf::expansion(&gguf, self.bytes().len()).at(&self.name)
    }

    /// Rearranges the weights in memory, where there is enough of it.
    fn interleave(&mut self, options: &ReadOptions, compact: bool, isa: Isa, pool: &dyn Pool) -> Outcome<()> {
        let expansion = if compact { None } else { self.expansion(options)? };
        let stored = self.file_len();
        let failed = |e| file_error("read the model", Path::new(&self.name), &e);
        let room = expansion.map_or(stored, |expansion| expansion.room);
        let Ok(mut memory) = memory::pages(room) else {
            // Slower, but the mapped file needs no memory of its own.
            return Ok(());
        };
        let end = &mut memory[room - stored..];
        match &mut self.bytes {
            Bytes::Mapped(_, file) => {
                // Not copied from the mapping, or the model would be in memory twice.
                file.rewind().and_then(|()| file.read_exact(end)).map_err(failed)?;
            }
            Bytes::BuiltIn => end.copy_from_slice(BUILT_IN),
            Bytes::Read { .. } => return Ok(()),
        }
        let mut len = stored;
        if expansion.is_some() {
            len = gguf::expand(&mut memory, stored, options, isa, pool).at(&self.name)?;
        }
        self.bytes = Bytes::Read { memory, len, stored };
        let Bytes::Read { memory, .. } = &mut self.bytes else { return Ok(()) };
        gguf::interleave(&mut memory[..len], options, |format| isa.layout(format), pool).at(&self.name)
    }
}

impl ModelFile {
    /// Finds the file, or the built-in model without a path; of a model in parts all files beside it.
    pub(crate) fn open(path: Option<&Path>) -> Outcome<Self> {
        let Some(path) = path else {
            let name = String::from("built-in model");
            let parts = vec![Part { name: name.clone(), bytes: Bytes::BuiltIn }];
            return Ok(ModelFile { name, parts, format: None });
        };
        let name = path.display().to_string();
        let Some(paths) = part_paths(path).filter(|paths| paths.len() > 1) else {
            return Ok(ModelFile { name, parts: vec![Part::open(path)?], format: None });
        };
        if paths.len() > MAX_PARTS {
            let count = paths.len();
            return Err(Failure::new(format_args!(
                "{name}: the model has {count} parts by its name, but {MAX_PARTS} are the most"
            )));
        }
        let parts = paths.iter().map(|path| Part::open(path)).collect::<Outcome<Vec<Part>>>();
        let count = paths.len();
        let parts = parts.at(format_args!("the model has {count} parts, and all are needed"))?;
        Ok(ModelFile { name, parts, format: None })
    }

    /// The file's contents, checked.
    pub(crate) fn gguf(&self, args: &EngineArgs) -> Outcome<Gguf<'_>> {
        let parts: Vec<&[u8]> = self.parts.iter().map(Part::bytes).collect();
        Gguf::parse_parts(&parts, &read_options(args)).map_err(|wrong| {
            let name = self.parts.get(wrong.part).map_or(&self.name, |part| &part.name);
            Failure::new(format_args!("{name}: {}", wrong.error))
        })
    }

    /// How to read single parts, of which not each tells by itself what it holds.
    fn part_options(&self, args: &EngineArgs) -> Outcome<ReadOptions> {
        let options = read_options(args);
        if self.parts.len() == 1 {
            return Ok(options);
        }
        let id42 = self.gguf(args)?.header().id42(options.id42);
        Ok(ReadOptions { id42, ..options })
    }

    /// Rearranges the weights in memory as `isa` likes them; the file stays as it is.
    fn interleave(&mut self, args: &EngineArgs, isa: Isa, pool: &dyn Pool) -> Outcome<()> {
        if !isa.interleaves() {
            return Ok(());
        }
        // Checked before it is all read.
        self.format = main_format(&self.gguf(args)?);
        let options = self.part_options(args)?;
        self.parts.iter_mut().try_for_each(|part| part.interleave(&options, args.compact, isa, pool))
    }

    /// Bytes of all files.
    pub(crate) fn len(&self) -> usize {
        self.parts.iter().map(Part::file_len).sum()
    }

    /// How many files it is in.
    pub(crate) fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Bytes that the weights take while the model runs.
    fn held_len(&self, args: &EngineArgs, expands: bool) -> Outcome<usize> {
        let options = self.part_options(args)?;
        let held = |part: &Part| {
            let expansion = if expands { part.expansion(&options)? } else { None };
            Ok(expansion.map_or(part.bytes().len(), |expansion| expansion.len))
        };
        self.parts.iter().map(held).sum()
    }
}

/// The format of the matrices that are most of a model.
fn main_format(gguf: &Gguf<'_>) -> Option<Format> {
    gguf.tensor("blk.0.ffn_down.weight")?.format()
}

fn isa(args: &EngineArgs) -> Outcome<Isa> {
    let Some(name) = &args.isa else { return Ok(Isa::detect()) };
    Isa::named(name).map_err(|_| {
        let have: Vec<&str> = Isa::available().map(Isa::name).collect();
        let have = have.join(", ");
        Failure::usage(format_args!("--isa is {name:?}, expected one this machine has: {have}"))
    })
}

fn threads(args: &EngineArgs) -> Outcome<Threads> {
    let threads = args.threads.map_or_else(default_threads, usize::from);
    Threads::new(threads).map_err(|e| Failure::new(format_args!("cannot start {threads} threads: {e}")))
}

fn read_options(args: &EngineArgs) -> ReadOptions {
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
    pub(crate) model: BonsaiModel<'f>,
    pub(crate) tokenizer: Tokenizer<'f>,
    pub(crate) template: Template,
    pub(crate) options: SessionOptions,
    pub(crate) pool: Threads,
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
    pub(crate) fn load(file: &'f mut ModelFile, args: &EngineArgs) -> Outcome<Self> {
        let start = Instant::now();
        let pool = threads(args)?;
        if args.act == Act::Int8 && args.gpu.is_none() {
            file.interleave(args, isa(args)?, &pool)?;
        }
        Engine::new(file, args, pool, start)
    }

    /// The same with the weights as they are in the file.
    pub(crate) fn of_file(file: &'f ModelFile, args: &EngineArgs) -> Outcome<Self> {
        Engine::new(file, args, threads(args)?, Instant::now())
    }

    fn new(file: &'f ModelFile, args: &EngineArgs, pool: Threads, start: Instant) -> Outcome<Self> {
        let isa = isa(args)?;
        let gguf = file.gguf(args)?;
        let model = BonsaiModel::from_gguf(&gguf).at(&file.name)?;
        let tokenizer = Tokenizer::from_gguf(&gguf).at(&file.name)?;
        let template = Template::from_metadata(gguf.metadata(), &tokenizer).at(&file.name)?;
        let options = SessionOptions {
            context: args.context.map_or(4096, |n| n as usize),
            kv: match args.kv {
                Kv::F16 => KvFormat::F16,
                Kv::F32 => KvFormat::F32,
                Kv::Q8 => KvFormat::Q8,
            },
            activations: match args.act {
                Act::Int8 => Activations::Int8,
                Act::F32 => Activations::F32,
            },
            isa,
            ..SessionOptions::default()
        };
        let gpu = args.gpu.as_deref().map(|name| Device::load(name, &gguf)).transpose()?;
        let load_time = start.elapsed();
        let format = file.format.or_else(|| main_format(&gguf));
        let expands = args.act == Act::Int8 && args.gpu.is_none() && !args.compact && isa.interleaves();
        let held_bytes = file.held_len(args, expands)?;
        let file_bytes = file.len();
        Ok(Engine {
            gguf,
            model,
            tokenizer,
            template,
            options,
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
        let options = SessionOptions { context, ..self.options };
        match &self.gpu {
            Some(gpu) => Ok(gpu.timeline(&options)?),
            None => {
                Ok(Box::new(OnCpu { session: memory::session(&self.model, &options)?, pool: &self.pool }))
            }
        }
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
        let most = self.model.config().max_context_length;
        if self.asked > most {
            terminal::remark(format_args!("(the context is {most} tokens, the most this model can)"));
        }
        if think && self.template.style != Style::Qwen3 {
            terminal::remark("(this model cannot think before it answers; --think does nothing)");
        }
    }

    /// A sampler for this model.
    pub(crate) fn sampler(&self, config: &SamplerConfig) -> Outcome<Sampler> {
        let mut sampler = Sampler::new(config, self.model.config().vocab_size)?;
        sampler.break_at_bytes(&self.tokenizer, DRY_BREAKERS);
        Ok(sampler)
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
        let blocks = &self.model.weights().blocks;
        match blocks.first() {
            Some(block) => ModelVariant::detect(self.model.config(), block.attn_q.format()),
            None => ModelVariant::Custom,
        }
    }

    /// Bytes of the model's files.
    pub(crate) fn file_bytes(&self) -> usize {
        self.file_bytes
    }

    /// `ternary (PQ2_0)`
    pub(crate) fn kind(&self) -> String {
        use shohin_core::Format::*;
        let Some(format) = self.format else { return "no layers".into() };
        let bits = match format {
            Q1_0 => "1-bit",
            Q2_0 | Pq2_0 | Tq2_0G128 | Ptq1_0 | Tq1_0 | Tq2_0 => "ternary",
            _ => return format.name().into(),
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
        self.options.kv.name()
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

/// Runs a generation to its end, or to Ctrl-C, with a progress bar while a long prompt is read.
pub(crate) fn reply(
    generation: &mut Generation,
    session: &mut dyn Timeline,
    engine: &Engine<'_>,
    interrupted: &dyn Fn() -> bool,
    on_step: &mut dyn FnMut(Step<'_>) -> Outcome,
) -> Outcome<(Reason, Timings)> {
    let start = Instant::now();
    let held = session.position();
    let (_, total) = generation.prompt_progress();
    let mut timings = Timings { prompt: total - held, reused: held, ..Timings::default() };
    let mut bar = None;
    let mut failed = None;
    let mut first_token = None;
    let reason = drive(generation, session, &engine.tokenizer, &mut |step| {
        match step {
            Step::Prompt(fed, of) => {
                // Only prompts that take a while are worth a bar.
                if start.elapsed() > Duration::from_millis(500) || bar.is_some() {
                    let bar = bar.get_or_insert_with(|| terminal::progress("reading", "tokens", of - held));
                    bar.set_position((fed - held) as u64);
                }
            }
            Step::Token(_) => {
                if first_token.is_none() {
                    first_token = Some(Instant::now());
                    if let Some(bar) = bar.take() {
                        bar.finish_and_clear();
                    }
                }
                timings.reply += 1;
            }
            Step::Rest(_) => {}
        }
        failed = failed.take().or(on_step(step).err());
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
    timings.shown = generation.reply().len();
    Ok((reason?, timings))
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
