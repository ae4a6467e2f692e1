//! Tensors under their GGUF names, and their rows in the order and format of a GGUF file.

use super::ConvertError;
use super::config::Config;
use super::float8::Float8;
use super::folder::Stored;
use super::grouped::{Grouped, mlx};
use safetensors::tensor::Dtype;
use shohin_core::gguf::{Gguf, TensorInfo};
use shohin_core::{Format, quant};
use std::collections::BTreeMap;

/// A tensor to write.
pub(super) struct Tensor<'f> {
    /// Its name in GGUF.
    pub(super) name: String,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) vector: bool,
    weights: Weights<'f>,
    /// Rows of a head, whose order changes: GGUF files of Llama have rows `i` and `i + head / 2` side by side.
    interleaved: Option<usize>,
}

/// A module's weights.
pub(super) struct Module<'f> {
    /// Its name in a folder, such as `model.layers.0.mlp.up_proj`.
    pub(super) name: String,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) vector: bool,
    pub(super) weights: Weights<'f>,
}

/// Weights as the source stores them.
pub(super) enum Weights<'f> {
    /// Rows of this format.
    Stored(Format, &'f [u8]),
    /// Columns of floats.
    Transposed(Format, &'f [u8]),
    Float8(Float8<'f>),
    Grouped(Grouped<'f>),
}

/// Names of a layer's tensors: in a folder, and in GGUF.
const LAYER: [(&str, &str); 11] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// The GGUF name of a module, without `.weight`; `None` for what GGUF files do not have.
pub(super) fn gguf_name(module: &str, config: &Config) -> Result<Option<String>, ConvertError> {
    let unknown = || ConvertError::tensor(module, "is not part of this architecture");
    match module {
        "model.embed_tokens" => return Ok(Some("token_embd".into())),
        "model.norm" => return Ok(Some("output_norm".into())),
        // The embedding itself.
        "lm_head" if config.tied => return Ok(None),
        "lm_head" => return Ok(Some("output".into())),
        _ => {}
    }
    let (layer, rest) = module
        .strip_prefix("model.layers.")
        .and_then(|rest| rest.split_once('.'))
        .and_then(|(layer, rest)| Some((layer.parse::<u32>().ok()?, rest)))
        .filter(|(layer, _)| *layer < config.layers)
        .ok_or_else(unknown)?;
    let (_, name) = LAYER.iter().find(|(theirs, _)| *theirs == rest).ok_or_else(unknown)?;
    Ok(Some(format!("blk.{layer}.{name}")))
}

/// The tensors of a GGUF file, in its order.
pub(super) fn of_gguf<'f>(gguf: &Gguf<'f>) -> Result<Vec<Tensor<'f>>, ConvertError> {
    let tensor = |info: &TensorInfo<'f>| {
        let format = info.format().ok_or_else(|| {
            ConvertError::tensor(
                info.name(),
                format!("has type {}, which is not supported", info.type_name()),
            )
        })?;
        let (rows, cols, vector) = match *info.dims() {
            [cols] => (1, cols, true),
            [cols, rows] => (rows, cols, false),
            ref dims => {
                let problem = format!("has the shape {dims:?}, expected one or two dimensions");
                return Err(ConvertError::tensor(info.name(), problem));
            }
        };
        Ok(Tensor {
            name: info.name().into(),
            // The parser has checked that the bytes are there.
            rows: rows as usize,
            cols: cols as usize,
            vector,
            weights: Weights::Stored(format, gguf.data(info)),
            interleaved: None,
        })
    };
    gguf.tensors().iter().map(tensor).collect()
}

/// The modules whose tensors are `stored`.
pub(super) fn modules<'f>(
    config: &Config,
    stored: &BTreeMap<String, Stored<'f>>,
) -> Result<Vec<Module<'f>>, ConvertError> {
    let mut all = Vec::new();
    for (name, tensor) in stored {
        if name.ends_with("rotary_emb.inv_freq") {
            continue;
        }
        let Some((module, part)) = name.rsplit_once('.') else {
            return Err(ConvertError::tensor(name, "is not part of this architecture"));
        };
        match part {
            "weight" => {}
            // Read with the weights.
            "scales" | "biases" if config.mlx.is_some() => continue,
            "weight_scale_inv" if config.float8_block.is_some() => continue,
            _ => return Err(ConvertError::tensor(name, "is not part of this architecture")),
        }
        let scales = stored.get(&format!("{module}.scales"));
        let (cols, weights) = match (&config.mlx, scales) {
            (Some(packed), Some(scales)) => {
                let biases = stored.get(&format!("{module}.biases"));
                let weights = mlx(name, tensor, scales, biases, packed.of(module))?;
                (weights.cols, Weights::Grouped(weights))
            }
            _ => (tensor.cols, one_by_one(name, tensor, stored, config)?),
        };
        all.push(Module { name: module.into(), rows: tensor.rows, cols, vector: tensor.vector, weights });
    }
    Ok(all)
}

