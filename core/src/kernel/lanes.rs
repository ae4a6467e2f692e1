//! Sixteen numbers side by side, in each instruction set: what attention is written in, once for all.
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

    /// 16 integers of 32 bits.
    type I: Copy;
    /// 16 pairs of integers of 16 bits, in an order of the instruction set's own.
    type Pairs: Copy;

    unsafe fn zero() -> Self::I;
    /// Integer `i` of pair `l` is at `p[2 l + i]`.
    unsafe fn pairs(p: *const i8) -> Self::Pairs;
    /// To each lane of `n`, adds the products of its pair and of `with`: the lower half with the first.
    unsafe fn dot(n: Self::I, pairs: Self::Pairs, with: i32) -> Self::I;
    /// [`Lanes::dot`] with what is at `with`.
    #[inline(always)]
    unsafe fn dot_at(n: Self::I, pairs: Self::Pairs, with: *const i32) -> Self::I {
        // SAFETY: the caller's promise.
        unsafe { Self::dot(n, pairs, *with) }
    }
    unsafe fn add_integers(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn to_float(n: Self::I) -> Self::F;

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

    type I = [i32; LANES];
    type Pairs = [i8; 2 * LANES];

    #[inline(always)]
    unsafe fn zero() -> Self::I {
        [0; LANES]
    }

    #[inline(always)]
    unsafe fn pairs(p: *const i8) -> Self::Pairs {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<Self::Pairs>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn dot(mut n: Self::I, pairs: Self::Pairs, with: i32) -> Self::I {
        let (first, second) = (i32::from(with as i16), with >> 16);
        for l in 0..LANES {
            n[l] += i32::from(pairs[2 * l]) * first + i32::from(pairs[2 * l + 1]) * second;
        }
        n
    }

    #[inline(always)]
    unsafe fn add_integers(mut a: Self::I, b: Self::I) -> Self::I {
        for l in 0..LANES {
            a[l] += b[l];
        }
        a
    }

    #[inline(always)]
    unsafe fn to_float(n: Self::I) -> Self::F {
        n.map(|n| n as f32)
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
        fn prefetch(p: *const u8) {
            prefetch(p);
        }
    }

    /// In assembly because the compiler takes the intrinsic apart into two instructions.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vnni")]
    fn dpwssd(mut n: __m512i, a: __m512i, b: __m512i) -> __m512i {
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

    /// AVX-512 with VNNI: one register.
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

        type I = [int32x4_t; 4];
        /// The first of pairs 0..8 and 8..16, then the second ones.
        type Pairs = [int16x8_t; 4];

        #[inline(always)]
        unsafe fn zero() -> Self::I {
            // SAFETY: the caller has NEON.
            unsafe { [vdupq_n_s32(0); 4] }
        }

        #[inline(always)]
        unsafe fn pairs(p: *const i8) -> Self::Pairs {
            // SAFETY: the caller has NEON and 32 bytes at `p`.
            unsafe {
                let int8x16x2_t(first, second) = vld2q_s8(p);
                [
                    vmovl_s8(vget_low_s8(first)),
                    vmovl_high_s8(first),
                    vmovl_s8(vget_low_s8(second)),
                    vmovl_high_s8(second),
                ]
            }
        }

        #[inline(always)]
        unsafe fn dot(mut n: Self::I, pairs: Self::Pairs, with: i32) -> Self::I {
            // SAFETY: the caller has NEON.
            unsafe {
                for (i, with) in [with as i16, (with >> 16) as i16].into_iter().enumerate() {
                    let with = vdupq_n_s16(with);
                    for half in 0..2 {
                        let p = pairs[2 * i + half];
                        n[2 * half] = vmlal_s16(n[2 * half], vget_low_s16(p), vget_low_s16(with));
                        n[2 * half + 1] = vmlal_high_s16(n[2 * half + 1], p, with);
                    }
                }
            }
            n
        }

        #[inline(always)]
        unsafe fn add_integers(a: Self::I, b: Self::I) -> Self::I {
            // SAFETY: the caller has NEON.
            unsafe { each!(i of 4, a[0], vaddq_s32(a[i], b[i])) }
        }

        #[inline(always)]
        unsafe fn to_float(n: Self::I) -> Self::F {
            // SAFETY: the caller has NEON.
            unsafe { each!(i of 4, vdupq_n_f32(0.0), vcvtq_f32_s32(n[i])) }
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

        type I = [v128; 4];
        type Pairs = [v128; 4];

        #[inline(always)]
        unsafe fn zero() -> Self::I {
            [i32x4_splat(0); 4]
        }

        #[inline(always)]
        unsafe fn pairs(p: *const i8) -> Self::Pairs {
            // SAFETY: the caller has 32 bytes at `p`.
            unsafe { each!(i of 4, i32x4_splat(0), i16x8_load_extend_i8x8(p.add(8 * i))) }
        }

        #[inline(always)]
        unsafe fn dot(n: Self::I, pairs: Self::Pairs, with: i32) -> Self::I {
            each!(i of 4, n[0], i32x4_add(n[i], i32x4_dot_i16x8(pairs[i], i32x4_splat(with))))
        }

        #[inline(always)]
        unsafe fn add_integers(a: Self::I, b: Self::I) -> Self::I {
            each!(i of 4, a[0], i32x4_add(a[i], b[i]))
        }

        #[inline(always)]
        unsafe fn to_float(n: Self::I) -> Self::F {
            each!(i of 4, n[0], f32x4_convert_i32x4(n[i]))
        }
    }
}
