//! The right operand of a product, in panels.

use alloc::vec::Vec;
use core::ops::Range;

use shohin_core::cpu::Isa;
use shohin_core::quant::{Matrix, unpack};

use crate::quantize::{Fake, GROUP, fake};

/// The right operand `B (k, n)` of a product.
pub trait Panels: Sync {
    /// Writes rows `block` of columns `cols` in panels of `width` columns, `(block, width)` each: element `(p, j)` of a panel
    /// at `p * width + j`. Columns that the last panel has more are 0.
    fn pack(&self, isa: Isa, block: Range<usize>, cols: Range<usize>, width: usize, panels: &mut [f32]);
}

/// `B (k, n)`, row after row, each `stride` after the one before.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a> {
    /// The elements.
    pub data: &'a [f32],
    /// From one row to the next.
    pub stride: usize,
}

impl Panels for Columns<'_> {
    fn pack(&self, _: Isa, block: Range<usize>, cols: Range<usize>, width: usize, panels: &mut [f32]) {
        for (panel, j) in panels.chunks_exact_mut(block.len() * width).zip(cols.clone().step_by(width)) {
            let valid = width.min(cols.end - j);
            for (out, p) in panel.chunks_exact_mut(width).zip(block.clone()) {
                copy(out, &self.data[p * self.stride + j..][..valid]);
            }
        }
    }
}

/// `B (k, n)`, column after column, each `stride` after the one before.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// The elements.
    pub data: &'a [f32],
    /// From one column to the next.
    pub stride: usize,
}

impl Panels for Rows<'_> {
    fn pack(&self, _: Isa, block: Range<usize>, cols: Range<usize>, width: usize, panels: &mut [f32]) {
        for (panel, first) in panels.chunks_exact_mut(block.len() * width).zip(cols.clone().step_by(width)) {
            let valid = width.min(cols.end - first);
            transpose(panel, width, valid, |j| &self.data[(first + j) * self.stride..][block.clone()]);
        }
    }
}

/// Writes `valid` columns of a panel, and zeros after them.
fn transpose<'a>(panel: &mut [f32], width: usize, valid: usize, column: impl Fn(usize) -> &'a [f32]) {
    for j in 0..valid {
        for (line, x) in panel.chunks_exact_mut(width).zip(column(j)) {
            line[j] = *x;
        }
    }
    if valid < width {
        panel.chunks_exact_mut(width).for_each(|line| line[valid..].fill(0.0));
    }
}

/// `from`, then zeros.
fn copy(out: &mut [f32], from: &[f32]) {
    /// One move of a panel's row in registers.
    fn whole<const N: usize>(out: &mut [f32], from: &[f32]) -> bool {
        let (Ok(out), Ok(from)) = (<&mut [f32; N]>::try_from(out), <&[f32; N]>::try_from(from)) else {
            return false;
        };
        *out = *from;
        true
    }
    if whole::<32>(out, from) || whole::<16>(out, from) || whole::<8>(out, from) {
        return;
    }
    let (valid, rest) = out.split_at_mut(from.len());
    valid.copy_from_slice(from);
    rest.fill(0.0);
}

/// A matrix of weights `(rows, cols)`, row after row.
#[derive(Clone, Copy, Debug)]
pub enum Weight<'a> {
    /// Floats.
    Floats {
        /// The elements.
        data: &'a [f32],
        /// Elements of a row.
        cols: usize,
        /// What is multiplied in their place.
        fake: Option<Fake>,
    },
    /// In the format of a file, as they are.
    Packed(Matrix<'a>),
}

impl<'a> Weight<'a> {
    /// Outputs.
    pub fn rows(&self) -> usize {
        match self {
            Weight::Floats { data, cols, .. } => data.len().checked_div(*cols).unwrap_or(0),
            Weight::Packed(matrix) => matrix.rows(),
        }
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        match self {
            Weight::Floats { cols, .. } => *cols,
            Weight::Packed(matrix) => matrix.cols(),
        }
    }

