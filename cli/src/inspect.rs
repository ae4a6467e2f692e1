//! `shohin inspect`: what a file holds and what running it takes.

use crate::args::EngineArgs;
use crate::engine::{Engine, open, read_options};
use crate::failure::{Failure, Outcome};
use crate::terminal::{self, Colours, bytes, count};
use clap::Args;
use serde_json::{Map, Value as Json, json};
use shohin::ModelFile;
use shohin_core::Gguf;
use shohin_core::chat::Style;
use shohin_core::gguf::{Array, TensorInfo, Value};
use shohin_core::model::RopeScaling;
use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};

/// Show what a model file holds and what running it takes
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shohin inspect
  shohin inspect -m Bonsai-1.7B.gguf --tensors
  shohin inspect -m Bonsai-1.7B.gguf --context 32768 --json | jq .memory")]
pub(crate) struct InspectArgs {
    /// List every tensor
    #[arg(long)]
    tensors: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn inspect(args: &InspectArgs, engine_args: &EngineArgs) -> Outcome {
    let file = open(engine_args)?;
    let gguf = file.gguf(&read_options(engine_args))?;
    // A file that cannot run is worth looking into all the more.
    let engine = match Engine::of_file(&file, engine_args) {
        Err(Failure::Message(reason)) => Err(reason),
        engine => Ok(engine?),
    };
    let mut out = BufWriter::new(io::stdout().lock());
    if args.json {
        writeln!(out, "{:#}", as_json(&file, &gguf, &engine)?)?;
    } else {
        match &engine {
            Ok(engine) => model(&mut out, &file, engine)?,
            Err(reason) => cannot_run(&mut out, &file, reason)?,
        }
        content(&mut out, &gguf, args.tensors)?;
    }
    out.flush()?;
    Ok(())
}

fn title(out: &mut impl Write, text: &str) -> io::Result<()> {
    let Colours { bold, off, .. } = Colours::stdout();
    writeln!(out, "{bold}{text}{off}")
}

fn row(key: &str, value: String) -> Vec<String> {
    vec![key.to_string(), value]
}

/// Name and bytes.
fn size(file: &ModelFile) -> String {
    let len = bytes(file.file_len() as u64);
    match file.parts() {
        1 => format!("{}, {len}", file.name()),
        parts => format!("{}, {len} in {parts} parts", file.name()),
    }
}

fn cannot_run(out: &mut impl Write, file: &ModelFile, reason: &str) -> Outcome {
    title(out, "Model")?;
    let rows = [row("file", size(file)), row("runs", format!("no: {reason}"))];
    terminal::table(out, &rows, &[])?;
    Ok(())
}

fn model(out: &mut impl Write, file: &ModelFile, engine: &Engine<'_>) -> Outcome {
    let c = engine.model().config();
    title(out, "Model")?;
    let context = match c.rope_scaling {
        RopeScaling::None => format!("{} tokens", c.max_context_length),
        ref scaling => format!("{} tokens, {}", c.max_context_length, rope(scaling)),
    };
    let head = if c.tied_embeddings { ", also the output head" } else { "" };
    let rows = vec![
        row("file", size(file)),
        row("name", engine.name()),
        row("variant", engine.variant().name().into()),
        row("weights", engine.kind()),
        row("parameters", count(c.num_parameters())),
        row("layers", c.num_layers.to_string()),
        row("width", format!("{}, feed-forward {}", c.hidden_size, c.intermediate_size)),
        row(
            "heads",
            format!("{} of {}, {} for keys and values", c.num_attention_heads, c.head_dim, c.num_kv_heads),
        ),
        row("vocabulary", format!("{} tokens{head}", c.vocab_size)),
        row("context", context),
        row("chat", chat(engine)),
    ];
    terminal::table(out, &rows, &[])?;

    title(out, "\nMemory")?;
    let plan = engine.memory_plan(engine.options.context)?;
    let held = engine.options.context.min(c.max_context_length);
    let whole = plan.total as u64 + engine.held_bytes as u64;
    let rows = vec![
        row("weights", bytes(engine.held_bytes as u64)),
        row(
            "keys and values",
            format!("{} for {held} tokens in {}", bytes(plan.kv as u64), engine.kv_name()),
        ),
        row("working memory", bytes((plan.scratch + plan.logits) as u64)),
        row("together", bytes(whole)),
        row("read per token", bytes(engine.weights.bytes_per_token() as u64)),
    ];
    terminal::table(out, &rows, &[])?;
    Ok(())
}

fn content(out: &mut impl Write, gguf: &Gguf<'_>, tensors: bool) -> Outcome {
    title(out, "\nMetadata")?;
    let entries = gguf.metadata().iter();
    let rows: Vec<_> = entries.map(|(key, value)| row(&printable(key), shown(&value))).collect();
    terminal::table(out, &rows, &[])?;

    title(out, "\nTensors")?;
    let all = gguf.tensors();
    if tensors {
        let head = ["name", "shape", "type", "size"].map(String::from).to_vec();
        let rows = all
            .iter()
            .map(|t| vec![printable(t.name()), shape(t), t.type_name().to_string(), bytes(t.len())]);
        let rows: Vec<_> = [head].into_iter().chain(rows).collect();
        terminal::table(out, &rows, &[false, true, false, true])?;
    } else {
        let mut totals = BTreeMap::<&str, (usize, u64, u64)>::new();
        for t in all {
            let total = totals.entry(t.type_name()).or_default();
            *total = (total.0 + 1, total.1 + t.elements(), total.2 + t.len());
        }
        let head = ["type", "tensors", "weights", "size", "bits each"].map(String::from).to_vec();
        let rows = totals.into_iter().map(|(name, (n, elements, len))| {
            let bits = len as f64 * 8.0 / elements as f64;
            vec![name.into(), n.to_string(), count(elements), bytes(len), format!("{bits:.3}")]
        });
        let rows: Vec<_> = [head].into_iter().chain(rows).collect();
        terminal::table(out, &rows, &[false, true, true, true, true])?;
        writeln!(out, "  (--tensors lists all {})", all.len())?;
    }
    Ok(())
}

fn chat(engine: &Engine<'_>) -> String {
    let style = match engine.template.style {
        Style::Qwen3 => "Qwen3's template (with tools and thinking)",
        Style::Plain => "plain ChatML",
    };
    if engine.template.known { style.into() } else { format!("unknown; {style} is used") }
}

fn rope(scaling: &RopeScaling) -> String {
    match scaling {
        RopeScaling::None => "none".into(),
        RopeScaling::Linear { factor } => format!("linear, factor {factor}"),
        RopeScaling::Yarn { factor, original_context, .. } => {
            format!("YaRN, factor {factor} of {original_context}")
        }
        other => format!("{other:?}"),
    }
}

fn shape(t: &TensorInfo<'_>) -> String {
    let dims: Vec<String> = t.dims().iter().map(u64::to_string).collect();
    dims.join(" x ")
}

/// File text on one line and without control characters.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn shown(value: &Value<'_>) -> String {
    const MOST: usize = 70;
    match value {
        Value::Str(text) => {
            let text = printable(&String::from_utf8_lossy(text));
            let n = text.chars().count();
            if n <= MOST {
                return format!("{text:?}");
            }
            let start: String = text.chars().take(MOST - 20).collect();
            format!("{start:?}... ({n} characters)")
        }
        Value::Array(array) => {
            let some: Vec<String> = array.iter().take(4).map(|v| shown(&v)).collect();
            let more = if array.len() > some.len() { ", ..." } else { "" };
            let s = if array.len() == 1 { "" } else { "s" };
            format!("[{}{more}] ({} {}{s})", some.join(", "), array.len(), kind_of(array))
        }
        Value::F32(x) => x.to_string(),
        Value::F64(x) => x.to_string(),
        Value::Bool(x) => x.to_string(),
        other => other.integer().map(|n| n.to_string()).unwrap_or_default(),
    }
}

