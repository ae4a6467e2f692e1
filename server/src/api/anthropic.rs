//! Anthropic's Messages.
//!
//! `cache_control` is taken and left aside: whatever a prompt has in common with an earlier one is known. Results of tools are matched by their
//! ids. If the last message is the assistant's, the reply continues it.

use super::dialect::{Action, Begun, Dialect, Event, PromptInput, ReplyRequest, ReplyWriter, Route};
use super::openai::CHAT;
use super::tools::tool_text;
use crate::error::{ApiError, Fields};
use axum::http::StatusCode;
use serde_json::{Value, json};
use shohin::core::chat::fields::{Field, Object, Reading, refused};
use shohin::core::chat::openai::CompletionId;
use shohin::core::chat::openai::request::{has_tools, text_parts};
use shohin::core::chat::{
    ChatMessage, Chunk, Finish, FunctionCall, ResponseFormat, Role, Thinking, ToolChoice, ToolResults,
    TurnOptions, Usage,
};
use shohin::core::generate::Reason;
use shohin::core::{Result, json};
use std::fmt::Write;

/// Where a request has the options of a reply.
const PLACES: Fields = Fields {
    stop: "stop_sequences",
    schema: "output_config.format.schema",
    tool: |_| "input_schema",
    ..CHAT
};

/// The dialect of the paths below `/v1/messages`.
pub(crate) struct Anthropic;

impl Dialect for Anthropic {
    fn routes(&self) -> &'static [Route] {
        &[
            Route {
                path: "/v1/messages",
                action: Action::Reply(|text, reading| Ok(MessagesRequest::parse(text, reading)?.into())),
            },
            Route {
                path: "/v1/messages/count_tokens",
                action: Action::Count(
                    |text, reading| Ok(MessagesRequest::parse_prompt(text, reading)?.into()),
                    |tokens| json!({ "input_tokens": tokens }),
                ),
            },
        ]
    }

    /// Anthropic's types go by the status.
    fn error(&self, error: &ApiError) -> Value {
        let kind = match error.status() {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::GATEWAY_TIMEOUT => "timeout_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            status if status.is_server_error() => "api_error",
            _ => "invalid_request_error",
        };
        let mut answer = json!({ "type": "error", "error": { "type": kind, "message": error.message() } });
        // Anthropic's clients then send whole conversations.
        if error.field().as_deref() == Some("thread") {
            answer["error"]["details"] =
                json!({ "error_code": "thread_unsupported_request", "unsupported": ["thread"] });
        }
        answer
    }
}

/// Fields of a request.
const FIELDS: &[&str] = &[
    "messages",
    "model",
    "system",
    "max_tokens",
    "stream",
    "stop_sequences",
    "temperature",
    "top_p",
    "top_k",
    "tools",
    "tool_choice",
    "thinking",
    "output_config",
    "output_format",
    // Refused, unless they ask for nothing.
    "mcp_servers",
    "container",
    "thread",
    // For a service's own use: taken and left aside.
    "metadata",
    "service_tier",
    "cache_control",
    "context_management",
];

/// Fields of a part that is text.
const TEXT_FIELDS: &[&str] = &["type", "text", "cache_control", "citations"];

/// Fields of a tool.
const TOOL_FIELDS: &[&str] = &[
    "type",
    "name",
    "description",
    "input_schema",
    "strict",
    // Only as without them.
    "defer_loading",
    "allowed_callers",
    // Taken and left aside: calls are sent when they are complete, and no template shows examples.
    "eager_input_streaming",
    "input_examples",
    "cache_control",
];

/// A request for a message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MessagesRequest {
    /// The conversation.
    pub(crate) messages: Vec<ChatMessage>,
    /// How to reply.
    pub(crate) options: TurnOptions,
    /// The model's name, only to be repeated in the answer.
    pub(crate) model: Option<String>,
    /// Whether the answer is streamed in events.
    pub(crate) stream: bool,
}

impl MessagesRequest {
    /// Reads a request for a message.
    ///
    /// # Errors
    /// As [`ChatCompletionRequest::parse`](shohin::core::chat::openai::ChatCompletionRequest::parse); a request without `max_tokens` is
    /// refused.
    pub(crate) fn parse(text: &str, reading: &Reading) -> Result<MessagesRequest> {
        let request = Self::parse_prompt(text, reading)?;
        if request.options.max_tokens.is_none() {
            return Err(refused("max_tokens", "must be a number of tokens"));
        }
        Ok(request)
    }

