//! AVX-512, and AVX2 with FMA.
#![allow(unsafe_code)]

use core::arch::x86_64::*;

use super::kernel::{Vector, rows};

struct Avx512;

// SAFETY of all: the caller's promises, and it has the instruction set.
impl Vector for Avx512 {
    const LANES: usize = 16;
    type V = __m512;

    #[inline(always)]
    unsafe fn zero() -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn splat(x: *const f32) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_set1_ps(*x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: __m512) {
        // SAFETY: as above.
        unsafe { _mm512_storeu_ps(p, x) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_add_ps(a, b) }
    }
}

struct Avx2;

// SAFETY of all: as above.
impl Vector for Avx2 {
    const LANES: usize = 8;
    type V = __m256;

    #[inline(always)]
    unsafe fn zero() -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn splat(x: *const f32) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_set1_ps(*x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: __m256) {
        // SAFETY: as above.
        unsafe { _mm256_storeu_ps(p, x) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_add_ps(a, b) }
    }
}

#[target_feature(enable = "avx512f")]
pub(super) unsafe fn avx512(
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
    unsafe {
        rows!(count, Avx512, 2, [14 13 12 11 10 9 8 7 6 5 4 3 2 1], (k, a, row, col, panel, c, stride, add));
    }
}

#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn avx2(
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
    unsafe { rows!(count, Avx2, 2, [6 5 4 3 2 1], (k, a, row, col, panel, c, stride, add)) }
}
