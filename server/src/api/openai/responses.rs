//! Requests and answers of OpenAI's Responses.
//!
//! Nothing is stored: `previous_response_id` and references to items are refused. Tools are functions; others beside them are left
//! aside. `reasoning.effort` of `none`
//! or `minimal` answers at once, any other one reasons without a limit; `truncation` of `auto` leaves out the oldest
//! exchanges.

use super::{CHAT, code, kind};
use crate::api::dialect::{Begun, Event, PromptInput, ReplyRequest, ReplyWriter};
use crate::api::tools::tool_text;
use crate::error::{ApiError, Fields};
use shohin::core::chat::fields::{Field, Object, Reading, refused};
use shohin::core::chat::openai::CompletionId;
use shohin::core::chat::openai::request::{
    choose_tools, effort, leave_tools, max_tokens, parallel_calls, text_parts,
};
use shohin::core::chat::{
    ChatMessage, Chunk, Finish, FunctionCall, OverflowPolicy, ResponseFormat, Role, Thinking, ToolResults,
    TurnOptions, Usage,
};
use shohin::core::generate::Reason;
use shohin::core::{Result, json};
use std::fmt::Write;

/// Where a request has the options of a reply.
const PLACES: Fields = Fields { schema: "text.format.schema", tool: |_| "parameters", ..CHAT };

/// Fields of a request.
const FIELDS: &[&str] = &[
    "input",
    "instructions",
    "model",
    "stream",
    "max_output_tokens",
    "temperature",
    "top_p",
    "tools",
    "tool_choice",
    "text",
    "reasoning",
    "truncation",
    "parallel_tool_calls",
    "include",
    "store",
    "background",
    "previous_response_id",
    "conversation",
    "prompt",
    "metadata",
    // For a service's own use: taken and left aside.
    "stream_options",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "service_tier",
];

/// Fields of a request that an answer repeats, and what it has without them.
const REPEATED: &[(&str, &str)] = &[
    ("instructions", "null"),
    ("max_output_tokens", "null"),
    ("metadata", "{}"),
    ("parallel_tool_calls", "true"),
    ("reasoning", "{\"effort\": null, \"summary\": null}"),
    ("temperature", "null"),
    ("text", "{\"format\": {\"type\": \"text\"}}"),
    ("tool_choice", "\"auto\""),
    ("tools", "[]"),
    ("top_p", "null"),
    ("truncation", "\"disabled\""),
];

/// A request for a response.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ResponsesRequest {
    /// The conversation.
    pub(crate) messages: Vec<ChatMessage>,
    /// How to reply.
    pub(crate) options: TurnOptions,
    /// The model's name, only to be repeated in the answer.
    pub(crate) model: Option<String>,
    /// Whether the answer is streamed in events.
    pub(crate) stream: bool,
    /// Members of an object: what the answer repeats.
    pub(crate) repeated: String,
}

impl ResponsesRequest {
    /// Reads a request.
    ///
    /// # Errors
    /// As [`ChatCompletionRequest::parse`](shohin::core::chat::openai::ChatCompletionRequest::parse).
    pub(crate) fn parse(text: &str, reading: &Reading) -> Result<ResponsesRequest> {
        let request = Object::request_with(text, FIELDS, Some(reading))?;
        if !request.get("store").is_some_and(|store| store.value.as_bool() == Some(true) && store.leave()) {
            request.only(&[("store", "false")])?;
        }
        request.only(&[("background", "false")])?;
        if let Some(include) = request.get("include") {
            include.each("must be an array", &mut |one| match one.leave() {
                true => Ok(()),
                false => Err(one.unsupported("an include without it")),
            })?;
        }
        let stored = "the earlier messages in input, as nothing is stored";
        let prompt = "the prompt's text in instructions and input, as nothing is stored";
        request.refuse(&[("previous_response_id", stored), ("conversation", stored), ("prompt", prompt)])?;
        let mut options = TurnOptions::default();
        // It has no field for a seed.
        request.sampling(&mut options.sampler)?;
        options.max_tokens = max_tokens(&request, "max_output_tokens")?;
        options.tools = request.read_as("tools", tools)?;
        if let Some(choice) = request.get("tool_choice") {
            choose_tools(&choice, &mut options, "name", |chosen| chosen.string("name"))?;
        }
        parallel_calls(&request, &mut options)?;
        options.response_format = request.read_as("text", text_format)?;
        options.thinking = request.read_as("reasoning", reasoning)?;
        if let Some(truncation) = request.get("truncation") {
            options.overflow = match truncation.value.as_string().as_deref() {
                Some("disabled") => OverflowPolicy::Error,
                Some("auto") => OverflowPolicy::trim_for(options.max_tokens),
                _ => return Err(truncation.refused("must be auto or disabled")),
            };
        }
        let mut messages = Vec::new();
        if let Some(instructions) = request.string("instructions")? {
            messages.push(ChatMessage::new(Role::System, instructions));
        }
        input(&request, &mut messages)?;
        if let Some(metadata) = request.get("metadata").filter(|metadata| !metadata.value.is_object()) {
            return Err(metadata.refused("must be an object"));
        }
        let mut repeated = String::new();
        for (name, otherwise) in REPEATED {
            let _ = write!(repeated, ",\"{name}\":"); // a String takes everything
            let field = request.get(name);
            json::reformat(field.as_ref().map_or(otherwise, |field| field.value.text()), &mut repeated)?;
        }
        let (model, stream) = (request.string("model")?, request.boolean("stream")?);
        Ok(ResponsesRequest { messages, options, model, stream, repeated })
    }
}

