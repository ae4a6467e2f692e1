//! Options for loading a model, and descriptions of a loaded model.

use crate::args::byte_count;
use crate::error::{CliError, Result};
use crate::terminal;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use shohin::convert::{ConvertOptions, Id36};
use shohin::core::Tokenizer;
use shohin::core::chat::Style;
use shohin::core::generate::Detokenizer;
use shohin::core::gguf::{Id42, ReadOptions};
use shohin::core::model::RopeScaling;
use shohin::core::quant::WeightClass;
use shohin::devices::Fallback;
use shohin::{
    Activations, AttentionPattern, Builder, DeviceName, KvFormat, Model, ModelFile, Split, WeightCache,
};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Heading of options that are rarely needed, which only `--help` shows.
const RARE: &str = "Model and engine, rarely needed";

/// Which model to load and how to run it.
#[derive(Clone, Debug, Args)]
pub(crate) struct ModelArgs {
    #[command(flatten)]
    pub(crate) file: FileArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    #[command(flatten)]
    pub(crate) adapters: AdapterArgs,
}

/// Which model to read.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Model and engine")]
pub(crate) struct FileArgs {
    /// GGUF file, Hugging Face folder, name of a published model (bonsai-1.7b), or hf:OWNER/REPOSITORY/FILE
    /// [env: SHOHIN_MODEL] [default: the built-in one]
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) layout: LayoutArgs,
}

/// A model without `--model` before it.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct BareArgs {
    /// The model, as with --model
    #[arg(id = "bare", value_name = "MODEL", conflicts_with = "model")]
    pub(crate) model: Option<PathBuf>,
}

/// How to read a file that does not say it.
#[derive(Clone, Debug, Args)]
pub(crate) struct LayoutArgs {
    /// Layout of tensors of type 42 if the file does not say: group size, or codes before scales
    #[arg(long, value_name = "LAYOUT", default_value = "auto", value_parser = id42s(), help_heading = RARE, hide_short_help = true)]
    pub(crate) id42: Id42,
    /// Layout of tensors of type 36 (I2_S), which no file says: the block's weights; 64 in files that were made on ARM
    #[arg(long, value_name = "LAYOUT", default_value = "auto", value_parser = id36s(), help_heading = RARE, hide_short_help = true)]
    pub(crate) id36: Id36,
}

impl LayoutArgs {
    /// The options of a command that writes another file of a model.
    pub(crate) fn writing(&self, replace: bool) -> ConvertOptions {
        ConvertOptions::new().replace(replace).id42(self.id42).id36(self.id36)
    }
}

/// How the engine computes.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Model and engine")]
pub(crate) struct EngineArgs {
    /// Number of threads [default: one per core]
    #[arg(short = 't', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024), allow_negative_numbers = true)]
    threads: Option<u16>,
    /// Context size in tokens [default: what the model supports, up to 4096]
    #[arg(short = 'c', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    context: Option<u32>,
    /// Precision of activations: int8 is fast, f32 is exact
    #[arg(long, value_name = "TYPE", default_value = "int8")]
    act: Act,
    /// Format of the KV cache: q8 takes half the memory and bandwidth of f16, q4 a quarter
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = kv_formats())]
    pub(crate) kv: KvFormat,
    #[command(flatten)]
    rare: RareArgs,
}

/// How a training computes.
#[cfg(not(target_os = "wasi"))]
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Model and engine")]
pub(crate) struct TrainEngineArgs {
    /// Number of threads [default: one per core]
    #[arg(short = 't', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024), allow_negative_numbers = true)]
    threads: Option<u16>,
    /// Instruction set of the kernels, e.g. scalar or avx2 [default: the best available]
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    isa: Option<String>,
}

#[cfg(not(target_os = "wasi"))]
impl TrainEngineArgs {
    /// The model in the layout of its file.
    pub(crate) fn load(&self, file: &FileArgs) -> Result<Model> {
        self.load_file(&file.open()?, file.layout.id42)
    }

