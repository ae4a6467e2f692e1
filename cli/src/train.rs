//! `shohin train`: a model that learns from texts or conversations.

mod chart;

use crate::convert::{check_out, of_options};
use crate::error::{CliError, Context, Result, file_error};
use crate::input::{place, read_text_up_to};
use crate::model::{FileArgs, TrainEngineArgs};
use crate::progress;
use crate::terminal::{self, CtrlC, bytes, count, remark, short};
use clap::{Args, ValueEnum};
use serde_json::json;
use shohin::Model;
use shohin::convert::{self, initial};
use shohin::file::ModelFile;
use shohin::train::{
    AdapterOptions, Base, Checkpoints, Corpus, CorpusOptions, Loss, Method, Optimizer, Order, Ranks,
    Schedule, StepReport, TrainOptions, Training, WeightKind, new_adapter,
};
use std::fs::File;
use std::io::{self, IsTerminal, LineWriter, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Train a model on texts, conversations or tokens
///
/// The weights of the model, in any format, become floats that are trained; the result is a GGUF file, a Hugging Face folder, or
/// a checkpoint, by the name of OUT. With --weights ternary or 1bit, what is multiplied while training is quantized, and the
/// file has exactly these weights. Results do not depend on the number of threads, or of ranks with the same --accumulate.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shohin train --new config.json --tokenizer models/sprout.gguf --text stories.txt --out stories.gguf
  shohin train --text notes.txt --out notes.gguf --steps 200
  shohin train -m smollm2-135m.gguf --chats support.jsonl --epochs 3 --lr 2e-5 --schedule cosine:20 --out support.gguf
  shohin train --text stories.txt --weights ternary --lr 1e-3 --steps 5000 --save-every 500 --out stories.gguf
  shohin train --text stories.txt --weights ternary --lr 1e-3 --steps 5000 --save-every 500 --out stories.gguf --resume
  shohin train -m bonsai-1.7b.gguf --chats support.jsonl --method lora --lr 1e-3 --out support-lora.gguf
  shohin train -m big.gguf --chats support.jsonl --dry-run --out big-support.gguf --checkpoint every

A line of --chats is one conversation, of which the assistant's messages are learned:
  {\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \"Hello.\"}]}")]
