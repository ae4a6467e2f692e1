//! The Hugging Face folder of an architecture, as data for those who convert it.
//!
//! Devices do not need it, and linkers drop it from programs that convert nothing: only
//! [`HuggingFace::of`] refers to it.
#![forbid(unsafe_code)]

use super::config::{Architecture, ModelConfig};
use Absent::{Quotient, Same};
use RowOrder::{InterleavedKeys, InterleavedQueries};
use SettingValue::{Flag, Number, Whole};

/// What the file of an architecture defines.
pub(super) struct Described {
    pub(super) architecture: Architecture,
    pub(super) folder: HuggingFace,
}

/// The `config.json` and the tensors of an architecture in a Hugging Face folder, and what they are in a GGUF file.
#[derive(Debug)]
pub struct HuggingFace {
    /// `model_type` in `config.json`.
    pub model_type: &'static str,
    /// Names in `architectures` of `config.json`; the first is written. Models without a head, as those of embeddings are
    /// saved, have `Model` in place of `ForCausalLM`.
    pub classes: &'static [&'static str],
    /// Settings that the architecture has only one value of.
    pub fixed: &'static [&'static [Fixed]],
    /// Settings that become metadata, in the order of the file.
    pub settings: &'static [&'static [Setting]],
    /// Tensors.
    pub tensors: &'static [&'static [TensorName]],
}

/// A setting of `config.json` with one supported value. Other values are refused; it may be absent or null.
#[derive(Debug)]
pub struct Fixed {
    /// Its name.
    pub name: &'static str,
    /// The value.
    pub value: FixedValue,
    /// The value, as errors say it.
    pub expected: &'static str,
    /// Whether it is written.
    pub written: bool,
}

/// The supported value of a [`Fixed`].
#[derive(Clone, Copy, Debug)]
pub enum FixedValue {
    /// This JSON.
    Json(&'static str),
    /// A list with this JSON for each layer.
    Layers(fn(usize) -> &'static str),
    /// The number that another setting has, by its key in GGUF files.
    Same(&'static str),
}

/// A setting of `config.json` and its key in GGUF files.
#[derive(Debug)]
pub struct Setting {
    /// Its names in `config.json`, of which the first that is present counts and the first is written. Without any, it is only
    /// in GGUF files.
    pub names: &'static [&'static str],
    /// The key in metadata, without the architecture's name and the dot.
    pub key: &'static str,
    /// Its type, and how to find it in a configuration.
    pub value: SettingValue,
    /// What takes the place of an absent setting.
    pub absent: Absent,
}

/// The type of a [`Setting`], with a function that reads it from a model's configuration.
#[derive(Clone, Copy, Debug)]
pub enum SettingValue {
    /// A whole number of 32 bits.
    Whole(fn(&ModelConfig) -> usize),
    /// A number.
    Number(fn(&ModelConfig) -> f32),
    /// True or false.
    Flag(fn(&ModelConfig) -> bool),
    /// The heads of keys and values, a whole number. GGUF files have an array with 0 for the layers that are `conv` in
    /// `layer_types`.
    KeyValueHeads,
    /// The width of feed-forward blocks, which `block_auto_adjust_ff_dim` makes two thirds of what is said, rounded up.
    AdjustedWidth,
    /// Flags of the layers that are `linear_attention` in `layer_types`.
    LinearLayers,
    /// Flags of the layers that are `sliding_attention` in `layer_types`.
    WindowedLayers,
    /// The rotated elements of a head, of which `partial_rotary_factor` says the share.
    RotatedShare,
}

/// What takes the place of an absent [`Setting`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// Nothing: it is required.
    Refused,
    /// False.
    False,
    /// The number 1.
    One,
    /// This number, which no folder says otherwise.
    Number(u16),
    /// The value of another key, which is before it.
    Same(&'static str),
    /// The quotient of the values of two other keys, which are before it. It is required if there is a remainder.
    Quotient(&'static str, &'static str),
    /// The product of the values of two other keys, which are before it.
    Product(&'static str, &'static str),
}

/// The names of a tensor. `*` stands for a number: the first for the layer, the second, which only folders have, for the expert.
/// GGUF files stack a layer's experts in one tensor.
#[derive(Debug)]
pub struct TensorName {
    /// In a folder.
    pub folder: &'static str,
    /// In a GGUF file.
    pub gguf: &'static str,
    /// How GGUF files order its rows.
    pub order: RowOrder,
    /// What its numbers are in GGUF files.
    pub values: Values,
}

/// How the rows of a tensor in a GGUF file are ordered, compared with a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrder {
    /// In the same way.
    Same,
    /// With rows `i` and `i + head_dim / 2` of each query head side by side, for
    /// [interleaved](super::program::RopePairing::Interleaved) pairs.
    InterleavedQueries,
    /// The same for each key head.
    InterleavedKeys,
    /// With the heads of values of linear attention in turns: folders have those that share a head of keys side by side, GGUF files
    /// the first of each, then the second of each.
    ValueHeads,
    /// The same for the rows after those of queries and keys.
    MixedValueHeads,
    /// The same for columns.
    ValueHeadColumns,
}

/// What the numbers of a tensor in a GGUF file are, compared with a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// The same.
    Same,
    /// Larger by 1: the weights of norms that folders store without it.
    PlusOne,
    /// `-e^x`
    NegativeExp,
}

