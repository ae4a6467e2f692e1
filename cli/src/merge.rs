//! `shohin merge`: several models as one, or adapters (LoRA) added to the weights of a model.

use crate::convert::{cells, check_new, tensor_json, with_progress};
use crate::error::{CliError, Context, Result};
use crate::eval::{WINDOW, score};
use crate::input::{place, read_text};
use crate::model::{LayoutArgs, Lora};
use crate::terminal::{self, bytes};
use clap::{Args, ValueEnum};
use serde_json::json;
use shohin::convert::{
    Converted, ConvertedTensor, FileType, Merge, MergeMethod, ModelMerge, TensorRule, merge, merge_models,
};
use shohin::core::tokenizer::Special;
use shohin::{Builder, Model};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Combine models, or add adapters (LoRA) to the weights of one
///
/// With --method, the weights of several models that were made from the same one become those of one model. linear is their mean
/// by --weights; slerp goes from the first of two to the second along an arc, as far as --t says; task adds what each has learned,
/// by --weights, to the model --base; ties adds only the largest part of that (--density) where models agree in sign, and dare a
/// random part. Everything else, such as the tokenizer and the formats of tensors, is the first model's. Prints for each tensor how
/// much it changed from the first model.
///
/// With --lora, writes what needs no --lora: W + SCALE (alpha / r) B A for each adapted matrix, computed in 64 bits. With --type,
/// every matrix gets TYPE; without it, each keeps its own. Tensors that no adapter changes keep their bytes where they keep
/// their format.
/// Prints for each adapted matrix the error, as the root of the mean square relative to that of the sum; the change of the
/// weights, relative to that of the adapters; and kept, the part of the adapters that is in it: 0 % if all was rounded away.
/// The change is also what rounding did to the weights.
#[derive(Debug, Args)]
#[command(after_help = "\
1-bit and ternary formats are refused for weights that change, since small changes are rounded away in them: merge into f16 or
q8_0, or leave an adapter beside the weights (--lora). --requantize writes them nevertheless, and with --text shows the
perplexity of the models before, and of the file.

Examples:
  shohin merge poet.gguf sql.gguf --method linear --weights 0.3,0.7 --out both.gguf
  shohin merge poet.gguf sql.gguf --method slerp --t 0.4 --out both.gguf
  shohin merge poet.gguf sql.gguf --method ties --base qwen3-f16.gguf --density 0.3 --out both.gguf
  shohin merge poet-folder sql-folder --method task --base Qwen3-0.6B --weights 1,0.5 --out both-folder
  shohin merge bonsai-1.7b.gguf --lora poet.gguf --type f16 --out poet-1.7b.gguf
  shohin merge qwen3-f16.gguf --lora poet.gguf=0.5 --lora sql-folder --type q8_0 --out both.gguf
  shohin merge qwen3-f16.gguf --lora poet.gguf --type q4_k_m --text story.txt --out poet-q4_k_m.gguf
  shohin merge poet-f32.gguf --lora poet.gguf=-1 --out base-f32.gguf")]
pub(crate) struct MergeArgs {
    /// The models, or the one that adapters are added to: GGUF files or Hugging Face folders
    #[arg(required = true, value_name = "MODEL")]
    models: Vec<PathBuf>,
    /// How models are combined
    #[arg(long, conflicts_with = "lora", required_unless_present = "lora")]
    method: Option<Method>,
    /// The share of each model: with linear, divided by their sum; with task, ties and dare, as they are [default: 1 for each]
    #[arg(
        long,
        value_name = "W,...",
        value_delimiter = ',',
        allow_hyphen_values = true,
        requires = "method"
    )]
    weights: Option<Vec<f64>>,
    /// With slerp, how far to go from the first model to the second, 0 to 1 [default: 0.5]
    #[arg(long, value_name = "T", requires = "method")]
    t: Option<f64>,
    /// The model that the others were made from, for task, ties and dare
    #[arg(long, value_name = "MODEL", requires = "method")]
    base: Option<PathBuf>,
    /// With ties and dare, the part of each difference from the base that is kept [default: 0.5]
    #[arg(long, value_name = "PART", requires = "method")]
    density: Option<f64>,
    /// With dare, the seed of the random choice [default: 0]
    #[arg(long, value_name = "N", requires = "method")]
    seed: Option<u64>,
    /// An adapter, a GGUF file or a folder that PEFT has saved, at SCALE, or 1 without one; several add up, and -1 takes one
    /// out again
    #[arg(long, value_name = "FILE[=SCALE]", value_parser = str::parse::<Lora>)]
    lora: Vec<Lora>,
    /// Format of matrices, such as f16, f32, bf16, q8_0, q6_k or q4_k_m; unless set, each keeps its own
    #[arg(long, value_name = "TYPE")]
    r#type: Option<FileType>,
    /// Format of the tensors whose names match a pattern, as for `shohin quantize`. The last one that matches counts
    #[arg(long, value_name = "PATTERN=TYPE")]
    tensor: Vec<TensorRule>,
    /// What to write: a GGUF file by its extension, or, of models, else a Hugging Face folder
    #[arg(short, long, value_name = "OUT")]
    out: PathBuf,
    /// Write matrices that change in 1-bit and ternary formats, too
    #[arg(long, requires = "text")]
    requantize: bool,
    /// Measure the perplexity of this text before and after; "-" is standard input
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Replace the file if it exists; without this, it is an error (exit code 2)
    #[arg(short, long)]
    force: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    layout: LayoutArgs,
}

