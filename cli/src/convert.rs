//! `shohin convert`: a Hugging Face folder as a GGUF file.

use crate::error::{CliError, Result};
use crate::terminal::{bytes, remark};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use shohin::convert::{ConvertError, ConvertOptions, Converted, FileType, convert};
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

/// Convert a Hugging Face folder to a GGUF file
///
/// FOLDER has config.json, tokenizer.json and safetensors of a Qwen3 or Llama model (F32, F16 or BF16, in one file or
/// several), also as FP8, or as MLX packs them in 1, 2, 4 or 8 bits. Tokenizer and chat template come along, so that llama.cpp reads
/// the file, too. `--model FOLDER` runs a folder without converting it first.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shohin convert Qwen3-0.6B --out qwen3-0.6b.gguf
  shohin convert Ternary-Bonsai-1.7B-unpacked --type pq2_0 --out ternary-bonsai-1.7b.gguf
  shohin convert Bonsai-1.7B-mlx-1bit --out bonsai-1.7b.gguf
  shohin quantize qwen3-0.6b.gguf --type q4_k_m --out qwen3-0.6b-q4_k_m.gguf")]
pub(crate) struct ConvertArgs {
    /// The folder
    folder: PathBuf,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// Format of matrices, such as f16, q8_0, q4_k_m, q1_0 or pq2_0; unless set, the one that keeps every bit
    #[arg(long, value_name = "TYPE")]
    r#type: Option<FileType>,
    /// Replace FILE if it exists
    #[arg(short, long)]
    force: bool,
}

pub(crate) fn run(args: &ConvertArgs) -> Result {
    let mut options = ConvertOptions::new().replace(args.force);
    options.file_type = args.r#type;
    let done = write(&args.folder, &args.out, &options)?;
    remark(format_args!("{}: {} tensors, {}", args.out.display(), done.tensors.len(), bytes(done.bytes)));
    Ok(())
}

/// Converts with a progress bar.
pub(crate) fn write(source: &Path, out: &Path, options: &ConvertOptions) -> Result<Converted> {
    let bar = if io::stderr().is_terminal() { ProgressBar::new(0) } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template(
        "{bar:30} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}",
    );
    bar.set_style(style.map_err(CliError::new)?);
    let done = convert(source, out, options, |written, whole| {
        bar.set_length(whole);
        bar.set_position(written);
    });
    bar.finish_and_clear();
    done.map_err(|error| match &error {
        shohin::Error::Convert { source, .. } if **source == ConvertError::Exists => {
            CliError::usage(format_args!("{error}; replace it with --force"))
        }
        _ => error.into(),
    })
}
