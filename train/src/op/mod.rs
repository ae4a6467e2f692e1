//! The operations of a tape, one file each: forward, backward, and forward mode: the tangent `y'` of a result from those of
//! its operands.
//!
//! Functions take rows of floats, one row for each token of the batch, and spread them over the workers. What they add up over
//! rows, they add up for [`ROWS`] rows each and then in order: bits do not depend on the number of workers.

pub(crate) mod add;
pub(crate) mod attention;
pub(crate) mod bias;
pub(crate) mod embed;
pub(crate) mod experts;
pub(crate) mod gated;
pub(crate) mod head;
pub(crate) mod linear;
pub(crate) mod norm;
pub(crate) mod rope;
pub(crate) mod scale;

use alloc::vec::Vec;

use shohin_core::cpu::parallel::for_each_chunk;
use shohin_core::pool::Pool;

/// Rows of a job.
pub(crate) const ROWS: usize = 64;

/// A gradient that an operation computes, `(rows, cols)`.
#[derive(Debug)]
pub(crate) struct Gradient<'a> {
    pub(crate) data: &'a mut [f32],
    /// Whether it is added to what is there.
    pub(crate) add: bool,
}

/// A job over the rows of two buffers from a row on.
type PairJob<'j> = dyn Fn(usize, &mut [f32], &mut [f32]) + Sync + 'j;

/// Calls `job(first row, rows of a, rows of b)` for every [`ROWS`] rows of two buffers with `cols` floats a row each.
pub(crate) fn for_each_pair(
    pool: &dyn Pool,
    (a, a_cols): (&mut [f32], usize),
    (b, b_cols): (&mut [f32], usize),
    job: &PairJob<'_>,
) {
    let parts = a.chunks_mut(ROWS * a_cols).zip(b.chunks_mut(ROWS * b_cols));
    let mut parts: Vec<_> = parts.collect();
    for_each_chunk(pool, &mut parts, 1, &|i, part| {
        if let [(a, b)] = part {
            job(i * ROWS, a, b);
        }
    });
}

#[cfg(test)]
mod tests;
