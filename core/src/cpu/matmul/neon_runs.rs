//! Runs of 32 weights in NEON: two vectors, as signed bytes.
#![allow(unsafe_code)]

use core::arch::aarch64::*;

use super::args::{Kernel, MatmulArgs};
use super::neon::{ROWS, TOKENS, fours};
use super::run_format::RunFormat;
use super::run_kernel::{self, Products, RunIsa, RunKernels};
use crate::cpu::parallel::OutputRows;
use crate::quant::f16_at;

/// 32 activations.
#[derive(Clone, Copy)]
pub(super) struct RunActs {
    q: [int8x16_t; 2],
    factor: int32x4_t,
    /// Minus the products of the zero point: the initial value of the lanes.
    start: [int32x4_t; 2],
}

/// With `sdot` if `DOT` is set.
pub(super) struct Runs<const DOT: bool>;

impl<const DOT: bool> Products for Runs<DOT> {
    type Codes = [int8x16_t; 2];
    type Acts = RunActs;
    type Floats = [float32x4_t; 2];

    #[inline(always)]
    unsafe fn acts<const SIGNED: bool>(q: *const i8, factor: i32, zero: i8) -> RunActs {
        // SAFETY: as for this function.
        unsafe {
            let (q, factor) = ([vld1q_s8(q), vld1q_s8(q.add(16))], vdupq_n_s32(factor));
            let off = vmulq_n_s32(factor, -i32::from(zero));
            let start = [
                vmulq_s32(vpaddlq_s16(vpaddlq_s8(q[0])), off),
                vmulq_s32(vpaddlq_s16(vpaddlq_s8(q[1])), off),
            ];
            RunActs { q, factor, start }
        }
    }

    #[inline(always)]
    unsafe fn sums(acts: RunActs) -> [float32x4_t; 2] {
        // SAFETY: the caller has NEON.
        acts.q.map(|q| unsafe { vcvtq_f32_s32(vmulq_s32(vpaddlq_s16(vpaddlq_s8(q)), acts.factor)) })
    }

    #[inline(always)]
    unsafe fn dot<const SIGNED: bool>(w: [int8x16_t; 2], acts: RunActs) -> [float32x4_t; 2] {
        // SAFETY: the caller has NEON, and `sdot` if DOT is set.
        unsafe {
            let four = [fours::<DOT>(w[0], acts.q[0]), fours::<DOT>(w[1], acts.q[1])];
            if SIGNED {
                four.map(|n| vcvtq_f32_s32(vmulq_s32(n, acts.factor)))
            } else {
                let n = |h: usize| vmlaq_s32(acts.start[h], four[h], acts.factor);
                [vcvtq_f32_s32(n(0)), vcvtq_f32_s32(n(1))]
            }
        }
    }

    #[inline(always)]
    unsafe fn add(sum: [float32x4_t; 2], a: [float32x4_t; 2], b: [float32x4_t; 2]) -> [float32x4_t; 2] {
        // SAFETY: the caller has NEON.
        unsafe { [vaddq_f32(sum[0], vmulq_f32(a[0], b[0])), vaddq_f32(sum[1], vmulq_f32(a[1], b[1]))] }
    }
}

impl<const DOT: bool> RunIsa for Runs<DOT> {
    type Wide = Runs<DOT>;
    type Bytes = [uint8x16_t; 2];

    #[inline(always)]
    unsafe fn load(p: *const u8) -> [uint8x16_t; 2] {
        // SAFETY: as for this function.
        unsafe { [vld1q_u8(p), vld1q_u8(p.add(16))] }
    }

    #[inline(always)]
    unsafe fn nibbles(p: *const u8) -> [uint8x16_t; 2] {
        // SAFETY: as for this function.
        unsafe {
            let bytes = vld1q_u8(p);
            [vandq_u8(bytes, vdupq_n_u8(15)), vshrq_n_u8::<4>(bytes)]
        }
    }

