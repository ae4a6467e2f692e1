//! Requests and answers in the form of OpenAI's chat completions, as JSON texts.
//!
//! A request's fields are those of OpenAI's reference that this runtime follows; others, also within objects, are
//! refused unless they are null, so that none is left out unnoticed. Some are taken and left aside: those that are for a
//! service's own use, of a message `name`, `refusal` and `annotations`, and what clients add to messages that they have
//! read: `parsed` and `parsed_arguments`. Results of tools are matched to calls by their ids, or without ids by their
//! order. Three go beyond the reference: `thinking` (a boolean, or an object with a `budget`
//! of tokens), `overflow` (`error`, `trim` or `shift`), and `reasoning` in an assistant's message.
#![forbid(unsafe_code)]

pub mod answer;
pub mod request;

pub use answer::{ChunkWriter, CompletionId, completion, messages_json};
pub use request::{ChatCompletionRequest, parse_messages};
