//! Continuations of a text.

use super::input::inputs;
use super::{CHAT, DONE, OpenAi};
use crate::api::dialect::{Begun, Dialect, Event, Input, PromptInput, ReplyRequest, ReplyWriter};
use crate::error::ApiError;
use shohin::TurnOptions;
use shohin::core::chat::fields::{Object, refused};
use shohin::core::chat::openai::CompletionId;
use shohin::core::chat::openai::answer::{close_chunk, finish_reason, head, usage, usage_chunk};
use shohin::core::chat::openai::request::{stop, streaming};
use shohin::core::chat::{Chunk, Finish};
use shohin::core::{Result, json};

/// Fields of a request for a continuation.
const COMPLETION_FIELDS: &[&str] = &[
    "prompt",
    "model",
    "stream",
    "stream_options",
    "max_tokens",
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
    "n",
    "best_of",
    "echo",
    // Taken and left aside.
    "user",
];

/// A request for the continuation of a text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CompletionRequest {
    /// What is continued.
    pub(crate) prompt: Input,
    /// How. The number of tokens is 16 unless set, as in OpenAI's reference.
    pub(crate) options: TurnOptions,
    /// The seed, if one was asked for. If not, a host sets one of its own, at random.
    pub(crate) seed: Option<u64>,
    /// The model's name.
    pub(crate) model: Option<String>,
    /// Whether the answer is streamed in chunks.
    pub(crate) stream: bool,
    /// Whether a last chunk says what the answer took.
    pub(crate) include_usage: bool,
}

impl CompletionRequest {
    /// Reads a request.
    ///
    /// # Errors
    /// As [`ChatCompletionRequest::parse`](shohin::core::chat::openai::ChatCompletionRequest::parse).
    pub(crate) fn parse(text: &str) -> Result<CompletionRequest> {
        let request = Object::request(text, COMPLETION_FIELDS)?;
        request.only(&[("n", "1"), ("best_of", "1"), ("echo", "false")])?;
        let mut options = TurnOptions::default();
        let seed = request.sampling(&mut options.sampler)?;
        let max_tokens = request.count("max_tokens")?.unwrap_or(16);
        options.max_tokens = Some(usize::try_from(max_tokens).unwrap_or(usize::MAX));
        options.stop_strings = request.read_as("stop", stop)?;
        let prompt =
            request.get("prompt").ok_or_else(|| refused("prompt", "must be a text or its tokens"))?;
        let mut prompts = inputs(&prompt)?;
        let (Some(prompt), true) = (prompts.pop(), prompts.is_empty()) else {
            return Err(prompt.unsupported("one prompt"));
        };
        let (stream, include_usage) = streaming(&request)?;
        let model = request.string("model")?;
        Ok(CompletionRequest { prompt, options, seed, model, stream, include_usage })
    }
}

impl From<CompletionRequest> for ReplyRequest {
    fn from(request: CompletionRequest) -> ReplyRequest {
        let CompletionRequest { prompt, options, seed, model, stream, include_usage } = request;
        ReplyRequest {
            prompt: PromptInput::Text(prompt),
            options,
            seed,
            model,
            stream,
            // It has no tools.
            fields: &CHAT,
            writer: Box::new(move |Begun { id, .. }| Box::new(TextWriter { id, include_usage })),
        }
    }
}

/// Writes a continuation.
struct TextWriter {
    id: CompletionId,
    include_usage: bool,
}

impl ReplyWriter for TextWriter {
    fn chunk(&mut self, chunk: &Chunk) -> Vec<Event> {
        let text = &chunk.text;
        if text.is_empty() { Vec::new() } else { vec![Event::plain(self.choice(text, None))] }
    }

    fn finish(&mut self, finish: &Finish) -> Vec<Event> {
        let mut events = vec![Event::plain(self.choice("", Some(finish)))];
        if self.include_usage {
            let head = head(&self.id, "cmpl-", "text_completion");
            events.push(Event::plain(usage_chunk(head, &finish.usage)));
        }
        events.push(Event::plain(DONE));
        events
    }

    fn error(&mut self, error: &ApiError) -> Event {
        Event::plain(OpenAi.error(error).to_string())
    }

    // The whole has the text, too.
    fn collect(&mut self, _: Chunk) {}

    fn whole(&mut self, finish: &Finish) -> String {
        let mut out = part(&self.id, &finish.text, Some(finish));
        out.push_str(",\"usage\":");
        usage(&finish.usage, &mut out);
        out.push('}');
        out
    }
}

impl TextWriter {
    fn choice(&self, text: &str, finish: Option<&Finish>) -> String {
        let mut out = part(&self.id, text, finish);
        close_chunk(self.include_usage, &mut out);
        out
    }
}

/// A part of a continuation, or with `finish` its end: an object that is left open.
fn part(id: &CompletionId, text: &str, finish: Option<&Finish>) -> String {
    let mut out = head(id, "cmpl-", "text_completion");
    out.push_str(",\"choices\":[{\"index\":0,\"text\":");
    json::string(text, &mut out);
    out.push_str(",\"logprobs\":null,\"finish_reason\":");
    match finish {
        Some(finish) => json::string(finish_reason(finish), &mut out),
        None => out.push_str("null"),
    }
    out.push_str("}]");
    out
}
