//! `shohin bench`: speed and memory.

use crate::args::whole;
use crate::bandwidth::bandwidth;
use crate::error::{CliError, Result};
use crate::model::{BareArgs, ModelArgs, activations, finish_caching, settings, weights};
use crate::peak_compute::peak_int8;
use crate::profile;
use crate::progress::progress;
use crate::terminal::{self, round, short};
use clap::Args;
use cpu_time::ProcessTime;
use serde_json::{Value, json};
use shohin::core::chat::{Event, Prompt};
use shohin::core::device::Readout;
use shohin::core::model::program::TensorSpec;
use shohin::{Activations, Model, Scheduler, TurnOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Instant;

/// Measure speed and memory
///
/// Prefill processes a prompt, decode generates token by token, and verify checks a guessed continuation in one
/// pass. Shown are the median and the best of the
/// repetitions; CPU ms is the processor time of all threads per token. GB/s counts the bytes that decoding
/// a token must read: weights, keys and values. "of bound" is the percentage of memory bandwidth (decode)
/// or of peak int8 throughput (prefill) that the same number of threads reach; both are measured in the
/// same run.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shohin bench
  shohin bench bonsai-1.7b --prefill 64,512 --decode 64 --threads 4
  shohin bench bonsai-1.7b --prefill 0 --decode 32 --depth 4096
  shohin bench bonsai-1.7b --decode 0 --verify 4,8
  shohin bench bonsai-1.7b --prefill 0 --decode 32 --batch 1,4,16
  shohin bench bonsai-1.7b --profile --flame bonsai.svg
  shohin bench bonsai-1.7b --json > bench.json")]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) bare: BareArgs,
    /// Prompt lengths in tokens
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "64,512", allow_negative_numbers = true, value_parser = whole::<usize>)]
    prefill: Vec<usize>,
    /// Reply lengths in tokens
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "64", allow_negative_numbers = true, value_parser = whole::<usize>)]
    decode: Vec<usize>,
    /// Numbers of tokens verified in one pass, as speculative decoding does: the most likely token after each
    #[arg(long, value_name = "N,N", value_delimiter = ',', allow_negative_numbers = true, value_parser = whole::<usize>)]
    verify: Vec<usize>,
    /// Numbers of replies that are generated at once, of as many tokens as the longest of --decode: the weights are read once for all
    #[arg(long, value_name = "N,N", value_delimiter = ',', allow_negative_numbers = true, value_parser = whole::<usize>)]
    batch: Vec<usize>,
    /// Show where the time goes instead, by operation and block
    ///
    /// It is that of the longest of --prefill and of the longest of --decode.
    #[arg(long)]
    profile: bool,
    /// Write the profile as a flame graph (SVG)
    #[arg(long, value_name = "FILE", requires = "profile")]
    flame: Option<PathBuf>,
    /// Replace the file of --flame if it exists
    #[arg(short, long, hide_short_help = true)]
    force: bool,
    /// Tokens already in the context when decoding starts; they are assumed, not computed
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true, value_parser = whole::<usize>)]
    depth: usize,
    /// Repetitions of each test
    #[arg(short, long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000), allow_negative_numbers = true)]
    repeat: u16,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

struct Row {
    what: &'static str,
    /// Replies at once.
    sequences: usize,
    /// Of all of them.
    tokens: usize,
    /// Seconds per repetition, in ascending order.
    seconds: Vec<f64>,
    /// CPU seconds of all threads, in the same order.
    cpu: Vec<f64>,
    /// Average bytes read per token: weights, and keys and values of earlier tokens.
    bytes: f64,
}

impl Row {
    fn speed(&self, seconds: f64) -> f64 {
        self.tokens as f64 / seconds.max(1e-9)
    }

    fn median(&self) -> f64 {
        self.speed(median(&self.seconds))
    }

    fn best(&self) -> f64 {
        self.speed(self.seconds[0])
    }

    fn cpu_ms(&self) -> f64 {
        1e3 * median(&self.cpu) / self.tokens as f64
    }

    fn bytes_per_second(&self) -> f64 {
        self.median() * self.bytes
    }

    /// Whether even one thread would have used more of the time.
    fn has_waited(&self) -> bool {
        median(&self.cpu) < 0.7 * median(&self.seconds)
    }

    fn is_decode(&self) -> bool {
        self.what == "decode"
    }
}

