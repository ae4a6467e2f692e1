//! The logits, the loss, and their gradients, for a few rows at once: logits of a whole batch exist nowhere.
//!
//! ```text
//! z = h E^T        L = sum_r w_r loss(z_r) / total        dh = dz E        dE += dz^T h
//! z' = h' E^T + h E'^T        L' = sum_r dz_r . z'_r
//! ```
//! Rows of weight 0 are left out.
#![forbid(unsafe_code)]

use alloc::vec::Vec;

use shohin_core::cpu::parallel::for_each_chunk;

use super::{Gradient, linear};
use crate::batch::{Batch, Teacher};
use crate::gemm::{Gemm, Store, Weight};
use crate::loss::{Loss, Target};

/// Rows whose logits exist at the same time: a multiple of the rows of all kernels.
pub(crate) const CHUNK: usize = 112;

/// The memory of a chunk.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// `(CHUNK, hidden)`
    hidden: Vec<f32>,
    /// `(CHUNK, hidden)`
    gradient: Vec<f32>,
    /// `(CHUNK, vocabulary)`
    logits: Vec<f32>,
    /// Their tangents, `(CHUNK, vocabulary)`.
    tangents: Vec<f32>,
    /// The teacher's, `(CHUNK, its hidden)` and `(CHUNK, vocabulary)`.
    teacher: [Vec<f32>; 2],
}

impl Memory {
    /// Its bytes for at most `rows` rows, without a teacher's.
    pub(crate) fn bytes(rows: usize, hidden: usize, vocab: usize) -> u64 {
        (CHUNK.min(rows) * (2 * hidden + vocab) * size_of::<f32>()) as u64
    }

    /// Bytes that tangents take beside these.
    pub(crate) fn tangent_bytes(rows: usize, vocab: usize) -> u64 {
        (CHUNK.min(rows) * vocab * size_of::<f32>()) as u64
    }

    /// Computes the teacher's logits of `rows`.
    fn teach(&mut self, gemm: &mut Gemm<'_>, batch: &Batch<'_>, rows: &[usize]) {
        let Some(Teacher { hidden, output }) = batch.teacher else { return };
        let [chunk, logits] = &mut self.teacher;
        chunk.clear();
        for row in rows {
            chunk.extend_from_slice(&hidden[row * output.cols()..][..output.cols()]);
        }
        logits.resize(rows.len() * output.rows(), 0.0);
        linear::forward(gemm, chunk, output, logits, Store::Replace);
    }
}

/// A row's loss and gradient.
struct Row<'a> {
    logits: &'a mut [f32],
    /// Empty without a teacher.
    teacher: &'a [f32],
    row: usize,
    loss: f64,
}

/// What the head of a batch gives.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    /// The loss.
    pub(crate) loss: f64,
    /// The first row whose loss is not a finite number.
    pub(crate) not_finite: Option<usize>,
    /// The loss's derivative along a direction, if there is one.
    pub(crate) derivative: f64,
    /// The largest loss of a row.
    pub(crate) largest: f64,
}

/// What the rows of a batch have in common.
#[derive(Clone, Copy, Debug)]
struct Rows<'a> {
    loss: &'a Loss,
    batch: &'a Batch<'a>,
    total: f64,
    hidden: &'a [f32],
    output: Weight<'a>,
}

