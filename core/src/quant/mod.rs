//! Weight formats: one file each, with its byte diagram, quantizer and the integers of its weights, and
//! one row each in the table of `format.rs`.
//!
//! A block of a quantized format is small integers `q` in groups, each with a scale `d` and, in some
//! formats, a minimum `m`:
//!
//! ```text
//! w[j] = q[j] * d[g]             with g = j / group
//! w[j] = q[j] * d[g] + m[g]      for formats with minima
//! ```
//! with every operation rounded to f32. Most formats have one group per block. Formats with several fit as
//! well: a block of Q4_K is 256 weights in 8 groups of 32 with `d[g] = d * scales[g]` and
//! `m[g] = -(dmin * mins[g])`; one of Q6_K is 16 groups of 16 with `d[g] = d * scales[g]`, and its integers
//! are `code - 32`.
//!
//! [`pack`] writes the same bytes as llama.cpp's reference quantizers, and [`unpack`] returns the same values
//! as its dequantizers.
#![forbid(unsafe_code)]

pub(crate) mod codebook;
pub(crate) mod float;
mod format;
pub(crate) mod iq4_nl;
pub(crate) mod iq4_xs;
pub(crate) mod k_quants;
pub(crate) mod mxfp4;
pub(crate) mod nvfp4;
pub mod packed;
pub(crate) mod q1_0;
pub(crate) mod q2_0;
pub(crate) mod q4_0;
pub(crate) mod q4_1;
pub(crate) mod q5_0;
pub(crate) mod q5_1;
pub(crate) mod q8_0;
pub(crate) mod scale;
mod search;
pub(crate) mod tq2_0;
pub(crate) mod trits;

use crate::error::{Error, Name, Result};
pub use codebook::{IQ1_LEVELS, IQ2_LEVELS, IQ3_S_LEVELS, IQ3_XXS_LEVELS};
use format::with_block;
pub use format::{Format, WeightClass};
use half::f16;
pub use iq4_nl::LEVELS as IQ4_LEVELS;
pub use mxfp4::DOUBLED as FP4_DOUBLED;
#[cfg(any(target_arch = "aarch64", all(target_arch = "wasm32", target_feature = "simd128")))]
pub(crate) use scale::f16_at;

/// Weights in the largest block of any format.
pub(crate) const MAX_BLOCK: usize = 256;

/// One block of a format. Slices passed to its functions are exactly one block, unless stated otherwise.
pub(crate) trait Block {
    /// Weights in a block, at most [`MAX_BLOCK`].
    const LEN: usize;
    /// Bytes of a block.
    const BYTES: usize;
    /// Weights that share a scale and a minimum: a divisor of `LEN` and, unless it is 1, a multiple of 16.
    const GROUP: usize = Self::LEN;
    /// Whether groups have minima.
    const MINIMUM: bool = false;
    /// A lower bound of the integers.
    const LEAST: i8 = i8::MIN;
    /// Whether [`Block::pack`] quantizes.
    const PACKS: bool = true;

    /// The scale of group `group`.
    fn scale(block: &[u8], group: usize) -> f32;

    /// The minimum of group `group`.
    fn minimum(_block: &[u8], _group: usize) -> f32 {
        0.0
    }

    /// The integers `q`, in the order of the weights.
    fn integers(block: &[u8], q: &mut [i8]);

    /// Quantizes, if [`Block::PACKS`].
    fn pack(w: &[f32], block: &mut [u8]);

    /// Whether [`Block::pack_by`] differs from [`Block::pack`].
    const BY_IMPORTANCE: bool = false;

    /// Quantizes, with errors counted by the importance of each weight. `mean_square` is that of the whole row.
    fn pack_by(w: &[f32], _importance: &[f32], _mean_square: f32, block: &mut [u8]) {
        Self::pack(w, block);
    }