/// The median of sorted numbers.
fn median(s: &[f64]) -> f64 {
    (s[(s.len() - 1) / 2] + s[s.len() / 2]) / 2.0
}

pub(crate) fn bench(args: &BenchArgs) -> Result {
    if args.profile {
        return profile::run(&profile::Run {
            model: &args.model,
            prefill: &args.prefill,
            decode: &args.decode,
            depth: args.depth,
            flame: args.flame.as_deref(),
            force: args.force,
            json: args.json,
        });
    }
    let model = &args.model;
    let depth = args.depth.max(1);
    let prefill = args.prefill.iter().map(|&n| ("prefill", n, n));
    let decode = args.decode.iter().map(|&n| ("decode", n, n.saturating_add(depth)));
    let verify = args.verify.iter().map(|&n| ("verify", n, n.saturating_add(depth)));
    let tests: Vec<_> = prefill.chain(decode).chain(verify).filter(|test| test.1 > 0).collect();
    let reply = args.decode.iter().copied().max().unwrap_or(0);
    let batched = if args.batch.is_empty() { 0 } else { depth.saturating_add(reply) };
    let context = tests.iter().map(|test| test.2).max().unwrap_or(1).max(batched);
    let model = model.load_for(context)?;
    finish_caching(&model);
    let longest = model.config().max_context_length;
    if context > longest {
        return Err(CliError::new(format_args!(
            "a test needs {context} tokens, but this model holds at most {longest}"
        )));
    }
    let mut rows = measure(args, &model, &tests, context)?;
    for &replies in args.batch.iter().filter(|replies| **replies > 0 && reply > 0) {
        rows.push(measure_batch(args, &model, replies, reply)?);
    }
    let peak_memory = peak_memory();
    let per_token = model.weights().bytes_per_token();
    let (per_prompt_token, all_int8) = macs_per_prompt_token(&model);
    // The limits of a GPU are unknown.
    let (bound, peak) = match model.gpu() {
        Some(_) => (None, None),
        None => {
            // After the peak memory was read, since this allocates.
            let bound = bandwidth(per_token, model.pool())?;
            (Some(bound), if all_int8 { peak_int8(model.isa(), model.pool()) } else { None })
        }
    };
    let session_bytes = model.sequence_bytes(context)?;
    let report =
        Report { rows, depth, context, session_bytes, peak_memory, per_token, per_prompt_token, bound, peak };
    let mut out = io::stdout().lock();
    if args.json {
        writeln!(out, "{:#}", report.json(&model))?;
        return Ok(());
    }
    report.print(&mut out, &model)
}

