//! Ollama's interface. Answers are streamed unless `stream` is false, an object on each line.

use super::dialect::{
    Action, Begun, Dialect, EmbeddingRequest, EmbeddingWriter, Event, Input, ModelInfo, PromptInput,
    ReplyRequest, ReplyWriter, Route,
};
use super::openai::{CHAT, extras};
use crate::error::{ApiError, Fields};
use serde_json::{Value, json};
use shohin::core::chat::fields::{Field, Object, Reading, refused};
use shohin::core::chat::openai::request::{max_tokens, stop, tools};
use shohin::core::chat::{
    ChatMessage, Chunk, Finish, FunctionCall, ResponseFormat, Role, ToolResults, TurnOptions,
};
use shohin::core::generate::Reason;
use shohin::core::{Result, json};
use std::time::{Instant, SystemTime};

/// Where a request has the options of a reply.
const PLACES: Fields = Fields { stop: "options.stop", schema: "format", ..CHAT };

/// The dialect of the paths below `/api`.
pub(super) struct Ollama;

impl Dialect for Ollama {
    fn routes(&self) -> &'static [Route] {
        &[
            Route { path: "/api/chat", action: Action::Reply(chat) },
            Route { path: "/api/generate", action: Action::Reply(generate) },
            Route { path: "/api/embed", action: Action::Embed(embed) },
            Route { path: "/api/embeddings", action: Action::Embed(embedding) },
            Route { path: "/api/tags", action: Action::Models(|models| json!({ "models": list(models) })) },
            Route { path: "/api/ps", action: Action::Models(|models| json!({ "models": list(models) })) },
            Route { path: "/api/show", action: Action::Show(asked_model, show) },
            Route {
                path: "/api/version",
                action: Action::Models(|_| json!({ "version": env!("CARGO_PKG_VERSION") })),
            },
        ]
    }

    fn error(&self, error: &ApiError) -> Value {
        json!({ "error": error.message() })
    }
}

/// Fields of requests for replies.
const FIELDS: &[&str] = &["model", "format", "options", "stream", "think", "logprobs", "top_logprobs"];

/// Taken and left aside: the model stays loaded.
const KEPT: &[&str] = &["keep_alive", "truncate", "shift"];

/// What a request for a reply says beside its prompt.
struct Read {
    options: TurnOptions,
    fields: Fields,
    seed: Option<u64>,
    model: Option<String>,
    stream: bool,
}