    /// Expands any number of blocks.
    fn unpack(packed: &[u8], out: &mut [f32]) {
        unpack_blocks(
            &Unpack {
                len: Self::LEN,
                bytes: Self::BYTES,
                group: Self::GROUP,
                scale: Self::scale,
                minimum: if Self::MINIMUM { Some(Self::minimum) } else { None },
                integers: Self::integers,
            },
            packed,
            out,
        );
    }
}

/// A [`Block`] whose format is known at run time: one loop serves all formats.
struct Unpack {
    len: usize,
    bytes: usize,
    group: usize,
    scale: fn(&[u8], usize) -> f32,
    minimum: Option<fn(&[u8], usize) -> f32>,
    integers: fn(&[u8], &mut [i8]),
}

fn unpack_blocks(format: &Unpack, packed: &[u8], out: &mut [f32]) {
    let mut integers = [0; MAX_BLOCK];
    let integers = &mut integers[..format.len];
    for (block, out) in packed.chunks_exact(format.bytes).zip(out.chunks_exact_mut(format.len)) {
        (format.integers)(block, integers);
        let groups = out.chunks_exact_mut(format.group).zip(integers.chunks_exact(format.group));
        for (g, (out, q)) in groups.enumerate() {
            let d = (format.scale)(block, g);
            if let Some(minimum) = format.minimum {
                let m = minimum(block, g);
                out.iter_mut().zip(q).for_each(|(w, &q)| *w = f32::from(q) * d + m);
            } else {
                out.iter_mut().zip(q).for_each(|(w, &q)| *w = f32::from(q) * d);
            }
        }
    }
}

/// The largest magnitude in `w`, ignoring NaN.
fn max_abs(w: &[f32]) -> f32 {
    w.iter().fold(0.0, |m, v| v.abs().max(m))
}

/// Unpacks 32 integers: `integer` of the low nibbles of 16 bytes, then of the high ones.
#[inline(always)]
fn nibbles(bytes: &[u8], w: &mut [i8], integer: impl Fn(u8) -> i8) {
    let (lo, hi) = w.split_at_mut(16);
    for ((lo, hi), &b) in lo.iter_mut().zip(hi).zip(bytes) {
        *lo = integer(b & 15);
        *hi = integer(b >> 4);
    }
}

/// The inverse of [`nibbles`], for the codes (0 to 15) of half of the weights each.
fn put_nibbles(w: &[f32], bytes: &mut [u8], code: impl Fn(f32) -> u8) {
    let (lo, hi) = w.split_at(w.len() / 2);
    for ((b, &lo), &hi) in bytes.iter_mut().zip(lo).zip(hi) {
        *b = code(lo) | code(hi) << 4;
    }
}

/// Writes 32 codes of at most four bits as the inverse of [`nibbles`].
fn put_codes(codes: &[u8; 32], bytes: &mut [u8]) {
    let (lo, hi) = codes.split_at(16);
    for ((b, lo), hi) in bytes.iter_mut().zip(lo).zip(hi) {
        *b = lo | hi << 4;
    }
}

/// Writes `x` as f16 at byte `at`; returns the f16's value.
fn put_f16(block: &mut [u8], at: usize, x: f32) -> f32 {
    block[at..at + 2].copy_from_slice(&f16::from_f32_const(x).to_le_bytes());
    scale::f16_at(block, at)
}

/// The scale bytes of a block of ternary weights and the function from weight to code (0 to 3).
fn ternary_codes(w: &[f32]) -> ([u8; 2], impl Fn(f32) -> u8 + use<>) {
    let d = max_abs(w);
    let id = if d > 0.0 { 1.0 / d } else { 0.0 };
    (f16::from_f32_const(d).to_le_bytes(), move |v: f32| (libm::roundf(v * id) + 1.0).clamp(0.0, 3.0) as u8)
}

/// Refuses formats that this build leaves out.
fn check_available(format: Format) -> Result<()> {
    if format.is_available() {
        return Ok(());
    }
    Err(error!(Unsupported {
        key: Name::new("weight format"),
        found: Name::new(format.name()),
        expected: "one of this build's features",
    }))
}

