//! `config.json` as GGUF metadata, under the keys that llama.cpp's converter writes.

use crate::error::ConvertError;
use crate::json::{need_whole, number, present, string, whole, wrong};
use crate::order::HeadCounts;
use serde_json::Value;
use shohin_core::ModelConfig;
use shohin_core::gguf::{GgufWriter, Value as Metadata};
use shohin_core::model::hugging_face::{Absent, FixedValue, Setting, SettingValue};
use shohin_core::model::{Architecture, HuggingFace, Recurrence, Rope, RopeScaling};
use std::collections::BTreeMap;

/// What the rotary frequencies are divided by, in GGUF.
pub(crate) const ROPE_FACTORS: &str = "rope_freqs.weight";
pub(crate) const SHORT_ROPE: &str = "rope_factors_short.weight";
pub(crate) const LONG_ROPE: &str = "rope_factors_long.weight";

/// A model's dimensions, as far as tensors depend on them.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) architecture: &'static Architecture,
    pub(crate) folder: &'static HuggingFace,
    pub(crate) layers: u32,
    pub(crate) hidden: u32,
    pub(crate) head_dim: u32,
    /// What norms add to the mean square.
    pub(crate) epsilon: f32,
    /// The longest context before scaling.
    pub(crate) context: u32,
    pub(crate) heads: u32,
    pub(crate) kv_heads: u32,
    /// The shape of layers with a state.
    pub(crate) recurrence: Recurrence,
    pub(crate) vocab: u32,
    /// Experts of a layer, or 0.
    pub(crate) experts: u32,
    pub(crate) tied: bool,
    /// How MLX packed the weights.
    pub(crate) mlx: Option<Mlx>,
    /// Rows and columns of the blocks of floats of 8 bits that have a scale.
    pub(crate) float8: Option<Float8Scales>,
    /// How transformers' BitNet packed the weights.
    pub(crate) bitnet: Option<BitNet>,
    /// What the rotary frequencies are divided by, for scalings that GGUF files have as tensors: their names in GGUF, and
    /// their numbers.
    pub(crate) rope_factors: Vec<(&'static str, Vec<f32>)>,
}

impl Config {
    /// That of a model in GGUF, as far as its adapters depend on it.
    pub(crate) fn of_model(c: &ModelConfig) -> Result<Config, ConvertError> {
        Ok(Config {
            architecture: c.architecture,
            folder: folder_of(c)?,
            layers: c.num_layers as u32,
            hidden: c.hidden_size as u32,
            head_dim: c.head_dim as u32,
            epsilon: c.rms_norm_eps,
            context: c.max_context_length as u32,
            heads: c.num_attention_heads as u32,
            kv_heads: c.num_kv_heads as u32,
            recurrence: c.recurrence.unwrap_or_default(),
            vocab: c.vocab_size as u32,
            experts: c.experts.map_or(0, |experts| experts.count as u32),
            tied: c.tied_embeddings,
            mlx: None,
            float8: None,
            bitnet: None,
            rope_factors: Vec::new(),
        })
    }

    /// What the order of rows depends on.
    pub(crate) fn head_counts(&self) -> HeadCounts {
        let Config { heads, kv_heads, recurrence, .. } = *self;
        HeadCounts { heads, kv_heads, recurrence }
    }