    /// As [`TrainEngineArgs::load`], of a file that is open.
    pub(crate) fn load_file(&self, file: &ModelFile, id42: Id42) -> Result<Model> {
        Ok(self.builder(id42).load_file(file)?)
    }

    /// As [`TrainEngineArgs::load_file`], with an adapter.
    pub(crate) fn load_adapted(&self, file: &ModelFile, id42: Id42, adapter: &Path) -> Result<Model> {
        Ok(self.builder(id42).adapter(adapter, 1.0).load_file(file)?)
    }

    /// The model as it runs, on the CPU.
    pub(crate) fn load_to_run(&self, file: &FileArgs) -> Result<Model> {
        Ok(self.configured(Model::builder().cpu().id42(file.layout.id42)).load_file(&file.open()?)?)
    }

    fn builder(&self, id42: Id42) -> Builder {
        self.configured(Model::builder().inspect_only().id42(id42))
    }

    fn configured(&self, builder: Builder) -> Builder {
        let mut builder = builder;
        if let Some(threads) = self.threads {
            builder = builder.threads(threads.into());
        }
        if let Some(isa) = &self.isa {
            builder = builder.isa(isa);
        }
        builder
    }
}

/// What few models or machines need.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = RARE)]
struct RareArgs {
    /// Positions that a token attends to: full, window:POSITIONS[:SINKS] for the last ones and the first ones,
    /// dilated:BLOCKS:STEP, strided:BLOCKS:STRIDE or bigbird:BLOCKS:GLOBAL:RANDOM, in blocks of 64
    #[arg(long, value_name = "PATTERN", default_value = "full", value_parser = str::parse::<AttentionPattern>, hide_short_help = true)]
    attention: AttentionPattern,
    /// Instruction set of the kernels, e.g. scalar or avx2 [default: the best available]
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    isa: Option<String>,
    /// Keep base-3 weights (PTQ1_0, TQ1_0) packed: one sixth less memory, much slower
    #[arg(long, hide_short_help = true)]
    compact: bool,
    /// Directory of repacked models, which makes the next start faster, or "none" [env: SHOHIN_WEIGHT_CACHE]
    /// [default: the user's cache directory]
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    weight_cache: Option<PathBuf>,
    /// Leave the weights in the file and read them for each token through a window of BYTES (such as 64M): for a model that
    /// is larger than memory; CPU only, and not under WASI, where the file is read into memory
    #[arg(long, value_name = "BYTES", value_parser = byte_count::<usize>, hide_short_help = true)]
    weights_window: Option<usize>,
    /// Replace the file's RoPE scaling, and with it the longest context: none, linear:FACTOR, dynamic:FACTOR:CONTEXT,
    /// yarn:FACTOR:CONTEXT or llama3:FACTOR:CONTEXT, where CONTEXT is the one before scaling
    #[arg(long, value_name = "SCALING", value_parser = str::parse::<RopeScaling>, hide_short_help = true)]
    rope_scaling: Option<RopeScaling>,
    /// Replace the file's base of the RoPE frequencies
    #[arg(long, value_name = "BASE", allow_negative_numbers = true, value_parser = |text: &str| number(text, |x| x > 1.0, "a number over 1"), hide_short_help = true)]
    rope_base: Option<f32>,
    /// Use ALiBi instead of rotary positions, with slopes down to 2^-BIAS; with 0, rotary positions instead of ALiBi. For
    /// models that were trained so, but whose files do not say it; CPU only
    #[arg(long, value_name = "BIAS", allow_negative_numbers = true, value_parser = |text: &str| number(text, |x| (0.0..=1024.0).contains(&x), "a number from 0 to 1024"), hide_short_help = true)]
    alibi: Option<f32>,
}