fn check_lengths(format: Format, weights: usize, bytes: usize) -> Result<()> {
    check_available(format)?;
    let expected = format.row_bytes(weights).ok_or(error!(Length {
        what: "weights (a multiple of the block)",
        expected: format.block() as u64,
        found: weights as u64,
    }))?;
    if expected == bytes {
        Ok(())
    } else {
        Err(error!(Length { what: "packed weights", expected: expected as u64, found: bytes as u64 }))
    }
}

/// Expands whole blocks of `packed` into `out`, which has exactly as many weights.
///
/// # Errors
/// As [`pack`].
pub fn unpack(format: Format, packed: &[u8], out: &mut [f32]) -> Result<()> {
    check_lengths(format, out.len(), packed.len())?;
    unpack_exact(format, packed, out);
    Ok(())
}

/// [`unpack`] for lengths that are known to match.
pub(crate) fn unpack_exact(format: Format, packed: &[u8], out: &mut [f32]) {
    with_block!(format, B => B::unpack(packed, out))
}

/// Quantizes `weights`, a multiple of the format's block, into `packed`, which has exactly the required
/// length ([`Format::row_bytes`]). The bytes are the same as from llama.cpp's reference quantizers, unless a scale
/// is so small (below 2^-127) that its inverse is infinite: what llama.cpp then writes is undefined.
///
/// # Errors
/// [`Error::Length`], or [`Error::Unsupported`] if the format is not [available](Format::is_available) or has no
/// [quantizer](Format::has_quantizer).
pub fn pack(format: Format, weights: &[f32], packed: &mut [u8]) -> Result<()> {
    check_lengths(format, weights.len(), packed.len())?;
    if !format.has_quantizer() {
        return Err(error!(Unsupported {
            key: Name::new("weight format to write"),
            found: Name::new(format.name()),
            expected: "one with a quantizer: this one is only read",
        }));
    }
    with_block!(format, B => {
        let blocks = weights.chunks_exact(B::LEN).zip(packed.chunks_exact_mut(B::BYTES));
        blocks.for_each(|(w, block)| B::pack(w, block));
    });
    Ok(())
}

/// Quantizes a row of weights, a multiple of the format's block, by the importance of each column: mean squares of what it is
/// multiplied with, finite and not negative. Formats without [such a quantizer](Format::weighs_importance) are written as by [`pack`].
/// The bytes are those of llama.cpp with an importance matrix, unless all weights of a group of IQ4_NL or IQ4_XS have
/// the importance 0: their scale is 0 then, and NaN in llama.cpp.
///
/// # Errors
/// As [`pack`]; [`Error::Length`] if `importance` has another length than the row.
pub fn pack_by_importance(format: Format, row: &[f32], importance: &[f32], packed: &mut [u8]) -> Result<()> {
    if importance.len() != row.len() {
        let (expected, found) = (row.len() as u64, importance.len() as u64);
        return Err(error!(Length { what: "importance of a row's columns", expected, found }));
    }
    if !format.weighs_importance() {
        return pack(format, row, packed);
    }
    check_lengths(format, row.len(), packed.len())?;
    let mean_square = search::sum_squares(row) / row.len().max(1) as f32;
    with_block!(format, B => {
        let weights = row.chunks_exact(B::LEN).zip(importance.chunks_exact(B::LEN));
        for ((w, importance), block) in weights.zip(packed.chunks_exact_mut(B::BYTES)) {
            B::pack_by(w, importance, mean_square, block);
        }
    });
    Ok(())
}

/// The scale of group `group` of a block of a quantized format; 1 for a float format. `block` has
/// [`Format::block_bytes`] bytes, and a group [`Format::group`] weights. The format must be
/// [available](Format::is_available), as for the two functions below.
pub fn block_scale(format: Format, block: &[u8], group: usize) -> f32 {
    with_block!(format, B => B::scale(block, group))
}

/// The minimum of group `group` of a block, added to each of its weights; 0 for formats without minima
/// ([`Format::has_minimum`]).
pub fn block_minimum(format: Format, block: &[u8], group: usize) -> f32 {
    with_block!(format, B => B::minimum(block, group))
}

