//! BitNet b1.58: ternary weights, with norms of what the output matrices of a block read.
//!
//! ```text
//! token -> embedding -> N x block -> RMSNorm -> head -> logits
//! block:  x += Wo RMSNorm(attention(rope(Wq n), rope(Wk n), Wv n))   with n = RMSNorm(x)
//!         x += Wdown RMSNorm(f(Wgate m) * Wup m)                     with m = RMSNorm(x)
//! ```
//! `f` is the square of ReLU in BitNet b1.58 2B4T (Ma et al. 2025, arXiv 2504.12285), and SiLU in the models before it; only the
//! architecture's name tells which. These models were trained with activations in int8.
#![forbid(unsafe_code)]

use super::builder::{Builder, Output};
use super::config::{Architecture, ModelConfig, nothing_else};
use super::hugging_face::{
    DECODER, DIMENSIONS, Described, FEED_FORWARD, Fixed, HuggingFace, QUERIES_KEYS, TensorName, fixed,
    plain_tensor,
};
use super::llama;
use super::program::{Activation, Program, RopePairing};

/// Of Microsoft.
pub(super) const BITNET_B158: Described = Described {
    architecture: Architecture { name: "bitnet-b1.58", experts: false, program: squared, read: nothing_else },
    folder: HuggingFace {
        model_type: "bitnet",
        classes: &["BitNetForCausalLM"],
        fixed: &[FIXED],
        settings: &[DIMENSIONS, llama::SETTINGS],
        tensors: &[DECODER, QUERIES_KEYS, SUB_NORMS, FEED_FORWARD],
    },
};

/// Of 1bitLLM, whose folders have code of their own.
pub(super) const BITNET: Described = Described {
    architecture: Architecture { name: "bitnet", experts: false, program: plain, read: nothing_else },
    folder: HuggingFace {
        model_type: "llama",
        classes: &["BitnetForCausalLM"],
        fixed: &[PLAIN],
        settings: &[DIMENSIONS, llama::SETTINGS],
        tensors: &[DECODER, QUERIES_KEYS, INNER_NORMS, FEED_FORWARD],
    },
};

const FIXED: &[Fixed] =
    &[fixed("attention_bias", "false", "false", true), fixed("hidden_act", "\"relu2\"", "relu2", true)];

const PLAIN: &[Fixed] =
    &[fixed("attention_bias", "false", "false", true), fixed("hidden_act", "\"silu\"", "silu", true)];

const SUB_NORMS: &[TensorName] = &[
    plain_tensor("model.layers.*.self_attn.attn_sub_norm.weight", "blk.*.attn_sub_norm.weight"),
    plain_tensor("model.layers.*.mlp.ffn_sub_norm.weight", "blk.*.ffn_sub_norm.weight"),
];

const INNER_NORMS: &[TensorName] = &[
    plain_tensor("model.layers.*.self_attn.inner_attn_ln.weight", "blk.*.attn_sub_norm.weight"),
    plain_tensor("model.layers.*.mlp.ffn_layernorm.weight", "blk.*.ffn_sub_norm.weight"),
];

fn squared(c: &ModelConfig) -> Program {
    program(c, Activation::Relu2)
}

fn plain(c: &ModelConfig) -> Program {
    program(c, Activation::Silu)
}

fn program(c: &ModelConfig, activation: Activation) -> Program {
    let mut p = Builder::new(c, RopePairing::Neox);
    let (embedding, x) = p.embed("token_embd", c.vocab_size, c.hidden_size);
    for layer in 0..c.num_layers {
        p.block(layer);
        let n = p.rmsnorm(x, "attn_norm");
        let qkv = p.linear_qkv(n, c);
        p.rope_store(qkv, None, c);
        let attended = p.attention(qkv[0], c);
        let attended = p.rmsnorm_in(attended, "attn_sub_norm", "normalized");
        p.linear_add(attended, "attn_output", x);

        let m = p.rmsnorm(x, "ffn_norm");
        let gated = p.linear_gated(m, activation, "ffn_gate", "ffn_up", c.intermediate_size);
        let gated = p.rmsnorm_in(gated, "ffn_sub_norm", "normalized");
        p.linear_add(gated, "ffn_down", x);
    }
    let output = Output::of(c, embedding, "output");
    p.head(x, "output_norm", output, c)
}
