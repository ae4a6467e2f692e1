//! `y = x + b`, in every row
//!
//! ```text
//! dx = dy        db += sum over rows of dy        y' = x' + b'
//! ```
#![forbid(unsafe_code)]

use shohin_core::cpu::parallel::for_each_chunk;
use shohin_core::pool::Pool;

use super::ROWS;

/// Columns of a job.
const COLS: usize = 64;

/// Adds `bias (cols)` to each row of `y (rows, cols)`, which is a result or a tangent.
pub(crate) fn forward(pool: &dyn Pool, bias: &[f32], y: &mut [f32]) {
    let cols = bias.len();
    for_each_chunk(pool, y, ROWS * cols, &|_, y| {
        for row in y.chunks_exact_mut(cols) {
            row.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
        }
    });
}

/// Adds the sum of the rows of `dy (rows, cols)` to `dbias (cols)`.
pub(crate) fn backward(pool: &dyn Pool, dy: &[f32], dbias: &mut [f32]) {
    let cols = dbias.len();
    for_each_chunk(pool, dbias, COLS, &|i, dbias| {
        for rows in dy.chunks(ROWS * cols) {
            let mut sums = [0.0f32; COLS];
            for row in rows.chunks_exact(cols) {
                sums.iter_mut().zip(&row[i * COLS..]).for_each(|(sum, dy)| *sum += dy);
            }
            dbias.iter_mut().zip(&sums).for_each(|(dbias, sum)| *dbias += sum);
        }
    });
}
