//! Qwen3 (and Bonsai): grouped-query attention with normalized heads, a gated feed-forward block.
//!
//! ```text
//! token -> embedding -> N x block -> RMSNorm -> head -> logits
//! block:  x += Wo attention(rope(norm(Wq n)), rope(norm(Wk n)), Wv n)   with n = RMSNorm(x)
//!         x += Wdown (silu(Wgate m) * Wup m)                            with m = RMSNorm(x)
//! ```
//!
//! Qwen3MoE has experts in place of the feed-forward block, of which the router picks a few for each token:
//!
//! ```text
//!         x += sum_e p_e Wdown_e (silu(Wgate_e m) * Wup_e m)           with p = softmax(Wrouter m), its largest
//! ```
//!
//! Some tokens skip the blocks with a router of a [mixture of depths](super::depths), in both.
#![forbid(unsafe_code)]

use super::builder::{Builder, Output};
use super::config::{Architecture, ModelConfig, nothing_else};
use super::hugging_face::{
    DECODER, DIMENSIONS, Described, EXPERTS, FEED_FORWARD, HEAD_NORMS, HuggingFace, MIXTURE, PLAIN,
    QUERIES_KEYS, SPARSE,
};
use super::program::{Program, RopePairing};

pub(super) const QWEN3: Described = Described {
    architecture: Architecture { name: "qwen3", experts: false, program, read: nothing_else },
    folder: HuggingFace {
        model_type: "qwen3",
        classes: &["Qwen3ForCausalLM"],
        fixed: &[PLAIN],
        settings: &[DIMENSIONS],
        tensors: &[DECODER, QUERIES_KEYS, HEAD_NORMS, FEED_FORWARD],
    },
};

pub(super) const QWEN3MOE: Described = Described {
    architecture: Architecture { name: "qwen3moe", experts: true, program, read: nothing_else },
    folder: HuggingFace {
        model_type: "qwen3_moe",
        classes: &["Qwen3MoeForCausalLM"],
        fixed: &[PLAIN, SPARSE],
        settings: &[DIMENSIONS, MIXTURE],
        tensors: &[DECODER, QUERIES_KEYS, HEAD_NORMS, EXPERTS],
    },
};

pub(super) fn program(c: &ModelConfig) -> Program {
    let mut p = Builder::new(c, RopePairing::Neox);
    let (embedding, stream) = p.embed("token_embd", c.vocab_size, c.hidden_size);
    for layer in 0..c.num_layers {
        p.block(layer);
        let routed = cfg!(feature = "variants") && c.depth_routers.contains(&layer);
        let x = if routed { p.select(stream) } else { stream };
        let n = p.rmsnorm(x, "attn_norm");
        p.attention_block(n, x, Some(["attn_q_norm", "attn_k_norm"]), c);

        let m = p.rmsnorm(x, "ffn_norm");
        if let Some(experts) = c.experts.filter(|_| cfg!(feature = "variants")) {
            p.experts(m, experts, x);
        } else {
            p.feed_forward(m, x, c);
        }
        if routed {
            p.merge(x, stream);
        }
    }
    let output = Output::of(c, embedding, "output");
    p.head(stream, "output_norm", output, c)
}
