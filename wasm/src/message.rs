//! Messages and replies as JavaScript objects.

use crate::error::{JsResult, js};
use crate::object::{count, elements, object, set, string};
use crate::platform::milliseconds;
use js_sys::{Array, Object};
use shohin_core::chat::{ChatMessage, Chunk, Finish, FunctionCall, Role, TokenLogprob, Usage};
use shohin_core::sample::Logprob;
use shohin_core::tokenizer::Tokenizer;
use shohin_core::{Error, Name};
use wasm_bindgen::prelude::*;

/// The times of a turn, in milliseconds on one clock.
pub(crate) struct Timings {
    began: f64,
    /// When the first token was there.
    first: Option<f64>,
    /// When the last token was there.
    last: f64,
}

impl Timings {
    /// A turn that begins now.
    pub(crate) fn begin() -> Timings {
        let began = milliseconds();
        Timings { began, first: None, last: began }
    }

    /// Notes a new token.
    pub(crate) fn token(&mut self) {
        self.last = milliseconds();
        self.first.get_or_insert(self.last);
    }

    /// Spent on the prompt and the first token.
    fn prefill(&self) -> f64 {
        self.first.unwrap_or(self.last) - self.began
    }

    /// Spent on the tokens after the first.
    fn decode(&self) -> f64 {
        self.last - self.first.unwrap_or(self.last)
    }
}

/// Reads messages, whose types the TypeScript side has checked.
///
/// # Errors
/// `unsupported` for an unknown role.
pub(crate) fn messages(given: &Array) -> JsResult<Vec<ChatMessage>> {
    let mut messages = Vec::new();
    for given in given.iter() {
        messages.push(message(&given)?);
    }
    Ok(messages)
}

fn message(given: &JsValue) -> JsResult<ChatMessage> {
    let role = string(given, "role").unwrap_or_default();
    let role = match role.as_str() {
        "system" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
        _ => {
            let (key, found) = (Name::new("role"), Name::new(role));
            return Err(js(Error::Unsupported { key, found, expected: "system, user, assistant or tool" }));
        }
    };
    let call = |call: JsValue| FunctionCall {
        name: string(&call, "name").unwrap_or_default(),
        arguments: string(&call, "arguments").unwrap_or_default(),
    };
    Ok(ChatMessage {
        role,
        content: string(given, "content").unwrap_or_default(),
        reasoning: string(given, "reasoning"),
        tool_calls: elements(given, "toolCalls").iter().map(call).collect(),
    })
}

/// `Chunk` of the TypeScript side, without what ends it; with `measured`, also without a log-probability.
pub(crate) fn chunk_object(chunk: &Chunk, measured: bool, tokenizer: &Tokenizer<'_>) -> Object {
    let Chunk { content, reasoning, tool_calls, tokens, logprobs, text: _ } = chunk;
    let tokens: Array = tokens.iter().map(|&token| JsValue::from(token)).collect();
    let made = object([("text", content.into()), ("tokens", tokens.into())]);
    parts(&made, Some(reasoning), tool_calls);
    if measured {
        let logprobs: Array = logprobs.iter().map(|one| token_logprob(one, tokenizer)).collect();
        set(&made, "logprobs", logprobs);
    }
    made
}

/// `Finish` of the TypeScript side; `ChatFinish` if it ends a `chat`.
pub(crate) fn finish_object(finish: &Finish, chat: bool, seed: u64, timings: &Timings) -> Object {
    let Finish { reason, message, text, usage } = finish;
    let made = object([
        ("reason", reason.code().into()),
        ("text", text.into()),
        ("usage", usage_object(usage)),
        // At most 2^53 - 1.
        ("seed", JsValue::from_f64(seed as f64)),
        ("timings", timings_object(timings, usage)),
    ]);
    if chat {
        set(&made, "message", message_object(message));
    }
    made
}

/// `Message` of the TypeScript side.
pub(crate) fn message_object(message: &ChatMessage) -> Object {
    let ChatMessage { role, content, reasoning, tool_calls } = message;
    let made = object([("role", role.name().into()), ("content", content.into())]);
    parts(&made, reasoning.as_deref(), tool_calls);
    made
}

/// Sets the optional fields of a reply.
fn parts(object: &Object, reasoning: Option<&str>, tool_calls: &[FunctionCall]) {
    if let Some(reasoning) = reasoning.filter(|reasoning| !reasoning.is_empty()) {
        set(object, "reasoning", reasoning);
    }
    if !tool_calls.is_empty() {
        set(object, "toolCalls", tool_calls.iter().map(call_object).collect::<Array>());
    }
}

fn call_object(call: &FunctionCall) -> JsValue {
    let FunctionCall { name, arguments } = call;
    object([("name", name.into()), ("arguments", arguments.into())]).into()
}

fn usage_object(usage: &Usage) -> JsValue {
    let Usage {
        prompt_tokens,
        cached_tokens,
        completion_tokens,
        reasoning_tokens,
        dropped_messages,
        dropped_tokens: _,
        forgotten_tokens,
    } = *usage;
    object([
        ("promptTokens", count(prompt_tokens)),
        ("cachedTokens", count(cached_tokens)),
        ("completionTokens", count(completion_tokens)),
        ("reasoningTokens", count(reasoning_tokens)),
        ("droppedMessages", count(dropped_messages)),
        ("forgottenTokens", count(forgotten_tokens)),
    ])
    .into()
}

fn timings_object(timings: &Timings, usage: &Usage) -> JsValue {
    let (prefill, decode) = (timings.prefill(), timings.decode());
    let rate = |tokens: usize, ms: f64| if ms > 0.0 { tokens as f64 * 1000.0 / ms } else { 0.0 };
    let computed = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
    object([
        ("prefillMs", JsValue::from_f64(prefill)),
        ("decodeMs", JsValue::from_f64(decode)),
        ("prefillTokensPerSecond", JsValue::from_f64(rate(computed, prefill))),
        ("tokensPerSecond", JsValue::from_f64(rate(usage.completion_tokens.saturating_sub(1), decode))),
    ])
    .into()
}

fn token_logprob(token: &TokenLogprob, tokenizer: &Tokenizer<'_>) -> JsValue {
    let top: Array = token.top.iter().map(|top| logprob(top, tokenizer)).collect();
    let chosen = logprob(&token.chosen, tokenizer);
    set(&chosen, "top", top);
    chosen.into()
}

fn logprob(of: &Logprob, tokenizer: &Tokenizer<'_>) -> Object {
    let bytes: Vec<u8> = tokenizer.token_bytes(of.token).into_iter().flatten().collect();
    object([
        ("token", of.token.into()),
        ("text", String::from_utf8_lossy(&bytes).as_ref().into()),
        ("bytes", bytes.iter().map(|&byte| JsValue::from(byte)).collect::<Array>().into()),
        ("logprob", of.logprob.into()),
    ])
}