pub(crate) struct TrainArgs {
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    out: OutArgs,
    #[command(flatten)]
    what: WhatArgs,
    #[command(flatten)]
    step: StepArgs,
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    file: FileArgs,
    #[command(flatten)]
    engine: TrainEngineArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Data")]
struct DataArgs {
    /// Learn a text, of which rows are cut anywhere; "-" is standard input
    ///
    /// Control tokens in it, such as <|endoftext|> between documents, are control tokens. Again for several texts; with --order
    /// sampled, SHARE of the rows are of this one [default: 1].
    #[arg(long, value_name = "FILE[=SHARE]", group = "data", value_parser = shared)]
    text: Vec<Shared>,
    /// Learn the assistant's replies in conversations, one JSON object a line; again for several, as --text
    #[arg(long, value_name = "FILE[=SHARE]", group = "data", value_parser = shared)]
    chats: Vec<Shared>,
    /// Learn token ids: whole numbers of 32 bits, little-endian, one after another
    #[arg(long, value_name = "FILE", group = "data")]
    tokens: Option<PathBuf>,
    /// How much what is not a reply counts in the loss: all of --chats but the replies [default: 0]; what the system and users
    /// say in the ChatML of --text [default: 1]
    #[arg(long, value_name = "WEIGHT", conflicts_with = "tokens", value_parser = not_negative)]
    prompt_weight: Option<f64>,
    /// Measure the loss of this file, of the same kind, before and after training, too
    #[arg(long, value_name = "FILE")]
    valid: Option<PathBuf>,
    /// Measure it every N steps
    #[arg(long, value_name = "N", requires = "valid", value_parser = clap::value_parser!(u64).range(1..))]
    valid_every: Option<u64>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
struct OutArgs {
    /// What to write: a GGUF file by its extension, a checkpoint (.oxck), or else a Hugging Face folder, of an adapter as PEFT has it
    #[arg(short, long, value_name = "OUT")]
    out: PathBuf,
    /// Replace OUT if it exists; without this, it is an error (exit code 2)
    #[arg(short, long)]
    force: bool,
    /// Write one JSON object a step: step, loss, grad_norm, lr, tokens, tokens_per_second
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Write a chart of the losses
    #[arg(long, value_name = "FILE.svg")]
    svg: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A file with a share of the rows.
#[derive(Clone, Debug)]
struct Shared {
    path: PathBuf,
    share: f64,
}

fn shared(text: &str) -> std::result::Result<Shared, &'static str> {
    let share = text.rsplit_once('=').and_then(|(path, share)| Some((path, share.parse::<f64>().ok()?)));
    let (path, share) = share.unwrap_or((text, 1.0));
    match share > 0.0 && share.is_finite() && !path.is_empty() {
        true => Ok(Shared { path: path.into(), share }),
        false => Err("expected FILE, or FILE=SHARE with a number over 0"),
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum MethodName {
    Full,
    Norms,
    Lora,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum WeightName {
    F32,
    Ternary,
    #[value(name = "1bit")]
    OneBit,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "What is trained")]
struct WhatArgs {
    /// All weights, those of the norms, or an adapter (LoRA) beside weights that stay packed
    #[arg(long, value_name = "METHOD", default_value = "full")]
    method: MethodName,
    #[command(flatten)]
    lora: LoraArgs,
    /// Matrices of floats, or quantized while they are trained, in groups of 128
    #[arg(long, value_name = "KIND", default_value = "f32")]
    weights: WeightName,
    /// Begin with the weights of a checkpoint
    #[arg(long, value_name = "CHECKPOINT", conflicts_with = "resume")]
    init: Option<PathBuf>,
    /// Make a new model of these sizes, with random weights
    #[arg(long, value_name = "CONFIG.json", requires = "tokenizer", conflicts_with = "model")]
    new: Option<PathBuf>,
    /// The tokenizer and chat template of a new model: a GGUF file, or a tokenizer.json
    #[arg(long, value_name = "FILE", requires = "new")]
    tokenizer: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Adapter (--method lora)")]
struct LoraArgs {
    /// Columns between the two factors of an adapter [default: 16]
    #[arg(long, value_name = "R")]
    rank: Option<usize>,
    /// Factors are multiplied by A / R [default: the rank]
    #[arg(long, value_name = "A", value_parser = positive)]
    alpha: Option<f64>,
    /// Matrices that are adapted, of q, k, v, o, gate, up and down [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    targets: Vec<String>,
    /// Layers that are adapted, counted from 0 [default: all]
    #[arg(long, value_name = "FIRST-LAST", value_parser = layers)]
    layers: Option<RangeInclusive<usize>>,
    /// Probability that an element of what an adapter reads is 0 in a step; the others are divided by 1 - P. Losses of --valid
    /// have none
    #[arg(long, value_name = "P", default_value_t = 0.0, value_parser = probability)]
    dropout: f64,
    /// Go on with an adapter, a GGUF file or a folder that PEFT has saved
    #[arg(long, value_name = "ADAPTER", conflicts_with_all = ["rank", "alpha", "targets", "layers"])]
    from: Option<PathBuf>,
}

pub(crate) fn layers(text: &str) -> std::result::Result<RangeInclusive<usize>, &'static str> {
    let range = match text.split_once('-') {
        Some((first, last)) => first.parse().ok().zip(last.parse().ok()),
        None => text.parse().ok().map(|layer| (layer, layer)),
    };
    range.map(|(first, last)| first..=last).ok_or("expected FIRST-LAST, as in 20-27")
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Steps")]
struct StepArgs {
    /// Rows of a step
    #[arg(long, value_name = "N", default_value_t = 8)]
    rows: usize,
    /// Tokens of a row; a conversation must fit into one [default: 256, or the model's context if smaller]
    #[arg(long, value_name = "N")]
    row_tokens: Option<usize>,
    /// Number of steps [default: 100]
    #[arg(long, value_name = "N", conflicts_with = "epochs", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Times that everything is learned
    #[arg(long, value_name = "X", value_parser = positive)]
    epochs: Option<f64>,
    /// Divide the rows of a step into N micro-batches: less memory, the same step [default: as many as --ranks]
    #[arg(long, value_name = "N")]
    accumulate: Option<usize>,
    /// Order of rows: shuffled, sequential, or sampled: each is drawn anew, most at the beginning of a document
    #[arg(long, value_name = "ORDER", default_value = "shuffled", value_parser = str::parse::<Order>)]
    order: Order,
    /// Number that the order follows from
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Optimizer: sgd, adam or adamw
    #[arg(long, value_name = "NAME", default_value = "adamw", value_parser = str::parse::<Optimizer>)]
    optimizer: Optimizer,
    /// The highest learning rate
    #[arg(long, value_name = "RATE", default_value = "1e-4", value_parser = positive)]
    lr: f64,
    /// Decay of the optimizer's averages of gradients and of their squares [default: 0.9,0.95]
    #[arg(long, value_name = "B1,B2", value_parser = pair)]
    betas: Option<[f64; 2]>,
    /// Added to the root of the average of squares [default: 1e-8]
    #[arg(long, value_name = "EPS", value_parser = positive)]
    eps: Option<f64>,
    /// Decay of the weights of matrices [default: 0.1 with adamw]
    #[arg(long, value_name = "DECAY", value_parser = not_negative)]
    weight_decay: Option<f64>,
    /// The largest norm of all gradients together; 0 for none
    #[arg(long, value_name = "NORM", default_value = "1", value_parser = not_negative)]
    clip: f64,
    /// The largest magnitude of a gradient
    #[arg(long, value_name = "VALUE", value_parser = positive)]
    clip_value: Option<f64>,
    /// How the learning rate changes: constant, cosine, linear, hold, onecycle, plateau, polynomial or cyclic, with
    /// parameters after colons
    #[arg(long, value_name = "SCHEDULE", default_value = "constant", value_parser = str::parse::<Schedule>)]
    schedule: Schedule,
    /// What is minimized: cross-entropy[:SMOOTHING], focal:GAMMA, or with --teacher kl, distillation:T:HARD, mse, huber:DELTA
    #[arg(long, value_name = "LOSS", default_value = "cross-entropy", value_parser = str::parse::<Loss>)]
    loss: Loss,
    /// Learn what this model, with the same vocabulary, predicts
    #[arg(long, value_name = "MODEL")]
    teacher: Option<PathBuf>,
    /// Activations that are kept: none is recomputed with "none"; every, nth:N, sqrt; or as many as fit into BYTES (500M)
    #[arg(long, value_name = "STRATEGY", default_value = "none", value_parser = str::parse::<Checkpoints>)]
    checkpoint: Checkpoints,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Run")]
struct RunArgs {
    /// Share the micro-batches of a step among N groups of threads, each with its own copy of what is trained: 1, 2, 4, 8
    #[arg(long, value_name = "N", default_value_t = 1)]
    ranks: usize,
    /// End when the loss of a step is at most this
    #[arg(long, value_name = "LOSS", value_parser = positive)]
    stop_at: Option<f64>,
    /// Write a checkpoint beside OUT, with the extension .oxck, every N steps
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    save_every: Option<u64>,
    /// Write the checkpoint after step N, and end; --resume goes on. Schedules follow --steps
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pause_at: Option<u64>,
    /// Go on from a checkpoint [default: the one beside OUT]; weights and options must be those it was made with
    #[arg(long, value_name = "CHECKPOINT", num_args = 0..=1, require_equals = true, default_missing_value = "", value_parser = any_path)]
    resume: Option<PathBuf>,
    /// With --resume, go on with other options than the checkpoint was made with, such as longer rows
    #[arg(long, requires = "resume")]
    change: bool,
    /// Print the memory that the training takes, and train nothing
    #[arg(long)]
    dry_run: bool,
}

/// A path, which may be empty, unlike for clap's own.
fn any_path(text: &str) -> std::result::Result<PathBuf, std::convert::Infallible> {
    Ok(text.into())
}

pub(crate) fn positive(text: &str) -> std::result::Result<f64, &'static str> {
    text.parse().ok().filter(|x: &f64| x.is_finite() && *x > 0.0).ok_or("expected a number over 0")
}

fn not_negative(text: &str) -> std::result::Result<f64, &'static str> {
    text.parse().ok().filter(|x: &f64| x.is_finite() && *x >= 0.0).ok_or("expected a number of at least 0")
}

fn probability(text: &str) -> std::result::Result<f64, &'static str> {
    text.parse().ok().filter(|x| (0.0..1.0).contains(x)).ok_or("expected a number from 0, less than 1")
}

fn pair(text: &str) -> std::result::Result<[f64; 2], &'static str> {
    let beta = |text: &str| text.trim().parse().ok().filter(|x: &f64| (0.0..1.0).contains(x));
    let betas = text.split_once(',').and_then(|(a, b)| Some([beta(a)?, beta(b)?]));
    betas.ok_or("expected two numbers from 0 to 1, as in 0.9,0.95")
}

/// Maximum bytes of a text to learn from, which is read whole: as its tokens, it takes about as much again.
const MAX_CORPUS: usize = if size_of::<usize>() > 4 { (16u64 << 30) as usize } else { 1 << 30 };

/// What a training did.
#[derive(Default)]
struct History {
    losses: Vec<(u64, f64)>,
    valid: Vec<(u64, f64)>,
    seconds: f64,
    tokens: u64,
}

pub(crate) fn run(args: &TrainArgs) -> Result {
    check_place(args)?;
    let model = args.model()?;
    let corpus = args.data.corpus(&model)?;
    let valid = args.data.valid(&model)?;
    let options = args.options(&model, &corpus)?;
    let base = Training::base(&model)?;
    let teacher = args.teacher()?;
    let mut ranks = Ranks::new(&base, args.run.ranks)?;
    if let Some(teacher) = &teacher {
        ranks = ranks.taught_by(teacher);
    }
    ranks.train(&options, |training| lead(args, training, &corpus, valid.as_ref()))
}

/// How a training ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Done,
    Paused,
    Interrupted,
}

/// Trains, as the first rank.
fn lead(args: &TrainArgs, training: &mut Training<'_>, corpus: &Corpus, valid: Option<&Corpus>) -> Result {
    if let Some(path) = &args.what.init {
        training.init_from(path)?;
    }
    if let Some(path) = &args.run.resume {
        let path = if path.as_os_str().is_empty() { args.checkpoint() } else { path.clone() };
        match args.run.change {
            false => training.resume(&path)?,
            true => {
                for change in training.resume_changed(&path)? {
                    remark(format_args!("(changed: {change})"));
                }
            }
        }
        remark(format_args!("(resumed from step {})", training.progress().step));
    }
    if args.run.dry_run {
        return dry_run(args, training, corpus);
    }
    let mut history = History::default();
    let end = args.train(training, corpus, valid, &mut history)?;
    if end != End::Done {
        let path = args.checkpoint();
        training.checkpoint(&path)?;
        remark(format_args!("saved {}; the same command with --resume goes on from it", path.display()));
        return if end == End::Paused { Ok(()) } else { Err(CliError::Interrupted) };
    }
    args.save(training)?;
    report(args, training, &history)
}

/// Refuses what cannot be written before anything is computed.
fn check_place(args: &TrainArgs) -> Result {
    let out = &args.out.out;
    check_out(out)?;
    if out.exists() && !args.out.force && !args.run.dry_run {
        return Err(CliError::usage(format_args!("{} exists; replace it with --force", out.display())));
    }
    match out.parent() {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
            Err(CliError::usage(format_args!("--out: {} is no folder", folder.display())))
        }
        _ => Ok(()),
    }
}

