//! Options of a reply as JavaScript has them, whose types the TypeScript side has checked.

use crate::error::{JsResult, js};
use crate::object::{elements, get, string};
use crate::platform::random;
use js_sys::JSON;
use shohin_core::chat::{OverflowPolicy, ResponseFormat, Thinking, ToolChoice, TurnOptions};
use shohin_core::constrain::Whitespace;
use shohin_core::gguf::{Id42, ReadOptions};
use shohin_core::model::Pooling;
use shohin_core::{Activations, Error, KvFormat, Name, SamplerConfig, SessionOptions};
use wasm_bindgen::prelude::*;

/// Reads `ChatOptions` of the TypeScript side.
///
/// # Errors
/// `option` if a count is not a whole number, `unsupported` for an unknown preset, `argument` for a tool or schema that
/// JSON cannot express. Ranges are checked when the turn begins.
pub(crate) fn turn_options(given: &JsValue) -> JsResult<TurnOptions> {
    let mut options = template_options(given)?;
    options.sampler = sampler(given)?;
    if let Some(max) = get(given, "maxTokens").as_f64() {
        options.max_tokens = Some(whole("maxTokens", max)?);
    }
    if let Some(top) = get(given, "logprobs").as_f64() {
        options.logprobs = Some(whole("logprobs", top)?);
    }
    let stop = get(given, "stop");
    options.stop_strings = match stop.as_string() {
        Some(stop) => vec![stop],
        None => elements(given, "stop").iter().filter_map(|text| text.as_string()).collect(),
    };
    let choice = get(given, "toolChoice");
    options.tool_choice = match (choice.as_string().as_deref(), string(&choice, "name")) {
        (Some("required"), _) => ToolChoice::Required,
        (None, Some(name)) => ToolChoice::Function(name),
        _ => ToolChoice::Auto,
    };
    let format = get(given, "responseFormat");
    options.response_format = match string(&format, "type").as_deref() {
        Some("json_object") => ResponseFormat::JsonObject,
        Some("json_schema") => {
            ResponseFormat::JsonSchema(json("responseFormat's schema", &get(&format, "schema"))?)
        }
        Some("choice") => {
            let choices = elements(&format, "choices");
            ResponseFormat::Choice(choices.iter().filter_map(|text| text.as_string()).collect())
        }
        Some("regex") => ResponseFormat::Regex(string(&format, "pattern").unwrap_or_default()),
        Some("grammar") => ResponseFormat::Grammar(string(&format, "grammar").unwrap_or_default()),
        _ => ResponseFormat::Text,
    };
    if get(&format, "whitespace").is_truthy() {
        options.json_whitespace = Whitespace::Allowed;
    }
    options.overflow = match string(given, "overflow").as_deref() {
        Some("shift") => OverflowPolicy::Shift { keep: None },
        Some("trim") => OverflowPolicy::trim_for(options.max_tokens),
        _ => OverflowPolicy::Error,
    };
    Ok(options)
}

/// Reads `TemplateOptions` of the TypeScript side.
///
/// # Errors
/// `argument` for a tool that JSON cannot express.
pub(crate) fn template_options(given: &JsValue) -> JsResult<TurnOptions> {
    let thinking = get(given, "thinking");
    let mut tools = Vec::new();
    for tool in elements(given, "tools").iter() {
        tools.push(json("a tool", &tool)?);
    }
    Ok(TurnOptions {
        thinking: match (thinking.as_bool(), get(&thinking, "budget").as_f64()) {
            (Some(true), _) => Thinking::On,
            (_, Some(budget)) => Thinking::Budget(budget.ceil() as usize),
            _ => Thinking::Off,
        },
        tools,
        continue_final_message: get(given, "continueFinalMessage").is_truthy(),
        ..TurnOptions::default()
    })
}

