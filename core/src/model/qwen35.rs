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
use super::hugging_face::RowOrder::{MixedValueHeads, ValueHeadColumns, ValueHeads};
use super::hugging_face::SettingValue::Whole;
use super::hugging_face::{
    Absent, DIMENSIONS, Described, FEED_FORWARD, Fixed, FixedValue, HuggingFace, Setting, SettingValue,
    TensorName, Values, fixed, norm_plus_one, plain_tensor, setting, tensor,
};
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
        fixed: &[FIXED],
        settings: &[DIMENSIONS, SETTINGS],
        tensors: &[TENSORS, FEED_FORWARD],
    },
};

const FIXED: &[Fixed] = &[
    fixed("attention_bias", "false", "false", true),
    fixed("hidden_act", "\"silu\"", "silu", true),
    fixed("attn_output_gate", "true", "true", false),
    Fixed {
        name: "linear_value_head_dim",
        value: FixedValue::Same("ssm.state_size"),
        expected: "the same as linear_key_head_dim",
        written: true,
    },
];

const SETTINGS: &[Setting] = &[
    setting(&[], "rope.dimension_count", SettingValue::RotatedShare),
    setting(&["linear_conv_kernel_dim"], "ssm.conv_kernel", Whole(|c| shape(c).taps)),
    setting(&["linear_key_head_dim"], "ssm.state_size", Whole(|c| shape(c).head_dim)),
    setting(&["linear_num_key_heads"], "ssm.group_count", Whole(|c| shape(c).key_heads)),
    setting(&["linear_num_value_heads"], "ssm.time_step_rank", Whole(|c| shape(c).value_heads)),
    Setting {
        absent: Absent::Product("ssm.time_step_rank", "ssm.state_size"),
        ..setting(&[], "ssm.inner_size", Whole(|c| shape(c).value_heads * shape(c).head_dim))
    },
    setting(&["layer_types"], "attention.recurrent_layers", SettingValue::LinearLayers),
];

const TENSORS: &[TensorName] = &[
    plain_tensor("model.embed_tokens.weight", "token_embd.weight"),
    plain_tensor("lm_head.weight", "output.weight"),
    norm_plus_one("model.norm.weight", "output_norm.weight"),
    norm_plus_one("model.layers.*.input_layernorm.weight", "blk.*.attn_norm.weight"),
    norm_plus_one("model.layers.*.post_attention_layernorm.weight", "blk.*.post_attention_norm.weight"),
    plain_tensor("model.layers.*.self_attn.q_proj.weight", "blk.*.attn_q.weight"),
    plain_tensor("model.layers.*.self_attn.k_proj.weight", "blk.*.attn_k.weight"),
    plain_tensor("model.layers.*.self_attn.v_proj.weight", "blk.*.attn_v.weight"),
    plain_tensor("model.layers.*.self_attn.o_proj.weight", "blk.*.attn_output.weight"),
    norm_plus_one("model.layers.*.self_attn.q_norm.weight", "blk.*.attn_q_norm.weight"),
    norm_plus_one("model.layers.*.self_attn.k_norm.weight", "blk.*.attn_k_norm.weight"),
    tensor("model.layers.*.linear_attn.in_proj_qkv.weight", "blk.*.attn_qkv.weight", MixedValueHeads),
    tensor("model.layers.*.linear_attn.in_proj_z.weight", "blk.*.attn_gate.weight", ValueHeads),
    tensor("model.layers.*.linear_attn.in_proj_a.weight", "blk.*.ssm_alpha.weight", ValueHeads),
    tensor("model.layers.*.linear_attn.in_proj_b.weight", "blk.*.ssm_beta.weight", ValueHeads),
    tensor("model.layers.*.linear_attn.conv1d.weight", "blk.*.ssm_conv1d.weight", MixedValueHeads),
    tensor("model.layers.*.linear_attn.dt_bias", "blk.*.ssm_dt.bias", ValueHeads),
    TensorName {
        values: Values::NegativeExp,
        ..tensor("model.layers.*.linear_attn.A_log", "blk.*.ssm_a", ValueHeads)
    },
    plain_tensor("model.layers.*.linear_attn.norm.weight", "blk.*.ssm_norm.weight"),
    tensor("model.layers.*.linear_attn.out_proj.weight", "blk.*.ssm_out.weight", ValueHeadColumns),
];

fn shape(c: &ModelConfig) -> Recurrence {
    c.recurrence.unwrap_or_default()
}

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
    if recurrence.value_heads == 0 {
        return Err(bad(meta.architecture, "ssm.time_step_rank", 0.0, "at least 1"));
    }
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
