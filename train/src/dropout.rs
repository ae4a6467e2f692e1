//! Dropout (Srivastava et al. 2014) of what the first factors of adapters are multiplied by, as PEFT has it.
//!
//! ```text
//! A (x * m),    m = 0 with probability p, otherwise 1 / (1 - p)
//! h(z) = finalizer of SplitMix64 of z + 0x9e3779b97f4a7c15
//! k = h(h(h(seed) ^ step) ^ tensor),    m[row][col] = 0 if h(h(k ^ row) ^ col) / 2^64 < p
//! ```
//! An element follows from the numbers of the seed, the step, the tensor, the row in the whole step and the column alone: not from
//! threads, from how a step is divided into micro-batches and ranks, or from what is computed again.
#![forbid(unsafe_code)]

use alloc::vec;
use alloc::vec::Vec;

use shohin_core::cpu::parallel::for_each_chunk;
use shohin_core::model::lora::A;
use shohin_core::model::program::{Program, TensorId};
use shohin_core::pool::Pool;

use crate::gemm::Line;
use crate::hash::hash;

/// Rows of a job.
const ROWS: usize = 16;

/// Which elements are dropped in a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// Probability that an element is 0; from 0, less than 1.
    pub probability: f64,
    /// What they follow from.
    pub seed: u64,
    /// Number of the step.
    pub step: u64,
    /// Number of the batch's first row in the step.
    pub first_row: u64,
}

impl Dropout {
    /// Whether there is any.
    pub fn is_some(&self) -> bool {
        self.probability > 0.0
    }

    /// Multiplies rows of what tensor number `tensor` is multiplied by, from the batch's row `first` on, by their masks.
    fn apply(&self, tensor: usize, first: usize, cols: usize, x: &mut [f32]) {
        let key = hash(hash(hash(self.seed) ^ self.step) ^ tensor as u64);
        // 2^64 p, which is exact but for the last bits.
        let limit = (self.probability * 18_446_744_073_709_551_616.0) as u64;
        let scale = (1.0 / (1.0 - self.probability)) as f32;
        for (i, row) in x.chunks_exact_mut(cols).enumerate() {
            let key = hash(key ^ (self.first_row + (first + i) as u64));
            for (col, x) in row.iter_mut().enumerate() {
                *x = if hash(key ^ col as u64) < limit { 0.0 } else { *x * scale };
            }
        }
    }
}

/// What is dropped at the time, and the rows with dropped elements.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// That of the next batch whose gradients are computed.
    pub(crate) dropout: Option<Dropout>,
    /// `(rows, columns of the widest first factor)`
    rows: Vec<Line>,
}

impl Memory {
    /// Bytes for `rows` rows.
    pub(crate) fn bytes(program: &Program, rows: usize) -> u64 {
        let factors = program.tensors.iter().filter(|spec| spec.name.ends_with(A));
        let cols = factors.map(|spec| spec.cols).max().unwrap_or(0);
        ((cols * rows).div_ceil(16) * size_of::<Line>()) as u64
    }

    /// Whether elements are dropped of what a tensor is multiplied by.
    fn active(&self, program: &Program, id: TensorId) -> Option<Dropout> {
        self.dropout.filter(|dropout| dropout.is_some() && program.tensor(id).name.ends_with(A))
    }

    /// `x (rows, cols)`, with dropped elements if `id` is a first factor.
    pub(crate) fn input<'x>(
        &'x mut self,
        program: &Program,
        pool: &dyn Pool,
        id: TensorId,
        x: &'x [f32],
    ) -> &'x [f32] {
        let cols = program.tensor(id).cols;
        let Some(dropout) = self.active(program, id) else { return x };
        let rows = self.room(x.len());
        for_each_chunk(pool, rows, ROWS * cols, &|i, rows| {
            let first = i * ROWS;
            rows.copy_from_slice(&x[first * cols..][..rows.len()]);
            dropout.apply(id.index(), first, cols, rows);
        });
        rows
    }

    /// Where to compute the gradient of [`Memory::input`], if that is another than that of `x`, of `len` elements.
    pub(crate) fn gradient(&mut self, program: &Program, id: TensorId, len: usize) -> Option<&mut [f32]> {
        self.active(program, id)?;
        Some(self.room(len))
    }

    /// The gradient of `x (rows, cols)` from that in [`Memory::gradient`]: to `to`, or added to it.
    pub(crate) fn backward(
        &mut self,
        program: &Program,
        pool: &dyn Pool,
        id: TensorId,
        to: &mut [f32],
        add: bool,
    ) {
        let cols = program.tensor(id).cols;
        let Some(dropout) = self.active(program, id) else { return };
        let rows = self.room(to.len());
        for_each_chunk(pool, rows, ROWS * cols, &|i, rows| {
            dropout.apply(id.index(), i * ROWS, cols, rows);
        });
        let rows = &*rows;
        for_each_chunk(pool, to, ROWS * cols, &|i, to| {
            let from = &rows[i * ROWS * cols..][..to.len()];
            match add {
                true => to.iter_mut().zip(from).for_each(|(to, from)| *to += from),
                false => to.copy_from_slice(from),
            }
        });
    }

    fn room(&mut self, len: usize) -> &mut [f32] {
        if self.rows.len() < len.div_ceil(16) {
            self.rows = vec![Line::ZERO; len.div_ceil(16)];
        }
        &mut bytemuck::cast_slice_mut(&mut self.rows)[..len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_follow_from_their_place_in_the_step() {
        let dropout = Dropout { probability: 0.25, seed: 7, step: 3, first_row: 0 };
        let (rows, cols) = (64, 96);
        let masks = |dropout: Dropout, tensor, first, rows: usize| {
            let mut x = vec![1.0; rows * cols];
            dropout.apply(tensor, first, cols, &mut x);
            x
        };
        let whole = masks(dropout, 5, 0, rows);
        assert_eq!(whole[20 * cols..], masks(dropout, 5, 20, rows - 20)[..]);
        assert_eq!(whole[20 * cols..], masks(Dropout { first_row: 20, ..dropout }, 5, 0, rows - 20)[..]);
        // The formula, in other words.
        for (row, col) in [(0, 0), (3, 95), (63, 17)] {
            let mut key = [7u64, 3, 5, row as u64].into_iter().fold(0, |key, n| hash(key ^ n));
            key = hash(key ^ col as u64);
            let expected = if (key as f64) / 2f64.powi(64) < 0.25 { 0.0 } else { (1.0 / 0.75) as f32 };
            assert_eq!(whole[row * cols + col], expected);
        }
        let dropped = whole.iter().filter(|x| **x == 0.0).count() as f64 / whole.len() as f64;
        assert!((dropped - 0.25).abs() < 0.02, "{dropped}");
        // Others drop others: about 3 in 8 differ.
        for other in [
            masks(dropout, 6, 0, rows),
            masks(Dropout { step: 4, ..dropout }, 5, 0, rows),
            masks(Dropout { seed: 8, ..dropout }, 5, 0, rows),
            masks(Dropout { first_row: 1, ..dropout }, 5, 0, rows),
        ] {
            let differ = whole.iter().zip(&other).filter(|(a, b)| a != b).count() as f64;
            assert!((differ / whole.len() as f64 - 0.375).abs() < 0.03);
        }
    }
}
