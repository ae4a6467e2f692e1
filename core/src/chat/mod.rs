//! Conversations as the model saw them in training: ChatML, as Qwen3's chat template renders it.
//!
//! Templates in files are data and are never executed; [`Template::detect`] looks at one to choose
//! between the two forms this module writes. Control tokens and the template's own markers (`<think>`,
//! `<tool_call>`, ...) come only from this module: messages, tool descriptions and tool results are plain
//! text, whatever they spell.
//!
//! # Keeping a session across turns
//!
//! The exact way is to [`encode`] the whole conversation each turn and keep the session's first
//! [`common_prefix`](crate::generate::common_prefix) tokens. Qwen3's template leaves the thoughts of earlier turns
//! out (and the empty ones that `thinking: Some(false)` puts in front of a reply), so that the prefix
//! ends where the last reply began, and the last exchange is fed a second time. [`encode_next`] gives the tokens that go
//! behind everything fed so far: nothing is fed twice and the model's own tokens stay as it chose them,
//! at the price that thoughts stay in the context. For [`Style::Plain`] both give the same text.
#![forbid(unsafe_code)]

mod conversation;
mod message;
pub mod openai;
mod options;
mod prefix;
mod reply;
mod template;

pub use conversation::{ChatModel, Conversation, Finish, Piece, Progress, SessionState, Usage, drive};
pub use message::{ChatMessage, FunctionCall};
pub use options::{OverflowPolicy, ResponseFormat, Thinking, ToolChoice, TurnOptions, function_name};
pub use prefix::PrefixState;
pub use reply::{CallBlocks, Reply, ReplyParser};
pub use template::{ChatOptions, Message, Role, Style, Template, ToolCall, encode, encode_next, render};
