//! Formats of whole files: one for all matrices, or llama.cpp's mixes.

use shohin_core::Format;
use std::fmt;
use std::str::FromStr;

/// The formats of a file's matrices.
///
/// ```
/// use shohin_convert::{FileType, Int8, Mix};
/// use shohin_core::Format;
///
/// assert_eq!("q4_k".parse(), Ok(FileType::All(Format::Q4K)));
/// assert_eq!("Q4_K_M".parse(), Ok(FileType::Mix(Mix::Q4KM)));
/// assert_eq!("int8_channel".parse(), Ok(FileType::Int8(Int8::PerChannel)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileType {
    /// One format for every matrix, like `llama-quantize --pure`.
    All(Format),
    /// A format for most matrices, and larger ones for those that need them.
    Mix(Mix),
    /// Q8_0 whose blocks share a scale.
    Int8(Int8),
}

/// What shares the scale of weights of 8 bits, `max |w| / 127`, in blocks of Q8_0 that repeat it. Less exact than Q8_0
/// with the scales of its own; activations have 8 bits with all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Int8 {
    /// A whole matrix.
    PerTensor,
    /// A row: all weights of an output.
    PerChannel,
}

impl Int8 {
    /// Both.
    pub const ALL: [Int8; 2] = [Int8::PerTensor, Int8::PerChannel];

    /// The name, as in `int8_channel`.
    pub const fn name(self) -> &'static str {
        match self {
            Int8::PerTensor => "INT8_TENSOR",
            Int8::PerChannel => "INT8_CHANNEL",
        }
    }
}

/// The mixes of llama.cpp, without an importance matrix: small, medium and large around a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Mix {
    Q3KS,
    Q3KM,
    Q3KL,
    Q4KS,
    Q4KM,
    Q5KS,
    Q5KM,
}

impl Mix {
    /// Every mix.
    pub const ALL: [Mix; 7] = [Mix::Q3KS, Mix::Q3KM, Mix::Q3KL, Mix::Q4KS, Mix::Q4KM, Mix::Q5KS, Mix::Q5KM];

    /// The name, as in `Q4_K_M`.
    pub const fn name(self) -> &'static str {
        match self {
            Mix::Q3KS => "Q3_K_S",
            Mix::Q3KM => "Q3_K_M",
            Mix::Q3KL => "Q3_K_L",
            Mix::Q4KS => "Q4_K_S",
            Mix::Q4KM => "Q4_K_M",
            Mix::Q5KS => "Q5_K_S",
            Mix::Q5KM => "Q5_K_M",
        }
    }

    /// The format of most matrices.
    const fn most(self) -> Format {
        match self {
            Mix::Q3KS | Mix::Q3KM | Mix::Q3KL => Format::Q3K,
            Mix::Q4KS | Mix::Q4KM => Format::Q4K,
            Mix::Q5KS | Mix::Q5KM => Format::Q5K,
        }
    }

    /// The format of tensor `name` of `model`. Source: `llama_tensor_get_type` of llama.cpp.
    fn format(self, name: &str, model: &Layers) -> Format {
        let most = self.most();
        let Some((layer, part)) = layer(name) else {
            // The last product, whose rows an embedding without a head has.
            let is_head = name == "output.weight" || name == "token_embd.weight" && model.tied;
            return if is_head { Format::Q6K } else { most };
        };
        // Experts are no different.
        let part = part.strip_suffix("_exps.weight").map_or(part.into(), |part| format!("{part}.weight"));
        let layers = model.layers;
        // The first and last eighths of the layers, and every third of the others.
        let matters = layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
        let format = match (&*part, self) {
            ("attn_v.weight", Mix::Q3KM) if layer < 2 => Format::Q5K,
            ("attn_v.weight" | "attn_output.weight", Mix::Q3KM) => Format::Q4K,
            ("ffn_down.weight", Mix::Q3KM) if layer < layers / 16 => Format::Q5K,
            ("ffn_down.weight", Mix::Q3KM) => Format::Q4K,
            ("attn_v.weight" | "attn_output.weight" | "ffn_down.weight", Mix::Q3KL) => Format::Q5K,
            ("attn_v.weight", Mix::Q4KS) if layer < 4 => Format::Q5K,
            ("ffn_down.weight", Mix::Q4KS) if layer < layers / 8 => Format::Q5K,
            ("attn_v.weight" | "ffn_down.weight", Mix::Q4KM | Mix::Q5KM) if matters => Format::Q6K,
            _ => most,
        };
        // Models of 80 layers share each value among eight heads.
        let is_shared = part == "attn_v.weight" && layers == 80;
        if is_shared && matches!(format, Format::Q3K | Format::Q4K) { Format::Q5K } else { format }
    }
}

/// What mixes depend on.
pub(crate) struct Layers {
    layers: u32,
    /// Whether the embedding is the head.
    tied: bool,
}

impl Layers {
    /// Of the model that has the tensors `names`.
    pub(crate) fn of<'n>(names: impl Iterator<Item = &'n str>) -> Self {
        let mut model = Layers { layers: 0, tied: true };
        for name in names {
            model.tied &= name != "output.weight";
            model.layers = model.layers.max(layer(name).map_or(0, |(layer, _)| layer + 1));
        }
        model
    }
}

