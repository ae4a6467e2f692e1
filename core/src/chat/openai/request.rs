//! Reading of requests. What is public beside the request itself is shared by interfaces that have the same fields.
#![forbid(unsafe_code)]

use crate::chat::fields::{Field, Object, refused};
use crate::chat::message::{ChatMessage, FunctionCall};
use crate::chat::options::{
    OverflowPolicy, ResponseFormat, Thinking, ToolChoice, TurnOptions, function_name,
};
use crate::chat::results::ToolResults;
use crate::chat::template::Role;
use crate::error::Result;
use crate::json::{self, Value};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Fields of a request.
pub const FIELDS: &[&str] = &[
    "messages",
    "model",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
    "logprobs",
    "top_logprobs",
    "tools",
    "tool_choice",
    "response_format",
    "n",
    "parallel_tool_calls",
    "reasoning_effort",
    "thinking",
    "overflow",
    // For a service's own use: taken and left aside.
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "service_tier",
    "store",
    "metadata",
];

/// Fields of a message.
const MESSAGE_FIELDS: &[&str] = &[
    "role",
    "content",
    "reasoning",
    // As other services call it.
    "reasoning_content",
    "reasoning_details",
    "tool_calls",
    "tool_call_id",
    // Taken and left aside.
    "name",
    "refusal",
    "annotations",
    "parsed",
];

/// A request for a chat completion.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatCompletionRequest {
    /// The conversation.
    pub messages: Vec<ChatMessage>,
    /// How to reply. The sampler is the model card's with the request's changes, its seed as below.
    pub options: TurnOptions,
    /// The seed, if one was asked for. If not, a host sets one of its own, at random.
    pub seed: Option<u64>,
    /// The model's name, only to be repeated in the answer.
    pub model: Option<String>,
    /// Whether the answer is streamed in chunks.
    pub stream: bool,
    /// Whether a last chunk says what the answer took.
    pub include_usage: bool,
}

impl ChatCompletionRequest {
    /// Reads a request.
    ///
    /// # Errors
    /// [`Json`](crate::Error::Json) if `text` is not JSON, [`Argument`](crate::Error::Argument) with the name of a field
    /// that is invalid, [`Unsupported`](crate::Error::Unsupported) for one that is not supported,
    /// [`Option`](crate::Error::Option) for a count that is not a whole number.
    pub fn parse(text: &str) -> Result<ChatCompletionRequest> {
        let request = Object::request(text, FIELDS)?;
        request.only(&[("n", "1")])?;
        ChatCompletionRequest::read(&request)
    }

    /// Reads a request with these fields, [`FIELDS`] among them. Does not read `n`.
    ///
    /// # Errors
    /// As [`ChatCompletionRequest::parse`].
    pub fn read(request: &Object<'_>) -> Result<ChatCompletionRequest> {
        let mut options = TurnOptions::default();
        let seed = request.sampling(&mut options.sampler)?;
        let max_tokens = max_tokens(request, "max_tokens")?;
        options.max_tokens = self::max_tokens(request, "max_completion_tokens")?.or(max_tokens);
        options.stop_strings = request.read_as("stop", stop)?;
        let top_logprobs = request.read_as("top_logprobs", top_logprobs)?;
        let logprobs = request.boolean("logprobs")?;
        if let Some(top) = request.get("top_logprobs").filter(|top| !logprobs && !top.leave()) {
            return Err(top.refused("is only for a request with logprobs"));
        }
        options.logprobs = logprobs.then_some(top_logprobs);
        options.tools = request.read_as("tools", tools)?;
        if let Some(choice) = request.get("tool_choice") {
            choose_tools(&choice, &mut options, "function", |chosen| {
                let Some(function) = chosen.get("function") else { return Ok(None) };
                function.object(&["name"], "must be an object with a name")?.string("name")
            })?;
        }
        parallel_calls(request, &mut options)?;
        options.response_format = request.read_as("response_format", response_format)?;
        let effort = request.read_as("reasoning_effort", effort)?;
        options.thinking = request.get("thinking").map_or(Ok(effort), |field| thinking(&field))?;
        options.overflow = match (request.string("overflow")?.as_deref(), options.max_tokens) {
            (None | Some("error"), _) => OverflowPolicy::Error,
            (Some("shift"), _) => OverflowPolicy::Shift { keep: None },
            (Some("trim"), max_tokens) => OverflowPolicy::trim_for(max_tokens),
            (Some(_), _) => return Err(refused("overflow", "must be error, shift or trim")),
        };
        let (mut messages, mut results) = (Vec::new(), ToolResults::default());
        let field = request.get("messages").ok_or_else(|| refused("messages", "must be an array"))?;
        let mut read = |field: Field<'_>| message(&field, &mut messages, Some(&mut results));
        if field.each("must be an array", &mut read)? == 0 {
            return Err(field.refused("must have at least one message"));
        }
        results.sort(&mut messages);
        let (stream, include_usage) = streaming(request)?;
        let model = request.string("model")?;
        Ok(ChatCompletionRequest { messages, options, seed, model, stream, include_usage })
    }
}

