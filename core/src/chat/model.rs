//! The parts of a model that a conversation uses.
#![forbid(unsafe_code)]

use super::calls::CallForm;
use super::message::{ChatMessage, encode_replies, lend};
use super::prefix_cache::common;
use super::rendering::Renderer;
use super::template::{self, ChatOptions, Message, Role, Style, Template};
use crate::constrain::Vocabulary;
use crate::error::{Error, Name, Result};
use crate::sync::Arc;
use crate::tokenizer::Tokenizer;
use alloc::vec::Vec;
use core::ops::Range;

/// The parts of a model that a conversation needs besides its logits.
#[derive(Clone, Copy)]
pub struct ChatModel<'m> {
    /// Its tokenizer.
    pub tokenizer: &'m Tokenizer<'m>,
    /// Its chat template.
    pub template: Template,
    /// Renders conversations if the template is [`Style::File`].
    pub renderer: Option<&'m dyn Renderer>,
    /// Number of logits.
    pub logits: usize,
    /// Returns the tokenizer's vocabulary prepared for constraints. It takes a while to build, so a host
    /// builds it on first use.
    pub vocabulary: &'m dyn Fn() -> Arc<Vocabulary>,
}

impl ChatModel<'_> {
    /// The form in which the model writes calls.
    pub fn call_form(&self) -> CallForm {
        self.template.style.calls().unwrap_or_default()
    }

    /// As [`encode_replies`](super::encode_replies), also with the template of a file. That may leave out parts of earlier replies
    /// once there are more: what is learned is what it shows of them.
    ///
    /// # Errors
    /// As [`encode_replies`](super::encode_replies) and [`Renderer::render`].
    pub fn encode_replies(
        &self,
        messages: &[ChatMessage],
        tools: &[&str],
        ids: &mut Vec<u32>,
    ) -> Result<Vec<Range<usize>>> {
        let options = ChatOptions { template: self.template, tools, ..ChatOptions::default() };
        match self.template.style {
            Style::File(_) => lend(messages, |messages| self.encode_shown(messages, &options, ids)),
            Style::Qwen3
            | Style::Qwen3Thinking
            | Style::Qwen3Instruct
            | Style::Plain
            | Style::Llama3
            | Style::Llama31
            | Style::Gemma => encode_replies(self.tokenizer, messages, &options, ids),
        }
    }

    /// As [`ChatModel::encode_replies`], of what the template of a file shows.
    fn encode_shown(
        &self,
        messages: &[Message<'_>],
        options: &ChatOptions<'_>,
        ids: &mut Vec<u32>,
    ) -> Result<Vec<Range<usize>>> {
        let is_reply = |message: &Message<'_>| message.role == Role::Assistant;
        let messages = messages.get(..=messages.iter().rposition(is_reply).unwrap_or(0)).unwrap_or_default();
        let thinks = |message: &Message<'_>| message.reasoning.is_some_and(|reasoning| !reasoning.is_empty());
        let prompt = ChatOptions { thinking: Some(messages.iter().any(thinks)), ..*options };
        let closed = ChatOptions { add_generation_prompt: false, ..prompt };
        let whole = self.encode(messages, &closed)?;
        let (begin, mut replies, mut end) = (ids.len(), Vec::new(), 0);
        for (i, _) in messages.iter().enumerate().filter(|(_, message)| is_reply(message)) {
            // How many tokens of the whole are known before the reply, up to where it begins, and up to where it ends.
            let upto = |count: usize, options: &ChatOptions<'_>| -> Result<usize> {
                match messages.get(..count).unwrap_or_default() {
                    [] => Ok(0),
                    messages => Ok(common(&self.encode(messages, options)?, &whole)),
                }
            };
            let (before, start, stop) = (upto(i, &closed)?, upto(i, &prompt)?, upto(i + 1, &closed)?);
            // The last reply may be shown otherwise than one that has been answered.
            let answered = whole.get(start..upto(messages.len().min(i + 2), &closed)?).unwrap_or_default();
            let last = answered.iter().position(|id| self.tokenizer.is_end(*id));
            let stop = last.map_or(stop, |last| start + last + 1);
            if start >= before.max(end) && stop > start {
                replies.push(begin + start..begin + stop);
                end = stop;
            }
        }
        if replies.is_empty() {
            let problem = "needs a message of the assistant to learn from";
            return Err(error!(Argument { name: Name::new("messages"), problem }));
        }
        ids.extend(whole.into_iter().take(end));
        Ok(replies)
    }

    /// The tokens of a conversation.
    ///
    /// # Errors
    /// As [`encode`](super::encode) and [`Renderer::render`].
    pub(super) fn encode(&self, messages: &[Message<'_>], options: &ChatOptions<'_>) -> Result<Vec<u32>> {
        let Style::File(file) = options.template.style else {
            return template::encode(self.tokenizer, messages, options);
        };
        let uses_tools = |m: &Message<'_>| !m.tool_calls.is_empty();
        if file.calls.is_none() && (!options.tools.is_empty() || messages.iter().any(uses_tools)) {
            return Err(error!(Template { lacks: "tools" }));
        }
        let Some(renderer) = self.renderer else {
            return Err(error!(Template { lacks: "form that is built in" }));
        };
        let mut ids = Vec::new();
        renderer.render(messages, options)?.encode(self.tokenizer, &options.encode, &mut ids);
        Ok(ids)
    }
}
