//! `shohin inspect`: the contents of a file, and the memory to run it.

use crate::args::byte_count;
use crate::error::{CliError, Result};
use crate::model::{AdapterArgs, BareArgs, DeviceArgs, EngineArgs, FileArgs, ModelArgs, weights};
use crate::terminal::{self, Colours, bytes, count};
use clap::Args;
use serde_json::{Map, Value as Json, json};
use shohin::core::chat::Style;
use shohin::core::cpu::fit::{longest_context, published_within};
use shohin::core::gguf::{Array, TensorInfo, Value};
use shohin::core::model::lora::ADAPTER;
use shohin::core::model::{
    ExpertsConfig, LoraAdapter, LoraConfig, ModelConfig, RopeFactors, RopeScaling, RotatedBasis,
};
use shohin::core::{Error, Gguf, is_printable};
use shohin::{Model, ModelFile};
use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};

/// Show what a model file holds and what running it takes
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shohin inspect
  shohin inspect bonsai-1.7b --tensors
  shohin inspect --memory 2GiB --kv q8
  shohin inspect --devices
  shohin inspect bonsai-1.7b --context 32768 --json | jq .memory")]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    pub(crate) bare: BareArgs,
    /// List every tensor
    #[arg(long)]
    tensors: bool,
    /// List the published models, and the contexts, that fit into this much memory, such as 4GiB, 512MiB or 6e9
    #[arg(long, value_name = "BYTES", value_parser = byte_count::<u64>)]
    memory: Option<u64>,
    /// List the devices that a model can run on, and nothing else
    #[arg(long, conflicts_with_all = ["tensors", "memory", "model", "bare"])]
    devices: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(crate) file: FileArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    adapters: AdapterArgs,
}

impl InspectArgs {
    /// The model, on the CPU.
    fn model(&self) -> ModelArgs {
        let InspectArgs { file, engine, adapters, .. } = self;
        let (file, engine, adapters) = (file.clone(), engine.clone(), adapters.clone());
        ModelArgs { file, engine, device: DeviceArgs::default(), adapters }
    }
}

pub(crate) fn inspect(args: &InspectArgs) -> Result {
    if args.devices {
        return devices(args.json);
    }
    let file = args.file.open()?;
    let gguf = file.gguf(&args.file.read_options())?;
    // A file that cannot run is still shown.
    let loaded = match args.model().builder().inspect_only().load_file(&file).map_err(CliError::from) {
        Err(CliError::Message(reason)) => Err(reason),
        loaded => Ok(loaded?),
    };
    let fits = args.memory.map(|bytes| fits(bytes, &args.engine, loaded.as_ref().ok()));
    let mut out = BufWriter::new(io::stdout().lock());
    if args.json {
        writeln!(out, "{:#}", as_json(&file, &gguf, &loaded, &fits)?)?;
    } else {
        match &loaded {
            Ok(loaded) => describe(&mut out, &file, loaded)?,
            Err(_) if is_adapter(&gguf) => describe_adapter(&mut out, &file, &gguf)?,
            Err(reason) => cannot_run(&mut out, &file, reason)?,
        }
        if let Some((bytes, fits)) = args.memory.zip(fits.as_ref()) {
            fitting(&mut out, bytes, fits)?;
        }
        content(&mut out, &gguf, args.tensors)?;
    }
    out.flush()?;
    Ok(())
}

