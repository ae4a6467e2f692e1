//! NEON, with the dot product instruction of ARMv8.2 where there is one.
//!
//! Sixteen weights per vector, as codes above a zero point of 1. `sdot` adds four products to a lane, which
//! are then multiplied by the factor of the activations; without it, products are widened to 16 bits and
//! added in pairs twice.
#![allow(unsafe_code)]

use core::arch::aarch64::*;
use core::marker::PhantomData;

use super::args::{Kernel, MatmulArgs};
use super::row_kernel::{RowKernel, rows};
use crate::cpu::activations::Q8Block;
use crate::cpu::parallel::OutputRows;
use crate::quant::{Format, f16_at};

/// The kernel for int8 activations; none for formats with at most 32 weights per scale.
pub(super) fn integer(format: Format) -> Option<Kernel> {
    Some(match format {
        Format::Q1_0 => plain::<Q1_0>,
        Format::Pq2_0 => plain::<Pq2_0>,
        Format::Tq2_0G128 => plain::<Tq2_0G128>,
        Format::Q2_0 => plain::<Q2_0>,
        Format::Tq2_0 => plain::<Tq2_0>,
        Format::Tq1_0 => plain::<Tq1_0>,
        Format::Ptq1_0 => plain::<Ptq1_0>,
        _ => return None,
    })
}

/// The same with `sdot`.
pub(super) fn integer_dotprod(format: Format) -> Option<Kernel> {
    Some(match format {
        Format::Q1_0 => dotprod::<Q1_0>,
        Format::Pq2_0 => dotprod::<Pq2_0>,
        Format::Tq2_0G128 => dotprod::<Tq2_0G128>,
        Format::Q2_0 => dotprod::<Q2_0>,
        Format::Tq2_0 => dotprod::<Tq2_0>,
        Format::Tq1_0 => dotprod::<Tq1_0>,
        Format::Ptq1_0 => dotprod::<Ptq1_0>,
        _ => return None,
    })
}

pub(super) const ROWS: usize = 4;
pub(super) const TOKENS: usize = 2;

#[target_feature(enable = "neon")]
fn plain<F: Packed>(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
    // SAFETY: the features of this function.
    unsafe { rows::<Neon<F, false>, ROWS, ROWS, TOKENS>(args, out) };
}

#[target_feature(enable = "neon,dotprod")]
fn dotprod<F: Packed>(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
    // SAFETY: the features of this function.
    unsafe { rows::<Neon<F, true>, ROWS, ROWS, TOKENS>(args, out) };
}

/// Unpacks a format's bytes to codes of zero point 1, at most 3.
trait Packed {
    const BYTES: usize;
    const PARTS: usize = 1;
    const VECTORS: usize;
    const STRIDED: bool;
    const SCALE: usize;
    /// The codes of step `part`; for blocks of 64 weights, the last four are not used.
    unsafe fn codes(block: *const u8, part: usize) -> [uint8x16_t; 8];
}

/// 64 sequential codes at `p`, in strided order.
#[inline(always)]
unsafe fn strided_codes(p: *const u8) -> [uint8x16_t; 4] {
    // SAFETY: the caller has NEON, and 16 bytes at `p`.
    unsafe {
        let (bytes, three) = (vld1q_u8(p), vdupq_n_u8(3));
        [
            vandq_u8(bytes, three),
            vandq_u8(vshrq_n_u8::<2>(bytes), three),
            vandq_u8(vshrq_n_u8::<4>(bytes), three),
            vshrq_n_u8::<6>(bytes),
        ]
    }
}

struct Q1_0;
impl Packed for Q1_0 {
    const BYTES: usize = 18;
    const VECTORS: usize = 2;
    const STRIDED: bool = false;
    const SCALE: usize = 0;

    #[inline(always)]
    unsafe fn codes(block: *const u8, _: usize) -> [uint8x16_t; 8] {
        // SAFETY: the caller has NEON, and a block at `block`.
        unsafe {
            let bits = vld1q_u8(block.add(2));
            let bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
            let first = vcombine_u8(vdup_n_u8(0), vdup_n_u8(1));
            let mut codes = [bits; 8];
            for v in 0..8 {
                let spread = vqtbl1q_u8(bits, vaddq_u8(first, vdupq_n_u8(2 * v as u8)));
                codes[v] = vandq_u8(vtstq_u8(spread, bit), vdupq_n_u8(2));
            }
            codes
        }
    }
}

struct Codes128<const SCALE_AT: usize, const CODES_AT: usize>;
type Pq2_0 = Codes128<0, 2>;
type Tq2_0G128 = Codes128<32, 0>;
impl<const SCALE_AT: usize, const CODES_AT: usize> Packed for Codes128<SCALE_AT, CODES_AT> {
    const BYTES: usize = 34;
    const VECTORS: usize = 2;
    const STRIDED: bool = true;
    const SCALE: usize = SCALE_AT;

