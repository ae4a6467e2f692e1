//! Fields of other servers that clients send in OpenAI's requests: those of llama.cpp, vLLM and OpenRouter.

use crate::error::Fields;
use shohin::core::Result;
use shohin::core::chat::fields::{Field, Object};
use shohin::core::chat::openai::request::{effort, max_tokens};
use shohin::core::chat::{ResponseFormat, Thinking, TurnOptions};

/// Maximum number of replies to a prompt.
const MAX_REPLIES: f64 = 8.0;

/// Fields of requests for chat completions and for continuations.
pub(in crate::api) const EXTRAS: &[&str] = &[
    "n",
    "top_k",
    "min_p",
    "typical_p",
    "typ_p",
    "repeat_penalty",
    "repetition_penalty",
    "repeat_last_n",
    "penalty_last_n",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "logit_bias",
    "n_predict",
    "grammar",
    "json_schema",
    "guided_json",
    "guided_choice",
    "guided_regex",
    "guided_grammar",
];

/// Fields of requests for chat completions only.
pub(super) const CHAT_EXTRAS: &[&str] = &[
    "enable_thinking",
    "think",
    "reasoning",
    "chat_template_kwargs",
    "continue_final_message",
    "add_generation_prompt",
    // Refused, unless they ask for nothing.
    "audio",
    "modalities",
    "functions",
    "function_call",
    "web_search_options",
    "previous_response_id",
];

/// The number of replies.
pub(super) fn replies(request: &Object<'_>) -> Result<usize> {
    let Some(field) = request.get("n") else { return Ok(1) };
    let n = field.value.as_number().filter(|n| (1.0..=MAX_REPLIES).contains(n) && *n == n.trunc());
    n.map(|n| n as usize).ok_or_else(|| field.unsupported("1 to 8"))
}

/// Reads [`EXTRAS`] but for the number of replies.
pub(in crate::api) fn read(
    request: &Object<'_>,
    options: &mut TurnOptions,
    fields: &mut Fields,
) -> Result<()> {
    let sampler = &mut options.sampler;
    let or_all = |field: Field<'_>| match field.value.as_number() {
        // Of vLLM, all.
        Some(-1.0) => Ok(0),
        Some(n) if n >= 0.0 && n == n.trunc() => Ok(n as usize),
        Some(_) | None => Err(field.refused("must be a whole number")),
    };
    if let Some(top_k) = request.get("top_k") {
        sampler.top_k = or_all(top_k)?;
    }
    for name in ["typ_p", "typical_p"] {
        request.float(name, &mut sampler.typical_p)?;
    }
    for name in ["repetition_penalty", "repeat_penalty"] {
        request.float(name, &mut sampler.repetition_penalty)?;
    }
    for (name, setting) in [
        ("min_p", &mut sampler.min_p),
        ("dry_multiplier", &mut sampler.dry_multiplier),
        ("dry_base", &mut sampler.dry_base),
    ] {
        request.float(name, setting)?;
    }
    for (names, setting) in [
        (&["penalty_last_n", "repeat_last_n"][..], &mut sampler.penalty_last_n),
        (&["dry_penalty_last_n"], &mut sampler.dry_last_n),
    ] {
        // Of llama.cpp, -1 is the whole context.
        match names.iter().find_map(|name| request.get(name)) {
            Some(field) if field.value.text() == "-1" => *setting = 1 << 20,
            Some(field) => *setting = or_all(field)?,
            None => {}
        }
    }
    if let Some(length) = request.count("dry_allowed_length")? {
        sampler.dry_allowed_length = usize::try_from(length).unwrap_or(usize::MAX);
    }
    if request.get("max_tokens").or(request.get("max_completion_tokens")).is_none()
        && request.get("n_predict").is_some()
    {
        options.max_tokens = max_tokens(request, "n_predict")?;
    }
    options.logit_bias = request.read_as("logit_bias", logit_bias)?;
    format(request, options, fields)
}

