//! The parts of a model that a conversation uses.
#![forbid(unsafe_code)]

use super::rendering::Renderer;
use super::template::{self, ChatOptions, Message, Style, Template};
use crate::constrain::Vocabulary;
use crate::error::{Error, Result};
use crate::sync::Arc;
use crate::tokenizer::Tokenizer;
use alloc::vec::Vec;

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
