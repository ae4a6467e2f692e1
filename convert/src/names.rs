//! The names of tensors in folders and in GGUF files, by the tables of core's architectures.

use crate::config::Config;
use crate::error::ConvertError;
use shohin_core::model::HuggingFace;
use shohin_core::model::hugging_face::{RowOrder, TensorName, Values};

/// What a folder's tensor becomes.
pub(crate) struct InGguf {
    /// The tensor of the GGUF file.
    pub(crate) name: String,
    /// Its place in that tensor, if it is a matrix of an expert.
    pub(crate) expert: Option<u32>,
    pub(crate) order: RowOrder,
    pub(crate) values: Values,
}

/// The router of a mixture of experts, whose weights stay floats.
pub(crate) fn is_router(name: &str) -> bool {
    name.ends_with(".ffn_gate_inp.weight")
}

/// The weights of a convolution along the sequence, in a folder or a GGUF file: few numbers, which stay floats.
pub(crate) fn is_convolution(name: &str) -> bool {
    name.ends_with(".conv.weight") || name.ends_with("conv1d.weight")
}

/// What tensor `name` of a folder becomes; `None` for what GGUF files do not have.
pub(crate) fn to_gguf(name: &str, config: &Config) -> Result<Option<InGguf>, ConvertError> {
    let unknown = || {
        let module = name.strip_suffix(".weight").unwrap_or(name);
        ConvertError::tensor(module, "is not part of this architecture")
    };
    let (found, numbers) = find(config.folder, name, |tensor| tensor.folder).ok_or_else(unknown)?;
    if numbers.iter().zip([config.layers, config.experts]).any(|(number, count)| *number >= count) {
        return Err(unknown());
    }
    // The embedding itself.
    if config.tied && found.gguf == OUTPUT {
        return Ok(None);
    }
    let name = filled(found.gguf, &numbers);
    Ok(Some(InGguf { name, expert: numbers.get(1).copied(), order: found.order, values: found.values }))
}

/// [`to_gguf`] of the weights of a module.
pub(crate) fn module_to_gguf(module: &str, config: &Config) -> Result<Option<InGguf>, ConvertError> {
    to_gguf(&format!("{module}.weight"), config)
}

/// The names in a folder of the `count` matrices of tensor `name` of a GGUF file, and its row of the table.
pub(crate) fn to_folder(
    folder: &'static HuggingFace,
    name: &str,
    count: usize,
) -> Result<(Vec<String>, &'static TensorName), ConvertError> {
    let unknown = || ConvertError::tensor(name, "is not part of this architecture");
    let (found, numbers) = find(folder, name, |tensor| tensor.gguf).ok_or_else(unknown)?;
    let of_expert = |expert| filled(found.folder, &[numbers.as_slice(), &[expert as u32]].concat());
    Ok(((0..count).map(of_expert).collect(), found))
}

const OUTPUT: &str = "output.weight";

/// The row of the table for `name`, and the numbers in it.
fn find(
    folder: &'static HuggingFace,
    name: &str,
    pattern: impl Fn(&TensorName) -> &'static str,
) -> Option<(&'static TensorName, Vec<u32>)> {
    let tensors = folder.tensors.iter().copied().flatten();
    tensors.into_iter().find_map(|tensor| Some((tensor, numbers(pattern(tensor), name)?)))
}

/// The numbers in the places of `*`.
fn numbers(pattern: &str, name: &str) -> Option<Vec<u32>> {
    let mut parts = pattern.split('*');
    let mut rest = name.strip_prefix(parts.next()?)?;
    let mut found = Vec::new();
    for part in parts {
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        found.push(rest[..end].parse().ok()?);
        rest = rest[end..].strip_prefix(part)?;
    }
    rest.is_empty().then_some(found)
}

/// `pattern` with numbers in the places of `*`.
fn filled(pattern: &str, numbers: &[u32]) -> String {
    let fill = |text: String, number: &u32| text.replacen('*', &number.to_string(), 1);
    numbers.iter().fold(pattern.into(), fill)
}

#[cfg(test)]
mod tests {
    use super::*;
    use shohin_core::ModelConfig;
    use shohin_core::model::{Architecture, ExpertsConfig, ModelVariant};

    #[test]
    fn patterns_have_whole_numbers_only() {
        let pattern = "model.layers.*.mlp.experts.*.up_proj.weight";
        assert_eq!(numbers(pattern, "model.layers.3.mlp.experts.12.up_proj.weight"), Some(vec![3, 12]));
        for other in [
            "model.layers..mlp.experts.12.up_proj.weight",
            "model.layers.+3.mlp.experts.12.up_proj.weight",
            "model.layers.3.mlp.experts.12.up_proj.weights",
            "model.layers.3.mlp.experts.99999999999.up_proj.weight",
        ] {
            assert_eq!(numbers(pattern, other), None, "{other}");
        }
        assert_eq!(filled(pattern, &[3, 12]), "model.layers.3.mlp.experts.12.up_proj.weight");
    }

    #[test]
    fn every_tensor_of_a_program_has_a_name_in_folders() {
        for architecture in Architecture::ALL {
            let shape = ExpertsConfig { count: 4, used: 2, feed_forward: 64, normalize: true, clamp: None };
            let experts = architecture.experts.then_some(shape);
            let published = ModelVariant::Bonsai1_7B.config().unwrap();
            let config =
                ModelConfig { architecture, experts, num_layers: 11, tied_embeddings: false, ..published };
            let known = Config::of_model(&config).unwrap();
            for tensor in config.program().tensors {
                let (theirs, _) = to_folder(known.folder, &tensor.name, tensor.matrices).unwrap();
                for (i, name) in theirs.iter().enumerate() {
                    let back = to_gguf(name, &known).unwrap().unwrap();
                    assert_eq!(back.name, tensor.name);
                    assert_eq!(back.expert.unwrap_or(0), i as u32, "{name}");
                }
            }
        }
    }
}
