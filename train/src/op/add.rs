//! `y = to + x`
//!
//! ```text
//! dto = dy        dx = dy        y' = to' + x'
//! ```
#![forbid(unsafe_code)]

use shohin_core::cpu::parallel::for_each_chunk;
use shohin_core::pool::Pool;

use super::Gradient;

/// `to[i] += x[i]`, of results or of tangents.
pub(crate) fn forward(pool: &dyn Pool, x: &[f32], to: &mut [f32]) {
    const LEN: usize = 1 << 14;
    for_each_chunk(pool, to, LEN, &|i, to| {
        let x = &x[i * LEN..][..to.len()];
        to.iter_mut().zip(x).for_each(|(to, x)| *to += x);
    });
}

/// The gradient of an operand is `dy`.
pub(crate) fn backward(pool: &dyn Pool, dy: &[f32], dx: Gradient<'_>) {
    match dx.add {
        true => forward(pool, dy, dx.data),
        false => dx.data.copy_from_slice(dy),
    }
}