impl From<ResponsesRequest> for ReplyRequest {
    fn from(request: ResponsesRequest) -> ReplyRequest {
        let ResponsesRequest { messages, options, model, stream, repeated } = request;
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
            writer: Box::new(move |Begun { id, .. }| Box::new(ResponseWriter::new(id, repeated))),
        }
    }
}

fn input(request: &Object<'_>, messages: &mut Vec<ChatMessage>) -> Result<()> {
    let problem = "must be a text, or an array of items";
    let input = request.get("input").ok_or_else(|| refused("input", problem))?;
    if let Some(text) = input.value.as_string() {
        messages.push(ChatMessage::new(Role::User, text));
        return Ok(());
    }
    let (mut thoughts, mut results) = (None, ToolResults::default());
    if input.each(problem, &mut |field| item(&field, messages, &mut thoughts, &mut results))? == 0 {
        return Err(input.refused("must have at least one item"));
    }
    results.sort(messages);
    Ok(())
}

/// Reads an item. `thoughts` are those before a message of the assistant.
fn item(
    field: &Field<'_>,
    messages: &mut Vec<ChatMessage>,
    thoughts: &mut Option<String>,
    results: &mut ToolResults,
) -> Result<()> {
    let kind = field.value.get("type").and_then(json::Value::as_string);
    match kind.as_deref() {
        None | Some("message") => {
            let given =
                field.object(&["type", "role", "content", "id", "status", "phase"], "must be an item")?;
            let role = match given.string("role")?.as_deref() {
                Some("system" | "developer") => Role::System,
                Some("user") => Role::User,
                Some("assistant") => Role::Assistant,
                Some(_) | None => {
                    return Err(field.refused_within("role", "must be system, developer, user or assistant"));
                }
            };
            let content = given.get("content").ok_or_else(|| field.refused("has no content"))?;
            let known = &["type", "text", "refusal", "annotations", "logprobs", "parsed"];
            let text = text_parts(&content, &["input_text", "output_text", "text", "refusal"], known)?;
            let mut message = ChatMessage::new(role, text);
            if role == Role::Assistant {
                message.reasoning = thoughts.take();
            }
            messages.push(message);
        }
        Some("function_call" | "custom_tool_call") => {
            let known =
                &["type", "id", "call_id", "name", "arguments", "input", "status", "parsed_arguments"];
            let given = field.object(known, "")?;
            // That of a tool that is no function has a text.
            let text = |input: String| serde_json::json!({ "input": input }).to_string();
            let arguments = given.string("arguments")?.or(given.string("input")?.map(text));
            let read = given.string("name")?.zip(arguments);
            let (name, arguments) = read.ok_or_else(|| field.refused("must have a name and arguments"))?;
            let call = FunctionCall { name, arguments };
            results.calls(messages, [given.string("call_id")?]);
            match messages.last_mut().filter(|last| last.role == Role::Assistant && thoughts.is_none()) {
                Some(last) => last.tool_calls.push(call),
                None => messages.push(ChatMessage {
                    reasoning: thoughts.take(),
                    tool_calls: Vec::from([call]),
                    ..ChatMessage::new(Role::Assistant, "")
                }),
            }
        }
        Some("function_call_output" | "custom_tool_call_output") => {
            let given = field.object(&["type", "id", "call_id", "output", "status"], "")?;
            let output = given.get("output").ok_or_else(|| field.refused("has no output"))?;
            let text = text_parts(&output, &["input_text", "output_text", "text"], &["type", "text"])?;
            results.result(messages, given.string("call_id")?, &field.place, "call_id")?;
            messages.push(ChatMessage::new(Role::Tool, text));
        }
        Some("reasoning") => {
            let known = &["type", "id", "summary", "content", "encrypted_content", "status"];
            let kinds = &["reasoning_text"];
            let text = field
                .object(known, "")?
                .read_as("content", |content| text_parts(content, kinds, &["type", "text"]))?;
            *thoughts = Some(text).filter(|text| !text.is_empty());
        }
        Some("item_reference") => {
            let expected = "the item itself, as nothing is stored: set store to false in the client";
            return Err(field.unsupported(expected));
        }
        Some(_) => {
            return Err(
                field.unsupported("items of type message, function_call, function_call_output or reasoning")
            );
        }
    }
    Ok(())
}

