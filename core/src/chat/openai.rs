//! OpenAI chat completion requests and responses as JSON.
//!
//! Supported fields follow OpenAI's reference; others are refused unless they are null, so that none is
//! ignored silently. Three are extensions: `thinking` (a boolean, or an object with a `budget` of tokens),
//! `overflow` (`error`, `trim` or `shift`), and `reasoning` in an assistant's message.
#![forbid(unsafe_code)]

use super::conversation::{Finish, Piece, Usage};
use super::message::{ChatMessage, FunctionCall};
use super::options::{OverflowPolicy, ResponseFormat, Thinking, ToolChoice, TurnOptions};
use super::template::Role;
use crate::error::{Error, Name, Result};
use crate::generate::Reason;
use crate::json::{self, Value};
use crate::sample::Logprob;
use crate::tokenizer::Tokenizer;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

/// Fields for a service's own use: accepted and ignored.
const UNUSED: [&str; 6] =
    ["user", "safety_identifier", "prompt_cache_key", "service_tier", "store", "metadata"];

/// Tokens that `overflow: "trim"` keeps free for a reply whose length is not limited.
const RESERVE: usize = 256;

/// The largest integer up to which f64, and so JavaScript, represents every integer exactly.
const MAX_SAFE_INTEGER: f64 = ((1u64 << 53) - 1) as f64;

/// A request for a chat completion.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatCompletionRequest {
    /// The conversation.
    pub messages: Vec<ChatMessage>,
    /// How to reply. The sampler is the model card's with the request's changes; for its seed see `seed`.
    pub options: TurnOptions,
    /// The requested seed. If `None`, the host chooses one at random.
    pub seed: Option<u64>,
    /// The model's name, only echoed in the response.
    pub model: Option<String>,
    /// Whether the response is streamed in chunks.
    pub stream: bool,
    /// Whether a last chunk reports the token counts.
    pub include_usage: bool,
}

impl ChatCompletionRequest {
    /// Parses a request.
    ///
    /// # Errors
    /// [`Error::Json`] if `text` is not JSON, [`Error::Argument`] with the name of an invalid field,
    /// [`Error::Unsupported`] for an unsupported one, [`Error::Option`] for a count that is not an integer.
    pub fn parse(text: &str) -> Result<ChatCompletionRequest> {
        let request = Value::parse(text)?;
        let fields = request.members().ok_or_else(|| refused("request", "must be an object"))?;
        let mut read = ChatCompletionRequest {
            messages: Vec::new(),
            options: TurnOptions::default(),
            seed: None,
            model: None,
            stream: false,
            include_usage: false,
        };
        let (mut max_tokens, mut max_completion_tokens) = (None, None);
        let (mut logprobs, mut top_logprobs, mut trim, mut messages) = (false, 0, false, None);
        let (mut tool_choice, options) = (None, &mut read.options);
        for (name, value) in fields {
            if value.is_null() {
                continue;
            }
            match name.as_str() {
                "messages" => messages = Some(value),
                "model" => read.model = Some(string("model", value)?),
                "stream" => read.stream = boolean("stream", value)?,
                "stream_options" => read.include_usage = include_usage(value)?,
                "max_tokens" => max_tokens = Some(count("max_tokens", value)?),
                "max_completion_tokens" => {
                    max_completion_tokens = Some(count("max_completion_tokens", value)?)
                }
                "temperature" => options.sampler.temperature = number("temperature", value)? as f32,
                "top_p" => options.sampler.top_p = number("top_p", value)? as f32,
                "presence_penalty" => {
                    options.sampler.presence_penalty = number("presence_penalty", value)? as f32;
                }
                "frequency_penalty" => {
                    options.sampler.frequency_penalty = number("frequency_penalty", value)? as f32;
                }
                "seed" => read.seed = Some(whole("seed", value)?),
                "stop" => options.stop_strings = stop(value)?,
                "logprobs" => logprobs = boolean("logprobs", value)?,
                "top_logprobs" => {
                    let top = value
                        .as_number()
                        .filter(|top| (0.0..=20.0).contains(top) && *top as usize as f64 == *top);
                    top_logprobs = top.ok_or_else(|| refused("top_logprobs", "must be 0 to 20"))? as usize;
                }
                "tools" => options.tools = tools(value)?,
                "tool_choice" => tool_choice = Some(value),
                "response_format" => options.response_format = response_format(value)?,
                "n" if value.as_number() == Some(1.0) => {}
                "n" => return Err(unsupported("n", value, "1")),
                "parallel_tool_calls" if value.as_bool() == Some(true) => {}
                "parallel_tool_calls" => return Err(unsupported("parallel_tool_calls", value, "true")),
                "thinking" => options.thinking = thinking(value)?,
                "overflow" => match string("overflow", value)?.as_str() {
                    "error" => {}
                    "shift" => options.overflow = OverflowPolicy::Shift { keep: None },
                    "trim" => trim = true,
                    _ => return Err(refused("overflow", "must be error, shift or trim")),
                },
                name if UNUSED.contains(&name) => {}
                name => return Err(unsupported(name, value, "a request without it")),
            }
        }
        if let Some(choice) = tool_choice {
            choose_tools(choice, options)?;
        }
        options.max_tokens = max_completion_tokens.or(max_tokens);
        if trim {
            let room = options.max_tokens.unwrap_or(RESERVE);
            options.overflow = OverflowPolicy::Trim { reserve: room, free: room };
        }
        options.logprobs = logprobs.then_some(top_logprobs);
        options.sampler.seed = read.seed.unwrap_or(options.sampler.seed);
        let messages =
            messages.and_then(Value::elements).ok_or_else(|| refused("messages", "must be an array"))?;
        if messages.is_empty() {
            return Err(refused("messages", "must have at least one message"));
        }
        for (i, value) in messages.into_iter().enumerate() {
            read.messages.push(message(&format!("messages[{i}]"), value)?);
        }
        Ok(read)
    }
}

