//! Runs of 32 weights in NEON: tiles of 4 rows, of which each has its own vectors of bytes. Their sums meet in one
//! vector before they become floats. With `smmla`, a vector has eight bytes of each of two rows.
#![allow(unsafe_code)]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every block needs what the trait asks for, and no more"
)]

use core::arch::aarch64::*;

use super::args::{Kernel, MatmulArgs};
use super::neon::{self, TOKENS, fours};
use super::neon_panel::{alternating, eights, smmla};
use super::run_format::RunFormat;
use super::run_isa::{Rows, RunIsa};
use super::run_kernel::{self, RunKernels};
use crate::cpu::parallel::OutputRows;
use crate::quant::Format;

/// The kernel for int8 activations and row-major weights.
pub(super) fn integer(format: Format) -> Option<Kernel> {
    run_kernel::of::<Runs<false, false>>(format).or_else(|| neon::integer(format))
}

/// The same with `sdot`.
pub(super) fn integer_dotprod(format: Format) -> Option<Kernel> {
    run_kernel::of::<Runs<true, false>>(format).or_else(|| neon::integer_dotprod(format))
}

/// The same with `smmla`.
pub(super) fn integer_i8mm(format: Format) -> Option<Kernel> {
    run_kernel::of::<Runs<true, true>>(format).or_else(|| neon::integer_dotprod(format))
}

/// Rows of a tile.
const ROWS: usize = 4;

/// With `sdot` if `DOT` is set, with `smmla` if `MM` is set.
struct Runs<const DOT: bool, const MM: bool>;

/// `f` of each of 16 bytes of each row.
macro_rules! each {
    (|$r:ident, $h:ident| $f:expr) => {{
        // A loop, as closures are not always inlined to where the instruction set is.
        let mut all = [[vdupq_n_u8(0); 2]; ROWS];
        for $r in 0..ROWS {
            for $h in 0..2 {
                all[$r][$h] = $f;
            }
        }
        all
    }};
}

impl<const DOT: bool, const MM: bool> RunIsa<ROWS> for Runs<DOT, MM> {
    const PAIRS: bool = MM;
    /// `(rows, bytes / 16)`
    type Bytes = [[uint8x16_t; 2]; ROWS];
    /// As [`RunIsa::Bytes`]; for `smmla`, `(rows / 2, halves, eights)`, each of two rows.
    type Codes = [[uint8x16_t; 2]; ROWS];
    type Words = uint32x4_t;
    type Floats = float32x4_t;

    #[inline(always)]
    unsafe fn load(rows: Rows) -> Self::Bytes {
        unsafe { each!(|r, h| vld1q_u8(rows.row(r).add(16 * h))) }
    }

    #[inline(always)]
    unsafe fn nibbles(rows: Rows) -> Self::Bytes {
        unsafe {
            each!(|r, h| {
                let bytes = vld1q_u8(rows.row(r));
                if h == 0 { vandq_u8(bytes, vdupq_n_u8(15)) } else { vshrq_n_u8::<4>(bytes) }
            })
        }
    }

