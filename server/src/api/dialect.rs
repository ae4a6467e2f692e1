//! What an interface says of itself: its paths, and how its requests are read and its answers written.

use crate::error::{ApiError, Fields};
use serde_json::Value;
use shohin::core::Result;
use shohin::core::chat::fields::Reading;
use shohin::core::chat::openai::CompletionId;
use shohin::core::chat::{Chunk, Finish, TokenLogprob, Usage};
use shohin::{ChatMessage, Model, TurnOptions};
use std::time::SystemTime;

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

/// Reads the text of a request.
pub(crate) type Read<T> = fn(&str, &Reading) -> Result<T>;

/// What the server does at a path.
#[derive(Clone, Copy)]
pub(crate) enum Action {
    /// Computes a reply, whole or streamed.
    Reply(Read<ReplyRequest>),
    /// Counts the tokens of a conversation. Their number is written by the second function.
    Count(Read<ReplyRequest>, fn(usize) -> Value),
    /// Computes embeddings.
    Embed(Read<EmbeddingRequest>),
    /// Orders documents.
    Rerank(Read<super::RerankRequest>),
    /// Lists the models: the server's, then those with one of its adapters.
    Models(fn(&[ModelInfo]) -> Value),
    /// Describes the model that the rest of the path names.
    Model(fn(&ModelInfo) -> Value),
    /// Describes the model that a request names.
    Show(Read<Option<String>>, fn(&ModelInfo) -> Value),
    /// Answers by the model's tables alone.
    Convert(fn(&Model, &str, &Reading) -> std::result::Result<Value, ApiError>),
}

/// What is told of a model.
pub(crate) struct ModelInfo {
    pub(crate) name: String,
    /// The model without the adapter, if it has one.
    pub(crate) parent: Option<String>,
    /// Tokens of its context; `None` if it is not loaded.
    pub(crate) context: Option<usize>,
    /// When it was loaded.
    pub(crate) created: SystemTime,
    /// Maximum number of replies at once.
    pub(crate) slots: usize,
    /// `None` if it is not loaded.
    pub(crate) model: Option<Model>,
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
    /// What is between the text before it and the text after it.
    Between(String, String),
}

/// A request for a reply, or several.
pub(crate) struct ReplyRequest {
    /// At least one.
    pub(crate) prompts: Vec<PromptInput>,
    /// How many replies to each.
    pub(crate) n: usize,
    pub(crate) options: TurnOptions,
    /// Measures the tokens of the prompts, which are texts, with this many of the most likely ones.
    pub(crate) score: Option<usize>,
    /// The seed, if one was asked for; otherwise the server draws one. Each further reply has the next one.
    pub(crate) seed: Option<u64>,
    /// The model's name.
    pub(crate) model: Option<String>,
    pub(crate) stream: bool,
    /// Whether a streamed answer is lines, rather than events.
    pub(crate) lines: bool,
    /// Where the options are in the request.
    pub(crate) fields: Fields,
    /// Begins the answer.
    pub(crate) writer: Box<dyn FnOnce(Begun) -> Box<dyn ReplyWriter> + Send>,
}

/// A reply that has begun.
pub(crate) struct Begun {
    pub(crate) id: CompletionId,
    /// Counts of the first prompt's tokens.
    pub(crate) prompt: Usage,
    pub(crate) model: Model,
    /// The tokens of each prompt and what was measured of those after the first, if that was asked for.
    pub(crate) scores: Vec<(Vec<u32>, Vec<TokenLogprob>)>,
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

/// Writes the answer to a request for a reply, event by event or as a whole. Replies are numbered: those to the first prompt come
/// first. Where a request has one reply, its number is 0.
pub(crate) trait ReplyWriter: Send {
    /// The events of a reply's chunk.
    fn chunk(&mut self, reply: usize, chunk: &Chunk) -> Vec<Event>;

    /// The last events of a reply.
    fn finish(&mut self, reply: usize, finish: &Finish) -> Vec<Event>;

    /// The last events, when all replies have ended.
    fn end(&mut self) -> Vec<Event> {
        Vec::new()
    }

    /// The event of a stream that fails.
    fn error(&mut self, error: &ApiError) -> Event;

    /// Takes a chunk of an answer that is not streamed.
    fn collect(&mut self, reply: usize, chunk: Chunk) {
        drop(self.chunk(reply, &chunk));
    }

    /// The whole answer, after all chunks.
    fn whole(&mut self, replies: &[Finish]) -> String;
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