/// Reads a maximum number of tokens, of which -1 is none.
///
/// # Errors
/// As [`ChatCompletionRequest::parse`].
#[inline(never)]
pub fn max_tokens(request: &Object<'_>, name: &'static str) -> Result<Option<usize>> {
    if request.get(name).is_some_and(|field| field.value.text() == "-1") {
        return Ok(None);
    }
    // More than the address space is as good as no bound.
    Ok(request.count(name)?.map(|max| usize::try_from(max).unwrap_or(usize::MAX)))
}

/// Whether the answer is streamed, and whether a last chunk says what it took.
///
/// # Errors
/// As [`ChatCompletionRequest::parse`].
#[inline(never)]
pub fn streaming(request: &Object<'_>) -> Result<(bool, bool)> {
    let stream = request.boolean("stream")?;
    let Some(field) = request.get("stream_options") else { return Ok((stream, false)) };
    let options = field.object(&["include_usage", "include_obfuscation"], "must be an object")?;
    if !options.get("include_obfuscation").is_some_and(|field| field.asks_nothing() || field.leave()) {
        options.only(&[("include_obfuscation", "false")])?;
    }
    let include_usage = options.boolean("include_usage")?;
    if !stream && field.leave() {
        return Ok((stream, false));
    }
    if !stream {
        return Err(field.refused("is only for a request with stream"));
    }
    Ok((stream, include_usage))
}

#[inline(never)]
fn top_logprobs(field: &Field<'_>) -> Result<usize> {
    let top = field.value.as_number();
    let top = top.filter(|top| (0.0..=20.0).contains(top) && *top as usize as f64 == *top);
    Ok(top.ok_or_else(|| field.refused("must be 0 to 20"))? as usize)
}

/// Reads the texts that end a reply.
///
/// # Errors
/// As [`ChatCompletionRequest::parse`].
#[inline(never)]
pub fn stop(field: &Field<'_>) -> Result<Vec<String>> {
    let mut stops: Vec<String> = field.value.as_string().into_iter().collect();
    if stops.is_empty() {
        field.each("must be a string or an array of strings", &mut |text| {
            stops.push(text.string()?);
            Ok(())
        })?;
    }
    Ok(stops)
}

/// Reads functions, each within a tool or by itself. Their descriptions are taken whole, for the template and the grammar, or
/// without the fields that are left aside. So are tools of other types, beside functions.
///
/// # Errors
/// As [`ChatCompletionRequest::parse`].
#[inline(never)]
pub fn tools(field: &Field<'_>) -> Result<Vec<String>> {
    let mut tools = Vec::new();
    let mut others = Vec::new();
    field.each("must be an array of functions", &mut |tool| {
        let problem = "must be a function";
        let member = |name: &str| tool.value.get(name).filter(|value| !value.is_null());
        let kind = member("type");
        if kind.is_some_and(|kind| kind.as_string().as_deref() != Some("function")) {
            others.push(tool);
            return Ok(());
        }
        let within = match (kind, member("function")) {
            (None, None) => None,
            (Some(_), None) => return Err(tool.refused("has no function")),
            (_, Some(_)) => Some(tool.object(&["type", "function"], problem)?),
        };
        let function = within.as_ref().and_then(|within| within.get("function"));
        let function = function.as_ref().unwrap_or(&tool);
        let given = function.object(&["name", "description", "parameters", "strict"], problem)?;
        given.string("name")?.ok_or_else(|| function.refused("has no name"))?;
        given.string("description")?;
        check_arguments(given.get("parameters").as_ref(), given.get("strict").as_ref())?;
        tools.push(match within {
            Some(within) if within.is_whole() && given.is_whole() => tool.value.text().into(),
            Some(_) => format!("{{\"type\": \"function\", \"function\": {}}}", given.text()),
            None if given.is_whole() => tool.value.text().into(),
            None => given.text(),
        });
        Ok(())
    })?;
    leave_tools(&others, tools.is_empty())?;
    Ok(tools)
}