fn refused(name: &str, problem: &'static str) -> Error {
    Error::Argument { name: Name::new(name), problem }
}

fn unsupported(name: &str, value: Value<'_>, expected: &'static str) -> Error {
    Error::Unsupported { key: Name::new(name), found: Name::new(value.text()), expected }
}

fn string(name: &str, value: Value<'_>) -> Result<String> {
    value.as_string().ok_or_else(|| refused(name, "must be a string"))
}

fn boolean(name: &str, value: Value<'_>) -> Result<bool> {
    value.as_bool().ok_or_else(|| refused(name, "must be true or false"))
}

fn number(name: &str, value: Value<'_>) -> Result<f64> {
    value.as_number().ok_or_else(|| refused(name, "must be a number"))
}

fn whole(name: &'static str, value: Value<'_>) -> Result<u64> {
    let found = number(name, value)?;
    if (0.0..=MAX_SAFE_INTEGER).contains(&found) && found as u64 as f64 == found {
        Ok(found as u64)
    } else {
        Err(Error::Option { what: name, found, expected: "a whole number from 0 to 2^53 - 1" })
    }
}

fn count(name: &'static str, value: Value<'_>) -> Result<usize> {
    // More than the address space is the same as no limit.
    Ok(usize::try_from(whole(name, value)?).unwrap_or(usize::MAX))
}

fn include_usage(value: Value<'_>) -> Result<bool> {
    if !value.is_object() {
        return Err(refused("stream_options", "must be an object"));
    }
    match value.get("include_usage").filter(|value| !value.is_null()) {
        Some(value) => boolean("stream_options.include_usage", value),
        None => Ok(false),
    }
}

fn stop(value: Value<'_>) -> Result<Vec<String>> {
    let problem = || refused("stop", "must be a string or an array of strings");
    match value.elements() {
        Some(texts) => texts.into_iter().map(|text| text.as_string().ok_or_else(problem)).collect(),
        None => Ok(alloc::vec![value.as_string().ok_or_else(problem)?]),
    }
}

fn tools(value: Value<'_>) -> Result<Vec<String>> {
    let problem = || refused("tools", "must be an array of functions");
    let tools = value.elements().ok_or_else(problem)?;
    tools
        .into_iter()
        .map(|tool| if tool.is_object() { Ok(tool.text().into()) } else { Err(problem()) })
        .collect()
}

fn choose_tools(value: Value<'_>, options: &mut TurnOptions) -> Result<()> {
    options.tool_choice = if value.is_object() {
        match value.get("type").and_then(Value::as_string).as_deref() {
            Some("function") => {}
            _ => return Err(unsupported("tool_choice", value, "a tool_choice of type function")),
        }
        let name = value.get("function").and_then(|function| function.get("name")?.as_string());
        ToolChoice::Function(name.ok_or_else(|| refused("tool_choice", "names no function"))?)
    } else {
        match value.as_string().as_deref() {
            Some("auto") => ToolChoice::Auto,
            Some("required") => ToolChoice::Required,
            Some("none") => {
                options.tools.clear();
                ToolChoice::Auto
            }
            _ => return Err(refused("tool_choice", "must be none, auto, required or a function")),
        }
    };
    if options.tool_choice != ToolChoice::Auto && options.tools.is_empty() {
        return Err(refused("tool_choice", "is given, but tools has none to choose from"));
    }
    Ok(())
}

