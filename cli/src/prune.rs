//! `shohin prune`: models with fewer weights.

use crate::convert::{ChangedArgs, tensor_json, with_progress};
use crate::error::{CliError, Result};
use crate::input::{place, read_text};
use crate::merge::measure;
use crate::progress::progress;
use crate::terminal::{self, bytes};
use clap::{ArgGroup, Args, ValueEnum};
use serde_json::json;
use shohin::convert::{ConvertOptions, Converted, PruneMethod, PruneOptions, Structure, prune};
use shohin::train::{Corpus, Loss, TrainOptions, Training, gradients};
use shohin::{Builder, Model};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Set the weights of a model that matter least to 0, or leave whole parts out
///
/// With --sparsity alone, single weights of every matrix of the layers become 0, each matrix by itself; with --pattern 2:4, two of four
/// side by side; with --structure rows or columns, whole ones. The masks are those of PyTorch's torch.nn.utils.prune. The file is as
/// large as before. --structure heads, neurons and layers leave these out, of which every layer loses as many: the file is
/// smaller, and a token takes fewer products.
/// The embedding, the head and norms change only when --tensor names them. --recover trains what is left on a text, to predict what
/// the whole model does; weights that are 0 stay so.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shohin prune qwen3-f16.gguf --method l1 --sparsity 0.5 --text story.txt --out half.gguf
  shohin prune qwen3-f16.gguf --method taylor --pattern 2:4 --text wiki.txt --out 2-4.gguf
  shohin prune qwen3-f16.gguf --method l2 --structure layers --sparsity 0.1 --recover wiki.txt --out short.gguf")]
#[command(group = ArgGroup::new("part").args(["sparsity", "pattern"]).required(true))]
pub(crate) struct PruneArgs {
    /// The model, a GGUF file or a Hugging Face folder
    model: PathBuf,
    #[command(flatten)]
    how: PruneHow,
    /// Tensors whose weights become 0, in place of every matrix of the layers; * is any text; again for several
    #[arg(long, value_name = "PATTERN")]
    tensor: Vec<String>,
    /// A text for the gradients of --method taylor, and whose perplexity is measured before and after
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    #[command(flatten)]
    recovery: RecoveryArgs,
    #[command(flatten)]
    changed: ChangedArgs,
}

/// What is pruned.
#[derive(Debug, Args)]
pub(crate) struct PruneHow {
    /// What says how much weights matter: their magnitude, their squares, chance, or magnitude times gradient over --text
    #[arg(long, default_value = "l1")]
    method: Method,
    /// The part that is pruned
    #[arg(long, value_name = "PART")]
    sparsity: Option<f64>,
    /// Of M weights of a row, side by side, keep N
    #[arg(long, value_name = "N:M", conflicts_with_all = ["sparsity", "structure"])]
    pattern: Option<Pattern>,
    /// What is pruned together
    #[arg(long, value_name = "WHAT")]
    structure: Option<Whole>,
    /// Compare single weights across all matrices
    #[arg(long)]
    global: bool,
    /// Seed of --method random
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

/// Training after pruning.
#[derive(Debug, Args)]
pub(crate) struct RecoveryArgs {
    /// Train what is left on this text, to predict what the whole model does. Matrices are F32 then, unless --type is set
    #[arg(long, value_name = "FILE")]
    pub(crate) recover: Option<PathBuf>,
    /// Steps of --recover, of eight rows
    #[arg(long, value_name = "N", default_value_t = 50, requires = "recover")]
    steps: u64,
    /// The highest learning rate of --recover
    #[arg(long, value_name = "RATE", default_value_t = 1e-4, requires = "recover")]
    lr: f64,
    /// Tokens of a row of --recover and of the gradients [default: 256, or the model's context if smaller]
    #[arg(long, value_name = "N")]
    row_tokens: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Method {
    L1,
    L2,
    Random,
    Taylor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Whole {
    Rows,
    Columns,
    Heads,
    Neurons,
    Layers,
}

/// `N:M`.
#[derive(Clone, Copy, Debug)]
struct Pattern {
    keep: usize,
    of: usize,
}

impl FromStr for Pattern {
    type Err = &'static str;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let both = text.split_once(':').and_then(|(keep, of)| Some((keep.parse().ok()?, of.parse().ok()?)));
        let (keep, of) = both.ok_or("expected N:M, such as 2:4")?;
        Ok(Pattern { keep, of })
    }
}

impl PruneHow {
    /// Whether anything is to be pruned.
    pub(crate) fn is_set(&self) -> bool {
        self.sparsity.is_some() || self.pattern.is_some()
    }

