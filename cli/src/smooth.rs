//! `shohin smooth`: ranges of activations moved into weights.

use crate::convert::{ChangedArgs, of_options, with_progress};
use crate::error::{CliError, Result};
use crate::terminal::{self, bytes};
use clap::Args;
use serde_json::json;
use shohin::Model;
use shohin::convert::{Calibration, FileType, SmoothOptions, Smoothed, smooth};
use std::io::{self, Write};
use std::path::PathBuf;

/// Move ranges of activations into weights (SmoothQuant)
///
/// Both fit into 8 or 4 bits better then. A factor for each channel, max |x|^alpha / max |w|^(1 - alpha), divides the weights of a
/// norm, or the rows of the matrix that computes the channel, and multiplies the columns of the matrices that read it. What the model
/// computes stays the same, but for rounding. STATS is what `shohin calibrate --out` writes for this model. `shohin quantize` then
/// makes the file that is to run.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shohin calibrate qwen3-f16.gguf --text wiki.txt --out wiki.stats
  shohin smooth qwen3-f16.gguf --stats wiki.stats --alpha 0.5 --out smooth.gguf
  shohin smooth qwen3-f16.gguf --stats wiki.stats --search --for q4_0 --out smooth.gguf
  shohin quantize smooth.gguf --type q4_0 --out smooth-q4_0.gguf")]
pub(crate) struct SmoothArgs {
    /// The model, a GGUF file or a Hugging Face folder
    model: PathBuf,
    /// Its statistics, from `shohin calibrate`
    #[arg(long, value_name = "STATS")]
    stats: PathBuf,
    /// How much of the ranges moves to the weights, 0 to 1
    #[arg(long, value_name = "A", default_value_t = 0.5, allow_negative_numbers = true)]
    alpha: f64,
    /// Choose alpha for each group of matrices: the one of the smallest estimated error
    #[arg(long, conflicts_with = "alpha")]
    search: bool,
    /// The format of weights that --search is for; activations have 8 bits
    #[arg(long = "for", value_name = "TYPE", default_value = "q8_0", requires = "search")]
    format: FileType,
    #[command(flatten)]
    changed: ChangedArgs,
}

pub(crate) fn run(args: &SmoothArgs) -> Result {
    args.changed.check()?;
    let how = SmoothOptions::new(args.alpha);
    let how = match (args.search, args.format) {
        (false, _) => how,
        (true, FileType::All(format)) => how.search(format),
        (true, other) => {
            return Err(CliError::usage(format_args!(
                "--for: expected one format, such as q8_0, found {other}"
            )));
        }
    };
    let calibration = Calibration::read(&args.stats).map_err(of_options)?;
    let model = Model::builder().cpu().id42(args.changed.layout.id42).inspect_only().load(&args.model)?;
    if calibration.model != model.calibration().model {
        return Err(CliError::new(format_args!(
            "{}: is a calibration of another model than {}",
            args.stats.display(),
            args.model.display()
        )));
    }
    drop(model);
    let options = args.changed.options();
    let mut groups = Vec::new();
    let converted = with_progress(|progress| {
        let done = smooth(&args.model, &args.changed.out, &calibration, &how, &options, progress)?;
        let Smoothed { converted, groups: found, .. } = done;
        groups = found;
        Ok(converted)
    })?;
    let mut out = io::stdout().lock();
    if args.changed.json {
        let groups = groups.iter().map(|group| {
            json!({"from": group.from, "to": group.to, "alpha": group.alpha, "outlier": group.outlier})
        });
        let object = json!({"bytes": converted.bytes, "groups": groups.collect::<Vec<_>>()});
        writeln!(out, "{object}")?;
        return Ok(());
    }
    let head = ["divided", "alpha", "largest channel", "after"].map(String::from).to_vec();
    let rows = groups.iter().map(|group| {
        vec![
            group.from.trim_end_matches(".weight").to_string(),
            group.alpha.map_or_else(|| "none".into(), |alpha| alpha.to_string()),
            format!("{:.1}", group.outlier[0]),
            format!("{:.1}", group.outlier[1]),
        ]
    });
    let rows: Vec<_> = [head].into_iter().chain(rows).collect();
    terminal::table(&mut out, &rows, &[false, true, true, true])?;
    writeln!(out, "\n  The largest value of a channel, times the mean of all channels.")?;
    writeln!(out, "  {}: {}", args.changed.out.display(), bytes(converted.bytes))?;
    Ok(())
}
