//! LFM2: short convolutions with gates in most layers, grouped-query attention with normalized heads in the others.
//!
//! ```text
//! token -> embedding -> N x block -> RMSNorm -> head -> logits
//! block:  x += Wout (C conv(B X))   with B, C, X = thirds of Win n   or   x += Wo attention(...)   with n = RMSNorm(x)
//!         x += Wdown (silu(Wgate m) * Wup m)                                                       with m = RMSNorm(x)
//! ```
//! Liquid AI (2025), arXiv 2511.23404. In GGUF files the last norm is called `token_embd_norm`.
#![forbid(unsafe_code)]

use super::builder::{Builder, Output};
use super::config::{Architecture, ModelConfig, Recurrence};
use super::hugging_face::{
    Absent, Described, Fixed, HuggingFace, Setting, SettingValue, TensorName, fixed, plain_tensor, setting,
};
use super::keys::Keys;
use super::program::{Program, RopePairing};
use crate::error::Result;
use crate::gguf::Header;

const TAPS: &str = "shortconv.l_cache";

pub(super) const LFM2: Described = Described {
    architecture: Architecture { name: "lfm2", experts: false, program, read },
    folder: HuggingFace {
        model_type: "lfm2",
        classes: &["Lfm2ForCausalLM"],
        fixed: &[FIXED],
        settings: &[SETTINGS],
        tensors: &[TENSORS],
    },
};

const FIXED: &[Fixed] = &[fixed("conv_bias", "false", "false", true)];

const SETTINGS: &[Setting] = &[
    setting(&["num_hidden_layers"], "block_count", SettingValue::Whole(|c| c.num_layers)),
    setting(&["max_position_embeddings"], "context_length", SettingValue::Whole(|c| c.max_context_length)),
    setting(&["hidden_size"], "embedding_length", SettingValue::Whole(|c| c.hidden_size)),
    setting(&["intermediate_size"], "feed_forward_length", SettingValue::AdjustedWidth),
    setting(&["num_attention_heads"], "attention.head_count", SettingValue::Whole(|c| c.num_attention_heads)),
    setting(&["num_key_value_heads"], "attention.head_count_kv", SettingValue::KeyValueHeads),
    Setting {
        absent: Absent::Quotient("embedding_length", "attention.head_count"),
        ..setting(&["head_dim"], "attention.key_length", SettingValue::Whole(|c| c.head_dim))
    },
    Setting {
        absent: Absent::Same("attention.key_length"),
        ..setting(&[], "attention.value_length", SettingValue::Whole(|c| c.head_dim))
    },
    setting(&["norm_eps"], "attention.layer_norm_rms_epsilon", SettingValue::Number(|c| c.rms_norm_eps)),
    setting(&["conv_L_cache"], TAPS, SettingValue::Whole(|c| c.recurrence.map_or(0, |r| r.taps))),
    setting(&["vocab_size"], "vocab_size", SettingValue::Whole(|c| c.vocab_size)),
];

const TENSORS: &[TensorName] = &[
    plain_tensor("model.embed_tokens.weight", "token_embd.weight"),
    plain_tensor("lm_head.weight", "output.weight"),
    plain_tensor("model.embedding_norm.weight", "token_embd_norm.weight"),
    plain_tensor("model.layers.*.operator_norm.weight", "blk.*.attn_norm.weight"),
    plain_tensor("model.layers.*.conv.in_proj.weight", "blk.*.shortconv.in_proj.weight"),
    plain_tensor("model.layers.*.conv.conv.weight", "blk.*.shortconv.conv.weight"),
    plain_tensor("model.layers.*.conv.out_proj.weight", "blk.*.shortconv.out_proj.weight"),
    plain_tensor("model.layers.*.self_attn.q_proj.weight", "blk.*.attn_q.weight"),
    plain_tensor("model.layers.*.self_attn.k_proj.weight", "blk.*.attn_k.weight"),
    plain_tensor("model.layers.*.self_attn.v_proj.weight", "blk.*.attn_v.weight"),
    plain_tensor("model.layers.*.self_attn.out_proj.weight", "blk.*.attn_output.weight"),
    plain_tensor("model.layers.*.self_attn.q_layernorm.weight", "blk.*.attn_q_norm.weight"),
    plain_tensor("model.layers.*.self_attn.k_layernorm.weight", "blk.*.attn_k_norm.weight"),
    plain_tensor("model.layers.*.ffn_norm.weight", "blk.*.ffn_norm.weight"),
    plain_tensor("model.layers.*.feed_forward.w1.weight", "blk.*.ffn_gate.weight"),
    plain_tensor("model.layers.*.feed_forward.w3.weight", "blk.*.ffn_up.weight"),
    plain_tensor("model.layers.*.feed_forward.w2.weight", "blk.*.ffn_down.weight"),
];

fn read(c: &mut ModelConfig, meta: &Keys<'_, '_>, _: &Header<'_>) -> Result<()> {
    let taps = meta.size(TAPS, None)?;
    c.recurrence = Some(Recurrence { taps, ..Recurrence::default() });
    Ok(())
}

fn program(c: &ModelConfig) -> Program {
    let mut p = Builder::new(c, RopePairing::Neox);
    let (embedding, x) = p.embed("token_embd", c.vocab_size, c.hidden_size);
    for layer in 0..c.num_layers {
        p.block(layer);
        let n = p.rmsnorm(x, "attn_norm");
        if c.layers.is_recurrent(layer) {
            let [mixed] = p.linear(n, [("shortconv.in_proj", "mixed", 3 * c.hidden_size)]);
            let y = p.conv(mixed, "shortconv.conv", c);
            p.linear_add(y, "shortconv.out_proj", x);
        } else {
            p.attention_block(n, x, Some(["attn_q_norm", "attn_k_norm"]), c);
        }
        let m = p.rmsnorm(x, "ffn_norm");
        p.feed_forward(m, x, c);
    }
    let output = Output::of(c, embedding, "output");
    p.head(x, "token_embd_norm", output, c)
}
