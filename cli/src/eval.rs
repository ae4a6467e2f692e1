//! `shohin eval`: perplexity of a text.

use crate::args::whole;
use crate::error::{CliError, Context, Result};
use crate::input::{place, read_text};
use crate::model::{ModelArgs, activations, settings};
use crate::progress::progress;
use crate::terminal::{self, round};
use clap::Args;
use serde_json::json;
use shohin::Model;
use shohin::core::sample::log_sum_exp;
use shohin::core::tokenizer::Special;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Instant;

/// Tokens of a window unless asked for others.
pub(crate) const WINDOW: usize = 512;

/// Measure the perplexity of a text
///
/// The text is cut into overlapping windows. Each window scores the tokens that no earlier one has scored,
/// so every token but the first is scored once, with at least window - stride tokens of context (fewer
/// only in the first window). Lower is better; compare equal texts, windows and strides only.
#[derive(Debug, Args)]
#[command(
    allow_missing_positional = true,
    after_help = "\
Examples:
  shohin eval story.txt
  shohin eval bonsai-1.7b wiki.test.raw --window 2048 --stride 1024 --json"
)]
pub(crate) struct EvalArgs {
    /// The model, as with --model
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    pub(crate) bare: Option<PathBuf>,
    /// Text file; "-" is standard input
    text: PathBuf,
    /// Window size in tokens [default: 512, or the model's context if smaller]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..), allow_negative_numbers = true)]
    window: Option<u32>,
    /// Tokens between the starts of two windows [default: half a window]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    stride: Option<u32>,
    /// Parse control tokens such as <|im_start|> in the text
    #[arg(long)]
    special: bool,
    /// Score only the first N tokens
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>)]
    limit: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

pub(crate) fn eval(args: &EvalArgs) -> Result {
    let model = &args.model;
    let place = place(&args.text);
    let text = read_text(&args.text)?;
    let asked = args.window.map_or(WINDOW, |n| n as usize);
    let (options, model) = (model, model.load_for(asked)?);
    let longest = options.longest(&model);
    let window = if args.window.is_none() { asked.min(longest) } else { asked };
    if window > longest {
        return Err(CliError::usage(format_args!(
            "--window is {window}, expected at most {longest} {}",
            if longest < model.config().max_context_length {
                "with this --context"
            } else {
                "for this model"
            }
        )));
    }
    if window < 2 {
        return Err(CliError::new(format_args!(
            "a window of {window} token predicts nothing, expected at least 2 tokens"
        )));
    }
    let stride = args.stride.map_or(window / 2, |n| n as usize);
    // The first token of a window has no context there, so the previous window must have scored it.
    if stride >= window {
        return Err(CliError::usage(format_args!(
            "--stride is {stride}, expected less than the window of {window}"
        )));
    }
    let special = if args.special { Special::Parse } else { Special::UserDefined };
    let mut tokens = model.tokenize_with(&text, special);
    tokens.truncate(args.limit.unwrap_or(usize::MAX));
    if tokens.len() < 2 {
        let n = tokens.len();
        return Err(match args.limit {
            Some(limit) if limit < 2 => {
                CliError::usage(format_args!("--limit is {limit}, expected at least 2 tokens"))
            }
            _ => CliError::new(format_args!("{place}: expected at least 2 tokens of text, found {n}")),
        });
    }
    let score = score(&model, &tokens, window, stride, &place)?;
    let (mean, bits_per_byte) = (score.mean(), score.bits_per_byte());
    let mut out = io::stdout().lock();
    if args.json {
        let object = json!({
            "model": model.name(),
            "perplexity": mean.exp(),
            "nats_per_token": mean,
            "bits_per_byte": bits_per_byte,
            "scored_tokens": score.tokens,
            "window": window,
            "stride": stride,
            "activations": activations(&model),
            "cache": model.kv().name(),
            "seconds": round(score.seconds),
        });
        writeln!(out, "{object:#}")?;
    } else {
        let rows = [
            ["perplexity", &format!("{:.4}", mean.exp())],
            ["nats per token", &format!("{mean:.5}")],
            ["bits per byte", &format!("{bits_per_byte:.5}")],
            ["scored tokens", &score.tokens.to_string()],
            ["window, stride", &format!("{window}, {stride}")],
            ["computed with", &settings(&model)],
            ["time", &format!("{} s", terminal::short(score.seconds))],
        ];
        terminal::table(&mut out, &rows.map(|row| row.map(String::from).to_vec()), &[])?;
    }
    Ok(())
}

/// How well a text was predicted.
pub(crate) struct Score {
    /// Minus the logarithms of all probabilities.
    nats: f64,
    tokens: usize,
    /// Of the text of these tokens.
    bytes: usize,
    seconds: f64,
}

impl Score {
    /// Nats per token.
    pub(crate) fn mean(&self) -> f64 {
        self.nats / self.tokens as f64
    }

    fn bits_per_byte(&self) -> f64 {
        self.nats / std::f64::consts::LN_2 / self.bytes as f64
    }
}

/// Scores each of `tokens` but the first once, in windows that begin every `stride` tokens.
pub(crate) fn score(
    model: &Model,
    tokens: &[u32],
    window: usize,
    stride: usize,
    place: &str,
) -> Result<Score> {
    let mut sequence = model.sequence(window)?;
    let bar = progress("scoring", "tokens", tokens.len() - 1);
    let start = Instant::now();
    let (mut nats, mut scored, mut bytes) = (0.0, 0usize, 0usize);
    // The first token has no context to be predicted from.
    let mut done = 1;
    let mut first = 0;
    while done < tokens.len() {
        let end = tokens.len().min(first + window);
        let part = &tokens[first..end];
        sequence.truncate(0)?;
        sequence
            .logits(part, &mut |i, row| {
                let next = first + i + 1;
                if next >= done && next < end {
                    let token = tokens[next];
                    nats += log_sum_exp(row) - f64::from(row[token as usize]);
                    bytes += model.tokenizer().token_bytes(token).map_or(0, Iterator::count);
                    scored += 1;
                    bar.inc(1);
                }
            })
            .context(place)?;
        done = end;
        first += stride;
    }
    bar.finish_and_clear();
    Ok(Score { nats, tokens: scored, bytes, seconds: start.elapsed().as_secs_f64() })
}