/// Runs the tests.
fn measure(
    args: &BenchArgs,
    model: &Model,
    tests: &[(&'static str, usize, usize)],
    context: usize,
) -> Result<Vec<Row>> {
    let depth = args.depth.max(1);
    // A full cache, so that a long context need not be computed to be measured.
    let mut sequence = model.filled_sequence(context)?;
    // Read back from a GPU only what a reply needs.
    sequence.read_out(Readout::Best);
    let vocab = model.config().vocab_size;
    // Any tokens will do, as the work does not depend on them. They are spread over the vocabulary as in real
    // text.
    let tokens: Vec<u32> = (0..context).map(|i| (i * 7919 % vocab) as u32).collect();

    let mut best = vec![0; context];
    let bar = progress("measuring", "runs", tests.len() * usize::from(args.repeat) + 1);
    sequence.feed(&tokens[..tokens.len().min(8)])?; // loads the weights
    bar.inc(1);
    let per_token = model.weights().bytes_per_token();
    let per_position = model.memory_plan(context)?.kv as f64 / context as f64;
    // Positions that a token after `len` others attends to.
    let attended = |len: usize| (0..len).filter(|&key| model.attention().sees(len, key)).count();
    let mut rows = Vec::new();
    for &(what, n, _) in tests {
        let (mut seconds, mut cpu) = (Vec::new(), Vec::new());
        for _ in 0..args.repeat {
            sequence.set_len(if what == "prefill" { 0 } else { depth })?;
            let (start, start_cpu) = (Instant::now(), ProcessTime::now());
            match what {
                "decode" => {
                    for &token in &tokens[depth..depth + n] {
                        sequence.feed(&[token])?;
                    }
                }
                "verify" => sequence.verify(&tokens[depth..depth + n], &mut best[..n])?,
                _ => {
                    sequence.feed(&tokens[..n])?;
                }
            }
            seconds.push(start.elapsed().as_secs_f64());
            cpu.push(start_cpu.elapsed().as_secs_f64());
            bar.inc(1);
        }
        seconds.sort_by(f64::total_cmp);
        cpu.sort_by(f64::total_cmp);
        let bytes = per_token as f64 + per_position * attended(depth + n / 2) as f64;
        rows.push(Row { what, sequences: 1, tokens: n, seconds, cpu, bytes });
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// Generates `replies` replies of `reply` tokens at once.
fn measure_batch(args: &BenchArgs, model: &Model, replies: usize, reply: usize) -> Result<Row> {
    let vocab = model.config().vocab_size;
    // No reply ends by itself.
    let ends = (0..vocab as u32).filter(|id| model.tokenizer().is_end(*id)).map(|id| (id, f32::NEG_INFINITY));
    let options =
        TurnOptions { max_tokens: Some(reply), logit_bias: ends.collect(), ..TurnOptions::default() };
    let (mut seconds, mut cpu, mut tokens) = (Vec::new(), Vec::new(), 0);
    let bar = progress("measuring", "runs", args.repeat.into());
    for _ in 0..args.repeat {
        let mut scheduler = model.scheduler(replies, model.prompt_tokens(replies))?;
        for at in 0..replies {
            let prompt = (0..args.depth.max(1)).map(|i| ((at * 104_729 + i * 7919) % vocab) as u32);
            scheduler.begin(Prompt::Tokens(prompt.collect()), &options)?;
        }
        let generated = |scheduler: &Scheduler| -> Vec<usize> {
            let of = |id| scheduler.usage(id).map_or(0, |usage| usage.completion_tokens);
            scheduler.replies().into_iter().map(of).collect()
        };
        // Prompts are no part of it.
        while generated(&scheduler).contains(&0) && scheduler.step(&mut |_| true, &mut |_, _| ())? {}
        let begun: usize = generated(&scheduler).iter().sum();
        let (start, start_cpu) = (Instant::now(), ProcessTime::now());
        let mut ended = 0;
        let mut events = |_, event: Event<'_>| {
            if let Event::End(finish) = event {
                ended += finish.usage.completion_tokens;
            }
        };
        while scheduler.step(&mut |_| true, &mut events)? {}
        seconds.push(start.elapsed().as_secs_f64());
        cpu.push(start_cpu.elapsed().as_secs_f64());
        tokens = ended.saturating_sub(begun).max(1);
        bar.inc(1);
    }
    bar.finish_and_clear();
    seconds.sort_by(f64::total_cmp);
    cpu.sort_by(f64::total_cmp);
    Ok(Row { what: "batch", sequences: replies, tokens, seconds, cpu, bytes: 0.0 })
}

/// What was measured.
struct Report {
    rows: Vec<Row>,
    depth: usize,
    context: usize,
    session_bytes: u64,
    peak_memory: Option<u64>,
    /// Bytes of weights.
    per_token: usize,
    /// Multiply-accumulates.
    per_prompt_token: f64,
    /// Bytes per second of the memory.
    bound: Option<f64>,
    /// Multiply-accumulates per second of the cores.
    peak: Option<f64>,
}

impl Report {
    /// The part of what the machine can do.
    fn share(&self, row: &Row) -> Option<f64> {
        match row.is_decode() {
            true => self.bound.map(|bound| row.bytes_per_second() / bound),
            false if row.what == "verify" || row.what == "batch" => None,
            false => self.peak.map(|peak| row.median() * self.per_prompt_token / peak),
        }
    }

    fn json(&self, model: &Model) -> Value {
        let results = self.rows.iter().map(|row| {
            let mut result = json!({
                "test": row.what,
                "tokens": row.tokens,
                "tokens_per_second": round(row.median()),
                "best_tokens_per_second": round(row.best()),
                "seconds": row.seconds,
                "cpu_seconds": row.cpu,
            });
            if row.what == "batch" {
                result["sequences"] = row.sequences.into();
            }
            if row.is_decode() {
                result["depth"] = self.depth.into();
                result["gigabytes_per_second"] = round(row.bytes_per_second() / 1e9).into();
            }
            if let Some(share) = self.share(row) {
                let name = if row.is_decode() { "share_of_memory_bound" } else { "share_of_product_bound" };
                result[name] = round(share).into();
            }
            result
        });
        json!({
            "model": model.name(),
            "format": weights(model),
            "parameters": model.config().num_parameters(),
            "file_bytes": model.file().file_len(),
            "bytes_per_token": self.per_token,
            "memory_gigabytes_per_second": self.bound.map(|bound| round(bound / 1e9)),
            "products_per_prompt_token": self.per_prompt_token,
            "gigaproducts_per_second": self.peak.map(|peak| round(peak / 1e9)),
            "gpu": model.gpu(),
            "session_bytes": self.session_bytes,
            "peak_memory_bytes": self.peak_memory,
            "threads": model.threads(),
            "isa": model.isa().name(),
            "activations": activations(model),
            "cache": model.kv().name(),
            "results": results.collect::<Vec<_>>(),
        })
    }

    fn print(&self, out: &mut impl Write, model: &Model) -> Result {
        let parameters = terminal::count(model.config().num_parameters());
        writeln!(out, "{}: {}, {parameters} parameters", model.name(), weights(model))?;
        writeln!(out, "{}", settings(model))?;
        writeln!(out)?;
        let head = ["test", "tokens", "tok/s", "best", "ms/token", "CPU ms", "GB/s", "of bound"];
        let mut lines = vec![head.map(String::from).to_vec()];
        for row in &self.rows {
            let (median, best) = (row.median(), row.best());
            lines.push(vec![
                if row.what == "batch" { format!("batch of {}", row.sequences) } else { row.what.into() },
                row.tokens.to_string(),
                short(median),
                short(best),
                format!("{:.3}", 1e3 / median),
                format!("{:.3}", row.cpu_ms()),
                if row.is_decode() { short(row.bytes_per_second() / 1e9) } else { String::new() },
                self.share(row).map_or(String::new(), |share| format!("{:.0} %", 100.0 * share)),
            ]);
        }
        terminal::table(out, &lines, &[false, true, true, true, true, true, true, true])?;
        writeln!(out)?;
        if model.gpu().is_none() && self.rows.iter().any(Row::has_waited) {
            writeln!(
                out,
                "Other programs took the processors for some of the time: compare CPU ms, not tok/s.\n"
            )?;
        }
        let mut memory = Vec::new();
        memory.extend(self.bound.map(|bound| {
            vec!["memory bandwidth, same threads".into(), format!("{} GB/s", short(bound / 1e9))]
        }));
        memory.extend(self.peak.map(|peak| {
            vec!["peak int8 throughput, same threads".into(), format!("{} GMAC/s", short(peak / 1e9))]
        }));
        memory.extend([
            vec!["weights read per token".into(), terminal::bytes(self.per_token as u64)],
            vec!["model file".into(), terminal::bytes(model.file().file_len() as u64)],
            vec![format!("session, context {}", self.context), terminal::bytes(self.session_bytes)],
        ]);
        if let Some(peak) = self.peak_memory {
            memory.push(vec!["peak memory of the process".into(), terminal::bytes(peak)]);
        }
        terminal::table(out, &memory, &[false, true])?;
        Ok(())
    }
}

/// Multiply-accumulates per prompt token in the matrices of the layers, and whether all are int8. The head is
/// not counted: only the last token of a prompt needs it.
fn macs_per_prompt_token(model: &Model) -> (f64, bool) {
    let model_weights = model.weights().model();
    let (program, weights) = (model_weights.program(), model_weights.weights());
    let matrices = || program.matrices().filter(|id| *id != program.output);
    let macs = |spec: &TensorSpec| (spec.rows_each() * spec.read) as f64 * spec.cols as f64;
    let macs = matrices().map(|id| macs(program.tensor(id))).sum();
    let int8 = model.activations() == Activations::Int8;
    (macs, int8 && matrices().all(|id| !weights.format(id).is_float()))
}

/// Peak resident memory of this process, mapped files included.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_processor_time_than_a_thread_has_means_waiting() {
        let row = |cpu: f64| Row {
            what: "decode",
            sequences: 1,
            tokens: 4,
            seconds: vec![1.0],
            cpu: vec![cpu],
            bytes: 0.0,
        };
        assert_eq!([0.5, 0.9, 1.8].map(|cpu| row(cpu).has_waited()), [true, false, false]);
    }
}
