//! What an interface says of itself: its paths, and how its requests are read and its answers written.

use crate::error::{ApiError, Fields};
use serde_json::Value;
use shohin::core::Result;
use shohin::core::chat::openai::CompletionId;
use shohin::core::chat::{Chunk, Finish, Usage};
use shohin::{ChatMessage, Model, TurnOptions};

/// An interface of the server.
pub(crate) trait Dialect: Sync {
    /// Its paths.
    fn routes(&self) -> &'static [Route];

    /// The body of an answer that says what is wrong.
    fn error(&self, error: &ApiError) -> Value;
}

/// A path of an interface.
#[derive(Clone, Copy)]
pub(crate) struct Route {
    pub(crate) path: &'static str,
    pub(crate) action: Action,
}

/// What the server does at a path.
#[derive(Clone, Copy)]
pub(crate) enum Action {
    /// Computes a reply, whole or streamed.
    Reply(fn(&str) -> Result<ReplyRequest>),
    /// Counts the tokens of a conversation. Their number is written by the second function.
    Count(fn(&str) -> Result<ReplyRequest>, fn(usize) -> Value),
    /// Computes embeddings.
    Embed(fn(&str) -> Result<EmbeddingRequest>),
    /// Lists the models: the server's, then those with one of its adapters.
    Models(fn(&[ModelInfo]) -> Value),
    /// Describes the model that the rest of the path names.
    Model(fn(&ModelInfo) -> Value),
}

/// What is told of a model.
pub(crate) struct ModelInfo {
    pub(crate) name: String,
    /// The model without the adapter, if it has one.
    pub(crate) parent: Option<String>,
    /// Tokens of its context.
    pub(crate) context: usize,
}

/// A text, or its tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    Text(String),
    /// Tokens of this model.
    Tokens(Vec<u32>),
}

/// What is replied to.
pub(crate) enum PromptInput {
    Messages(Vec<ChatMessage>),
    /// It is continued.
    Text(Input),
}

/// A request for a reply.
pub(crate) struct ReplyRequest {
    pub(crate) prompt: PromptInput,
    pub(crate) options: TurnOptions,
    /// The seed, if one was asked for; otherwise the server draws one.
    pub(crate) seed: Option<u64>,
    /// The model's name.
    pub(crate) model: Option<String>,
    pub(crate) stream: bool,
    /// Where the options are in the request.
    pub(crate) fields: &'static Fields,
    /// Begins the answer.
    pub(crate) writer: Box<dyn FnOnce(Begun) -> Box<dyn ReplyWriter> + Send>,
}

/// A reply that has begun.
pub(crate) struct Begun {
    pub(crate) id: CompletionId,
    /// Counts of the prompt's tokens.
    pub(crate) prompt: Usage,
    pub(crate) model: Model,
}

/// An event of a streamed answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) name: Option<&'static str>,
    /// On one line.
    pub(crate) data: String,
}

impl Event {
    pub(crate) fn plain(data: impl Into<String>) -> Event {
        Event { name: None, data: data.into() }
    }

    pub(crate) fn named(name: &'static str, data: String) -> Event {
        Event { name: Some(name), data }
    }
}

/// Writes the answer to a request for a reply, event by event or as a whole.
pub(crate) trait ReplyWriter: Send {
    /// The events of a chunk.
    fn chunk(&mut self, chunk: &Chunk) -> Vec<Event>;

    /// The last events.
    fn finish(&mut self, finish: &Finish) -> Vec<Event>;

    /// The event of a stream that fails.
    fn error(&mut self, error: &ApiError) -> Event;

    /// Takes a chunk of an answer that is not streamed.
    fn collect(&mut self, chunk: Chunk) {
        drop(self.chunk(&chunk));
    }

    /// The whole answer, after all chunks.
    fn whole(&mut self, finish: &Finish) -> String;
}

/// A request for embeddings.
pub(crate) struct EmbeddingRequest {
    pub(crate) input: Vec<Input>,
    /// The model's name.
    pub(crate) model: Option<String>,
    pub(crate) writer: Box<dyn EmbeddingWriter>,
}

/// Writes the answer to a request for embeddings.
pub(crate) trait EmbeddingWriter: Send {
    /// Takes the vector of the next text.
    fn vector(&mut self, vector: &[f32]);

    /// The answer of the model with this name, whose texts had this many tokens.
    fn finish(self: Box<Self>, model: &str, tokens: usize) -> String;
}
