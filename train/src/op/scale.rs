//! `y = c x`
//!
//! ```text
//! dx = c dy        y' = c x'
//! ```
#![forbid(unsafe_code)]

use shohin_core::cpu::parallel::for_each_chunk;
use shohin_core::pool::Pool;

use super::Gradient;

const LEN: usize = 1 << 14;

/// `y = factor x`, of results or of tangents.
pub(crate) fn forward(pool: &dyn Pool, factor: f32, x: &[f32], y: &mut [f32]) {
    for_each_chunk(pool, y, LEN, &|i, y| {
        y.iter_mut().zip(&x[i * LEN..]).for_each(|(y, x)| *y = x * factor);
    });
}

/// The gradient of `x` from that of `y`.
pub(crate) fn backward(pool: &dyn Pool, factor: f32, dy: &[f32], dx: Gradient<'_>) {
    if !dx.add {
        return forward(pool, factor, dy, dx.data);
    }
    for_each_chunk(pool, dx.data, LEN, &|i, dx| {
        dx.iter_mut().zip(&dy[i * LEN..]).for_each(|(dx, dy)| *dx += dy * factor);
    });
}
