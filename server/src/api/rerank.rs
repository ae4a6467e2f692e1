//! Documents by how well they answer a query: the form of Cohere, Jina, vLLM and llama.cpp.

use super::dialect::{Action, Dialect, Route};
use crate::error::ApiError;
use serde_json::{Value, json};
use shohin::core::chat::fields::{Field, Object, Reading, refused};
use shohin::core::{Error, Result};

/// Fields of a request.
const FIELDS: &[&str] = &[
    "model",
    "query",
    "documents",
    "texts",
    "top_n",
    "return_documents",
    "return_text",
    "instruction",
    // How services divide long documents: here they are not divided.
    "max_chunks_per_doc",
    "max_tokens_per_doc",
    "truncate",
    "truncation",
    "user",
    "priority",
];

/// Maximum number of documents of a request.
const MAX_DOCUMENTS: usize = 2048;

/// A request.
pub(crate) struct RerankRequest {
    pub(crate) model: Option<String>,
    pub(crate) query: String,
    /// At least one.
    pub(crate) documents: Vec<String>,
    pub(crate) instruction: Option<String>,
    /// How many are in the answer.
    top: usize,
    /// Whether the answer has the documents.
    returns: bool,
}

impl RerankRequest {
    /// Reads a request.
    ///
    /// # Errors
    /// As [`ChatCompletionRequest::parse`](shohin::core::chat::openai::ChatCompletionRequest::parse).
    pub(crate) fn parse(text: &str, reading: &Reading) -> Result<RerankRequest> {
        let request = Object::request_with(text, FIELDS, Some(reading))?;
        let query = request.string("query")?.ok_or_else(|| refused("query", "must be a text"))?;
        let given = request.get("documents").or_else(|| request.get("texts"));
        let given = given.ok_or_else(|| refused("documents", "must be an array of texts"))?;
        let mut documents = Vec::new();
        given.each("must be an array of texts", &mut |document| {
            documents.push(text_of(&document)?);
            Ok(())
        })?;
        if documents.is_empty() {
            return Err(given.refused("must have a text"));
        }
        if documents.len() > MAX_DOCUMENTS {
            let (what, found) = ("documents", documents.len() as f64);
            return Err(Error::Option { what, found, expected: "at most 2048 texts" });
        }
        let top = match request.get("top_n") {
            None => documents.len(),
            Some(top) => match top.value.as_number() {
                Some(n) if n >= 1.0 && n.fract() == 0.0 => (n as usize).min(documents.len()),
                _ => return Err(top.refused("must be a whole number, at least 1")),
            },
        };
        let returns = request.boolean("return_documents")? || request.boolean("return_text")?;
        let (model, instruction) = (request.string("model")?, request.string("instruction")?);
        Ok(RerankRequest { model, query, documents, instruction, top, returns })
    }

    /// The answer of the model with this name: the best first.
    pub(crate) fn answer(&self, name: &str, scores: &[f32], tokens: usize) -> String {
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        let results = order.into_iter().take(self.top).map(|index| {
            let mut result = json!({ "index": index, "relevance_score": scores[index] });
            if self.returns {
                result["document"] = json!({ "text": self.documents[index] });
            }
            result
        });
        let results: Vec<Value> = results.collect();
        let usage = json!({ "prompt_tokens": tokens, "total_tokens": tokens });
        json!({ "object": "list", "model": name, "results": results, "usage": usage }).to_string()
    }
}

/// A document: a text, or an object with one.
fn text_of(document: &Field<'_>) -> Result<String> {
    if let Some(text) = document.value.as_string() {
        return Ok(text);
    }
    let problem = "must be a text, or an object with one";
    document.object(&["text"], problem)?.string("text")?.ok_or_else(|| document.refused(problem))
}

/// The dialect of rerankers; its errors are OpenAI's.
pub(super) struct Rerank;

impl Dialect for Rerank {
    fn routes(&self) -> &'static [Route] {
        const ACTION: Action = Action::Rerank(RerankRequest::parse);
        &[
            Route { path: "/v1/rerank", action: ACTION },
            Route { path: "/v2/rerank", action: ACTION },
            Route { path: "/v1/reranking", action: ACTION },
            Route { path: "/rerank", action: ACTION },
            Route { path: "/reranking", action: ACTION },
        ]
    }

    fn error(&self, error: &ApiError) -> Value {
        super::DEFAULT.error(error)
    }
}