    /// Reads `config.json`, and sets the keys of the architecture.
    pub(crate) fn read(root: &Value, w: &mut GgufWriter) -> Result<Config, ConvertError> {
        let (architecture, folder) = named(root)?;
        let shares = |setting: &Setting| matches!(setting.value, SettingValue::RotatedShare);
        let in_part = folder.settings.iter().copied().flatten().any(shares);
        if !in_part {
            whole_rotation(root)?;
        }
        let settings = Settings::read(root, folder)?;
        for fixed in folder.fixed.iter().copied().flatten() {
            let is_same = |value: &Value| match fixed.value {
                FixedValue::Same(key) => *value == settings.whole(key),
                FixedValue::Layers(_) => {
                    let layers = value.as_array().map_or(0, Vec::len);
                    *value == fixed_json(fixed.value, layers)
                }
                FixedValue::Json(_) => *value == fixed_json(fixed.value, 0),
            };
            if let Some(value) = present(root, fixed.name).filter(|value| !is_same(value)) {
                return Err(wrong(fixed.name, Some(value), fixed.expected));
            }
        }
        let (head_dim, context) = (settings.whole("attention.key_length"), settings.whole(CONTEXT));
        if head_dim as usize > ModelConfig::MAX_HEAD_DIM {
            let (found, max) = (head_dim.into(), ModelConfig::MAX_HEAD_DIM as u64);
            return Err(shohin_core::Error::Limit { what: "head_dim", found, max }.into());
        }
        let mut config = Config {
            architecture,
            folder,
            layers: settings.whole("block_count"),
            hidden: settings.whole("embedding_length"),
            head_dim,
            context,
            epsilon: settings.number("attention.layer_norm_rms_epsilon"),
            heads: settings.whole("attention.head_count"),
            kv_heads: settings.whole("attention.head_count_kv"),
            recurrence: Recurrence {
                taps: settings.whole("ssm.conv_kernel") as usize,
                key_heads: settings.whole("ssm.group_count") as usize,
                value_heads: settings.whole("ssm.time_step_rank") as usize,
                head_dim: settings.whole("ssm.state_size") as usize,
            },
            vocab: need_whole(root, "vocab_size")?,
            experts: settings.whole("expert_count"),
            tied: present(root, "tie_word_embeddings").and_then(Value::as_bool).unwrap_or(false),
            mlx: Mlx::read(root)?,
            float8: float8_scales(root)?,
            bitnet: BitNet::read(root)?,
            rope_factors: Vec::new(),
        };
        let name = architecture.name;
        let key = |rest: &str| format!("{name}.{rest}");
        w.set("general.architecture", name)?;
        for (rest, value) in settings.0 {
            let mut all = folder.settings.iter().copied().flatten();
            match all.find(|setting| setting.key == rest).map(|setting| setting.value) {
                Some(SettingValue::KeyValueHeads) => {
                    let of_kind = [("conv", 0), (FULL_ATTENTION, config.kv_heads)];
                    let expected = "conv or full_attention for each layer";
                    w.set_array(&key(rest), &of_layers(root, config.layers, of_kind, expected)?)?;
                    continue;
                }
                // As they are for pictures; a text has the same position in all sections, but llama.cpp wants them.
                Some(SettingValue::RotatedShare) if config.recurrence.value_heads > 0 => {
                    let pairs = match value {
                        Metadata::U32(rotated) => rotated / 2,
                        _ => 0,
                    };
                    let sections = [pairs.div_ceil(3), (pairs + 1) / 3, pairs / 3, 0];
                    w.set_array(&key("rope.dimension_sections"), &sections)?;
                }
                Some(SettingValue::LinearLayers) => {
                    let of_kind = [(LINEAR_ATTENTION, true), (FULL_ATTENTION, false)];
                    let expected = "linear_attention or full_attention for each layer";
                    w.set_array(&key(rest), &of_layers(root, config.layers, of_kind, expected)?)?;
                    continue;
                }
                Some(SettingValue::WindowedLayers) => {
                    let of_kind = [(WINDOWED, true), (FULL_ATTENTION, false)];
                    let expected = "sliding_attention or full_attention for each layer";
                    w.set_array(&key(rest), &of_layers(root, config.layers, of_kind, expected)?)?;
                    continue;
                }
                _ => {}
            }
            let value = if rest == CONTEXT { scaled_context(root, context).into() } else { value };
            w.set(&key(rest), value)?;
        }
        config.rope_factors = rope(root, (head_dim as usize, in_part), context, &key, w)?;
        Ok(config)
    }
}

/// What a folder of `layers` layers has as the only supported value of a setting, or null if that depends on others.
pub(crate) fn fixed_json(value: FixedValue, layers: usize) -> Value {
    let parse = |json| serde_json::from_str(json).unwrap_or_default();
    match value {
        FixedValue::Json(json) => parse(json),
        FixedValue::Layers(of) => (0..layers).map(|layer| parse(of(layer))).collect(),
        FixedValue::Same(_) => Value::Null,
    }
}

/// The kinds of layers that have frequencies of their own, and where these are.
pub(crate) const FULL_ATTENTION: &str = "full_attention";
pub(crate) const LINEAR_ATTENTION: &str = "linear_attention";
pub(crate) const WINDOWED: &str = "sliding_attention";
pub(crate) const LOCAL_BASE: &str = "rope_local_base_freq";
const WINDOWED_BASE: &str = "rope.freq_base_swa";

