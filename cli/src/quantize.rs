//! `shohin quantize`: the weights of a GGUF file in another format.

use crate::convert::{self, cells, check_out, of_options, tensor_json};
use crate::error::Result;
use crate::model::LayoutArgs;
use crate::terminal::{self, bytes};
use clap::Args;
use serde_json::json;
use shohin::convert::{FileType, Importance, TensorRule};
use std::io::{self, Write};
use std::path::PathBuf;

/// Write a GGUF file with its weights in another format
///
/// Every matrix gets the format TYPE, with the same bytes as from `llama-quantize --pure` for the formats that llama.cpp
/// has; norms stay in F32, also where a pattern matches them. A mix, such as q4_k_m, gives llama.cpp's formats and bytes;
/// int8_channel and int8_tensor give Q8_0 with one scale for a row or a matrix. Prints
/// each matrix's formats and error: the root mean square of the differences, relative to that of the weights.
/// FILE may also be a Hugging Face folder.
#[derive(Debug, Args)]
#[command(after_help = "\
Rows that are not whole blocks of 256 get a format with smaller blocks and more bits:
  q4_k                       q5_0
  q5_k                       q5_1
  q6_k                       q8_0
  iq4_xs                     iq4_nl
  q2_k, q3_k, tq1_0, tq2_0   q4_0
All of these become f16 if 32 does not divide the rows either. Other types that do not fit are refused, with those that do.

Examples:
  shohin quantize model-f16.gguf --type q4_k_m --out model-q4_k_m.gguf
  shohin quantize model-f16.gguf --type q4_k --tensor 'blk.*.attn_v=q6_k' --tensor token_embd=q8_0 \\
    --out model.gguf
  shohin calibrate model-f16.gguf --text wiki.txt --out wiki.stats --imatrix wiki.imatrix.gguf
  shohin quantize model-f16.gguf --type iq4_xs --importance wiki.imatrix.gguf --out model-iq4_xs.gguf
  shohin eval story.txt -m model-f16.gguf && shohin eval story.txt -m model-q4_k_m.gguf")]
pub(crate) struct QuantizeArgs {
    /// The file
    file: PathBuf,
    /// Format of matrices, such as q8_0, q4_k, iq4_xs, q1_0 or pq2_0; or a mix of formats: q3_k_s, q3_k_m, q3_k_l, q4_k_s,
    /// q4_k_m, q5_k_s or q5_k_m; or int8_channel, int8_tensor
    #[arg(long, value_name = "TYPE")]
    r#type: FileType,
    /// Format of the tensors whose names match a pattern, in which * is any text; also int8_channel and int8_tensor, but no
    /// mix. The last one that matches counts
    #[arg(long, value_name = "PATTERN=TYPE")]
    tensor: Vec<TensorRule>,
    /// Weigh errors by an importance matrix: a file of `shohin calibrate` (--imatrix or --out), or of llama-imatrix. For q4_0, q4_1,
    /// q5_0, q5_1, k-quants, iq4_nl and iq4_xs; the bytes are those of llama.cpp
    #[arg(long, value_name = "FILE")]
    importance: Option<PathBuf>,
    /// The file to write
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

pub(crate) fn run(args: &QuantizeArgs) -> Result {
    let options = args.layout.writing(args.force).file_type(args.r#type).rules(args.tensor.clone());
    let options = match &args.importance {
        Some(path) => options.importance(Importance::read(path).map_err(of_options)?),
        None => options,
    };
    check_out(&args.out)?;
    let done = convert::write(&args.file, &args.out, &options)?;
    let mut out = io::stdout().lock();
    if args.json {
        let tensors: Vec<_> = done.tensors.iter().map(tensor_json).collect();
        writeln!(out, "{}", json!({ "bytes": done.bytes, "tensors": tensors }))?;
        return Ok(());
    }
    let matrices = done.tensors.iter().filter(|tensor| tensor.shape[0] > 1);
    let rows: Vec<Vec<String>> = matrices
        .map(|tensor| {
            let (size, error) = (bytes(tensor.bytes), format!("{:.3} %", 100.0 * tensor.error));
            [cells(tensor), vec![size, error]].concat()
        })
        .collect();
    let head = ["tensor", "shape", "from", "to", "size", "error"].map(String::from).to_vec();
    let rows: Vec<_> = [head].into_iter().chain(rows).collect();
    terminal::table(&mut out, &rows, &[false, true, false, false, true, true])?;
    writeln!(out, "\n  {}: {} tensors, {}", args.out.display(), done.tensors.len(), bytes(done.bytes))?;
    let before = std::fs::metadata(&args.file).ok().filter(std::fs::Metadata::is_file).map(|file| file.len());
    if let Some(before) = before.filter(|before| *before < done.bytes) {
        writeln!(
            out,
            "  Larger than {}, {}, whose weights have fewer bits.",
            args.file.display(),
            bytes(before)
        )?;
    }
    Ok(())
}
