//! Models with LongRoPE.

use shohin_core::gguf::{GgufWriter, TensorType};
use shohin_core::{Error, Format, Gguf, ModelConfig, Result};

/// The model of a Qwen3 file for `context` tokens, with LongRoPE in the place of its scaling: short factors of 1, and in contexts
/// of over `original` tokens long ones of 4.
///
/// # Errors
/// If it is not a model.
pub fn long_rope(file: &[u8], original: u32, context: u32) -> Result<Vec<u8>> {
    let gguf = Gguf::parse(file)?;
    let pairs = ModelConfig::from_gguf(&gguf)?.head_dim / 2;
    let is_replaced = |key: &str| key.contains("rope.scaling") || key.ends_with("context_length");
    let mut w = GgufWriter::new();
    for (key, value) in gguf.metadata().iter().filter(|(key, _)| !is_replaced(key)) {
        w.set(key, value)?;
    }
    w.set("qwen3.context_length", context)?;
    w.set("qwen3.rope.scaling.original_context_length", original)?;
    let factors =
        [("short", 1f32), ("long", 4.0)].map(|(name, factor)| (name, factor.to_le_bytes().repeat(pairs)));
    for (name, _) in &factors {
        w.tensor(&format!("rope_factors_{name}.weight"), &[pairs as u64], Format::F32)?;
    }
    for tensor in gguf.tensors() {
        let kind = TensorType::of(tensor.type_id()).ok_or(Error::Device { problem: "an unknown type" })?;
        w.tensor_of(tensor.name(), tensor.dims(), kind)?;
    }
    let data = gguf.tensors().iter().map(|tensor| gguf.data(tensor));
    w.to_vec(factors.iter().map(|(_, bytes)| &bytes[..]).chain(data))
}
