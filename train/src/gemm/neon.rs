//! NEON.
#![allow(unsafe_code)]

use core::arch::aarch64::*;

use super::kernel::{Vector, rows};

struct Neon;

// SAFETY of all: the caller's promise; NEON is part of the base architecture.
impl Vector for Neon {
    const LANES: usize = 4;
    type V = float32x4_t;

    #[inline(always)]
    unsafe fn zero() -> float32x4_t {
        // SAFETY: as above.
        unsafe { vdupq_n_f32(0.0) }
    }
    #[inline(always)]
    unsafe fn splat(x: *const f32) -> float32x4_t {
        // SAFETY: as above.
        unsafe { vld1q_dup_f32(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> float32x4_t {
        // SAFETY: as above.
        unsafe { vld1q_f32(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: float32x4_t) {
        // SAFETY: as above.
        unsafe { vst1q_f32(p, x) }
    }
    #[inline(always)]
    unsafe fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        // SAFETY: as above.
        unsafe { vfmaq_f32(c, a, b) }
    }
    #[inline(always)]
    unsafe fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: as above.
        unsafe { vaddq_f32(a, b) }
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
    unsafe { rows!(count, Neon, 2, [8 7 6 5 4 3 2 1], (k, a, row, col, panel, c, stride, add)) }
}
