//! `shohin bench`: speed and memory.

use crate::args::{EngineArgs, whole};
use crate::bandwidth::bandwidth;
use crate::engine::{Engine, open};
use crate::failure::{Failure, Outcome};
use crate::products::products;
use crate::run::round;
use crate::terminal::{self, short};
use clap::Args;
use cpu_time::ProcessTime;
use serde_json::json;
use shohin::file::ShardBytes;
use shohin::memory::large_pages;
use shohin::timeline::OnCpu;
use shohin_core::{Activations, BonsaiModel, Pool, SamplerConfig, SessionOptions};
use std::io::{self, Write};
use std::time::Instant;

/// Measure speed and memory
///
/// Prefill is reading a prompt, decode is writing a reply token by token. The median of the repetitions is
/// shown, and the best; CPU ms is the processor time of all threads for a token. GB/s counts the bytes that
/// decoding a token must read: weights, keys and values. "of bound" is, for decode, the share of the speed at
/// which as many threads read as much memory and do nothing else, and for prefill, of that at which they
/// multiply and add as many bytes; both measured in the same run.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shohin bench
  shohin bench -m Bonsai-1.7B.gguf --prefill 64,512 --decode 64 --threads 4
  shohin bench -m Bonsai-1.7B.gguf --prefill 0 --decode 32 --depth 4096
  shohin bench -m Bonsai-1.7B.gguf --json > bench.json")]
pub(crate) struct BenchArgs {
    /// Prompt lengths
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "64,512", allow_negative_numbers = true, value_parser = whole::<usize>)]
    prefill: Vec<usize>,
    /// Reply lengths
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "64", allow_negative_numbers = true, value_parser = whole::<usize>)]
    decode: Vec<usize>,
    /// Tokens already in the context when a reply begins; they are not computed, only taken as seen
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true, value_parser = whole::<usize>)]
    depth: usize,
    /// Repetitions of each
    #[arg(short, long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000), allow_negative_numbers = true)]
    repeat: u16,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

struct Row {
    what: &'static str,
    tokens: usize,
    /// Seconds of each repetition, rising.
    seconds: Vec<f64>,
    /// Processor seconds of all threads, likewise.
    cpu: Vec<f64>,
    /// Bytes that must be read for one token, on average: weights, and keys and values of earlier tokens.
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

    fn is_decode(&self) -> bool {
        self.what == "decode"
    }
}

/// Of rising numbers.
fn median(s: &[f64]) -> f64 {
    (s[(s.len() - 1) / 2] + s[s.len() / 2]) / 2.0
}