impl DataArgs {
    fn corpus(&self, model: &Model) -> Result<Corpus> {
        if let Some(path) = &self.tokens {
            return self.read(model, path, self.prompt_weight);
        }
        let files = if self.chats.is_empty() { &self.text } else { &self.chats };
        let read = |file: &Shared| Ok((self.read(model, &file.path, self.prompt_weight)?, file.share));
        let mut parts = files.iter().map(read).collect::<Result<Vec<_>>>()?;
        match parts.len() {
            0 => Err(CliError::usage("expected --text, --chats or --tokens with a file to learn from")),
            1 => Ok(parts.remove(0).0),
            _ => Ok(Corpus::mixed(parts)?),
        }
    }

    /// The file to measure on, in which all tokens of a text count alike.
    fn valid(&self, model: &Model) -> Result<Option<Corpus>> {
        self.valid.as_deref().map(|path| self.read(model, path, None)).transpose()
    }

    /// A file of the same kind as the data.
    fn read(&self, model: &Model, path: &Path, prompt_weight: Option<f64>) -> Result<Corpus> {
        let corpus = if self.tokens.is_some() {
            let bytes = std::fs::read(path).map_err(|error| file_error("read", path, &error))?;
            let (words, rest) = bytes.as_chunks::<4>();
            if !rest.is_empty() {
                return Err(CliError::new(format_args!(
                    "{}: expected whole numbers of 4 bytes, found {} bytes",
                    place(path),
                    bytes.len()
                )));
            }
            Corpus::tokens(model, words.iter().map(|word| u32::from_le_bytes(*word)).collect())
        } else {
            let text = read_text_up_to(path, MAX_CORPUS)?;
            let prompt_weight = prompt_weight.map(|weight| weight as f32);
            let options = CorpusOptions { prompt_weight, ..CorpusOptions::default() };
            match self.chats.is_empty() {
                false => Corpus::chats_with(model, &text, &options),
                true => Corpus::text_with(model, &text, &options),
            }
        };
        corpus.context(place(path))
    }
}