impl Rows<'_> {
    /// The rows that count.
    fn counted(&self) -> Vec<usize> {
        (0..self.batch.tokens.len()).filter(|row| self.batch.weight(*row) != 0.0).collect()
    }

    /// The logits of the rows `chunk`, replaced by their gradients; adds to the loss.
    fn differentiate(
        &self,
        gemm: &mut Gemm<'_>,
        memory: &mut Memory,
        chunk: &[usize],
        outcome: &mut Outcome,
    ) {
        let Rows { loss, batch, total, hidden, output } = *self;
        let (isa, n, cols, vocab) = (gemm.isa(), chunk.len(), output.cols(), output.rows());
        memory.hidden.resize(n * cols, 0.0);
        memory.logits.resize(n * vocab, 0.0);
        for (to, row) in memory.hidden.chunks_exact_mut(cols).zip(chunk) {
            to.copy_from_slice(&hidden[row * cols..][..cols]);
        }
        linear::forward(gemm, &memory.hidden, output, &mut memory.logits, Store::Replace);
        memory.teach(gemm, batch, chunk);
        let teacher = memory.teacher[1].chunks_exact(vocab).map(Some).chain(core::iter::repeat(None));
        let of_chunk = memory.logits.chunks_exact_mut(vocab).zip(teacher).zip(chunk);
        let row = |((logits, teacher), row): ((_, Option<_>), &usize)| Row {
            logits,
            teacher: teacher.filter(|_| batch.teacher.is_some()).unwrap_or(&[]),
            row: *row,
            loss: 0.0,
        };
        let mut losses: Vec<Row<'_>> = of_chunk.map(row).collect();
        for_each_chunk(gemm.pool(), &mut losses, 1, &|_, part| {
            for row in part {
                let weight = batch.weight(row.row);
                let scale = (f64::from(weight) / total) as f32;
                let target = Target { token: batch.targets[row.row], teacher: row.teacher };
                row.loss = f64::from(weight) * loss.row(isa, row.logits, &target, scale);
            }
        });
        outcome.loss += losses.iter().map(|row| row.loss).sum::<f64>();
        let alone = |row: &Row<'_>| row.loss / f64::from(batch.weight(row.row));
        outcome.largest = losses.iter().map(alone).fold(outcome.largest, f64::max);
        let wrong = losses.iter().find(|row| !row.loss.is_finite());
        outcome.not_finite = outcome.not_finite.or(wrong.map(|row| row.row));
    }
}

/// The loss of `hidden (rows, cols)`, and its derivative from the tangents of `hidden` and of the output matrix; one that is
/// not there is 0.
pub(crate) fn tangent(
    gemm: &mut Gemm<'_>,
    memory: &mut Memory,
    loss: &Loss,
    batch: &Batch<'_>,
    total: f64,
    hidden: &[f32],
    output: Weight<'_>,
    [dhidden, doutput]: [Option<&[f32]>; 2],
) -> Outcome {
    let (cols, vocab) = (output.cols(), output.rows());
    let rows = Rows { loss, batch, total, hidden, output };
    let mut outcome = Outcome::default();
    for chunk in rows.counted().chunks(CHUNK) {
        let n = chunk.len();
        rows.differentiate(gemm, memory, chunk, &mut outcome);
        memory.gradient.resize(n * cols, 0.0);
        memory.tangents.resize(n * vocab, 0.0);
        if let Some(dhidden) = dhidden {
            for (to, row) in memory.gradient.chunks_exact_mut(cols).zip(chunk) {
                to.copy_from_slice(&dhidden[row * cols..][..cols]);
            }
        }
        let tangents = [dhidden.map(|_| &memory.gradient[..]), doutput];
        linear::tangent(gemm, &memory.hidden, output, tangents, &mut memory.tangents, Store::Replace);
        let products = memory.logits.iter().zip(&memory.tangents);
        outcome.derivative += products.map(|(d, z)| f64::from(*d) * f64::from(*z)).sum::<f64>();
    }
    outcome.loss /= total;
    outcome
}

/// The loss of `hidden (rows, cols)`, and its gradients by `hidden` and by the output matrix `(vocabulary, cols)`. `total` is
/// what the sum of the rows' losses is divided by.
pub(crate) fn run(
    gemm: &mut Gemm<'_>,
    memory: &mut Memory,
    loss: &Loss,
    batch: &Batch<'_>,
    total: f64,
    hidden: &[f32],
    output: Weight<'_>,
    [dhidden, doutput]: [Option<&mut [f32]>; 2],
) -> Outcome {
    let cols = output.cols();
    let rows = Rows { loss, batch, total, hidden, output };
    let (mut dhidden, mut doutput) = (dhidden, doutput);
    if let Some(dhidden) = &mut dhidden {
        dhidden.fill(0.0);
    }
    let mut outcome = Outcome::default();
    for chunk in rows.counted().chunks(CHUNK) {
        let n = chunk.len();
        rows.differentiate(gemm, memory, chunk, &mut outcome);
        if let Some(dhidden) = &mut dhidden {
            memory.gradient.resize(n * cols, 0.0);
            let data = &mut memory.gradient[..];
            linear::backward_input(gemm, &memory.logits, output, Gradient { data, add: false });
            for (from, row) in memory.gradient.chunks_exact(cols).zip(chunk) {
                dhidden[row * cols..][..cols].copy_from_slice(from);
            }
        }
        if let Some(doutput) = &mut doutput {
            linear::backward_weight(gemm, &memory.logits, &memory.hidden, cols, doutput);
        }
    }
    outcome.loss /= total;
    outcome
}
