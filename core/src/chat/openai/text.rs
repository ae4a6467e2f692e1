//! Continuations of a text, and embeddings.
#![forbid(unsafe_code)]

use super::{CompletionId, close_chunk, finish_reason, head, stop, streaming, usage, usage_chunk};
use crate::chat::conversation::Finish;
use crate::chat::fields::{Field, Object, refused};
use crate::chat::options::TurnOptions;
use crate::error::{Error, Result};
use crate::json;
use alloc::string::String;
use alloc::vec::Vec;

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

/// Fields of a request for embeddings.
const EMBEDDING_FIELDS: &[&str] = &["input", "model", "encoding_format", "user"];

/// Most texts of a request for embeddings, as in OpenAI's reference: a request of a few bytes each would ask for an answer
/// thousands of times as long.
const MOST_INPUTS: usize = 2048;

/// A text, or its tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A text.
    Text(String),
    /// Tokens of this model.
    Tokens(Vec<u32>),
}

/// A request for the continuation of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct CompletionRequest {
    /// What is continued.
    pub prompt: Input,
    /// How. The number of tokens is 16 unless set, as in OpenAI's reference.
    pub options: TurnOptions,
    /// The seed, if one was asked for. If not, a host sets one of its own, at random.
    pub seed: Option<u64>,
    /// The model's name.
    pub model: Option<String>,
    /// Whether the answer is streamed in chunks.
    pub stream: bool,
    /// Whether a last chunk says what the answer took.
    pub include_usage: bool,
}

impl CompletionRequest {
    /// Reads a request.
    ///
    /// # Errors
    /// As [`ChatCompletionRequest::parse`](super::ChatCompletionRequest::parse).
    pub fn parse(text: &str) -> Result<CompletionRequest> {
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

/// A request for embeddings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddingRequest {
    /// The texts; at least one and at most 2048.
    pub input: Vec<Input>,
    /// The model's name.
    pub model: Option<String>,
    /// Whether vectors are wanted as the base64 text of their little-endian 32-bit floats.
    pub base64: bool,
}

impl EmbeddingRequest {
    /// Reads a request.
    ///
    /// # Errors
    /// As [`ChatCompletionRequest::parse`](super::ChatCompletionRequest::parse).
    pub fn parse(text: &str) -> Result<EmbeddingRequest> {
        let request = Object::request(text, EMBEDDING_FIELDS)?;
        let input =
            request.get("input").ok_or_else(|| refused("input", "must be a text or an array of texts"))?;
        let input = inputs(&input)?;
        if input.len() > MOST_INPUTS {
            let (what, found) = ("input", input.len() as f64);
            return Err(error!(Option { what, found, expected: "at most 2048 texts" }));
        }
        let base64 = match request.get("encoding_format") {
            None => false,
            Some(format) => match format.value.as_string().as_deref() {
                Some("float") => false,
                Some("base64") => true,
                _ => return Err(format.unsupported("float or base64")),
            },
        };
        Ok(EmbeddingRequest { input, model: request.string("model")?, base64 })
    }
}

/// A text, tokens, or several of either.
fn inputs(field: &Field<'_>) -> Result<Vec<Input>> {
    if let Some(text) = field.value.as_string() {
        return Ok(Vec::from([Input::Text(text)]));
    }
    let problem = "must be a text, an array of texts, or tokens";
    let (mut all, mut tokens) = (Vec::new(), Vec::new());
    field.each(problem, &mut |part| {
        if let Some(text) = part.value.as_string() {
            all.push(Input::Text(text));
        } else if part.value.as_number().is_some() {
            tokens.push(token(&part)?);
        } else {
            let mut inner = Vec::new();
            part.each(problem, &mut |part| {
                inner.push(token(&part)?);
                Ok(())
            })?;
            all.push(Input::Tokens(inner));
        }
        Ok(())
    })?;
    match (all.is_empty(), tokens.is_empty()) {
        (true, false) => Ok(Vec::from([Input::Tokens(tokens)])),
        (false, true) => Ok(all),
        _ => Err(field.refused(problem)),
    }
}

fn token(field: &Field<'_>) -> Result<u32> {
    let id = field.value.as_number().filter(|id| (0.0..=f64::from(u32::MAX)).contains(id));
    let id = id.filter(|id| f64::from(*id as u32) == *id);
    Ok(id.ok_or_else(|| field.refused("must be a token"))? as u32)
}

/// A continuation in one piece.
pub fn text_completion(id: &CompletionId, finish: &Finish) -> String {
    let mut out = part(id, &finish.text, Some(finish));
    out.push_str(",\"usage\":");
    usage(&finish.usage, &mut out);
    out.push('}');
    out
}

/// Writes a streamed continuation, chunk by chunk.
#[derive(Clone, Debug)]
pub struct TextWriter {
    id: CompletionId,
    include_usage: bool,
}

impl TextWriter {
    /// For the answer to `request`.
    pub fn new(id: CompletionId, request: &CompletionRequest) -> TextWriter {
        TextWriter { id, include_usage: request.include_usage }
    }

    /// The next chunk; `None` if there is no text.
    pub fn chunk(&self, text: &str) -> Option<String> {
        (!text.is_empty()).then(|| self.choice(text, None))
    }

    /// The last chunks.
    pub fn finish(&self, finish: &Finish) -> Vec<String> {
        let mut chunks = Vec::from([self.choice("", Some(finish))]);
        if self.include_usage {
            chunks.push(usage_chunk(head(&self.id, "cmpl-", "text_completion"), &finish.usage));
        }
        chunks
    }

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