    #[inline(always)]
    unsafe fn field(x: [uint8x16_t; 2], shift: usize, mask: u8) -> [uint8x16_t; 2] {
        // SAFETY: the caller has NEON.
        x.map(|x| unsafe { vandq_u8(vshlq_u8(x, vdupq_n_s8(-(shift as i8))), vdupq_n_u8(mask)) })
    }

    #[inline(always)]
    unsafe fn shl(x: [uint8x16_t; 2], shift: usize) -> [uint8x16_t; 2] {
        // SAFETY: the caller has NEON.
        x.map(|x| unsafe { vshlq_u8(x, vdupq_n_s8(shift as i8)) })
    }

    #[inline(always)]
    unsafe fn or(a: [uint8x16_t; 2], b: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
        // SAFETY: the caller has NEON.
        unsafe { [vorrq_u8(a[0], b[0]), vorrq_u8(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn bits(bits: u32, value: u8) -> [uint8x16_t; 2] {
        // SAFETY: the caller has NEON.
        [bits as u16, (bits >> 16) as u16].map(|bits| unsafe {
            let [low, high] = bits.to_le_bytes();
            let bytes = vcombine_u8(vdup_n_u8(low), vdup_n_u8(high));
            let bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
            vandq_u8(vtstq_u8(bytes, bit), vdupq_n_u8(value))
        })
    }

    #[inline(always)]
    unsafe fn look_up(table: &[i8; 16], x: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
        // SAFETY: the caller has NEON.
        unsafe {
            let table = vreinterpretq_u8_s8(vld1q_s8(table.as_ptr()));
            [vqtbl1q_u8(table, x[0]), vqtbl1q_u8(table, x[1])]
        }
    }

    #[inline(always)]
    unsafe fn swap_middle(x: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
        // SAFETY: the caller has NEON.
        unsafe {
            let [a, b] = x.map(|x| vreinterpretq_u64_u8(x));
            [vreinterpretq_u8_u64(vzip1q_u64(a, b)), vreinterpretq_u8_u64(vzip2q_u64(a, b))]
        }
    }

    #[inline(always)]
    unsafe fn f16(p: *const u8) -> f32 {
        // SAFETY: as for this function.
        f16_at(unsafe { core::slice::from_raw_parts(p, 2) }, 0)
    }

    #[inline(always)]
    unsafe fn codes<const SIGNED: bool>(x: [uint8x16_t; 2]) -> [int8x16_t; 2] {
        // SAFETY: the caller has NEON.
        x.map(|x| unsafe { vreinterpretq_s8_u8(x) })
    }

    #[inline(always)]
    unsafe fn lanes(a: f32, b: f32) -> [float32x4_t; 2] {
        // SAFETY: the caller has NEON.
        unsafe { [vdupq_n_f32(a), vdupq_n_f32(b)] }
    }

    #[inline(always)]
    unsafe fn store(sum: [float32x4_t; 2]) -> [f32; 8] {
        let mut lanes = [0.0; 8];
        // SAFETY: the caller has NEON; `lanes` has room.
        unsafe {
            vst1q_f32(lanes.as_mut_ptr(), sum[0]);
            vst1q_f32(lanes.as_mut_ptr().add(4), sum[1]);
        }
        lanes
    }

    #[inline(always)]
    fn prefetch(_: *const u8, _: usize) {
        // The intrinsic is not stable; these processors prefetch a single stream well.
    }
}

impl RunKernels for Runs<false> {
    fn kernel<F: RunFormat>() -> Kernel {
        #[target_feature(enable = "neon")]
        fn kernel<F: RunFormat>(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
            // SAFETY: the features of this function.
            unsafe { run_kernel::rows::<Runs<false>, F, ROWS, ROWS, TOKENS>(args, out) };
        }
        kernel::<F>
    }
}

impl RunKernels for Runs<true> {
    fn kernel<F: RunFormat>() -> Kernel {
        #[target_feature(enable = "neon,dotprod")]
        fn kernel<F: RunFormat>(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
            // SAFETY: the features of this function.
            unsafe { run_kernel::rows::<Runs<true>, F, ROWS, ROWS, TOKENS>(args, out) };
        }
        kernel::<F>
    }
}