/// The longest context, which is written as it is after scaling.
const CONTEXT: &str = "context_length";

/// The architecture of a folder.
fn named(root: &Value) -> Result<(&'static Architecture, &'static HuggingFace), ConvertError> {
    let names = root.get("architectures").and_then(Value::as_array).and_then(|all| all.first());
    let found = names.and_then(Value::as_str);
    let is_found = |class: &&str| {
        let headless = class.strip_suffix("ForCausalLM").map(|name| format!("{name}Model"));
        found.is_some_and(|found| *class == found || headless.is_some_and(|headless| headless == found))
    };
    HuggingFace::all()
        .find(|(_, folder)| folder.classes.iter().any(is_found))
        .ok_or_else(|| wrong("architectures", names, HuggingFace::CLASSES))
}

/// What folders of a model's architecture look like.
pub(crate) fn folder_of(c: &ModelConfig) -> Result<&'static HuggingFace, ConvertError> {
    HuggingFace::of(c.architecture).ok_or_else(|| ConvertError::Value {
        key: "general.architecture".into(),
        found: c.architecture.name.into(),
        expected: Architecture::NAMES,
    })
}

/// The settings of a folder by their keys in metadata.
struct Settings(Vec<(&'static str, Metadata<'static>)>);

impl Settings {
    fn read(root: &Value, folder: &HuggingFace) -> Result<Settings, ConvertError> {
        let mut settings = Settings(Vec::new());
        for setting in folder.settings.iter().copied().flatten() {
            let value = match setting.value {
                SettingValue::RotatedShare => {
                    Metadata::U32(rotated_share(root, settings.whole("attention.key_length"))?)
                }
                // Written as an array.
                SettingValue::LinearLayers | SettingValue::WindowedLayers => Metadata::U32(0),
                _ => settings.value(root, setting)?,
            };
            settings.0.push((setting.key, value));
        }
        Ok(settings)
    }

    fn value(&self, root: &Value, setting: &Setting) -> Result<Metadata<'static>, ConvertError> {
        let named = setting.names.iter().find_map(|name| Some((*name, present(root, name)?)));
        type Read = fn(&Value, &str) -> Result<Option<Metadata<'static>>, ConvertError>;
        let (read, expected): (Read, &str) = match setting.value {
            SettingValue::Whole(_)
            | SettingValue::KeyValueHeads
            | SettingValue::LinearLayers
            | SettingValue::WindowedLayers
            | SettingValue::RotatedShare => {
                (|r, name| Ok(whole(r, name)?.map(Metadata::U32)), "a whole number of 32 bits")
            }
            SettingValue::Number(_) => (|r, name| Ok(number(r, name)?.map(Metadata::F32)), "a number"),
            SettingValue::Flag(_) => (|r, name| Ok(r[name].as_bool().map(Metadata::Bool)), "true or false"),
            SettingValue::AdjustedWidth => {
                (|r, name| Ok(adjusted_width(r, name)?.map(Metadata::U32)), "a whole number of 32 bits")
            }
        };
        let value = match named {
            Some((name, _)) => read(root, name)?,
            None => self.instead(setting),
        };
        value.ok_or_else(|| {
            let (name, found) = named.unzip();
            wrong(name.or(setting.names.last().copied()).unwrap_or(setting.key), found, expected)
        })
    }

    /// What takes the place of an absent setting.
    fn instead(&self, setting: &Setting) -> Option<Metadata<'static>> {
        match setting.absent {
            Absent::Refused => None,
            Absent::False => Some(Metadata::Bool(false)),
            Absent::One => Some(Metadata::F32(1.0)),
            Absent::Number(number) => Some(Metadata::F32(number.into())),
            Absent::Same(key) => self.get(key),
            Absent::Product(a, b) => self.whole(a).checked_mul(self.whole(b)).map(Metadata::U32),
            Absent::Quotient(dividend, divisor) => {
                let [dividend, divisor] = [dividend, divisor].map(|key| self.whole(key));
                let divides = divisor > 0 && dividend.is_multiple_of(divisor);
                divides.then(|| Metadata::U32(dividend / divisor))
            }
        }
    }

    fn get(&self, key: &str) -> Option<Metadata<'static>> {
        self.0.iter().find(|(known, _)| *known == key).map(|(_, value)| *value)
    }

    /// A whole number, or 0 without it.
    fn whole(&self, key: &str) -> u32 {
        match self.get(key) {
            Some(Metadata::U32(value)) => value,
            _ => 0,
        }
    }

    /// A number, or 0 without it.
    fn number(&self, key: &str) -> f32 {
        match self.get(key) {
            Some(Metadata::F32(value)) => value,
            _ => 0.0,
        }
    }
}