/// What the model runs on.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Model and engine")]
pub(crate) struct DeviceArgs {
    /// Run on a GPU; --gpu=NAME selects one by part of its name
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    gpu: Option<String>,
    /// Run on this device: auto, cpu, gpu, gpu:NAME, cuda, cuda:NUMBER or metal [env: SHOHIN_DEVICE] [default: auto]
    ///
    /// `shohin inspect --devices` lists them. auto takes the fastest, measured once per model, and prints on standard error
    /// which; so does the default, but only where there is a choice.
    #[arg(long, value_name = "DEVICE", conflicts_with = "gpu", value_parser = str::parse::<DeviceName>)]
    device: Option<DeviceName>,
    /// Split the model among N ranks, each with a part of the threads, or with --device cuda on a GPU of its own (by NCCL):
    /// tensor:N by rows of matrices, with the same results; tensor-reduce:N by columns, too; pipeline:N by layers. If mpirun
    /// has started N processes of a program built with the feature mpi, these are the ranks, each with all --threads
    #[arg(long, value_name = "WAY:N", value_parser = str::parse::<Split>, help_heading = RARE, hide_short_help = true)]
    split: Option<Split>,
    /// The ranks that mpirun has started.
    #[cfg(feature = "mpi")]
    #[arg(skip)]
    mpi: Option<std::rc::Rc<shohin::Mpi>>,
}

/// Adapters of the model.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Model and engine")]
pub(crate) struct AdapterArgs {
    /// Apply an adapter (LoRA), a GGUF file or a folder that PEFT has saved, at SCALE, or 1 without one; several add
    /// up
    #[arg(long, value_name = "FILE[=SCALE]", value_parser = str::parse::<Lora>)]
    pub(crate) lora: Vec<Lora>,
}

/// An adapter, and the scale at which it is applied.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Lora {
    /// Requests ask for it by this name; without one, it is always applied.
    pub(crate) name: Option<String>,
    pub(crate) path: PathBuf,
    pub(crate) scale: f32,
}

impl Lora {
    /// Reads the scale at the end of a file's name.
    pub(crate) fn read(name: Option<&str>, text: &str, expected: &str) -> std::result::Result<Self, String> {
        // A file's name may have the sign, too.
        let (path, scale) = match text.rsplit_once('=') {
            Some((path, scale)) if !Path::new(text).exists() => (path, scale),
            _ => (text, "1"),
        };
        let scale = number(scale, |_| true, expected)?;
        Ok(Lora { name: name.map(String::from), path: path.into(), scale })
    }
}

impl FromStr for Lora {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        Lora::read(None, text, "FILE=SCALE, whose scale is a finite number")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Act {
    Int8,
    F32,
}

impl From<Act> for Activations {
    fn from(act: Act) -> Self {
        match act {
            Act::Int8 => Activations::Int8,
            Act::F32 => Activations::F32,
        }
    }
}

/// Parses a finite number.
fn number(text: &str, is_valid: fn(f32) -> bool, expected: &str) -> std::result::Result<f32, String> {
    let number = text.parse().ok().filter(|x: &f32| x.is_finite() && is_valid(*x));
    number.ok_or_else(|| format!("expected {expected}"))
}

/// Parses a layout of type 42 by name.
fn id42s() -> impl TypedValueParser<Value = Id42> {
    PossibleValuesParser::new(Id42::ALL.map(Id42::name)).map(|name| Id42::named(&name).unwrap_or_default())
}

/// Parses a layout of type 36 by name.
fn id36s() -> impl TypedValueParser<Value = Id36> {
    PossibleValuesParser::new(Id36::ALL.map(Id36::name)).map(|name| Id36::named(&name).unwrap_or_default())
}

/// Parses a cache format by name.
fn kv_formats() -> impl TypedValueParser<Value = KvFormat> {
    PossibleValuesParser::new(KvFormat::ALL.map(KvFormat::name))
        .map(|name| KvFormat::named(&name).unwrap_or_default())
}

impl FileArgs {
    /// Opens the file that `--model` names, or the built-in model without one.
    pub(crate) fn open(&self) -> Result<ModelFile> {
        self.open_located(self.located()?.as_deref())
    }

