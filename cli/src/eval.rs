//! `shohin eval`: perplexity of a text.

use crate::args::whole;
use crate::error::{CliError, Context, Result};
use crate::input::{place, read_text};
use crate::model::{ModelArgs, activations, settings};
use crate::progress::progress;
use crate::terminal::{self, round};
use clap::{Args, ValueEnum};
use serde_json::json;
use shohin::core::sample::log_sum_exp;
use shohin::core::tokenizer::Special;
use shohin::core::{KvFormat, SessionOptions};
use shohin::{AttentionPattern, Model};
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
  shohin eval bonsai-1.7b wiki.test.raw --window 2048 --stride 1024 --json
  shohin eval bonsai-1.7b story.txt --compare caches
  shohin eval bonsai-1.7b story.txt --compare attention --attention window:128:4"
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
    /// Compare instead: every cache format with f32, or the pattern of --attention with full attention
    #[arg(long, value_name = "WHAT")]
    compare: Option<Compare>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

/// What differs from a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Compare {
    Caches,
    Attention,
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
    if let Some(what) = args.compare {
        return compare(args, what, &model, &tokens, (window, stride));
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

/// Rows of logits of the reference that are held.
const HELD: usize = 32;

/// A way to compute, beside a reference.
struct Variant {
    name: String,
    options: SessionOptions,
    /// Bytes of keys and values of a window, and those that a token reads on average.
    bytes: usize,
    read: f64,
    nats: f64,
    /// Sums of squares: of the differences of the logits from the reference, and of the reference.
    difference: f64,
    reference: f64,
    /// The sum of the divergences of the distributions (Kullback-Leibler), in nats.
    divergence: f64,
}

/// What is compared, the reference first.
fn variants(what: Compare, model: &Model, window: usize) -> Result<Vec<Variant>> {
    let of = |name: String, kv, attention: AttentionPattern| -> Result<Variant> {
        let options = SessionOptions { context: window, kv, attention };
        let bytes = model.cache_bytes_with(&options)?;
        let seen: usize = (0..window).map(|at| (0..=at).filter(|key| attention.sees(at, *key)).count()).sum();
        let read = bytes as f64 / window as f64 * seen as f64 / window as f64;
        let [nats, difference, reference, divergence] = [0.0; 4];
        Ok(Variant { name, options, bytes, read, nats, difference, reference, divergence })
    };
    match what {
        Compare::Caches => {
            let others = KvFormat::ALL.into_iter().filter(|kv| *kv != KvFormat::F32);
            let all = [KvFormat::F32].into_iter().chain(others);
            all.map(|kv| of(kv.name().into(), kv, model.attention())).collect()
        }
        Compare::Attention => match model.attention() {
            AttentionPattern::Full => Err(CliError::usage(
                "--compare attention: expected --attention, which is compared with full attention",
            )),
            pattern => {
                let full = of("full".into(), model.kv(), AttentionPattern::Full)?;
                Ok(vec![full, of(pattern.to_string(), model.kv(), pattern)?])
            }
        },
    }
}

/// Scores as [`score`] does, in several ways at once.
fn compare(
    args: &EvalArgs,
    what: Compare,
    model: &Model,
    tokens: &[u32],
    (window, stride): (usize, usize),
) -> Result {
    let mut all = variants(what, model, window)?;
    let mut sequences = Vec::new();
    for variant in &all {
        sequences.push(model.sequence_with(&variant.options)?);
    }
    let vocab = model.config().vocab_size;
    let mut held = vec![0.0f32; HELD * vocab];
    let bar = progress("comparing", "tokens", tokens.len() - 1);
    let (mut done, mut first, mut scored) = (1, 0, 0usize);
    while done < tokens.len() {
        let end = tokens.len().min(first + window);
        for sequence in &mut sequences {
            sequence.truncate(0)?;
        }
        for at in (first..end).step_by(HELD) {
            let part = &tokens[at..end.min(at + HELD)];
            let counts = |i: usize| (done..end).contains(&(at + i + 1));
            for (number, (variant, sequence)) in all.iter_mut().zip(&mut sequences).enumerate() {
                sequence.logits(part, &mut |i, row| {
                    if !counts(i) {
                        return;
                    }
                    let exact = &mut held[i * vocab..][..vocab];
                    if number == 0 {
                        exact.copy_from_slice(row);
                    }
                    variant.add(exact, row, tokens[at + i + 1]);
                })?;
            }
            let count = (0..part.len()).filter(|i| counts(*i)).count();
            scored += count;
            bar.inc(count as u64);
        }
        done = end;
        first += stride;
    }
    bar.finish_and_clear();
    report(args, model, &all, scored, (window, stride))
}

impl Variant {
    /// Counts the logits `row (vocab)` before `token`, beside those of the reference.
    fn add(&mut self, exact: &[f32], row: &[f32], token: u32) {
        let (of_exact, of_row) = (log_sum_exp(exact), log_sum_exp(row));
        self.nats += of_row - f64::from(row[token as usize]);
        for (exact, x) in exact.iter().zip(row) {
            let (exact, x) = (f64::from(*exact), f64::from(*x));
            self.difference += (exact - x).powi(2);
            self.reference += exact.powi(2);
            self.divergence += (exact - of_exact).exp() * ((exact - of_exact) - (x - of_row));
        }
    }

    fn error(&self) -> f64 {
        if self.difference == 0.0 { 0.0 } else { (self.difference / self.reference).sqrt() }
    }
}

fn report(
    args: &EvalArgs,
    model: &Model,
    all: &[Variant],
    scored: usize,
    (window, stride): (usize, usize),
) -> Result {
    let of = |sum: f64| sum / scored as f64;
    let mut out = io::stdout().lock();
    if args.json {
        let variants = all.iter().map(|variant| {
            json!({
                "name": variant.name,
                "perplexity": of(variant.nats).exp(),
                "logits_error": variant.error(),
                "divergence": of(variant.divergence),
                "cache_bytes": variant.bytes,
                "read_per_token": variant.read,
            })
        });
        let object = json!({
            "model": model.name(),
            "scored_tokens": scored,
            "window": window,
            "stride": stride,
            "variants": variants.collect::<Vec<_>>(),
        });
        writeln!(out, "{object:#}")?;
        return Ok(());
    }
    let head = ["", "perplexity", "error of logits", "divergence", "cache", "read per token"];
    let rows = all.iter().map(|variant| {
        vec![
            variant.name.clone(),
            format!("{:.4}", of(variant.nats).exp()),
            format!("{:.3} %", 100.0 * variant.error()),
            format!("{:.5}", of(variant.divergence)),
            terminal::bytes(variant.bytes as u64),
            terminal::bytes(variant.read as u64),
        ]
    });
    let rows: Vec<_> = [head.map(String::from).to_vec()].into_iter().chain(rows).collect();
    terminal::table(&mut out, &rows, &[false, true, true, true, true, true])?;
    writeln!(
        out,
        "\n  {scored} tokens in windows of {window}, each {stride} after the last one. Errors and"
    )?;
    writeln!(out, "  divergences (nats) are from the first row; the cache is that of a window.")?;
    Ok(())
}
