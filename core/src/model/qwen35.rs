//! Qwen3.5 and Bonsai 27B: linear attention by the gated delta rule in most layers, attention with a gate in the others.
//!
//! ```text
//! token -> embedding -> N x block -> RMSNorm -> head -> logits
//! block:  x += mixer(RMSNorm(x))
//!         x += Wdown (silu(Wgate m) * Wup m)   with m = RMSNorm(x)
//! linear: q, k, v = silu(conv(Wqkv n));  o = delta rule(q, k, v, Walpha n, Wbeta n);  Wout (RMSNorm(o) silu(Wz n))
//! full:   q, g = Wq n;  Wo (attention(rope(norm(q)), rope(norm(Wk n)), Wv n) sigmoid(g))
//! ```
//! A quarter of each head is rotated. In GGUF files the norm before the feed-forward block is called `post_attention_norm`, and
//! value head `h` has the keys of head `h % key heads`.
#![forbid(unsafe_code)]

use super::builder::{Builder, Output, Stream};
use super::config::{Architecture, LayerKinds, ModelConfig, Recurrence};
use super::hugging_face::{Described, HuggingFace};
use super::keys::{Keys, bad};
use super::program::{Activation, Program, RopePairing};
use crate::error::Result;
use crate::gguf::Header;

const INTERVAL: &str = "full_attention_interval";
const NEXT: &str = "nextn_predict_layers";

pub(super) const QWEN35: Described = Described {
    architecture: Architecture { name: "qwen35", experts: false, program, read },
    folder: HuggingFace {
        model_type: "qwen3_5_text",
        classes: &["Qwen3_5ForCausalLM"],
        fixed: &[],
        settings: &[],
        tensors: &[],
    },
};

fn read(c: &mut ModelConfig, meta: &Keys<'_, '_>, _: &Header<'_>) -> Result<()> {
    let next = meta.size(NEXT, Some(0))?;
    if next > 0 {
        return Err(bad(meta.architecture, NEXT, next as f64, "0: multi-token prediction is not supported"));
    }
    let size = |key| meta.size(key, None);
    let inner = size("ssm.inner_size")?;
    let recurrence = Recurrence {
        taps: size("ssm.conv_kernel")?,
        key_heads: size("ssm.group_count")?,
        value_heads: size("ssm.time_step_rank")?,
        head_dim: size("ssm.state_size")?,
    };
    c.recurrence = Some(recurrence);
    // Checked here, as tensors' shapes follow from the others.
    if recurrence.value_heads.checked_mul(recurrence.head_dim) != Some(inner) {
        let expected = "time_step_rank * state_size";
        return Err(bad(meta.architecture, "ssm.inner_size", inner as f64, expected));
    }
    c.layers.recurrent = match meta.bools("attention.recurrent_layers", c.num_layers)? {
        Some(recurrent) => LayerKinds::of(c.num_layers, |layer| recurrent.get(layer) == Some(&true)),
        None => {
            let interval = meta.size(INTERVAL, Some(4))?;
            if interval == 0 {
                return Err(bad(meta.architecture, INTERVAL, 0.0, "at least 1"));
            }
            LayerKinds::of(c.num_layers, |layer| !(layer + 1).is_multiple_of(interval))
        }
    };
    Ok(())
}

fn program(c: &ModelConfig) -> Program {
    let mut p = Builder::new(c, RopePairing::Neox);
    let (embedding, x) = p.embed("token_embd", c.vocab_size, c.hidden_size);
    for layer in 0..c.num_layers {
        p.block(layer);
        let n = p.rmsnorm(x, "attn_norm");
        match c.recurrence.filter(|_| c.layers.is_recurrent(layer)) {
            Some(r) => linear_attention(&mut p, n, x, r, c),
            None => full_attention(&mut p, n, x, c),
        }
        let m = p.rmsnorm(x, "post_attention_norm");
        p.feed_forward(m, x, c);
    }
    let output = Output::of(c, embedding, "output");
    p.head(x, "output_norm", output, c)
}

fn linear_attention(p: &mut Builder, n: Stream, x: Stream, r: Recurrence, c: &ModelConfig) {
    let values = r.value_heads * r.head_dim;
    let [qkv, z, alpha, beta] = p.linear(
        n,
        [
            ("attn_qkv", "mixed", 2 * r.key_heads * r.head_dim + values),
            ("attn_gate", "z", values),
            ("ssm_alpha", "alpha", r.value_heads),
            ("ssm_beta", "beta", r.value_heads),
        ],
    );
    let qkv = p.conv(qkv, "ssm_conv1d", c);
    let o = p.delta_net([qkv, alpha, beta], ["ssm_a", "ssm_dt"], r);
    p.gated_norm(o, z, "ssm_norm", r.head_dim);
    p.linear_add(o, "ssm_out", x);
}

fn full_attention(p: &mut Builder, n: Stream, x: Stream, c: &ModelConfig) {
    let (q, kv) = (c.q_size(), c.kv_size());
    let [both, k, v] =
        p.linear(n, [("attn_q", "q and gate", 2 * q), ("attn_k", "k", kv), ("attn_v", "v", kv)]);
    let [q, gate] = p.split_heads(both, ["q", "z"], c);
    p.rope_store([q, k, v], Some(["attn_q_norm", "attn_k_norm"]), c);
    let attended = p.attention(q, c);
    let attended = p.gated(gate, attended, Activation::Sigmoid);
    p.linear_add(attended, "attn_output", x);
}