/// Biases by token: an object, or llama.cpp's array of pairs, in which false rules a token out.
fn logit_bias(field: &Field<'_>) -> Result<Vec<(u32, f32)>> {
    const FORM: &str = "must be an object of numbers by token, or an array of pairs of a token and a number";
    if let Some(members) = field.value.members() {
        let pair = |(token, bias): (String, shohin::core::json::Value<'_>)| {
            Some((token.parse().ok()?, bias.as_number()? as f32))
        };
        let pairs: Option<Vec<(u32, f32)>> = members.into_iter().map(pair).collect();
        return pairs.ok_or_else(|| field.refused(FORM));
    }
    let mut pairs = Vec::new();
    field.each(FORM, &mut |pair| {
        let both = pair.value.elements().unwrap_or_default();
        let [token, bias] = both[..] else { return Err(pair.refused(FORM)) };
        let bias = match bias.as_bool() {
            Some(false) => Some(f64::from(f32::MIN)),
            Some(true) | None => bias.as_number(),
        };
        match (token.text().parse(), bias) {
            (Ok(token), Some(bias)) => pairs.push((token, bias as f32)),
            _ => return Err(pair.refused(FORM)),
        }
        Ok(())
    })?;
    Ok(pairs)
}

/// Reads a form of the reply that is no `response_format`.
fn format(request: &Object<'_>, options: &mut TurnOptions, fields: &mut Fields) -> Result<()> {
    for name in ["json_schema", "guided_json", "grammar", "guided_grammar", "guided_regex", "guided_choice"] {
        let Some(field) = request.get(name).filter(|field| !field.asks_nothing() || name.ends_with("json"))
        else {
            continue;
        };
        if field.value.text().trim() == "\"\""
            || options.response_format != ResponseFormat::Text && field.leave()
        {
            continue;
        }
        options.response_format = match name {
            "json_schema" | "guided_json" => {
                fields.schema = name;
                // vLLM takes the schema as a text, too.
                let text = field.value.as_string().unwrap_or_else(|| field.value.text().into());
                ResponseFormat::JsonSchema(text)
            }
            "grammar" | "guided_grammar" => {
                fields.grammar = name;
                ResponseFormat::Grammar(field.string()?)
            }
            "guided_regex" => {
                fields.pattern = name;
                ResponseFormat::Regex(field.string()?)
            }
            _ => {
                fields.choices = name;
                let mut choices = Vec::new();
                field.each("must be an array of texts", &mut |choice| {
                    choices.push(choice.string()?);
                    Ok(())
                })?;
                ResponseFormat::Choice(choices)
            }
        };
    }
    Ok(())
}

/// Reads [`CHAT_EXTRAS`].
pub(super) fn read_chat(request: &Object<'_>, options: &mut TurnOptions) -> Result<()> {
    request.refuse(&[
        ("audio", "a request for text"),
        ("functions", "them in tools"),
        ("function_call", "it as a tool_choice"),
        ("web_search_options", "a request without it: there is no search"),
        ("previous_response_id", "the earlier messages in messages, as nothing is stored"),
    ])?;
    if let Some(modalities) = request.get("modalities") {
        modalities.each("must be an array", &mut |one| match one.value.as_string().as_deref() {
            Some("text") => Ok(()),
            Some(_) | None => Err(one.unsupported("text")),
        })?;
    }
    if let Some(reasoning) = request.get("reasoning") {
        options.thinking = self::reasoning(&reasoning)?;
    }
    if let Some(kwargs) = request.get("chat_template_kwargs") {
        let kwargs = kwargs.object(&["enable_thinking", "thinking"], "must be an object")?;
        for name in ["enable_thinking", "thinking"] {
            if kwargs.get(name).is_some() {
                options.thinking = thinks(kwargs.boolean(name)?);
            }
        }
    }
    if request.get("enable_thinking").is_some() {
        options.thinking = thinks(request.boolean("enable_thinking")?);
    }
    if let Some(think) = request.get("think") {
        options.thinking = self::think(&think)?;
    }
    options.continue_final_message = request.boolean("continue_final_message")?;
    request.boolean("add_generation_prompt")?;
    Ok(())
}

const fn thinks(on: bool) -> Thinking {
    if on { Thinking::On } else { Thinking::Off }
}

/// True or false, or how much.
pub(in crate::api) fn think(field: &Field<'_>) -> Result<Thinking> {
    field.value.as_bool().map_or_else(|| effort(field), |on| Ok(thinks(on)))
}

/// As of OpenRouter.
fn reasoning(field: &Field<'_>) -> Result<Thinking> {
    let given =
        field.object(&["effort", "enabled", "max_tokens", "exclude", "summary"], "must be an object")?;
    if given.get("enabled").is_some() && !given.boolean("enabled")? {
        return Ok(Thinking::Off);
    }
    match (max_tokens(&given, "max_tokens")?, given.get("effort")) {
        (Some(tokens), _) => Ok(Thinking::Budget(tokens)),
        (None, Some(field)) => effort(&field),
        (None, None) => Ok(Thinking::On),
    }
}