fn tools(field: &Field<'_>) -> Result<Vec<String>> {
    let (mut tools, mut others) = (Vec::new(), Vec::new());
    field.each("must be an array of functions", &mut |tool| {
        if tool.value.get("type").and_then(json::Value::as_string).as_deref() != Some("function") {
            others.push(tool);
            return Ok(());
        }
        let given = tool.object(&["type", "name", "description", "parameters", "strict"], "")?;
        let name = given.get("name").ok_or_else(|| tool.refused("has no name"))?;
        let [description, parameters, strict] =
            ["description", "parameters", "strict"].map(|name| given.get(name));
        tools.push(tool_text(&name, description.as_ref(), parameters.as_ref(), strict.as_ref())?);
        Ok(())
    })?;
    leave_tools(&others, tools.is_empty())?;
    Ok(tools)
}

fn text_format(field: &Field<'_>) -> Result<ResponseFormat> {
    let text = field.object(&["format"], "must be an object")?;
    let Some(field) = text.get("format") else { return Ok(ResponseFormat::Text) };
    let known = &["type", "name", "description", "schema", "strict"];
    let format = field.object(known, "must be an object")?;
    match format.string("type")?.as_deref() {
        Some("text") => Ok(ResponseFormat::Text),
        Some("json_object") => Ok(ResponseFormat::JsonObject),
        Some("json_schema") => {
            let schema = format.get("schema").filter(|schema| schema.value.is_object());
            let schema = schema.ok_or_else(|| refused("text.format.schema", "must be a JSON Schema"))?;
            Ok(ResponseFormat::JsonSchema(schema.value.text().into()))
        }
        Some(_) | None => Err(field.unsupported("text, json_object or json_schema")),
    }
}

fn reasoning(field: &Field<'_>) -> Result<Thinking> {
    // Of summaries there are none.
    let reasoning = field.object(&["effort", "summary", "generate_summary"], "must be an object")?;
    reasoning.read_as("effort", effort)
}

/// What an item of text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Text,
}

impl Kind {
    /// Prefix of its ids.
    const fn prefix(self) -> &'static str {
        match self {
            Kind::Reasoning => "rs_",
            Kind::Text => "msg_",
        }
    }
}

/// Writes an answer, event by event. The last event has all of it.
#[derive(Clone, Debug)]
pub(crate) struct ResponseWriter {
    id: CompletionId,
    repeated: String,
    begun: bool,
    /// Number of the next event.
    number: usize,
    /// Complete items.
    output: Vec<String>,
    /// The item in progress, and its text so far.
    open: Option<(Kind, String)>,
}

impl ReplyWriter for ResponseWriter {
    fn chunk(&mut self, _: usize, chunk: &Chunk) -> Vec<Event> {
        let mut events = Vec::new();
        self.begin(&mut events);
        self.text(Kind::Reasoning, &chunk.reasoning, &mut events);
        self.text(Kind::Text, &chunk.content, &mut events);
        for call in &chunk.tool_calls {
            self.call(call, &mut events);
        }
        events
    }

