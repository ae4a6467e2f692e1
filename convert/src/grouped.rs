//! Matrices whose weights are codes in groups with a scale: as MLX packs them, and as ONNX's `MatMulNBits` does.

use crate::config::Packing;
use crate::error::ConvertError;
use crate::stored::{Stored, float};
use safetensors::tensor::Dtype;
use shohin_core::{Format, quant};

/// Numbers of a float format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Floats<'f> {
    pub(crate) format: Format,
    pub(crate) data: &'f [u8],
}

impl Floats<'_> {
    fn get(&self, i: usize) -> f32 {
        let size = self.format.block_bytes();
        let mut value = [0.0];
        // The length has been checked; a missing number would be 0.
        if let Some(bytes) = self.data.get(i * size..(i + 1) * size) {
            let _ = quant::unpack(self.format, bytes, &mut value);
        }
        value[0]
    }
}

/// What is added to `scale * code`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Offset<'f> {
    /// One for each group, as MLX has it.
    Biases(Floats<'f>),
    /// `-zero * scale` with the same zero everywhere.
    Zero(u8),
    /// `-zero * scale` with packed zeros of these bits, each row a whole number of bytes.
    PackedZeros(usize, &'f [u8]),
    /// `-zero * scale` with one zero for each group.
    Zeros(Floats<'f>),
}

/// The codes of a matrix `[rows, cols]`: code `k` of a row is at bit `k bits` of its bytes, and
/// `w = scale * code + bias` or `w = (code - zero) * scale`, with a scale for each `group` codes of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grouped<'f> {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) bits: usize,
    pub(crate) group: usize,
    /// Rows of whole groups.
    pub(crate) codes: &'f [u8],
    pub(crate) scales: Floats<'f>,
    pub(crate) offset: Offset<'f>,
}

/// The codes of MLX: `U32` words, with scales and biases.
pub(crate) fn mlx<'f>(
    name: &str,
    codes: &Stored<'f>,
    scales: &Stored<'f>,
    biases: Option<&Stored<'f>>,
    Packing { group, bits }: Packing,
) -> Result<Grouped<'f>, ConvertError> {
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
    Ok(Grouped {
        rows: codes.rows,
        cols,
        bits,
        group,
        codes: codes.data,
        scales: Floats { format, data: scales.data },
        offset: Offset::Biases(Floats { format, data: biases.data }),
    })
}

/// The weights of a group's codes.
#[derive(Clone, Copy, Debug)]
struct Line {
    scale: f32,
    bias: Option<f32>,
    zero: f32,
}

impl Line {
    fn value(&self, code: u8) -> f32 {
        match self.bias {
            Some(bias) => self.scale * f32::from(code) + bias,
            None => (f32::from(code) - self.zero) * self.scale,
        }
    }
}

/// Formats that may have the same weights, the smallest first.
const EXACT: [Format; 6] =
    [Format::Q1_0, Format::Pq2_0, Format::Q2_0, Format::Q4_0, Format::Q4_1, Format::Q8_0];

/// A block of a format of [`EXACT`] with the weights of a group: scale, minimum, and the code for each code.
struct Block {
    scale: half::f16,
    min: half::f16,
    codes: [u8; 256],
}

impl Block {
    /// The block of `format` with the weights that `line` gives to the codes in `used`; `None` if there is none.
    fn new(format: Format, line: &Line, used: impl Iterator<Item = u8> + Clone) -> Option<Block> {
        let values = used.map(|code| (code, line.value(code)));
        let (scale, min, levels, zero) = match format {
            Format::Q1_0 => {
                let (_, first) = values.clone().next()?;
                (first.abs(), 0.0, -1..=1, 0)
            }
            Format::Pq2_0 | Format::Q2_0 => (line.scale, 0.0, -1..=2, 1),
            Format::Q4_0 => (line.scale, 0.0, -8..=7, 8),
            Format::Q4_1 => (line.scale, line.value(0), 0..=15, 0),
            Format::Q8_0 => (line.scale, 0.0, -128..=127, 0),
            _ => return None,
        };
        let exact = |value: f32| Some(half::f16::from_f32(value)).filter(|half| half.to_f32() == value);
        let mut block = Block { scale: exact(scale)?, min: exact(min)?, codes: [0; 256] };
        for (code, value) in values {
            let level = if scale == 0.0 { 0.0 } else { ((value - min) / scale).round_ties_even() };
            if !(-128.0..=127.0).contains(&level) || scale * level + min != value {
                return None;
            }
            let level = level as i32;
            block.codes[usize::from(code)] = match format {
                // A bit says the sign.
                Format::Q1_0 if level == 0 && scale != 0.0 => return None,
                Format::Q1_0 => u8::from(level > 0),
                _ if !levels.contains(&level) => return None,
                // In two's complement for Q8_0.
                _ => (level + zero) as u8,
            };
        }
        Some(block)
    }
}