/// The width of the feed-forward blocks of LFM2 (transformers' `Lfm2MLP`).
fn adjusted_width(root: &Value, name: &str) -> Result<Option<u32>, ConvertError> {
    let Some(width) = whole(root, name)? else { return Ok(None) };
    if present(root, "block_auto_adjust_ff_dim").and_then(Value::as_bool) == Some(false) {
        return Ok(Some(width));
    }
    let multiplier = number(root, "block_ffn_dim_multiplier")?.unwrap_or(1.0);
    let multiple = whole(root, "block_multiple_of")?.unwrap_or(256).max(1);
    let width = (f64::from((u64::from(width) * 2 / 3) as u32) * f64::from(multiplier)) as u32;
    Ok(width.checked_next_multiple_of(multiple))
}

/// The value of each layer's kind in `layer_types`.
fn of_layers<T: Copy>(
    root: &Value,
    layers: u32,
    of_kind: [(&str, T); 2],
    expected: &'static str,
) -> Result<Vec<T>, ConvertError> {
    let name = "layer_types";
    let wrong = || wrong(name, present(root, name), expected);
    let kinds = present(root, name).and_then(Value::as_array).ok_or_else(wrong)?;
    if kinds.len() != layers as usize {
        return Err(wrong());
    }
    let value = |kind: &Value| {
        let known = of_kind.iter().find(|(known, _)| kind == known);
        known.map(|(_, value)| *value).ok_or_else(wrong)
    };
    kinds.iter().map(value).collect()
}

/// The rotated elements of a head of `head_dim`.
fn rotated_share(root: &Value, head_dim: u32) -> Result<u32, ConvertError> {
    let key = "partial_rotary_factor";
    let place = scaling(root).map(|(_, scaling)| scaling).filter(|scaling| present(scaling, key).is_some());
    let found = number(place.unwrap_or(root), key)?.unwrap_or(0.25);
    let rotated = f64::from(found) * f64::from(head_dim);
    if !(rotated >= 2.0 && rotated <= f64::from(head_dim) && rotated % 2.0 == 0.0) {
        let expected = "a share of head_dim that is an even number";
        return Err(wrong(key, present(place.unwrap_or(root), key), expected));
    }
    Ok(rotated as u32)
}

/// Refuses rotations of a part of each head.
fn whole_rotation(object: &Value) -> Result<(), ConvertError> {
    let key = "partial_rotary_factor";
    match present(object, key).filter(|value| value.as_f64() != Some(1.0)) {
        Some(value) => Err(wrong(key, Some(value), "1, rotation of whole heads")),
        None => Ok(()),
    }
}

/// What `scaling` divides the frequencies of heads with `head_dim` elements by.
pub(crate) fn rope_factors(head_dim: usize, base: f32, scaling: RopeScaling) -> Vec<f32> {
    let [plain, scaled] = [RopeScaling::None, scaling].map(|scaling| Rope::new(head_dim, base, scaling));
    plain.speeds().iter().zip(scaled.speeds()).map(|(plain, scaled)| (plain / scaled) as f32).collect()
}

/// The scaling of the rotary frequencies, where old and new folders have it, and its name.
fn scaling(root: &Value) -> Option<(&'static str, &Value)> {
    let places = ["rope_parameters", "rope_scaling"].into_iter();
    places.filter_map(|place| Some((place, present(root, place)?))).next()
}

/// The longest context of a folder that says `context`. With dynamic NTK, that is the one before scaling; with YaRN it may
/// be, since publishers ask to add the scaling to a `config.json` that is otherwise unchanged.
fn scaled_context(root: &Value, context: u32) -> u32 {
    let Some((_, scaling)) = scaling(root) else { return context };
    let kind = present(scaling, "rope_type").or(present(scaling, "type"));
    let number = |key| present(scaling, key).and_then(Value::as_f64);
    match (kind.and_then(Value::as_str), number("factor"), number("original_max_position_embeddings")) {
        (Some("dynamic"), Some(factor), _) => (f64::from(context) * factor) as u32,
        (Some("yarn"), Some(factor), original) => {
            ((original.unwrap_or(context.into()) * factor) as u32).max(context)
        }
        _ => context,
    }
}

