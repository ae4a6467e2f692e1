//! `shohin calibrate`: statistics of a model's activations over texts.

use crate::args::whole;
use crate::convert::{check_new, of_options};
use crate::error::{CliError, Result, file_error};
use crate::input::{place, read_text};
use crate::model::LayoutArgs;
use crate::progress::progress;
use crate::terminal;
use clap::Args;
use serde_json::{Value, json};
use shohin::convert::{Calibration, InputStatistics, RangeMethod};
use shohin::core::tokenizer::Special;
use shohin::{Activations, Model};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Measure what the matrices of a model are multiplied with
///
/// Runs texts through the model, in windows one after another of which only full ones count, and keeps for each matrix the
/// smallest and the largest value, the mean magnitude and the squares of each channel, and a histogram. Prints for each layer
/// the ranges that follow: the largest value, percentiles, those of ACIQ for the distributions of Laplace and Gauss, and that of the smallest
/// mean squared error, with the error that integers of --bits would have. With --validate, errors are those on another text.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shohin calibrate bonsai-1.7b.gguf --text wiki.txt --window 512 --out wiki.stats
  shohin calibrate qwen3-f16.gguf --text wiki.txt --text code.txt --imatrix qwen3.imatrix.gguf
  shohin calibrate qwen3-f16.gguf --text wiki.txt --validate novel.txt --bits 8
  shohin calibrate qwen3-f16.gguf --from wiki.stats --text code.txt --out both.stats")]
pub(crate) struct CalibrateArgs {
    /// The model, a GGUF file or a Hugging Face folder
    model: PathBuf,
    /// A text; again for several
    #[arg(long, value_name = "FILE", required_unless_present_any = ["tokens", "from"])]
    text: Vec<PathBuf>,
    /// Token ids: whole numbers of 32 bits, little-endian, one after another
    #[arg(long, value_name = "FILE")]
    tokens: Vec<PathBuf>,
    /// A calibration of the same model to go on with
    #[arg(long, value_name = "STATS")]
    from: Option<PathBuf>,
    /// Tokens of a window [default: 512, or the model's context if smaller]
    #[arg(long, value_name = "N", value_parser = whole::<usize>, allow_negative_numbers = true)]
    window: Option<usize>,
    /// Write the statistics
    #[arg(short, long, value_name = "STATS")]
    out: Option<PathBuf>,
    /// Write the squares as llama.cpp's importance matrices
    #[arg(long, value_name = "FILE.gguf")]
    imatrix: Option<PathBuf>,
    /// Measure errors on this text, which the ranges do not know
    #[arg(long, value_name = "FILE")]
    validate: Option<PathBuf>,
    /// Bits of the integers whose ranges are shown
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u32).range(2..=16))]
    bits: u32,
    /// Replace files that exist; without this, that is an error (exit code 2)
    #[arg(short, long)]
    force: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    layout: LayoutArgs,
}

pub(crate) fn run(args: &CalibrateArgs) -> Result {
    for out in [&args.out, &args.imatrix].into_iter().flatten() {
        check_new(out, args.force)?;
    }
    let model = Model::builder().cpu().activations(Activations::F32).id42(args.layout.id42);
    let model = model.load(&args.model)?;
    let mut calibration = match &args.from {
        Some(path) => Calibration::read(path).map_err(of_options)?,
        None => model.calibration(),
    };
    if calibration.model != model.calibration().model {
        let (from, model) = (args.from.as_deref().unwrap_or(Path::new("")), args.model.display());
        return Err(CliError::new(format_args!(
            "{}: is a calibration of another model than {model}",
            from.display()
        )));
    }
    let window = args.window.unwrap_or_else(|| crate::eval::WINDOW.min(model.config().max_context_length));
    for path in &args.text {
        let tokens = model.tokenize_with(&read_text(path)?, Special::UserDefined);
        observe(&model, &mut calibration, &place(path), &tokens, window)?;
    }
    for path in &args.tokens {
        observe(&model, &mut calibration, &place(path), &read_tokens(path)?, window)?;
    }
    let held_out = match &args.validate {
        None => None,
        Some(path) => {
            let mut other = model.calibration();
            let tokens = model.tokenize_with(&read_text(path)?, Special::UserDefined);
            observe(&model, &mut other, &place(path), &tokens, window)?;
            Some(other)
        }
    };
    if let Some(out) = &args.out {
        calibration.write(out, args.force).map_err(of_options)?;
    }
    if let Some(out) = &args.imatrix {
        calibration.write_importance(out, args.force).map_err(of_options)?;
    }
    report(args, &calibration, held_out.as_ref())
}