impl Grouped<'_> {
    fn groups(&self) -> usize {
        self.cols.div_ceil(self.group)
    }

    /// Bytes of a row: codes, zero points of `bits` bits.
    pub(crate) fn row_bytes(cols: usize, group: usize, bits: usize) -> usize {
        cols.div_ceil(group) * group * bits / 8
    }

    fn line(&self, row: usize, group: usize) -> Line {
        let i = row * self.groups() + group;
        let (mut bias, mut zero) = (None, 0.0);
        match self.offset {
            Offset::Biases(biases) => bias = Some(biases.get(i)),
            Offset::Zero(same) => zero = f32::from(same),
            Offset::PackedZeros(bits, all) => {
                let row = &all[row * (self.groups() * bits).div_ceil(8)..];
                zero = f32::from(code(row, bits, group));
            }
            Offset::Zeros(zeros) => zero = zeros.get(i),
        }
        Line { scale: self.scales.get(i), bias, zero }
    }

    /// The codes of a row.
    fn codes(&self, row: usize) -> &[u8] {
        let len = Self::row_bytes(self.cols, self.group, self.bits);
        &self.codes[row * len..][..len]
    }

    /// The block of `format` for group `group` of row `row`, if there is one with the same weights.
    fn block(&self, format: Format, row: usize, group: usize) -> Option<Block> {
        let line = self.line(row, group);
        // Nearly always all codes fit, and the codes need not be read.
        let any = 0..=u8::MAX >> (8 - self.bits);
        Block::new(format, &line, any).or_else(|| {
            let mut used = [false; 256];
            let codes = self.codes(row);
            let end = self.cols.min((group + 1) * self.group);
            for k in group * self.group..end {
                used[usize::from(code(codes, self.bits, k))] = true;
            }
            Block::new(format, &line, (0..=255).filter(move |code| used[usize::from(*code)]))
        })
    }

    /// Whether groups are made of whole blocks of `format`.
    fn aligned(&self, format: Format) -> bool {
        let len = format.block();
        EXACT.contains(&format) && self.group.is_multiple_of(len) && self.cols.is_multiple_of(len)
    }

    /// The format that keeps every bit.
    pub(crate) fn exact(&self) -> Format {
        let fits = |format: &Format| {
            let groups = |row| (0..self.groups()).map(move |group| (row, group));
            self.aligned(*format)
                && (0..self.rows)
                    .flat_map(groups)
                    .all(|(row, group)| self.block(*format, row, group).is_some())
        };
        EXACT.into_iter().find(fits).unwrap_or(Format::F32)
    }

    /// Writes a row in its exact format; false for another one.
    pub(crate) fn copy(&self, row: usize, format: Format, out: &mut [u8]) -> bool {
        if !self.aligned(format) {
            return false;
        }
        let codes = self.codes(row);
        let (len, bytes) = (format.block(), format.block_bytes());
        let each = (self.group / len) * bytes;
        for (group, out) in out.chunks_mut(each).enumerate() {
            let Some(block) = self.block(format, row, group) else { return false };
            for (b, out) in out.chunks_exact_mut(bytes).enumerate() {
                let first = group * self.group + b * len;
                let code = |j: usize| block.codes[usize::from(code(codes, self.bits, first + j))];
                out[..2].copy_from_slice(&block.scale.to_le_bytes());
                let out = &mut out[2..];
                match format {
                    Format::Q1_0 => {
                        pack(out, 1, &code);
                    }
                    Format::Pq2_0 | Format::Q2_0 => {
                        pack(out, 2, &code);
                    }
                    Format::Q8_0 => out.iter_mut().enumerate().for_each(|(j, out)| *out = code(j)),
                    _ => {
                        let out = match format {
                            Format::Q4_1 => {
                                out[..2].copy_from_slice(&block.min.to_le_bytes());
                                &mut out[2..]
                            }
                            _ => out,
                        };
                        out.iter_mut().enumerate().for_each(|(j, out)| *out = code(j) | code(j + 16) << 4);
                    }
                }
            }
        }
        true
    }

    /// The weights of a row.
    pub(crate) fn unpack(&self, row: usize, out: &mut [f32]) {
        let codes = self.codes(row);
        for (group, out) in out.chunks_mut(self.group).enumerate() {
            let line = self.line(row, group);
            for (k, w) in out.iter_mut().enumerate() {
                *w = line.value(code(codes, self.bits, group * self.group + k));
            }
        }
    }
}

/// Code `k` of packed codes of `bits` bits.
fn code(codes: &[u8], bits: usize, k: usize) -> u8 {
    codes[k * bits / 8] >> (k * bits % 8) & (0xff >> (8 - bits))
}

/// Packs codes of `bits` bits, the first in the lowest bits.
fn pack(out: &mut [u8], bits: usize, code: &impl Fn(usize) -> u8) {
    let each = 8 / bits;
    for (i, out) in out.iter_mut().enumerate() {
        *out = (0..each).map(|j| code(i * each + j) << (j * bits)).sum();
    }
}