    #[inline(always)]
    unsafe fn codes(block: *const u8, _: usize) -> [uint8x16_t; 8] {
        // SAFETY: the caller has NEON, and a block at `block`.
        unsafe {
            let ([a, b, c, d], [e, f, g, h]) =
                (strided_codes(block.add(CODES_AT)), strided_codes(block.add(CODES_AT + 16)));
            [a, b, c, d, e, f, g, h]
        }
    }
}

struct Q2_0;
impl Packed for Q2_0 {
    const BYTES: usize = 18;
    const VECTORS: usize = 1;
    const STRIDED: bool = true;
    const SCALE: usize = 0;

    #[inline(always)]
    unsafe fn codes(block: *const u8, _: usize) -> [uint8x16_t; 8] {
        // SAFETY: the caller has NEON, and a block at `block`.
        unsafe {
            let [a, b, c, d] = strided_codes(block.add(2));
            [a, b, c, d, a, b, c, d]
        }
    }
}

struct Tq2_0;
impl Packed for Tq2_0 {
    const BYTES: usize = 66;
    const PARTS: usize = 2;
    const VECTORS: usize = 2;
    const STRIDED: bool = false;
    const SCALE: usize = 64;

    #[inline(always)]
    unsafe fn codes(block: *const u8, part: usize) -> [uint8x16_t; 8] {
        // SAFETY: the caller has NEON, and a block at `block`.
        unsafe {
            let [a, c, e, g] = strided_codes(block.add(32 * part));
            let [b, d, f, h] = strided_codes(block.add(32 * part + 16));
            [a, b, c, d, e, f, g, h]
        }
    }
}

/// The base-3 digit that multiplying each byte by its power of 3 moves to the top.
#[inline(always)]
unsafe fn digits(bytes: uint8x16_t, power: uint8x16_t) -> uint8x16_t {
    // SAFETY: the caller has NEON.
    unsafe {
        let x = vmulq_u8(bytes, power);
        // (x * 3) >> 8 is the number of thresholds 86 and 171 that are at most x; a true comparison is -1.
        let minus = vaddq_u8(vcgeq_u8(x, vdupq_n_u8(86)), vcgeq_u8(x, vdupq_n_u8(171)));
        vsubq_u8(vdupq_n_u8(0), minus)
    }
}

/// Two powers, eight bytes each.
#[inline(always)]
unsafe fn two(a: u8, b: u8) -> uint8x16_t {
    // SAFETY: the caller has NEON.
    unsafe { vcombine_u8(vdup_n_u8(a), vdup_n_u8(b)) }
}

struct Tq1_0;
impl Packed for Tq1_0 {
    const BYTES: usize = 54;
    const PARTS: usize = 2;
    const VECTORS: usize = 2;
    const STRIDED: bool = false;
    const SCALE: usize = 52;

    #[inline(always)]
    unsafe fn codes(block: *const u8, part: usize) -> [uint8x16_t; 8] {
        // SAFETY: the caller has NEON, and a block at `block`.
        unsafe {
            let first = [vld1q_u8(block), vld1q_u8(block.add(16))];
            let mut codes = [first[0]; 8];
            if part == 0 {
                for v in 0..8 {
                    codes[v] = digits(first[v % 2], vdupq_n_u8([1, 3, 9, 27][v / 2]));
                }
                return codes;
            }
            let second = vld1q_u8(block.add(32));
            let third = vreinterpretq_u8_u32(vdupq_n_u32(block.add(48).cast::<u32>().read_unaligned()));
            // Four bytes each of 1, 3, 9 and 27.
            let tail = vreinterpretq_u8_u64(vcombine_u64(
                vdup_n_u64(0x0303_0303_0101_0101),
                vdup_n_u64(0x1b1b_1b1b_0909_0909),
            ));
            codes[0] = digits(first[0], vdupq_n_u8(81));
            codes[1] = digits(first[1], vdupq_n_u8(81));
            for v in 2..7 {
                codes[v] = digits(second, vdupq_n_u8([1, 3, 9, 27, 81][v - 2]));
            }
            codes[7] = digits(third, tail);
            codes
        }
    }
}

struct Ptq1_0;
impl Packed for Ptq1_0 {
    const BYTES: usize = 28;
    const VECTORS: usize = 2;
    const STRIDED: bool = false;
    const SCALE: usize = 26;

    #[inline(always)]
    unsafe fn codes(block: *const u8, _: usize) -> [uint8x16_t; 8] {
        // SAFETY: the caller has NEON, and a block at `block`.
        unsafe {
            let first = vld1q_u8(block);
            let eight = vld1_u8(block.add(16));
            let second = vcombine_u8(eight, eight);
            let third = vreinterpret_u8_u16(vdup_n_u16(block.add(24).cast::<u16>().read_unaligned()));
            // Two bytes each of 1, 3, 9 and 27.
            let tail = vreinterpret_u8_u64(vdup_n_u64(0x1b1b_0909_0303_0101));
            [
                digits(first, vdupq_n_u8(1)),
                digits(first, vdupq_n_u8(3)),
                digits(first, vdupq_n_u8(9)),
                digits(first, vdupq_n_u8(27)),
                digits(first, vdupq_n_u8(81)),
                digits(second, two(1, 3)),
                digits(second, two(9, 27)),
                digits(vcombine_u8(eight, third), vcombine_u8(vdup_n_u8(81), tail)),
            ]
        }
    }
}