/// The layer of a tensor, and the rest of its name.
fn layer(name: &str) -> Option<(u32, &str)> {
    let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
    // No model has more: the config is checked.
    Some((layer.parse().ok().filter(|layer| *layer < u32::MAX)?, part))
}

impl FileType {
    /// The format of tensor `name` of `model`.
    pub(crate) fn format(self, name: &str, model: &Layers) -> Format {
        match self {
            FileType::All(format) => format,
            FileType::Mix(mix) => mix.format(name, model),
            FileType::Int8(_) => Format::Q8_0,
        }
    }

    /// What shares a scale.
    pub(crate) fn int8(self) -> Option<Int8> {
        match self {
            FileType::Int8(int8) => Some(int8),
            FileType::All(_) | FileType::Mix(_) => None,
        }
    }

    /// The number that llama.cpp writes as `general.file_type`, if it has the type.
    pub(crate) fn id(self) -> Option<u32> {
        Some(match self {
            FileType::All(Format::F32) => 0,
            FileType::All(Format::F16) => 1,
            FileType::All(Format::Q4_0) => 2,
            FileType::All(Format::Q4_1) => 3,
            FileType::All(Format::Q8_0) | FileType::Int8(_) => 7,
            FileType::All(Format::Q5_0) => 8,
            FileType::All(Format::Q5_1) => 9,
            FileType::All(Format::Q2K) => 10,
            FileType::All(Format::Q3K) | FileType::Mix(Mix::Q3KS) => 11,
            FileType::Mix(Mix::Q3KM) => 12,
            FileType::Mix(Mix::Q3KL) => 13,
            FileType::All(Format::Q4K) | FileType::Mix(Mix::Q4KS) => 14,
            FileType::Mix(Mix::Q4KM) => 15,
            FileType::All(Format::Q5K) | FileType::Mix(Mix::Q5KS) => 16,
            FileType::Mix(Mix::Q5KM) => 17,
            FileType::All(Format::Q6K) => 18,
            FileType::All(Format::Iq4Nl) => 25,
            FileType::All(Format::Iq4Xs) => 30,
            FileType::All(Format::Bf16) => 32,
            FileType::All(Format::Tq1_0) => 36,
            FileType::All(Format::Tq2_0) => 37,
            FileType::All(Format::Mxfp4) => 38,
            FileType::All(Format::Nvfp4) => 39,
            FileType::All(Format::Q1_0) => 40,
            FileType::All(Format::Q2_0) => 41,
            _ => return None,
        })
    }
}

impl From<Format> for FileType {
    fn from(format: Format) -> Self {
        FileType::All(format)
    }
}

impl From<Mix> for FileType {
    fn from(mix: Mix) -> Self {
        FileType::Mix(mix)
    }
}

impl From<Int8> for FileType {
    fn from(int8: Int8) -> Self {
        FileType::Int8(int8)
    }
}

impl FileType {
    /// The format if it is one of those that safetensors take: f32, f16 or bf16.
    pub const fn float(self) -> Option<Format> {
        match self {
            FileType::All(format) if format.is_float() => Some(format),
            _ => None,
        }
    }
}

impl fmt::Display for FileType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FileType::All(format) => format.name(),
            FileType::Mix(mix) => mix.name(),
            FileType::Int8(int8) => int8.name(),
        })
    }
}

impl FromStr for FileType {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let formats = Format::ALL.into_iter().filter(|format| format.has_quantizer()).map(FileType::All);
        let int8 = Int8::ALL.map(FileType::Int8);
        let all = || formats.clone().chain(Mix::ALL.map(FileType::Mix)).chain(int8);
        all().find(|kind| kind.to_string().eq_ignore_ascii_case(name)).ok_or_else(|| {
            let names: Vec<String> = all().map(|kind| kind.to_string().to_lowercase()).collect();
            format!("expected one of {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// Written by `tests/oracle/mixes.py`.
    #[test]
    fn mixes_are_those_of_llama_cpp() {
        let all: Value = serde_json::from_str(include_str!("../../tests/fixtures/mixes.json")).unwrap();
        for model in all.as_object().unwrap().values() {
            for mix in Mix::ALL {
                let formats = model[mix.name().to_lowercase()].as_object().unwrap();
                assert_eq!(FileType::Mix(mix).id().map(Value::from), Some(formats["file_type"].clone()));
                let tensors: Vec<(String, &str)> = formats
                    .iter()
                    .filter_map(|(kind, formats)| Some((kind, formats.as_str()?)))
                    .flat_map(|(kind, formats)| {
                        let is_in_layer = !["token_embd", "output"].contains(&kind.as_str());
                        formats.split(' ').enumerate().map(move |(layer, format)| {
                            let name = if is_in_layer { format!("blk.{layer}.{kind}") } else { kind.clone() };
                            (format!("{name}.weight"), format)
                        })
                    })
                    .collect();
                assert!(tensors.len() > 100);
                let model = Layers::of(tensors.iter().map(|(name, _)| name.as_str()));
                for (name, format) in &tensors {
                    assert_eq!(mix.format(name, &model).name(), *format, "{} {name}", mix.name());
                }
            }
        }
    }
}
