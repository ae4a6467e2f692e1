//! Weight formats: one file each, with its byte diagram, quantizer and the integers behind the weights.
//!
//! A quantized block is a scale `d` and small integers `q` with `w[j] = q[j] * d`. [`pack`] writes the
//! bytes llama.cpp's reference quantizers write, and [`unpack`] returns what it dequantizes to.
#![forbid(unsafe_code)]

mod float;
mod q1_0;
mod q2_0;
mod q4_0;
mod q8_0;
mod tq2_0;
pub(crate) mod trits;

use crate::error::{Error, Result};
#[cfg(any(target_arch = "aarch64", all(target_arch = "wasm32", target_feature = "simd128")))]
pub(crate) use float::f16_at;
use half::f16;

/// One block of a quantized format. Slices given to its functions are exactly one block.
pub(crate) trait Block {
    /// Weights in a block.
    const LEN: usize;
    /// Bytes of a block.
    const BYTES: usize;

    /// The scale `d`.
    fn scale(block: &[u8]) -> f32;

    /// The integers `q`, in the order of the weights.
    fn integers(block: &[u8], q: &mut [i8]);

    /// Quantizes.
    fn pack(w: &[f32], block: &mut [u8]);
}

/// The largest magnitude in `w`; NaNs do not count.
fn max_abs(w: &[f32]) -> f32 {
    w.iter().fold(0.0, |m, v| v.abs().max(m))
}

/// The scale bytes of a block of ternary weights and the function from weight to code (0 to 3).
fn ternary_codes(w: &[f32]) -> ([u8; 2], impl Fn(f32) -> u8 + use<>) {
    let d = max_abs(w);
    let id = if d > 0.0 { 1.0 / d } else { 0.0 };
    (f16::from_f32_const(d).to_le_bytes(), move |v: f32| (libm::roundf(v * id) + 1.0).clamp(0.0, 3.0) as u8)
}

fn unpack_blocks<B: Block>(packed: &[u8], out: &mut [f32]) {
    let mut integers = [0; 256];
    let integers = &mut integers[..B::LEN];
    for (block, out) in packed.chunks_exact(B::BYTES).zip(out.chunks_exact_mut(B::LEN)) {
        let d = B::scale(block);
        B::integers(block, integers);
        for (w, &q) in out.iter_mut().zip(&*integers) {
            *w = f32::from(q) * d;
        }
    }
}

fn pack_blocks<B: Block>(w: &[f32], packed: &mut [u8]) {
    for (w, block) in w.chunks_exact(B::LEN).zip(packed.chunks_exact_mut(B::BYTES)) {
        B::pack(w, block);
    }
}

fn check_lengths(format: Format, weights: usize, bytes: usize) -> Result<()> {
    let expected = format.row_bytes(weights).ok_or(Error::Length {
        what: "weights (a multiple of the block)",
        expected: format.block() as u64,
        found: weights as u64,
    })?;
    if expected == bytes {
        Ok(())
    } else {
        Err(Error::Length { what: "packed weights", expected: expected as u64, found: bytes as u64 })
    }
}

/// Expands whole blocks of `packed` into `out`, which has exactly as many weights.
pub fn unpack(format: Format, packed: &[u8], out: &mut [f32]) -> Result<()> {
    check_lengths(format, out.len(), packed.len())?;
    unpack_exact(format, packed, out);
    Ok(())
}

/// [`unpack`] for lengths known to agree.
pub(crate) fn unpack_exact(format: Format, packed: &[u8], out: &mut [f32]) {
    match format {
        Format::F32 => float::unpack_f32(packed, out),
        Format::F16 => float::unpack_f16(packed, out),
        Format::Bf16 => float::unpack_bf16(packed, out),
        Format::Q8_0 => unpack_blocks::<q8_0::Q8_0>(packed, out),
        Format::Q4_0 => unpack_blocks::<q4_0::Q4_0>(packed, out),
        Format::Q1_0 => unpack_blocks::<q1_0::Q1_0>(packed, out),
        Format::Q2_0 => unpack_blocks::<q2_0::Q2_0>(packed, out),
        Format::Pq2_0 => unpack_blocks::<q2_0::Pq2_0>(packed, out),
        Format::Tq2_0G128 => unpack_blocks::<q2_0::Tq2_0G128>(packed, out),
        Format::Ptq1_0 => unpack_blocks::<trits::Ptq1_0>(packed, out),
        Format::Tq1_0 => unpack_blocks::<trits::Tq1_0>(packed, out),
        Format::Tq2_0 => unpack_blocks::<tq2_0::Tq2_0>(packed, out),
    }
}