/// Sets the base and the scaling of the rotary frequencies of heads with `head_dim` elements, where old and new folders have
/// them; `context` is the folder's. Returns what GGUF files have as tensors.
fn rope(
    root: &Value,
    (head_dim, in_part): (usize, bool),
    context: u32,
    key: &dyn Fn(&str) -> String,
    w: &mut GgufWriter,
) -> Result<Vec<(&'static str, Vec<f32>)>, ConvertError> {
    let mut found = scaling(root);
    // Of models with two kinds of layers; the others are not scaled.
    if let Some((_, kinds)) = found
        && let Some(full) = present(kinds, FULL_ATTENTION)
    {
        let windowed = present(kinds, WINDOWED).unwrap_or(&Value::Null);
        match string(windowed, "rope_type")? {
            None | Some("default") => {}
            Some(_) => {
                return Err(wrong(
                    "rope_parameters.sliding_attention.rope_type",
                    windowed.get("rope_type"),
                    "default",
                ));
            }
        }
        if let Some(base) = number(windowed, "rope_theta")? {
            w.set(&key(WINDOWED_BASE), base)?;
        }
        found = Some(("rope_parameters.full_attention", full));
    } else if let Some(base) = number(root, LOCAL_BASE)? {
        w.set(&key(WINDOWED_BASE), base)?;
    }
    let base = match found.map(|(_, scaling)| number(scaling, "rope_theta")).transpose()?.flatten() {
        None => number(root, "rope_theta")?,
        base => base,
    };
    let base = base.unwrap_or(10_000.0);
    w.set(&key("rope.freq_base"), base)?;
    let Some((place, scaling)) = found else { return Ok(Vec::new()) };
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
    if !in_part {
        whole_rotation(scaling).map_err(inside)?;
    }
    match kind {
        None | Some("default") => return Ok(Vec::new()),
        Some("longrope" | "su") => {
            return long_rope(root, scaling, [head_dim / 2, context as usize], key, w).map_err(inside);
        }
        Some("llama3") => {
            let need = |name| {
                let found = number(scaling, name).map_err(inside)?;
                found.ok_or_else(|| inside(wrong(name, None, "a number")))
            };
            let scaling = RopeScaling::Llama3 {
                factor: need("factor")?,
                original_context: need_whole(scaling, "original_max_position_embeddings").map_err(inside)?,
                low_freq_factor: need("low_freq_factor")?,
                high_freq_factor: need("high_freq_factor")?,
            };
            return Ok(vec![(ROPE_FACTORS, rope_factors(head_dim, base, scaling))]);
        }
        Some(kind @ ("linear" | "yarn" | "dynamic")) => w.set(&key("rope.scaling.type"), kind)?,
        Some(_) => {
            let found = present(scaling, "rope_type").or(present(scaling, "type"));
            let expected = "default, linear, dynamic, yarn, longrope or llama3";
            return Err(inside(wrong("rope_type", found, expected)));
        }
    }
    let factor = number(scaling, "factor").map_err(inside)?;
    let factor = factor.ok_or_else(|| inside(wrong("factor", None, "a number")))?;
    w.set(&key("rope.scaling.factor"), factor)?;
    if kind == Some("dynamic") {
        // Here the folder's context is the one before scaling.
        w.set(&key("rope.scaling.original_context_length"), context)?;
    }
    if kind == Some("yarn") {
        let original = whole(scaling, "original_max_position_embeddings").map_err(inside)?.unwrap_or(context);
        w.set(&key("rope.scaling.original_context_length"), original)?;
        for (theirs, ours) in [("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")] {
            if let Some(beta) = number(scaling, theirs).map_err(inside)? {
                w.set(&key(&format!("rope.scaling.{ours}")), beta)?;
            }
        }
        // GGUF has no key for it.
        if let Some(value) = present(scaling, "truncate").filter(|value| **value != Value::Bool(true)) {
            return Err(inside(wrong("truncate", Some(value), "true")));
        }
        let attention = number(scaling, "attention_factor").map_err(inside)?;
        // As in GGUF, `attn_factor` is what the usual factor is multiplied by. transformers does not read it, vLLM does.
        let mut multiplied = number(scaling, "attn_factor").map_err(inside)?;
        if let Some(attention) = attention
            && let RopeScaling::Yarn { attention_factor: usual, .. } = RopeScaling::yarn(factor, original)
        {
            multiplied = (attention != usual).then_some(attention / usual);
        }
        if let Some(multiplied) = multiplied {
            w.set(&key("rope.scaling.attn_factor"), multiplied)?;
        }
        for theirs in ["mscale", "mscale_all_dim"] {
            if let Some(value) = present(scaling, theirs) {
                return Err(inside(wrong(theirs, Some(value), "the usual factor of attention")));
            }
        }
    }
    Ok(Vec::new())
}

