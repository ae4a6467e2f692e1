//! Maple: a mixture of ternary experts; windows in most layers, and no rotation in those that see all positions.
//!
//! ```text
//! token -> embedding -> N x block -> RMSNorm -> head -> logits
//! block:  x += Wo attention(rope(norm(Wq n)), rope(norm(Wk n)), Wv n)           with n = RMSNorm(x)
//!         x += sum_e p_e Wdown_e (silu(min(Wgate_e m, c)) * clamp(Wup_e m, c))  with m = RMSNorm(x)
//! ```
//! A part of each head is rotated, in layers with a window alone; `p` as in Qwen3MoE. `clamp(x, c)` is from `-c` to `c`, which is 7.
#![forbid(unsafe_code)]

use alloc::vec::Vec;
use core::num::NonZeroU32;

use super::config::{Architecture, LayerKinds, ModelConfig};
use super::hugging_face::{
    Absent, DECODER, DIMENSIONS, Described, EXPERTS, Fixed, HEAD_NORMS, HuggingFace, MIXTURE, QUERIES_KEYS,
    SPARSE, Setting, SettingValue, fixed, setting,
};
use super::keys::{Keys, bad};
use super::qwen3;
use crate::error::Result;
use crate::gguf::{Header, Value};

const WINDOW: &str = "attention.sliding_window";
const PATTERN: &str = "attention.sliding_window_pattern";
const CLAMP: &str = "swiglu_clamp_exp";
/// Folders do not say it.
const USUAL_CLAMP: u16 = 7;

pub(super) const MAPLE: Described = Described {
    architecture: Architecture { name: "maple", experts: true, program: qwen3::program, read },
    folder: HuggingFace {
        model_type: "maple",
        classes: &["MapleForCausalLM"],
        fixed: &[FIXED, SPARSE],
        settings: &[DIMENSIONS, MIXTURE, SETTINGS],
        tensors: &[DECODER, QUERIES_KEYS, HEAD_NORMS, EXPERTS],
    },
};

const FIXED: &[Fixed] = &[
    fixed("attention_bias", "false", "false", true),
    fixed("mlp_bias", "false", "false", false),
    fixed("hidden_act", "\"silu\"", "silu", true),
];

const SETTINGS: &[Setting] = &[
    setting(&[], "rope.dimension_count", SettingValue::RotatedShare),
    setting(
        &["sliding_window"],
        WINDOW,
        SettingValue::Whole(|c| c.layers.window.map_or(0, |window| window.get() as usize)),
    ),
    setting(&["layer_types"], PATTERN, SettingValue::WindowedLayers),
    Setting {
        absent: Absent::Number(USUAL_CLAMP),
        ..setting(
            &[],
            CLAMP,
            SettingValue::Number(|c| c.experts.and_then(|experts| experts.clamp).unwrap_or_default()),
        )
    },
];

fn read(c: &mut ModelConfig, meta: &Keys<'_, '_>, _: &Header<'_>) -> Result<()> {
    let window = meta.size(WINDOW, None)? as u32;
    c.layers.window = NonZeroU32::new(window);
    if window == 0 {
        return Err(bad(meta.architecture, WINDOW, 0.0, "at least 1"));
    }
    let windowed = windowed(c.num_layers, meta)?;
    c.layers.windowed = LayerKinds::of(c.num_layers, |layer| windowed.get(layer) == Some(&true));
    c.layers.unrotated = LayerKinds::of(c.num_layers, |layer| windowed.get(layer) != Some(&true));
    let clamp = clamp(c.num_layers, meta)?;
    if let Some(experts) = &mut c.experts {
        experts.clamp = Some(clamp);
    }
    Ok(())
}

/// Which layers have a window. Writers store flags or numbers.
fn windowed(layers: usize, meta: &Keys<'_, '_>) -> Result<Vec<bool>> {
    let key = meta.key(PATTERN);
    let found = match meta.bools(PATTERN, layers) {
        Err(_) if matches!(meta.meta.u32s(&key), Ok(Some(_))) => {
            meta.meta.u32s(&key)?.map(|numbers| numbers.map(|number| number != 0).collect())
        }
        found => found?,
    };
    let found: Vec<bool> = meta.meta.need(&key, found)?;
    match found.len() == layers {
        true => Ok(found),
        false => Err(bad(meta.architecture, PATTERN, found.len() as f64, "one element for each layer")),
    }
}

/// A number, or the same for each layer.
fn clamp(layers: usize, meta: &Keys<'_, '_>) -> Result<f32> {
    let key = meta.key(CLAMP);
    let found = match meta.meta.get(&key) {
        Some(Value::Array(_)) => {
            let found: Vec<f32> = meta.meta.f32s(&key)?.into_iter().flatten().collect();
            let first = found.first().copied().unwrap_or(0.0);
            if found.len() != layers {
                return Err(bad(meta.architecture, CLAMP, found.len() as f64, "one element for each layer"));
            }
            if let Some(other) = found.iter().find(|other| **other != first) {
                return Err(bad(meta.architecture, CLAMP, f64::from(*other), "the same in every layer"));
            }
            first
        }
        _ => meta.f32(CLAMP)?.unwrap_or(f32::from(USUAL_CLAMP)),
    };
    match found > 0.0 && found.is_finite() {
        true => Ok(found),
        false => Err(bad(meta.architecture, CLAMP, f64::from(found), "a positive number")),
    }
}
