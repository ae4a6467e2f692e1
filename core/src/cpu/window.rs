//! Products of matrices that are not in memory: their rows pass through a window; see [`paging`](crate::paging).
#![forbid(unsafe_code)]

use core::ops::Range;

use super::forward::Forward;
use super::matmul::{Input, matmul_rows};
use super::repack::PANEL_ROWS;
use super::scratch::Scratch;
use super::weights::CpuWeights;
use crate::arena::ALIGN;
use crate::error::{Error, Result};
use crate::model::program::{BufferId, Op, Program, TensorId, TensorRole};
use crate::model::weights::ModelBytes;
use crate::paging::{Paging, read};
use crate::quant::Matrix;
use crate::rows::Rows;

/// Rows of a matrix of weights, wherever they are.
#[derive(Clone, Copy)]
pub(super) struct Operand {
    pub(super) id: TensorId,
    pub(super) first: usize,
    pub(super) rows: usize,
}

impl Operand {
    /// All rows.
    pub(super) fn whole(program: &Program, id: TensorId) -> Operand {
        Operand { id, first: 0, rows: program.tensor(id).rows }
    }
}

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

    /// No matrix follows the next product, as far as is known.
    pub(super) fn ends(&mut self) {
        self.following = None;
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

impl<B: ModelBytes> Forward<'_, B> {
    /// Looks up the rows of the embedding `table`, one by one.
    pub(super) fn embed_paged(
        &self,
        paging: Paging<'_>,
        table: TensorId,
        out: BufferId,
        rows: &Rows<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<()> {
        let spec = self.weights.program().tensor(table);
        let format = self.weights.model().weights().format(table);
        let mut window = core::mem::take(&mut scratch.window);
        window.held = 0..0;
        let x = scratch.buffer_mut(out, rows.len() * spec.cols);
        let tokens = rows.segments().flat_map(|segment| segment.tokens);
        let done = tokens.zip(x.chunks_exact_mut(spec.cols)).try_for_each(|(&token, x)| {
            if token as usize >= spec.rows {
                return Err(error!(Token { id: token, vocab: spec.rows as u32 }));
            }
            let row = self.weights.piece(table, token as usize, 1, window.now.len()).bytes;
            let bytes = &mut window.now[..row.len()];
            read(paging.reader, &spec.name, row.start as u64, bytes, None)?;
            Matrix::new(format, 1, spec.cols, bytes)?.unpack_row(0, x)
        });
        scratch.window = window;
        done
    }

    /// Tells the window which matrix comes after operation `op` of the body.
    pub(super) fn announce(&self, op: usize, rows: &Rows<'_>, scratch: &mut Scratch<'_>) {
        let program = self.weights.program();
        let later = program.body.get(op + 1..).unwrap_or(&[]);
        let first = later.iter().find_map(|op| op.matrices().first().copied());
        let output = || rows.wanted().next().map(|_| program.output);
        scratch.window.following = match program.body.get(op) {
            // It computes several products, and does not know the last one beforehand.
            Some(Op::Experts(_)) | None => None,
            Some(_) => first.or_else(output),
        };
    }

    /// `y (n, rows) = x W^T` for each of `products`, of the first `n` rows of `x`.
    pub(super) fn products_paged(
        &self,
        paging: Paging<'_>,
        x: BufferId,
        n: usize,
        products: &mut [(Operand, &mut [f32])],
        scratch: &mut Scratch<'_>,
    ) -> Result<()> {
        let Some((first, _)) = products.first() else { return Ok(()) };
        let cols = self.weights.program().tensor(first.id).cols;
        let mut window = core::mem::take(&mut scratch.window);
        let input = self.input(x, n, cols, scratch);
        let done = input.and_then(|input| self.through_window(paging, &input, n, products, &mut window));
        if done.is_err() {
            window.held = 0..0;
        }
        scratch.window = window;
        done
    }

    fn through_window(
        &self,
        Paging { reader, .. }: Paging<'_>,
        input: &Input<'_>,
        n: usize,
        products: &mut [(Operand, &mut [f32])],
        window: &mut Window<'_>,
    ) -> Result<()> {
        let (program, half) = (self.weights.program(), window.now.len());
        let name = |piece: &Piece| program.tensor(piece.id).name.as_str();
        let (mut at, mut row) = (0, 0);
        while let Some((operand, _)) = products.get(at) {
            let Operand { id, first, rows } = *operand;
            let piece = self.weights.piece(id, first + row, rows - row, half);
            let w = &mut window.now[..piece.bytes.len()];
            if window.held != piece.bytes {
                read(reader, name(&piece), piece.bytes.start as u64, w, None)?;
            }
            let (this, start) = (at, row);
            row += piece.rows;
            if row == rows {
                (at, row) = (at + 1, 0);
            }
            let next = match (products.get(at), window.following) {
                (Some((next, _)), _) => {
                    Some(self.weights.piece(next.id, next.first + row, next.rows - row, half))
                }
                (None, Some(id)) => Some(self.weights.piece(id, 0, program.tensor(id).rows, half)),
                (None, None) => None,
            };
            let spec = program.tensor(id);
            let format = self.weights.model().weights().format(id);
            let w = Matrix::new(format, piece.rows, spec.cols, w)?.into();
            let y = &mut *products[this].1;
            let pool = self.pool_for_products(n, [w]);
            let mut done = Ok(());
            let mut work = || done = matmul_rows(self.isa, pool, &w, input, n, y, (rows, start));
            window.held = 0..0;
            match next {
                None => work(),
                Some(next) => {
                    let buffer = &mut window.next[..next.bytes.len()];
                    read(reader, name(&next), next.bytes.start as u64, buffer, Some(&mut work))?;
                    core::mem::swap(&mut window.now, &mut window.next);
                    window.held = next.bytes;
                }
            }
            done?;
        }
        Ok(())
    }
}