impl TrainArgs {
    fn options(&self, model: &Model, corpus: &Corpus) -> Result<TrainOptions> {
        let step = &self.step;
        if step.loss.needs_teacher() != step.teacher.is_some() {
            return Err(CliError::usage(match step.teacher {
                None => format!("--loss {} needs --teacher", step.loss),
                Some(_) => {
                    format!("--teacher: --loss {} has no use for one; distillation:2:0.5 has", step.loss)
                }
            }));
        }
        let longest = model.config().max_context_length;
        let row_tokens = step.row_tokens.unwrap_or(256.min(longest));
        let optimizer = optimizer(step)?;
        let mut options = TrainOptions {
            method: match self.what.method {
                MethodName::Full => Method::Full,
                MethodName::Norms => Method::Norms,
                MethodName::Lora => Method::Lora,
            },
            weights: match self.what.weights {
                WeightName::F32 => WeightKind::F32,
                WeightName::Ternary => WeightKind::Ternary,
                WeightName::OneBit => WeightKind::OneBit,
            },
            rows: step.rows,
            row_tokens,
            steps: step.steps.unwrap_or(100),
            accumulate: step.accumulate.unwrap_or(self.run.ranks),
            order: step.order,
            seed: step.seed,
            optimizer,
            learning_rate: step.lr,
            schedule: step.schedule,
            clip_norm: Some(step.clip).filter(|norm| *norm > 0.0),
            clip_value: step.clip_value.map(|value| value as f32),
            loss: step.loss,
            dropout: self.what.lora.dropout,
            checkpoints: step.checkpoint,
            ..TrainOptions::new()
        };
        if let Some(epochs) = step.epochs {
            options.steps = corpus.steps(&options, epochs)?;
        }
        Ok(options)
    }

