//! `shohin logits`: the model's scores, for comparing with another engine.

use crate::args::EngineArgs;
use crate::engine::{Engine, open, token_text};
use crate::failure::{At, Failure, Outcome, file_error};
use crate::terminal::{self, read_text};
use crate::tokenize::parse_ids;
use clap::Args;
use shohin::memory;
use shohin_core::SessionOptions;
use shohin_core::sample::Logprobs;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

/// Compute the model's scores at every position of given tokens
///
/// For comparing with another engine: --out writes little-endian 32-bit floats, one row of the
/// vocabulary's size for each token. Without --out the likeliest next tokens are listed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shohin logits --tokens ids.txt --act f32 --kv f32 --out logits.f32
  python -c \"import numpy; print(numpy.fromfile('logits.f32', '<f4').reshape(-1, 2048).argmax(1))\"")]
pub(crate) struct LogitsArgs {
    /// File of token ids separated by white space; "-" reads standard input
    #[arg(long, value_name = "FILE")]
    tokens: PathBuf,
    /// Where to write the scores
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Without --out: how many tokens to list
    #[arg(long, value_name = "N", default_value_t = 10, allow_negative_numbers = true)]
    top: u16,
}

pub(crate) fn logits(args: &LogitsArgs, engine_args: &EngineArgs) -> Outcome {
    let place = terminal::place(&args.tokens);
    let tokens = parse_ids(&read_text(&args.tokens)?, &place)?;
    if tokens.is_empty() {
        return Err(Failure::new(format_args!("{place}: expected token ids, found none")));
    }
    let file = open(engine_args)?;
    let engine = Engine::load(&file, engine_args)?;
    let context = tokens.len();
    let mut device = engine.device(context, 8)?;
    let mut session = memory::session(&mut device, &SessionOptions { context, kv: engine.kv })?;
    match &args.out {
        Some(path) => {
            let create = File::create(path).map_err(|e| file_error("create", path, &e))?;
            let mut out = BufWriter::new(create);
            let bar = terminal::progress("computing", "tokens", tokens.len());
            let mut failed = None;
            let outcome = session.forward_logits(&mut device, &tokens, &mut |_, row| {
                let written = row.iter().try_for_each(|logit| out.write_all(&logit.to_le_bytes()));
                failed = failed.take().or(written.err());
                bar.inc(1);
            });
            bar.finish_and_clear();
            outcome.at(&place)?;
            failed = failed.or(out.flush().err());
            if let Some(error) = failed {
                return Err(file_error("write", path, &error));
            }
            let vocab = engine.model().config().vocab_size;
            let (rows, path) = (tokens.len(), path.display());
            terminal::remark(format_args!("{rows} rows of {vocab} little-endian f32 in {path}"));
        }
        None => {
            let row = session.forward_prefill(&mut device, &tokens).at(&place)?;
            let mut logprobs = Logprobs::new(usize::from(args.top));
            logprobs.measure(row, 0);
            let mut rows = vec![["token", "text", "logit", "probability"].map(String::from).to_vec()];
            for top in logprobs.top() {
                rows.push(vec![
                    top.token.to_string(),
                    format!("{:?}", token_text(&engine.tokenizer, top.token)),
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
