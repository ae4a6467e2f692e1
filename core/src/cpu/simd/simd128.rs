//! WebAssembly simd128: a vector of 16 numbers is four registers.
#![allow(unsafe_code)]

use super::Simd;
use core::arch::wasm32::*;
use half::f16;

/// simd128: four registers.
pub(crate) struct Simd128;

/// Four halves, sign-extended to 32 bits each, as floats.
#[inline(always)]
fn widen(x: v128) -> v128 {
    // As in `float16.rs`: 2^112 adjusts the bias, and the largest exponent is NaN's.
    let moved = v128_and(i32x4_shl(x, 13), u32x4_splat(0x8fff_e000));
    let nan = i32x4_eq(v128_and(x, u32x4_splat(0x7c00)), u32x4_splat(0x7c00));
    v128_or(f32x4_mul(moved, f32x4_splat(f32::from_bits((127 + 112) << 23))), nan)
}

impl Simd for Simd128 {
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
    unsafe fn load_f8<const MANTISSA: u32>(p: *const u8) -> Self::F {
        // SAFETY: the caller has 16 bytes at `p`.
        unsafe {
            let x = v128_load(p.cast());
            let (low, high) = (i16x8_extend_low_i8x16(x), i16x8_extend_high_i8x16(x));
            let words = [
                i32x4_extend_low_i16x8(low),
                i32x4_extend_high_i16x8(low),
                i32x4_extend_low_i16x8(high),
                i32x4_extend_high_i16x8(high),
            ];
            // As `Float8::load`.
            let (bias, nan) = if MANTISSA == 3 { (7, i32x4_splat(0x7f)) } else { (15, i32x4_splat(0x7c)) };
            let scale = f32x4_splat(f32::from_bits((254 - bias) << 23));
            words.map(|word| {
                let magnitude = u32x4_shl(v128_and(word, i32x4_splat(0x7f)), 23 - MANTISSA);
                let sign = v128_and(word, i32x4_splat(i32::MIN));
                let nan = i32x4_eq(v128_and(word, nan), nan);
                v128_or(f32x4_mul(magnitude, scale), v128_or(sign, nan))
            })
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
    unsafe fn pairs_of_halves(p: *const u8) -> Self::Pairs {
        // SAFETY: the caller has 16 bytes at `p`.
        let bytes = unsafe { v128_load(p.cast()) };
        // Each byte in the upper half of both numbers of a pair.
        macro_rules! spread {
            ($a:literal, $b:literal, $c:literal, $d:literal) => {
                i8x16_shuffle::<0, $a, 0, $a, 0, $b, 0, $b, 0, $c, 0, $c, 0, $d, 0, $d>(i8x16_splat(0), bytes)
            };
        }
        let twice = [
            spread!(16, 17, 18, 19),
            spread!(20, 21, 22, 23),
            spread!(24, 25, 26, 27),
            spread!(28, 29, 30, 31),
        ];
        // The first of each pair moves its lower half up; then both have 4 bits with a sign at the top.
        each!(i of 4, twice[0], i16x8_shr(i16x8_mul(twice[i], i32x4_splat(0x0001_0010)), 12))
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
