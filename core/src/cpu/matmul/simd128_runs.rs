//! Runs of 32 weights in WebAssembly's 128-bit vectors: two vectors of bytes, multiplied as the even bytes and
//! the odd ones, widened to 16 bits.
#![allow(unsafe_code)]

use core::arch::wasm32::*;

use super::args::{Kernel, MatmulArgs};
use super::run_format::RunFormat;
use super::run_kernel::{self, Products, RunIsa, RunKernels};
use super::simd128::{ROWS, load, signed_words};
use crate::cpu::parallel::OutputRows;
use crate::quant::f16_at;

/// 32 activations.
#[derive(Clone, Copy)]
pub(super) struct RunActs {
    /// For each sixteen, the even ones and the odd ones.
    q: [[v128; 2]; 2],
    factor: v128,
    /// Minus the products of the zero point: the initial value of the lanes.
    start: [v128; 2],
}

pub(super) struct Runs;

/// The sums of four products each, times the factor.
#[inline(always)]
fn four(w: [v128; 2], q: [v128; 2], factor: v128) -> v128 {
    // Two products of at most 128 * 127 fit 16 bits.
    let pairs = i16x8_add(i16x8_mul(w[0], q[0]), i16x8_mul(w[1], q[1]));
    i32x4_dot_i16x8(pairs, factor)
}

impl Products for Runs {
    /// For each sixteen weights, the even ones and the odd ones.
    type Codes = [[v128; 2]; 2];
    type Acts = RunActs;
    type Floats = [v128; 2];

    #[inline(always)]
    unsafe fn acts<const SIGNED: bool>(q: *const i8, factor: i32, zero: i8) -> RunActs {
        // SAFETY: as for this function.
        let q = unsafe { [load(q.cast()), load(q.add(16).cast())] }.map(signed_words);
        let factor = i16x8_splat(factor as i16);
        let minus_zero = [i16x8_splat(-i16::from(zero)); 2];
        RunActs { q, factor, start: q.map(|q| four(minus_zero, q, factor)) }
    }

    #[inline(always)]
    unsafe fn sums(acts: RunActs) -> [v128; 2] {
        let one = [i16x8_splat(1); 2];
        acts.q.map(|q| f32x4_convert_i32x4(four(one, q, acts.factor)))
    }

    #[inline(always)]
    unsafe fn dot<const SIGNED: bool>(w: [[v128; 2]; 2], acts: RunActs) -> [v128; 2] {
        [0, 1].map(|h| {
            let n = four(w[h], acts.q[h], acts.factor);
            f32x4_convert_i32x4(if SIGNED { n } else { i32x4_add(n, acts.start[h]) })
        })
    }

    #[inline(always)]
    unsafe fn add(sum: [v128; 2], a: [v128; 2], b: [v128; 2]) -> [v128; 2] {
        [0, 1].map(|h| f32x4_add(sum[h], f32x4_mul(a[h], b[h])))
    }
}

impl RunIsa for Runs {
    type Wide = Runs;
    type Bytes = [v128; 2];

    #[inline(always)]
    unsafe fn load(p: *const u8) -> [v128; 2] {
        // SAFETY: as for this function.
        unsafe { [load(p), load(p.add(16))] }
    }

    #[inline(always)]
    unsafe fn nibbles(p: *const u8) -> [v128; 2] {
        // SAFETY: as for this function.
        let bytes = unsafe { load(p) };
        [v128_and(bytes, u8x16_splat(15)), u8x16_shr(bytes, 4)]
    }

    #[inline(always)]
    unsafe fn field(x: [v128; 2], shift: usize, mask: u8) -> [v128; 2] {
        x.map(|x| v128_and(u16x8_shr(x, shift as u32), u8x16_splat(mask)))
    }

    #[inline(always)]
    unsafe fn shl(x: [v128; 2], shift: usize) -> [v128; 2] {
        x.map(|x| i16x8_shl(x, shift as u32))
    }

    #[inline(always)]
    unsafe fn or(a: [v128; 2], b: [v128; 2]) -> [v128; 2] {
        [v128_or(a[0], b[0]), v128_or(a[1], b[1])]
    }

    #[inline(always)]
    unsafe fn bits(bits: u32, value: u8) -> [v128; 2] {
        let bytes = u32x4_splat(bits);
        let bit = i64x2_splat(0x8040_2010_0804_0201u64 as i64);
        let half = |spread: v128| {
            let bits = v128_and(i8x16_swizzle(bytes, spread), bit);
            v128_and(i8x16_eq(bits, bit), u8x16_splat(value))
        };
        let eight = |a: i64| a * 0x0101_0101_0101_0101;
        [half(i64x2(0, eight(1))), half(i64x2(eight(2), eight(3)))]
    }

    #[inline(always)]
    unsafe fn look_up(table: &[i8; 16], x: [v128; 2]) -> [v128; 2] {
        // SAFETY: the table has 16 bytes.
        let table = unsafe { load(table.as_ptr().cast()) };
        x.map(|x| i8x16_swizzle(table, x))
    }

    #[inline(always)]
    unsafe fn swap_middle(x: [v128; 2]) -> [v128; 2] {
        [i64x2_shuffle::<0, 2>(x[0], x[1]), i64x2_shuffle::<1, 3>(x[0], x[1])]
    }

    #[inline(always)]
    unsafe fn f16(p: *const u8) -> f32 {
        // SAFETY: as for this function.
        f16_at(unsafe { core::slice::from_raw_parts(p, 2) }, 0)
    }

    #[inline(always)]
    unsafe fn codes<const SIGNED: bool>(x: [v128; 2]) -> [[v128; 2]; 2] {
        if SIGNED {
            x.map(signed_words)
        } else {
            x.map(|x| [v128_and(x, u16x8_splat(0xff)), u16x8_shr(x, 8)])
        }
    }

    #[inline(always)]
    unsafe fn lanes(a: f32, b: f32) -> [v128; 2] {
        [f32x4_splat(a), f32x4_splat(b)]
    }

    #[inline(always)]
    unsafe fn store(sum: [v128; 2]) -> [f32; 8] {
        let mut lanes = [0.0; 8];
        for (h, sum) in sum.into_iter().enumerate() {
            // SAFETY: `lanes` has room for 4 floats at each half.
            unsafe { v128_store(lanes.as_mut_ptr().add(4 * h).cast(), sum) };
        }
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