/// The method of `--method`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Method {
    /// The mean of the weights
    Linear,
    /// Along the arc between two models
    Slerp,
    /// Task arithmetic: differences from the base, added to it
    Task,
    /// The largest differences, where signs agree
    Ties,
    /// A random part of the differences, where signs agree
    Dare,
}

impl MergeArgs {
    /// How models are combined, if no adapter is merged. Options that belong to another method are refused.
    fn how(&self) -> Result<Option<ModelMerge>> {
        let Some(method) = self.method else {
            return match self.models.len() {
                1 => Ok(None),
                found => {
                    Err(CliError::usage(format_args!("--lora: expected one MODEL to add to, found {found}")))
                }
            };
        };
        let (ties, dare) = (method == Method::Ties, method == Method::Dare);
        for (name, given, belongs) in [
            ("--t", self.t.is_some(), method == Method::Slerp),
            ("--density", self.density.is_some(), ties || dare),
            ("--seed", self.seed.is_some(), dare),
        ] {
            if given && !belongs {
                return Err(CliError::usage(format_args!("{name} is not an option of this --method")));
            }
        }
        let density = self.density.unwrap_or(0.5);
        let mut how = ModelMerge::new(match method {
            Method::Linear => MergeMethod::Linear,
            Method::Slerp => MergeMethod::Slerp { t: self.t.unwrap_or(0.5) },
            Method::Task => MergeMethod::Task,
            Method::Ties => MergeMethod::Ties { density },
            Method::Dare => MergeMethod::Dare { density, seed: self.seed.unwrap_or(0) },
        });
        how.weights = self.weights.clone();
        how.base = self.base.clone();
        Ok(Some(how))
    }
}

pub(crate) fn run(args: &MergeArgs) -> Result {
    let how = args.how()?;
    check_new(&args.out, args.force)?;
    let text = match &args.text {
        Some(path) => Some((place(path), read_text(path)?)),
        None => None,
    };
    let mut perplexity: Vec<(String, f64)> = Vec::new();
    let builder = Model::builder().cpu().id42(args.layout.id42);
    let adapted = |builder: Builder| args.lora.iter().fold(builder, |b, l| b.adapter(&l.path, l.scale));
    if let Some(text) = &text {
        for (i, model) in args.models.iter().enumerate() {
            let name = if how.is_none() { "base".into() } else { format!("model {}", i + 1) };
            perplexity.push((name, measure(&builder, model, text)?));
            if how.is_none() {
                let with = measure(&adapted(builder.clone()), model, text)?;
                perplexity.push(("base with --lora".into(), with));
            }
        }
    }
    let mut options = args.layout.writing(args.force).rules(args.tensor.clone()).requantize(args.requantize);
    options.file_type = args.r#type;
    let done = match &how {
        Some(how) => {
            with_progress(|progress| merge_models(&args.models, how, &args.out, &options, progress))?
        }
        None => {
            let adapters: Vec<(PathBuf, f32)> = args.lora.iter().map(|l| (l.path.clone(), l.scale)).collect();
            with_progress(|progress| merge(&args.models[0], &adapters, &args.out, &options, progress))?
        }
    };
    if let Some(text) = &text {
        perplexity.push(("merged".into(), measure(&builder, &args.out, text)?));
    }
    match how {
        Some(_) => report_models(args, &done, &perplexity),
        None => report(args, &done, &perplexity),
    }
}

