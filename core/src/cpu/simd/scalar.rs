//! Sixteen numbers in plain Rust: the reference that every instruction set matches.
#![allow(unsafe_code)]

use half::f16;

use super::{LANES, Simd};
use crate::cache::{Element, Float8};
use crate::float16;

/// Plain Rust. Functions that are called in several places are copied into them with the feature `unrolled`.
pub(crate) struct Scalar;

impl Simd for Scalar {
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

    #[cfg_attr(feature = "unrolled", inline(always))]
    unsafe fn load_f16(p: *const f16) -> Self::F {
        // SAFETY: the caller's promise.
        let x = unsafe { p.cast::<[f16; LANES]>().read_unaligned() };
        let mut y = [0.0; LANES];
        for i in 0..LANES {
            y[i] = float16::to_f32(x[i]);
        }
        y
    }

    #[inline(always)]
    unsafe fn load_f8<const MANTISSA: u32>(p: *const u8) -> Self::F {
        // SAFETY: the caller's promise.
        let x = unsafe { p.cast::<[u8; LANES]>().read_unaligned() };
        x.map(Float8::<MANTISSA>::load)
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, x: Self::F) {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<Self::F>().write_unaligned(x) }
    }

    #[cfg_attr(feature = "unrolled", inline(always))]
    unsafe fn add(mut a: Self::F, b: Self::F) -> Self::F {
        for i in 0..LANES {
            a[i] += b[i];
        }
        a
    }

    #[cfg_attr(feature = "unrolled", inline(always))]
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
    unsafe fn pairs_of_halves(p: *const u8) -> Self::Pairs {
        let mut pairs = [0; 2 * LANES];
        // SAFETY: the caller's promise.
        let bytes = unsafe { p.cast::<[u8; LANES]>().read_unaligned() };
        for (pair, byte) in pairs.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
            *pair = [(byte << 4) as i8 >> 4, byte as i8 >> 4];
        }
        pairs
    }

    #[cfg_attr(feature = "unrolled", inline(always))]
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

    #[cfg_attr(feature = "unrolled", inline(always))]
    unsafe fn to_float(n: Self::I) -> Self::F {
        n.map(|n| n as f32)
    }
}
