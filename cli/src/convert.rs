//! `shohin convert`: a Hugging Face folder as a GGUF file, and back.

use crate::error::{CliError, Result};
use crate::model::LayoutArgs;
use crate::progress::transfer;
use crate::terminal::{bytes, remark};
use clap::Args;
use serde_json::{Value, json};
use shohin::convert::{
    ConvertError, ConvertOptions, Converted, ConvertedTensor, Error, FileType, convert, convert_adapter,
    convert_adapter_to_folder, convert_to_folder,
};
use shohin::core::Format;
use std::path::{Path, PathBuf};

/// Convert a Hugging Face folder or an ONNX file to GGUF, or GGUF to a folder
///
/// SOURCE is a folder with config.json, tokenizer.json and safetensors of a Qwen3 or Llama model (F32, F16 or BF16, in one
/// file or several), also as FP8, or as MLX packs them in 1, 2, 4 or 8 bits; or an ONNX file in such a folder, with floats
/// or packed weights of 2, 4 or 8 bits (the folder's name is enough if it has one such file and no safetensors). Tokenizer
/// and chat template come along, so that llama.cpp reads the file, too.
/// With --base, SOURCE is an adapter (LoRA) as PEFT saves it, or a GGUF file, which becomes such a folder; `--lora` takes both.
/// `--model SOURCE` runs it without converting it first. With --safetensors, SOURCE may be a GGUF file.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shohin convert Qwen3-0.6B --out qwen3-0.6b.gguf
  shohin convert Ternary-Bonsai-1.7B-unpacked --type pq2_0 --out ternary-bonsai-1.7b.gguf
  shohin convert Ternary-Bonsai-1.7B-ONNX/onnx/model_q2.onnx --out ternary-bonsai-1.7b.gguf
  shohin convert my-lora --base bonsai-1.7b.gguf --out my-lora.gguf
  shohin convert my-lora.gguf --base Qwen3-0.6B --out my-lora
  shohin convert bonsai-1.7b.gguf --safetensors --out Bonsai-1.7B-unpacked
  shohin quantize qwen3-0.6b.gguf --type q4_k_m --out qwen3-0.6b-q4_k_m.gguf")]
pub(crate) struct ConvertArgs {
    /// The folder or the file
    source: PathBuf,
    /// The file to write, or the folder
    #[arg(short, long, value_name = "PATH")]
    out: PathBuf,
    /// The model that an adapter is for, a GGUF file or a Hugging Face folder: SOURCE is then a folder that PEFT has saved, or the
    /// GGUF file of an adapter
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["safetensors", "type"])]
    base: Option<PathBuf>,
    /// Write a Hugging Face folder with weights in F32, F16 or BF16
    #[arg(long)]
    safetensors: bool,
    /// Format of matrices, such as f16, q8_0, q4_k_m, q1_0 or pq2_0; unless set, the one that keeps every bit
    #[arg(long, value_name = "TYPE")]
    r#type: Option<FileType>,
    /// Replace the file if it exists, or the folder's weights and tokenizer; without this, it is an error (exit code 2)
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    layout: LayoutArgs,
}

pub(crate) fn run(args: &ConvertArgs) -> Result {
    if let Some(base) = &args.base {
        return adapter(args, base);
    }
    if args.source.join("adapter_config.json").is_file() {
        return Err(CliError::usage(format_args!(
            "{} is an adapter, expected --base with the model that it is for",
            args.source.display()
        )));
    }
    let mut options = args.layout.writing(args.force);
    options.file_type = args.r#type;
    if let Some(found) = args.r#type.filter(|found| args.safetensors && found.float().is_none()) {
        return Err(CliError::usage(format_args!(
            "--type of safetensors: expected f32, f16 or bf16, found {found}"
        )));
    }
    if !args.safetensors && is_gguf(&args.source) && !is_gguf(&args.out) {
        return Err(CliError::usage(format_args!(
            "expected --safetensors to write a folder, or a file --out that ends in .gguf, found {}",
            args.out.display()
        )));
    }
    let done = match args.safetensors {
        false => write(&args.source, &args.out, &options)?,
        true => with_progress(|progress| convert_to_folder(&args.source, &args.out, &options, progress))?,
    };
    remark(format_args!("{}: {} tensors, {}", args.out.display(), done.tensors.len(), bytes(done.bytes)));
    Ok(())
}

