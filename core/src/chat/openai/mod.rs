//! Requests and answers in the form of OpenAI's chat completions, as JSON texts.
//!
//! A request's fields are those of OpenAI's reference that this runtime follows; others, also within objects, are
//! refused unless they are null, so that none is left out unnoticed; a host that answers clients which cannot be changed reads
//! requests with a [`Reading`](super::fields::Reading) that lists them instead. Some are taken and left aside: those that are for a
//! service's own use, of a message `name`, `refusal` and `annotations`, and what clients add to messages that they have
//! read: `parsed` and `parsed_arguments`. Results of tools are matched to calls by their ids, or without ids by their
//! order. Three go beyond the reference: `thinking` (a boolean, or an object with a `budget`
//! of tokens), `overflow` (`error`, `trim` or `shift`), and `reasoning` in an assistant's message,
//! which may be called `reasoning_content` or be the texts of `reasoning_details`.
#![forbid(unsafe_code)]

pub mod answer;
pub mod request;

pub use answer::{ChunkWriter, CompletionId, completion, completion_of, messages_json};
pub use request::{ChatCompletionRequest, parse_messages};