/// Quantizes `weights`, a multiple of the format's block, into `packed`, which has exactly the bytes
/// they take ([`Format::row_bytes`]). The same bytes as llama.cpp's reference quantizers.
pub fn pack(format: Format, weights: &[f32], packed: &mut [u8]) -> Result<()> {
    check_lengths(format, weights.len(), packed.len())?;
    match format {
        Format::F32 => float::pack_f32(weights, packed),
        Format::F16 => float::pack_f16(weights, packed),
        Format::Bf16 => float::pack_bf16(weights, packed),
        Format::Q8_0 => pack_blocks::<q8_0::Q8_0>(weights, packed),
        Format::Q4_0 => pack_blocks::<q4_0::Q4_0>(weights, packed),
        Format::Q1_0 => pack_blocks::<q1_0::Q1_0>(weights, packed),
        Format::Q2_0 => pack_blocks::<q2_0::Q2_0>(weights, packed),
        Format::Pq2_0 => pack_blocks::<q2_0::Pq2_0>(weights, packed),
        Format::Tq2_0G128 => pack_blocks::<q2_0::Tq2_0G128>(weights, packed),
        Format::Ptq1_0 => pack_blocks::<trits::Ptq1_0>(weights, packed),
        Format::Tq1_0 => pack_blocks::<trits::Tq1_0>(weights, packed),
        Format::Tq2_0 => pack_blocks::<tq2_0::Tq2_0>(weights, packed),
    }
    Ok(())
}

/// The scale of a block of a quantized format; 1 for a float format. `block` has [`Format::block_bytes`] bytes.
pub fn block_scale(format: Format, block: &[u8]) -> f32 {
    match format {
        Format::F32 | Format::F16 | Format::Bf16 => 1.0,
        Format::Q8_0 => q8_0::Q8_0::scale(block),
        Format::Q4_0 => q4_0::Q4_0::scale(block),
        Format::Q1_0 => q1_0::Q1_0::scale(block),
        Format::Q2_0 => q2_0::Q2_0::scale(block),
        Format::Pq2_0 => q2_0::Pq2_0::scale(block),
        Format::Tq2_0G128 => q2_0::Tq2_0G128::scale(block),
        Format::Ptq1_0 => trits::Ptq1_0::scale(block),
        Format::Tq1_0 => trits::Tq1_0::scale(block),
        Format::Tq2_0 => tq2_0::Tq2_0::scale(block),
    }
}

/// The integers of a block of a quantized format; nothing for a float format. `block` has
/// [`Format::block_bytes`] bytes and `q` [`Format::block`] elements.
pub fn block_integers(format: Format, block: &[u8], q: &mut [i8]) {
    match format {
        Format::F32 | Format::F16 | Format::Bf16 => {}
        Format::Q8_0 => q8_0::Q8_0::integers(block, q),
        Format::Q4_0 => q4_0::Q4_0::integers(block, q),
        Format::Q1_0 => q1_0::Q1_0::integers(block, q),
        Format::Q2_0 => q2_0::Q2_0::integers(block, q),
        Format::Pq2_0 => q2_0::Pq2_0::integers(block, q),
        Format::Tq2_0G128 => q2_0::Tq2_0G128::integers(block, q),
        Format::Ptq1_0 => trits::Ptq1_0::integers(block, q),
        Format::Tq1_0 => trits::Tq1_0::integers(block, q),
        Format::Tq2_0 => tq2_0::Tq2_0::integers(block, q),
    }
}

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

/// A packed weight matrix of shape `(rows, cols)`, borrowed from the file: row `r` takes `cols` inputs to
/// output `r`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    format: Format,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    data: &'a [u8],
}

impl<'a> Matrix<'a> {
    /// Checks that `data` is exactly `rows` rows of `cols` weights, row after row; afterwards nothing can
    /// be out of range.
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

    /// All packed bytes.
    pub const fn data(&self) -> &'a [u8] {
        self.data
    }

    /// Checks that there is a row `row`, and that `len` numbers are as many as it has.
    pub(crate) fn check_row(&self, row: usize, len: usize) -> Result<()> {
        if row >= self.rows {
            return Err(Error::Length {
                what: "rows of the matrix",
                expected: row as u64 + 1,
                found: self.rows as u64,
            });
        }
        if len != self.cols {
            return Err(Error::Length {
                what: "weights of a row",
                expected: self.cols as u64,
                found: len as u64,
            });
        }
        Ok(())
    }

    /// Expands row `row` into `out`, which has [`Matrix::cols`] elements.
    ///
    /// # Errors
    /// [`Error::Length`] if there is no such row, or `out` has another length.
    pub fn unpack_row(&self, row: usize, out: &mut [f32]) -> Result<()> {
        self.check_row(row, out.len())?;
        unpack_exact(self.format, &self.data[row * self.row_bytes..][..self.row_bytes], out);
        Ok(())
    }
}