/// Says how much the tensors of the first model have changed.
fn report_models(args: &MergeArgs, done: &Converted, perplexity: &[(String, f64)]) -> Result {
    let change = |merge: &Merge| if merge.change == 0.0 { 0.0 } else { merge.change / merge.sum };
    let changed: Vec<(&ConvertedTensor, &Merge)> =
        done.tensors.iter().filter_map(|tensor| Some((tensor, tensor.merge.as_ref()?))).collect();
    let whole = Merge::total(changed.iter().map(|(_, merge)| *merge));
    let mut out = io::stdout().lock();
    if args.json {
        let tensors = done.tensors.iter().map(|tensor| {
            let mut object = tensor_json(tensor);
            object["change"] = json!(tensor.merge.as_ref().map(change));
            object
        });
        let perplexity: serde_json::Map<String, _> =
            perplexity.iter().map(|(name, x)| (name.clone(), json!(x))).collect();
        let object = json!({
            "bytes": done.bytes,
            "error": whole.relative_error(),
            "change": change(&whole),
            "perplexity": perplexity,
            "tensors": tensors.collect::<Vec<_>>(),
        });
        writeln!(out, "{object}")?;
        return Ok(());
    }
    let head = ["tensor", "shape", "from", "to", "error", "change"].map(String::from).to_vec();
    let row = |(tensor, merge): &(&ConvertedTensor, &Merge)| {
        [cells(tensor), vec![percent(merge.relative_error()), percent(change(merge))]].concat()
    };
    let rows: Vec<_> = [head].into_iter().chain(changed.iter().map(row)).collect();
    terminal::table(&mut out, &rows, &[false, true, false, false, true, true])?;
    writeln!(
        out,
        "\n  {}: {} tensors, {}. They changed by {} of their size from {}; the error of their formats is {}.",
        args.out.display(),
        done.tensors.len(),
        bytes(done.bytes),
        percent(change(&whole)),
        args.models[0].display(),
        percent(whole.relative_error())
    )?;
    for (name, perplexity) in perplexity {
        let text = args.text.as_deref().map_or_else(String::new, place);
        writeln!(out, "  Perplexity of {text}, {name}: {perplexity:.4}")?;
    }
    Ok(())
}

/// The perplexity of a text, with its name.
pub(crate) fn measure(builder: &Builder, path: &Path, (place, text): &(String, String)) -> Result<f64> {
    let model = builder.clone().load(path)?;
    let window = WINDOW.min(model.config().max_context_length);
    let tokens = model.tokenize_with(text, Special::UserDefined);
    if tokens.len() < 2 || window < 2 {
        let n = tokens.len().min(window);
        return Err(CliError::new(format_args!("{place}: expected at least 2 tokens of text, found {n}")));
    }
    Ok(score(&model, &tokens, window, window / 2, place).context(place)?.mean().exp())
}

fn report(args: &MergeArgs, done: &Converted, perplexity: &[(String, f64)]) -> Result {
    let merged: Vec<(&ConvertedTensor, &Merge)> =
        done.tensors.iter().filter_map(|tensor| Some((tensor, tensor.merge.as_ref()?))).collect();
    let whole = Merge::total(merged.iter().map(|(_, merge)| *merge));
    let worst = merged.iter().max_by(|a, b| a.1.relative_error().total_cmp(&b.1.relative_error()));
    let mut out = io::stdout().lock();
    if args.json {
        let tensors = done.tensors.iter().map(|tensor| {
            let mut object = tensor_json(tensor);
            object["change"] = json!(tensor.merge.map(|merge| merge.change()));
            object["kept"] = json!(tensor.merge.map(|merge| merge.kept()));
            object
        });
        let perplexity: serde_json::Map<String, _> =
            perplexity.iter().map(|(name, x)| (name.clone(), json!(x))).collect();
        let object = json!({
            "bytes": done.bytes,
            "error": whole.relative_error(),
            "change": whole.change(),
            "kept": whole.kept(),
            "worst": worst.map(|(tensor, _)| &tensor.name),
            "perplexity": perplexity,
            "tensors": tensors.collect::<Vec<_>>(),
        });
        writeln!(out, "{object}")?;
        return Ok(());
    }
    let head = ["tensor", "shape", "from", "to", "error", "change", "kept"].map(String::from).to_vec();
    let row = |(tensor, merge): &(&ConvertedTensor, &Merge)| {
        let parts = [merge.relative_error(), merge.change(), merge.kept()];
        [cells(tensor), parts.map(percent).into()].concat()
    };
    let rows: Vec<_> = [head].into_iter().chain(merged.iter().map(row)).collect();
    terminal::table(&mut out, &rows, &[false, true, false, false, true, true, true])?;
    let (all, changed) = (done.tensors.len(), merged.len());
    writeln!(
        out,
        "\n  {}: {all} tensors, of which adapters changed {changed}, {}",
        args.out.display(),
        bytes(done.bytes)
    )?;
    if let Some((worst, merge)) = worst {
        writeln!(
            out,
            "  Error {} of the sums; the worst, {}, has {}. Of the adapters, {} was kept.",
            percent(whole.relative_error()),
            worst.name,
            percent(merge.relative_error()),
            percent(whole.kept())
        )?;
    }
    for (name, perplexity) in perplexity {
        writeln!(
            out,
            "  Perplexity of {}, {name}: {perplexity:.4}",
            args.text.as_deref().map_or_else(String::new, place)
        )?;
    }
    Ok(())
}

/// As a percentage, with digits where it is small.
fn percent(part: f64) -> String {
    match 100.0 * part {
        small if small != 0.0 && small.abs() < 0.001 => format!("{small:.1e} %"),
        part => format!("{part:.3} %"),
    }
}