    /// Rows `rows` of a matrix that stacks several.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn slice_rows(&self, rows: Range<usize>) -> Weight<'a> {
        match *self {
            Weight::Floats { data, cols, fake } => {
                Weight::Floats { data: &data[rows.start * cols..rows.end * cols], cols, fake }
            }
            Weight::Packed(matrix) => Weight::Packed(matrix.slice_rows(rows)),
        }
    }

    /// Weights that are decoded together: parts of rows begin at a multiple of it.
    fn unit(&self) -> usize {
        match self {
            Weight::Floats { fake: None, .. } => 1,
            Weight::Floats { fake: Some(_), .. } => GROUP,
            Weight::Packed(matrix) => matrix.format().block(),
        }
    }

    /// Columns `cols` of row `row`, as they are multiplied: there, or in `out`. `cols` begins at a multiple of the unit, and
    /// ends at one or at the end of the row.
    fn part<'o>(&'o self, isa: Isa, row: usize, cols: Range<usize>, out: &'o mut [f32]) -> &'o [f32] {
        match self {
            Weight::Floats { data, cols: of, fake: None } => &data[row * of..][cols],
            Weight::Floats { data, cols: of, fake: Some(kind) } => {
                let out = &mut out[..cols.len()];
                fake(isa, *kind, &data[row * of..][cols], out);
                out
            }
            Weight::Packed(matrix) => {
                let format = matrix.format();
                let bytes = |col: usize| col / format.block() * format.block_bytes();
                let row = &matrix.data()[row * matrix.row_bytes()..][..matrix.row_bytes()];
                let out = &mut out[..cols.len()];
                // Whole blocks of an available format, as the matrix is one.
                let whole = unpack(format, &row[bytes(cols.start)..bytes(cols.end)], out);
                debug_assert!(whole.is_ok());
                out
            }
        }
    }

    /// Row `row`, as it is multiplied, `(cols)`.
    pub fn row(&self, isa: Isa, row: usize, out: &mut [f32]) {
        let mut scratch = [0.0; super::operand::BLOCK];
        for start in (0..self.cols()).step_by(super::operand::BLOCK) {
            let end = (start + super::operand::BLOCK).min(self.cols());
            out[start..end].copy_from_slice(self.part(isa, row, start..end, &mut scratch));
        }
    }
}

/// `B (inputs, outputs) = W^T`: for `y = x W^T`.
#[derive(Clone, Copy, Debug)]
pub struct WeightRows<'a>(pub Weight<'a>);

impl Panels for WeightRows<'_> {
    fn pack(&self, isa: Isa, block: Range<usize>, cols: Range<usize>, width: usize, panels: &mut [f32]) {
        let len = block.len();
        let mut scratch = [0.0; super::operand::BLOCK];
        for (panel, first) in panels.chunks_exact_mut(len * width).zip(cols.clone().step_by(width)) {
            let valid = width.min(cols.end - first);
            for j in 0..valid {
                let weights = self.0.part(isa, first + j, block.clone(), &mut scratch);
                for (line, w) in panel.chunks_exact_mut(width).zip(weights) {
                    line[j] = *w;
                }
            }
            if valid < width {
                panel.chunks_exact_mut(width).for_each(|line| line[valid..].fill(0.0));
            }
        }
    }
}

/// `B (outputs, inputs) = W`: for `dx = dy W`.
#[derive(Clone, Copy, Debug)]
pub struct WeightColumns<'a>(pub Weight<'a>);

impl Panels for WeightColumns<'_> {
    fn pack(&self, isa: Isa, block: Range<usize>, cols: Range<usize>, width: usize, panels: &mut [f32]) {
        let len = block.len();
        let unit = self.0.unit();
        // The columns may begin within a block of the format.
        let from = cols.start / unit * unit;
        let to = cols.end.next_multiple_of(unit).min(self.0.cols());
        let mut scratch: Vec<f32> = Vec::new();
        if !matches!(self.0, Weight::Floats { fake: None, .. }) {
            scratch.resize(to - from, 0.0);
        }
        for (p, row) in block.enumerate() {
            let weights = &self.0.part(isa, row, from..to, &mut scratch)[cols.start - from..][..cols.len()];
            for (panel, weights) in panels.chunks_exact_mut(len * width).zip(weights.chunks(width)) {
                copy(&mut panel[p * width..][..width], weights);
            }
        }
    }
}
