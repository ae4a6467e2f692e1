//! `shohin logits`: the model's logits, for comparison with another engine.

use crate::error::{CliError, Context, Result, file_error};
use crate::model::{ModelArgs, token_text};
use crate::progress::progress;
use crate::terminal::{self, read_text};
use crate::tokenize::parse_ids;
use clap::Args;
use shohin::core::sample::Logprobs;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

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
    /// File to write the logits to
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Without --out: number of tokens to list
    #[arg(long, value_name = "N", default_value_t = 10, allow_negative_numbers = true)]
    top: u16,
}

pub(crate) fn logits(args: &LogitsArgs, model: &ModelArgs) -> Result {
    let place = terminal::place(&args.tokens);
    let tokens = parse_ids(&read_text(&args.tokens)?, &place)?;
    if tokens.is_empty() {
        return Err(CliError::new(format_args!("{place}: expected token ids, found none")));
    }
    let model = model.load()?;
    let mut sequence = model.sequence(tokens.len())?;
    match &args.out {
        Some(path) => {
            // Before a file that is there is emptied.
            model.check_tokens(&tokens).context(&place)?;
            let create = File::create(path).map_err(|e| file_error("create", path, &e))?;
            let mut out = BufWriter::new(create);
            let bar = progress("computing", "tokens", tokens.len());
            let mut failed = None;
            let outcome = sequence.logits(&tokens, &mut |_, row| {
                let written = row.iter().try_for_each(|logit| out.write_all(&logit.to_le_bytes()));
                failed = failed.take().or(written.err());
                bar.inc(1);
            });
            bar.finish_and_clear();
            outcome.context(&place)?;
            failed = failed.or(out.flush().err());
            if let Some(error) = failed {
                return Err(file_error("write", path, &error));
            }
            let vocab = model.config().vocab_size;
            let (rows, path) = (tokens.len(), path.display());
            terminal::remark(format_args!("{rows} rows of {vocab} little-endian f32 in {path}"));
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
