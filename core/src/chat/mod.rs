//! Conversations: messages to tokens as the model saw them in training, and tokens back to replies.
//!
//! | step | type |
//! |---|---|
//! | a conversation over a session, turn by turn | [`Conversation`], driven by [`drive`] or by the host |
//! | messages to tokens, as the chat templates of Qwen3, SmolLM2 and Llama 3 render them | [`encode`], [`Template`] |
//! | streamed text to content, reasoning and tool calls | [`ReplyParser`] |
//! | several replies at once over one device | [`Scheduler`] |
//! | OpenAI's chat completions | [`openai`] |
//! | fields of requests in JSON, for other interfaces | [`fields`] |
//!
//! [`Template::detect`] inspects the template of a file to choose between the styles of this module. Templates are not
//! executed here; a host can bring a [`Renderer`] for those that are not built in, whose [`Rendering`] tells the template's own
//! text from what it shows. Only the template's own text forms control tokens and markers (`<think>`, `<tool_call>`, ...):
//! messages, tool descriptions and tool results are always plain text.
//!
//! # Keeping a session across turns
//!
//! [`Request::Respond`] encodes the whole conversation each turn and keeps the session's first
//! [`common_prefix`](crate::generate::common_prefix) tokens. Qwen3's template leaves out the reasoning of
//! earlier turns (and the empty block that `thinking: Some(false)` puts before a reply), so the prefix ends
//! where the last reply began, and the last exchange is computed a second time. [`Request::Send`]
//! appends the tokens of [`encode_next`]: nothing is computed twice and the model's own tokens are kept, but
//! reasoning stays in the context. For [`Style::Plain`] both give the same text, and for [`Style::Llama3`],
//! [`Style::Llama31`] and [`Style::Gemma`] up to spaces around replies.
#![forbid(unsafe_code)]

mod calls;
mod chunk;
mod conversation;
mod described;
pub mod fields;
mod file_style;
mod history;
mod message;
mod model;
pub mod openai;
mod options;
mod prefix_cache;
mod rendering;
mod reply;
mod results;
mod scheduler;
pub mod snapshot;
mod template;

pub use calls::CallForm;
pub use chunk::{Chunk, ChunkCollector, TokenLogprob};
pub use conversation::{
    Conversation, Finish, Piece, PrefixState, Progress, Request, SessionState, Usage, drive,
};
pub use file_style::FileStyle;
pub use history::{History, Known};
pub use message::{ChatMessage, FunctionCall, encode_replies};
pub use model::ChatModel;
pub use options::{
    Encoded, OverflowPolicy, ResponseFormat, Thinking, ToolChoice, TurnOptions, function_name,
};
pub use rendering::{Renderer, Rendering};
pub use reply::{CallBlocks, Reply, ReplyParser};
pub use results::ToolResults;
pub use scheduler::{Event, PrefixCacheStats, Prompt, ReplyId, Scheduler, SchedulerOptions};
pub use template::{
    ChatEncoder, ChatOptions, Message, Role, Style, Template, ToolCall, encode, encode_next, render,
};