/// Adds a text to a calibration, with a progress bar.
fn observe(
    model: &Model,
    calibration: &mut Calibration,
    name: &str,
    tokens: &[u32],
    window: usize,
) -> Result {
    let bar = progress("calibrating", "windows", tokens.len() / window.max(1));
    model.calibrate(calibration, name, tokens, window, |done| bar.set_position(done as u64))?;
    bar.finish_and_clear();
    Ok(())
}

fn read_tokens(path: &Path) -> Result<Vec<u32>> {
    let bytes = std::fs::read(path).map_err(|error| file_error("read", path, &error))?;
    let (tokens, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(CliError::new(format_args!(
            "{}: has {} bytes, expected whole numbers of 4 bytes",
            path.display(),
            bytes.len()
        )));
    }
    Ok(tokens.iter().map(|token| u32::from_le_bytes(*token)).collect())
}

/// A matrix with what is said of it: the name, its statistics, and those by which errors are measured.
type Row<'c> = (&'c str, &'c InputStatistics, &'c InputStatistics);

fn report(args: &CalibrateArgs, calibration: &Calibration, held_out: Option<&Calibration>) -> Result {
    // Without a histogram, as from importance matrices, there is nothing to choose a range by.
    let known =
        calibration.inputs.iter().filter(|(_, inputs)| inputs.histogram.iter().any(|count| *count > 0));
    let rows: Vec<Row<'_>> = known
        .map(|(name, inputs)| {
            let measured = held_out.and_then(|other| other.inputs.get(name)).unwrap_or(inputs);
            (name.as_str(), inputs, measured)
        })
        .collect();
    let mut out = io::stdout().lock();
    if args.json {
        writeln!(out, "{}", to_json(args, calibration, &rows))?;
        return Ok(());
    }
    let mut head = vec!["inputs of".to_string(), "mean |x|".into(), "largest".into()];
    head.extend(RangeMethod::ALL.map(|method| method.to_string()));
    let row = |(name, inputs, measured): &Row<'_>| {
        let mut cells = vec![
            name.trim_end_matches(".weight").to_string(),
            format!("{:.4}", inputs.mean_abs()),
            format!("{:.3}", inputs.largest()),
        ];
        cells.extend(RangeMethod::ALL.map(|method| {
            let range = inputs.range(method, args.bits);
            format!("{:.3} ({:.2} %)", range.clip, 100.0 * measured.relative_error(range.clip, args.bits))
        }));
        cells
    };
    let table: Vec<_> = [head].into_iter().chain(rows.iter().map(row)).collect();
    terminal::table(&mut out, &table, &[false, true, true, true, true, true, true, true])?;
    let texts: Vec<_> = calibration
        .texts
        .iter()
        .map(|text| format!("{}: {} windows of {} tokens", text.name, text.windows, text.window))
        .collect();
    writeln!(out, "\n  {}", texts.join("; "))?;
    let on = match &args.validate {
        Some(path) => format!("on {}", place(path)),
        None => "on the same text".into(),
    };
    writeln!(out, "  Ranges, and the root mean square error of integers of {} bits {on}.", args.bits)?;
    for path in [&args.out, &args.imatrix].into_iter().flatten() {
        writeln!(out, "  Written: {}", path.display())?;
    }
    Ok(())
}

fn to_json(args: &CalibrateArgs, calibration: &Calibration, rows: &[Row<'_>]) -> Value {
    let inputs = rows.iter().map(|(name, inputs, measured)| {
        let ranges: serde_json::Map<String, Value> = RangeMethod::ALL
            .iter()
            .map(|method| {
                let range = inputs.range(*method, args.bits);
                let error = measured.relative_error(range.clip, args.bits);
                let range = json!({"clip": range.clip, "scale": range.scale, "error": error});
                (method.to_string(), range)
            })
            .collect();
        json!({
            "name": name,
            "cols": inputs.cols,
            "counts": inputs.counts,
            "min": inputs.min.iter().copied().fold(f32::INFINITY, f32::min),
            "max": inputs.max.iter().copied().fold(f32::NEG_INFINITY, f32::max),
            "mean_abs": inputs.mean_abs(),
            "root_mean_square": inputs.root_mean_square(),
            "ranges": ranges,
        })
    });
    let texts = calibration.texts.iter();
    let texts = texts.map(|text| json!({"name": text.name, "windows": text.windows, "window": text.window}));
    json!({
        "model": calibration.model,
        "bits": args.bits,
        "texts": texts.collect::<Vec<_>>(),
        "inputs": inputs.collect::<Vec<_>>(),
    })
}
