//! The messages of a conversation as they were encoded.
#![forbid(unsafe_code)]

use super::ChatMessage;
use alloc::string::String;
use alloc::vec::Vec;

/// The messages of a conversation, and the tokens that they were encoded as.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// The messages.
    pub messages: Vec<ChatMessage>,
    /// All their tokens, including dropped ones, up to the last reply; those of replies are the ones that the model chose.
    /// Empty if the messages were never encoded.
    pub tokens: Vec<u32>,
    /// The tools that the tokens describe.
    pub tools: Vec<String>,
    /// What precedes the messages that the last reply answers.
    pub known: Known,
    /// Index into `tokens` of the last reply.
    pub reply_start: usize,
}

/// How much of a conversation precedes some of its messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Messages before them.
    pub messages: usize,
    /// Tokens before them; 0 if everything is encoded again.
    pub tokens: usize,
}

impl From<Vec<ChatMessage>> for History {
    fn from(messages: Vec<ChatMessage>) -> History {
        History { messages, ..History::default() }
    }
}
