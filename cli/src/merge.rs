//! `shohin merge`: adapters (LoRA) added to the weights of a model.

use crate::convert::{cells, check_out, tensor_json, with_progress};
use crate::error::{CliError, Context, Result};
use crate::eval::{WINDOW, score};
use crate::input::{place, read_text};
use crate::model::{LayoutArgs, Lora};
use crate::terminal::{self, bytes};
use clap::Args;
use serde_json::json;
use shohin::convert::{ConvertOptions, Converted, ConvertedTensor, FileType, Merge, TensorRule, merge};
use shohin::core::tokenizer::Special;
use shohin::{Builder, Model};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Add adapters (LoRA) to the weights of a model
///
/// Writes a GGUF file that needs no --lora: W + SCALE (alpha / r) B A for each adapted matrix, computed in 64 bits. BASE is a
/// GGUF file or a Hugging Face folder. Formats are as from `shohin quantize`: with --type, every matrix gets TYPE; without it,
/// each keeps its own. Tensors that no adapter changes keep their bytes where they keep their format.
/// Prints for each adapted matrix the error, as the root of the mean square relative to that of the sum; the change of the
/// weights, relative to that of the adapters; and kept, the part of the adapters that is in it: 0 % if all was rounded away.
/// The change is also what rounding did to the weights.
#[derive(Debug, Args)]
#[command(after_help = "\
1-bit and ternary formats are refused for adapted matrices, since small changes are rounded away in them: merge into f16 or
q8_0, or leave the adapter beside the weights (--lora). --requantize writes them nevertheless, and with --text shows the
perplexity of the base, of the base with --lora, and of the file.

Examples:
  shohin merge bonsai-1.7b.gguf --lora poet.gguf --type f16 --out poet-1.7b.gguf
  shohin merge qwen3-f16.gguf --lora poet.gguf=0.5 --lora sql-folder --type q8_0 --out both.gguf
  shohin merge qwen3-f16.gguf --lora poet.gguf --type q4_k_m --text story.txt --out poet-q4_k_m.gguf
  shohin merge poet-f32.gguf --lora poet.gguf=-1 --out base-f32.gguf")]
pub(crate) struct MergeArgs {
    /// The model, a GGUF file or a Hugging Face folder
    base: PathBuf,
    /// The adapter, a GGUF file or a folder that PEFT has saved, at SCALE, or 1 without one; several add up, and -1 takes one
    /// out again
    #[arg(long, value_name = "FILE[=SCALE]", value_parser = str::parse::<Lora>, required = true)]
    lora: Vec<Lora>,
    /// Format of matrices, such as f16, f32, bf16, q8_0, q6_k or q4_k_m; unless set, each keeps its own
    #[arg(long, value_name = "TYPE")]
    r#type: Option<FileType>,
    /// Format of the tensors whose names match a pattern, as for `shohin quantize`. The last one that matches counts
    #[arg(long, value_name = "PATTERN=TYPE")]
    tensor: Vec<TensorRule>,
    /// The file to write
    #[arg(short, long, value_name = "FILE.gguf")]
    out: PathBuf,
    /// Write adapted matrices in 1-bit and ternary formats, too
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

pub(crate) fn run(args: &MergeArgs) -> Result {
    check_out(&args.out)?;
    // Before anything is measured.
    if args.out.is_file() && !args.force {
        return Err(CliError::usage(format_args!(
            "{}: it exists already; replace it with --force",
            args.out.display()
        )));
    }
    let text = match &args.text {
        Some(path) => Some((place(path), read_text(path)?)),
        None => None,
    };
    let mut perplexity = Vec::new();
    let (builder, base) = (Model::builder().cpu().id42(args.layout.id42), &args.base);
    let adapted = |builder: Builder| args.lora.iter().fold(builder, |b, l| b.adapter(&l.path, l.scale));
    if let Some(text) = &text {
        perplexity.push(("base", measure(&builder, base, text)?));
        perplexity.push(("base with --lora", measure(&adapted(builder.clone()), base, text)?));
    }
    let mut options = ConvertOptions::new().rules(args.tensor.clone()).replace(args.force);
    options = options.id42(args.layout.id42).requantize(args.requantize);
    options.file_type = args.r#type;
    let adapters: Vec<(PathBuf, f32)> = args.lora.iter().map(|l| (l.path.clone(), l.scale)).collect();
    let done = with_progress(|progress| merge(base, &adapters, &args.out, &options, progress))?;
    if let Some(text) = &text {
        perplexity.push(("merged", measure(&builder, &args.out, text)?));
    }
    report(args, &done, &perplexity)
}

/// The perplexity of a text, with its name.
fn measure(builder: &Builder, path: &Path, (place, text): &(String, String)) -> Result<f64> {
    let model = builder.clone().load(path)?;
    let window = WINDOW.min(model.config().max_context_length);
    let tokens = model.tokenize_with(text, Special::UserDefined);
    if tokens.len() < 2 || window < 2 {
        let n = tokens.len().min(window);
        return Err(CliError::new(format_args!("{place}: expected at least 2 tokens of text, found {n}")));
    }
    Ok(score(&model, &tokens, window, window / 2, place).context(place)?.mean().exp())
}

fn report(args: &MergeArgs, done: &Converted, perplexity: &[(&str, f64)]) -> Result {
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
            perplexity.iter().map(|(name, x)| ((*name).to_string(), json!(x))).collect();
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
