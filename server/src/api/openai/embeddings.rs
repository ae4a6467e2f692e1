//! Embeddings.

use super::input::inputs;
use crate::api::dialect::{EmbeddingRequest, EmbeddingWriter, Input};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;
use shohin::core::chat::fields::{Object, Reading, refused};
use shohin::core::{Error, Result};
use std::fmt::Write;

/// Fields of a request for embeddings.
const EMBEDDING_FIELDS: &[&str] = &["input", "model", "encoding_format", "dimensions", "user"];

/// Maximum number of texts of a request for embeddings, as in OpenAI's reference: a request of a few bytes each would ask for an answer
/// thousands of times as long.
const MAX_INPUTS: usize = 2048;

/// A request for embeddings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EmbeddingsRequest {
    /// The texts; at least one and at most 2048.
    pub(crate) input: Vec<Input>,
    /// The model's name.
    pub(crate) model: Option<String>,
    /// Whether vectors are wanted as the base64 text of their little-endian 32-bit floats.
    pub(crate) base64: bool,
}

impl EmbeddingsRequest {
    /// Reads a request.
    ///
    /// # Errors
    /// As [`ChatCompletionRequest::parse`](shohin::core::chat::openai::ChatCompletionRequest::parse).
    pub(crate) fn parse(text: &str, reading: &Reading) -> Result<EmbeddingsRequest> {
        let request = Object::request_with(text, EMBEDDING_FIELDS, Some(reading))?;
        request.refuse(&[("dimensions", "vectors of the model's size")])?;
        let input =
            request.get("input").ok_or_else(|| refused("input", "must be a text or an array of texts"))?;
        let input = inputs(&input)?;
        if input.len() > MAX_INPUTS {
            let (what, found) = ("input", input.len() as f64);
            return Err(Error::Option { what, found, expected: "at most 2048 texts" });
        }
        let base64 = match request.get("encoding_format") {
            None => false,
            Some(format) => match format.value.as_string().as_deref() {
                Some("float") => false,
                Some("base64") => true,
                _ => return Err(format.unsupported("float or base64")),
            },
        };
        Ok(EmbeddingsRequest { input, model: request.string("model")?, base64 })
    }
}

impl From<EmbeddingsRequest> for EmbeddingRequest {
    fn from(request: EmbeddingsRequest) -> EmbeddingRequest {
        let EmbeddingsRequest { input, model, base64 } = request;
        EmbeddingRequest { input, model, writer: Box::new(Writer { base64, count: 0, out: String::new() }) }
    }
}

/// Writes vectors as text at once, since a JSON value of each number would take several times its bytes.
struct Writer {
    base64: bool,
    count: usize,
    out: String,
}

impl EmbeddingWriter for Writer {
    fn vector(&mut self, vector: &[f32]) {
        let Writer { base64, count, out } = self;
        out.push_str(if *count == 0 { "{\"object\":\"list\",\"data\":[" } else { "," });
        let _ = write!(out, "{{\"object\":\"embedding\",\"index\":{count},\"embedding\":"); // a String takes everything
        *count += 1;
        if *base64 {
            let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
            out.push('"');
            BASE64_STANDARD.encode_string(bytes, out);
            out.push('"');
        } else {
            for (i, x) in vector.iter().enumerate() {
                // The shortest digits that are this number again; all are finite.
                let _ = write!(out, "{}{x:?}", if i == 0 { '[' } else { ',' });
            }
            out.push(']');
        }
        out.push('}');
    }

    fn finish(self: Box<Self>, model: &str, tokens: usize) -> String {
        let mut out = self.out;
        let usage = json!({ "prompt_tokens": tokens, "total_tokens": tokens });
        let _ = write!(out, "],\"model\":{},\"usage\":{usage}}}", json!(model)); // a String takes everything
        out
    }
}