    /// The model to begin with.
    fn model(&self) -> Result<Model> {
        match (&self.what.new, &self.what.tokenizer) {
            (Some(config), Some(tokenizer)) => {
                let name =
                    self.out.out.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into());
                let bytes = initial(config, tokenizer, &name, self.step.seed).map_err(shohin::Error::from)?;
                self.engine.load_file(&ModelFile::from_bytes(name, &bytes)?, self.file.layout.id42)
            }
            _ if matches!(self.what.method, MethodName::Lora) => self.adapted(),
            _ => self.engine.load(&self.file),
        }
    }

    /// The model with the adapter that is trained.
    fn adapted(&self) -> Result<Model> {
        let (file, lora, id42) = (self.file.open()?, &self.what.lora, self.file.layout.id42);
        if let Some(from) = &lora.from {
            return self.engine.load_adapted(&file, id42, from);
        }
        let model = self.engine.load_file(&file, id42)?;
        let options = AdapterOptions {
            rank: lora.rank.unwrap_or(16),
            alpha: lora.alpha.map(|alpha| alpha as f32),
            targets: lora.targets.clone(),
            layers: lora.layers.clone(),
            seed: self.step.seed,
        };
        let begin = tempfile::NamedTempFile::with_suffix(".gguf")?;
        std::fs::write(begin.path(), new_adapter(&model, &options)?)?;
        self.engine.load_adapted(&file, id42, begin.path())
    }

    fn teacher(&self) -> Result<Option<Base>> {
        let Some(path) = &self.step.teacher else { return Ok(None) };
        let file = FileArgs { model: Some(path.clone()), ..self.file.clone() };
        let model = self.engine.load(&file)?;
        Ok(Some(Training::base(&model)?))
    }

    /// The checkpoint beside what is written.
    fn checkpoint(&self) -> PathBuf {
        self.out.out.with_extension("oxck")
    }

    /// Trains to the end.
    fn train(
        &self,
        training: &mut Training<'_>,
        corpus: &Corpus,
        valid: Option<&Corpus>,
        history: &mut History,
    ) -> Result<End> {
        let mut log = match &self.out.log {
            Some(path) => Some(LineWriter::new(log_file(path, self.run.resume.is_some())?)),
            None => None,
        };
        let steps = training.options().steps;
        let bar = progress::training(steps);
        bar.set_position(training.progress().step);
        let ctrl_c = CtrlC::listen();
        let start = Instant::now();
        let first = training.progress().tokens;
        if let Some(valid) = valid {
            history.valid.push((training.progress().step, training.evaluate(valid)?));
        }
        let paused = |step| self.run.pause_at.is_some_and(|at| step >= at);
        while !training.is_done() && !paused(training.progress().step) && !ctrl_c.pressed() {
            let begin = Instant::now();
            let before = training.progress().tokens;
            let report = training.step(corpus)?;
            let rate = (report.tokens - before) as f64 / begin.elapsed().as_secs_f64();
            history.losses.push((report.step, report.loss));
            bar.set_position(report.step);
            bar.set_message(line(&report, rate));
            if bar.is_hidden() && !self.out.json && report.step.is_multiple_of(steps.div_ceil(10)) {
                remark(format_args!("step {} of {steps}: {}", report.step, line(&report, rate)));
            }
            if let Some(log) = &mut log {
                write_log(log, &report, rate)?;
            }
            let every = |n: Option<u64>| n.is_some_and(|n| report.step.is_multiple_of(n));
            let stops = self.run.stop_at.is_some_and(|loss| report.loss <= loss);
            if every(self.data.valid_every)
                && let Some(valid) = valid
                && report.step < steps
            {
                let loss = training.evaluate(valid)?;
                training.plateau(loss);
                history.valid.push((report.step, loss));
            }
            if every(self.run.save_every) {
                training.checkpoint(self.checkpoint())?;
            }
            if stops {
                break;
            }
        }
        let end = match () {
            () if ctrl_c.pressed() => End::Interrupted,
            () if paused(training.progress().step) && !training.is_done() => End::Paused,
            () => End::Done,
        };
        if let Some(valid) = valid.filter(|_| end != End::Interrupted) {
            history.valid.push((training.progress().step, training.evaluate(valid)?));
        }
        bar.finish_and_clear();
        history.seconds = start.elapsed().as_secs_f64();
        history.tokens = training.progress().tokens - first;
        if let Some(mut log) = log {
            log.flush()?;
        }
        Ok(end)
    }

    fn save(&self, training: &Training<'_>) -> Result {
        let (out, force) = (&self.out.out, self.out.force);
        let is = |extension: &str| out.extension().is_some_and(|found| found.eq_ignore_ascii_case(extension));
        let saved = match () {
            () if is("gguf") => training.save(out, force),
            () if is("oxck") => training.checkpoint(out),
            () => training.save_folder(out, force),
        };
        saved.map_err(|error| match error {
            shohin::Error::Convert { path, source } => of_options(convert::Error::Convert { path, source }),
            other => other.into(),
        })
    }
}

