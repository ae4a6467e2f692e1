//! Memory layout of a matrix: row-major as in the file, or repacked for vector instructions.
//!
//! A panel interleaves 16 rows in the same number of bytes: for each block of columns, the 16 scales come
//! first, then the codes, block by block and a piece of each row in turn, so that one vector holds the same
//! columns of 16 rows and no sum crosses its lanes. Rows after the last whole panel stay row-major.
#![forbid(unsafe_code)]

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use super::expand::expand;
use super::isa::{Isa, Kind};
use super::parallel::for_each_chunk;
use crate::error::{Error, Name, Result};
use crate::gguf::with_capacity;
use crate::pool::{Pool, Serial};
use crate::quant::{Format, MAX_BLOCK, Matrix, WeightClass, unpack_exact};

/// Rows per panel.
pub const PANEL_ROWS: usize = 16;

/// The layout of a matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Layout {
    /// Row by row, as in files.
    #[default]
    RowMajor,
    /// 32 bits of each of 16 rows in turn, for instructions that add four products per lane. Within the 32
    /// bits, shifting right and masking the lowest code of each byte yields four adjacent columns.
    Panels32,
    /// A byte of each of 16 rows in turn, for table lookups: one bit for each of eight columns, in order.
    /// With 2-bit codes, eight columns are two bytes, the low bits first. With one bit, the bytes of 128
    /// columns are in the order of columns 0, 32, 64, 96, 8, 40 and so on, so that a vector of several times
    /// 16 bytes holds columns with different factors.
    Panels8,
}

impl Layout {
    /// The layout in which the kernels of `isa` are fastest for matrices of `format`.
    pub const fn preferred(isa: Isa, format: Format) -> Layout {
        let _ = format;
        match isa.kind() {
            Kind::Scalar => Layout::RowMajor,
            #[cfg(any(target_arch = "arm", target_arch = "riscv32"))]
            Kind::Tables => Layout::RowMajor,
            #[cfg(all(target_arch = "arm", feature = "dsp"))]
            Kind::Dsp => Layout::RowMajor,
            #[cfg(all(target_arch = "arm", feature = "helium"))]
            Kind::Helium => Layout::RowMajor,
            // Half as many bits need half as many lookups, but as many products.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 | Kind::AvxVnni | Kind::Avx512Vnni | Kind::Avx512Words | Kind::Avx512Amx
                if matches!(format, Format::Q1_0) =>
            {
                Layout::Panels8
            }
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 | Kind::AvxVnni | Kind::Avx512Vnni | Kind::Avx512Words | Kind::Avx512Amx => {
                Layout::Panels32
            }
            #[cfg(target_arch = "aarch64")]
            Kind::Neon | Kind::NeonDot | Kind::NeonI8mm => Layout::Panels32,
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Kind::Simd128 => Layout::Panels8,
            #[cfg(all(target_arch = "wasm32", target_feature = "relaxed-simd"))]
            Kind::RelaxedDot if matches!(format, Format::Q1_0) => Layout::Panels8,
            #[cfg(all(target_arch = "wasm32", target_feature = "relaxed-simd"))]
            Kind::RelaxedDot => Layout::Panels32,
        }
    }
}

/// Whether panels are part of this build: no kernel for processors without vectors prefers them.
const PANELS: bool =
    cfg!(any(feature = "portable-kernels", not(any(target_arch = "arm", target_arch = "riscv32"))));

/// Whether the kernels of `isa` are faster with panels for any format.
pub const fn repacks(isa: Isa) -> bool {
    !matches!(Layout::preferred(isa, Format::Q1_0), Layout::RowMajor)
}

/// A packed weight matrix of shape `(rows, cols)` for the kernels: a [`Matrix`] and the layout of its rows.
#[derive(Clone, Copy, Debug)]
pub struct PackedMatrix<'a> {
    matrix: Matrix<'a>,
    layout: Layout,
}

impl<'a> From<Matrix<'a>> for PackedMatrix<'a> {
    fn from(matrix: Matrix<'a>) -> Self {
        PackedMatrix { matrix, layout: Layout::RowMajor }
    }
}