    #[inline(always)]
    unsafe fn words(rows: Rows) -> [uint32x4_t; 4] {
        unsafe {
            let row = |r| vld1q_u32(rows.row(r).cast());
            let (a, b, c, d) = (row(0), row(1), row(2), row(3));
            let pairs = [vtrn1q_u32(a, b), vtrn2q_u32(a, b), vtrn1q_u32(c, d), vtrn2q_u32(c, d)];
            let [ab_even, ab_odd, cd_even, cd_odd] = pairs.map(|pair| vreinterpretq_u64_u32(pair));
            [
                vreinterpretq_u32_u64(vtrn1q_u64(ab_even, cd_even)),
                vreinterpretq_u32_u64(vtrn1q_u64(ab_odd, cd_odd)),
                vreinterpretq_u32_u64(vtrn2q_u64(ab_even, cd_even)),
                vreinterpretq_u32_u64(vtrn2q_u64(ab_odd, cd_odd)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn to_words(x: &[u32; ROWS]) -> uint32x4_t {
        unsafe { vld1q_u32(x.as_ptr()) }
    }

    #[inline(always)]
    unsafe fn word_field(x: uint32x4_t, shift: usize, mask: u32) -> uint32x4_t {
        unsafe { vandq_u32(vshlq_u32(x, vdupq_n_s32(-(shift as i32))), vdupq_n_u32(mask)) }
    }

    #[inline(always)]
    unsafe fn join(a: uint32x4_t, b: uint32x4_t, shift: usize) -> uint32x4_t {
        unsafe { vorrq_u32(a, vshlq_u32(b, vdupq_n_s32(shift as i32))) }
    }

    #[inline(always)]
    unsafe fn offset(x: uint32x4_t, n: i32) -> uint32x4_t {
        unsafe { vaddq_u32(x, vdupq_n_u32(n as u32)) }
    }

    #[inline(always)]
    unsafe fn byte(x: uint32x4_t, at: usize, zero: i32) -> float32x4_t {
        unsafe {
            let high = vshlq_s32(vreinterpretq_s32_u32(x), vdupq_n_s32(24 - 8 * at as i32));
            vcvtq_f32_s32(vsubq_s32(vshrq_n_s32::<24>(high), vdupq_n_s32(zero)))
        }
    }

    #[inline(always)]
    unsafe fn f16(x: uint32x4_t) -> float32x4_t {
        unsafe {
            let magnitude = vshlq_n_u32::<13>(vandq_u32(x, vdupq_n_u32(0x7fff)));
            // The exponent is rebased from 15 to 127.
            let number = vmulq_n_f32(vreinterpretq_f32_u32(magnitude), f32::from_bits((112 + 127) << 23));
            let infinite = vcgeq_u32(magnitude, vdupq_n_u32(0x1f << 23));
            let infinite = vandq_u32(infinite, vdupq_n_u32(0xff << 23));
            let sign = vshlq_n_u32::<16>(vandq_u32(x, vdupq_n_u32(0x8000)));
            vreinterpretq_f32_u32(vorrq_u32(vorrq_u32(vreinterpretq_u32_f32(number), infinite), sign))
        }
    }

    #[inline(always)]
    unsafe fn f32(x: uint32x4_t) -> float32x4_t {
        unsafe { vreinterpretq_f32_u32(x) }
    }

    #[inline(always)]
    unsafe fn field(x: Self::Bytes, shift: usize, mask: u8) -> Self::Bytes {
        unsafe { each!(|r, h| vandq_u8(vshlq_u8(x[r][h], vdupq_n_s8(-(shift as i8))), vdupq_n_u8(mask))) }
    }

    #[inline(always)]
    unsafe fn shl(x: Self::Bytes, shift: usize) -> Self::Bytes {
        unsafe { each!(|r, h| vshlq_u8(x[r][h], vdupq_n_s8(shift as i8))) }
    }

    #[inline(always)]
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        unsafe { each!(|r, h| vorrq_u8(a[r][h], b[r][h])) }
    }

    #[inline(always)]
    unsafe fn bits(bits: uint32x4_t, value: u8) -> Self::Bytes {
        unsafe {
            let mut words = [0; ROWS];
            vst1q_u32(words.as_mut_ptr(), bits);
            let bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
            each!(|r, h| {
                let byte = |i: usize| vdup_n_u8((words[r] >> (16 * h + 8 * i)) as u8);
                vandq_u8(vtstq_u8(vcombine_u8(byte(0), byte(1)), bit), vdupq_n_u8(value))
            })
        }
    }

    #[inline(always)]
    unsafe fn look_up(table: &[i8; 16], x: Self::Bytes) -> Self::Bytes {
        unsafe {
            let table = vreinterpretq_u8_s8(vld1q_s8(table.as_ptr()));
            each!(|r, h| vqtbl1q_u8(table, x[r][h]))
        }
    }

    #[inline(always)]
    unsafe fn swap_middle(x: Self::Bytes) -> Self::Bytes {
        unsafe {
            each!(|r, h| {
                let (a, b) = (vreinterpretq_u64_u8(x[r][0]), vreinterpretq_u64_u8(x[r][1]));
                vreinterpretq_u8_u64(if h == 0 { vzip1q_u64(a, b) } else { vzip2q_u64(a, b) })
            })
        }
    }

    #[inline(always)]
    unsafe fn codes(x: Self::Bytes, _: bool) -> Self::Codes {
        if !MM {
            return x;
        }
        unsafe {
            each!(|r, h| {
                let (a, b) = (x[r & !1][r % 2], x[r | 1][r % 2]);
                vreinterpretq_u8_s8(eights(vreinterpretq_s8_u8(a), vreinterpretq_s8_u8(b), h))
            })
        }
    }

    #[inline(always)]
    unsafe fn dot(
        w: &Self::Codes,
        half: Option<usize>,
        q: *const i8,
        start: i32,
        _: Option<u8>,
    ) -> float32x4_t {
        unsafe {
            if MM {
                let (halves, q) = halves(half, [q; 2]);
                let n = products(w, halves, q, vdupq_n_s32(start));
                return vcvtq_f32_s32(vuzp1q_s32(n[0], n[1]));
            }
            let mut n = [vdupq_n_s32(0); ROWS];
            for r in 0..ROWS {
                let four = |h: usize, q| fours::<DOT>(vreinterpretq_s8_u8(w[r][h]), vld1q_s8(q));
                n[r] = match half {
                    Some(half) => four(half, q),
                    None => vaddq_s32(four(0, q), four(1, q.add(16))),
                };
            }
            let n = vpaddq_s32(vpaddq_s32(n[0], n[1]), vpaddq_s32(n[2], n[3]));
            vcvtq_f32_s32(vaddq_s32(n, vdupq_n_s32(start)))
        }
    }

    #[inline(always)]
    unsafe fn dots<const P: usize>(
        w: &Self::Codes,
        half: Option<usize>,
        q: [*const i8; P],
        start: [i32; P],
        largest: Option<u8>,
    ) -> [float32x4_t; P] {
        unsafe {
            let mut all = [vdupq_n_f32(0.0); P];
            let pairs = q.as_chunks::<2>().0.iter().zip(start.as_chunks::<2>().0);
            if MM && P.is_multiple_of(2) {
                for (all, (q, start)) in all.as_chunks_mut::<2>().0.iter_mut().zip(pairs) {
                    let (halves, q) = halves(half, *q);
                    let n = products(w, halves, q, alternating(start[0], start[1]));
                    all[0] = vcvtq_f32_s32(vuzp1q_s32(n[0], n[1]));
                    all[1] = vcvtq_f32_s32(vuzp2q_s32(n[0], n[1]));
                }
            } else {
                for p in 0..P {
                    all[p] = Self::dot(w, half, q[p], start[p], largest);
                }
            }
            all
        }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> float32x4_t {
        unsafe { vdupq_n_f32(x) }
    }

    #[inline(always)]
    unsafe fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vmulq_f32(a, b) }
    }

    #[inline(always)]
    unsafe fn add(sum: float32x4_t, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vaddq_f32(sum, vmulq_f32(a, b)) }
    }

    #[inline(always)]
    unsafe fn store(sum: float32x4_t) -> [f32; ROWS] {
        let mut lanes = [0.0; ROWS];
        unsafe { vst1q_f32(lanes.as_mut_ptr(), sum) };
        lanes
    }

    #[inline(always)]
    fn prefetch(_: *const u8, _: usize) {
        // The intrinsic is not stable; these processors prefetch a few streams well.
    }
}

/// The first half and the number of halves that `half` names, and where the activations of the first half would be.
#[inline(always)]
fn halves(half: Option<usize>, q: [*const i8; 2]) -> ((usize, usize), [*const i8; 2]) {
    let (first, count) = half.map_or((0, 2), |half| (half, 1));
    ((first, count), q.map(|q| q.wrapping_sub(16 * first)))
}

/// `start` plus the products of the codes in some `(first, count)` halves with the activations of two tokens: of rows 0 and 1,
/// and of rows 2 and 3, alternately for each token.
#[inline(always)]
unsafe fn products(
    w: &[[uint8x16_t; 2]; ROWS],
    (first, count): (usize, usize),
    q: [*const i8; 2],
    start: int32x4_t,
) -> [int32x4_t; 2] {
    unsafe {
        let mut n = [start; 2];
        for half in first..first + count {
            let q = [vld1q_s8(q[0].wrapping_add(16 * half)), vld1q_s8(q[1].wrapping_add(16 * half))];
            for at in 0..2 {
                let q = eights(q[0], q[1], at);
                for rows in 0..2 {
                    n[rows] = smmla(n[rows], vreinterpretq_s8_u8(w[2 * rows + half][at]), q);
                }
            }
        }
        n
    }
}

impl RunKernels for Runs<false, false> {
    fn kernel<F: RunFormat>() -> Kernel {
        #[target_feature(enable = "neon")]
        fn kernel<F: RunFormat>(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
            // SAFETY: the features of this function.
            unsafe { run_kernel::rows::<Runs<false, false>, F, ROWS, TOKENS>(args, out) };
        }
        kernel::<F>
    }
}

impl RunKernels for Runs<true, false> {
    fn kernel<F: RunFormat>() -> Kernel {
        #[target_feature(enable = "neon,dotprod")]
        fn kernel<F: RunFormat>(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
            // SAFETY: the features of this function.
            unsafe { run_kernel::rows::<Runs<true, false>, F, ROWS, TOKENS>(args, out) };
        }
        kernel::<F>
    }
}

impl RunKernels for Runs<true, true> {
    fn kernel<F: RunFormat>() -> Kernel {
        #[target_feature(enable = "neon,dotprod,i8mm")]
        fn kernel<F: RunFormat>(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
            // SAFETY: the features of this function.
            unsafe { run_kernel::rows::<Runs<true, true>, F, ROWS, 4>(args, out) };
        }
        kernel::<F>
    }
}