/// What `--device` can be.
fn devices(as_json: bool) -> Result {
    let all = shohin::devices();
    let mut out = io::stdout().lock();
    if as_json {
        let all: Vec<Json> = all
            .iter()
            .map(|device| {
                json!({
                    "device": device.name.to_string(), "about": device.about, "usable": device.usable,
                    "software": device.software,
                })
            })
            .collect();
        writeln!(out, "{:#}", json!({ "devices": all }))?;
        return Ok(());
    }
    let rows: Vec<_> = all
        .into_iter()
        .map(|device| {
            let kind = match (device.usable, device.software) {
                (false, _) => "no",
                (true, true) => "in software",
                (true, false) => "yes",
            };
            vec![device.name.to_string(), kind.into(), device.about]
        })
        .collect();
    terminal::table(&mut out, &rows, &[])?;
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

fn cannot_run(out: &mut impl Write, file: &ModelFile, reason: &str) -> Result {
    title(out, "Model")?;
    let rows = [row("file", size(file)), row("runs", format!("no: {reason}"))];
    terminal::table(out, &rows, &[])?;
    Ok(())
}

/// Whether it is the file of an adapter, in the place of a model's.
fn is_adapter(gguf: &Gguf<'_>) -> bool {
    matches!(gguf.metadata().str("general.type"), Ok(Some(ADAPTER)))
}

fn describe_adapter(out: &mut impl Write, file: &ModelFile, gguf: &Gguf<'_>) -> Result {
    title(out, "Adapter")?;
    let mut rows = vec![row("file", size(file))];
    match LoraAdapter::from_gguf(gguf) {
        Ok(adapter) => {
            let LoraConfig { name, architecture, alpha } = *adapter.config();
            let (least, most) = adapter.ranks();
            let rank = if least == most { most.to_string() } else { format!("{least} to {most}") };
            let alpha = if alpha == 0.0 { "none: alpha / rank is 1".into() } else { alpha.to_string() };
            rows.extend([
                row("name", on_one_line(name)),
                row("kind", "LoRA; --lora applies it to a model".into()),
                row("for models of", on_one_line(architecture)),
                row("adapts", format!("{} matrices", adapter.pairs().len())),
                row("rank", rank),
                row("alpha", alpha),
                row("parameters", count(adapter.num_parameters())),
            ]);
        }
        Err(error) => rows.push(row("runs", format!("no: {error}"))),
    }
    terminal::table(out, &rows, &[])?;
    Ok(())
}

fn adapter_json(gguf: &Gguf<'_>) -> Json {
    match LoraAdapter::from_gguf(gguf) {
        Ok(adapter) => {
            let LoraConfig { name, architecture, alpha } = *adapter.config();
            let pairs =
                adapter.pairs().iter().map(|pair| json!({ "matrix": pair.name, "rank": pair.rank() }));
            json!({
                "name": name, "architecture": architecture, "alpha": alpha, "matrices": pairs.collect::<Json>(),
                "parameters": adapter.num_parameters(),
            })
        }
        Err(error) => json!({ "cannot_run": error.to_string() }),
    }
}

fn layers(c: &ModelConfig) -> String {
    if let (Some(window), windowed @ 1..) = (c.layers.window, c.layers.windowed.len()) {
        return format!("{}, of which {windowed} see the last {window} positions", c.num_layers);
    }
    match c.depth_routers.len() {
        0 => c.num_layers.to_string(),
        routed => format!("{}, of which tokens may skip {routed} (mixture of depths)", c.num_layers),
    }
}

fn describe(out: &mut impl Write, file: &ModelFile, model: &Model) -> Result {
    let (c, able) = (model.config(), model.capabilities());
    title(out, "Model")?;
    let alibi = match c.positions.max_alibi_bias() {
        max_bias if max_bias > 0.0 => format!(", ALiBi with slopes down to 2^-{max_bias}"),
        _ => String::new(),
    };
    let rotary = c.positions.frequencies();
    let context = match rotary.scaling {
        _ if !c.positions.rotates() => format!("{} tokens", c.max_context_length),
        RopeScaling::None if rotary.factors == RopeFactors::Llama3 => {
            format!("{} tokens, RoPE factors in the file", c.max_context_length)
        }
        RopeScaling::None => format!("{} tokens", c.max_context_length),
        ref scaling => format!("{} tokens, {}", c.max_context_length, rope(scaling)),
    };
    let head = if c.tied_embeddings { ", also the output head" } else { "" };
    let width = match c.experts {
        Some(ExpertsConfig { count, used, feed_forward, .. }) => format!(
            "{}, feed-forward {feed_forward} in each of {count} experts, {used} for each token",
            c.hidden_size
        ),
        None => format!("{}, feed-forward {}", c.hidden_size, c.intermediate_size),
    };
    let adapters =
        model.adapters().map(|(file, scale)| row("adapter", format!("{} at {scale}", file.name())));
    let mut rows = vec![
        row("file", size(file)),
        row("name", model.name().into()),
        row("variant", model.variant().name().into()),
        row("weights", weights(model)),
        row("parameters", count(able.num_parameters)),
        row("layers", layers(c)),
        row("width", width),
        row(
            "heads",
            format!("{} of {}, {} for keys and values", c.num_attention_heads, c.head_dim, c.num_kv_heads),
        ),
        row("vocabulary", format!("{} tokens{head}", c.vocab_size)),
        row("context", context + &alibi),
        row("chat", chat(model)),
        row("thinking", yes(able.thinking).into()),
        row("tool calls", yes(able.tools).into()),
    ];
    if let Some(RotatedBasis { block, weights, .. }) = &c.basis {
        let rotated = format!("{} matrices, rotated in blocks of {block}", weights.len());
        rows.push(row("basis", rotated));
    }
    rows.extend(adapters);
    terminal::table(out, &rows, &[])?;

    title(out, "\nMemory")?;
    let plan = model.memory_plan(model.context())?;
    let held = model.context().min(c.max_context_length);
    let whole = plan.total as u64 + model.weight_bytes() as u64;
    let state = c.program().state_len as u64 * size_of::<f32>() as u64;
    let mut rows = vec![
        row("weights", bytes(able.weight_bytes)),
        row(
            "keys and values",
            format!("{} for {held} tokens in {}", bytes(plan.kv as u64), model.kv().name()),
        ),
        row("per token in f16", bytes(able.kv_bytes_per_token)),
        row("working memory", bytes((plan.scratch + plan.logits) as u64)),
        row("total", bytes(whole)),
        row("read per token", bytes(model.weights().bytes_per_token() as u64)),
    ];
    if state > 0 {
        rows.insert(3, row("recurrent state", format!("{}, and copies of it", bytes(state))));
    }
    terminal::table(out, &rows, &[])?;
    Ok(())
}

/// A model, and its longest context that fits.
struct Fit {
    name: String,
    format: String,
    /// Size in bytes.
    weights: u64,
    context: Option<usize>,
    /// The longest context that the model supports.
    max: usize,
}

/// What fits into `bytes`: this file, and the published models.
fn fits(bytes: u64, args: &EngineArgs, model: Option<&Model>) -> Vec<Fit> {
    let this = model.map(|model| {
        let (max, weights) = (model.config().max_context_length, model.weight_bytes() as u64);
        let plan =
            |context| model.memory_plan(context).map_err(|_| Error::Memory { need: u64::MAX, have: bytes });
        Fit {
            name: model.name().into(),
            format: model.format().map_or("", |format| format.name()).into(),
            weights,
            context: longest_context(max, bytes, weights, plan),
            max,
        }
    });
    let published = published_within(bytes, args.kv).map(|(spec, context)| Fit {
        name: spec.variant.name().into(),
        format: spec.format.name().into(),
        weights: spec.capabilities.weight_bytes,
        context,
        max: spec.capabilities.max_context_length,
    });
    this.into_iter().chain(published).collect()
}

fn fitting(out: &mut impl Write, bytes: u64, fits: &[Fit]) -> Result {
    title(out, &format!("\nFits into {}", terminal::bytes(bytes)))?;
    let head = ["model", "format", "weights", "context"].map(String::from).to_vec();
    let rows = fits.iter().map(|fit| {
        let context = match fit.context {
            Some(context) => format!("{context} of {} tokens", fit.max),
            None => "does not fit".into(),
        };
        vec![on_one_line(&fit.name), fit.format.clone(), terminal::bytes(fit.weights), context]
    });
    let rows: Vec<_> = [head].into_iter().chain(rows).collect();
    terminal::table(out, &rows, &[false, false, true, false])?;
    Ok(())
}

fn content(out: &mut impl Write, gguf: &Gguf<'_>, tensors: bool) -> Result {
    title(out, "\nMetadata")?;
    let entries = gguf.metadata().iter();
    let rows: Vec<_> = entries.map(|(key, value)| row(&on_one_line(key), shown(&value))).collect();
    terminal::table(out, &rows, &[])?;

    title(out, "\nTensors")?;
    let all = gguf.tensors();
    if tensors {
        let head = ["name", "shape", "type", "size"].map(String::from).to_vec();
        let rows = all
            .iter()
            .map(|t| vec![on_one_line(t.name()), shape(t), t.type_name().to_string(), bytes(t.len())]);
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

fn chat(model: &Model) -> String {
    let style = match model.template().style {
        Style::Qwen3 => "Qwen3's template",
        Style::Qwen3Thinking => "Qwen3's template, always thinking",
        Style::Qwen3Instruct => "Qwen3's template, without thinking",
        Style::Plain => "plain ChatML",
        Style::Llama3 => "Llama 3's template",
        Style::Llama31 => "the template of Llama 3.1 to 3.3",
        Style::Gemma => "Gemma 3's template",
        Style::File(_) => "the file's own template",
    };
    if model.template().known { style.into() } else { format!("unknown; {style} is used") }
}

fn yes(able: bool) -> &'static str {
    if able { "yes" } else { "no" }
}

fn rope(scaling: &RopeScaling) -> String {
    match scaling {
        RopeScaling::None => "none".into(),
        RopeScaling::Linear { factor } => format!("linear, factor {factor}"),
        RopeScaling::Yarn { factor, original_context, .. } => {
            format!("YaRN, factor {factor} of {original_context}")
        }
        RopeScaling::Llama3 { factor, original_context, .. } => {
            format!("Llama 3.1's, factor {factor} of {original_context}")
        }
        RopeScaling::DynamicNtk { factor, original_context, context } => {
            format!("dynamic NTK, factor {factor} of {original_context}, here for {context}")
        }
        RopeScaling::LongRope { original_context, context, .. } => {
            let factors = if context > original_context { "long" } else { "short" };
            format!("LongRoPE over {original_context}, the {factors} factors for a context of {context}")
        }
        other => format!("{other:?}"),
    }
}

fn shape(t: &TensorInfo<'_>) -> String {
    let dims: Vec<String> = t.dims().iter().map(u64::to_string).collect();
    dims.join(" x ")
}

/// Text from a file on one line.
fn on_one_line(text: &str) -> String {
    text.chars().map(|c| if is_printable(c) { c } else { ' ' }).collect()
}

fn shown(value: &Value<'_>) -> String {
    const MOST: usize = 70;
    match value {
        Value::Str(text) => {
            let text = on_one_line(&String::from_utf8_lossy(text));
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

fn as_json(
    file: &ModelFile,
    gguf: &Gguf<'_>,
    loaded: &std::result::Result<Model, String>,
    fits: &Option<Vec<Fit>>,
) -> Result<Json> {
    let mut object = match loaded {
        Ok(loaded) => model_json(loaded)?,
        Err(_) if is_adapter(gguf) => json!({ "adapter": adapter_json(gguf) }),
        Err(reason) => json!({ "cannot_run": reason }),
    };
    if let Some(fits) = fits {
        let fits = fits.iter().map(|fit| {
            json!({
                "model": fit.name, "format": fit.format, "weights": fit.weights, "context": fit.context,
                "context_length": fit.max,
            })
        });
        object["fits"] = fits.collect();
    }
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

fn model_json(model: &Model) -> Result<Json> {
    let (c, able) = (model.config(), model.capabilities());
    let plan = model.memory_plan(model.context())?;
    Ok(json!({
        "name": model.name(),
        "variant": model.variant().name(),
        "format": weights(model),
        "chat_template": {
            "style": match model.template().style {
                Style::Qwen3 => "qwen3",
                Style::Qwen3Thinking => "qwen3-thinking",
                Style::Qwen3Instruct => "qwen3-instruct",
                Style::Plain => "plain",
                Style::Llama3 => "llama3",
                Style::Llama31 => "llama3.1",
                Style::Gemma => "gemma",
                Style::File(_) => "file",
            },
            "known": model.template().known,
        },
        "capabilities": {
            "kv_bytes_per_token": able.kv_bytes_per_token,
            "thinking": able.thinking,
            "tools": able.tools,
        },
        "config": {
            "parameters": c.num_parameters(),
            "layers": c.num_layers,
            "depth_routers": c.depth_routers,
            "hidden_size": c.hidden_size,
            "intermediate_size": c.intermediate_size,
            "experts": c.experts.map(|experts| json!({
                "count": experts.count,
                "used": experts.used,
                "intermediate_size": experts.feed_forward,
                "normalize": experts.normalize,
            })),
            "attention_heads": c.num_attention_heads,
            "kv_heads": c.num_kv_heads,
            "head_dim": c.head_dim,
            "vocab_size": c.vocab_size,
            "context_length": c.max_context_length,
            "rope_freq_base": c.positions.frequencies().base,
            "rope_scaling": rope(&c.positions.frequencies().scaling),
            "rotary": c.positions.rotates(),
            "max_alibi_bias": c.positions.max_alibi_bias(),
            "rms_norm_eps": c.rms_norm_eps,
            "tied_embeddings": c.tied_embeddings,
        },
        "adapters": model.adapters().map(|(file, scale)| json!({ "file": file.name(), "scale": scale })).collect::<Json>(),
        "memory": {
            "context": model.context().min(c.max_context_length),
            "kv": plan.kv,
            "scratch": plan.scratch,
            "logits": plan.logits,
            "session": plan.total,
            "weights": model.weight_bytes(),
            "bytes_per_token": model.weights().bytes_per_token(),
        },
    }))
}

/// Long arrays (the vocabulary) are only counted.
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
        Value::U64(x) => (*x).into(),
        other => other.integer().and_then(|n| i64::try_from(n).ok()).into(),
    }
}