/// `n` plus the sums of four products.
///
/// In assembly because the intrinsic is not in the oldest supported compiler.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot(mut n: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: reads and writes registers only.
    unsafe {
        core::arch::asm!(
            "sdot {n:v}.4s, {a:v}.16b, {b:v}.16b",
            n = inout(vreg) n, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    n
}

/// The sums of each four products.
#[inline(always)]
pub(super) unsafe fn fours<const DOT: bool>(a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the caller has NEON, and `sdot` if DOT is set.
    unsafe {
        if DOT {
            return sdot(vdupq_n_s32(0), a, b);
        }
        // Two products of at most 128 * 127 fit 16 bits.
        let low = vmull_s8(vget_low_s8(a), vget_low_s8(b));
        vpaddlq_s16(vpaddq_s16(low, vmull_high_s8(a, b)))
    }
}

/// The activations of a step.
#[derive(Clone, Copy)]
struct Acts {
    q: [int8x16_t; 8],
    /// The factors of 64 activations, for each vector of them.
    factor: [int32x4_t; 8],
    start: [int32x4_t; 2],
}

struct Neon<F, const DOT: bool>(PhantomData<F>);

impl<F: Packed, const DOT: bool> RowKernel for Neon<F, DOT> {
    const BYTES: usize = F::BYTES;
    const PARTS: usize = F::PARTS;
    const VECTORS: usize = F::VECTORS;
    const GEMV_ROWS: usize = ROWS;
    const ROWS: usize = ROWS;
    const TOKENS: usize = TOKENS;
    type Codes = [uint8x16_t; 8];
    type Acts = Acts;
    type Integers = [int32x4_t; 2];
    type Scale = f32;
    type Sum = f32;

    #[inline(always)]
    unsafe fn codes(block: *const u8, part: usize) -> [uint8x16_t; 8] {
        // SAFETY: as for this function.
        unsafe { F::codes(block, part) }
    }

    #[inline(always)]
    unsafe fn scale(block: *const u8) -> f32 {
        // SAFETY: as for this function.
        f16_at(unsafe { core::slice::from_raw_parts(block, F::BYTES) }, F::SCALE)
    }

    #[inline(always)]
    unsafe fn acts(y: *const Q8Block) -> Acts {
        // SAFETY: as for this function.
        unsafe {
            let zero = vdupq_n_s32(0);
            let mut acts = Acts { q: [vdupq_n_s8(0); 8], factor: [zero; 8], start: [zero; 2] };
            let mut start = 0i32;
            for b in 0..F::VECTORS {
                let y = &*y.add(b);
                let [low, high] = y.factor.map(|f| vdupq_n_s32(f));
                let (q, factor) = if F::STRIDED {
                    // Four lanes of four activations 4 i + s each.
                    let q = vld4q_s8(y.q.as_ptr());
                    ([q.0, q.1, q.2, q.3], [vextq_s32::<2>(low, high); 4])
                } else {
                    let q = y.q.as_ptr();
                    (
                        [vld1q_s8(q), vld1q_s8(q.add(16)), vld1q_s8(q.add(32)), vld1q_s8(q.add(48))],
                        [low, low, high, high],
                    )
                };
                for v in 0..4 {
                    acts.q[4 * b + v] = q[v];
                    acts.factor[4 * b + v] = factor[v];
                }
                start = start.wrapping_add(y.start);
            }
            acts.start[0] = vsetq_lane_s32::<0>(start, zero);
            acts
        }
    }

    #[inline(always)]
    unsafe fn dot(codes: [uint8x16_t; 8], acts: Acts) -> [int32x4_t; 2] {
        let mut n = acts.start;
        for v in 0..4 * F::VECTORS {
            // SAFETY: the caller has NEON, and `sdot` if DOT is set.
            unsafe {
                let four = fours::<DOT>(vreinterpretq_s8_u8(codes[v]), acts.q[v]);
                n[v % 2] = vmlaq_s32(n[v % 2], four, acts.factor[v]);
            }
        }
        n
    }

    #[inline(always)]
    unsafe fn add(a: [int32x4_t; 2], b: [int32x4_t; 2]) -> [int32x4_t; 2] {
        // SAFETY: the caller has NEON.
        unsafe { [vaddq_s32(a[0], b[0]), vaddq_s32(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn zero() -> f32 {
        0.0
    }

    #[inline(always)]
    unsafe fn add_block(sum: f32, n: [int32x4_t; 2], scale: f32) -> f32 {
        // SAFETY: the caller has NEON.
        let n = unsafe { vaddvq_s32(vaddq_s32(n[0], n[1])) };
        sum + n as f32 * scale
    }

    #[inline(always)]
    unsafe fn finish(sum: f32) -> f32 {
        sum
    }

    #[inline(always)]
    fn prefetch(_: *const u8, _: usize) {
        // The intrinsic is not stable; these processors prefetch a single stream well.
    }
}
