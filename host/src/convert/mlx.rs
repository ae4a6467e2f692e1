//! Weights as MLX packs them.

use super::ConvertError;
use super::config::Packing;
use super::folder::Stored;
use super::tensor::float;
use safetensors::tensor::Dtype;
use shohin_core::{Format, quant};

/// Weights of a matrix: code `k` of a row is at bit `k bits` of its bytes, and
/// `w = scale code + bias`, with a scale and a bias for each `group` codes.
pub(super) struct Mlx<'f> {
    bits: usize,
    group: usize,
    codes: &'f [u8],
    /// The format of `scales` and `biases`.
    format: Format,
    scales: &'f [u8],
    biases: &'f [u8],
}

/// The columns and the weights of a matrix.
pub(super) fn mlx<'f>(
    name: &str,
    codes: &Stored<'f>,
    scales: &Stored<'f>,
    biases: Option<&Stored<'f>>,
    Packing { group, bits }: Packing,
) -> Result<(usize, Mlx<'f>), ConvertError> {
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
    Ok((cols, Mlx { bits, group, codes, format, scales, biases }))
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

    /// The scale of Q8_0, if group `group` has the same weights in that format: those of code 128 are 0.
    fn centred(&self, group: usize) -> Option<half::f16> {
        let [scale, bias] = self.scale(group);
        let d = half::f16::from_f32(scale);
        (d.to_f32() == scale && bias == -128.0 * scale).then_some(d)
    }

    /// The format that keeps every bit.
    pub(super) fn exact(&self, rows: usize, cols: usize) -> Result<Format, ConvertError> {
        let groups = rows * cols / self.group;
        if self.bits < 4 && self.group == 128 && (0..groups).all(|group| self.symmetric(group).is_some()) {
            return Ok(if self.bits == 1 { Format::Q1_0 } else { Format::Pq2_0 });
        }
        if self.bits == 8 && (0..groups).all(|group| self.centred(group).is_some()) {
            return Ok(Format::Q8_0);
        }
        // A scale and a minimum in f16 for 32 codes, which groups of more repeat.
        Ok(if self.bits <= 4 && self.format == Format::F16 { Format::Q4_1 } else { Format::F32 })
    }

    /// The codes of a row.
    fn codes(&self, row: usize, cols: usize) -> &[u8] {
        let len = cols * self.bits / 8;
        &self.codes[row * len..][..len]
    }

    fn code(&self, codes: &[u8], k: usize) -> u8 {
        codes[k * self.bits / 8] >> (k * self.bits % 8) & (0xff >> (8 - self.bits))
    }

    /// Writes a row in its exact format; false for another one.
    pub(super) fn copy(&self, row: usize, cols: usize, format: Format, out: &mut [u8]) -> bool {
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
            Format::Q8_0 if self.bits == 8 => {
                let scale = |group: usize| self.centred(groups + group);
                if !(0..cols / self.group).all(|group| scale(group).is_some()) {
                    return false;
                }
                let blocks = out.chunks_exact_mut(format.block_bytes()).zip(codes.chunks_exact(32));
                for (b, (block, codes)) in blocks.enumerate() {
                    block[..2].copy_from_slice(&scale(b * 32 / self.group).unwrap_or_default().to_le_bytes());
                    // Code 128 is 0.
                    block[2..].iter_mut().zip(codes).for_each(|(q, code)| *q = code ^ 0x80);
                }
                true
            }
            Format::Q4_1 if self.bits <= 4 && self.format == Format::F16 => {
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

    pub(super) fn unpack(&self, row: usize, out: &mut [f32]) {
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
