//! `shohin compress`: a smaller model, by pruning, training and quantizing it.

use crate::args::byte_count;
use crate::convert::{check_new, is_gguf, of_options, tensor_json, with_progress};
use crate::error::{CliError, Result};
use crate::input::{place, read_text};
use crate::merge::measure;
use crate::model::LayoutArgs;
use crate::progress::progress;
use crate::prune::{PruneHow, RecoveryArgs, beside, pruned};
use crate::terminal::{self, bytes};
use clap::{ArgGroup, Args};
use serde_json::json;
use shohin::convert::{
    ConvertOptions, Converted, FileType, FormatChoice, FormatTrials, PruneOptions, TensorRule, convert,
    estimate, size_range, try_formats,
};
use shohin::core::Format;
use shohin::{Builder, Model};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Make a model smaller: prune, train what is left, and quantize
///
/// --type gives every matrix a format, as in `shohin quantize`. With --target-bytes or --target-perplexity, each gets the one of --formats that
/// suits: the error of each matrix in each format is measured, and from the smallest formats, the step that reduces the error most
/// for its bytes is taken again and again, up to the target. For a perplexity, files of several sizes are measured.
/// --sparsity and --pattern prune before that, as in `shohin prune`, and --recover trains what is left.
/// Prints an estimate before anything is written, and then what came out.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("target").args(["type", "target_bytes", "target_perplexity"]).required(true))]
#[command(after_help = "\
Examples:
  shohin compress smollm2-f16.gguf --target-bytes 80MB --text wiki.txt --out small.gguf
  shohin compress smollm2-f16.gguf --target-perplexity 24 --text wiki.txt --out small.gguf
  shohin compress smollm2-f16.gguf --structure neurons --sparsity 0.1 --recover wiki.txt --type q4_k_m --out small.gguf
  shohin compress smollm2-f16.gguf --target-bytes 80MB --estimate --out small.gguf")]
pub(crate) struct CompressArgs {
    /// The model, a GGUF file or a Hugging Face folder
    model: PathBuf,
    #[command(flatten)]
    how: PruneHow,
    #[command(flatten)]
    recovery: RecoveryArgs,
    /// Format of matrices, as in `shohin quantize`
    #[arg(long, value_name = "TYPE")]
    r#type: Option<FileType>,
    /// Format of the tensors whose names match a pattern, in which * is any text; the last one that matches counts
    #[arg(long, value_name = "PATTERN=TYPE")]
    tensor: Vec<TensorRule>,
    /// Bytes of the file, such as 80MB or 1.5GiB
    #[arg(long, value_name = "BYTES", value_parser = byte_count::<u64>)]
    target_bytes: Option<u64>,
    /// The smallest file whose perplexity on --text is at most this
    #[arg(long, value_name = "X", requires = "text")]
    target_perplexity: Option<f64>,
    /// Formats to choose from for a target
    #[arg(long, value_name = "TYPE,TYPE", value_delimiter = ',', value_parser = format_named, default_value = "q2_k,q3_k,iq4_xs,q4_k,q5_k,q6_k,q8_0,f16")]
    formats: Vec<Format>,
    /// A text whose perplexity is measured after each step, and for the gradients of --method taylor
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Print the estimate, and write nothing
    #[arg(long)]
    estimate: bool,
    /// The GGUF file to write
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// Replace the file if it exists; without this, it is an error (exit code 2)
    #[arg(short, long)]
    force: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    layout: LayoutArgs,
}

fn format_named(name: &str) -> std::result::Result<Format, String> {
    match name.parse()? {
        FileType::All(format) => Ok(format),
        mixed => Err(format!("expected a single format, found {mixed}")),
    }
}

/// A model on the way.
struct Step {
    name: &'static str,
    bytes: Option<u64>,
    perplexity: Option<f64>,
}

/// What was computed.
#[derive(Default)]
struct Report {
    steps: Vec<Step>,
    /// Bytes of the file: the least and the most that are possible before formats are chosen, and what is expected of the choice.
    range: Option<[u64; 2]>,
    expected: Option<u64>,
    /// Bytes and perplexities of the files that were tried for a perplexity.
    tried: Vec<(u64, f64)>,
}

/// The model that is compressed, with what is needed to measure it.
struct Compression<'a> {
    args: &'a CompressArgs,
    builder: Builder,
    text: Option<(String, String)>,
    report: Report,
}

