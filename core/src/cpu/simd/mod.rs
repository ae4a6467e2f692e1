//! Vectors of sixteen numbers in each instruction set, which attention is written in.
//!
//! Products and sums are rounded separately everywhere, as not every target has a fused multiply-add, so that
//! every instruction set gives the same bits.
#![allow(unsafe_code)]

use half::f16;

use crate::magnitude::largest_bits;

/// Numbers in a vector.
pub(crate) const LANES: usize = 16;

/// An instruction set's vectors.
///
/// Safety: all functions need the instruction set; pointers must be valid for [`LANES`] numbers, at any
/// alignment.
pub(crate) trait Simd {
    /// Whether it is AVX-512 with VNNI.
    #[cfg(target_arch = "x86_64")]
    const AVX512: bool = false;

    /// 16 floats.
    type F: Copy;

    unsafe fn splat(x: f32) -> Self::F;
    unsafe fn load(p: *const f32) -> Self::F;
    unsafe fn load_f16(p: *const f16) -> Self::F;
    /// 16 floats of 8 bits, `MANTISSA` of them of mantissa: 3, or 2 like the upper halves of f16.
    unsafe fn load_f8<const MANTISSA: u32>(p: *const u8) -> Self::F;
    unsafe fn store(p: *mut f32, x: Self::F);
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;

    /// 16 integers of 32 bits.
    type I: Copy;
    /// 16 pairs of 16-bit integers, in an order that depends on the instruction set.
    type Pairs: Copy;

    unsafe fn zero() -> Self::I;
    /// Integer `i` of pair `l` is at `p[2 l + i]`.
    unsafe fn pairs(p: *const i8) -> Self::Pairs;
    /// Integer `i` of pair `l` is the lower (0) or upper (1) half of the byte at `p[l]`, with its sign.
    unsafe fn pairs_of_halves(p: *const u8) -> Self::Pairs;
    /// Adds the dot product of each lane's pair and `with` to `n`; the lower half of `with` belongs to the
    /// first element.
    unsafe fn dot(n: Self::I, pairs: Self::Pairs, with: i32) -> Self::I;
    /// [`Simd::dot`] with the integer at `with`.
    #[inline(always)]
    unsafe fn dot_at(n: Self::I, pairs: Self::Pairs, with: *const i32) -> Self::I {
        // SAFETY: the caller's promise.
        unsafe { Self::dot(n, pairs, *with) }
    }
    unsafe fn add_integers(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn to_float(n: Self::I) -> Self::F;

    /// The largest magnitude of `n` floats at `p`, a multiple of [`LANES`]; NaN if one is NaN.
    #[inline(always)]
    unsafe fn largest(p: *const f32, n: usize) -> f32 {
        // SAFETY: the caller's promise.
        f32::from_bits(largest_bits(unsafe { core::slice::from_raw_parts(p, n) }))
    }

    /// The largest of `start` and `n` floats at `p`, a multiple of [`LANES`]; NaN counts as the smallest.
    #[inline(always)]
    unsafe fn most(start: f32, p: *const f32, n: usize) -> f32 {
        let mut most = [start; LANES];
        for at in (0..n).step_by(LANES) {
            for l in 0..LANES {
                // SAFETY: the caller's promise.
                let x = unsafe { *p.add(at + l) };
                most[l] = if x > most[l] { x } else { most[l] };
            }
        }
        let mut all = start;
        for most in most {
            all = if most > all { most } else { all };
        }
        all
    }

    /// Whether [`Simd::prefetch`] does anything; to be overridden with it.
    const PREFETCHES: bool = false;

    /// Prefetches the cache line at `p`, which may be any address.
    fn prefetch(_p: *const u8) {}

    /// Runs `op` in a function of its own: compilers take much longer for one function with many loops than for several,
    /// and what formats have in common is compiled once.
    // For Helium LLVM 22 crashes on such functions.
    #[cfg_attr(not(feature = "helium"), inline(never))]
    #[cfg_attr(feature = "helium", inline(always))]
    unsafe fn apart<W: SimdOp>(op: W) -> W::Output {
        op.run()
    }
}

/// Repeats an operation for each register of a vector.
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
mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
mod dispatch;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod simd128;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
pub use dispatch::{SimdOp, dispatch};
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;
pub(crate) use scalar::Scalar;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
pub(crate) use simd128::Simd128;
