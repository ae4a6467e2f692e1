//! AVX2: a vector of 16 numbers is two registers.
#![allow(unsafe_code)]

use core::arch::x86_64::*;

use half::f16;

use super::{Simd, SimdOp};

#[inline(always)]
pub(super) fn prefetch(p: *const u8) {
    // SAFETY: the instruction is part of the baseline and never faults.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
}

/// Shuffles byte `l` of 16 to the upper byte of both halves of 32-bit lane `l`, the lower ones being zero.
pub(super) const SPREAD: [u8; 64] = {
    let mut spread = [0x80; 64];
    let mut l = 0;
    while l < 16 {
        spread[4 * l + 1] = l as u8;
        spread[4 * l + 3] = l as u8;
        l += 1;
    }
    spread
};

/// The bits of f16 for floats of 8 bits: the same numbers, or with 3 bits of mantissa those divided by 256, which is the
/// difference between the biases of their exponents.
///
/// Safety: the processor has AVX2.
#[inline(always)]
pub(super) unsafe fn f16_bits<const MANTISSA: u32>(bytes: __m128i) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let wide = _mm256_cvtepi8_epi16(bytes);
        match MANTISSA {
            3 => {
                // The sign stands twice.
                let halves = _mm256_and_si256(_mm256_slli_epi16::<7>(wide), _mm256_set1_epi16(!0x4000));
                let magnitude = _mm256_and_si256(halves, _mm256_set1_epi16(0x7fff));
                _mm256_or_si256(halves, _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x3f80)))
            }
            _ => _mm256_slli_epi16::<8>(wide),
        }
    }
}

/// AVX2 and F16C: two registers.
pub(crate) struct Avx2;

// SAFETY of all below: the caller's promise.
impl Simd for Avx2 {
    type F = [__m256; 2];

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        // SAFETY: the caller has AVX2.
        unsafe { [_mm256_set1_ps(x); 2] }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        // SAFETY: the caller has AVX2 and 16 floats at `p`.
        unsafe { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self::F {
        // SAFETY: the caller has F16C and 16 halves at `p`.
        unsafe {
            let p = p.cast::<__m128i>();
            [_mm256_cvtph_ps(_mm_loadu_si128(p)), _mm256_cvtph_ps(_mm_loadu_si128(p.add(1)))]
        }
    }

    #[inline(always)]
    unsafe fn load_f8<const MANTISSA: u32>(p: *const u8) -> Self::F {
        // SAFETY: the caller has AVX2, F16C and 16 bytes at `p`.
        unsafe {
            let halves = f16_bits::<MANTISSA>(_mm_loadu_si128(p.cast()));
            let floats = [
                _mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
                _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(halves)),
            ];
            if MANTISSA == 3 { Self::mul(floats, Self::splat(256.0)) } else { floats }
        }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, x: Self::F) {
        // SAFETY: the caller has AVX2 and 16 floats at `p`.
        unsafe {
            _mm256_storeu_ps(p, x[0]);
            _mm256_storeu_ps(p.add(8), x[1]);
        }
    }

    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: the caller has AVX2.
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: the caller has AVX2.
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }

    type I = [__m256i; 2];
    type Pairs = [__m256i; 2];

    #[inline(always)]
    unsafe fn zero() -> Self::I {
        // SAFETY: the caller has AVX2.
        unsafe { [_mm256_setzero_si256(); 2] }
    }

    #[inline(always)]
    unsafe fn pairs(p: *const i8) -> Self::Pairs {
        // SAFETY: the caller has AVX2 and 32 bytes at `p`.
        unsafe {
            let p = p.cast::<__m128i>();
            [_mm256_cvtepi8_epi16(_mm_loadu_si128(p)), _mm256_cvtepi8_epi16(_mm_loadu_si128(p.add(1)))]
        }
    }

    #[inline(always)]
    unsafe fn pairs_of_halves(p: *const u8) -> Self::Pairs {
        // SAFETY: the caller has AVX2 and 16 bytes at `p`.
        unsafe {
            let bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128(p.cast()));
            let pairs = |spread: *const u8| {
                let twice = _mm256_shuffle_epi8(bytes, _mm256_loadu_si256(spread.cast()));
                // The first of each pair moves its lower half up; then both have 4 bits with a sign at the top.
                _mm256_srai_epi16::<12>(_mm256_mullo_epi16(twice, _mm256_set1_epi32(0x0001_0010)))
            };
            [pairs(SPREAD.as_ptr()), pairs(SPREAD.as_ptr().add(32))]
        }
    }

    #[inline(always)]
    unsafe fn dot(n: Self::I, pairs: Self::Pairs, with: i32) -> Self::I {
        // SAFETY: the caller has AVX2.
        unsafe {
            let with = _mm256_set1_epi32(with);
            [
                _mm256_add_epi32(n[0], _mm256_madd_epi16(pairs[0], with)),
                _mm256_add_epi32(n[1], _mm256_madd_epi16(pairs[1], with)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn add_integers(a: Self::I, b: Self::I) -> Self::I {
        // SAFETY: the caller has AVX2.
        unsafe { [_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn to_float(n: Self::I) -> Self::F {
        // SAFETY: the caller has AVX2.
        unsafe { [_mm256_cvtepi32_ps(n[0]), _mm256_cvtepi32_ps(n[1])] }
    }

    #[inline(always)]
    unsafe fn most(start: f32, p: *const f32, n: usize) -> f32 {
        // SAFETY: the caller has AVX2 and the floats.
        unsafe {
            let mut most = _mm256_set1_ps(start);
            for at in (0..n).step_by(8) {
                // The second operand, if one is NaN.
                most = _mm256_max_ps(_mm256_loadu_ps(p.add(at)), most);
            }
            let most = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps::<1>(most));
            let most = _mm_max_ps(most, _mm_movehl_ps(most, most));
            _mm_cvtss_f32(_mm_max_ss(most, _mm_movehdup_ps(most)))
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
        #[target_feature(enable = "avx2,f16c")]
        fn apart<W: SimdOp>(op: W) -> W::Output {
            op.run()
        }
        // SAFETY: the caller has the instruction set.
        unsafe { apart(op) }
    }
}