    /// Reads a request for the number of tokens of a prompt: one for a message, in which `max_tokens` may be left out.
    ///
    /// # Errors
    /// As [`MessagesRequest::parse`].
    pub(crate) fn parse_prompt(text: &str, reading: &Reading) -> Result<MessagesRequest> {
        let request = Object::request_with(text, FIELDS, Some(reading))?;
        request.refuse(&[
            ("mcp_servers", "their tools in tools, called by the client"),
            ("container", "a request without it"),
            ("thread", "whole conversations"),
        ])?;
        let mut options = TurnOptions::default();
        // It has no field for a seed.
        request.sampling(&mut options.sampler)?;
        if let Some(top_k) = request.count("top_k")? {
            options.sampler.top_k = usize::try_from(top_k).unwrap_or(usize::MAX);
        }
        options.max_tokens =
            request.count("max_tokens")?.map(|max| usize::try_from(max).unwrap_or(usize::MAX));
        if let Some(stops) = request.get("stop_sequences") {
            stops.each("must be an array of strings", &mut |stop| {
                options.stop_strings.push(stop.string()?);
                Ok(())
            })?;
        }
        options.tools = request.read_as("tools", tools)?;
        if let Some(choice) = request.get("tool_choice") {
            choose_tools(&choice, &mut options)?;
        }
        options.thinking = request.read_as("thinking", thinking)?;
        options.response_format = match request.get("output_format") {
            Some(format) => output_format(&format)?,
            None => request.read_as("output_config", output_config)?,
        };
        let mut messages = Vec::new();
        if let Some(system) = request.get("system") {
            messages.push(ChatMessage::new(Role::System, text_parts(&system, &["text"], TEXT_FIELDS)?));
        }
        let field = request.get("messages").ok_or_else(|| refused("messages", "must be an array"))?;
        let mut results = ToolResults::default();
        if field.each("must be an array", &mut |field| message(&field, &mut messages, &mut results))? == 0 {
            return Err(field.refused("must have at least one message"));
        }
        results.sort(&mut messages);
        options.continue_final_message = messages.last().is_some_and(|last| last.role == Role::Assistant);
        let (model, stream) = (request.string("model")?, request.boolean("stream")?);
        Ok(MessagesRequest { messages, options, model, stream })
    }
}

impl From<MessagesRequest> for ReplyRequest {
    fn from(request: MessagesRequest) -> ReplyRequest {
        let MessagesRequest { messages, options, model, stream } = request;
        let stops = options.stop_strings.clone();
        ReplyRequest {
            prompts: Vec::from([PromptInput::Messages(messages)]),
            n: 1,
            options,
            score: None,
            seed: None,
            model,
            stream,
            lines: false,
            fields: PLACES,
            writer: Box::new(move |Begun { id, prompt, .. }| Box::new(MessageWriter::new(id, prompt, stops))),
        }
    }
}

/// Reads a message; one of the user is several if it has results of tools.
fn message(field: &Field<'_>, messages: &mut Vec<ChatMessage>, results: &mut ToolResults) -> Result<()> {
    let given = field.object(&["role", "content"], "must be an object with a role")?;
    let role = match given.string("role")?.as_deref() {
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("system") => Role::System,
        Some(_) | None => {
            return Err(field.refused_within("role", "must be user, assistant or system"));
        }
    };
    let content = given.get("content").ok_or_else(|| field.refused("has no content"))?;
    if let Some(text) = content.value.as_string() {
        messages.push(ChatMessage::new(role, text));
        return Ok(());
    }
    let mut message = ChatMessage::new(role, "");
    let (mut has_text, mut calls) = (false, Vec::new());
    let parts = content.each("must be a string or an array of blocks", &mut |block| {
        let kind = block.value.get("type").and_then(json::Value::as_string);
        match (kind.as_deref(), role) {
            (Some("text"), _) => {
                let text = block.object(TEXT_FIELDS, "")?.string("text")?;
                message.content.push_str(&text.ok_or_else(|| block.refused("has no text"))?);
                has_text = true;
            }
            (Some("tool_result"), Role::User) => {
                let known = &["type", "tool_use_id", "content", "is_error", "cache_control"];
                let result = block.object(known, "")?;
                let text = result.read_as("content", result_text)?;
                if std::mem::take(&mut has_text) {
                    let before = std::mem::replace(&mut message, ChatMessage::new(role, ""));
                    messages.push(before);
                }
                results.result(messages, result.string("tool_use_id")?, &block.place, "tool_use_id")?;
                messages.push(ChatMessage::new(Role::Tool, text));
            }
            (Some("tool_use"), Role::Assistant) => {
                let call = block.object(&["type", "id", "name", "input", "cache_control", "caller"], "")?;
                let input = call.get("input").filter(|input| input.value.is_object());
                let read = call.string("name")?.zip(input);
                let (name, input) = read.ok_or_else(|| block.refused("must have a name and an input"))?;
                let mut arguments = String::new();
                json::reformat(input.value.text(), &mut arguments)?;
                calls.push(call.string("id")?);
                message.tool_calls.push(FunctionCall { name, arguments });
            }
            (Some("thinking"), Role::Assistant) => {
                let thinking = block.object(&["type", "thinking", "signature"], "")?.string("thinking")?;
                message.reasoning.get_or_insert_default().push_str(&thinking.unwrap_or_default());
            }
            // Nothing in them can be read, or they are of tools of a service.
            (Some("redacted_thinking" | "server_tool_use"), Role::Assistant) if block.leave() => {}
            (Some(kind), Role::Assistant) if kind.ends_with("_tool_result") && block.leave() => {}
            (Some(_), _) => {
                return Err(block.unsupported("blocks of type text, tool_use, tool_result or thinking"));
            }
            (None, _) => return Err(block.refused("has no type")),
        }
        Ok(())
    })?;
    if parts == 0 {
        return Err(content.refused("must have at least one block"));
    }
    results.calls(messages, calls);
    if role == Role::Assistant || has_text {
        messages.push(message);
    }
    Ok(())
}