pub(crate) fn run(args: &CompressArgs) -> Result {
    check_new(&args.out, args.force)?;
    if !is_gguf(&args.out) {
        return Err(CliError::usage(format_args!(
            "--out: expected the name of a file that ends in .gguf, found {}",
            args.out.display()
        )));
    }
    if let Some(target) = args.target_perplexity.filter(|x| !(*x >= 1.0 && x.is_finite())) {
        return Err(CliError::usage(format_args!(
            "--target-perplexity is {target}, expected a number of at least 1"
        )));
    }
    if args.recovery.recover.is_some() && !args.how.is_set() {
        return Err(CliError::usage("--recover: expected --sparsity or --pattern, after which it trains"));
    }
    let text = match &args.text {
        Some(path) => Some((place(path), read_text(path)?)),
        None => None,
    };
    let builder = Model::builder().cpu().id42(args.layout.id42);
    Compression { args, builder, text, report: Report::default() }.run()
}

impl Compression<'_> {
    fn run(mut self) -> Result {
        let args = self.args;
        let how = match args.how.is_set() {
            true => {
                let text = self.text.as_ref().map(|text| text.1.as_str());
                Some(args.how.of_model(&self.builder, &args.model, text, &args.recovery)?)
            }
            false => None,
        };
        self.estimate(how.as_ref())?;
        if args.estimate {
            return self.report.print(args, None);
        }
        self.step("as it is", &args.model)?;
        let folder = beside(&args.out)?;
        let small = match &how {
            Some(how) => self.pruned(how, folder.path())?,
            None => args.model.clone(),
        };
        let options = self.chosen(&small, folder.path())?;
        let done = with_progress(|progress| convert(&small, &args.out, &options, progress))?;
        self.step("compressed", &args.out)?;
        self.report.print(args, Some(&done))
    }

    /// The options of the file to write, without formats that are still to be chosen.
    fn options(&self) -> ConvertOptions {
        let args = self.args;
        let mut options = args.layout.writing(args.force).rules(args.tensor.clone());
        options.file_type = args.r#type;
        options
    }

    /// Computes what the file will be, and refuses a target that is out of reach, before anything is written.
    fn estimate(&mut self, how: Option<&PruneOptions>) -> Result {
        let (args, options) = (self.args, self.options());
        if args.r#type.is_some() {
            let estimate = estimate(&args.model, how, &options).map_err(of_options)?;
            self.report.expected = Some(estimate.bytes);
            return Ok(());
        }
        let [least, most] = size_range(&args.model, how, &args.formats, &options).map_err(of_options)?;
        if let Some(target) = args.target_bytes.filter(|target| *target < least) {
            return Err(CliError::usage(format_args!(
                "--target-bytes is {target}, expected at least {least}: the model in the smallest of --formats"
            )));
        }
        self.report.range = Some([least, most]);
        self.report.expected = args.target_bytes.map(|target| target.min(most));
        Ok(())
    }

    fn step(&mut self, name: &'static str, model: &Path) -> Result {
        let bytes = std::fs::metadata(model).ok().filter(std::fs::Metadata::is_file).map(|file| file.len());
        let measured = self.text.as_ref().map(|text| measure(&self.builder, model, text));
        self.report.steps.push(Step { name, bytes, perplexity: measured.transpose()? });
        Ok(())
    }

    /// Prunes, and trains what is left.
    fn pruned(&mut self, how: &PruneOptions, folder: &Path) -> Result<PathBuf> {
        let args = self.args;
        let small = folder.join("pruned.gguf");
        pruned(&args.model, &small, how, &args.layout.writing(false))?;
        self.step("pruned", &small)?;
        let Some(path) = &args.recovery.recover else { return Ok(small) };
        let better = folder.join("recovered.gguf");
        args.recovery.recover(&self.builder, &args.model, &small, &read_text(path)?, &better)?;
        self.step("recovered", &better)?;
        Ok(better)
    }

    /// The options of the file to write, which is made from `model`.
    fn chosen(&mut self, model: &Path, folder: &Path) -> Result<ConvertOptions> {
        let (args, options) = (self.args, self.options());
        if args.r#type.is_some() {
            return Ok(options);
        }
        let bar = progress("measuring formats", "weights", 0);
        let trials = try_formats(model, &args.formats, &options, |done, whole| {
            bar.set_length(whole);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        let trials = trials.map_err(of_options)?;
        let with = |choice: FormatChoice| {
            // Those of the command line come last, so that they count.
            let rules = choice.rules.into_iter().chain(args.tensor.iter().cloned()).collect();
            options.clone().rules(rules)
        };
        let choice = match (args.target_bytes, args.target_perplexity) {
            (Some(target), _) => trials.choose(target),
            (None, Some(target)) => Some(self.search(&trials, target, |choice| {
                let tried = folder.join("tried.gguf");
                with_progress(|progress| convert(model, &tried, &with(choice).replace(true), progress))?;
                Ok(tried)
            })?),
            (None, None) => None,
        };
        let choice = choice.ok_or_else(|| {
            CliError::usage(format_args!("--target-bytes: no choice of {} formats fits", args.formats.len()))
        })?;
        self.report.expected = Some(choice.bytes);
        Ok(with(choice))
    }

    /// The smallest choice whose file, which `write` writes, has at most the perplexity `target`.
    fn search(
        &mut self,
        trials: &FormatTrials,
        target: f64,
        write: impl Fn(FormatChoice) -> Result<PathBuf>,
    ) -> Result<FormatChoice> {
        let no_text = || CliError::usage("--target-perplexity: expected --text");
        let text = self.text.as_ref().ok_or_else(no_text)?;
        let [mut least, most] = self.report.range.unwrap_or_default();
        let mut of = |choice: &FormatChoice| -> Result<f64> {
            let perplexity = measure(&self.builder, &write(choice.clone())?, text)?;
            self.report.tried.push((choice.bytes, perplexity));
            Ok(perplexity)
        };
        let mut best = trials.choose(most).ok_or_else(no_text)?;
        let reached = of(&best)?;
        if reached > target {
            return Err(CliError::new(format_args!(
                "--target-perplexity is {target}, but the model in the largest of --formats has {reached:.4}"
            )));
        }
        // Perplexity falls with the size, nearly.
        while best.bytes as f64 > 1.01 * least as f64 {
            let middle = (least as f64 * best.bytes as f64).sqrt() as u64;
            let Some(choice) = trials.choose(middle).filter(|choice| choice.bytes < best.bytes) else {
                break;
            };
            match of(&choice)? <= target {
                true => best = choice,
                false => least = middle,
            }
        }
        Ok(best)
    }
}

