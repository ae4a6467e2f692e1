//! Weight formats: one file each, with its byte diagram, `pack`, `unpack` and scalar dot.
#![forbid(unsafe_code)]

use crate::error::{Error, Result};

/// A storage format of weight matrices that this runtime computes with.
///
/// GGUF type ids do not determine the format: id 42 has three incompatible layouts in the wild.
/// Telling them apart is the GGUF reader's work, and everything behind it sees a `Format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Format {
    /// 32-bit IEEE floats.
    F32,
    /// 16-bit IEEE floats.
    F16,
    /// The upper half of a 32-bit float.
    Bf16,
    /// 32 weights: scale, 8-bit integers.
    Q8_0,
    /// 32 weights: scale, 4-bit integers.
    Q4_0,
    /// 128 weights: scale, one sign bit each.
    Q1_0,
    /// 64 weights: scale, 2-bit ternary codes (GGUF id 42 as mainline llama.cpp writes it).
    Q2_0,
    /// 128 weights: scale, 2-bit ternary codes (GGUF id 142, and legacy id 42).
    Pq2_0,
    /// 128 weights: 2-bit ternary codes, then the scale (id 42 as oxibonsai writes it).
    Tq2_0G128,
    /// 128 weights: base-3 digits, five a byte (GGUF id 143).
    Ptq1_0,
    /// 256 weights: base-3 digits, five a byte (GGUF id 34).
    Tq1_0,
    /// 256 weights: 2-bit ternary codes in four strided planes (GGUF id 35).
    Tq2_0,
}

impl Format {
    /// Every format, in the order of the documentation.
    pub const ALL: [Format; 12] = [
        Format::F32,
        Format::F16,
        Format::Bf16,
        Format::Q8_0,
        Format::Q4_0,
        Format::Q1_0,
        Format::Q2_0,
        Format::Pq2_0,
        Format::Tq2_0G128,
        Format::Ptq1_0,
        Format::Tq1_0,
        Format::Tq2_0,
    ];

    /// Weights in one block.
    pub const fn block(self) -> usize {
        match self {
            Format::F32 | Format::F16 | Format::Bf16 => 1,
            Format::Q8_0 | Format::Q4_0 => 32,
            Format::Q2_0 => 64,
            Format::Q1_0 | Format::Pq2_0 | Format::Tq2_0G128 | Format::Ptq1_0 => 128,
            Format::Tq1_0 | Format::Tq2_0 => 256,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Format::F32 => 4,
            Format::F16 | Format::Bf16 => 2,
            Format::Q8_0 | Format::Pq2_0 | Format::Tq2_0G128 => 34,
            Format::Q4_0 | Format::Q1_0 | Format::Q2_0 => 18,
            Format::Ptq1_0 => 28,
            Format::Tq1_0 => 54,
            Format::Tq2_0 => 66,
        }
    }

    /// The GGUF tensor type id this format is written with.
    pub const fn gguf_id(self) -> u32 {
        match self {
            Format::F32 => 0,
            Format::F16 => 1,
            Format::Q4_0 => 2,
            Format::Q8_0 => 8,
            Format::Bf16 => 30,
            Format::Tq1_0 => 34,
            Format::Tq2_0 => 35,
            Format::Q1_0 => 41,
            Format::Q2_0 | Format::Tq2_0G128 => 42,
            Format::Pq2_0 => 142,
            Format::Ptq1_0 => 143,
        }
    }

    /// The name used in GGUF tooling.
    pub const fn name(self) -> &'static str {
        match self {
            Format::F32 => "F32",
            Format::F16 => "F16",
            Format::Bf16 => "BF16",
            Format::Q8_0 => "Q8_0",
            Format::Q4_0 => "Q4_0",
            Format::Q1_0 => "Q1_0",
            Format::Q2_0 => "Q2_0",
            Format::Pq2_0 => "PQ2_0",
            Format::Tq2_0G128 => "TQ2_0_G128",
            Format::Ptq1_0 => "PTQ1_0",
            Format::Tq1_0 => "TQ1_0",
            Format::Tq2_0 => "TQ2_0",
        }
    }

    /// Whether weights are real numbers stored one by one, so that dots are done in f32.
    pub const fn is_float(self) -> bool {
        matches!(self, Format::F32 | Format::F16 | Format::Bf16)
    }

    /// Bytes of a row of `cols` weights, or `None` if `cols` is no multiple of the block or the
    /// product overflows.
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block()) {
            None
        } else {
            (cols / self.block()).checked_mul(self.block_bytes())
        }
    }
}

/// A packed weight matrix of shape `(rows, cols)`, borrowed from the file, row-major: row `r` takes
/// `cols` inputs to output `r`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    format: Format,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    data: &'a [u8],
}

impl<'a> Matrix<'a> {
    /// Checks that `data` is exactly `rows` rows of `cols` weights; afterwards nothing can be out of
    /// range.
    pub fn new(format: Format, rows: usize, cols: usize, data: &'a [u8]) -> Result<Self> {
        let row_bytes = format.row_bytes(cols).ok_or(Error::Length {
            what: "weight row (a multiple of the block)",
            expected: format.block() as u64,
            found: cols as u64,
        })?;
        match row_bytes.checked_mul(rows) {
            Some(len) if len == data.len() => Ok(Matrix { format, rows, cols, row_bytes, data }),
            len => Err(Error::Length {
                what: "weight matrix bytes",
                expected: len.map_or(u64::MAX, |l| l as u64),
                found: data.len() as u64,
            }),
        }
    }

    /// How the weights are stored.
    pub const fn format(&self) -> Format {
        self.format
    }

    /// Outputs.
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub const fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes of one packed row.
    pub const fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// All packed bytes, row after row.
    pub const fn data(&self) -> &'a [u8] {
        self.data
    }

    /// The packed bytes of row `row`; empty if there is no such row.
    pub fn row(&self, row: usize) -> &'a [u8] {
        if row < self.rows { &self.data[row * self.row_bytes..(row + 1) * self.row_bytes] } else { &[] }
    }
}