    /// The path of the file that `--model` names, which is downloaded if it is on the Hub.
    #[cfg(not(target_os = "wasi"))]
    pub(crate) fn located(&self) -> Result<Option<PathBuf>> {
        self.model.as_deref().map(crate::hub::located).transpose()
    }

    /// The path of the file that `--model` names. WASI has no network.
    #[cfg(target_os = "wasi")]
    pub(crate) fn located(&self) -> Result<Option<PathBuf>> {
        Ok(self.model.clone())
    }

    /// Opens the file at a path from [`FileArgs::located`].
    pub(crate) fn open_located(&self, path: Option<&Path>) -> Result<ModelFile> {
        match path {
            Some(path) => Ok(ModelFile::open_id36(path, self.layout.id36)?),
            None => Ok(ModelFile::built_in()),
        }
    }

    /// Options for reading the file.
    pub(crate) fn read_options(&self) -> ReadOptions {
        ReadOptions { id42: self.layout.id42, ..ReadOptions::default() }
    }
}

impl EngineArgs {
    /// Applies the options to those for loading.
    fn apply(&self, mut builder: Builder) -> Builder {
        let rare = &self.rare;
        builder = builder.kv(self.kv).activations(self.act.into());
        builder = builder.attention(rare.attention).compact(rare.compact);
        builder = builder.weight_cache(match &rare.weight_cache {
            Some(dir) if dir.as_os_str() == "none" => None,
            Some(dir) => Some(WeightCache::in_dir(dir)),
            None => WeightCache::of_user(),
        });
        if let Some(threads) = self.threads {
            builder = builder.threads(threads.into());
        }
        if let Some(context) = self.context {
            builder = builder.context(context as usize);
        }
        if let Some(isa) = &rare.isa {
            builder = builder.isa(isa);
        }
        if let Some(scaling) = rare.rope_scaling {
            builder = builder.rope_scaling(scaling);
        }
        if let Some(base) = rare.rope_base {
            builder = builder.rope_base(base);
        }
        if let Some(max_bias) = rare.alibi {
            builder = builder.alibi(max_bias);
        }
        if let Some(bytes) = rare.weights_window {
            builder = builder.weights_window(bytes);
        }
        builder
    }
}

impl DeviceArgs {
    /// Applies the options to those for loading.
    fn apply(&self, mut builder: Builder) -> Builder {
        if let Some(split) = self.split {
            builder = builder.split(split);
        }
        #[cfg(feature = "mpi")]
        if let Some(mpi) = self.mpi.as_ref().filter(|mpi| mpi.rank() == 0) {
            builder = builder.mpi(mpi);
        }
        match (&self.device, &self.gpu) {
            (Some(device), _) => builder.device(device.clone()),
            (None, Some(name)) => builder.gpu(name),
            (None, None) => builder,
        }
    }

    /// Whether the model is to run on something else than the CPU.
    pub(crate) fn on_gpu(&self) -> bool {
        let cpu = |device: &DeviceName| matches!(device, DeviceName::Auto | DeviceName::Cpu);
        self.gpu.is_some() || self.device.as_ref().is_some_and(|device| !cpu(device))
    }

    /// Who chooses the device.
    fn choice(&self) -> Choice {
        match (&self.gpu, &self.device) {
            (None, None) => Choice::Silent,
            (None, Some(DeviceName::Auto)) => Choice::Automatic,
            _ => Choice::Named,
        }
    }

    /// Finds the ranks that mpirun has started. Those after the first follow rank 0 to its end, by `follow`: their outcome is
    /// returned. Refuses them if the command cannot be run by them.
    #[cfg(feature = "mpi")]
    pub(crate) fn join_ranks(&mut self, can_run: bool) -> Result<bool> {
        if !shohin::Mpi::is_launched() {
            return Ok(false);
        }
        let mpi = shohin::Mpi::start()?;
        // Some launchers set their variables for single processes, too.
        if !can_run && mpi.ranks() > 1 {
            return Err(CliError::usage(
                "ranks that mpirun has started run one of the commands run, chat, bench, logits, eval and embed",
            ));
        }
        Ok(self.mpi.insert(mpi.into()).rank() > 0)
    }