/// The optimizer with the parameters of the options.
fn optimizer(step: &StepArgs) -> Result<Optimizer> {
    let mut optimizer = step.optimizer;
    match &mut optimizer {
        Optimizer::Adam { betas, eps, weight_decay } | Optimizer::AdamW { betas, eps, weight_decay } => {
            *betas = step.betas.unwrap_or(*betas);
            *eps = step.eps.unwrap_or(*eps);
            *weight_decay = step.weight_decay.unwrap_or(*weight_decay);
        }
        Optimizer::Sgd { weight_decay, .. } if step.betas.is_none() && step.eps.is_none() => {
            *weight_decay = step.weight_decay.unwrap_or(*weight_decay);
        }
        other => {
            return Err(CliError::usage(format_args!(
                "--betas and --eps: expected --optimizer adam or adamw, found {other}"
            )));
        }
    }
    Ok(optimizer)
}

fn log_file(path: &Path, append: bool) -> Result<File> {
    let file = match append {
        true => File::options().append(true).create(true).open(path),
        false => File::create(path),
    };
    file.map_err(|error| file_error("write", path, &error))
}

fn line(report: &StepReport, rate: f64) -> String {
    format!("loss {:.4}  lr {:.1e}  {} tokens/s", report.loss, report.learning_rate, short(rate))
}

fn write_log(log: &mut impl Write, report: &StepReport, rate: f64) -> Result {
    let object = json!({
        "step": report.step,
        "loss": report.loss,
        "grad_norm": report.grad_norm,
        "lr": report.learning_rate,
        "tokens": report.tokens,
        "tokens_per_second": terminal::round(rate),
    });
    writeln!(log, "{object}")?;
    Ok(())
}