fn response_format(value: Value<'_>) -> Result<ResponseFormat> {
    if !value.is_object() {
        return Err(refused("response_format", "must be an object"));
    }
    let Some(kind) = value.get("type").filter(|kind| !kind.is_null()) else {
        return Ok(ResponseFormat::Text);
    };
    match kind.as_string().as_deref() {
        Some("text") => Ok(ResponseFormat::Text),
        Some("json_object") => Ok(ResponseFormat::JsonObject),
        Some("json_schema") => {
            let named = value.get("json_schema").filter(|named| named.is_object());
            let named = named.ok_or_else(|| refused("response_format", "has no json_schema"))?;
            let schema =
                named.get("schema").filter(|schema| schema.is_object() || schema.as_bool().is_some());
            let schema = schema
                .ok_or_else(|| refused("response_format.json_schema.schema", "must be a JSON Schema"))?;
            Ok(ResponseFormat::JsonSchema(schema.text().into()))
        }
        _ => Err(unsupported("response_format.type", kind, "text, json_object or json_schema")),
    }
}

fn thinking(value: Value<'_>) -> Result<Thinking> {
    if let Some(thinks) = value.as_bool() {
        return Ok(if thinks { Thinking::On } else { Thinking::Off });
    }
    if !value.is_object() {
        return Err(refused("thinking", "must be true, false or an object with a budget"));
    }
    let budget = value.get("budget").and_then(Value::as_number).filter(|budget| *budget >= 0.0);
    let budget = budget.ok_or_else(|| refused("thinking.budget", "must be a number of tokens"))?;
    // Round up to whole tokens.
    Ok(Thinking::Budget(libm::ceil(budget) as usize))
}

fn message(place: &str, value: Value<'_>) -> Result<ChatMessage> {
    let role = value.get("role").and_then(Value::as_string);
    let role = role.ok_or_else(|| refused(place, "must be an object with a role"))?;
    let role = match role.as_str() {
        "system" | "developer" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
        _ => {
            return Err(refused(
                &format!("{place}.role"),
                "must be system, developer, user, assistant or tool",
            ));
        }
    };
    let given = |name| value.get(name).filter(|value| !value.is_null());
    let mut message = ChatMessage::new(role, "");
    if let Some(content) = given("content") {
        message.content = text_of(&format!("{place}.content"), content)?;
    }
    if let Some(reasoning) = given("reasoning") {
        message.reasoning = Some(string(&format!("{place}.reasoning"), reasoning)?);
    }
    if let Some(calls) = given("tool_calls") {
        let problem = || {
            let problem = "must be an array of calls, each with a function that has a name and arguments";
            refused(&format!("{place}.tool_calls"), problem)
        };
        for call in calls.elements().ok_or_else(problem)? {
            let text = |name| call.get("function")?.get(name)?.as_string();
            let (name, arguments) = text("name").zip(text("arguments")).ok_or_else(problem)?;
            message.tool_calls.push(FunctionCall { name, arguments });
        }
    }
    Ok(message)
}

/// The text of a string, or of an array of text parts, which are joined; other parts are refused.
fn text_of(place: &str, value: Value<'_>) -> Result<String> {
    if let Some(text) = value.as_string() {
        return Ok(text);
    }
    let problem = "must be a string, or an array of text parts";
    let parts = value.elements().ok_or_else(|| refused(place, problem))?;
    let mut all = String::new();
    for part in parts {
        match part.get("type").and_then(Value::as_string).as_deref() {
            Some("text") => all.push_str(
                &part.get("text").and_then(Value::as_string).ok_or_else(|| refused(place, problem))?,
            ),
            Some(_) => return Err(unsupported(place, part, "parts of type text: the model reads text only")),
            None => return Err(refused(place, problem)),
        }
    }
    Ok(all)
}

/// Identity of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletionId {
    /// Letters and digits, unique to the response.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The model's name: from the request, or that of the model that answers.
    pub model: String,
}

/// A token with its log-probability, and those of the most likely alternatives.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The chosen token.
    pub chosen: Logprob,
    /// The most likely tokens, best first.
    pub top: Vec<Logprob>,
}

