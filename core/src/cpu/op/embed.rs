//! The embedding of tokens.
#![forbid(unsafe_code)]

use crate::cpu::context::Context;
use crate::cpu::scratch::Scratch;
use crate::error::Result;
use crate::model::program::{BufferId, TensorId};
use crate::model::weights::ModelBytes;
use crate::rows::Rows;

/// [`Op::Embed`](crate::model::program::Op::Embed).
pub(in crate::cpu) fn run<B: ModelBytes>(
    context: &Context<'_, B>,
    table: TensorId,
    out: BufferId,
    rows: &Rows<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<()> {
    let weights = context.weights;
    let cols = weights.program().tensor(table).cols;
    let Scratch { buffers, products, .. } = scratch;
    let x = buffers.get_mut(out, rows.len() * cols);
    let tokens = rows.segments().flat_map(|segment| segment.tokens);
    let mut rows = tokens.zip(x.chunks_exact_mut(cols));
    if let Some(paging) = weights.paging() {
        return rows.try_for_each(|(&token, x)| products.window.unpack_row(weights, paging, table, token, x));
    }
    let table = weights.matrix(table)?;
    rows.try_for_each(|(&token, x)| table.unpack_row(token as usize, x))
}
