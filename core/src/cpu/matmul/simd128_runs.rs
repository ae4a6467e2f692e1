//! Runs of 32 weights in WebAssembly's 128-bit vectors: tiles of 4 rows, of which each has its own vectors: the even
//! bytes and the odd ones, widened to 16 bits. Their sums meet in one vector before they become floats.
#![allow(unsafe_code)]

use core::arch::wasm32::*;

use super::args::{Kernel, MatmulArgs};
use super::run_format::RunFormat;
use super::run_isa::{Rows, RunIsa};
use super::run_kernel::{self, RunKernels};
use super::simd128::{self, load, signed_words};
use crate::cpu::parallel::OutputRows;
use crate::quant::Format;

/// The kernel for int8 activations and row-major weights.
pub(super) fn integer(format: Format) -> Option<Kernel> {
    run_kernel::of::<Runs>(format).or_else(|| simd128::integer(format))
}

/// Rows of a tile.
const ROWS: usize = 4;

struct Runs;

/// The sums of four lanes each.
#[inline(always)]
fn sums(n: [v128; ROWS]) -> v128 {
    let two =
        |a: v128, b: v128| i32x4_add(i32x4_shuffle::<0, 4, 1, 5>(a, b), i32x4_shuffle::<2, 6, 3, 7>(a, b));
    let (a, b) = (two(n[0], n[1]), two(n[2], n[3]));
    i32x4_add(i64x2_shuffle::<0, 2>(a, b), i64x2_shuffle::<1, 3>(a, b))
}

impl RunIsa<ROWS> for Runs {
    /// `(rows, bytes / 16)`
    type Bytes = [[v128; 2]; ROWS];
    /// For each sixteen weights, the even ones and the odd ones.
    type Codes = [[[v128; 2]; 2]; ROWS];
    type Words = v128;
    type Floats = v128;

    #[inline(always)]
    unsafe fn load(rows: Rows) -> Self::Bytes {
        // SAFETY: as for this function.
        core::array::from_fn(|r| unsafe { [load(rows.row(r)), load(rows.row(r).add(16))] })
    }

    #[inline(always)]
    unsafe fn nibbles(rows: Rows) -> Self::Bytes {
        core::array::from_fn(|r| {
            // SAFETY: as for this function.
            let bytes = unsafe { load(rows.row(r)) };
            [v128_and(bytes, u8x16_splat(15)), u8x16_shr(bytes, 4)]
        })
    }

    #[inline(always)]
    unsafe fn words(rows: Rows) -> [v128; 4] {
        // SAFETY: as for this function.
        let [a, b, c, d] = core::array::from_fn(|r| unsafe { load(rows.row(r)) });
        let low = |a, b| i32x4_shuffle::<0, 4, 1, 5>(a, b);
        let high = |a, b| i32x4_shuffle::<2, 6, 3, 7>(a, b);
        let both = |a, b| [i64x2_shuffle::<0, 2>(a, b), i64x2_shuffle::<1, 3>(a, b)];
        let ([first, second], [third, fourth]) = (both(low(a, b), low(c, d)), both(high(a, b), high(c, d)));
        [first, second, third, fourth]
    }

    #[inline(always)]
    unsafe fn to_words(x: &[u32; ROWS]) -> v128 {
        u32x4(x[0], x[1], x[2], x[3])
    }

    #[inline(always)]
    unsafe fn word_field(x: v128, shift: usize, mask: u32) -> v128 {
        v128_and(u32x4_shr(x, shift as u32), u32x4_splat(mask))
    }

    #[inline(always)]
    unsafe fn join(a: v128, b: v128, shift: usize) -> v128 {
        v128_or(a, i32x4_shl(b, shift as u32))
    }

    #[inline(always)]
    unsafe fn offset(x: v128, n: i32) -> v128 {
        i32x4_add(x, i32x4_splat(n))
    }

    #[inline(always)]
    unsafe fn byte(x: v128, at: usize, zero: i32) -> v128 {
        let byte = i32x4_shr(i32x4_shl(x, 24 - 8 * at as u32), 24);
        f32x4_convert_i32x4(i32x4_sub(byte, i32x4_splat(zero)))
    }

    #[inline(always)]
    unsafe fn f16(x: v128) -> v128 {
        let magnitude = i32x4_shl(v128_and(x, u32x4_splat(0x7fff)), 13);
        // The exponent is rebased from 15 to 127.
        let number = f32x4_mul(magnitude, u32x4_splat((112 + 127) << 23));
        let infinite = v128_and(u32x4_ge(magnitude, u32x4_splat(0x1f << 23)), u32x4_splat(0xff << 23));
        let sign = i32x4_shl(v128_and(x, u32x4_splat(0x8000)), 16);
        v128_or(v128_or(number, infinite), sign)
    }

