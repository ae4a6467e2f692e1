//! The left operand, and what all kernels share.
#![forbid(unsafe_code)]

use core::ops::Range;

/// Products in a block of a sum.
pub const BLOCK: usize = 256;

/// Columns of a packed block of `A`: at least those of any kernel's rows.
pub(super) const SLAB: usize = 16;

/// A cache line of floats.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct Line([f32; 16]);

impl Line {
    pub(crate) const ZERO: Line = Line([0.0; 16]);
}

/// The left operand of a product.
#[derive(Clone, Copy, Debug)]
pub struct Left<'a> {
    /// The elements.
    pub data: &'a [f32],
    /// From one row to the next.
    pub row: usize,
    /// From one column to the next.
    pub col: usize,
}

impl<'a> Left<'a> {
    /// `(m, k)`, row after row.
    pub fn rows(data: &'a [f32], k: usize) -> Self {
        Left { data, row: k, col: 1 }
    }

    /// The transpose of `(k, m)`, row after row.
    pub fn columns(data: &'a [f32], m: usize) -> Self {
        Left { data, row: 1, col: m }
    }

    /// Whether `(m, k)` elements are there.
    pub(super) fn holds(&self, m: usize, k: usize) -> bool {
        m == 0 || k == 0 || (m - 1) * self.row + (k - 1) * self.col < self.data.len()
    }
}

/// Whether the product replaces what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// `C = A B`
    Replace,
    /// `C += A B`
    Add,
}

/// Rows of the left operand side by side: element `(i, p)` of a slab at `p * SLAB + i`.
pub(super) fn pack_slab(a: Left<'_>, rows: Range<usize>, block: Range<usize>, slab: &mut [f32]) {
    for (line, p) in slab.chunks_exact_mut(SLAB).zip(block) {
        let from = &a.data[rows.start * a.row + p * a.col..];
        if a.row == 1 {
            line[..rows.len()].copy_from_slice(&from[..rows.len()]);
        } else {
            line[..rows.len()].iter_mut().enumerate().for_each(|(r, x)| *x = from[r * a.row]);
        }
    }
}
