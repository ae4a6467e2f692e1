//! Messages that own their text.
#![forbid(unsafe_code)]

use super::reply::Reply;
use super::template::{self, ChatOptions, Message, Role, ToolCall};
use crate::error::Result;
use crate::tokenizer::Tokenizer;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

/// A function call by the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionCall {
    /// Name of the function.
    pub name: String,
    /// Its arguments: a JSON text.
    pub arguments: String,
}

impl FunctionCall {
    /// Reads an element of [`Reply::calls`].
    ///
    /// # Errors
    /// As [`Reply::call`].
    pub fn parse(call: &str) -> Result<FunctionCall> {
        let (name, arguments) = Reply::call(call)?;
        Ok(FunctionCall { name, arguments: arguments.into() })
    }
}

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatMessage {
    /// The author.
    pub role: Role,
    /// The text.
    pub content: String,
    /// The model's reasoning before the text (only of an assistant). If `None`, it is taken from a `<think>`
    /// block in `content`.
    pub reasoning: Option<String>,
    /// Calls the model made (only of an assistant).
    pub tool_calls: Vec<FunctionCall>,
}

impl ChatMessage {
    /// A message with only text.
    pub fn new(role: Role, content: impl Into<String>) -> ChatMessage {
        ChatMessage { role, content: content.into(), reasoning: None, tool_calls: Vec::new() }
    }

    /// Instructions for the whole conversation.
    pub fn system(content: impl Into<String>) -> ChatMessage {
        ChatMessage::new(Role::System, content)
    }

    /// What the user says.
    pub fn user(content: impl Into<String>) -> ChatMessage {
        ChatMessage::new(Role::User, content)
    }

    /// A reply of the model, such as an example of one or one of an earlier conversation.
    pub fn assistant(content: impl Into<String>) -> ChatMessage {
        ChatMessage::new(Role::Assistant, content)
    }

    /// What a function returned that the model called.
    pub fn tool(content: impl Into<String>) -> ChatMessage {
        ChatMessage::new(Role::Tool, content)
    }

    /// The message as one text: reasoning and calls between their markers, as the model writes them.
    pub fn text(&self) -> String {
        let mut text = String::new();
        if let Some(reasoning) = self.reasoning.as_deref().filter(|reasoning| !reasoning.is_empty()) {
            text.extend(["<think>\n", reasoning, "\n</think>\n\n"]);
        }
        text.push_str(&self.content);
        for call in &self.tool_calls {
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str("<tool_call>\n{\"name\": ");
            crate::json::string(&call.name, &mut text);
            text.extend([", \"arguments\": ", &call.arguments, "}\n</tool_call>"]);
        }
        text
    }
}

impl From<&Reply> for ChatMessage {
    /// The assistant's message, without calls that cannot be parsed.
    fn from(reply: &Reply) -> ChatMessage {
        ChatMessage {
            role: Role::Assistant,
            content: reply.content.clone(),
            reasoning: reply.reasoning.clone().filter(|reasoning| !reasoning.is_empty()),
            tool_calls: reply.calls.iter().filter_map(|call| FunctionCall::parse(call).ok()).collect(),
        }
    }
}

/// Appends the ids of a whole conversation, as the model sees and writes it, for training: before each of its replies what it is given, then the reply up to the
/// control token that ends it. Returns where the replies are in `ids`. A reply without reasoning is one without thinking; what
/// follows the last reply is left out.
///
/// # Errors
/// As [`encode`](super::encode); [`Error::Argument`](crate::Error::Argument) if there is no reply.
pub fn encode_replies(
    tokenizer: &Tokenizer<'_>,
    messages: &[ChatMessage],
    options: &ChatOptions<'_>,
    ids: &mut Vec<u32>,
) -> Result<Vec<Range<usize>>> {
    lend(messages, |messages| template::encode_replies(tokenizer, messages, options, ids))
}

/// Calls `work` with messages borrowed for the template.
pub(super) fn lend<T>(messages: &[ChatMessage], work: impl FnOnce(&[Message<'_>]) -> T) -> T {
    let calls: Vec<Vec<ToolCall<'_>>> = messages
        .iter()
        .map(|m| m.tool_calls.iter().map(|c| ToolCall { name: &c.name, arguments: &c.arguments }).collect())
        .collect();
    let messages: Vec<Message<'_>> = messages
        .iter()
        .zip(&calls)
        .map(|(m, tool_calls)| Message {
            reasoning: m.reasoning.as_deref(),
            tool_calls,
            ..Message::new(m.role, &m.content)
        })
        .collect();
    work(&messages)
}