/// The tensors of a folder's modules, in the order of the layers.
pub(super) fn of_modules<'f>(
    config: &Config,
    modules: Vec<Module<'f>>,
) -> Result<Vec<Tensor<'f>>, ConvertError> {
    let mut all = Vec::new();
    for Module { name: module, rows, cols, vector, weights } in modules {
        let Some(gguf) = gguf_name(&module, config)? else { continue };
        let heads = match () {
            () if !config.architecture.interleaves() => None,
            () if module.ends_with("q_proj") => Some(config.heads),
            () if module.ends_with("k_proj") => Some(config.kv_heads),
            () => None,
        };
        let interleaved = match heads.map(|heads| heads as usize) {
            None => None,
            Some(heads) if heads > 0 && rows.is_multiple_of(2 * heads) => Some(rows / heads),
            Some(heads) => {
                return Err(ConvertError::tensor(&module, format!("has {rows} rows for {heads} heads")));
            }
        };
        all.push(Tensor { name: format!("{gguf}.weight"), rows, cols, vector, weights, interleaved });
    }
    // Layer 2 before layer 10.
    let order = |tensor: &Tensor<'_>| {
        let layer = tensor.name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse().ok());
        layer.unwrap_or(if tensor.name.starts_with("token_embd") { -1i64 } else { i64::MAX })
    };
    all.sort_by_key(order);
    Ok(all)
}

/// The weights of tensor `name` with one number each.
fn one_by_one<'f>(
    name: &str,
    tensor: &Stored<'f>,
    stored: &BTreeMap<String, Stored<'f>>,
    config: &Config,
) -> Result<Weights<'f>, ConvertError> {
    let scales = stored.get(&format!("{name}_scale_inv"));
    Ok(match Float8::of(name, tensor, scales, config.float8_block)? {
        Some(float8) => Weights::Float8(float8),
        None if scales.is_some() => {
            let problem =
                format!("has type {:?}, expected a float of 8 bits beside its scales", tensor.dtype);
            return Err(ConvertError::tensor(name, problem));
        }
        None => Weights::Stored(float(name, tensor.dtype)?, tensor.data),
    })
}

/// The format of floats of 16 or 32 bits.
pub(super) fn float(name: &str, dtype: Dtype) -> Result<Format, ConvertError> {
    match dtype {
        Dtype::F32 => Ok(Format::F32),
        Dtype::F16 => Ok(Format::F16),
        Dtype::BF16 => Ok(Format::Bf16),
        other => Err(ConvertError::tensor(
            name,
            format!("has type {other:?}, expected a float of 32, 16 or 8 bits"),
        )),
    }
}

impl Tensor<'_> {
    /// The format that keeps every bit.
    pub(super) fn exact(&self) -> Result<Format, ConvertError> {
        match &self.weights {
            Weights::Stored(format, _) | Weights::Transposed(format, _) => Ok(*format),
            Weights::Float8(float8) => Ok(float8.exact()),
            Weights::Grouped(grouped) => Ok(grouped.exact()),
        }
    }

    /// The row of the source that becomes row `row`.
    fn source(&self, row: usize) -> usize {
        match self.interleaved {
            None => row,
            Some(head) => row / head * head + row % 2 * (head / 2) + row % head / 2,
        }
    }

    /// Its format in the source, if that is one.
    pub(super) fn format(&self) -> Option<Format> {
        match &self.weights {
            Weights::Stored(format, _) | Weights::Transposed(format, _) => Some(*format),
            Weights::Float8(_) | Weights::Grouped(_) => None,
        }
    }

    /// Writes rows from `first` to `out`, whole rows of `format`; returns the sums of the squares of the errors and of
    /// the weights, as far as they may differ.
    pub(super) fn write(
        &self,
        first: usize,
        format: Format,
        out: &mut [u8],
    ) -> Result<[f64; 2], ConvertError> {
        let row_bytes = format.row_bytes(self.cols).unwrap_or(0).max(1);
        let mut values = vec![0.0; self.cols];
        let mut written = vec![0.0; self.cols];
        let mut squares = [0.0; 2];
        for (i, out) in out.chunks_exact_mut(row_bytes).enumerate() {
            let row = self.source(first + i);
            match &self.weights {
                Weights::Stored(stored, data) => {
                    let bytes = &data[row * data.len() / self.rows..(row + 1) * data.len() / self.rows];
                    if *stored == format {
                        out.copy_from_slice(bytes);
                        continue;
                    }
                    quant::unpack(*stored, bytes, &mut values)?;
                }
                Weights::Float8(float8) => float8.unpack(row, &mut values)?,
                Weights::Transposed(stored, data) => {
                    let size = stored.block_bytes();
                    for (k, value) in values.iter_mut().enumerate() {
                        let bytes = &data[(k * self.rows + row) * size..][..size];
                        quant::unpack(*stored, bytes, std::slice::from_mut(value))?;
                    }
                }
                Weights::Grouped(grouped) => {
                    if grouped.copy(row, format, out) {
                        continue;
                    }
                    grouped.unpack(row, &mut values);
                }
            }
            quant::pack(format, &values, out)?;
            quant::unpack(format, out, &mut written)?;
            for (&w, &written) in values.iter().zip(&written) {
                squares[0] += f64::from(w - written).powi(2);
                squares[1] += f64::from(w).powi(2);
            }
        }
        Ok(squares)
    }
}