    fn finish(&mut self, _: usize, finish: &Finish) -> Vec<Event> {
        let mut events = Vec::new();
        self.begin(&mut events);
        if self.output.is_empty() && self.open.is_none() {
            self.open(Kind::Text, &mut events);
        }
        let status = status(finish);
        self.close(status, &mut events);
        let response = self.response(Some(finish));
        let name = match status {
            "incomplete" => "response.incomplete",
            _ => "response.completed",
        };
        self.event(name, &format!("\"response\":{response}"), &mut events);
        events
    }

    fn error(&mut self, error: &ApiError) -> Event {
        let mut members = String::from("\"code\":");
        json::string(code(error).unwrap_or(kind(error)), &mut members);
        members.push_str(",\"message\":");
        json::string(&error.message(), &mut members);
        members.push_str(",\"param\":null");
        self.named("error", &members)
    }

    fn whole(&mut self, replies: &[Finish]) -> String {
        let finish = replies.first();
        if let Some(finish) = finish {
            drop(self.finish(0, finish));
        }
        self.response(finish)
    }
}

impl ResponseWriter {
    /// For the answer to a request that has these members.
    pub(crate) fn new(id: CompletionId, repeated: String) -> ResponseWriter {
        ResponseWriter { id, repeated, begun: false, number: 0, output: Vec::new(), open: None }
    }

    fn named(&mut self, name: &'static str, members: &str) -> Event {
        let number = self.number;
        self.number += 1;
        Event::named(name, format!("{{\"type\":\"{name}\",\"sequence_number\":{number},{members}}}"))
    }

    fn event(&mut self, name: &'static str, members: &str, events: &mut Vec<Event>) {
        let event = self.named(name, members);
        events.push(event);
    }

    fn begin(&mut self, events: &mut Vec<Event>) {
        if !std::mem::replace(&mut self.begun, true) {
            let response = format!("\"response\":{}", self.response(None));
            self.event("response.created", &response, events);
            self.event("response.in_progress", &response, events);
        }
    }

    /// Adds text to an item of this kind.
    fn text(&mut self, kind: Kind, text: &str, events: &mut Vec<Event>) {
        if text.is_empty() {
            return;
        }
        if self.open.as_ref().is_none_or(|(open, _)| *open != kind) {
            self.close("completed", events);
            self.open(kind, events);
        }
        let mut members = self.place(kind);
        members.push_str(",\"delta\":");
        json::string(text, &mut members);
        let name = match kind {
            Kind::Reasoning => "response.reasoning_text.delta",
            Kind::Text => {
                members.push_str(",\"logprobs\":[]");
                "response.output_text.delta"
            }
        };
        if let Some((_, all)) = &mut self.open {
            all.push_str(text);
        }
        self.event(name, &members, events);
    }

    fn open(&mut self, kind: Kind, events: &mut Vec<Event>) {
        let (index, item) = (self.output.len(), self.text_item(kind, "in_progress", None));
        self.event(
            "response.output_item.added",
            &format!("\"output_index\":{index},\"item\":{item}"),
            events,
        );
        let part = format!("{},\"part\":{}", self.place(kind), part(kind, ""));
        self.event("response.content_part.added", &part, events);
        self.open = Some((kind, String::new()));
    }

    /// Ends the item in progress.
    fn close(&mut self, status: &str, events: &mut Vec<Event>) {
        let Some((kind, text)) = self.open.take() else { return };
        let place = self.place(kind);
        let mut members = place.clone();
        members.push_str(",\"text\":");
        json::string(&text, &mut members);
        let name = match kind {
            Kind::Reasoning => "response.reasoning_text.done",
            Kind::Text => {
                members.push_str(",\"logprobs\":[]");
                "response.output_text.done"
            }
        };
        self.event(name, &members, events);
        self.event("response.content_part.done", &format!("{place},\"part\":{}", part(kind, &text)), events);
        let item = self.text_item(kind, status, Some(&text));
        self.done(item, events);
    }

