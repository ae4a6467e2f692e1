//! The definition of a product in plain Rust, for processors without vectors.
#![allow(unsafe_code)]

use super::kernel::{Vector, rows};

struct Scalar;

impl Vector for Scalar {
    const LANES: usize = 1;
    type V = f32;

    #[inline(always)]
    unsafe fn zero() -> f32 {
        0.0
    }
    #[inline(always)]
    unsafe fn splat(x: *const f32) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { *x }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { *p }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: f32) {
        // SAFETY: the caller's promise.
        unsafe { *p = x }
    }
    #[inline(always)]
    unsafe fn fma(a: f32, b: f32, c: f32) -> f32 {
        libm::fmaf(a, b, c)
    }
    #[inline(always)]
    unsafe fn add(a: f32, b: f32) -> f32 {
        a + b
    }
}

pub(super) unsafe fn rows(
    count: usize,
    k: usize,
    a: *const f32,
    row: usize,
    col: usize,
    panel: *const f32,
    c: *mut f32,
    stride: usize,
    add: bool,
) {
    // SAFETY: the caller's promise.
    unsafe { rows!(count, Scalar, 4, [4 3 2 1], (k, a, row, col, panel, c, stride, add)) }
}