/// The text of a result: parts, and the names of tools that were found.
fn result_text(content: &Field<'_>) -> Result<String> {
    text_parts(content, &["text", "tool_reference"], &[TEXT_FIELDS, &["tool_name"]].concat())
}

fn tools(field: &Field<'_>) -> Result<Vec<String>> {
    let (mut tools, mut others) = (Vec::new(), Vec::new());
    field.each("must be an array of tools", &mut |tool| {
        let kind = tool.value.get("type").filter(|kind| !kind.is_null());
        if kind.is_some_and(|kind| kind.as_string().as_deref() != Some("custom")) {
            others.push(tool);
            return Ok(());
        }
        let given = tool.object(TOOL_FIELDS, "must be an object with a name and an input_schema")?;
        if !given.get("defer_loading").is_some_and(|field| field.asks_nothing() || field.leave()) {
            given.only(&[("defer_loading", "false")])?;
        }
        if let Some(callers) = given.get("allowed_callers") {
            callers.each("must be an array of strings", &mut |caller| match caller.string()?.as_str() {
                "direct" => Ok(()),
                _ if caller.leave() => Ok(()),
                _ => Err(caller.unsupported("direct")),
            })?;
        }
        given.boolean("eager_input_streaming")?;
        if let Some(examples) = given.get("input_examples") {
            examples.each("must be an array of inputs", &mut |_| Ok(()))?;
        }
        let name = given.get("name").ok_or_else(|| tool.refused("has no name"))?;
        let schema = given.get("input_schema").ok_or_else(|| tool.refused("has no input_schema"))?;
        let [description, strict] = ["description", "strict"].map(|name| given.get(name));
        tools.push(tool_text(&name, description.as_ref(), Some(&schema), strict.as_ref())?);
        Ok(())
    })?;
    match others.iter().find(|tool| tools.is_empty() || !tool.leave()) {
        Some(tool) => Err(tool.unsupported("tools of type custom")),
        None => Ok(tools),
    }
}

fn choose_tools(choice: &Field<'_>, options: &mut TurnOptions) -> Result<()> {
    let chosen = choice.object(&["type", "name", "disable_parallel_tool_use"], "must be an object")?;
    options.parallel_tool_calls = !chosen.boolean("disable_parallel_tool_use")?;
    options.tool_choice = match chosen.string("type")?.as_deref() {
        Some("auto") => ToolChoice::Auto,
        Some("any") => ToolChoice::Required,
        Some("none") => {
            options.tools.clear();
            ToolChoice::Auto
        }
        Some("tool") => {
            ToolChoice::Function(chosen.string("name")?.ok_or_else(|| choice.refused("names no tool"))?)
        }
        Some(_) | None => {
            return Err(refused("tool_choice.type", "must be auto, any, tool or none"));
        }
    };
    has_tools(choice, options)
}