/// What the training would take.
fn dry_run(args: &TrainArgs, training: &Training<'_>, corpus: &Corpus) -> Result {
    let (memory, options, ranks) = (training.memory(), training.options(), args.run.ranks as u64);
    let mut out = io::stdout().lock();
    let parts = [
        ("masters", memory.masters),
        ("gradients", memory.gradients),
        ("moments", memory.moments),
        ("activations", memory.step.activations),
        ("logits", memory.step.logits),
        ("experts", memory.step.experts),
        ("workers", memory.step.workers),
        ("angles", memory.step.angles),
    ]
    .map(|(name, n)| (name, n * ranks));
    let total = memory.total() * ranks;
    if args.out.json {
        let parts: serde_json::Map<String, _> =
            parts.iter().map(|(name, n)| ((*name).to_string(), json!(n))).collect();
        let object = json!({
            "trained": training.num_trained(),
            "steps": options.steps,
            "rows": options.rows,
            "row_tokens": options.row_tokens,
            "corpus_tokens": corpus.len(),
            "learned_tokens": corpus.learned(),
            "memory": parts,
            "total": total,
        });
        writeln!(out, "{object:#}")?;
        return Ok(());
    }
    let steps = format!("{} of {} rows of {} tokens", options.steps, options.rows, options.row_tokens);
    let items = corpus.items(options.row_tokens);
    let mut rows = vec![
        ["trained".into(), format!("{} weights", count(training.num_trained()))],
        [
            "data".into(),
            format!("{} tokens, {} learned", count(corpus.len() as u64), count(corpus.learned() as u64)),
        ],
        ["steps".into(), format!("{steps}; an epoch has {items} rows or conversations")],
    ];
    rows.extend(parts.map(|(name, n)| [name.to_string(), bytes(n)]));
    rows.push(["memory".into(), format!("{}, beside the model's file", bytes(total))]);
    let rows: Vec<Vec<String>> = rows.into_iter().map(Vec::from).collect();
    Ok(terminal::table(&mut out, &rows, &[false, false])?)
}

fn report(args: &TrainArgs, training: &Training<'_>, history: &History) -> Result {
    if let Some(path) = &args.out.svg {
        chart::svg(path, &history.losses, &history.valid)
            .map_err(|problem| CliError::new(format_args!("cannot write {}: {problem}", path.display())))?;
    }
    let (first, last) = (history.losses.first(), history.losses.last());
    let (valid_before, valid_after) = (history.valid.first(), history.valid.last());
    let rate = history.tokens as f64 / history.seconds;
    let mut out = io::stdout().lock();
    if args.out.json {
        let loss = |point: Option<&(u64, f64)>| point.map(|(_, loss)| *loss);
        let object = json!({
            "out": args.out.out.display().to_string(),
            "steps": training.progress().step,
            "tokens": training.progress().tokens,
            "loss": { "first": loss(first), "last": loss(last) },
            "valid": { "before": loss(valid_before), "after": loss(valid_after) },
            "seconds": terminal::round(history.seconds),
            "tokens_per_second": terminal::round(rate),
        });
        writeln!(out, "{object:#}")?;
        return Ok(());
    }
    if io::stdout().is_terminal() {
        chart::terminal(&mut out, &history.losses, &history.valid)?;
    }
    let arrow = |from: Option<&(u64, f64)>, to: Option<&(u64, f64)>| match (from, to) {
        (Some((_, from)), Some((_, to))) => format!("{from:.4} -> {to:.4} nats per token"),
        _ => "-".into(),
    };
    let mut rows = vec![["loss of a step".to_string(), arrow(first, last)]];
    if valid_before.is_some() {
        rows.push(["loss of --valid".into(), arrow(valid_before, valid_after)]);
    }
    rows.push(["steps".into(), training.progress().step.to_string()]);
    rows.push(["tokens".into(), format!("{}, {} tokens/s", count(training.progress().tokens), short(rate))]);
    rows.push(["time".into(), format!("{} s", short(history.seconds))]);
    rows.push(["written".into(), args.out.out.display().to_string()]);
    let rows: Vec<Vec<String>> = rows.into_iter().map(Vec::from).collect();
    terminal::table(&mut out, &rows, &[false, false])?;
    Ok(())
}