/// The factors of LongRoPE, `pairs` each for short and for long contexts, and the keys beside them.
fn long_rope(
    root: &Value,
    scaling: &Value,
    [pairs, context]: [usize; 2],
    key: &dyn Fn(&str) -> String,
    w: &mut GgufWriter,
) -> Result<Vec<(&'static str, Vec<f32>)>, ConvertError> {
    let original = match whole(scaling, "original_max_position_embeddings")? {
        Some(original) => original,
        None => need_whole(root, "original_max_position_embeddings")?,
    };
    let ratio = context as f64 / f64::from(original.max(1));
    let factor = number(scaling, "factor")?.map_or(ratio, f64::from);
    let attention = match number(scaling, "attention_factor")? {
        Some(attention) => attention,
        None if factor <= 1.0 => 1.0,
        None => (1.0 + factor.ln() / f64::from(original).ln()).sqrt() as f32,
    };
    w.set(&key("rope.scaling.type"), "longrope")?;
    w.set(&key("rope.scaling.original_context_length"), original)?;
    w.set(&key("rope.scaling.attn_factor"), attention)?;
    let factors = |name: &'static str| {
        let found = present(scaling, name);
        let refused = || wrong(name, found, "as many numbers as a head has pairs");
        let numbers = found.and_then(Value::as_array).filter(|numbers| numbers.len() == pairs);
        let numbers = numbers.ok_or_else(refused)?.iter();
        numbers.map(|n| n.as_f64().map(|n| n as f32).ok_or_else(refused)).collect::<Result<Vec<f32>, _>>()
    };
    Ok(vec![(SHORT_ROPE, factors("short_factor")?), (LONG_ROPE, factors("long_factor")?)])
}

/// MLX's `quantization`.
#[derive(Clone, Debug)]
pub(crate) struct Mlx {
    most: Packing,
    /// Modules with settings of their own.
    others: BTreeMap<String, Packing>,
}

/// Weights per scale, and bits of a weight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packing {
    pub(crate) group: usize,
    pub(crate) bits: usize,
}

impl Mlx {
    fn read(root: &Value) -> Result<Option<Mlx>, ConvertError> {
        let Some(quantization) = present(root, "quantization") else { return Ok(None) };
        let mode = present(quantization, "mode");
        if mode.is_some_and(|mode| mode != "affine") {
            return Err(wrong("quantization.mode", mode, "affine"));
        }
        let modules = quantization.as_object().into_iter().flatten().filter(|(_, value)| value.is_object());
        let other = |(name, value): (&String, &Value)| Ok((name.clone(), Packing::read(value)?));
        let others = modules.map(other).collect::<Result<_, ConvertError>>()?;
        Ok(Some(Mlx { most: Packing::read(quantization)?, others }))
    }

    /// How the weights of `module` are packed.
    pub(crate) fn of(&self, module: &str) -> Packing {
        self.others.get(module).copied().unwrap_or(self.most)
    }
}

impl Packing {
    fn read(object: &Value) -> Result<Packing, ConvertError> {
        let (group, bits) = (need_whole(object, "group_size")?, need_whole(object, "bits")?);
        if !matches!(bits, 1 | 2 | 4 | 8) {
            return Err(wrong("quantization.bits", object.get("bits"), "1, 2, 4 or 8"));
        }
        if !matches!(group, 32 | 64 | 128) {
            return Err(wrong("quantization.group_size", object.get("group_size"), "32, 64 or 128"));
        }
        Ok(Packing { group: group as usize, bits: bits as usize })
    }
}

const BITNET: &str = "bitnet";

/// `quantization_config` of transformers' BitNet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BitNet {
    /// Whether weights are divided by `weight_scale`, as the class `bitlinear` does, in the place of multiplied.
    pub(crate) divides: bool,
}