fn read(request: &Object<'_>) -> Result<Read> {
    let (mut options, mut fields, mut seed) = (TurnOptions::default(), PLACES, None);
    if let Some(given) = request.get("options") {
        const SAMPLING: &[&str] =
            &["temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "stop", "num_predict"];
        let given = given.object(&[SAMPLING, extras::EXTRAS].concat(), "must be an object")?;
        seed = given.sampling(&mut options.sampler)?;
        extras::read(&given, &mut options, &mut fields)?;
        options.stop_strings = given.read_as("stop", stop)?;
        // Of both, -1 is without a limit and -2 as many as fit.
        options.max_tokens = match given.get("num_predict").map(|field| field.value.as_number()) {
            Some(Some(n)) if n < 0.0 => None,
            _ => max_tokens(&given, "num_predict")?,
        };
    }
    if let Some(format) = request.get("format") {
        options.response_format = match format.value.as_string().as_deref() {
            Some("") => ResponseFormat::Text,
            Some("json") => ResponseFormat::JsonObject,
            None if format.value.is_object() => ResponseFormat::JsonSchema(format.value.text().into()),
            _ => return Err(format.unsupported("json or a JSON Schema")),
        };
    }
    options.thinking = request.read_as("think", extras::think)?;
    if let Some(logprobs) = request.get("logprobs").filter(|field| !field.asks_nothing()) {
        return Err(logprobs.unsupported("a request to /v1/chat/completions"));
    }
    let stream = request.get("stream").is_none() || request.boolean("stream")?;
    Ok(Read { options, fields, seed, model: request.string("model")?, stream })
}

fn request(prompt: PromptInput, read: Read, is_chat: bool, loads: bool) -> ReplyRequest {
    let Read { mut options, fields, seed, model, stream } = read;
    if loads {
        options.max_tokens = Some(0);
    }
    ReplyRequest {
        prompts: Vec::from([prompt]),
        n: 1,
        options,
        score: None,
        seed,
        model,
        stream,
        lines: true,
        fields,
        writer: Box::new(move |Begun { id, .. }| {
            let since = Instant::now();
            Box::new(Writer { model: id.model, is_chat, loads, since, all: Chunk::default() })
        }),
    }
}

fn chat(text: &str, reading: &Reading) -> Result<ReplyRequest> {
    let given = Object::request_with(text, &[FIELDS, KEPT, &["messages", "tools"]].concat(), Some(reading))?;
    let mut read = self::read(&given)?;
    read.options.tools = given.read_as("tools", tools)?;
    let (mut messages, mut results) = (Vec::new(), ToolResults::default());
    if let Some(field) = given.get("messages") {
        field.each("must be an array", &mut |one| message(&one, &mut messages, &mut results))?;
    }
    results.sort(&mut messages);
    // Clients load a model by a request without messages.
    let loads = messages.is_empty();
    let prompt = if loads { nothing() } else { PromptInput::Messages(messages) };
    Ok(request(prompt, read, true, loads))
}

/// A prompt of which nothing is computed that matters.
fn nothing() -> PromptInput {
    PromptInput::Text(Input::Text(" ".into()))
}

fn message(field: &Field<'_>, messages: &mut Vec<ChatMessage>, results: &mut ToolResults) -> Result<()> {
    let known = &["role", "content", "thinking", "tool_calls", "tool_name", "name", "tool_call_id", "images"];
    let given = field.object(known, "must be an object with a role")?;
    given.refuse(&[("images", "a message without images: the model reads text only")])?;
    let role = match given.string("role")?.as_deref() {
        Some("system") => Role::System,
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("tool") => Role::Tool,
        _ => return Err(field.refused_within("role", "must be system, user, assistant or tool")),
    };
    let mut message = ChatMessage::new(role, given.string("content")?.unwrap_or_default());
    message.reasoning = given.string("thinking")?.filter(|text| !text.is_empty());
    let mut ids = Vec::new();
    if let Some(calls) = given.get("tool_calls") {
        calls.each("must be an array of calls", &mut |call| {
            let of_call = call.object(&["function", "id", "type"], "must be an object")?;
            let function = of_call.get("function").ok_or_else(|| call.refused("has no function"))?;
            let given = function.object(&["name", "arguments", "index"], "must be an object")?;
            let (name, arguments) = (given.string("name")?, given.get("arguments"));
            let (Some(name), Some(arguments)) = (name, arguments) else {
                return Err(function.refused("must have a name and arguments"));
            };
            let mut text = String::new();
            json::reformat(arguments.value.text(), &mut text)?;
            message.tool_calls.push(FunctionCall { name, arguments: text });
            ids.push(of_call.string("id")?);
            Ok(())
        })?;
        results.calls(messages, ids);
    }
    if role == Role::Tool {
        results.result(messages, given.string("tool_call_id")?, &field.place, "tool_call_id")?;
    }
    messages.push(message);
    Ok(())
}

fn generate(text: &str, reading: &Reading) -> Result<ReplyRequest> {
    let own = ["prompt", "suffix", "system", "template", "context", "raw", "images"];
    let given = Object::request_with(text, &[FIELDS, KEPT, &own].concat(), Some(reading))?;
    given.refuse(&[
        ("images", "a request without images: the model reads text only"),
        ("template", "a raw prompt instead"),
        ("context", "the earlier messages in a request to /api/chat"),
    ])?;
    let mut read = self::read(&given)?;
    read.fields.schema = "format";
    let prompt = given.string("prompt")?.unwrap_or_default();
    let loads = prompt.is_empty();
    let prompt = if loads {
        nothing()
    } else if let Some(suffix) = given.string("suffix")?.filter(|suffix| !suffix.is_empty()) {
        PromptInput::Between(prompt, suffix)
    } else if given.boolean("raw")? {
        PromptInput::Text(Input::Text(prompt))
    } else {
        let system = given.string("system")?.map(|text| ChatMessage::new(Role::System, text));
        PromptInput::Messages(system.into_iter().chain([ChatMessage::new(Role::User, prompt)]).collect())
    };
    Ok(request(prompt, read, false, loads))
}

/// Writes a reply. Times are those of the answer.
struct Writer {
    model: String,
    is_chat: bool,
    loads: bool,
    since: Instant,
    /// Of a whole answer.
    all: Chunk,
}

impl Writer {
    fn line(&self, chunk: &Chunk) -> Value {
        let created = humantime::format_rfc3339_nanos(SystemTime::now()).to_string();
        let mut line = json!({ "model": self.model, "created_at": created, "done": false });
        if !self.is_chat {
            line["response"] = json!(chunk.content);
            if !chunk.reasoning.is_empty() {
                line["thinking"] = json!(chunk.reasoning);
            }
            return line;
        }
        line["message"] = json!({ "role": "assistant", "content": chunk.content });
        if !chunk.reasoning.is_empty() {
            line["message"]["thinking"] = json!(chunk.reasoning);
        }
        if !chunk.tool_calls.is_empty() {
            let call = |call: &FunctionCall| {
                let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
                json!({ "function": { "name": call.name, "arguments": arguments } })
            };
            line["message"]["tool_calls"] = chunk.tool_calls.iter().map(call).collect();
        }
        line
    }

    fn last(&self, mut line: Value, finish: &Finish) -> String {
        let reason = match finish.reason {
            _ if self.loads => "load",
            Reason::Length | Reason::ContextFull => "length",
            Reason::Stop | Reason::StopString | Reason::Cancelled => "stop",
        };
        let nanoseconds = self.since.elapsed().as_nanos() as u64;
        let usage = &finish.usage;
        for (name, value) in [
            ("done", json!(true)),
            ("done_reason", json!(reason)),
            ("total_duration", json!(nanoseconds)),
            ("load_duration", json!(0)),
            ("prompt_eval_count", json!(usage.prompt_tokens)),
            ("prompt_eval_duration", json!(0)),
            ("eval_count", json!(usage.completion_tokens)),
            ("eval_duration", json!(nanoseconds)),
        ] {
            line[name] = value;
        }
        line.to_string()
    }
}

impl ReplyWriter for Writer {
    fn chunk(&mut self, _: usize, chunk: &Chunk) -> Vec<Event> {
        let said = !chunk.content.is_empty() || !chunk.reasoning.is_empty() || !chunk.tool_calls.is_empty();
        if said { vec![Event::plain(self.line(chunk).to_string())] } else { Vec::new() }
    }

    fn finish(&mut self, _: usize, finish: &Finish) -> Vec<Event> {
        vec![Event::plain(self.last(self.line(&Chunk::default()), finish))]
    }

    fn error(&mut self, error: &ApiError) -> Event {
        Event::plain(Ollama.error(error).to_string())
    }

    fn collect(&mut self, _: usize, chunk: Chunk) {
        self.all.content.push_str(&chunk.content);
        self.all.reasoning.push_str(&chunk.reasoning);
        self.all.tool_calls.extend(chunk.tool_calls);
    }

    fn whole(&mut self, replies: &[Finish]) -> String {
        let line = self.line(&self.all);
        replies.first().map_or_else(String::new, |finish| self.last(line, finish))
    }
}

/// Vectors as lists of numbers.
struct Vectors {
    vectors: Vec<Value>,
    /// Whether the answer has one.
    single: bool,
    since: Instant,
}

impl EmbeddingWriter for Vectors {
    fn vector(&mut self, vector: &[f32]) {
        self.vectors.push(json!(vector));
    }

    fn finish(mut self: Box<Self>, model: &str, tokens: usize) -> String {
        if self.single {
            return json!({ "embedding": self.vectors.pop() }).to_string();
        }
        let nanoseconds = self.since.elapsed().as_nanos() as u64;
        json!({
            "model": model, "embeddings": self.vectors, "total_duration": nanoseconds, "load_duration": 0,
            "prompt_eval_count": tokens,
        })
        .to_string()
    }
}

fn embed(text: &str, reading: &Reading) -> Result<EmbeddingRequest> {
    let known = &["model", "input", "options", "keep_alive", "truncate", "dimensions"];
    let given = Object::request_with(text, known, Some(reading))?;
    given.refuse(&[("dimensions", "vectors of the model's size")])?;
    let field = given.get("input").ok_or_else(|| refused("input", "must be a text or an array of texts"))?;
    let input = super::openai::inputs(&field)?;
    let writer = Box::new(Vectors { vectors: Vec::new(), single: false, since: Instant::now() });
    Ok(EmbeddingRequest { input, model: given.string("model")?, writer })
}

/// As clients asked for one vector before.
fn embedding(text: &str, reading: &Reading) -> Result<EmbeddingRequest> {
    let given = Object::request_with(text, &["model", "prompt", "options", "keep_alive"], Some(reading))?;
    let prompt = given.string("prompt")?.ok_or_else(|| refused("prompt", "must be a text"))?;
    let writer = Box::new(Vectors { vectors: Vec::new(), single: true, since: Instant::now() });
    Ok(EmbeddingRequest { input: vec![Input::Text(prompt)], model: given.string("model")?, writer })
}

/// The name in a request to describe a model.
fn asked_model(text: &str, reading: &Reading) -> Result<Option<String>> {
    let given =
        Object::request_with(text, &["model", "name", "verbose", "system", "options"], Some(reading))?;
    Ok(given.string("model")?.or(given.string("name")?))
}

fn details(info: &ModelInfo) -> Value {
    let Some(model) = &info.model else { return json!({ "format": "gguf" }) };
    let family = model.config().architecture.name;
    let format = model.format().map_or("mixed", |format| format.name());
    json!({
        "parent_model": info.parent.clone().unwrap_or_default(), "format": "gguf", "family": family, "families": [family],
        "parameter_size": parameters(model.capabilities().num_parameters as f64), "quantization_level": format,
    })
}

/// A number of parameters as people say it.
fn parameters(count: f64) -> String {
    match count {
        1e9.. => format!("{:.1}B", count / 1e9),
        1e6.. => format!("{:.1}M", count / 1e6),
        _ => format!("{:.0}K", count / 1e3),
    }
}

fn list(models: &[ModelInfo]) -> Vec<Value> {
    let one = |info: &ModelInfo| {
        let created = humantime::format_rfc3339_seconds(info.created).to_string();
        let size = info.model.as_ref().map_or(0, |model| model.weight_bytes());
        json!({
            "name": info.name, "model": info.name, "modified_at": created, "size": size, "digest": "", "details": details(info),
            // Of models in memory.
            "size_vram": 0, "context_length": info.context,
        })
    };
    models.iter().map(one).collect()
}

fn show(info: &ModelInfo) -> Value {
    // It is loaded to be shown.
    let Some(model) = &info.model else { return json!({}) };
    let config = model.config();
    let name = config.architecture.name;
    let mut capabilities = vec!["completion"];
    capabilities.extend(model.template().style.has_tools().then_some("tools"));
    capabilities.extend(model.can_think().then_some("thinking"));
    capabilities.extend(model.pooling().is_ok().then_some("embedding"));
    let created = humantime::format_rfc3339_seconds(info.created).to_string();
    json!({
        "modelfile": "", "parameters": "", "template": "", "details": details(info), "modified_at": created,
        "model_info": {
            "general.architecture": name, "general.parameter_count": model.capabilities().num_parameters,
            format!("{name}.context_length"): config.max_context_length,
            format!("{name}.embedding_length"): config.hidden_size,
            format!("{name}.block_count"): config.num_layers,
        },
        "capabilities": capabilities,
    })
}
