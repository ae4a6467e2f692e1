//! Writing of answers. What is public beside the whole and its chunks is shared with continuations of a text.
#![forbid(unsafe_code)]

use super::request::ChatCompletionRequest;
use crate::chat::chunk::{Chunk, TokenLogprob};
use crate::chat::conversation::{Finish, Usage};
use crate::chat::message::{ChatMessage, FunctionCall};
use crate::generate::Reason;
use crate::json;
use crate::sample::Logprob;
use crate::tokenizer::Tokenizer;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

/// Messages as an array in OpenAI's form.
pub fn messages_json(messages: &[ChatMessage]) -> String {
    let mut out = String::from("[");
    for (i, message) in messages.iter().enumerate() {
        out.push_str(if i == 0 { "{" } else { ",{" });
        let ChatMessage { role, content, reasoning, tool_calls } = message;
        for (name, value) in [
            ("\"role\":", Some(role.name())),
            (",\"content\":", Some(content)),
            (",\"reasoning\":", reasoning.as_deref()),
        ] {
            if let Some(value) = value {
                out.push_str(name);
                json::string(value, &mut out);
            }
        }
        if !tool_calls.is_empty() {
            out.push_str(",\"tool_calls\":");
            calls(&format!("{i}"), tool_calls, None, &mut out);
        }
        out.push('}');
    }
    out.push(']');
    out
}

/// What tells answers apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletionId {
    /// Letters and digits that no other answer has.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The model's name: the request's, or that of the model that answers.
    pub model: String,
}

/// An answer in one piece: `finish`, with the log-probabilities if they were asked for.
pub fn completion(
    id: &CompletionId,
    finish: &Finish,
    logprobs: Option<&[TokenLogprob]>,
    tokenizer: &Tokenizer<'_>,
) -> String {
    completion_of(id, &[(finish, logprobs)], tokenizer)
}

/// An answer in one piece with several choices, each with its log-probabilities if they were asked for.
pub fn completion_of(
    id: &CompletionId,
    choices: &[(&Finish, Option<&[TokenLogprob]>)],
    tokenizer: &Tokenizer<'_>,
) -> String {
    let mut out = head(id, "chatcmpl-", "chat.completion");
    out.push_str(",\"choices\":[");
    for (index, (finish, logprobs)) in choices.iter().enumerate() {
        out.push_str(if index == 0 { "" } else { "," });
        choice(&call_id(id, index), index, finish, *logprobs, tokenizer, &mut out);
    }
    out.push_str("],\"usage\":");
    usage(&Usage::sum(choices.iter().map(|(finish, _)| finish.usage)), &mut out);
    out.push('}');
    out
}

/// What the ids of a choice's calls begin with.
fn call_id(id: &CompletionId, index: usize) -> String {
    if index == 0 { id.id.clone() } else { format!("{}_{index}", id.id) }
}

fn choice(
    id: &str,
    index: usize,
    finish: &Finish,
    logprobs: Option<&[TokenLogprob]>,
    tokenizer: &Tokenizer<'_>,
    out: &mut String,
) {
    let ChatMessage { content, reasoning, tool_calls, .. } = &finish.message;
    let _ = write!(out, "{{\"index\":{index},\"message\":{{\"role\":\"assistant\",\"content\":"); // a String takes everything
    if content.is_empty() && !tool_calls.is_empty() {
        out.push_str("null");
    } else {
        json::string(content, out);
    }
    out.push_str(",\"refusal\":null");
    if let Some(reasoning) = reasoning {
        out.push_str(",\"reasoning\":");
        json::string(reasoning, out);
    }
    if !tool_calls.is_empty() {
        out.push_str(",\"tool_calls\":");
        calls(id, tool_calls, None, out);
    }
    out.push_str("},\"logprobs\":");
    measured(logprobs, tokenizer, out);
    out.push_str(",\"finish_reason\":");
    json::string(finish_reason(finish), out);
    out.push('}');
}

/// Writes a streamed answer, chunk by chunk.
#[derive(Clone, Debug)]
pub struct ChunkWriter {
    id: CompletionId,
    index: usize,
    include_usage: bool,
    logprobs: bool,
    begun: bool,
    calls: usize,
}

impl ChunkWriter {
    /// For the answer to `request`.
    pub fn new(id: CompletionId, request: &ChatCompletionRequest) -> ChunkWriter {
        let ChatCompletionRequest { include_usage, options, .. } = request;
        let (include_usage, logprobs) = (*include_usage, options.logprobs.is_some());
        ChunkWriter { id, index: 0, include_usage, logprobs, begun: false, calls: 0 }
    }

    /// The same for another choice of several.
    #[must_use]
    pub fn at(mut self, index: usize) -> ChunkWriter {
        self.index = index;
        self
    }