    /// What the options say, without gradients.
    fn options(&self) -> PruneOptions {
        let method = match self.method {
            Method::L1 => PruneMethod::L1,
            Method::L2 => PruneMethod::L2,
            Method::Random => PruneMethod::Random { seed: self.seed },
            Method::Taylor => PruneMethod::Taylor,
        };
        let structure = match (self.pattern, self.structure) {
            (Some(Pattern { keep, of }), _) => Structure::Pattern { keep, of },
            (None, None) => Structure::Weights,
            (None, Some(Whole::Rows)) => Structure::Rows,
            (None, Some(Whole::Columns)) => Structure::Columns,
            (None, Some(Whole::Heads)) => Structure::Heads,
            (None, Some(Whole::Neurons)) => Structure::Neurons,
            (None, Some(Whole::Layers)) => Structure::Layers,
        };
        PruneOptions::new(method, structure, self.sparsity.unwrap_or(0.0)).global(self.global)
    }

    /// What the options say, with the gradients over `text` that they need.
    pub(crate) fn of_model(
        &self,
        builder: &Builder,
        model: &Path,
        text: Option<&str>,
        recovery: &RecoveryArgs,
    ) -> Result<PruneOptions> {
        let how = self.options();
        match (self.method, text) {
            (Method::Taylor, None) => {
                Err(CliError::usage("--method taylor: expected --text, over which gradients are computed"))
            }
            (Method::Taylor, Some(text)) => {
                let model = builder.clone().inspect_only().load(model)?;
                let base = Training::base(&model)?;
                let rows = recovery.row_tokens(&model);
                Ok(how.gradients(gradients(&base, &Corpus::text(&model, text)?, rows, 64)?))
            }
            (Method::L1 | Method::L2 | Method::Random, _) => Ok(how),
        }
    }
}

impl RecoveryArgs {
    /// Tokens of a row of training.
    fn row_tokens(&self, model: &Model) -> usize {
        self.row_tokens.unwrap_or_else(|| model.config().max_context_length.min(256))
    }