    #[inline(always)]
    unsafe fn f32(x: v128) -> v128 {
        x
    }

    #[inline(always)]
    unsafe fn field(x: Self::Bytes, shift: usize, mask: u8) -> Self::Bytes {
        x.map(|x| x.map(|x| v128_and(u16x8_shr(x, shift as u32), u8x16_splat(mask))))
    }

    #[inline(always)]
    unsafe fn shl(x: Self::Bytes, shift: usize) -> Self::Bytes {
        x.map(|x| x.map(|x| i16x8_shl(x, shift as u32)))
    }

    #[inline(always)]
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        core::array::from_fn(|r| [v128_or(a[r][0], b[r][0]), v128_or(a[r][1], b[r][1])])
    }

    #[inline(always)]
    unsafe fn bits(bits: v128, value: u8) -> Self::Bytes {
        let bit = i64x2_splat(0x8040_2010_0804_0201u64 as i64);
        let half = |spread: v128| {
            let bits = v128_and(i8x16_swizzle(bits, spread), bit);
            v128_and(i8x16_eq(bits, bit), u8x16_splat(value))
        };
        let eight = |a: usize| a as i64 * 0x0101_0101_0101_0101;
        core::array::from_fn(|r| [0, 2].map(|at| half(i64x2(eight(4 * r + at), eight(4 * r + at + 1)))))
    }

    #[inline(always)]
    unsafe fn look_up(table: &[i8; 16], x: Self::Bytes) -> Self::Bytes {
        // SAFETY: the table has 16 bytes.
        let table = unsafe { load(table.as_ptr().cast()) };
        x.map(|x| x.map(|x| i8x16_swizzle(table, x)))
    }

    #[inline(always)]
    unsafe fn swap_middle(x: Self::Bytes) -> Self::Bytes {
        x.map(|x| [i64x2_shuffle::<0, 2>(x[0], x[1]), i64x2_shuffle::<1, 3>(x[0], x[1])])
    }

    #[inline(always)]
    unsafe fn codes(x: Self::Bytes, signed: bool) -> Self::Codes {
        let wide = |x| {
            if signed { signed_words(x) } else { [v128_and(x, u16x8_splat(0xff)), u16x8_shr(x, 8)] }
        };
        x.map(|x| x.map(wide))
    }

    #[inline(always)]
    unsafe fn dot(w: &Self::Codes, half: Option<usize>, q: *const i8, start: i32, _: Option<u8>) -> v128 {
        let four = |w: [v128; 2], q: [v128; 2]| {
            // Two products of at most 128 * 127 fit 16 bits.
            let pairs = i16x8_add(i16x8_mul(w[0], q[0]), i16x8_mul(w[1], q[1]));
            i32x4_extadd_pairwise_i16x8(pairs)
        };
        // SAFETY: as for this function.
        let acts = |h: usize| unsafe { signed_words(load(q.add(16 * h).cast())) };
        let first = acts(0);
        let n = match half {
            Some(half) => core::array::from_fn(|r| four(w[r][half], first)),
            None => {
                let second = acts(1);
                core::array::from_fn(|r| i32x4_add(four(w[r][0], first), four(w[r][1], second)))
            }
        };
        f32x4_convert_i32x4(i32x4_add(sums(n), i32x4_splat(start)))
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> v128 {
        f32x4_splat(x)
    }

    #[inline(always)]
    unsafe fn mul(a: v128, b: v128) -> v128 {
        f32x4_mul(a, b)
    }

    #[inline(always)]
    unsafe fn add(sum: v128, a: v128, b: v128) -> v128 {
        f32x4_add(sum, f32x4_mul(a, b))
    }

    #[inline(always)]
    unsafe fn store(sum: v128) -> [f32; ROWS] {
        let mut lanes = [0.0; ROWS];
        // SAFETY: `lanes` has room.
        unsafe { v128_store(lanes.as_mut_ptr().cast(), sum) };
        lanes
    }

    #[inline(always)]
    fn prefetch(_: *const u8, _: usize) {}
}

impl RunKernels for Runs {
    fn kernel<F: RunFormat>() -> Kernel {
        // SAFETY: this file is compiled only where simd128 is.
        |args: &MatmulArgs<'_>, out: &mut OutputRows<'_>| unsafe {
            run_kernel::rows_compact::<Runs, F, ROWS>(args, out);
        }
    }
}