fn thinking(field: &Field<'_>) -> Result<Thinking> {
    let thinking = field.object(&["type", "budget_tokens", "display"], "must be an object")?;
    match thinking.string("type")?.as_deref() {
        Some("disabled") => Ok(Thinking::Off),
        Some("adaptive") => Ok(Thinking::On),
        Some("enabled") => {
            let budget = thinking.count("budget_tokens")?;
            let budget = budget.ok_or_else(|| refused("thinking.budget_tokens", "must be a number"))?;
            Ok(Thinking::Budget(usize::try_from(budget).unwrap_or(usize::MAX)))
        }
        Some(_) | None => Err(refused("thinking.type", "must be enabled, disabled or adaptive")),
    }
}

/// The form of a reply. How much effort a reply is worth is left aside: a model thinks or does not.
fn output_config(field: &Field<'_>) -> Result<ResponseFormat> {
    field.object(&["effort", "format", "task_budget"], "must be an object")?.read_as("format", output_format)
}

fn output_format(field: &Field<'_>) -> Result<ResponseFormat> {
    let format = field.object(&["type", "schema"], "must be an object")?;
    match (format.string("type")?.as_deref(), format.get("schema")) {
        (Some("json_schema"), Some(schema)) if schema.value.is_object() => {
            Ok(ResponseFormat::JsonSchema(schema.value.text().into()))
        }
        (Some("json_schema"), _) => Err(field.refused_within("schema", "must be a JSON Schema")),
        (Some("text"), _) => Ok(ResponseFormat::Text),
        (Some(_) | None, _) => Err(field.unsupported("a format of type json_schema")),
    }
}

/// What a block of text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Thinking,
    Text,
}

/// Writes an answer, event by event, or as a whole.
#[derive(Clone, Debug)]
pub(crate) struct MessageWriter {
    id: CompletionId,
    /// Texts that end the reply.
    stops: Vec<String>,
    /// What is known of the prompt before the reply.
    prompt: Usage,
    begun: bool,
    /// Complete blocks.
    content: Vec<String>,
    /// The block in progress, and its text so far.
    open: Option<(Kind, String)>,
}

impl ReplyWriter for MessageWriter {
    fn chunk(&mut self, _: usize, chunk: &Chunk) -> Vec<Event> {
        let mut events = Vec::new();
        self.begin(&mut events);
        self.text(Kind::Thinking, &chunk.reasoning, &mut events);
        self.text(Kind::Text, &chunk.content, &mut events);
        for call in &chunk.tool_calls {
            self.call(call, &mut events);
        }
        events
    }

    fn finish(&mut self, _: usize, finish: &Finish) -> Vec<Event> {
        let mut events = Vec::new();
        self.begin(&mut events);
        self.close(&mut events);
        let mut members = String::from("\"delta\":{");
        self.stop(finish, &mut members);
        members.push_str("},\"usage\":");
        usage(&finish.usage, &mut members);
        events.push(event("message_delta", &members));
        events.push(Event::named("message_stop", "{\"type\":\"message_stop\"}".into()));
        events
    }

    fn error(&mut self, error: &ApiError) -> Event {
        Event::named("error", Anthropic.error(error).to_string())
    }

    fn whole(&mut self, replies: &[Finish]) -> String {
        self.close(&mut Vec::new());
        self.message(replies.first())
    }
}

impl MessageWriter {
    /// For a reply that these texts end, of whose prompt `prompt` counts the tokens.
    pub(crate) fn new(id: CompletionId, prompt: Usage, stops: Vec<String>) -> MessageWriter {
        MessageWriter { id, stops, prompt, begun: false, content: Vec::new(), open: None }
    }

    fn begin(&mut self, events: &mut Vec<Event>) {
        if !std::mem::replace(&mut self.begun, true) {
            events.push(event("message_start", &format!("\"message\":{}", self.message(None))));
        }
    }

