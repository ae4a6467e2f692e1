//! Sums and products of rows, element by element.
#![forbid(unsafe_code)]

use crate::cpu::context::Context;
use crate::cpu::scratch::Scratch;
use crate::error::Result;
use crate::model::program::{BufferId, TensorId};
use crate::model::weights::ModelBytes;

/// [`Op::Bias`](crate::model::program::Op::Bias), of `n` rows.
pub(in crate::cpu) fn bias<B: ModelBytes>(
    context: &Context<'_, B>,
    x: BufferId,
    bias: TensorId,
    n: usize,
    scratch: &mut Scratch<'_>,
) {
    let bias = context.weights.vector(bias);
    for row in scratch.buffers.get_mut(x, n * bias.len()).chunks_exact_mut(bias.len()) {
        row.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
    }
}

/// [`Op::Add`](crate::model::program::Op::Add), of `len` elements.
pub(in crate::cpu) fn add(x: BufferId, to: BufferId, len: usize, scratch: &mut Scratch<'_>) -> Result<()> {
    let [x, to] = scratch.buffers.disjoint([(x, len), (to, len)])?;
    to.iter_mut().zip(x).for_each(|(to, x)| *to += *x);
    Ok(())
}

/// [`Op::Scale`](crate::model::program::Op::Scale), of `len` elements.
pub(in crate::cpu) fn scale(x: BufferId, factor: f32, len: usize, scratch: &mut Scratch<'_>) {
    scratch.buffers.get_mut(x, len).iter_mut().for_each(|x| *x *= factor);
}
