//! Products of matrices that are not in memory: their rows pass through a window; see [`paging`](crate::paging).
#![forbid(unsafe_code)]

use core::ops::Range;

use super::context::Context;
use super::matmul::{Input, matmul_rows};
use super::repack::PANEL_ROWS;
use super::weights::{CpuWeights, Operand};
use crate::arena::ALIGN;
use crate::error::{Error, Result};
use crate::model::program::{TensorId, TensorRole};
use crate::model::weights::ModelBytes;
use crate::paging::{Paging, read};
use crate::quant::Matrix;

/// Some rows that fit into half of the window.
#[derive(Clone)]
struct Piece {
    id: TensorId,
    rows: usize,
    /// Range of the file.
    bytes: Range<usize>,
}

/// The window: a half for the rows that are multiplied, and a half that takes the next.
#[derive(Default)]
pub(super) struct Window<'b> {
    now: &'b mut [u8],
    next: &'b mut [u8],
    /// The bytes of the file in `now`; empty if there are none.
    held: Range<usize>,
    /// The matrix that the next operation will begin with, if that is known.
    following: Option<TensorId>,
}

impl<'b> Window<'b> {
    pub(super) fn new(memory: &'b mut [u8]) -> Self {
        let half = half(memory.len());
        let (now, next) = memory.split_at_mut(half);
        Window { now, next: &mut next[..half], held: 0..0, following: None }
    }

    /// Tells which matrix follows those of the next product, if that is known.
    pub(super) fn announce(&mut self, following: Option<TensorId>) {
        self.following = following;
    }
}

/// Bytes of half of a window: a multiple of what buffers are aligned to.
fn half(window: usize) -> usize {
    window / 2 / ALIGN * ALIGN
}

impl<B: ModelBytes> CpuWeights<B> {
    /// Bytes of the window in the scratch memory; 0 for weights in memory.
    pub(super) fn window(&self) -> Result<usize> {
        let Some(Paging { window, .. }) = self.model().weights().paging() else { return Ok(0) };
        let tensors = self.program().tensors.iter().zip(self.model().weights().tensors());
        let row_bytes = tensors
            .filter(|(spec, _)| spec.role == TensorRole::Matrix)
            .map(|(_, tensor)| tensor.range.len() / tensor.rows.max(1));
        if half(window) < row_bytes.max().unwrap_or(0) {
            let expected =
                "at least twice the bytes of the longest row of a matrix, rounded up to a multiple of 64";
            return Err(error!(Option { what: "window of the weights", found: window as f64, expected }));
        }
        Ok(window)
    }

    #[inline(always)]
    pub(super) fn paging(&self) -> Option<Paging<'_>> {
        self.model().weights().paging()
    }

    /// As many of `count` rows from `first` on as fit into `half` bytes.
    fn piece(&self, id: TensorId, first: usize, count: usize, half: usize) -> Piece {
        let tensor = &self.model().weights().tensors()[id.index()];
        let row_bytes = tensor.range.len() / tensor.rows.max(1);
        let fit = half / row_bytes.max(1);
        // Kernels compute several rows at once.
        let fit = if fit > PANEL_ROWS { fit / PANEL_ROWS * PANEL_ROWS } else { fit };
        let rows = count.min(fit.max(1));
        let start = tensor.range.start + first * row_bytes;
        Piece { id, rows, bytes: start..start + rows * row_bytes }
    }
}

impl Window<'_> {
    /// Reads row `row` of the matrix `table` and unpacks it.
    pub(super) fn unpack_row<B: ModelBytes>(
        &mut self,
        weights: &CpuWeights<B>,
        paging: Paging<'_>,
        table: TensorId,
        row: u32,
        x: &mut [f32],
    ) -> Result<()> {
        self.held = 0..0;
        let spec = weights.program().tensor(table);
        if row as usize >= spec.rows {
            return Err(error!(Token { id: row, vocab: spec.rows as u32 }));
        }
        let row = weights.piece(table, row as usize, 1, self.now.len()).bytes;
        let bytes = &mut self.now[..row.len()];
        read(paging.reader, &spec.name, row.start as u64, bytes, None)?;
        Matrix::new(weights.model().weights().format(table), 1, spec.cols, bytes)?.unpack_row(0, x)
    }

    /// `y (n, rows) = x W^T` for each of `products`.
    pub(super) fn products<B: ModelBytes>(
        &mut self,
        context: &Context<'_, B>,
        paging: Paging<'_>,
        input: &Input<'_>,
        n: usize,
        products: &mut [(Operand, &mut [f32])],
    ) -> Result<()> {
        let done = self.try_products(context, paging, input, n, products);
        if done.is_err() {
            self.held = 0..0;
        }
        done
    }

    fn try_products<B: ModelBytes>(
        &mut self,
        context: &Context<'_, B>,
        Paging { reader, .. }: Paging<'_>,
        input: &Input<'_>,
        n: usize,
        products: &mut [(Operand, &mut [f32])],
    ) -> Result<()> {
        let weights = context.weights;
        let (program, half) = (weights.program(), self.now.len());
        let name = |piece: &Piece| program.tensor(piece.id).name.as_str();
        let (mut at, mut row) = (0, 0);
        while let Some((operand, _)) = products.get(at) {
            let Operand { id, first, rows } = *operand;
            let piece = weights.piece(id, first + row, rows - row, half);
            let w = &mut self.now[..piece.bytes.len()];
            if self.held != piece.bytes {
                read(reader, name(&piece), piece.bytes.start as u64, w, None)?;
            }
            let (this, start) = (at, row);
            row += piece.rows;
            if row == rows {
                (at, row) = (at + 1, 0);
            }
            let next = match (products.get(at), self.following) {
                (Some((next, _)), _) => Some(weights.piece(next.id, next.first + row, next.rows - row, half)),
                (None, Some(id)) => Some(weights.piece(id, 0, program.tensor(id).rows, half)),
                (None, None) => None,
            };
            let spec = program.tensor(id);
            let format = weights.model().weights().format(id);
            let w = Matrix::new(format, piece.rows, spec.cols, w)?.into();
            let y = &mut *products[this].1;
            let pool = context.pool_for_products(n, [w]);
            let mut done = Ok(());
            let mut work = || done = matmul_rows(context.isa, pool, &w, input, n, y, (rows, start));
            self.held = 0..0;
            match next {
                None => work(),
                Some(next) => {
                    let buffer = &mut self.next[..next.bytes.len()];
                    read(reader, name(&next), next.bytes.start as u64, buffer, Some(&mut work))?;
                    core::mem::swap(&mut self.now, &mut self.next);
                    self.held = next.bytes;
                }
            }
            done?;
        }
        Ok(())
    }
}
