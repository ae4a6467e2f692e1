//! Conversations: messages to tokens as the model saw them in training, and tokens back to replies.
//!
//! | step | type |
//! |---|---|
//! | a conversation with a session, turn after turn | [`Conversation`], driven by [`drive`] or by the host |
//! | messages to tokens: ChatML, as Qwen3's chat template renders it | [`encode`], [`Template`] |
//! | text to content, thoughts and tool calls, while it comes | [`ReplyParser`] |
//! | OpenAI's requests and answers | [`openai`] |
//!
//! Templates in files are data and are never executed; [`Template::detect`] looks at one to choose
//! between the two forms this module writes. Control tokens and the template's own markers (`<think>`,
//! `<tool_call>`, ...) come only from this module: messages, tool descriptions and tool results are plain
//! text, whatever they spell.
//!
//! # Keeping a session across turns
//!
//! [`Conversation::respond`] encodes the whole conversation each turn and keeps the session's first
//! [`common_prefix`](crate::generate::common_prefix) tokens. Qwen3's template leaves out the thoughts of earlier turns
//! (and the empty ones that `thinking: Some(false)` puts before a reply), so that the prefix ends where the last reply
//! began, and the last exchange is computed a second time. [`Conversation::send`] appends the tokens that
//! [`encode_next`] gives: nothing is computed twice and the model's own tokens stay as it chose them, at the price
//! that thoughts stay in the context. For [`Style::Plain`] both give the same text.
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
