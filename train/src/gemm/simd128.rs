//! WebAssembly, without a fused multiply-add.
#![allow(unsafe_code)]

use core::arch::wasm32::*;

use super::kernel::{Vector, rows};

struct Simd128;

impl Vector for Simd128 {
    const LANES: usize = 4;
    type V = v128;

    #[inline(always)]
    unsafe fn zero() -> v128 {
        f32x4_splat(0.0)
    }
    #[inline(always)]
    unsafe fn splat(x: *const f32) -> v128 {
        // SAFETY: the caller's promise.
        unsafe { v128_load32_splat(x.cast()) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> v128 {
        // SAFETY: the caller's promise.
        unsafe { v128_load(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: v128) {
        // SAFETY: the caller's promise.
        unsafe { v128_store(p.cast(), x) }
    }
    #[inline(always)]
    unsafe fn fma(a: v128, b: v128, c: v128) -> v128 {
        f32x4_add(c, f32x4_mul(a, b))
    }
    #[inline(always)]
    unsafe fn add(a: v128, b: v128) -> v128 {
        f32x4_add(a, b)
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
    unsafe { rows!(count, Simd128, 2, [4 3 2 1], (k, a, row, col, panel, c, stride, add)) }
}