impl Report {
    /// How much more was written than was expected.
    fn difference(&self, done: &Converted) -> Option<f64> {
        self.expected.map(|expected| done.bytes as f64 / expected as f64 - 1.0)
    }

    fn print(&self, args: &CompressArgs, done: Option<&Converted>) -> Result {
        let mut out = io::stdout().lock();
        if args.json {
            let steps = self
                .steps
                .iter()
                .map(|step| json!({"step": step.name, "bytes": step.bytes, "perplexity": step.perplexity}));
            let object = json!({
                "estimate": {
                    "bytes": self.expected,
                    "least": self.range.map(|range| range[0]),
                    "most": self.range.map(|range| range[1]),
                },
                "bytes": done.map(|done| done.bytes),
                "difference": done.and_then(|done| self.difference(done)),
                "steps": steps.collect::<Vec<_>>(),
                "tried": self.tried.iter().map(|(bytes, x)| json!({"bytes": bytes, "perplexity": x})).collect::<Vec<_>>(),
                "tensors": done.map(|done| done.tensors.iter().map(tensor_json).collect::<Vec<_>>()),
            });
            writeln!(out, "{object}")?;
            return Ok(());
        }
        let size = |n: u64| format!("{} ({n} bytes)", bytes(n));
        if let Some([least, most]) = self.range {
            writeln!(out, "  The formats give {} to {}.", bytes(least), bytes(most))?;
        }
        if let Some(expected) = self.expected {
            writeln!(out, "  Estimate: {}", size(expected))?;
        }
        let Some(done) = done else { return Ok(()) };
        let difference = self.difference(done).unwrap_or(0.0);
        writeln!(out, "  {}: {}, {:+.2} %\n", args.out.display(), size(done.bytes), 100.0 * difference)?;
        let row = |name: &str, bytes: Option<u64>, perplexity: Option<f64>| {
            vec![
                name.to_string(),
                bytes.map_or_else(String::new, terminal::bytes),
                perplexity.map_or_else(String::new, |x| format!("{x:.4}")),
            ]
        };
        let head =
            ["", "size", if self.text_measured() { "perplexity" } else { "" }].map(String::from).to_vec();
        let tried = self.tried.iter().map(|(bytes, x)| row("tried", Some(*bytes), Some(*x)));
        let steps = self.steps.iter().map(|step| row(step.name, step.bytes, step.perplexity));
        let mut rows: Vec<_> = [head].into_iter().chain(steps).collect();
        let last = rows.len() - 1;
        rows.splice(last..last, tried);
        terminal::table(&mut out, &rows, &[false, true, true])?;
        let mut formats: Vec<(Format, usize)> = Vec::new();
        for tensor in done.tensors.iter().filter(|tensor| tensor.shape[0] > 1) {
            match formats.iter_mut().find(|(format, _)| *format == tensor.to) {
                Some((_, count)) => *count += 1,
                None => formats.push((tensor.to, 1)),
            }
        }
        let formats: Vec<_> =
            formats.iter().map(|(format, count)| format!("{count} in {}", format.name())).collect();
        writeln!(out, "\n  Matrices: {}", formats.join(", "))?;
        Ok(())
    }

    fn text_measured(&self) -> bool {
        self.steps.iter().any(|step| step.perplexity.is_some())
    }
}