    fn call(&mut self, call: &FunctionCall, events: &mut Vec<Event>) {
        self.close("completed", events);
        let index = self.output.len();
        let item = |status: &str, arguments: &str| {
            let id = &self.id.id;
            let mut item = format!(
                "{{\"id\":\"fc_{id}_{index}\",\"type\":\"function_call\",\"status\":\"{status}\",\
                 \"call_id\":\"call_{id}_{index}\",\"name\":"
            );
            json::string(&call.name, &mut item);
            item.push_str(",\"arguments\":");
            json::string(arguments, &mut item);
            item.push('}');
            item
        };
        let (added, done) = (item("in_progress", ""), item("completed", &call.arguments));
        self.event(
            "response.output_item.added",
            &format!("\"output_index\":{index},\"item\":{added}"),
            events,
        );
        let place = format!("\"item_id\":\"fc_{}_{index}\",\"output_index\":{index}", self.id.id);
        let mut arguments = String::new();
        json::string(&call.arguments, &mut arguments);
        self.event(
            "response.function_call_arguments.delta",
            &format!("{place},\"delta\":{arguments}"),
            events,
        );
        let mut name = String::new();
        json::string(&call.name, &mut name);
        let members = format!("{place},\"name\":{name},\"arguments\":{arguments}");
        self.event("response.function_call_arguments.done", &members, events);
        self.done(done, events);
    }

    fn done(&mut self, item: String, events: &mut Vec<Event>) {
        let index = self.output.len();
        self.event("response.output_item.done", &format!("\"output_index\":{index},\"item\":{item}"), events);
        self.output.push(item);
    }

    /// Where the only part of the next item is.
    fn place(&self, kind: Kind) -> String {
        let (index, id, prefix) = (self.output.len(), &self.id.id, kind.prefix());
        format!("\"item_id\":\"{prefix}{id}_{index}\",\"output_index\":{index},\"content_index\":0")
    }

    /// The next item.
    fn text_item(&self, kind: Kind, status: &str, text: Option<&str>) -> String {
        let (index, id, prefix) = (self.output.len(), &self.id.id, kind.prefix());
        let content = text.map_or(String::new(), |text| part(kind, text));
        let members = match kind {
            Kind::Reasoning => "\"type\":\"reasoning\",\"summary\":[]",
            Kind::Text => "\"type\":\"message\",\"role\":\"assistant\"",
        };
        format!(
            "{{\"id\":\"{prefix}{id}_{index}\",{members},\"status\":\"{status}\",\"content\":[{content}]}}"
        )
    }

    fn response(&self, finish: Option<&Finish>) -> String {
        let mut out = String::from("{\"id\":");
        json::string(&format!("resp_{}", self.id.id), &mut out);
        let status = finish.map_or("in_progress", status);
        let details = match status {
            "incomplete" => "{\"reason\":\"max_output_tokens\"}",
            _ => "null",
        };
        let _ = write!(
            out,
            ",\"object\":\"response\",\"created_at\":{},\"status\":\"{status}\",\"error\":null,\
             \"incomplete_details\":{details},\"previous_response_id\":null,\
             \"background\":false,\"store\":false,\"model\":",
            self.id.created
        ); // a String takes everything
        json::string(&self.id.model, &mut out);
        out.push_str(&self.repeated);
        out.extend([",\"output\":[", &self.output.join(","), "],\"usage\":"]);
        match finish {
            Some(finish) => usage(&finish.usage, &mut out),
            None => out.push_str("null"),
        }
        out.push('}');
        out
    }
}

fn part(kind: Kind, text: &str) -> String {
    let mut out = match kind {
        Kind::Reasoning => "{\"type\":\"reasoning_text\",\"text\":",
        Kind::Text => "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],\"text\":",
    }
    .to_owned();
    json::string(text, &mut out);
    out.push('}');
    out
}

const fn status(finish: &Finish) -> &'static str {
    match finish.reason {
        Reason::Length | Reason::ContextFull => "incomplete",
        Reason::Stop | Reason::StopString | Reason::Cancelled => "completed",
    }
}

fn usage(usage: &Usage, out: &mut String) {
    let Usage { prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, .. } = *usage;
    let total = prompt_tokens + completion_tokens;
    let _ = write!(
        out,
        "{{\"input_tokens\":{prompt_tokens},\
         \"input_tokens_details\":{{\"cached_tokens\":{cached_tokens},\"cache_write_tokens\":0}},\
         \"output_tokens\":{completion_tokens},\
         \"output_tokens_details\":{{\"reasoning_tokens\":{reasoning_tokens}}},\"total_tokens\":{total}}}"
    ); // a String takes everything
}