fn kind_of(array: &Array<'_>) -> &'static str {
    array.kind().name()
}

fn as_json(file: &ModelFile, gguf: &Gguf<'_>, engine: &Result<Engine<'_>, String>) -> Outcome<Json> {
    let mut object = match engine {
        Ok(engine) => model_json(engine)?,
        Err(reason) => json!({ "cannot_run": reason }),
    };
    object["file"] = file.name().into();
    object["file_bytes"] = file.file_len().into();
    object["parts"] = file.parts().into();
    let metadata: Map<String, Json> =
        gguf.metadata().iter().map(|(key, value)| (key.to_string(), json_value(&value))).collect();
    let tensors: Vec<Json> = gguf
        .tensors()
        .iter()
        .map(|t| {
            json!({
                "name": t.name(), "shape": t.dims(), "type": t.type_name(), "type_id": t.type_id(),
                "offset": t.offset(), "bytes": t.len(),
            })
        })
        .collect();
    object["metadata"] = metadata.into();
    object["tensors"] = tensors.into();
    Ok(object)
}

fn model_json(engine: &Engine<'_>) -> Outcome<Json> {
    let c = engine.model().config();
    let plan = engine.memory_plan(engine.options.context)?;
    Ok(json!({
        "name": engine.name(),
        "variant": engine.variant().name(),
        "format": engine.kind(),
        "chat_template": {
            "style": match engine.template.style { Style::Qwen3 => "qwen3", Style::Plain => "plain" },
            "known": engine.template.known,
        },
        "config": {
            "parameters": c.num_parameters(),
            "layers": c.num_layers,
            "hidden_size": c.hidden_size,
            "intermediate_size": c.intermediate_size,
            "attention_heads": c.num_attention_heads,
            "kv_heads": c.num_kv_heads,
            "head_dim": c.head_dim,
            "vocab_size": c.vocab_size,
            "context_length": c.max_context_length,
            "rope_freq_base": c.rope_freq_base,
            "rope_scaling": rope(&c.rope_scaling),
            "rms_norm_eps": c.rms_norm_eps,
            "tied_embeddings": c.tied_embeddings,
        },
        "memory": {
            "context": engine.options.context.min(c.max_context_length),
            "kv": plan.kv,
            "scratch": plan.scratch,
            "logits": plan.logits,
            "session": plan.total,
            "weights": engine.held_bytes,
            "bytes_per_token": engine.weights.bytes_per_token(),
        },
    }))
}

/// Long arrays (the vocabulary) are only counted: whoever wants them reads the file.
fn json_value(value: &Value<'_>) -> Json {
    match value {
        Value::Str(text) => String::from_utf8_lossy(text).into(),
        Value::Array(array) if array.len() > 256 => {
            json!({ "array_of": kind_of(array), "length": array.len() })
        }
        Value::Array(array) => array.iter().map(|v| json_value(&v)).collect(),
        Value::F32(x) => (*x).into(),
        Value::F64(x) => (*x).into(),
        Value::Bool(x) => (*x).into(),
        other => other.integer().and_then(|n| i64::try_from(n).ok()).into(),
    }
}
