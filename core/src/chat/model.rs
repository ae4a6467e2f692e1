//! The parts of a model that a conversation uses.
#![forbid(unsafe_code)]

use super::template::Template;
use crate::constrain::Vocabulary;
use crate::sync::Arc;
use crate::tokenizer::Tokenizer;

/// The parts of a model that a conversation needs besides its logits.
#[derive(Clone, Copy)]
pub struct ChatModel<'m> {
    /// Its tokenizer.
    pub tokenizer: &'m Tokenizer<'m>,
    /// Its chat template.
    pub template: Template,
    /// Number of logits.
    pub logits: usize,
    /// Returns the tokenizer's vocabulary prepared for constraints. It takes a while to build, so a host
    /// builds it on first use.
    pub vocabulary: &'m dyn Fn() -> Arc<Vocabulary>,
}
