//! Beam search of `shohin run`.

use crate::error::{CliError, Result};
use crate::reply::reason_text;
use crate::terminal::{self, CtrlC, round, write_model_text};
use clap::Args;
use serde_json::{Value, json};
use shohin::Model;
use shohin::core::beam::BeamOptions;
use shohin::core::generate::Reason;
use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::time::Instant;

/// Beam search.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Beam search")]
pub(crate) struct BeamArgs {
    /// Search for the likeliest reply as a whole with N beams at once, instead of drawing token by token; with --json all
    /// N are printed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64), conflicts_with_all = [
        "session", "logprobs", "tools", "json_schema", "json_object", "choice", "regex", "grammar", "speculate", "draft",
        "overflow", "keep", "stop", "preset", "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty",
        "presence_penalty", "frequency_penalty", "penalty_last_n", "dry_multiplier", "dry_base", "dry_allowed_length",
        "dry_last_n", "seed",
    ])]
    pub(crate) beams: Option<u8>,
    /// Compare log-probabilities divided by this power of the number of tokens: over 0 favours long replies, below 0
    /// short ones
    #[arg(long, value_name = "X", default_value_t = 1.0, requires = "beams", allow_negative_numbers = true)]
    length_penalty: f32,
    /// End as soon as N replies have ended, though others could be likelier
    #[arg(long, requires = "beams")]
    early_stopping: bool,
}

/// Searches, and prints the best reply, or with `as_json` all of them.
pub(crate) fn run(
    beams: u8,
    args: &BeamArgs,
    model: &Model,
    prompt: &[u32],
    max_tokens: Option<usize>,
    as_json: bool,
    stats: bool,
) -> Result {
    let options = BeamOptions {
        beams: beams.into(),
        max_tokens: max_tokens.unwrap_or(usize::MAX),
        length_penalty: args.length_penalty,
        early_stopping: args.early_stopping,
    };
    let (start, ctrl_c) = (Instant::now(), CtrlC::listen());
    let found = model.beam_search(prompt, &options, &mut |_| match ctrl_c.pressed() {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let Some(best) = found.first() else { return Err(CliError::new("no beam has a token")) };
    let mut out = io::stdout().lock();
    if as_json {
        let mut all = Vec::new();
        for beam in &found {
            all.push(json!({
                "text": model.detokenize(&beam.tokens)?,
                "tokens": beam.tokens,
                "score": beam.score,
                "logprob": beam.logprob,
                "finish_reason": beam.reason.code(),
            }));
        }
        let object = json!({
            "model": model.name(),
            "prompt_tokens": prompt.len(),
            "beams": Value::Array(all),
            "timings": { "load_ms": round(model.load_time().as_secs_f64() * 1e3), "search_ms": round(seconds * 1e3) },
        });
        writeln!(out, "{object:#}")?;
    } else {
        let terminal = out.is_terminal();
        write_model_text(&mut out, &model.detokenize(&best.tokens)?, terminal)?;
        writeln!(out)?;
    }
    out.flush()?;
    if stats {
        let (n, score, reason) = (best.tokens.len(), best.score, reason_text(best.reason));
        terminal::remark(format_args!(
            "prompt {} tokens; best of {beams} beams {n} tokens, score {score:.3}, ended by {reason}; {seconds:.2} s",
            prompt.len()
        ));
    }
    if best.reason == Reason::Cancelled { Err(CliError::Interrupted) } else { Ok(()) }
}