/// Writes the integers of a block of a quantized format; does nothing for a float format. `block` has
/// [`Format::block_bytes`] bytes and `q` [`Format::block`] elements.
pub fn block_integers(format: Format, block: &[u8], q: &mut [i8]) {
    with_block!(format, B => B::integers(block, q))
}

/// A packed weight matrix of shape `(rows, cols)`, borrowed from the file: row `r` maps `cols` inputs to
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
    /// Checks that `data` is exactly `rows` rows of `cols` weights, so that no later access is out of range.
    pub fn new(format: Format, rows: usize, cols: usize, data: &'a [u8]) -> Result<Self> {
        check_available(format)?;
        let row_bytes = format.row_bytes(cols).ok_or(error!(Length {
            what: "weight row (a multiple of the block)",
            expected: format.block() as u64,
            found: cols as u64,
        }))?;
        match row_bytes.checked_mul(rows) {
            Some(len) if len == data.len() => Ok(Matrix { format, rows, cols, row_bytes, data }),
            len => Err(error!(Length {
                what: "weight matrix bytes",
                expected: len.map_or(u64::MAX, |l| l as u64),
                found: data.len() as u64,
            })),
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

    /// Rows `rows`, of a matrix that stacks several.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn slice_rows(&self, rows: core::ops::Range<usize>) -> Self {
        let data = &self.data[rows.start * self.row_bytes..rows.end * self.row_bytes];
        Matrix { rows: rows.len(), data, ..*self }
    }

    /// Checks that row `row` exists, and that it has `len` elements.
    pub(crate) fn check_row(&self, row: usize, len: usize) -> Result<()> {
        if row >= self.rows {
            return Err(error!(Length {
                what: "rows of the matrix",
                expected: row as u64 + 1,
                found: self.rows as u64,
            }));
        }
        if len != self.cols {
            return Err(error!(Length {
                what: "weights of a row",
                expected: self.cols as u64,
                found: len as u64,
            }));
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

#[cfg(test)]
mod tests {
    use super::*;

    /// 32 weights in two groups, each with a scale and a minimum, as K-quants have.
    struct TwoGroups;

    impl Block for TwoGroups {
        const LEN: usize = 32;
        const BYTES: usize = 36;
        const GROUP: usize = 16;
        const MINIMUM: bool = true;

        fn scale(block: &[u8], group: usize) -> f32 {
            f32::from(block[2 * group])
        }

        fn minimum(block: &[u8], group: usize) -> f32 {
            -f32::from(block[2 * group + 1])
        }

        fn integers(block: &[u8], q: &mut [i8]) {
            q.iter_mut().zip(&block[4..]).for_each(|(q, &byte)| *q = byte as i8);
        }

        fn pack(_: &[f32], _: &mut [u8]) {}
    }

    #[test]
    fn every_group_has_its_scale_and_minimum() {
        let mut packed = [3; 72];
        packed[..4].copy_from_slice(&[2, 1, 10, 5]);
        packed[36..40].copy_from_slice(&[1, 0, 3, 100]);
        packed[71] = 0xff;
        let mut w = [f32::NAN; 64];
        TwoGroups::unpack(&packed, &mut w);
        let mut expected = [5.0, 25.0, 3.0, -91.0].map(|w| [w; 16]);
        expected[3][15] = -103.0;
        assert_eq!(w, *expected.as_flattened());
    }

    #[test]
    fn rows_of_the_table_fit_the_kernels() {
        for (i, format) in Format::ALL.into_iter().enumerate() {
            assert!(format.block() <= MAX_BLOCK && format.block().is_multiple_of(format.group()));
            assert!(format.group() == 1 || format.group().is_multiple_of(16));
            assert_eq!(format.is_float(), format.block() == 1);
            assert!(Format::ALL[..i].iter().all(|f| f.name() != format.name()), "{}", format.name());
            if let Some(expanded) = format.expanded() {
                assert_eq!((expanded.class(), expanded.block()), (format.class(), format.block()));
            }
        }
    }
}