    /// Refuses ranks that mpirun has started.
    #[cfg(not(feature = "mpi"))]
    pub(crate) fn join_ranks(&mut self, _: bool) -> Result<bool> {
        let count = |name| std::env::var(name).ok().and_then(|count| count.parse::<usize>().ok());
        match ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"].into_iter().find_map(count) {
            Some(ranks) if ranks > 1 && self.split.is_some() => Err(CliError::new(format_args!(
                "mpirun has started {ranks} ranks, but this program was built without MPI; build it with `--features mpi`"
            ))),
            _ => Ok(false),
        }
    }
}

impl ModelArgs {
    /// The options for loading.
    pub(crate) fn builder(&self) -> Builder {
        let mut builder = Model::builder()
            .on_compile(|| {
                terminal::remark(
                    "(the NVIDIA driver compiles the kernels; it keeps the result for the next start)",
                );
            })
            .id42(self.file.layout.id42);
        for lora in self.adapters.lora.iter().filter(|lora| lora.name.is_none()) {
            builder = builder.adapter(&lora.path, lora.scale);
        }
        self.device.apply(self.engine.apply(builder))
    }

    /// The same options for a draft model.
    pub(crate) fn of_draft(&self, path: &Path) -> ModelArgs {
        let file = FileArgs { model: Some(path.into()), ..self.file.clone() };
        ModelArgs { file, adapters: AdapterArgs::default(), ..self.clone() }
    }

    /// As a rank after the first, follows rank 0 to its end.
    #[cfg(feature = "mpi")]
    pub(crate) fn follow(&self) -> Result {
        match &self.device.mpi {
            Some(mpi) => Ok(mpi.follow(&self.builder(), || self.file.open())?),
            None => Ok(()),
        }
    }

    /// The context that `--context` asks for.
    fn context(&self) -> Option<u32> {
        self.engine.context
    }

    /// The most tokens that `model` may read at a time: fewer than it supports if `--context` says so.
    pub(crate) fn longest(&self, model: &Model) -> usize {
        let most = model.config().max_context_length;
        self.context().map_or(most, |asked| most.min(asked as usize))
    }

    /// Refuses `tokens` of `what` that `--context` has no room for.
    pub(crate) fn check_length(&self, model: &Model, what: impl Display, tokens: usize) -> Result {
        let capacity = self.longest(model);
        if tokens <= capacity || capacity == model.config().max_context_length {
            // The model's own limit has its own error.
            return Ok(());
        }
        Err(CliError::new(format_args!(
            "{what} is {tokens} tokens long, but the context holds {capacity}; --context can raise that"
        )))
    }

    /// Loads the model.
    pub(crate) fn load(&self) -> Result<Model> {
        self.loader()()
    }

    /// Loads the model on whichever thread calls it, which none can with the arguments themselves: ranks that mpirun has
    /// started belong to one thread.
    pub(crate) fn loader(&self) -> impl Fn() -> Result<Model> + Send + Sync + 'static {
        self.loader_with(self.builder())
    }

    /// Loads the model for a sequence of `tokens`, unless `--context` says for which.
    pub(crate) fn load_for(&self, tokens: usize) -> Result<Model> {
        let mut builder = self.builder();
        if self.context().is_none() && self.is_alone() {
            builder = builder.context(tokens);
        }
        self.loader_with(builder)()
    }

    fn loader_with(&self, builder: Builder) -> impl Fn() -> Result<Model> + Send + Sync + 'static {
        let (file, choice) = (self.file.clone(), self.device.choice());
        move || {
            let model = builder.load_file(&file.open()?)?;
            choice.remark(&model);
            Ok(model)
        }
    }

    /// Whether there are no ranks in other processes, which know the options alone.
    fn is_alone(&self) -> bool {
        #[cfg(feature = "mpi")]
        return self.device.mpi.is_none();
        #[cfg(not(feature = "mpi"))]
        true
    }

    /// Warns on standard error about options that have no effect on the model.
    pub(crate) fn remark_on(&self, model: &Model, think: bool) {
        let most = model.config().max_context_length;
        if self.context().is_some_and(|asked| asked as usize > most) {
            terminal::remark(format_args!("(the context is {most} tokens, the most this model supports)"));
        }
        if think && !model.can_think() {
            terminal::remark("(this model cannot think before it answers; --think does nothing)");
        }
    }
}

