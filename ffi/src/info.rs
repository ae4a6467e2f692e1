//! Handles as C sees them, and facts about models and replies.

use crate::argument::Versioned;
use core::mem::size_of;

/// A loaded model.
#[derive(Debug)]
pub struct shohin_model {
    _opaque: [u8; 0],
}

/// A conversation.
#[derive(Debug)]
pub struct shohin_chat {
    _opaque: [u8; 0],
}

/// Facts about a model.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct shohin_model_info {
    /// Bytes of this struct.
    pub size: usize,
    /// Number of tokens in the vocabulary: the length of logits.
    pub vocab_size: usize,
    /// Length of an embedding.
    pub embedding_size: usize,
    /// The longest context it supports, in tokens.
    pub max_context: usize,
    /// The context of its chats, in tokens.
    pub context: usize,
    /// Bytes of the weights in memory.
    pub weight_bytes: usize,
    /// Number of threads.
    pub threads: usize,
    /// Whether it can reason before it answers.
    pub can_think: usize,
    /// Whether it can call functions.
    pub can_call: usize,
    /// Number of its adapters.
    pub adapters: usize,
}

impl Default for shohin_model_info {
    fn default() -> Self {
        shohin_model_info {
            size: size_of::<Self>(),
            vocab_size: 0,
            embedding_size: 0,
            max_context: 0,
            context: 0,
            weight_bytes: 0,
            threads: 0,
            can_think: 0,
            can_call: 0,
            adapters: 0,
        }
    }
}

// SAFETY: `size` is first, and the other fields are integers.
unsafe impl Versioned for shohin_model_info {
    const NAME: &'static str = "model info";
    const FIRST: usize = size_of::<Self>();
}

/// Token counts and times of a reply.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct shohin_usage {
    /// Bytes of this struct.
    pub size: usize,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens that were in the KV cache.
    pub cached_tokens: usize,
    /// Tokens of the reply.
    pub reply_tokens: usize,
    /// Seconds from the beginning to the first token.
    pub prompt_seconds: f64,
    /// Seconds from the first token to the end.
    pub reply_seconds: f64,
    /// Tokens that the KV cache holds.
    pub position: usize,
    /// Maximum number of tokens that fit into it.
    pub capacity: usize,
    /// Guessed tokens that were checked, in the whole conversation.
    pub guesses_checked: usize,
    /// Those that were right.
    pub guesses_right: usize,
}

impl Default for shohin_usage {
    fn default() -> Self {
        shohin_usage {
            size: size_of::<Self>(),
            prompt_tokens: 0,
            cached_tokens: 0,
            reply_tokens: 0,
            prompt_seconds: 0.0,
            reply_seconds: 0.0,
            position: 0,
            capacity: 0,
            guesses_checked: 0,
            guesses_right: 0,
        }
    }
}

// SAFETY: `size` is first, and the other fields are numbers.
unsafe impl Versioned for shohin_usage {
    const NAME: &'static str = "usage";
    const FIRST: usize = size_of::<Self>();
}