/// Pieces of a reply that are sent together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chunk {
    /// Text as the model wrote it, markers included.
    pub text: String,
    /// The part of `text` for the reader.
    pub content: String,
    /// The part of `text` that is reasoning.
    pub reasoning: String,
    /// Complete calls.
    pub tool_calls: Vec<FunctionCall>,
    /// The tokens of these pieces.
    pub tokens: Vec<u32>,
    /// One for each token that the model chose, if log-probabilities are measured.
    pub logprobs: Vec<TokenLogprob>,
}

impl Chunk {
    /// Adds a piece.
    pub fn push(&mut self, piece: &Piece<'_>) {
        self.text.push_str(piece.text);
        self.content.push_str(piece.content);
        self.reasoning.push_str(piece.reasoning);
        self.tool_calls.extend_from_slice(piece.tool_calls);
        self.tokens.extend_from_slice(piece.tokens);
        if let (Some(token), Some(logprob)) =
            (piece.token.filter(|t| piece.tokens.first() == Some(t)), piece.logprob)
        {
            self.logprobs.push(TokenLogprob { chosen: Logprob { token, logprob }, top: piece.top.into() });
        }
    }

    /// Whether the chunk is empty.
    pub fn is_empty(&self) -> bool {
        *self == Chunk::default()
    }
}

