//! `config.json` as GGUF metadata, under the keys that llama.cpp's converter writes.

use super::ConvertError;
use super::json::{need_whole, number, present, string, whole, wrong};
use serde_json::Value;
use shohin_core::gguf::GgufWriter;

/// A model's dimensions, as far as tensors depend on them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Config {
    pub(super) architecture: Architecture,
    pub(super) layers: u32,
    pub(super) hidden: u32,
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    pub(super) vocab: u32,
    pub(super) tied: bool,
    /// Group size and bits of weights that MLX packed.
    pub(super) mlx: Option<(u32, u32)>,
}

/// An architecture's name in `config.json` and in GGUF, and how it rotates keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Architecture {
    Qwen3,
    Llama,
}

impl Architecture {
    fn name(self) -> &'static str {
        match self {
            Architecture::Qwen3 => "qwen3",
            Architecture::Llama => "llama",
        }
    }

    /// Whether GGUF files have the rows of queries and keys in another order; see
    /// [`Rows::interleaved`](super::tensor::Rows).
    pub(super) fn interleaves(self) -> bool {
        matches!(self, Architecture::Llama)
    }
}

/// Settings that would change the result if they were ignored, unless they are absent or false.
const REFUSED: [(&str, &str); 5] = [
    ("attention_bias", "false"),
    ("mlp_bias", "false"),
    ("use_sliding_window", "false"),
    ("quantization_config", "no quantization but MLX's"),
    ("partial_rotary_factor", "no partial rotation"),
];

impl Config {
    /// Reads `config.json`, and sets the keys of the architecture.
    pub(super) fn read(root: &Value, w: &mut GgufWriter) -> Result<Config, ConvertError> {
        let names = root.get("architectures").and_then(Value::as_array).and_then(|all| all.first());
        let architecture = match names.and_then(Value::as_str) {
            Some("Qwen3ForCausalLM") => Architecture::Qwen3,
            Some("LlamaForCausalLM") => Architecture::Llama,
            _ => return Err(wrong("architectures", names, "Qwen3ForCausalLM or LlamaForCausalLM")),
        };
        for (key, expected) in REFUSED {
            if let Some(value) = present(root, key).filter(|value| **value != Value::Bool(false)) {
                return Err(wrong(key, Some(value), expected));
            }
        }
        match string(root, "hidden_act")? {
            None | Some("silu") => {}
            Some(_) => return Err(wrong("hidden_act", root.get("hidden_act"), "silu")),
        }
        let (hidden, heads) = (need_whole(root, "hidden_size")?, need_whole(root, "num_attention_heads")?);
        let head_dim = match whole(root, "head_dim")? {
            Some(head_dim) => head_dim,
            None if heads > 0 && hidden.is_multiple_of(heads) => hidden / heads,
            None => return Err(wrong("head_dim", None, "a whole number of 32 bits")),
        };
        let config = Config {
            architecture,
            layers: need_whole(root, "num_hidden_layers")?,
            hidden,
            heads,
            kv_heads: whole(root, "num_key_value_heads")?.unwrap_or(heads),
            vocab: need_whole(root, "vocab_size")?,
            tied: present(root, "tie_word_embeddings").and_then(Value::as_bool).unwrap_or(false),
            mlx: mlx(root)?,
        };
        let name = architecture.name();
        let key = |rest: &str| format!("{name}.{rest}");
        w.set("general.architecture", name)?;
        w.set(&key("block_count"), config.layers)?;
        w.set(&key("context_length"), need_whole(root, "max_position_embeddings")?)?;
        w.set(&key("embedding_length"), hidden)?;
        w.set(&key("feed_forward_length"), need_whole(root, "intermediate_size")?)?;
        w.set(&key("attention.head_count"), heads)?;
        w.set(&key("attention.head_count_kv"), config.kv_heads)?;
        w.set(&key("attention.key_length"), head_dim)?;
        w.set(&key("attention.value_length"), head_dim)?;
        let epsilon = number(root, "rms_norm_eps")?.ok_or_else(|| wrong("rms_norm_eps", None, "a number"))?;
        w.set(&key("attention.layer_norm_rms_epsilon"), epsilon)?;
        if architecture == Architecture::Llama {
            w.set(&key("rope.dimension_count"), head_dim)?;
            w.set(&key("vocab_size"), config.vocab)?;
        }
        rope(root, &key, w)?;
        Ok(config)
    }
}

/// The base and the scaling of the rotary frequencies, where old and new folders have them.
fn rope(root: &Value, key: &dyn Fn(&str) -> String, w: &mut GgufWriter) -> Result<(), ConvertError> {
    let place = ["rope_parameters", "rope_scaling"].into_iter().find(|place| present(root, place).is_some());
    let scaling = place.and_then(|place| present(root, place));
    let base = match scaling.map(|scaling| number(scaling, "rope_theta")).transpose()?.flatten() {
        None => number(root, "rope_theta")?,
        base => base,
    };
    w.set(&key("rope.freq_base"), base.unwrap_or(10_000.0))?;
    let (Some(place), Some(scaling)) = (place, scaling) else { return Ok(()) };
    let kind = match string(scaling, "rope_type")? {
        None => string(scaling, "type")?,
        kind => kind,
    };
    let inside = |error| match error {
        ConvertError::Value { key, found, expected } => {
            ConvertError::Value { key: format!("{place}.{key}"), found, expected }
        }
        error => error,
    };
    match kind {
        None | Some("default") => return Ok(()),
        Some(kind @ ("linear" | "yarn")) => w.set(&key("rope.scaling.type"), kind)?,
        Some(_) => {
            let found = present(scaling, "rope_type").or(present(scaling, "type"));
            return Err(inside(wrong("rope_type", found, "default, linear or yarn")));
        }
    }
    let factor = number(scaling, "factor").map_err(inside)?;
    w.set(&key("rope.scaling.factor"), factor.ok_or_else(|| inside(wrong("factor", None, "a number")))?)?;
    if kind == Some("yarn") {
        let original = need_whole(scaling, "original_max_position_embeddings").map_err(inside)?;
        w.set(&key("rope.scaling.original_context_length"), original)?;
        for (theirs, ours) in [("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")] {
            if let Some(beta) = number(scaling, theirs).map_err(inside)? {
                w.set(&key(&format!("rope.scaling.{ours}")), beta)?;
            }
        }
        for theirs in ["attention_factor", "mscale", "mscale_all_dim"] {
            if let Some(value) = present(scaling, theirs) {
                return Err(inside(wrong(theirs, Some(value), "the usual factor of attention")));
            }
        }
    }
    Ok(())
}

/// MLX's `quantization`: group size and bits.
fn mlx(root: &Value) -> Result<Option<(u32, u32)>, ConvertError> {
    let Some(quantization) = present(root, "quantization") else { return Ok(None) };
    let (group, bits) = (need_whole(quantization, "group_size")?, need_whole(quantization, "bits")?);
    if !matches!(bits, 1 | 2 | 4) {
        return Err(wrong("quantization.bits", quantization.get("bits"), "1, 2 or 4"));
    }
    if !matches!(group, 32 | 64 | 128) {
        return Err(wrong("quantization.group_size", quantization.get("group_size"), "32, 64 or 128"));
    }
    Ok(Some((group, bits)))
}