pub(crate) fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|found| found.eq_ignore_ascii_case("gguf"))
}

/// Writes the GGUF file of an adapter, or of such a file the folder.
fn adapter(args: &ConvertArgs, base: &Path) -> Result {
    let options = args.layout.writing(args.force);
    let is_folder = args.source.is_dir();
    if !is_folder && is_gguf(&args.out) {
        return Err(CliError::usage(format_args!(
            "--out of an adapter that is a file: expected the name of a folder, found {}",
            args.out.display()
        )));
    }
    let done = match is_folder {
        true => convert_adapter(&args.source, base, &args.out, &options),
        false => convert_adapter_to_folder(&args.source, base, &args.out, &options),
    };
    let done = done.map_err(of_options)?;
    remark(format_args!("{}: {} tensors, {}", args.out.display(), done.tensors.len(), bytes(done.bytes)));
    Ok(())
}

/// Writes a GGUF file.
pub(crate) fn write(source: &Path, out: &Path, options: &ConvertOptions) -> Result<Converted> {
    with_progress(|progress| convert(source, out, options, progress))
}

/// Refuses standard output in the place of a file.
pub(crate) fn check_out(out: &Path) -> Result {
    match out == Path::new("-") {
        true => Err(CliError::usage(
            "--out: expected the name of a file, found -, which would be standard output",
        )),
        false => Ok(()),
    }
}

/// What commands that change a model write.
#[derive(Clone, Debug, Args)]
pub(crate) struct ChangedArgs {
    /// Format of matrices; unless set, each keeps its own
    #[arg(long, value_name = "TYPE")]
    pub(crate) r#type: Option<FileType>,
    /// What to write: a GGUF file by its extension, else a Hugging Face folder
    #[arg(short, long, value_name = "OUT")]
    pub(crate) out: PathBuf,
    /// Replace what exists; without this, it is an error (exit code 2)
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) layout: LayoutArgs,
}

impl ChangedArgs {
    /// Refuses what exists, as [`check_new`] does.
    pub(crate) fn check(&self) -> Result {
        check_new(&self.out, self.force)
    }

    pub(crate) fn options(&self) -> ConvertOptions {
        let mut options = self.layout.writing(self.force);
        options.file_type = self.r#type;
        options
    }
}

/// Refuses a file that is there, unless it is to be replaced, before anything is computed for it.
pub(crate) fn check_new(out: &Path, force: bool) -> Result {
    check_out(out)?;
    match out.is_file() && !force {
        true => Err(CliError::usage(format_args!(
            "{}: it exists already; replace it with --force",
            out.display()
        ))),
        false => Ok(()),
    }
}

/// The format of a tensor before.
fn from(tensor: &ConvertedTensor) -> &'static str {
    tensor.from.map_or("packed", Format::name)
}

/// The first cells of a tensor in a table: its name, shape, and formats before and after.
pub(crate) fn cells(tensor: &ConvertedTensor) -> Vec<String> {
    let shape = tensor.shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" x ");
    vec![tensor.name.clone(), shape, from(tensor).into(), tensor.to.name().into()]
}

/// A tensor as JSON.
pub(crate) fn tensor_json(tensor: &ConvertedTensor) -> Value {
    json!({
        "name": tensor.name,
        "shape": tensor.shape,
        "from": from(tensor),
        "to": tensor.to.name(),
        "bytes": tensor.bytes,
        "error": tensor.error,
    })
}

/// Converts with a progress bar.
pub(crate) fn with_progress(
    convert: impl FnOnce(&mut dyn FnMut(u64, u64)) -> shohin::convert::Result<Converted>,
) -> Result<Converted> {
    let bar = transfer("writing".into(), None);
    let done = convert(&mut |written, whole| {
        bar.set_length(whole);
        bar.set_position(written);
    });
    bar.finish_and_clear();
    done.map_err(of_options)
}

/// The error of a file to write; what another option would change is the error of an option.
pub(crate) fn of_options(error: Error) -> CliError {
    let Error::Convert { source, .. } = &error else { return shohin::Error::from(error).into() };
    match **source {
        ConvertError::Exists => CliError::usage(format_args!("{error}; replace it with --force")),
        ConvertError::NotRegular
        | ConvertError::NameOfPart
        | ConvertError::Unmatched { .. }
        | ConvertError::SameId { .. } => CliError::usage(error),
        _ => shohin::Error::from(error).into(),
    }
}
