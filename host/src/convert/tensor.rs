//! Tensors under their GGUF names, and their rows in the order and format of a GGUF file.

use super::ConvertError;
use super::config::Config;
use super::folder::Stored;
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

/// Weights as the source stores them.
enum Weights<'f> {
    /// Rows of this format.
    Stored(Format, &'f [u8]),
    Mlx(Mlx<'f>),
}

/// Weights as MLX packs them: code `k` of a row is at bit `k bits` of its bytes, and
/// `w = scale code + bias`, with a scale and a bias for each `group` codes.
struct Mlx<'f> {
    bits: usize,
    group: usize,
    codes: &'f [u8],
    /// The format of `scales` and `biases`.
    format: Format,
    scales: &'f [u8],
    biases: &'f [u8],
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
fn gguf_name(module: &str, config: &Config) -> Result<Option<String>, ConvertError> {
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

/// The tensors of a folder, in the order of the layers.
pub(super) fn of_folder<'f>(
    config: &Config,
    stored: &BTreeMap<String, Stored<'f>>,
) -> Result<Vec<Tensor<'f>>, ConvertError> {
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
            _ => return Err(ConvertError::tensor(name, "is not part of this architecture")),
        }
        let Some(gguf) = gguf_name(module, config)? else { continue };
        let heads = match () {
            () if !config.architecture.interleaves() => None,
            () if module.ends_with("q_proj") => Some(config.heads),
            () if module.ends_with("k_proj") => Some(config.kv_heads),
            () => None,
        };
        let scales = stored.get(&format!("{module}.scales"));
        let (cols, weights) = match (config.mlx, scales) {
            (Some((group, bits)), Some(scales)) => {
                let biases = stored.get(&format!("{module}.biases"));
                mlx(name, tensor, scales, biases, group as usize, bits as usize)?
            }
            _ => (tensor.cols, Weights::Stored(float(name, tensor.dtype)?, tensor.data)),
        };
        let rows = tensor.rows;
        let interleaved = match heads.map(|heads| heads as usize) {
            None => None,
            Some(heads) if heads > 0 && rows.is_multiple_of(2 * heads) => Some(rows / heads),
            Some(heads) => {
                return Err(ConvertError::tensor(name, format!("has {rows} rows for {heads} heads")));
            }
        };
        let name = format!("{gguf}.weight");
        all.push(Tensor { name, rows, cols, vector: tensor.vector, weights, interleaved });
    }
    // Layer 2 before layer 10.
    let order = |tensor: &Tensor<'_>| {
        let layer = tensor.name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse().ok());
        layer.unwrap_or(if tensor.name.starts_with("token_embd") { -1i64 } else { i64::MAX })
    };
    all.sort_by_key(order);
    Ok(all)
}

/// The format of floats.
fn float(name: &str, dtype: Dtype) -> Result<Format, ConvertError> {
    match dtype {
        Dtype::F32 => Ok(Format::F32),
        Dtype::F16 => Ok(Format::F16),
        Dtype::BF16 => Ok(Format::Bf16),
        other => Err(ConvertError::tensor(name, format!("has type {other:?}, expected F32, F16 or BF16"))),
    }
}

/// Columns and weights of a matrix that MLX packed.
fn mlx<'f>(
    name: &str,
    codes: &Stored<'f>,
    scales: &Stored<'f>,
    biases: Option<&Stored<'f>>,
    group: usize,
    bits: usize,
) -> Result<(usize, Weights<'f>), ConvertError> {
    let wrong = |problem: String| ConvertError::tensor(name, problem);
    if codes.dtype != Dtype::U32 {
        return Err(wrong(format!("has type {:?}, expected U32 beside its scales", codes.dtype)));
    }
    let biases = biases.ok_or_else(|| wrong("has scales but no biases".into()))?;
    let cols = codes.cols.checked_mul(32 / bits).ok_or_else(|| wrong("is too wide".into()))?;
    let fits = |other: &Stored<'_>| {
        other.rows == codes.rows && other.cols.checked_mul(group) == Some(cols) && other.dtype == scales.dtype
    };
    if !fits(scales) || !fits(biases) {
        return Err(wrong(format!("has {cols} columns, which its scales and biases do not fit")));
    }
    let format = float(name, scales.dtype)?;
    let (codes, scales, biases) = (codes.data, scales.data, biases.data);
    Ok((cols, Weights::Mlx(Mlx { bits, group, codes, format, scales, biases })))
}

