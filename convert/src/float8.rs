//! Floats of 8 bits.

use crate::config::Float8Scales;
use crate::error::ConvertError;
use crate::stored::{Stored, float};
use safetensors::tensor::Dtype;
use shohin_core::{Format, quant};

/// A matrix of floats of 8 bits, `w = value scale`, or `w = value` without scales.
#[derive(Clone)]
pub(crate) struct Float8<'f> {
    kind: Kind,
    /// A byte per weight.
    data: &'f [u8],
    scales: Option<Scales<'f>>,
}

/// A scale for each block of rows and columns; the last ones may be smaller.
#[derive(Clone)]
struct Scales<'f> {
    /// Rows and columns of a block.
    block: [usize; 2],
    /// Blocks of a row.
    per_row: usize,
    format: Format,
    data: &'f [u8],
}

#[derive(Clone, Copy)]
enum Kind {
    /// 4 bits of exponent with bias 7 and 3 of mantissa. There is no infinity; all ones is NaN.
    E4M3,
    /// 5 bits of exponent and 2 of mantissa: the upper byte of an f16.
    E5M2,
}

impl Kind {
    /// Every value of both formats is an f16, too. Source: Micikevicius et al., "FP8 Formats for Deep Learning", 2022.
    fn value(self, byte: u8) -> half::f16 {
        match self {
            Kind::E5M2 => half::f16::from_bits(u16::from(byte) << 8),
            Kind::E4M3 if byte & 0x7f == 0x7f => half::f16::NAN,
            Kind::E4M3 => {
                // With the fields in place, an f16 has the exponent bias 15: the value is 2^8 times too small.
                let bits = u16::from(byte & 0x80) << 8 | u16::from(byte & 0x7f) << 7;
                half::f16::from_f32(half::f16::from_bits(bits).to_f32() * 256.0)
            }
        }
    }
}

impl<'f> Float8<'f> {
    /// The weights of tensor `name`, with the scales of its blocks, rows or the whole; `None` if they are not floats of 8 bits.
    pub(crate) fn of(
        name: &str,
        weights: &Stored<'f>,
        scales: Option<&Stored<'f>>,
        config: Option<Float8Scales>,
    ) -> Result<Option<Float8<'f>>, ConvertError> {
        let kind = match weights.dtype {
            Dtype::F8_E4M3 => Kind::E4M3,
            Dtype::F8_E5M2 => Kind::E5M2,
            _ => return Ok(None),
        };
        let scales = match (scales, config) {
            (None, None) => None,
            (Some(scales), Some(config)) => {
                let of_rows = scales.vector && scales.cols == weights.rows;
                let block = match config.block {
                    Some((rows, cols)) => [rows as usize, cols as usize],
                    None if scales.rows * scales.cols == 1 => [weights.rows, weights.cols],
                    None => [1, weights.cols],
                };
                let blocks = [weights.rows.div_ceil(block[0]), weights.cols.div_ceil(block[1])];
                let is_vector_of_rows = of_rows && blocks == [weights.rows, 1];
                if [scales.rows, scales.cols] != blocks && !is_vector_of_rows {
                    let problem = format!(
                        "has {} by {} scales, expected {} by {}",
                        scales.rows, scales.cols, blocks[0], blocks[1]
                    );
                    return Err(ConvertError::tensor(name, problem));
                }
                let format = float(name, scales.dtype)?;
                Some(Scales { block, per_row: blocks[1], format, data: scales.data })
            }
            (None, Some(config)) => {
                return Err(ConvertError::tensor(name, format!("has no weight{}", config.suffix)));
            }
            (Some(_), None) => {
                let problem = "has scales, but config.json does not say what they are of";
                return Err(ConvertError::tensor(name, problem));
            }
        };
        Ok(Some(Float8 { kind, data: weights.data, scales }))
    }

    /// The smallest format that keeps every bit, also of codes that do not occur: the values are not read.
    pub(crate) fn exact(&self) -> Format {
        let Some(scales) = &self.scales else { return Format::F16 };
        let values: Vec<f32> =
            (0..=255).map(|byte| self.kind.value(byte).to_f32()).filter(|value| value.is_finite()).collect();
        let mut value = [0.0];
        let mut fits = |round: fn(f32) -> f32| {
            scales.data.chunks_exact(scales.format.block_bytes()).all(|scale| {
                quant::unpack(scales.format, scale, &mut value).is_ok()
                    && values.iter().all(|w| round(w * value[0]) == w * value[0])
            })
        };
        if fits(|w| half::f16::from_f32(w).to_f32()) {
            Format::F16
        } else if fits(|w| half::bf16::from_f32(w).to_f32()) {
            Format::Bf16
        } else {
            Format::F32
        }
    }

    /// Unpacks row `row`, of `out.len()` weights.
    pub(crate) fn unpack(&self, row: usize, out: &mut [f32]) -> Result<(), ConvertError> {
        let bytes = &self.data[row * out.len()..][..out.len()];
        for (w, byte) in out.iter_mut().zip(bytes) {
            *w = self.kind.value(*byte).to_f32();
        }
        let Some(Scales { block, per_row, format, data }) = &self.scales else { return Ok(()) };
        let size = format.block_bytes();
        let scales = &data[row / block[0] * per_row * size..][..per_row * size];
        for (out, scale) in out.chunks_mut(block[1]).zip(scales.chunks_exact(size)) {
            let mut value = [0.0];
            quant::unpack(*format, scale, &mut value)?;
            out.iter_mut().for_each(|w| *w *= value[0]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All 256 values as torch widens them (`tests/oracle/float8.py`).
    #[test]
    fn floats_of_8_bits_have_the_values_of_torch() {
        let values: [(Kind, &[u8]); 2] = [
            (Kind::E4M3, include_bytes!("../../tests/fixtures/hf/float8_e4m3fn.f32")),
            (Kind::E5M2, include_bytes!("../../tests/fixtures/hf/float8_e5m2.f32")),
        ];
        for (kind, values) in values {
            assert_eq!(values.len(), 1024);
            for (byte, want) in (0..=255).zip(values.chunks_exact(4)) {
                let want = f32::from_le_bytes([want[0], want[1], want[2], want[3]]);
                let found = kind.value(byte).to_f32();
                assert!(
                    found.to_bits() == want.to_bits() || found.is_nan() && want.is_nan(),
                    "{byte:#x}: {found}"
                );
            }
        }
    }
}