impl<'a> PackedMatrix<'a> {
    /// Wraps `matrix`, whose bytes [`repack`] has rearranged to `layout`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a format that is never repacked.
    pub fn new(matrix: Matrix<'a>, layout: Layout) -> Result<Self> {
        let has_panels = PANELS && repacked_format(matrix.format()) == Some(matrix.format());
        if layout != Layout::RowMajor && !has_panels {
            return Err(error!(Unsupported {
                key: Name::new("repacked format"),
                found: Name::new(matrix.format().name()),
                expected: "Q1_0, Q2_0, PQ2_0 or TQ2_0",
            }));
        }
        Ok(PackedMatrix { matrix, layout })
    }

    /// How the weights are stored.
    pub const fn format(&self) -> Format {
        self.matrix.format()
    }

    /// The layout of the rows.
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// Outputs.
    pub const fn rows(&self) -> usize {
        self.matrix.rows()
    }

    /// Inputs.
    pub const fn cols(&self) -> usize {
        self.matrix.cols()
    }

    /// Bytes of one packed row.
    pub const fn row_bytes(&self) -> usize {
        self.matrix.row_bytes()
    }

    /// All packed bytes.
    pub const fn data(&self) -> &'a [u8] {
        self.matrix.data()
    }

    /// Rows stored in panels; the remaining rows, and all rows with [`Layout::RowMajor`], are stored row by
    /// row.
    pub const fn rows_in_panels(&self) -> usize {
        match self.layout {
            _ if !PANELS => 0,
            Layout::RowMajor => 0,
            Layout::Panels32 | Layout::Panels8 => self.rows() / PANEL_ROWS * PANEL_ROWS,
        }
    }

    /// The bytes of the panel of [`PANEL_ROWS`] rows that contains `row`; empty if there is none.
    pub(crate) fn panel(&self, row: usize) -> &'a [u8] {
        if row >= self.rows_in_panels() {
            return &[];
        }
        let bytes = PANEL_ROWS * self.row_bytes();
        &self.data()[row / PANEL_ROWS * bytes..][..bytes]
    }

    /// The packed bytes of row `row`; empty if there is no such row, or if it is in a panel.
    pub(crate) fn row(&self, row: usize) -> &'a [u8] {
        if (self.rows_in_panels()..self.rows()).contains(&row) {
            &self.data()[row * self.row_bytes()..(row + 1) * self.row_bytes()]
        } else {
            &[]
        }
    }

    /// Rows `first .. first + count`, where both are multiples of [`PANEL_ROWS`] or `count` reaches the last
    /// row; fewer if the matrix ends before.
    pub(crate) fn row_range(&self, first: usize, count: usize) -> Result<Self> {
        let first = first.min(self.rows());
        let count = count.min(self.rows() - first);
        let data = &self.data()[first * self.row_bytes()..][..count * self.row_bytes()];
        Ok(PackedMatrix {
            matrix: Matrix::new(self.format(), count, self.cols(), data)?,
            layout: self.layout,
        })
    }

    /// Block `b` of row `row`, which must exist, in the file's layout; assembled in `copy` if necessary.
    #[inline(always)]
    pub(crate) fn block<'c>(&self, row: usize, b: usize, copy: &'c mut [u8; 66]) -> &'c [u8]
    where
        'a: 'c,
    {
        if row < self.rows_in_panels() {
            block_of(self.format(), self.layout, self.panel(row), row % PANEL_ROWS, b, copy)
        } else {
            &self.row(row)[b * self.format().block_bytes()..][..self.format().block_bytes()]
        }
    }

    /// Expands the weights of row `row` from column `at`, the start of a block, into `out`; all must exist.
    #[inline(always)]
    pub(crate) fn unpack_part(&self, row: usize, at: usize, out: &mut [f32]) {
        let (block, bytes) = (self.format().block(), self.format().block_bytes());
        if row < self.rows_in_panels() {
            for (i, out) in out.chunks_mut(block).enumerate() {
                unpack_exact(self.format(), self.block(row, at / block + i, &mut [0; 66]), out);
            }
        } else {
            let packed = &self.row(row)[at / block * bytes..][..out.len() / block * bytes];
            unpack_exact(self.format(), packed, out);
        }
    }

    /// Expands row `row` into `out`, which has [`PackedMatrix::cols`] elements: the embedding lookup.
    ///
    /// # Errors
    /// [`Error::Length`] if there is no such row, or `out` has another length.
    pub fn unpack_row(&self, row: usize, out: &mut [f32]) -> Result<()> {
        self.matrix.check_row(row, out.len())?;
        self.unpack_part(row, 0, out);
        Ok(())
    }
}