/// Who chooses the device: the user, or the program because it was asked to, or because nobody said anything.
#[derive(Clone, Copy)]
enum Choice {
    Named,
    Automatic,
    Silent,
}

impl Choice {
    /// Says which device the automatic choice is. Where there is only the CPU, that is news only to those who asked for a
    /// choice.
    fn remark(self, model: &Model) {
        if matches!(self, Choice::Named) {
            return;
        }
        match (model.gpu(), model.fallback()) {
            (Some(gpu), _) => terminal::remark(format_args!("(on {gpu})")),
            (None, Some(Fallback { reason, found })) if *found || matches!(self, Choice::Automatic) => {
                terminal::remark(format_args!("(on the CPU: {reason})"));
            }
            (None, _) => {}
        }
    }
}

/// Waits until the repacked weights are in the cache, if they are being written there.
pub(crate) fn finish_caching(model: &Model) {
    if let Err(error) = model.finish_caching() {
        terminal::remark(format_args!("({error}; the next start will repack them again)"));
    }
}

/// A warning if the chat template is not supported.
pub(crate) fn template_warning(model: &Model) -> Option<String> {
    let style = match model.template().style {
        Style::Qwen3 | Style::Qwen3Thinking | Style::Qwen3Instruct => "Qwen3's",
        Style::Plain => "plain ChatML",
        Style::Llama3 | Style::Llama31 => "Llama 3's",
        Style::Gemma => "Gemma 3's",
        Style::File(_) => "the file's",
    };
    if let Some(problem) = model.template_problem() {
        return Some(format!("({problem}; {style} is used instead)"));
    }
    (!model.template().known).then(|| format!("(this model's chat template is unknown; {style} is used)"))
}

/// `ternary (PQ2_0)`
pub(crate) fn weights(model: &Model) -> String {
    let Some(format) = model.format() else { return "no layers".into() };
    let bits = match format.class() {
        WeightClass::OneBit => "1-bit",
        WeightClass::Ternary => "ternary",
        WeightClass::Integer | WeightClass::Float => return format.name().into(),
    };
    format!("{bits} ({})", format.name())
}

/// `2 threads, avx512vnni, int8 activations, f16 cache`
pub(crate) fn settings(model: &Model) -> String {
    let (act, kv) = (activations(model), model.kv().name());
    let split = model.split().map_or(String::new(), |split| format!(" in {split}"));
    let device = match model.gpu() {
        Some(gpu) => format!("{gpu}{split}"),
        None => {
            let threads = match model.threads() {
                1 => "1 thread".into(),
                n => format!("{n} threads"),
            };
            format!("{threads}{split}, {}", model.isa().name())
        }
    };
    let attention = match model.attention() {
        AttentionPattern::Full => String::new(),
        pattern => format!(", {pattern} attention"),
    };
    let adapters: String =
        model.adapters().map(|(file, scale)| format!(", {} at {scale}", file.name())).collect();
    format!("{device}, {act} activations, {kv} cache{attention}{adapters}")
}

pub(crate) fn activations(model: &Model) -> &'static str {
    match model.activations() {
        Activations::Int8 => "int8",
        Activations::F32 => "f32",
    }
}

/// The text of a single token for listings; control tokens by name.
pub(crate) fn token_text(tokenizer: &Tokenizer<'_>, token: u32) -> String {
    let mut bytes = Vec::new();
    tokenizer.append_text(token, &mut bytes);
    if bytes.is_empty() {
        bytes.extend(tokenizer.token_bytes(token).into_iter().flatten());
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