    fn message(&self, finish: Option<&Finish>) -> String {
        let mut out = String::from("{\"id\":");
        json::string(&format!("msg_{}", self.id.id), &mut out);
        out.push_str(",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
        json::string(&self.id.model, &mut out);
        out.extend([",\"content\":[", &self.content.join(","), "],"]);
        match finish {
            Some(finish) => self.stop(finish, &mut out),
            None => out.push_str("\"stop_reason\":null,\"stop_sequence\":null"),
        }
        out.push_str(",\"usage\":");
        usage(finish.map_or(&self.prompt, |finish| &finish.usage), &mut out);
        out.push('}');
        out
    }

    /// Why the reply ended. Which of several stop sequences it was is not known.
    fn stop(&self, finish: &Finish, out: &mut String) {
        let reason = match finish.reason {
            // Even after calls: what was cut off may be another one.
            Reason::Length => "max_tokens",
            Reason::ContextFull => "model_context_window_exceeded",
            Reason::Stop | Reason::StopString | Reason::Cancelled if self.has_calls() => "tool_use",
            Reason::StopString => "stop_sequence",
            Reason::Stop | Reason::Cancelled => "end_turn",
        };
        out.extend(["\"stop_reason\":\"", reason, "\",\"stop_sequence\":"]);
        match (reason, self.stops.as_slice()) {
            ("stop_sequence", [stop]) => json::string(stop, out),
            _ => out.push_str("null"),
        }
    }

    fn has_calls(&self) -> bool {
        self.content.iter().any(|block| block.starts_with(TOOL_USE))
    }

    fn text(&mut self, kind: Kind, text: &str, events: &mut Vec<Event>) {
        if text.is_empty() {
            return;
        }
        if self.open.as_ref().is_none_or(|(open, _)| *open != kind) {
            self.close(events);
            self.start(&block(kind, ""), events);
            self.open = Some((kind, String::new()));
        }
        let mut delta = match kind {
            Kind::Thinking => String::from("{\"type\":\"thinking_delta\",\"thinking\":"),
            Kind::Text => String::from("{\"type\":\"text_delta\",\"text\":"),
        };
        json::string(text, &mut delta);
        delta.push('}');
        if let Some((_, all)) = &mut self.open {
            all.push_str(text);
        }
        self.delta(&delta, events);
    }

    fn call(&mut self, call: &FunctionCall, events: &mut Vec<Event>) {
        self.close(events);
        let block = |input: &str| {
            let mut out =
                format!("{TOOL_USE}\"id\":\"toolu_{}_{}\",\"name\":", self.id.id, self.content.len());
            json::string(&call.name, &mut out);
            out.extend([",\"input\":", input, "}"]);
            out
        };
        let mut arguments = String::new();
        // A call that has come this far is JSON.
        if json::reformat(&call.arguments, &mut arguments).is_err() {
            arguments = "{}".into();
        }
        let (start, whole) = (block("{}"), block(&arguments));
        self.start(&start, events);
        let mut delta = String::from("{\"type\":\"input_json_delta\",\"partial_json\":");
        json::string(&arguments, &mut delta);
        delta.push('}');
        self.delta(&delta, events);
        self.end(whole, events);
    }

    fn start(&self, block: &str, events: &mut Vec<Event>) {
        let members = format!("\"index\":{},\"content_block\":{block}", self.content.len());
        events.push(event("content_block_start", &members));
    }

    fn delta(&self, delta: &str, events: &mut Vec<Event>) {
        let members = format!("\"index\":{},\"delta\":{delta}", self.content.len());
        events.push(event("content_block_delta", &members));
    }

    /// Ends the block in progress.
    fn close(&mut self, events: &mut Vec<Event>) {
        if let Some((kind, text)) = self.open.take() {
            self.end(block(kind, &text), events);
        }
    }

    fn end(&mut self, block: String, events: &mut Vec<Event>) {
        events.push(event("content_block_stop", &format!("\"index\":{}", self.content.len())));
        self.content.push(block);
    }
}

/// How a block begins that is a call.
const TOOL_USE: &str = "{\"type\":\"tool_use\",";

fn event(name: &'static str, members: &str) -> Event {
    Event::named(name, format!("{{\"type\":\"{name}\",{members}}}"))
}

fn block(kind: Kind, text: &str) -> String {
    let (start, end) = match kind {
        Kind::Thinking => ("{\"type\":\"thinking\",\"thinking\":", ",\"signature\":\"\"}"),
        Kind::Text => ("{\"type\":\"text\",\"text\":", "}"),
    };
    let mut out = String::from(start);
    json::string(text, &mut out);
    out.push_str(end);
    out
}

/// Tokens of the prompt that were known are counted apart.
fn usage(usage: &Usage, out: &mut String) {
    let Usage { prompt_tokens, cached_tokens, completion_tokens, .. } = *usage;
    let computed = prompt_tokens.saturating_sub(cached_tokens);
    let _ = write!(
        out,
        "{{\"input_tokens\":{computed},\"cache_creation_input_tokens\":0,\
         \"cache_read_input_tokens\":{cached_tokens},\"output_tokens\":{completion_tokens}}}"
    ); // a String takes everything
}