    /// The next chunk; `None` if there is nothing to say in one.
    pub fn chunk(&mut self, chunk: &Chunk, tokenizer: &Tokenizer<'_>) -> Option<String> {
        let mut delta = String::new();
        if !self.begun {
            delta.push_str("\"role\":\"assistant\",");
        }
        // Clients would keep an empty text beside the calls.
        let is_other = chunk.content.is_empty()
            && !(chunk.text.is_empty() && chunk.reasoning.is_empty() && chunk.tool_calls.is_empty());
        if !self.begun && is_other {
            delta.push_str("\"content\":null,");
        } else if !self.begun || !chunk.content.is_empty() {
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
            let id = call_id(&self.id, self.index);
            calls(&id, &chunk.tool_calls, Some(self.calls), &mut delta);
            delta.push(',');
            self.calls += chunk.tool_calls.len();
        }
        delta.pop();
        let logprobs =
            Some(chunk.logprobs.as_slice()).filter(|logprobs| self.logprobs && !logprobs.is_empty());
        if delta.is_empty() && logprobs.is_none() {
            return None;
        }
        let mut out = head(&self.id, "chatcmpl-", "chat.completion.chunk");
        let _ = write!(out, ",\"choices\":[{{\"index\":{},\"delta\":{{", self.index); // a String takes everything
        out.extend([&*delta, "},\"logprobs\":"]);
        measured(logprobs, tokenizer, &mut out);
        out.push_str(",\"finish_reason\":null}]");
        close_chunk(self.include_usage, &mut out);
        Some(out)
    }

    /// The last chunks.
    pub fn finish(&self, finish: &Finish) -> Vec<String> {
        let mut chunks = Vec::from([self.end(finish)]);
        chunks.extend(self.usage(&finish.usage));
        chunks
    }

    /// The last chunk of a choice.
    pub fn end(&self, finish: &Finish) -> String {
        let mut out = head(&self.id, "chatcmpl-", "chat.completion.chunk");
        let index = self.index;
        let _ = write!(
            out,
            ",\"choices\":[{{\"index\":{index},\"delta\":{{}},\"logprobs\":null,\"finish_reason\":"
        ); // a String takes everything
        json::string(finish_reason(finish), &mut out);
        out.push_str("}]");
        close_chunk(self.include_usage, &mut out);
        out
    }

    /// The chunk that says what all choices took, if it is asked for.
    pub fn usage(&self, usage: &Usage) -> Option<String> {
        self.include_usage.then(|| usage_chunk(head(&self.id, "chatcmpl-", "chat.completion.chunk"), usage))
    }
}

/// Ends a chunk that has a choice.
pub fn close_chunk(include_usage: bool, out: &mut String) {
    out.push_str(if include_usage { ",\"usage\":null}" } else { "}" });
}

/// The chunk of the token counts, which has no choice.
pub fn usage_chunk(mut head: String, counts: &Usage) -> String {
    head.push_str(",\"choices\":[],\"usage\":");
    usage(counts, &mut head);
    head.push('}');
    head
}

/// The members that every answer begins with, in an object that is left open.
pub fn head(id: &CompletionId, kind: &str, object: &str) -> String {
    let mut out = String::from("{\"id\":");
    json::string(&format!("{kind}{}", id.id), &mut out);
    let _ = write!(out, ",\"created\":{},\"model\":", id.created); // a String takes everything
    json::string(&id.model, &mut out);
    out.extend([",\"object\":\"", object, "\""]);
    out
}

/// Calls, of which `before` came in earlier chunks; in a whole answer they have no index.
fn calls(id: &str, calls: &[FunctionCall], before: Option<usize>, out: &mut String) {
    let mut separator = "[{";
    for (i, call) in calls.iter().enumerate() {
        out.push_str(separator);
        separator = ",{";
        let number = before.unwrap_or(0) + i;
        if before.is_some() {
            let _ = write!(out, "\"index\":{number},"); // a String takes everything
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

/// Why a reply ended.
pub const fn finish_reason(finish: &Finish) -> &'static str {
    match finish.reason {
        // Even after calls: what was cut off may be another one.
        Reason::Length | Reason::ContextFull => "length",
        Reason::Stop | Reason::StopString | Reason::Cancelled if !finish.message.tool_calls.is_empty() => {
            "tool_calls"
        }
        Reason::Stop | Reason::StopString | Reason::Cancelled => "stop",
    }
}

/// Appends the token counts.
pub fn usage(usage: &Usage, out: &mut String) {
    let Usage { prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, .. } = *usage;
    let total = prompt_tokens + completion_tokens;
    let _ = write!(
        out,
        "{{\"prompt_tokens\":{prompt_tokens},\"completion_tokens\":{completion_tokens},\"total_tokens\":{total},\
         \"prompt_tokens_details\":{{\"cached_tokens\":{cached_tokens}}},\
         \"completion_tokens_details\":{{\"reasoning_tokens\":{reasoning_tokens}}}}}"
    ); // a String takes everything
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

/// A token's text, log-probability and bytes, in an object that is left open.
fn token(logprob: &Logprob, tokenizer: &Tokenizer<'_>, out: &mut String) {
    let bytes: Vec<u8> = tokenizer.token_bytes(logprob.token).into_iter().flatten().collect();
    out.push_str("{\"token\":");
    json::string(&String::from_utf8_lossy(&bytes), out);
    out.push_str(",\"logprob\":");
    json::number(f64::from(logprob.logprob), out);
    out.push_str(",\"bytes\":[");
    for (i, byte) in bytes.iter().enumerate() {
        let _ = write!(out, "{}{byte}", if i > 0 { "," } else { "" }); // a String takes everything
    }
    out.push(']');
}