impl BitNet {
    fn read(root: &Value) -> Result<Option<BitNet>, ConvertError> {
        let Some(config) = present(root, "quantization_config") else { return Ok(None) };
        let text = |key| present(config, key).and_then(Value::as_str);
        if text("quant_method") != Some(BITNET) {
            return Ok(None);
        }
        let mode = present(config, "quantization_mode");
        if mode.is_some_and(|mode| mode != "offline") {
            let expected = "offline: weights that are ternary in the folder";
            return Err(wrong("quantization_config.quantization_mode", mode, expected));
        }
        let norm = present(config, "use_rms_norm");
        if norm.is_some_and(|norm| *norm != false) {
            return Err(wrong("quantization_config.use_rms_norm", norm, "false"));
        }
        match text("linear_class") {
            None | Some("bitlinear") => Ok(Some(BitNet { divides: true })),
            Some("autobitlinear") => Ok(Some(BitNet { divides: false })),
            Some(_) => {
                let found = present(config, "linear_class");
                Err(wrong("quantization_config.linear_class", found, "bitlinear or autobitlinear"))
            }
        }
    }
}

/// What FP8 weights are multiplied by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Float8Scales {
    /// The end of the scales' names: `_scale_inv` or `_scale`.
    pub(crate) suffix: &'static str,
    /// Rows and columns that share a scale; otherwise a whole matrix or a row does, which the number of scales says.
    pub(crate) block: Option<(u32, u32)>,
}

/// `quantization_config` of FP8 weights.
fn float8_scales(root: &Value) -> Result<Option<Float8Scales>, ConvertError> {
    let config = present(root, "quantization_config");
    // MLX repeats its settings there.
    let Some(config) = config.filter(|_| present(root, "quantization").is_none()) else { return Ok(None) };
    let method = present(config, "quant_method");
    match method.and_then(Value::as_str) {
        Some("fp8") => {
            let block = block_of(config, "quantization_config.weight_block_size", "weight_block_size")?;
            Ok(Some(Float8Scales { suffix: "_scale_inv", block }))
        }
        Some("fbgemm_fp8") => Ok(Some(Float8Scales { suffix: "_scale", block: None })),
        Some("compressed-tensors") => {
            Ok(Some(Float8Scales { suffix: "_scale", block: compressed_tensors(config)? }))
        }
        Some(BITNET) => Ok(None),
        _ => Err(wrong(
            "quantization_config.quant_method",
            method,
            "fp8, fbgemm_fp8, compressed-tensors of FP8, bitnet, or MLX's quantization",
        )),
    }
}

/// The blocks of the groups of modules, whose weights must all be FP8.
fn compressed_tensors(config: &Value) -> Result<Option<(u32, u32)>, ConvertError> {
    let groups = present(config, "config_groups").and_then(Value::as_object);
    let mut blocks = Vec::new();
    for group in groups.into_iter().flat_map(|groups| groups.values()) {
        let weights = present(group, "weights").unwrap_or(&Value::Null);
        let kind = (present(weights, "type").and_then(Value::as_str), present(weights, "num_bits"));
        if !matches!(kind, (Some("float"), Some(bits)) if *bits == 8) {
            let key = "quantization_config.config_groups: the weights of a group";
            return Err(wrong(key, Some(weights), "floats of 8 bits"));
        }
        let key = "quantization_config.config_groups: block_structure";
        blocks.push(block_of(weights, key, "block_structure")?);
    }
    match blocks[..] {
        [first, ref others @ ..] if others.iter().all(|block| *block == first) => Ok(first),
        _ => {
            let found = present(config, "config_groups");
            Err(wrong("quantization_config.config_groups", found, "groups with the same blocks"))
        }
    }
}

/// The two numbers that `config` has for `name`, which is `key` in the file, if any.
fn block_of(config: &Value, key: &str, name: &str) -> Result<Option<(u32, u32)>, ConvertError> {
    let Some(found) = present(config, name) else { return Ok(None) };
    let refused = || wrong(key, Some(found), "two whole numbers");
    let sizes = found.as_array().ok_or_else(refused)?;
    let size = |i: usize| {
        let size = sizes.get(i)?.as_u64()?;
        u32::try_from(size).ok().filter(|size| *size > 0)
    };
    match (sizes.len(), size(0), size(1)) {
        (2, Some(rows), Some(cols)) => Ok(Some((rows, cols))),
        _ => Err(refused()),
    }
}