pub(super) const fn fixed(
    name: &'static str,
    json: &'static str,
    expected: &'static str,
    written: bool,
) -> Fixed {
    Fixed { name, value: FixedValue::Json(json), expected, written }
}

pub(super) const fn fixed_layers(
    name: &'static str,
    layers: fn(usize) -> &'static str,
    expected: &'static str,
) -> Fixed {
    Fixed { name, value: FixedValue::Layers(layers), expected, written: true }
}

pub(super) const fn setting(
    names: &'static [&'static str],
    key: &'static str,
    value: SettingValue,
) -> Setting {
    Setting { names, key, value, absent: Absent::Refused }
}

/// The weights of a norm, which a folder stores without 1.
pub(super) const fn norm_plus_one(folder: &'static str, gguf: &'static str) -> TensorName {
    TensorName { folder, gguf, order: RowOrder::Same, values: Values::PlusOne }
}

/// A tensor that is the same in both.
pub(super) const fn plain_tensor(folder: &'static str, gguf: &'static str) -> TensorName {
    tensor(folder, gguf, RowOrder::Same)
}

pub(super) const fn tensor(folder: &'static str, gguf: &'static str, order: RowOrder) -> TensorName {
    TensorName { folder, gguf, order, values: Values::Same }
}

/// Layers that see all positions. Folders that transformers 5 writes say it of each.
const FULL_ATTENTION: Fixed = Fixed {
    name: "layer_types",
    value: FixedValue::Layers(|_| "\"full_attention\""),
    expected: "full_attention in every layer",
    written: false,
};

/// Of decoders without windows, and with SwiGLU.
pub(super) const PLAIN_GATED: &[Fixed] = &[
    fixed("mlp_bias", "false", "false", false),
    fixed("use_sliding_window", "false", "false", false),
    FULL_ATTENTION,
    fixed("hidden_act", "\"silu\"", "silu", true),
];

/// The same without biases.
pub(super) const PLAIN: &[Fixed] = &[
    fixed("attention_bias", "false", "false", true),
    fixed("mlp_bias", "false", "false", false),
    fixed("use_sliding_window", "false", "false", false),
    FULL_ATTENTION,
    fixed("hidden_act", "\"silu\"", "silu", true),
];

/// Of models with experts in every layer.
pub(super) const SPARSE: &[Fixed] = &[
    fixed("decoder_sparse_step", "1", "1, experts in every layer", true),
    fixed("mlp_only_layers", "[]", "no layers", false),
];

/// Of decoders.
pub(super) const DIMENSIONS: &[Setting] = &[
    setting(&["num_hidden_layers"], "block_count", Whole(|c| c.num_layers)),
    setting(&["max_position_embeddings"], "context_length", Whole(|c| c.max_context_length)),
    setting(&["hidden_size"], "embedding_length", Whole(|c| c.hidden_size)),
    setting(&["intermediate_size"], "feed_forward_length", Whole(|c| c.intermediate_size)),
    setting(&["num_attention_heads"], "attention.head_count", Whole(|c| c.num_attention_heads)),
    Setting {
        absent: Same("attention.head_count"),
        ..setting(&["num_key_value_heads"], "attention.head_count_kv", Whole(|c| c.num_kv_heads))
    },
    Setting {
        absent: Quotient("embedding_length", "attention.head_count"),
        ..setting(&["head_dim"], "attention.key_length", Whole(|c| c.head_dim))
    },
    Setting {
        absent: Same("attention.key_length"),
        ..setting(&[], "attention.value_length", Whole(|c| c.head_dim))
    },
    setting(&["rms_norm_eps"], "attention.layer_norm_rms_epsilon", Number(|c| c.rms_norm_eps)),
];