/// Leaves aside tools that are no functions, unless there are no others.
///
/// # Errors
/// As [`ChatCompletionRequest::parse`].
#[inline(never)]
pub fn leave_tools(others: &[Field<'_>], alone: bool) -> Result<()> {
    match others.iter().find(|tool| alone || !tool.leave()) {
        Some(tool) => Err(tool.unsupported("tools of type function")),
        None => Ok(()),
    }
}

/// Reads a choice of tools. `name` finds the function that an object names in its field `holder`.
///
/// # Errors
/// As [`ChatCompletionRequest::parse`].
#[inline(never)]
pub fn choose_tools(
    choice: &Field<'_>,
    options: &mut TurnOptions,
    holder: &str,
    name: fn(&Object<'_>) -> Result<Option<String>>,
) -> Result<()> {
    let problem = "must be none, auto, required or a function";
    options.tool_choice = match choice.value.as_string().as_deref() {
        Some("auto") => ToolChoice::Auto,
        Some("required") => ToolChoice::Required,
        Some("none") => {
            options.tools.clear();
            ToolChoice::Auto
        }
        Some(_) => return Err(choice.refused(problem)),
        None if choice.value.get("type").and_then(Value::as_string).as_deref() == Some("allowed_tools") => {
            allow_tools(choice, options, holder, name)?
        }
        None => {
            let chosen = choice.object(&["type", holder], problem)?;
            if chosen.string("type")?.as_deref() != Some("function") {
                return Err(choice.unsupported("a tool_choice of type function"));
            }
            ToolChoice::Function(name(&chosen)?.ok_or_else(|| choice.refused("names no function"))?)
        }
    };
    has_tools(choice, options)
}

/// Leaves out the tools that a choice of the type `allowed_tools` does not allow. Chat Completions have what it says in a field of
/// its own, Responses beside the type.
#[inline(never)]
fn allow_tools(
    choice: &Field<'_>,
    options: &mut TurnOptions,
    holder: &str,
    name: fn(&Object<'_>) -> Result<Option<String>>,
) -> Result<ToolChoice> {
    let problem = "must have a mode and tools";
    let mut given = choice.object(&["type", "allowed_tools", "mode", "tools"], problem)?;
    if let Some(within) = given.get("allowed_tools") {
        given = within.object(&["mode", "tools"], problem)?;
    }
    let tools = given.get("tools").ok_or_else(|| choice.refused(problem))?;
    let mut allowed = Vec::new();
    tools.each(problem, &mut |tool| {
        let named = name(&tool.object(&["type", holder], problem)?)?;
        let named = named.ok_or_else(|| tool.refused("names no function"))?;
        let is_there = options.tools.iter().any(|tool| function_name(tool).as_deref() == Some(&*named));
        if !is_there {
            return Err(tool.refused("is not one of tools"));
        }
        allowed.push(named);
        Ok(())
    })?;
    options.tools.retain(|tool| function_name(tool).is_some_and(|name| allowed.contains(&name)));
    match given.string("mode")?.as_deref() {
        None | Some("auto") => Ok(ToolChoice::Auto),
        Some("required") => Ok(ToolChoice::Required),
        Some(_) => Err(choice.refused("must have the mode auto or required")),
    }
}

/// Refuses a choice of tools if there are none.
///
/// # Errors
/// [`Argument`](crate::Error::Argument).
pub fn has_tools(choice: &Field<'_>, options: &TurnOptions) -> Result<()> {
    if options.tool_choice != ToolChoice::Auto && options.tools.is_empty() {
        return Err(choice.refused("is given, but tools has none to choose from"));
    }
    Ok(())
}

#[inline(never)]
fn response_format(field: &Field<'_>) -> Result<ResponseFormat> {
    // Of llama.cpp, beside OpenAI's.
    let is_object = field.value.get("type").and_then(Value::as_string).as_deref() == Some("json_object");
    let schema =
        if is_object || field.value.get("json_schema").is_none() { field.value.get("schema") } else { None };
    if let Some(schema) = schema.filter(|schema| schema.is_object() && field.is_lenient()) {
        return Ok(ResponseFormat::JsonSchema(schema.text().into()));
    }
    let known = &["type", "json_schema", "choices", "pattern", "grammar"];
    let format = field.object(known, "must be an object")?;
    let part =
        |name: &'static str| format.get(name).ok_or_else(|| field.refused("lacks what its type needs"));
    let kind = format.get("type").ok_or_else(|| field.refused("has no type"))?;
    match kind.value.as_string().as_deref() {
        Some("text") => Ok(ResponseFormat::Text),
        Some("json_object") => Ok(ResponseFormat::JsonObject),
        Some("json_schema") => {
            let named = format.get("json_schema").ok_or_else(|| field.refused("has no json_schema"))?;
            // Replies satisfy the schema whether `strict` is set or not.
            let known = &["schema", "name", "description", "strict"];
            let schema = named.object(known, "must be an object")?.get("schema");
            let schema = schema.filter(|schema| schema.value.is_object() || schema.value.as_bool().is_some());
            let problem = || refused("response_format.json_schema.schema", "must be a JSON Schema");
            Ok(ResponseFormat::JsonSchema(schema.ok_or_else(problem)?.value.text().into()))
        }
        Some("choice") => {
            let choices = part("choices")?;
            let texts = choices
                .value
                .elements()
                .and_then(|all| all.into_iter().map(json::Value::as_string).collect::<Option<Vec<String>>>());
            Ok(ResponseFormat::Choice(texts.ok_or_else(|| choices.refused("must be an array of texts"))?))
        }
        Some("regex") => Ok(ResponseFormat::Regex(part("pattern")?.string()?)),
        Some("grammar") => Ok(ResponseFormat::Grammar(part("grammar")?.string()?)),
        _ => Err(kind.unsupported("text, json_object, json_schema, choice, regex or grammar")),
    }
}

/// Reads whether there may be several calls.
///
/// # Errors
/// As [`ChatCompletionRequest::parse`].
#[inline(never)]
pub fn parallel_calls(request: &Object<'_>, options: &mut TurnOptions) -> Result<()> {
    if request.get("parallel_tool_calls").is_some() {
        options.parallel_tool_calls = request.boolean("parallel_tool_calls")?;
    }
    Ok(())
}

/// How much to reason, which is a matter of whether.
///
/// # Errors
/// As [`ChatCompletionRequest::parse`].
#[inline(never)]
pub fn effort(field: &Field<'_>) -> Result<Thinking> {
    match field.value.as_string().as_deref() {
        Some("none" | "minimal") => Ok(Thinking::Off),
        Some("low" | "medium" | "high" | "xhigh" | "max") => Ok(Thinking::On),
        Some(_) | None => Err(field.refused("must be none, minimal, low, medium, high, xhigh or max")),
    }
}

#[inline(never)]
fn thinking(field: &Field<'_>) -> Result<Thinking> {
    if let Some(thinks) = field.value.as_bool() {
        return Ok(if thinks { Thinking::On } else { Thinking::Off });
    }
    let problem = "must be true, false or an object with a budget";
    let thinking = field.object(&["budget", "type", "budget_tokens"], problem)?;
    let budget = thinking.number("budget")?.or(thinking.number("budget_tokens")?);
    match (thinking.string("type")?.as_deref(), budget) {
        (Some("disabled"), _) => return Ok(Thinking::Off),
        (Some("enabled" | "adaptive"), None) => return Ok(Thinking::On),
        (Some("enabled" | "adaptive") | None, _) => {}
        (Some(_), _) => return Err(field.refused_within("type", "must be enabled, disabled or adaptive")),
    }
    let budget = budget.filter(|budget| *budget >= 0.0);
    let budget = budget.ok_or_else(|| refused("thinking.budget", "must be a number of tokens"))?;
    // The first whole number of tokens that is not less.
    Ok(Thinking::Budget(libm::ceil(budget) as usize))
}

/// Reads a message, and if asked to match results of tools, the ids of calls.
#[inline(never)]
fn message(
    field: &Field<'_>,
    messages: &mut Vec<ChatMessage>,
    mut results: Option<&mut ToolResults>,
) -> Result<()> {
    let no_role = "must be an object with a role";
    let given = field.object(MESSAGE_FIELDS, no_role)?;
    let role = match given.string("role")?.as_deref() {
        Some("system" | "developer") => Role::System,
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("tool") => Role::Tool,
        Some(_) => {
            let problem = "must be system, developer, user, assistant or tool";
            return Err(field.refused_within("role", problem));
        }
        None => return Err(field.refused(no_role)),
    };
    if role == Role::User && given.get("content").is_none() {
        return Err(field.refused_within("content", "is missing"));
    }
    let mut message = ChatMessage::new(role, given.read_as("content", text_of)?);
    message.reasoning = match (given.string("reasoning")?, given.string("reasoning_content")?) {
        (None, None) => given.read_as("reasoning_details", reasoning_details)?,
        (reasoning, other) => reasoning.or(other),
    };
    if let Some(calls) = given.get("tool_calls") {
        let problem = "must be an array of calls, each with a function that has a name and arguments";
        let mut ids = Vec::new();
        calls.each(problem, &mut |call| {
            let call = call.object(&["id", "type", "index", "function", "parsed_arguments"], problem)?;
            ids.push(call.string("id")?);
            let function = call.get("function").ok_or_else(|| calls.refused(problem))?;
            let function = function.object(&["name", "arguments", "parsed_arguments"], problem)?;
            let read = function.string("name")?.zip(function.string("arguments")?);
            let (name, arguments) = read.ok_or_else(|| calls.refused(problem))?;
            message.tool_calls.push(FunctionCall { name, arguments });
            Ok(())
        })?;
        if let Some(results) = results.as_deref_mut() {
            results.calls(messages, ids);
        }
    }
    if let Some(results) = results.filter(|_| role == Role::Tool) {
        results.result(messages, given.string("tool_call_id")?, &field.place, "tool_call_id")?;
    }
    messages.push(message);
    Ok(())
}

/// Thoughts in parts, of which only those with a text have anything that a model reads.
#[inline(never)]
fn reasoning_details(field: &Field<'_>) -> Result<Option<String>> {
    let mut all = None;
    field.each("must be an array", &mut |part| {
        if let Some(text) = part.value.get("text").and_then(Value::as_string) {
            all.get_or_insert_with(String::new).push_str(&text);
        }
        Ok(())
    })?;
    Ok(all)
}

/// A text, or parts of one, which are joined; there is nothing that could look at others.
#[inline(never)]
fn text_of(content: &Field<'_>) -> Result<String> {
    text_parts(content, &["text", "refusal"], &["type", "text", "refusal"])
}

/// A text, or parts of these types, with these fields, which are joined.
///
/// # Errors
/// As [`ChatCompletionRequest::parse`].
#[inline(never)]
pub fn text_parts(content: &Field<'_>, kinds: &[&str], known: &[&str]) -> Result<String> {
    if let Some(text) = content.value.as_string() {
        return Ok(text);
    }
    let problem = "must be a string, or an array of text parts";
    let mut all = String::new();
    content.each(problem, &mut |part| {
        let kind = part.value.get("type").and_then(Value::as_string);
        match kind.as_deref() {
            Some(kind) if kinds.contains(&kind) => {
                let part_of = part.object(known, problem)?;
                let text = part_of.string(match kind {
                    "refusal" => kind,
                    "tool_reference" => "tool_name",
                    _ => "text",
                })?;
                all.push_str(&text.ok_or_else(|| part.refused("has no text"))?);
            }
            Some(_) => return Err(part.unsupported("parts of type text: the model reads text only")),
            None => return Err(part.refused("must be a part of type text")),
        }
        Ok(())
    })?;
    Ok(all)
}

/// Checks what says which arguments a function takes.
///
/// # Errors
/// [`Argument`](crate::Error::Argument).
pub fn check_arguments(parameters: Option<&Field<'_>>, strict: Option<&Field<'_>>) -> Result<()> {
    if let Some(schema) = parameters.filter(|schema| !schema.value.is_object()) {
        return Err(schema.refused("must be a JSON Schema"));
    }
    if let Some(strict) = strict.filter(|strict| strict.value.as_bool().is_none()) {
        return Err(strict.refused("must be true or false"));
    }
    Ok(())
}

/// The messages of [`messages_json`](super::messages_json).
///
/// # Errors
/// As [`ChatCompletionRequest::parse`].
pub fn parse_messages(text: &str) -> Result<Vec<ChatMessage>> {
    let mut messages = Vec::new();
    let all = Field { place: "messages".into(), value: Value::parse(text)?, reading: None };
    all.each("must be an array", &mut |one| message(&one, &mut messages, None))?;
    Ok(messages)
}
