//! `y = x W^T`
//!
//! ```text
//! dx = dy W        dW += dy^T x        y' = x' W^T + x W'^T
//! ```
#![forbid(unsafe_code)]

use super::Gradient;
use crate::gemm::{Block, Columns, Gemm, Left, Store, Weight, WeightColumns, WeightRows};

/// `y (rows, outputs) = x W^T`, or added to it, for `x (rows, inputs)`.
pub(crate) fn forward(gemm: &mut Gemm<'_>, x: &[f32], weight: Weight<'_>, y: &mut [f32], store: Store) {
    let (outputs, inputs) = (weight.rows(), weight.cols());
    gemm.product(inputs, Left::rows(x, inputs), &WeightRows(weight), Block::new(y, outputs), store);
}

/// The tangent of `y (rows, outputs)`, or added to it, from those of `x (rows, inputs)` and of `W (outputs, inputs)`; a tangent
/// that is not there is 0, and `x` is read if `W` has one.
pub(crate) fn tangent(
    gemm: &mut Gemm<'_>,
    x: &[f32],
    weight: Weight<'_>,
    [dx, dweight]: [Option<&[f32]>; 2],
    y: &mut [f32],
    store: Store,
) {
    let mut store = store;
    if let Some(dx) = dx {
        forward(gemm, dx, weight, y, store);
        store = Store::Add;
    }
    match (dweight, store) {
        (Some(data), store) => {
            let dweight = Weight::Floats { data, cols: weight.cols(), fake: None };
            forward(gemm, x, dweight, y, store);
        }
        (None, Store::Replace) => y.fill(0.0),
        (None, Store::Add) => {}
    }
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