/// The arrangement of the codes in a block, without the scale.
struct Codes {
    /// The format of a repacked block, whose scale and codes are separate anyway.
    format: Format,
    order: Order,
    /// Bits per code.
    bits: u32,
    /// 32-bit words per block.
    words: usize,
}

/// The layout of a block in a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// The scale, then the codes in the order of the columns.
    ScaleFirst,
    /// The codes in the order of the columns, then the scale.
    CodesFirst,
    /// As TQ2_0: byte m of 32 holds columns m, 32 + m, 64 + m and 96 + m; then the scale.
    Planes,
}

fn codes(format: Format) -> Option<Codes> {
    let row = |format, order, bits, words| Some(Codes { format, order, bits, words });
    match format.class() {
        WeightClass::OneBit | WeightClass::Ternary => {}
        WeightClass::Float | WeightClass::Integer => return None,
    }
    match format {
        Format::Q1_0 => row(format, Order::ScaleFirst, 1, 4),
        Format::Q2_0 => row(format, Order::ScaleFirst, 2, 4),
        Format::Pq2_0 => row(format, Order::ScaleFirst, 2, 8),
        Format::Tq2_0G128 => row(Format::Pq2_0, Order::CodesFirst, 2, 8),
        Format::Tq2_0 => row(format, Order::Planes, 2, 16),
        _ => None, // base-3 digits
    }
}

/// The format of the result when [`repack`] is applied to `format`, or `None` if it is never repacked.
pub fn repacked_format(format: Format) -> Option<Format> {
    Some(codes(format)?.format)
}

/// Swaps the bits `mask` of `x` with those `by` places higher. It is its own inverse.
#[inline(always)]
const fn swap(x: u32, mask: u32, by: u32) -> u32 {
    let moved = (x ^ (x >> by)) & mask;
    x ^ moved ^ (moved << by)
}

/// Converts between codes in the order of the columns and those of [`Layout::Panels32`]: its own inverse.
///
/// With 2 bits, column `4 s + j` goes to byte `j`, at bit `2 s`; with 1 bit, at bit [`ONE_BIT_SHIFT`]`[s]`.
#[inline(always)]
const fn shuffle(word: u32, bits: u32) -> u32 {
    if bits == 1 {
        swap(swap(word, 0x0000_cccc, 14), 0x00aa_00aa, 7)
    } else {
        swap(swap(word, 0x0000_f0f0, 12), 0x00cc_00cc, 6)
    }
}

/// Moves the low bits of the 2-bit codes in each half of `word` to its lower byte, the high bits to its upper
/// byte.
#[inline(always)]
const fn unzip(word: u32) -> u32 {
    swap(swap(swap(word, 0x2222_2222, 1), 0x0c0c_0c0c, 2), 0x00f0_00f0, 4)
}

/// The inverse of [`unzip`].
#[inline(always)]
const fn zip(word: u32) -> u32 {
    swap(swap(swap(word, 0x00f0_00f0, 4), 0x0c0c_0c0c, 2), 0x2222_2222, 1)
}