pub(crate) fn bench(args: &BenchArgs, engine_args: &EngineArgs) -> Outcome {
    let file = open(engine_args)?;
    let engine = Engine::load(&file, engine_args)?;
    let longest = engine.model().config().max_context_length;
    let depth = args.depth.max(1);
    let prefill = args.prefill.iter().map(|&n| ("prefill", n, n));
    let decode = args.decode.iter().map(|&n| ("decode", n, n.saturating_add(depth)));
    let tests: Vec<(&str, usize, usize)> = prefill.chain(decode).filter(|test| test.1 > 0).collect();
    let context = tests.iter().map(|test| test.2).max().unwrap_or(1);
    if context > longest {
        return Err(Failure::new(format_args!(
            "a test needs {context} tokens, but this model holds at most {longest}"
        )));
    }
    let options = SessionOptions { context, kv: engine.kv };
    // Keys and values that are there already: a long context need not be computed to be measured. All are
    // equal, small and finite in either format; untouched memory would be a single page of zeros.
    let mut session = match engine.gpu {
        Some(_) => engine.session(context)?,
        None => {
            let mut memory = large_pages(engine.memory_plan(context)?.session)?;
            memory.fill(0x2e);
            let device = engine.device(context, engine.options.logit_rows)?;
            let session = device.session_in(&options, memory)?;
            Box::new(OnCpu { device, session })
        }
    };
    // As little as a reply needs goes back from a GPU.
    session.chosen_by(&SamplerConfig::greedy(), false);
    let vocab = engine.model().config().vocab_size;
    // Any tokens do: the work does not depend on them. Spread over the vocabulary, as in real text.
    let tokens: Vec<u32> = (0..context).map(|i| (i * 7919 % vocab) as u32).collect();

    let bar = terminal::progress("measuring", "runs", tests.len() * usize::from(args.repeat) + 1);
    session.feed(&tokens[..tokens.len().min(8)])?; // brings the weights in
    bar.inc(1);
    let per_token = engine.weights.bytes_per_token();
    let per_position = engine.memory_plan(context)?.kv as f64 / context as f64;
    let mut rows = Vec::new();
    for &(what, n, _) in &tests {
        let (mut seconds, mut cpu) = (Vec::new(), Vec::new());
        for _ in 0..args.repeat {
            session.set_len(if what == "decode" { depth } else { 0 })?;
            let (start, start_cpu) = (Instant::now(), ProcessTime::now());
            if what == "decode" {
                for &token in &tokens[depth..depth + n] {
                    session.feed(&[token])?;
                }
            } else {
                session.feed(&tokens[..n])?;
            }
            seconds.push(start.elapsed().as_secs_f64());
            cpu.push(start_cpu.elapsed().as_secs_f64());
            bar.inc(1);
        }
        seconds.sort_by(f64::total_cmp);
        cpu.sort_by(f64::total_cmp);
        let bytes = per_token as f64 + per_position * (depth as f64 + n as f64 / 2.0);
        rows.push(Row { what, tokens: n, seconds, cpu, bytes });
    }
    bar.finish_and_clear();

    let peak = peak_memory();
    let (per_prompt_token, of_bytes) = products_per_prompt_token(engine.model(), engine.options.activations);
    let (session_bytes, bound, most_products) = match &engine.gpu {
        // What a GPU can do is not known.
        Some(gpu) => (gpu.bytes(&options, engine.options.activations)?.1, None, None),
        None => {
            let plan = engine.memory_plan(context)?;
            // After the peak was read: this takes memory of its own.
            let bound = bandwidth(per_token, &engine.pool)?;
            let most = if of_bytes { products(engine.options.isa, &engine.pool) } else { None };
            (plan.total as u64, Some(bound), most)
        }
    };
    let share = |row: &Row| match row.is_decode() {
        true => bound.map(|bound| row.bytes_per_second() / bound),
        false => most_products.map(|most| row.median() * per_prompt_token / most),
    };
    let mut out = io::stdout().lock();
    if args.json {
        let results: Vec<_> = rows
            .iter()
            .map(|row| {
                let mut result = json!({
                    "test": row.what,
                    "tokens": row.tokens,
                    "tokens_per_second": round(row.median()),
                    "best_tokens_per_second": round(row.best()),
                    "seconds": row.seconds,
                    "cpu_seconds": row.cpu,
                });
                if row.is_decode() {
                    result["depth"] = depth.into();
                    result["gigabytes_per_second"] = round(row.bytes_per_second() / 1e9).into();
                    if let Some(share) = share(row) {
                        result["share_of_memory_bound"] = round(share).into();
                    }
                } else if let Some(share) = share(row) {
                    result["share_of_product_bound"] = round(share).into();
                }
                result
            })
            .collect();
        let object = json!({
            "model": engine.name(),
            "format": engine.kind(),
            "parameters": engine.model().config().num_parameters(),
            "file_bytes": engine.file_bytes(),
            "bytes_per_token": per_token,
            "memory_gigabytes_per_second": bound.map(|bound| round(bound / 1e9)),
            "products_per_prompt_token": per_prompt_token,
            "gigaproducts_per_second": most_products.map(|most| round(most / 1e9)),
            "gpu": engine.gpu.as_ref().map(|gpu| gpu.name()),
            "session_bytes": session_bytes,
            "peak_memory_bytes": peak,
            "threads": engine.pool.workers(),
            "isa": engine.options.isa.name(),
            "activations": engine.act_name(),
            "cache": engine.kv_name(),
            "results": results,
        });
        writeln!(out, "{object:#}")?;
        return Ok(());
    }
    let parameters = terminal::count(engine.model().config().num_parameters());
    writeln!(out, "{}: {}, {parameters} parameters", engine.name(), engine.kind())?;
    writeln!(out, "{}", engine.settings())?;
    writeln!(out)?;
    let head = ["test", "tokens", "tok/s", "best", "ms/token", "CPU ms", "GB/s", "of bound"];
    let mut lines = vec![head.map(String::from).to_vec()];
    for row in &rows {
        let (median, best) = (row.median(), row.best());
        lines.push(vec![
            row.what.into(),
            row.tokens.to_string(),
            short(median),
            short(best),
            format!("{:.3}", 1e3 / median),
            format!("{:.3}", row.cpu_ms()),
            if row.is_decode() { short(row.bytes_per_second() / 1e9) } else { String::new() },
            share(row).map_or(String::new(), |share| format!("{:.0} %", 100.0 * share)),
        ]);
    }
    terminal::table(&mut out, &lines, &[false, true, true, true, true, true, true, true])?;
    writeln!(out)?;
    let bound =
        bound.map(|b| vec!["memory read at most, same threads".into(), format!("{} GB/s", short(b / 1e9))]);
    let mut memory = Vec::from_iter(bound);
    memory.extend(most_products.map(|most| {
        vec!["products of bytes at most, same threads".into(), format!("{} G/s", short(most / 1e9))]
    }));
    memory.extend([
        vec!["weights read per token".into(), terminal::bytes(per_token as u64)],
        vec!["model file".into(), terminal::bytes(engine.file_bytes() as u64)],
        vec![format!("session, context {context}"), terminal::bytes(session_bytes)],
    ]);
    if let Some(peak) = peak {
        memory.push(vec!["peak memory of the process".into(), terminal::bytes(peak)]);
    }
    terminal::table(&mut out, &memory, &[false, true])?;
    Ok(())
}

/// Products of a weight and an activation that reading a token takes in the matrices of the layers, and whether all are of
/// bytes; those of the head only the last token of a prompt takes.
fn products_per_prompt_token(model: &BonsaiModel<ShardBytes>, activations: Activations) -> (f64, bool) {
    let program = model.program();
    let matrices = || program.matrices().filter(|id| *id != program.output);
    let products = matrices().map(|id| program.tensor(id)).map(|m| m.rows as f64 * m.cols as f64).sum();
    let integers = matrices().all(|id| !model.weights().format(id).is_float());
    (products, activations == Activations::Int8 && integers)
}

/// Most memory this process ever had resident, mapped files included.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}
