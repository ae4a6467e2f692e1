//! `shohin logits`: the model's logits, for comparison with another engine.

use crate::convert::of_options;
use crate::error::{CliError, Context, Result, file_error};
use crate::input::{place, read_text};
use crate::model::{ModelArgs, token_text};
use crate::progress::progress;
use crate::terminal;
use crate::tokenize::parse_ids;
use clap::Args;
use shohin::Sequence;
use shohin::convert::new_file;
use shohin::core::sample::Logprobs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Compute the model's logits at every position of given tokens
///
/// For comparison with another engine: --out writes little-endian f32, one row of vocabulary size per
/// token. Without --out the most likely next tokens are listed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shohin logits --tokens ids.txt --act f32 --kv f32 --out logits.f32
  python -c \"import numpy; print(numpy.fromfile('logits.f32', '<f4').reshape(-1, 2048).argmax(1))\"")]
pub(crate) struct LogitsArgs {
    /// File of token ids separated by white space; "-" is standard input
    #[arg(long, value_name = "FILE")]
    tokens: PathBuf,
    /// File to write the logits to; "-" is standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Replace the file if it exists; without this, it is an error (exit code 2)
    #[arg(short, long)]
    force: bool,
    /// Without --out: number of tokens to list
    #[arg(long, value_name = "N", default_value_t = 10, allow_negative_numbers = true)]
    top: u16,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

pub(crate) fn logits(args: &LogitsArgs) -> Result {
    let model = &args.model;
    let place = place(&args.tokens);
    let tokens = parse_ids(&read_text(&args.tokens)?, &place)?;
    if tokens.is_empty() {
        return Err(CliError::new(format_args!("{place}: expected token ids, found none")));
    }
    let (options, model) = (model, model.load_for(tokens.len())?);
    options.check_length(&model, &place, tokens.len())?;
    let mut sequence = model.sequence(tokens.len())?;
    match &args.out {
        Some(path) => {
            model.check_tokens(&tokens).context(&place)?;
            let named = if path == Path::new("-") {
                let mut out = BufWriter::new(io::stdout().lock());
                write_rows(&mut sequence, &tokens, &mut out).context(&place)??;
                out.flush()?;
                "standard output".into()
            } else {
                let mut out = new_file(path, args.force).map_err(of_options)?;
                let written = write_rows(&mut sequence, &tokens, &mut out).context(&place)?;
                written.and_then(|()| out.finish()).map_err(|error| file_error("write", path, &error))?;
                path.display().to_string()
            };
            let (rows, vocab) = (tokens.len(), model.config().vocab_size);
            terminal::remark(format_args!("{rows} rows of {vocab} little-endian f32 in {named}"));
        }
        None => {
            let row = sequence.feed(&tokens).context(&place)?;
            let mut logprobs = Logprobs::new(usize::from(args.top));
            logprobs.measure(row, 0);
            let mut rows = vec![["token", "text", "logit", "probability"].map(String::from).to_vec()];
            for top in logprobs.top() {
                rows.push(vec![
                    top.token.to_string(),
                    format!("{:?}", token_text(model.tokenizer(), top.token)),
                    format!("{:.4}", row[top.token as usize]),
                    format!("{:.5}", top.logprob.exp()),
                ]);
            }
            let mut out = io::stdout().lock();
            writeln!(out, "After {} tokens, the model expects:", tokens.len())?;
            terminal::table(&mut out, &rows, &[true, false, true, true])?;
        }
    }
    Ok(())
}

/// Writes the logits after each token; what fails is the model, or else the writing.
fn write_rows(
    sequence: &mut Sequence,
    tokens: &[u32],
    out: &mut dyn Write,
) -> shohin::core::Result<io::Result<()>> {
    let bar = progress("computing", "tokens", tokens.len());
    let mut written = Ok(());
    let outcome = sequence.logits(tokens, &mut |_, row| {
        if written.is_ok() {
            written = row.iter().try_for_each(|logit| out.write_all(&logit.to_le_bytes()));
        }
        bar.inc(1);
    });
    bar.finish_and_clear();
    outcome.map(|()| written)
}