/// The right shift that extracts columns `4 s .. 4 s + 4` from [`Layout::Panels32`] of 1-bit weights.
#[allow(dead_code, reason = "not every target has kernels for it")]
pub(crate) const ONE_BIT_SHIFT: [u32; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// For each bit of a byte, the `s` whose [`ONE_BIT_SHIFT`] it is.
#[allow(dead_code, reason = "not every target has kernels for it")]
pub(crate) const ONE_BIT_FOURS: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// Splits a file's block into scale and codes, with the codes in the order of the columns.
#[inline(always)]
fn split(order: Order, block: &[u8], words: &mut [u32]) -> [u8; 2] {
    let read = |at: usize| u32::from_le_bytes(core::array::from_fn(|i| block[at + i]));
    let end = 4 * words.len();
    match order {
        Order::ScaleFirst => {
            words.iter_mut().enumerate().for_each(|(i, w)| *w = read(2 + 4 * i));
            [block[0], block[1]]
        }
        Order::CodesFirst => {
            words.iter_mut().enumerate().for_each(|(i, w)| *w = read(4 * i));
            [block[end], block[end + 1]]
        }
        Order::Planes => {
            for (i, word) in words.iter_mut().enumerate() {
                let (at, plane) = (i / 8 * 32 + i % 2 * 16, i % 8 / 2);
                *word = 0;
                for four in 0..4 {
                    let x = read(at + 4 * four) >> (2 * plane) & 0x0303_0303;
                    *word |= ((x | x >> 6 | x >> 12 | x >> 18) & 0xff) << (8 * four);
                }
            }
            [block[end], block[end + 1]]
        }
    }
}

/// The inverse of [`split`], for [`Codes::format`]: codes-first blocks become scale-first ones.
fn join(order: Order, scale: [u8; 2], words: &[u32], block: &mut [u8]) {
    match order {
        Order::ScaleFirst | Order::CodesFirst => {
            block[..2].copy_from_slice(&scale);
            for (bytes, word) in block[2..].chunks_exact_mut(4).zip(words) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        }
        Order::Planes => {
            block.fill(0);
            for (i, word) in words.iter().enumerate() {
                let (at, plane) = (i / 8 * 32 + i % 2 * 16, i % 8 / 2);
                for m in 0..16 {
                    block[at + m] |= ((word >> (2 * m) & 3) << (2 * plane)) as u8;
                }
            }
            let end = 4 * words.len();
            block[end..end + 2].copy_from_slice(&scale);
        }
    }
}

/// Offset of byte `byte` of block `b` of row `r` in a panel, not counting its scales.
#[inline(always)]
const fn place(layout: Layout, codes: &Codes, b: usize, byte: usize, r: usize) -> usize {
    let len = 4 * codes.words;
    match layout {
        Layout::Panels32 => (b * len + byte / 4 * 4) * PANEL_ROWS + 4 * r + byte % 4,
        Layout::Panels8 if codes.bits == 1 => (b * len + byte % 4 * 4 + byte / 4) * PANEL_ROWS + r,
        Layout::Panels8 | Layout::RowMajor => (b * len + byte) * PANEL_ROWS + r,
    }
}

/// Repacks a `(rows, cols)` matrix of `format` in place; the result has the format [`repacked_format`]. Does
/// nothing for formats without one, or for [`Layout::RowMajor`].
///
/// # Errors
/// [`Error::Length`] if `data` is not such a matrix; it is unchanged then. [`Error::Memory`] if there is no
/// memory for 16 rows; `data` is lost then.
pub fn repack(
    format: Format,
    layout: Layout,
    rows: usize,
    cols: usize,
    data: &mut [u8],
    pool: &dyn Pool,
) -> Result<()> {
    let row_bytes = Matrix::new(format, rows, cols, data)?.row_bytes();
    let Some(codes) = codes(format) else { return Ok(()) };
    if layout == Layout::RowMajor || rows == 0 || cols == 0 {
        return Ok(());
    }
    // At most the length of `data`, unlike `PANEL_ROWS * row_bytes` if there are fewer rows.
    let (grouped, rest) = data.split_at_mut(rows / PANEL_ROWS * PANEL_ROWS * row_bytes);
    let group_bytes = grouped.len() / (rows / PANEL_ROWS).max(1);
    let full = AtomicBool::new(false);
    for_each_chunk(pool, grouped, group_bytes, &|_, group| {
        let mut copy = Vec::new();
        if copy.try_reserve_exact(group.len()).is_err() {
            full.store(true, Ordering::Relaxed);
            return;
        }
        copy.extend_from_slice(group);
        repack_panel(format, &codes, layout, &copy, group);
    });
    if full.into_inner() {
        return Err(error!(Memory { need: group_bytes as u64, have: 0 }));
    }
    if codes.format != format {
        for block in rest.chunks_exact_mut(format.block_bytes()) {
            let mut words = [0; 16];
            let scale = split(codes.order, block, &mut words[..codes.words]);
            join(codes.order, scale, &words[..codes.words], block);
        }
    }
    Ok(())
}

/// Small matrices of all formats, expanded and repacked for `isa`. Weights that one program repacked and wrote to a
/// file suit another program only if this is the same for both.
///
/// # Errors
/// [`Error::Memory`].
pub fn specimen(isa: Isa) -> Result<Vec<u8>> {
    const ROWS: usize = PANEL_ROWS + 1;
    const COLS: usize = 2 * MAX_BLOCK;
    let mut all = Vec::new();
    for format in Format::ALL {
        let bytes = ROWS * COLS / format.block() * format.block_bytes();
        let mut data: Vec<u8> = with_capacity(bytes as u64)?;
        // Bytes without a pattern that a permutation could keep.
        let mut x = 1u32;
        data.extend((0..bytes).map(|_| {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (x >> 24) as u8
        }));
        let format = match format.expanded() {
            Some(expanded) => {
                let len = bytes / format.block_bytes() * expanded.block_bytes();
                let mut to = with_capacity(len as u64)?;
                to.resize(len, 0);
                expand(isa, format, &data, &mut to, &Serial)?;
                data = to;
                expanded
            }
            None => format,
        };
        if let Some(repacked) = repacked_format(format) {
            repack(format, Layout::preferred(isa, repacked), ROWS, COLS, &mut data, &Serial)?;
        }
        all.extend_from_slice(&data);
    }
    Ok(all)
}

/// Repacks `from`, 16 rows as in the file, to `to`, which has the same size.
fn repack_panel(format: Format, codes: &Codes, layout: Layout, from: &[u8], to: &mut [u8]) {
    let block_bytes = format.block_bytes();
    let row_bytes = from.len() / PANEL_ROWS;
    let blocks = row_bytes / block_bytes;
    let (scales, packed) = to.split_at_mut(2 * PANEL_ROWS * blocks);
    let mut words = [0; 16];
    let words = &mut words[..codes.words];
    for b in 0..blocks {
        for r in 0..PANEL_ROWS {
            let block = &from[r * row_bytes + b * block_bytes..][..block_bytes];
            let scale = split(codes.order, block, words);
            scales[2 * (b * PANEL_ROWS + r)..][..2].copy_from_slice(&scale);
            for (i, &word) in words.iter().enumerate() {
                if layout == Layout::Panels32 {
                    let word = shuffle(word, codes.bits).to_le_bytes();
                    packed[place(layout, codes, b, 4 * i, r)..][..4].copy_from_slice(&word);
                } else {
                    let word = if codes.bits == 2 { unzip(word) } else { word };
                    for (j, byte) in word.to_le_bytes().into_iter().enumerate() {
                        packed[place(layout, codes, b, 4 * i + j, r)] = byte;
                    }
                }
            }
        }
    }
}

/// Block `b` of row `r` of a repacked panel of `format`, in the file's layout, in the first bytes of `block`.
fn block_of<'c>(
    format: Format,
    layout: Layout,
    group: &[u8],
    r: usize,
    b: usize,
    block: &'c mut [u8; 66],
) -> &'c [u8] {
    let block = &mut block[..format.block_bytes()];
    let Some(codes) = codes(format) else { return block };
    let blocks = group.len() / PANEL_ROWS / format.block_bytes();
    let (scales, packed) = group.split_at(2 * PANEL_ROWS * blocks);
    let at = 2 * (b * PANEL_ROWS + r);
    let mut words = [0; 16];
    let words = &mut words[..codes.words];
    for (i, word) in words.iter_mut().enumerate() {
        let byte = |j: usize| packed[place(layout, &codes, b, 4 * i + j, r)];
        *word = u32::from_le_bytes([byte(0), byte(1), byte(2), byte(3)]);
        if layout == Layout::Panels32 {
            *word = shuffle(*word, codes.bits);
        } else if codes.bits == 2 {
            *word = zip(*word);
        }
    }
    join(codes.order, [scales[at], scales[at + 1]], words, block);
    block
}
