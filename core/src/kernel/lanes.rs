//! Sixteen floats side by side, in each instruction set: what attention is written in, once for all.
//!
//! Products and sums are rounded one by one everywhere, as not every target has a fused multiply-add, so
//! that every instruction set gives the same bits.
#![allow(unsafe_code)]

use half::f16;

/// Numbers in a vector.
pub(crate) const LANES: usize = 16;

/// An instruction set's vectors.
///
/// Safety: all functions need the instruction set; pointers must be good for [`LANES`] numbers, at any
/// alignment.
pub(crate) trait Lanes {
    /// 16 floats.
    type F: Copy;

    unsafe fn splat(x: f32) -> Self::F;
    unsafe fn load(p: *const f32) -> Self::F;
    unsafe fn load_f16(p: *const f16) -> Self::F;
    unsafe fn store(p: *mut f32, x: Self::F);
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// Asks for the cache line at `p`, which may be any address.
    fn prefetch(_p: *const u8) {}
}

/// Plain Rust.
pub(crate) struct Scalar;

impl Lanes for Scalar {
    type F = [f32; LANES];

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        [x; LANES]
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<Self::F>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self::F {
        use crate::cache::KvElement;
        // SAFETY: the caller's promise.
        let x = unsafe { p.cast::<[f16; LANES]>().read_unaligned() };
        let mut y = [0.0; LANES];
        for i in 0..LANES {
            y[i] = x[i].load();
        }
        y
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, x: Self::F) {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<Self::F>().write_unaligned(x) }
    }

    #[inline(always)]
    unsafe fn add(mut a: Self::F, b: Self::F) -> Self::F {
        for i in 0..LANES {
            a[i] += b[i];
        }
        a
    }

    #[inline(always)]
    unsafe fn mul(mut a: Self::F, b: Self::F) -> Self::F {
        for i in 0..LANES {
            a[i] *= b[i];
        }
        a
    }
}

/// Repeats an operation for the registers that make up a vector.
#[allow(unused_macros, reason = "not every target has vectors of several registers")]
macro_rules! each {
    ($i:ident of $n:literal, $zero:expr, $value:expr) => {{
        let mut out = [$zero; $n];
        for $i in 0..$n {
            out[$i] = $value;
        }
        out
    }};
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{LANES, Lanes};
    use core::arch::x86_64::*;
    use half::f16;

    #[inline(always)]
    fn prefetch(p: *const u8) {
        // SAFETY: part of the baseline, and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }

    /// AVX2 and F16C: two registers.
    pub(crate) struct Avx2;

    // SAFETY of all below: the caller's promise.
    impl Lanes for Avx2 {
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

        #[inline(always)]
        fn prefetch(p: *const u8) {
            prefetch(p);
        }
    }

    /// AVX-512: one register.
    pub(crate) struct Avx512;

    impl Lanes for Avx512 {
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

        #[inline(always)]
        fn prefetch(p: *const u8) {
            prefetch(p);
        }
    }
}

#[cfg(target_arch = "aarch64")]
pub(crate) use arm::Neon;

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::Lanes;
    use core::arch::aarch64::*;
    use half::f16;

    /// NEON: four registers.
    pub(crate) struct Neon;

    impl Lanes for Neon {
        type F = [float32x4_t; 4];

        #[inline(always)]
        unsafe fn splat(x: f32) -> Self::F {
            // SAFETY: the caller has NEON.
            unsafe { [vdupq_n_f32(x); 4] }
        }

        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self::F {
            // SAFETY: the caller has NEON and 16 floats at `p`.
            unsafe { [vld1q_f32(p), vld1q_f32(p.add(4)), vld1q_f32(p.add(8)), vld1q_f32(p.add(12))] }
        }

        #[inline(always)]
        unsafe fn load_f16(p: *const f16) -> Self::F {
            /// The lower, and with "2" the upper four halves of a register. The intrinsics are not stable.
            macro_rules! widen {
                ($op:literal, $from:literal, $x:expr) => {{
                    let y: float32x4_t;
                    core::arch::asm!(
                        concat!($op, " {y:v}.4s, {x:v}.", $from),
                        y = out(vreg) y,
                        x = in(vreg) $x,
                        options(pure, nomem, nostack, preserves_flags)
                    );
                    y
                }};
            }
            // SAFETY: the caller has NEON, which has these instructions, and 16 halves at `p`.
            unsafe {
                let p = p.cast::<u16>();
                let (a, b) = (vld1q_u16(p), vld1q_u16(p.add(8)));
                [
                    widen!("fcvtl", "4h", a),
                    widen!("fcvtl2", "8h", a),
                    widen!("fcvtl", "4h", b),
                    widen!("fcvtl2", "8h", b),
                ]
            }
        }

        #[inline(always)]
        unsafe fn store(p: *mut f32, x: Self::F) {
            // SAFETY: the caller has NEON and 16 floats at `p`.
            unsafe {
                for i in 0..4 {
                    vst1q_f32(p.add(4 * i), x[i]);
                }
            }
        }

        #[inline(always)]
        unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
            // SAFETY: the caller has NEON.
            unsafe { each!(i of 4, a[0], vaddq_f32(a[i], b[i])) }
        }

        #[inline(always)]
        unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
            // SAFETY: the caller has NEON.
            unsafe { each!(i of 4, a[0], vmulq_f32(a[i], b[i])) }
        }
    }
}

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
pub(crate) use wasm::Simd128;

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod wasm {
    use super::Lanes;
    use core::arch::wasm32::*;
    use half::f16;

    /// simd128: four registers.
    pub(crate) struct Simd128;

    /// Four halves, sign-extended to 32 bits each, as floats.
    #[inline(always)]
    fn widen(x: v128) -> v128 {
        // As `f16::load` in `cache`: 2^112 moves the bias, and the largest exponent is NaN's.
        let moved = v128_and(i32x4_shl(x, 13), u32x4_splat(0x8fff_e000));
        let nan = i32x4_eq(v128_and(x, u32x4_splat(0x7c00)), u32x4_splat(0x7c00));
        v128_or(f32x4_mul(moved, f32x4_splat(f32::from_bits((127 + 112) << 23))), nan)
    }

    impl Lanes for Simd128 {
        type F = [v128; 4];

        #[inline(always)]
        unsafe fn splat(x: f32) -> Self::F {
            [f32x4_splat(x); 4]
        }

        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self::F {
            // SAFETY: the caller has 16 floats at `p`.
            unsafe {
                let p = p.cast::<v128>();
                each!(i of 4, f32x4_splat(0.0), v128_load(p.add(i)))
            }
        }

        #[inline(always)]
        unsafe fn load_f16(p: *const f16) -> Self::F {
            // SAFETY: the caller has 16 halves at `p`.
            unsafe {
                let p = p.cast::<i16>();
                each!(i of 4, f32x4_splat(0.0), widen(i32x4_load_extend_i16x4(p.add(4 * i))))
            }
        }

        #[inline(always)]
        unsafe fn store(p: *mut f32, x: Self::F) {
            // SAFETY: the caller has 16 floats at `p`.
            unsafe {
                for i in 0..4 {
                    v128_store(p.cast::<v128>().add(i), x[i]);
                }
            }
        }

        #[inline(always)]
        unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
            each!(i of 4, a[0], f32x4_add(a[i], b[i]))
        }

        #[inline(always)]
        unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
            each!(i of 4, a[0], f32x4_mul(a[i], b[i]))
        }
    }
}
