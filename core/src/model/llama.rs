//! Llama (and SmolLM2): grouped-query attention with interleaved RoPE, a gated feed-forward block.
//!
//! ```text
//! token -> embedding -> N x block -> RMSNorm -> head -> logits
//! block:  x += Wo attention(rope(Wq n), rope(Wk n), Wv n)   with n = RMSNorm(x)
//!         x += Wdown (silu(Wgate m) * Wup m)                with m = RMSNorm(x)
//! ```
//! GGUF files of this architecture store `Wq` and `Wk` with their rows permuted, so that elements `2 i` and
//! `2 i + 1` of a head are rotated together; in the original model these are `i` and `i + head_dim / 2`.
#![forbid(unsafe_code)]

use super::builder::{Builder, Output};
use super::config::{Architecture, ModelConfig, nothing_else};
use super::hugging_face::{
    Absent, DECODER, DIMENSIONS, Described, FEED_FORWARD, HuggingFace, INTERLEAVED_QUERIES_KEYS, PLAIN,
    Setting, SettingValue,
};
use super::program::{Program, RopePairing};

pub(super) const LLAMA: Described = Described {
    architecture: Architecture { name: "llama", experts: false, program, read: nothing_else },
    folder: HuggingFace {
        model_type: "llama",
        classes: &["LlamaForCausalLM"],
        fixed: &[PLAIN],
        settings: &[DIMENSIONS, SETTINGS],
        tensors: &[DECODER, INTERLEAVED_QUERIES_KEYS, FEED_FORWARD],
    },
};

/// What llama.cpp's converter writes for no other architecture.
pub(super) const SETTINGS: &[Setting] = &[
    Setting {
        names: &[],
        key: "rope.dimension_count",
        value: SettingValue::Whole(ModelConfig::rotated_len),
        absent: Absent::Same("attention.key_length"),
    },
    Setting {
        names: &["vocab_size"],
        key: "vocab_size",
        value: SettingValue::Whole(|c| c.vocab_size),
        absent: Absent::Refused,
    },
];

/// The forward pass of decoders like Llama, with the biases, scales and layers of `c`.
pub(super) fn decoder(c: &ModelConfig, pairing: RopePairing) -> Program {
    let mut p = Builder::new(c, pairing);
    let (embedding, x) = p.embed("token_embd", c.vocab_size, c.hidden_size);
    p.scale(x, c.scales.embedding);
    for layer in 0..c.num_layers {
        p.block(layer);
        let n = p.rmsnorm(x, "attn_norm");
        p.attention_block(n, x, None, c);
        let m = p.rmsnorm(x, "ffn_norm");
        p.feed_forward(m, x, c);
    }
    let output = Output::of(c, embedding, "output");
    p.head(x, "output_norm", output, c)
}

fn program(c: &ModelConfig) -> Program {
    decoder(c, RopePairing::Interleaved)
}
