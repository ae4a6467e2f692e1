//! Ternary matrices with one scale: type 36 (I2_S) of bitnet.cpp's GGUF files, and the packed folders of transformers' BitNet.

use crate::config::BitNet;
use crate::error::ConvertError;
use crate::stored::{Stored, float};
use half::f16;
use safetensors::tensor::Dtype;
use shohin_core::gguf::TensorInfo;
use shohin_core::{Format, quant};
use std::collections::BTreeMap;

/// The GGUF id of I2_S.
pub(crate) const I2_S: u32 = 36;

/// Bytes after the codes of a tensor, of which the first four are its scale.
const TAIL: usize = 32;

/// The layout of tensors of type 36, which files do not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Id36 {
    /// That of the published files, [`Id36::Block128`].
    #[default]
    Auto,
    /// Blocks of 128 weights: files that were made on x86.
    Block128,
    /// Blocks of 64 weights: files that were made on ARM.
    Block64,
}

impl Id36 {
    /// Every layout.
    pub const ALL: [Id36; 3] = [Id36::Auto, Id36::Block128, Id36::Block64];

    /// The name in options: `auto`, `128` or `64`.
    pub const fn name(self) -> &'static str {
        match self {
            Id36::Auto => "auto",
            Id36::Block128 => "128",
            Id36::Block64 => "64",
        }
    }

    /// The layout called `name`.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|id36| id36.name() == name)
    }

    const fn block(self) -> usize {
        match self {
            Id36::Auto | Id36::Block128 => 128,
            Id36::Block64 => 64,
        }
    }
}

/// Where the code of a weight is; a code is the weight and 1.
#[derive(Clone, Copy, Debug)]
enum Layout {
    /// Of a block of this many weights in a quarter as many bytes, weight `j` is in byte `j % quarter`, from bit
    /// `6 - 2 (j / quarter)`.
    Blocks(usize),
    /// The four quarters of the rows are in the bits 0, 2, 4 and 6 of as many bytes as a quarter has weights.
    Quarters,
}

/// A matrix of -1, 0 and 1, and its scale.
#[derive(Clone, Debug)]
pub(crate) struct Ternary<'f> {
    rows: usize,
    cols: usize,
    layout: Layout,
    codes: &'f [u8],
    /// What the weights are multiplied by: a number that f16 has, or 1 beside a factor.
    scale: f32,
}

/// A scale as one of blocks and a factor of the matrix, of which one is 1.
fn scale_and_factor(scale: f32) -> (f32, Option<f32>) {
    // Also of the smallest ones that f16 has.
    match f16::from_f32(scale).to_f32() == scale {
        true => (scale, None),
        false => (1.0, Some(scale)),
    }
}

/// The matrix in a tensor of type 36, and its factor if it has one.
pub(crate) fn of_gguf<'f>(
    info: &TensorInfo<'_>,
    [rows, cols]: [usize; 2],
    data: &'f [u8],
    id36: Id36,
) -> Result<(Ternary<'f>, Option<f32>), ConvertError> {
    let wrong = |problem: String| Err(ConvertError::tensor(info.name(), problem));
    let block = id36.block();
    if !cols.is_multiple_of(block) {
        return wrong(format!("has rows of {cols} weights of type I2_S, expected a multiple of {block}"));
    }
    // The parser has checked that the bytes are there.
    let (codes, tail) = data.split_at(data.len().saturating_sub(TAIL));
    let scale = tail.first_chunk().map_or(f32::NAN, |bytes| f32::from_le_bytes(*bytes));
    if !(scale.is_finite() && scale > 0.0) {
        return wrong(format!("has the scale {scale}, expected a positive number"));
    }
    let (scale, factor) = scale_and_factor(scale);
    let matrix = Ternary { rows, cols, layout: Layout::Blocks(block), codes, scale };
    matrix.check(info.name())?;
    Ok((matrix, factor))
}

/// The matrix in a folder's tensor `name` of bytes, and its factor if it has one, or that of floats with a scale; nothing for a
/// matrix without one.
pub(crate) fn of_folder<'f>(
    name: &str,
    tensor: &Stored<'f>,
    stored: &BTreeMap<String, Stored<'f>>,
    BitNet { divides }: BitNet,
) -> Result<(Option<Ternary<'f>>, Option<f32>), ConvertError> {
    let wrong = |problem: String| Err(ConvertError::tensor(name, problem));
    let Some(scales) = stored.get(&format!("{name}_scale")) else {
        return match tensor.dtype {
            Dtype::U8 => wrong("has no weight_scale".into()),
            _ => Ok((None, None)),
        };
    };
    let mut scale = [0.0];
    if (scales.rows, scales.cols) != (1, 1) {
        return wrong(format!("has a weight_scale of {} numbers, expected one", scales.rows * scales.cols));
    }
    quant::unpack(float(name, scales.dtype)?, scales.data, &mut scale)?;
    let scale = if divides { 1.0 / scale[0] } else { scale[0] };
    if !(scale.is_finite() && scale > 0.0) {
        return wrong(format!("has the scale {scale}, expected a positive number"));
    }
    if tensor.dtype != Dtype::U8 {
        return Ok((None, Some(scale)));
    }
    let Some(rows) = tensor.rows.checked_mul(4) else { return wrong("has too many rows".into()) };
    let (scale, factor) = scale_and_factor(scale);
    let matrix = Ternary { rows, cols: tensor.cols, layout: Layout::Quarters, codes: tensor.data, scale };
    matrix.check(name)?;
    Ok((Some(matrix), factor))
}

impl Ternary<'_> {
    /// Outputs.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Refuses the code 3, which no weight has: the layout is another one, or the file is damaged.
    fn check(&self, name: &str) -> Result<(), ConvertError> {
        match self.codes.iter().position(|byte| byte & (byte >> 1) & 0x55 != 0) {
            Some(at) => {
                let problem = format!("has a code 3 in byte {at}, expected ternary weights");
                Err(ConvertError::tensor(name, problem))
            }
            None => Ok(()),
        }
    }

    /// The format that has the same weights.
    pub(crate) fn exact(&self) -> Format {
        match self.cols {
            cols if cols.is_multiple_of(128) => Format::Pq2_0,
            cols if cols.is_multiple_of(64) => Format::Q2_0,
            // f16 has the scale.
            _ => Format::F16,
        }
    }

    /// The weights of a row.
    pub(crate) fn unpack(&self, row: usize, values: &mut [f32]) {
        let code = |byte: u8, shift: usize| (f32::from((byte >> shift) & 3) - 1.0) * self.scale;
        match self.layout {
            Layout::Blocks(block) => {
                let quarter = block / 4;
                let bytes = self.codes[row * self.cols / 4..].chunks_exact(quarter);
                for (values, bytes) in values.chunks_exact_mut(block).zip(bytes) {
                    for (i, values) in values.chunks_exact_mut(quarter).enumerate() {
                        values
                            .iter_mut()
                            .zip(bytes)
                            .for_each(|(value, byte)| *value = code(*byte, 6 - 2 * i));
                    }
                }
            }
            Layout::Quarters => {
                let quarter = self.rows / 4;
                let bytes = &self.codes[row % quarter * self.cols..][..self.cols];
                values
                    .iter_mut()
                    .zip(bytes)
                    .for_each(|(value, byte)| *value = code(*byte, row / quarter * 2));
            }
        }
    }
}
