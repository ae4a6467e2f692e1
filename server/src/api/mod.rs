//! The interfaces that the server speaks: a file or folder each, and a row in [`DIALECTS`].

mod anthropic;
mod dialect;
mod llama_cpp;
mod lora;
mod ollama;
mod openai;
mod rerank;
#[cfg(test)]
mod tests;
mod tools;

pub(crate) use dialect::{
    Action, Begun, Dialect, EmbeddingRequest, Event, Input, ModelInfo, PromptInput, Read, ReplyRequest,
    ReplyWriter,
};

pub(crate) use rerank::RerankRequest;

pub(crate) use lora::{AskedAdapter, Which, finite, take as take_adapters};

use shohin::core::chat::fields::Reading;

/// All interfaces.
pub(crate) static DIALECTS: [&dyn Dialect; 5] =
    [&anthropic::Anthropic, &openai::OpenAi, &ollama::Ollama, &llama_cpp::LlamaCpp, &rerank::Rerank];

/// The interface whose errors are answered where no interface has a path.
pub(crate) static DEFAULT: &dyn Dialect = &openai::OpenAi;

/// The interface that this path is of.
pub(crate) fn dialect(path: &str) -> &'static dyn Dialect {
    let is_below =
        |route: &str| path.strip_prefix(route).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let owns = |dialect: &&&dyn Dialect| dialect.routes().iter().any(|route| is_below(route.path));
    DIALECTS.iter().find(owns).map_or(DEFAULT, |dialect| *dialect)
}

/// What each interface reads of a request for a reply, for fuzzing: the conversation, which is empty for a text to be
/// continued, and how to reply.
#[doc(hidden)]
pub fn read_requests(
    text: &str,
) -> Vec<shohin::core::Result<(Vec<shohin::ChatMessage>, shohin::TurnOptions)>> {
    let text = match lora::take(text) {
        Ok((text, _)) => text,
        Err(error) => return Vec::from([Err(error)]),
    };
    let text = &*text;
    let mut read = Vec::new();
    for route in DIALECTS.iter().flat_map(|dialect| dialect.routes()) {
        for reading in [true, false].map(Reading::new) {
            read.push(match route.action {
                Action::Reply(reply) | Action::Count(reply, _) => {
                    reply(text, &reading).map(|request| match request.prompts.into_iter().next() {
                        Some(PromptInput::Messages(messages)) => (messages, request.options),
                        _ => (Vec::new(), request.options),
                    })
                }
                Action::Embed(embed) => embed(text, &reading).map(|_| Default::default()),
                Action::Rerank(rerank) => rerank(text, &reading).map(|_| Default::default()),
                Action::Models(_) | Action::Model(_) | Action::Show(..) | Action::Convert(_) => continue,
            });
        }
    }
    read
}