/// Of mixtures of experts. Folders that transformers 5 writes have another name for their number.
pub(super) const MIXTURE: &[Setting] = &[
    setting(
        &["num_experts", "num_local_experts"],
        "expert_count",
        Whole(|c| c.experts.map_or(0, |experts| experts.count)),
    ),
    setting(
        &["num_experts_per_tok"],
        "expert_used_count",
        Whole(|c| c.experts.map_or(0, |experts| experts.used)),
    ),
    setting(
        &["moe_intermediate_size"],
        "expert_feed_forward_length",
        Whole(|c| c.experts.map_or(0, |experts| experts.feed_forward)),
    ),
    Setting {
        absent: Absent::False,
        ..setting(
            &["norm_topk_prob"],
            "expert_weights_norm",
            Flag(|c| c.experts.is_some_and(|experts| experts.normalize)),
        )
    },
];

/// Of decoders with a norm before attention and one before the feed-forward block; without [`QUERIES_KEYS`] and the
/// feed-forward block itself.
pub(super) const DECODER: &[TensorName] = &[
    tensor("model.embed_tokens.weight", "token_embd.weight", RowOrder::Same),
    tensor("model.norm.weight", "output_norm.weight", RowOrder::Same),
    tensor("lm_head.weight", "output.weight", RowOrder::Same),
    tensor("model.layers.*.input_layernorm.weight", "blk.*.attn_norm.weight", RowOrder::Same),
    tensor("model.layers.*.self_attn.v_proj.weight", "blk.*.attn_v.weight", RowOrder::Same),
    tensor("model.layers.*.self_attn.o_proj.weight", "blk.*.attn_output.weight", RowOrder::Same),
    tensor("model.layers.*.post_attention_layernorm.weight", "blk.*.ffn_norm.weight", RowOrder::Same),
];

/// Queries and keys whose pairs are half a head apart in both.
pub(super) const QUERIES_KEYS: &[TensorName] = &[
    tensor("model.layers.*.self_attn.q_proj.weight", "blk.*.attn_q.weight", RowOrder::Same),
    tensor("model.layers.*.self_attn.k_proj.weight", "blk.*.attn_k.weight", RowOrder::Same),
];

/// Queries and keys whose pairs are side by side in GGUF files.
pub(super) const INTERLEAVED_QUERIES_KEYS: &[TensorName] = &[
    tensor("model.layers.*.self_attn.q_proj.weight", "blk.*.attn_q.weight", InterleavedQueries),
    tensor("model.layers.*.self_attn.k_proj.weight", "blk.*.attn_k.weight", InterleavedKeys),
];

/// Biases of queries, keys and values.
pub(super) const QKV_BIASES: &[TensorName] = &[
    tensor("model.layers.*.self_attn.q_proj.bias", "blk.*.attn_q.bias", RowOrder::Same),
    tensor("model.layers.*.self_attn.k_proj.bias", "blk.*.attn_k.bias", RowOrder::Same),
    tensor("model.layers.*.self_attn.v_proj.bias", "blk.*.attn_v.bias", RowOrder::Same),
];

/// Norms of each head of queries and keys.
pub(super) const HEAD_NORMS: &[TensorName] = &[
    tensor("model.layers.*.self_attn.q_norm.weight", "blk.*.attn_q_norm.weight", RowOrder::Same),
    tensor("model.layers.*.self_attn.k_norm.weight", "blk.*.attn_k_norm.weight", RowOrder::Same),
];

/// A gated feed-forward block.
pub(super) const FEED_FORWARD: &[TensorName] = &[
    tensor("model.layers.*.mlp.gate_proj.weight", "blk.*.ffn_gate.weight", RowOrder::Same),
    tensor("model.layers.*.mlp.up_proj.weight", "blk.*.ffn_up.weight", RowOrder::Same),
    tensor("model.layers.*.mlp.down_proj.weight", "blk.*.ffn_down.weight", RowOrder::Same),
];

/// A router and its experts.
pub(super) const EXPERTS: &[TensorName] = &[
    tensor("model.layers.*.mlp.gate.weight", "blk.*.ffn_gate_inp.weight", RowOrder::Same),
    tensor("model.layers.*.mlp.experts.*.gate_proj.weight", "blk.*.ffn_gate_exps.weight", RowOrder::Same),
    tensor("model.layers.*.mlp.experts.*.up_proj.weight", "blk.*.ffn_up_exps.weight", RowOrder::Same),
    tensor("model.layers.*.mlp.experts.*.down_proj.weight", "blk.*.ffn_down_exps.weight", RowOrder::Same),
];
