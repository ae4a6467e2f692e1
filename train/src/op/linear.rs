//! `y = x W^T`
//!
//! ```text
//! dx = dy W        dW += dy^T x
//! ```
#![forbid(unsafe_code)]

use super::Gradient;
use crate::gemm::{Block, Columns, Gemm, Left, Store, Weight, WeightColumns, WeightRows};

/// `y (rows, outputs) = x W^T`, or added to it, for `x (rows, inputs)`.
pub(crate) fn forward(gemm: &mut Gemm<'_>, x: &[f32], weight: Weight<'_>, y: &mut [f32], store: Store) {
    let (outputs, inputs) = (weight.rows(), weight.cols());
    gemm.product(inputs, Left::rows(x, inputs), &WeightRows(weight), Block::new(y, outputs), store);
}

/// The gradient of `x (rows, inputs)` from that of `y (rows, outputs)`.
pub(crate) fn backward_input(gemm: &mut Gemm<'_>, dy: &[f32], weight: Weight<'_>, dx: Gradient<'_>) {
    let (outputs, inputs) = (weight.rows(), weight.cols());
    let store = if dx.add { Store::Add } else { Store::Replace };
    let dy = Left::rows(dy, outputs);
    gemm.product(outputs, dy, &WeightColumns(weight), Block::new(dx.data, inputs), store);
}

/// Adds to the gradient of the weights, `(outputs, inputs)`.
pub(crate) fn backward_weight(gemm: &mut Gemm<'_>, dy: &[f32], x: &[f32], inputs: usize, dw: &mut [f32]) {
    let (rows, outputs) = (x.len() / inputs, dw.len() / inputs);
    let x = Columns { data: x, stride: inputs };
    gemm.product(rows, Left::columns(dy, outputs), &x, Block::new(dw, inputs), Store::Add);
}
