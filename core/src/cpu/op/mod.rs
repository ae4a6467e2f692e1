//! The operations of a program, one file each, and the loops over rows that they share. The kernels of matrix products are
//! in [`crate::cpu::matmul`].
//!
//! Sums use [`LANES`] fixed partial sums, so compilers may vectorise them and every machine still adds in the
//! same order: results are bit-identical everywhere.

pub mod argmax;
pub(super) mod attention;
pub(super) mod conv;
pub(super) mod delta_net;
pub(super) mod elementwise;
pub(super) mod embed;
pub(super) mod exchange;
pub mod exp;
pub(super) mod experts;
pub mod gated;
pub(crate) mod hadamard;
pub(super) mod linear;
pub(super) mod readout;
pub mod rmsnorm;
pub mod rope;
pub mod route;
pub(super) mod select;
pub(crate) mod shift;
pub mod swiglu;

pub use argmax::argmax;

/// Partial sums per reduction.
pub const LANES: usize = 16;

/// Adds the partial sums pairwise, always in the same order.
#[cfg_attr(not(target_os = "none"), inline(always))]
#[cfg_attr(target_os = "none", inline)]
pub(crate) fn fold(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// Dot product of two slices of equal length in f32.
#[cfg_attr(not(target_os = "none"), inline(always))]
#[cfg_attr(target_os = "none", inline)]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (a, b) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let tail = a.remainder().iter().zip(b.remainder()).fold(0.0, |s, (x, y)| s + x * y);
    for (x, y) in a.zip(b) {
        for i in 0..LANES {
            lanes[i] += x[i] * y[i];
        }
    }
    fold(lanes) + tail
}

/// Reduces eight running sums: adds one half to the other until one is left.
#[inline(always)]
pub(crate) fn finish(sum: &[f32; 8]) -> f32 {
    ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]))
}

/// Reduces the sixteen running sums of a float dot product in the same way.
#[inline(always)]
pub(crate) fn finish_float(sum: &[f32; 16]) -> f32 {
    finish(&core::array::from_fn(|i| sum[i] + sum[i + 8]))
}