impl Tensor<'_> {
    /// The format that keeps every bit.
    pub(super) fn exact(&self) -> Result<Format, ConvertError> {
        match &self.weights {
            Weights::Stored(format, _) => Ok(*format),
            Weights::Mlx(mlx) => mlx.exact(self.rows, self.cols),
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
            Weights::Stored(format, _) => Some(*format),
            Weights::Mlx(_) => None,
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
                Weights::Mlx(mlx) => {
                    if mlx.copy(row, self.cols, format, out) {
                        continue;
                    }
                    mlx.unpack(row, &mut values);
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

impl Mlx<'_> {
    /// Scale and bias of group `group`, counted over all rows, and their bytes if they are f16.
    fn scale(&self, group: usize) -> [f32; 2] {
        let size = self.format.block_bytes();
        [self.scales, self.biases].map(|all| {
            let mut value = [0.0];
            let bytes = &all[group * size..][..size];
            // The length is right by construction.
            let _ = quant::unpack(self.format, bytes, &mut value);
            value[0]
        })
    }

    /// The scale of Q1_0 or PQ2_0, if group `group` has the same weights in that format: -d and d, or -d, 0 and d.
    fn symmetric(&self, group: usize) -> Option<half::f16> {
        let [scale, bias] = self.scale(group);
        let d = half::f16::from_f32(-bias);
        let steps = if self.bits == 1 { 2.0 } else { 1.0 };
        (d.to_f32() == -bias && scale == steps * -bias).then_some(d)
    }

    /// The format that keeps every bit.
    fn exact(&self, rows: usize, cols: usize) -> Result<Format, ConvertError> {
        let groups = rows * cols / self.group;
        if self.bits < 4 && self.group == 128 && (0..groups).all(|group| self.symmetric(group).is_some()) {
            return Ok(if self.bits == 1 { Format::Q1_0 } else { Format::Pq2_0 });
        }
        // A scale and a minimum in f16 for 32 codes, which groups of more repeat.
        Ok(if self.format == Format::F16 { Format::Q4_1 } else { Format::F32 })
    }

    /// The codes of a row.
    fn codes(&self, row: usize, cols: usize) -> &[u8] {
        let len = cols * self.bits / 8;
        &self.codes[row * len..][..len]
    }

    fn code(&self, codes: &[u8], k: usize) -> u8 {
        codes[k * self.bits / 8] >> (k * self.bits % 8) & ((1 << self.bits) - 1)
    }

    /// Writes a row in its exact format; false for another one.
    fn copy(&self, row: usize, cols: usize, format: Format, out: &mut [u8]) -> bool {
        let codes = self.codes(row, cols);
        let groups = row * cols / self.group;
        match format {
            Format::Q1_0 | Format::Pq2_0 => {
                let bits = if format == Format::Q1_0 { 1 } else { 2 };
                let scale = |group: usize| self.symmetric(groups + group);
                if (self.bits, self.group) != (bits, 128)
                    || !(0..cols / 128).all(|group| scale(group).is_some())
                {
                    return false;
                }
                let blocks = out.chunks_exact_mut(format.block_bytes()).zip(codes.chunks_exact(16 * bits));
                for (group, (block, codes)) in blocks.enumerate() {
                    block[..2].copy_from_slice(&scale(group).unwrap_or_default().to_le_bytes());
                    block[2..].copy_from_slice(codes);
                }
                true
            }
            Format::Q4_1 if self.format == Format::F16 => {
                for (b, block) in out.chunks_exact_mut(format.block_bytes()).enumerate() {
                    let group = 2 * (groups + b * 32 / self.group);
                    block[..2].copy_from_slice(&self.scales[group..][..2]);
                    block[2..4].copy_from_slice(&self.biases[group..][..2]);
                    for j in 0..16 {
                        let [low, high] = [j, j + 16].map(|j| self.code(codes, 32 * b + j));
                        block[4 + j] = low | high << 4;
                    }
                }
                true
            }
            _ => false,
        }
    }

    fn unpack(&self, row: usize, out: &mut [f32]) {
        let codes = self.codes(row, out.len());
        let first = row * out.len() / self.group;
        for (group, out) in out.chunks_mut(self.group).enumerate() {
            let [scale, bias] = self.scale(first + group);
            for (k, w) in out.iter_mut().enumerate() {
                *w = scale * f32::from(self.code(codes, group * self.group + k)) + bias;
            }
        }
    }
}