    /// Trains the model `small` on `text` to predict what `whole` does.
    pub(crate) fn recover(
        &self,
        builder: &Builder,
        whole: &Path,
        small: &Path,
        text: &str,
        out: &Path,
    ) -> Result {
        let load = |path: &Path| builder.clone().inspect_only().load(path);
        let (student, teacher) = (load(small)?, load(whole)?);
        let (base, whole) = (Training::base(&student)?, Training::base(&teacher)?);
        let mut options = TrainOptions::new();
        options.row_tokens = self.row_tokens(&student);
        options.steps = self.steps;
        options.learning_rate = self.lr;
        options.loss = Loss::Distillation { temperature: 1.0, hard: 0.5 };
        let corpus = Corpus::text(&student, text)?;
        let mut training = Training::new(&base, options)?;
        training.teach_by(&whole)?;
        training.keep_zeros();
        let bar = progress("recovering", "steps", self.steps as usize);
        while !training.is_done() {
            training.step(&corpus)?;
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(training.save(out, false)?)
    }
}

pub(crate) fn run(args: &PruneArgs) -> Result {
    args.changed.check()?;
    let builder = Model::builder().cpu().id42(args.changed.layout.id42);
    let text = args.text.as_ref().map(|path| Ok((place(path), read_text(path)?)));
    let text: Option<(String, String)> = text.transpose().map_err(|error: CliError| error)?;
    let how = args.how.of_model(
        &builder,
        &args.model,
        text.as_ref().map(|text| text.1.as_str()),
        &args.recovery,
    )?;
    let how = how.tensors(args.tensor.clone());
    let mut perplexity = Vec::new();
    let mut measured = |name, model: &Path| -> Result {
        if let Some(text) = &text {
            perplexity.push((name, measure(&builder, model, text)?));
        }
        Ok(())
    };
    measured("before", &args.model)?;
    let written = args.changed.options();
    let options = args.changed.layout.writing(args.changed.force);
    let done = match &args.recovery.recover {
        None => {
            let done = pruned(&args.model, &args.changed.out, &how, &written)?;
            measured("after", &args.changed.out)?;
            done
        }
        Some(path) => {
            let folder = beside(&args.changed.out)?;
            let (small, better) = (folder.path().join("pruned.gguf"), folder.path().join("recovered.gguf"));
            let mut done = pruned(&args.model, &small, &how, &options)?;
            measured("after", &small)?;
            args.recovery.recover(&builder, &args.model, &small, &read_text(path)?, &better)?;
            done.0 = with_progress(|progress| match args.changed.out.extension() {
                Some(extension) if extension.eq_ignore_ascii_case("gguf") => {
                    shohin::convert::convert(&better, &args.changed.out, &written, progress)
                }
                _ => shohin::convert::convert_to_folder(&better, &args.changed.out, &written, progress),
            })?;
            measured("recovered", &args.changed.out)?;
            done
        }
    };
    report(args, &done, &perplexity)
}

/// A folder for files on the way, on the disk of `out`.
pub(crate) fn beside(out: &Path) -> Result<tempfile::TempDir> {
    let parent = out.parent().filter(|parent| !parent.as_os_str().is_empty());
    Ok(tempfile::tempdir_in(parent.unwrap_or(Path::new(".")))?)
}

/// What was written, and for each tensor how many weights of how many are 0.
pub(crate) type Done = (Converted, BTreeMap<String, [u64; 2]>);

pub(crate) fn pruned(model: &Path, out: &Path, how: &PruneOptions, options: &ConvertOptions) -> Result<Done> {
    let mut zeros = BTreeMap::new();
    let converted = with_progress(|progress| {
        let done = prune(model, out, how, options, progress)?;
        zeros = done.zeros;
        Ok(done.converted)
    })?;
    Ok((converted, zeros))
}

fn report(args: &PruneArgs, (converted, zeros): &Done, perplexity: &[(&str, f64)]) -> Result {
    let before =
        std::fs::metadata(&args.model).ok().filter(std::fs::Metadata::is_file).map(|file| file.len());
    let share = |[zeros, all]: [u64; 2]| zeros as f64 / all.max(1) as f64;
    let whole = zeros.values().fold([0, 0], |a, b| [a[0] + b[0], a[1] + b[1]]);
    let mut out = io::stdout().lock();
    if args.changed.json {
        let tensors = converted.tensors.iter().map(|tensor| {
            let mut object = tensor_json(tensor);
            object["sparsity"] = json!(zeros.get(&tensor.name).map(|of| share(*of)));
            object
        });
        let perplexity: serde_json::Map<String, _> =
            perplexity.iter().map(|(name, x)| ((*name).to_string(), json!(x))).collect();
        let object = json!({
            "bytes": converted.bytes,
            "bytes_before": before,
            "sparsity": share(whole),
            "perplexity": perplexity,
            "tensors": tensors.collect::<Vec<_>>(),
        });
        writeln!(out, "{object}")?;
        return Ok(());
    }
    if !zeros.is_empty() {
        let head = ["tensor", "zeros", "of"].map(String::from).to_vec();
        let row = |(name, of): (&String, &[u64; 2])| {
            vec![name.clone(), format!("{:.2} %", 100.0 * share(*of)), of[1].to_string()]
        };
        let rows: Vec<_> = [head].into_iter().chain(zeros.iter().map(row)).collect();
        terminal::table(&mut out, &rows, &[false, true, true])?;
        writeln!(out, "\n  {:.2} % of {} weights are 0.", 100.0 * share(whole), whole[1])?;
    }
    let was = before.map_or_else(String::new, |before| format!(", before {}", bytes(before)));
    writeln!(out, "  {}: {}{was}", args.changed.out.display(), bytes(converted.bytes))?;
    for (name, perplexity) in perplexity {
        let text = args.text.as_deref().map_or_else(String::new, place);
        writeln!(out, "  Perplexity of {text}, {name}: {perplexity:.4}")?;
    }
    Ok(())
}
