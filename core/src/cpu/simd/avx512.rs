//! AVX-512: a vector of 16 numbers is one register.
#![allow(unsafe_code)]

use core::arch::x86_64::*;

use half::f16;

use super::avx2::{SPREAD, f16_bits, prefetch};
use super::{LANES, Simd, SimdOp};

/// In assembly because the compiler splits the intrinsic into two instructions.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
pub(crate) fn dpwssd(mut n: __m512i, a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: reads and writes registers only.
    unsafe {
        core::arch::asm!(
            "vpdpwssd {n}, {a}, {b}",
            n = inout(zmm_reg) n, a = in(zmm_reg) a, b = in(zmm_reg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    n
}

/// [`dpwssd`] with all lanes of `b` the integer at `p`.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn dpwssd_all(mut n: __m512i, a: __m512i, p: *const i32) -> __m512i {
    // SAFETY: reads registers and, as the caller allows, the integer.
    unsafe {
        core::arch::asm!(
            "vpdpwssd {n}, {a}, dword ptr [{p}]{{1to16}}",
            n = inout(zmm_reg) n, a = in(zmm_reg) a, p = in(reg) p,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    n
}

/// [`dpwssd`] with `b` at `p`.
///
/// Safety: 64 readable bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
pub(crate) unsafe fn dpwssd_at(mut n: __m512i, a: __m512i, p: *const __m512i) -> __m512i {
    // SAFETY: reads registers and, as the caller allows, the vector.
    unsafe {
        core::arch::asm!(
            "vpdpwssd {n}, {a}, zmmword ptr [{p}]",
            n = inout(zmm_reg) n, a = in(zmm_reg) a, p = in(reg) p,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    n
}

/// AVX-512 with VNNI: one register.
pub(crate) struct Avx512;

impl Simd for Avx512 {
    const AVX512: bool = true;

    type F = __m512;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        // SAFETY: the caller has AVX-512.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        // SAFETY: the caller has AVX-512 and 16 floats at `p`.
        unsafe { _mm512_loadu_ps(p) }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self::F {
        const { assert!(LANES == 16) };
        // SAFETY: the caller has AVX-512 and 16 halves at `p`.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }

    #[inline(always)]
    unsafe fn load_f8<const MANTISSA: u32>(p: *const u8) -> Self::F {
        // SAFETY: the caller has AVX-512, which AVX2 is a part of, and 16 bytes at `p`.
        unsafe {
            let floats = _mm512_cvtph_ps(f16_bits::<MANTISSA>(_mm_loadu_si128(p.cast())));
            if MANTISSA == 3 { Self::mul(floats, Self::splat(256.0)) } else { floats }
        }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, x: Self::F) {
        // SAFETY: the caller has AVX-512 and 16 floats at `p`.
        unsafe { _mm512_storeu_ps(p, x) }
    }

    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: the caller has AVX-512.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: the caller has AVX-512.
        unsafe { _mm512_mul_ps(a, b) }
    }

    type I = __m512i;
    type Pairs = __m512i;

    #[inline(always)]
    unsafe fn zero() -> Self::I {
        // SAFETY: the caller has AVX-512.
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    unsafe fn pairs(p: *const i8) -> Self::Pairs {
        // SAFETY: the caller has AVX-512 and 32 bytes at `p`.
        unsafe { _mm512_cvtepi8_epi16(_mm256_loadu_si256(p.cast())) }
    }

    #[inline(always)]
    unsafe fn pairs_of_halves(p: *const u8) -> Self::Pairs {
        // SAFETY: the caller has AVX-512 and 16 bytes at `p`.
        unsafe {
            let bytes = _mm512_broadcast_i32x4(_mm_loadu_si128(p.cast()));
            let twice = _mm512_shuffle_epi8(bytes, _mm512_loadu_si512(SPREAD.as_ptr().cast()));
            // The first of each pair moves its lower half up; then both have 4 bits with a sign at the top.
            _mm512_srai_epi16::<12>(_mm512_sllv_epi16(twice, _mm512_set1_epi32(4)))
        }
    }

    #[inline(always)]
    unsafe fn dot(n: Self::I, pairs: Self::Pairs, with: i32) -> Self::I {
        // SAFETY: the caller has AVX-512 with VNNI.
        unsafe { dpwssd(n, pairs, _mm512_set1_epi32(with)) }
    }

    #[inline(always)]
    unsafe fn dot_at(n: Self::I, pairs: Self::Pairs, with: *const i32) -> Self::I {
        // SAFETY: the caller has AVX-512 with VNNI, and the integer.
        unsafe { dpwssd_all(n, pairs, with) }
    }

    #[inline(always)]
    unsafe fn add_integers(a: Self::I, b: Self::I) -> Self::I {
        // SAFETY: the caller has AVX-512.
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn to_float(n: Self::I) -> Self::F {
        // SAFETY: the caller has AVX-512.
        unsafe { _mm512_cvtepi32_ps(n) }
    }

    #[inline(always)]
    unsafe fn largest(p: *const f32, n: usize) -> f32 {
        // SAFETY: the caller has AVX-512 and the floats.
        unsafe {
            let mut most = Self::zero();
            for at in (0..n).step_by(LANES) {
                let magnitude = _mm512_abs_ps(_mm512_loadu_ps(p.add(at)));
                most = _mm512_max_epu32(most, _mm512_castps_si512(magnitude));
            }
            f32::from_bits(_mm512_reduce_max_epu32(most))
        }
    }

    #[inline(always)]
    unsafe fn most(start: f32, p: *const f32, n: usize) -> f32 {
        // SAFETY: the caller has AVX-512 and the floats.
        unsafe {
            let mut most = Self::splat(start);
            for at in (0..n).step_by(LANES) {
                // The second operand, if one is NaN.
                most = _mm512_max_ps(_mm512_loadu_ps(p.add(at)), most);
            }
            _mm512_reduce_max_ps(most)
        }
    }

    const PREFETCHES: bool = true;

    #[inline(always)]
    fn prefetch(p: *const u8) {
        prefetch(p);
    }

    #[inline(always)]
    unsafe fn apart<W: SimdOp>(op: W) -> W::Output {
        #[inline(never)]
        #[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
        fn apart<W: SimdOp>(op: W) -> W::Output {
            op.run()
        }
        // SAFETY: the caller has the instruction set.
        unsafe { apart(op) }
    }
}
