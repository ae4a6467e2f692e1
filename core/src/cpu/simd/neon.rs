//! NEON: a vector of 16 numbers is four registers.
#![allow(unsafe_code)]

use super::Simd;
use core::arch::aarch64::*;
use half::f16;

/// Widens the lower or, with "2", the upper four halves of a register. The intrinsics are not stable.
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

/// NEON: four registers.
pub(crate) struct Neon;

impl Simd for Neon {
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
    unsafe fn load_f8<const MANTISSA: u32>(p: *const u8) -> Self::F {
        // SAFETY: the caller has NEON and 16 bytes at `p`.
        unsafe {
            let x = vld1q_s8(p.cast());
            let halves = [vshll_n_s8::<7>(vget_low_s8(x)), vshll_high_n_s8::<7>(x)];
            // With 3 bits of mantissa, f16 of the numbers divided by 256, in which the sign stands twice.
            let [a, b] = halves.map(|half| match MANTISSA {
                3 => {
                    let half = vandq_s16(half, vdupq_n_s16(!0x4000));
                    let nan = vceqq_s16(vandq_s16(half, vdupq_n_s16(0x7fff)), vdupq_n_s16(0x3f80));
                    vorrq_s16(half, vreinterpretq_s16_u16(nan))
                }
                _ => vshlq_n_s16::<1>(half),
            });
            let floats = [
                widen!("fcvtl", "4h", a),
                widen!("fcvtl2", "8h", a),
                widen!("fcvtl", "4h", b),
                widen!("fcvtl2", "8h", b),
            ];
            if MANTISSA == 3 { Self::mul(floats, Self::splat(256.0)) } else { floats }
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
    /// The first elements of pairs 0..8 and 8..16, then the second elements.
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
    unsafe fn pairs_of_halves(p: *const u8) -> Self::Pairs {
        // SAFETY: the caller has NEON and 16 bytes at `p`.
        unsafe {
            let bytes = vld1q_s8(p.cast());
            let (first, second) = (vshrq_n_s8::<4>(vshlq_n_s8::<4>(bytes)), vshrq_n_s8::<4>(bytes));
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