fn sampler(given: &JsValue) -> JsResult<SamplerConfig> {
    let preset = string(given, "preset");
    let preset = preset.as_deref().unwrap_or("bonsai");
    let expected = "bonsai, greedy, balanced, creative or code";
    let mut config = SamplerConfig::preset(preset).ok_or_else(|| unknown("preset", preset, expected))?;
    for (name, setting) in [
        ("temperature", &mut config.temperature),
        ("topP", &mut config.top_p),
        ("minP", &mut config.min_p),
        ("typicalP", &mut config.typical_p),
        ("repetitionPenalty", &mut config.repetition_penalty),
        ("presencePenalty", &mut config.presence_penalty),
        ("frequencyPenalty", &mut config.frequency_penalty),
        ("dryMultiplier", &mut config.dry_multiplier),
        ("dryBase", &mut config.dry_base),
    ] {
        if let Some(value) = get(given, name).as_f64() {
            *setting = value as f32;
        }
    }
    for (name, setting) in [
        ("topK", &mut config.top_k),
        ("penaltyLastN", &mut config.penalty_last_n),
        ("dryAllowedLength", &mut config.dry_allowed_length),
        ("dryLastN", &mut config.dry_last_n),
    ] {
        if let Some(value) = get(given, name).as_f64() {
            *setting = whole(name, value)?;
        }
    }
    config.seed = match get(given, "seed").as_f64() {
        Some(seed) => exact("seed", seed)?,
        None => random_seed(),
    };
    Ok(config)
}

/// A seed short enough to be copied by hand.
pub(crate) fn random_seed() -> u64 {
    u32::from_ne_bytes(random()).into()
}

/// A value as a JSON text.
fn json(what: &str, value: &JsValue) -> JsResult<String> {
    let text = JSON::stringify(value).ok().and_then(|text| text.as_string());
    text.ok_or_else(|| js(Error::Argument { name: Name::new(what), problem: "cannot be written as JSON" }))
}

/// # Errors
/// `unsupported` for another word.
pub(crate) fn pooling_named(name: &str) -> JsResult<Pooling> {
    match name {
        "mean" => Ok(Pooling::Mean),
        "last" => Ok(Pooling::Last),
        _ => Err(unknown("pooling", name, "mean or last")),
    }
}

/// # Errors
/// `unsupported` for another word.
pub(crate) fn activations_named(name: &str) -> JsResult<Activations> {
    match name {
        "int8" => Ok(Activations::Int8),
        "f32" => Ok(Activations::F32),
        _ => Err(unknown("activations", name, "int8 or f32")),
    }
}

/// # Errors
/// `unsupported` for another word.
pub(crate) fn session_options(kv: &str, attention: &str) -> JsResult<SessionOptions> {
    let kv =
        KvFormat::named(kv).ok_or_else(|| unknown("kv", kv, "f32, f16, q8, q4, fp8_e4m3 or fp8_e5m2"))?;
    Ok(SessionOptions { kv, attention: attention.parse().map_err(js)?, ..SessionOptions::default() })
}

/// How a file is read, with the meaning of tensor type 42 by name.
///
/// # Errors
/// `unsupported` for another word.
pub(crate) fn reading(id42: &str) -> JsResult<ReadOptions> {
    let id42 = Id42::named(id42).ok_or_else(|| unknown("id42", id42, "auto, 64, 128 or codes-first"))?;
    Ok(ReadOptions { id42, ..ReadOptions::default() })
}

fn unknown(key: &'static str, found: &str, expected: &'static str) -> JsValue {
    js(Error::Unsupported { key: Name::new(key), found: Name::new(found), expected })
}

/// A count.
///
/// # Errors
/// `option` if it is not a whole number.
pub(crate) fn whole(what: &'static str, value: f64) -> JsResult<usize> {
    // More than the address space is as good as no bound.
    Ok(usize::try_from(exact(what, value)?).unwrap_or(usize::MAX))
}

/// A JavaScript number that is a whole number, exactly.
///
/// # Errors
/// `option` if it is not.
pub(crate) fn exact(what: &'static str, value: f64) -> JsResult<u64> {
    const LAST: f64 = ((1u64 << 53) - 1) as f64;
    if (0.0..=LAST).contains(&value) && value as u64 as f64 == value {
        Ok(value as u64)
    } else {
        Err(js(Error::Option { what, found: value, expected: "a whole number from 0 to 2^53 - 1" }))
    }
}