/// A response in one piece: `finish`, with log-probabilities if they were asked for.
pub fn completion(
    id: &CompletionId,
    finish: &Finish,
    logprobs: Option<&[TokenLogprob]>,
    tokenizer: &Tokenizer<'_>,
) -> String {
    let mut out = head(id, "chat.completion");
    let ChatMessage { content, reasoning, tool_calls, .. } = &finish.message;
    out.push_str(",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":");
    if content.is_empty() && !tool_calls.is_empty() {
        out.push_str("null");
    } else {
        json::string(content, &mut out);
    }
    out.push_str(",\"refusal\":null");
    if let Some(reasoning) = reasoning {
        out.push_str(",\"reasoning\":");
        json::string(reasoning, &mut out);
    }
    if !tool_calls.is_empty() {
        out.push_str(",\"tool_calls\":");
        calls(&id.id, tool_calls, None, &mut out);
    }
    out.push_str("},\"logprobs\":");
    measured(logprobs, tokenizer, &mut out);
    out.push_str(",\"finish_reason\":");
    json::string(finish_reason(finish), &mut out);
    out.push_str("}],\"usage\":");
    usage(&finish.usage, &mut out);
    out.push('}');
    out
}

/// Writes a streamed response, chunk by chunk.
#[derive(Clone, Debug)]
pub struct ChunkWriter {
    id: CompletionId,
    include_usage: bool,
    logprobs: bool,
    begun: bool,
    calls: usize,
}

impl ChunkWriter {
    /// A writer for the response to `request`.
    pub fn new(id: CompletionId, request: &ChatCompletionRequest) -> ChunkWriter {
        let ChatCompletionRequest { include_usage, options, .. } = request;
        let (include_usage, logprobs) = (*include_usage, options.logprobs.is_some());
        ChunkWriter { id, include_usage, logprobs, begun: false, calls: 0 }
    }

    /// The next chunk; `None` if it would be empty.
    pub fn chunk(&mut self, chunk: &Chunk, tokenizer: &Tokenizer<'_>) -> Option<String> {
        let mut delta = String::new();
        if !self.begun {
            delta.push_str("\"role\":\"assistant\",");
        }
        if !self.begun || !chunk.content.is_empty() {
            delta.push_str("\"content\":");
            json::string(&chunk.content, &mut delta);
            delta.push(',');
        }
        self.begun = true;
        if !chunk.reasoning.is_empty() {
            delta.push_str("\"reasoning\":");
            json::string(&chunk.reasoning, &mut delta);
            delta.push(',');
        }
        if !chunk.tool_calls.is_empty() {
            delta.push_str("\"tool_calls\":");
            calls(&self.id.id, &chunk.tool_calls, Some(self.calls), &mut delta);
            delta.push(',');
            self.calls += chunk.tool_calls.len();
        }
        delta.pop();
        let logprobs =
            Some(chunk.logprobs.as_slice()).filter(|logprobs| self.logprobs && !logprobs.is_empty());
        if delta.is_empty() && logprobs.is_none() {
            return None;
        }
        let mut out = head(&self.id, "chat.completion.chunk");
        out.extend([",\"choices\":[{\"index\":0,\"delta\":{", &delta, "},\"logprobs\":"]);
        measured(logprobs, tokenizer, &mut out);
        out.push_str(",\"finish_reason\":null}]");
        self.close(&mut out);
        Some(out)
    }

    /// The last chunks.
    pub fn finish(&self, finish: &Finish) -> Vec<String> {
        let mut chunks = Vec::new();
        let mut out = head(&self.id, "chat.completion.chunk");
        out.push_str(",\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":");
        json::string(finish_reason(finish), &mut out);
        out.push_str("}]");
        self.close(&mut out);
        chunks.push(out);
        if self.include_usage {
            let mut out = head(&self.id, "chat.completion.chunk");
            out.push_str(",\"choices\":[],\"usage\":");
            usage(&finish.usage, &mut out);
            out.push('}');
            chunks.push(out);
        }
        chunks
    }

    fn close(&self, out: &mut String) {
        out.push_str(if self.include_usage { ",\"usage\":null}" } else { "}" });
    }
}

fn head(id: &CompletionId, object: &str) -> String {
    let mut out = String::from("{\"id\":");
    json::string(&format!("chatcmpl-{}", id.id), &mut out);
    let _ = write!(out, ",\"created\":{},\"model\":", id.created); // writing to a String cannot fail
    json::string(&id.model, &mut out);
    out.extend([",\"object\":\"", object, "\""]);
    out
}

/// Writes calls; `before` counts those in earlier chunks, and is `None` in a whole response, where they have
/// no index.
fn calls(id: &str, calls: &[FunctionCall], before: Option<usize>, out: &mut String) {
    let mut separator = "[{";
    for (i, call) in calls.iter().enumerate() {
        out.push_str(separator);
        separator = ",{";
        let number = before.unwrap_or(0) + i;
        if before.is_some() {
            let _ = write!(out, "\"index\":{number},"); // writing to a String cannot fail
        }
        out.push_str("\"id\":");
        json::string(&format!("call_{id}_{number}"), out);
        out.push_str(",\"type\":\"function\",\"function\":{\"name\":");
        json::string(&call.name, out);
        out.push_str(",\"arguments\":");
        json::string(&call.arguments, out);
        out.push_str("}}");
    }
    out.push(']');
}

const fn finish_reason(finish: &Finish) -> &'static str {
    match finish.reason {
        _ if !finish.message.tool_calls.is_empty() => "tool_calls",
        Reason::Length | Reason::ContextFull => "length",
        Reason::Stop | Reason::StopString | Reason::Cancelled => "stop",
    }
}

fn usage(usage: &Usage, out: &mut String) {
    let Usage { prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, .. } = *usage;
    let total = prompt_tokens + completion_tokens;
    let _ = write!(
        out,
        "{{\"prompt_tokens\":{prompt_tokens},\"completion_tokens\":{completion_tokens},\"total_tokens\":{total},\
         \"prompt_tokens_details\":{{\"cached_tokens\":{cached_tokens}}},\
         \"completion_tokens_details\":{{\"reasoning_tokens\":{reasoning_tokens}}}}}"
    ); // writing to a String cannot fail
}

fn measured(logprobs: Option<&[TokenLogprob]>, tokenizer: &Tokenizer<'_>, out: &mut String) {
    let Some(logprobs) = logprobs else { return out.push_str("null") };
    out.push_str("{\"content\":[");
    for (i, logprob) in logprobs.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        token(&logprob.chosen, tokenizer, out);
        out.push_str(",\"top_logprobs\":[");
        for (i, top) in logprob.top.iter().enumerate() {
            if i > 0 {
                out.push(',');
            }
            token(top, tokenizer, out);
            out.push('}');
        }
        out.push_str("]}");
    }
    out.push_str("],\"refusal\":null}");
}

/// Writes a token's text, log-probability and bytes as an object without its closing brace.
fn token(logprob: &Logprob, tokenizer: &Tokenizer<'_>, out: &mut String) {
    let bytes: Vec<u8> = tokenizer.token_bytes(logprob.token).into_iter().flatten().collect();
    out.push_str("{\"token\":");
    json::string(&String::from_utf8_lossy(&bytes), out);
    out.push_str(",\"logprob\":");
    json::number(f64::from(logprob.logprob), out);
    out.push_str(",\"bytes\":[");
    for (i, byte) in bytes.iter().enumerate() {
        let _ = write!(out, "{}{byte}", if i > 0 { "," } else { "" }); // writing to a String cannot fail
    }
    out.push(']');
}
