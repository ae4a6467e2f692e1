//! Gemma 3: windows in five of six layers, which have rotary frequencies of their own; norms before and after each block.
//!
//! ```text
//! token -> sqrt(E) embedding -> N x block -> RMSNorm -> head -> logits
//! block:  x += RMSNorm(Wo attention(rope(norm(Wq n)), rope(norm(Wk n)), Wv n))   with n = RMSNorm(x)
//!         x += RMSNorm(Wdown (gelu(Wgate m) * Wup m))                            with m = RMSNorm(x)
//! ```
//! Folders store the weights of norms without 1. Gemma 3 Technical Report (2025, arXiv 2503.19786).
#![forbid(unsafe_code)]

use core::num::NonZeroU32;

use super::builder::{Builder, Output};
use super::config::{Architecture, LayerKinds, ModelConfig};
use super::hugging_face::{
    DIMENSIONS, Described, FEED_FORWARD, Fixed, FixedValue, HuggingFace, Setting, SettingValue, TensorName,
    fixed, fixed_layers, norm_plus_one, plain_tensor, setting,
};
use super::keys::Keys;
use super::positions::Rotary;
use super::program::{Activation, Program, RopePairing};
use crate::error::Result;
use crate::gguf::Header;

const WINDOW: &str = "attention.sliding_window";
/// The last layer of each period sees all positions.
const PERIOD: usize = 6;
/// Layers of the 27B model, whose scores have another scale.
const LAYERS_27B: usize = 62;

pub(super) const GEMMA3: Described = Described {
    architecture: Architecture { name: "gemma3", experts: false, program, read },
    folder: HuggingFace {
        model_type: "gemma3_text",
        classes: &["Gemma3ForCausalLM"],
        fixed: &[FIXED],
        settings: &[DIMENSIONS, WINDOWS],
        tensors: &[TENSORS, FEED_FORWARD],
    },
};

const FIXED: &[Fixed] = &[
    fixed("attention_bias", "false", "false", true),
    fixed("hidden_activation", "\"gelu_pytorch_tanh\"", "gelu_pytorch_tanh", true),
    fixed("attn_logit_softcapping", "null", "null", false),
    fixed("final_logit_softcapping", "null", "null", false),
    fixed("use_bidirectional_attention", "false", "false", false),
    fixed("sliding_window_pattern", "6", "6", true),
    fixed_layers(
        "layer_types",
        |layer| if is_windowed(layer) { "\"sliding_attention\"" } else { "\"full_attention\"" },
        "sliding_attention in five of six layers, and full_attention",
    ),
    Fixed {
        name: "query_pre_attn_scalar",
        value: FixedValue::Same("attention.key_length"),
        expected: "the same as head_dim",
        written: true,
    },
];

const WINDOWS: &[Setting] = &[setting(
    &["sliding_window"],
    WINDOW,
    SettingValue::Whole(|c| c.layers.window.map_or(0, |window| window.get() as usize)),
)];

const TENSORS: &[TensorName] = &[
    plain_tensor("model.embed_tokens.weight", "token_embd.weight"),
    plain_tensor("lm_head.weight", "output.weight"),
    norm_plus_one("model.norm.weight", "output_norm.weight"),
    norm_plus_one("model.layers.*.input_layernorm.weight", "blk.*.attn_norm.weight"),
    plain_tensor("model.layers.*.self_attn.q_proj.weight", "blk.*.attn_q.weight"),
    plain_tensor("model.layers.*.self_attn.k_proj.weight", "blk.*.attn_k.weight"),
    plain_tensor("model.layers.*.self_attn.v_proj.weight", "blk.*.attn_v.weight"),
    plain_tensor("model.layers.*.self_attn.o_proj.weight", "blk.*.attn_output.weight"),
    norm_plus_one("model.layers.*.self_attn.q_norm.weight", "blk.*.attn_q_norm.weight"),
    norm_plus_one("model.layers.*.self_attn.k_norm.weight", "blk.*.attn_k_norm.weight"),
    norm_plus_one("model.layers.*.post_attention_layernorm.weight", "blk.*.post_attention_norm.weight"),
    norm_plus_one("model.layers.*.pre_feedforward_layernorm.weight", "blk.*.ffn_norm.weight"),
    norm_plus_one("model.layers.*.post_feedforward_layernorm.weight", "blk.*.post_ffw_norm.weight"),
];

const fn is_windowed(layer: usize) -> bool {
    layer % PERIOD != PERIOD - 1
}

fn read(c: &mut ModelConfig, meta: &Keys<'_, '_>, _: &Header<'_>) -> Result<()> {
    c.scales.embedding = libm::sqrtf(c.hidden_size as f32);
    if c.num_layers == LAYERS_27B {
        let width = c.hidden_size / c.num_attention_heads;
        c.scales.attention = (1.0 / libm::sqrt(width as f64)) as f32;
    }
    let base = meta.f32("rope.freq_base_swa")?.unwrap_or(10_000.0);
    // 0 stands for no window.
    c.layers.window = NonZeroU32::new(meta.size(WINDOW, Some(0))? as u32);
    if c.layers.window.is_some() {
        c.layers.windowed = LayerKinds::of(c.num_layers, is_windowed);
        c.layers.rotary = Some(Rotary { base, ..Rotary::default() });
    }
    Ok(())
}

fn program(c: &ModelConfig) -> Program {
    let mut p = Builder::new(c, RopePairing::Neox);
    let (embedding, x) = p.embed("token_embd", c.vocab_size, c.hidden_size);
    p.scale(x, c.scales.embedding);
    for layer in 0..c.num_layers {
        p.block(layer);
        let n = p.rmsnorm(x, "attn_norm");
        let qkv = p.linear_qkv(n, c);
        p.rope_store(qkv, Some(["attn_q_norm", "attn_k_norm"]), c);
        let attended = p.attention(qkv[0], c);
        let [delta] = p.linear(attended, [("attn_output", "delta", c.hidden_size)]);
        let delta = p.rmsnorm(delta, "post_attention_norm");
        p.add(delta, x);

        let m = p.rmsnorm(x, "ffn_norm");
        let gated = p.linear_gated(m, Activation::GeluTanh, "ffn_gate", "ffn_up", c.intermediate_size);
        let [delta] = p.linear(gated, [("ffn_down", "delta", c.hidden_size)]);
        let delta = p.rmsnorm(delta, "post_ffw_norm");
        p.add(delta, x);
    }
    let output = Output::of(c, embedding, "output");
    p.head(x, "output_norm", output, c)
}
