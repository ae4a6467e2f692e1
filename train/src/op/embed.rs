//! `out = table[token]`, `out' = table'[token]`
#![forbid(unsafe_code)]

use shohin_core::cpu::parallel::for_each_chunk;

use super::ROWS;
use crate::gemm::{Gemm, Weight};

/// The rows of `table (vocabulary, cols)` for `tokens`, to `out (rows, cols)`.
pub(crate) fn forward(gemm: &Gemm<'_>, tokens: &[u32], table: Weight<'_>, out: &mut [f32]) {
    let (isa, cols) = (gemm.isa(), table.cols());
    for_each_chunk(gemm.pool(), out, ROWS * cols, &|i, out| {
        for (token, out) in tokens[i * ROWS..].iter().zip(out.chunks_exact_mut(cols)) {
            table.row(isa, *token as usize, out);
        }
    });
}

/// The tangent of `out (rows, cols)` from that of the table, `(vocabulary, cols)`.
pub(crate) fn tangent(gemm: &Gemm<'_>, tokens: &[u32], table: &[f32], cols: usize, out: &mut [f32]) {
    forward(gemm, tokens, Weight::Floats { data: table, cols, fake: None }, out);
}

/// `dtable[token_r] += dy_r` for each row `r`, in order.
pub(crate) fn backward(tokens: &[u32], dy: &[f32], cols: usize, dtable: &mut [f32]) {
    for (token, dy) in tokens.iter().zip(dy.chunks_exact(cols)) {
        let row = &mut dtable[*token as usize * cols..][..cols];
        row.iter_mut().zip(dy).for_each(|(d, dy)| *d += dy);
    }
}
