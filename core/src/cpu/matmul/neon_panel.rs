//! NEON over [`Layout::Panels32`], four rows per register: `sdot` adds four products of a code and an
//! activation to each lane, with the same four activations for all rows; without it, products are added in 16
//! bits and in fours after 32 columns. For many tokens, `smmla` adds eight products to each lane. Then the sums are multiplied by the factor of the activations.
#![allow(unsafe_code)]

use core::arch::aarch64::*;

use super::args::{Kernel, MatmulArgs};
use super::panel_kernel::{PanelKernel, kernel_of, panel_rows, rows};
use super::token_lanes::{self, ByteLanes, Lanes, TokenLanes, Words};
use crate::cpu::parallel::OutputRows;
use crate::cpu::repack::{Layout, ONE_BIT_SHIFT, PANEL_ROWS};
use crate::quant::Format;

/// The kernel for int8 activations and repacked rows.
pub(super) fn repacked(format: Format, layout: Layout) -> Option<Kernel> {
    match (format, layout) {
        (Format::Q1_0, Layout::Panels32) => Some(plain::<1, 128>),
        _ => kernel_of!(plain, format, layout),
    }
}

/// [`repacked`] with `smmla`.
pub(super) fn repacked_i8mm(format: Format, layout: Layout) -> Option<Kernel> {
    match (format, layout) {
        (Format::Q1_0, Layout::Panels32) => Some(i8mm::<1, 128>),
        _ => kernel_of!(i8mm, format, layout),
    }
}

/// [`repacked`] with `sdot`.
pub(super) fn repacked_dotprod(format: Format, layout: Layout) -> Option<Kernel> {
    match (format, layout) {
        (Format::Q1_0, Layout::Panels32) => Some(dotprod::<1, 128>),
        _ => kernel_of!(dotprod, format, layout),
    }
}

#[target_feature(enable = "neon")]
fn plain<const BITS: usize, const BLOCK: usize>(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
    // SAFETY: the features of this function.
    unsafe {
        let done = in_lanes::<BITS>(args, out, BLOCK);
        rows::<Plain, BITS, BLOCK, 2>(args, out, done);
    }
}

#[target_feature(enable = "neon,dotprod")]
fn dotprod<const BITS: usize, const BLOCK: usize>(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
    // SAFETY: the features of this function.
    unsafe {
        // Products of 2-bit codes take fewer instructions than lookups.
        let done = if BITS == 1 { in_lanes::<BITS>(args, out, BLOCK) } else { 0 };
        rows::<DotProd, BITS, BLOCK, 4>(args, out, done);
    }
}

#[target_feature(enable = "neon,dotprod,i8mm")]
fn i8mm<const BITS: usize, const BLOCK: usize>(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
    // SAFETY: the features of this function.
    unsafe { rows::<I8mm, BITS, BLOCK, 4>(args, out, 0) };
}

/// Computes the rows in panels for the first tokens, if there are lookup tables. Returns how many.
#[target_feature(enable = "neon")]
fn in_lanes<const BITS: usize>(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>, block: usize) -> usize {
    if args.luts.is_empty() {
        return 0;
    }
    let end = panel_rows(args, out);
    // SAFETY: the features of this function.
    unsafe { token_lanes::rows::<Plain, Words<BITS>>(args, out, end, block) }
}

/// Registers per 16 rows.
const REGS: usize = PANEL_ROWS / 4;

/// Without `sdot`; [`DotProd`] uses it.
struct Plain;
struct DotProd;
/// With `smmla`, which multiplies eight columns of two rows by those of two tokens. The sums of tokens `t` and `t + 1`, `t`
/// even, are interleaved: those of the first have rows 0 and 1 of each four, for both tokens each, those of the second rows 2
/// and 3.
struct I8mm;

/// `n` plus, in each lane, the sum of four products, with the same four activations `I` of `q` in every lane.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot<const I: usize>(mut n: int32x4_t, codes: int8x16_t, q: int8x16_t) -> int32x4_t {
    // SAFETY: reads and writes registers only.
    unsafe {
        core::arch::asm!(
            "sdot {n:v}.4s, {a:v}.16b, {b:v}.4b[{i}]",
            n = inout(vreg) n, a = in(vreg) codes, b = in(vreg) q, i = const I,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    n
}

/// `n` plus the products of the rows of `a` and `b`, each of eight numbers: 0 with 0, 0 with 1, 1 with 0, 1 with 1.
#[inline]
#[target_feature(enable = "neon,i8mm")]
pub(super) fn smmla(mut n: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: reads and writes registers only.
    unsafe {
        core::arch::asm!(
            "smmla {n:v}.4s, {a:v}.16b, {b:v}.16b",
            n = inout(vreg) n, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    n
}

/// Columns 0 to 7 of `a` and `b`, or 8 to 15.
#[inline(always)]
pub(super) unsafe fn eights(a: int8x16_t, b: int8x16_t, at: usize) -> int8x16_t {
    // SAFETY: the caller has NEON.
    unsafe {
        let (a, b) = (vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b));
        vreinterpretq_s8_s64(if at == 0 { vzip1q_s64(a, b) } else { vzip2q_s64(a, b) })
    }
}

/// `a`, `b`, `a`, `b`
#[inline(always)]
pub(super) unsafe fn alternating(a: i32, b: i32) -> int32x4_t {
    // SAFETY: the caller has NEON.
    unsafe { vreinterpretq_s32_u64(vdupq_n_u64(u64::from(a as u32) | u64::from(b as u32) << 32)) }
}

/// Four columns of a part, one per byte: `4 s ..`.
#[inline(always)]
unsafe fn four_columns<const BITS: usize>(part: [[uint8x16_t; REGS]; BITS], s: usize) -> [int8x16_t; REGS] {
    // SAFETY: the caller has NEON.
    unsafe {
        let mut quad = [vdupq_n_s8(0); REGS];
        for (quad, words) in quad.iter_mut().zip(part[s / 4 % BITS]) {
            // Codes 0 and 2, or 0 to 3.
            let (by, mask) = if BITS == 1 { (ONE_BIT_SHIFT[s] as i8 - 1, 2) } else { (s as i8 % 4 * 2, 3) };
            *quad = vreinterpretq_s8_u8(vandq_u8(vshlq_u8(words, vdupq_n_s8(-by)), vdupq_n_u8(mask)));
        }
        quad
    }
}

/// Adds the products of `quad` with the four activations `I` of the 16 in `q` to sums of two rows per
/// register, four columns each.
#[inline(always)]
unsafe fn add_words<const I: i32>(sums: &mut [[int16x8_t; 2]; REGS], quad: [int8x16_t; REGS], q: int8x16_t) {
    // SAFETY: the caller has NEON. Eight products of at most 3 * 127 fit 16 bits.
    unsafe {
        let q = vreinterpretq_s8_s32(vdupq_laneq_s32::<I>(vreinterpretq_s32_s8(q)));
        for (sums, codes) in sums.iter_mut().zip(quad) {
            let [low, high] = *sums;
            *sums = [vmlal_s8(low, vget_low_s8(codes), vget_low_s8(q)), vmlal_high_s8(high, codes, q)];
        }
    }
}

/// The methods that do not depend on how products are added.
macro_rules! shared {
    () => {
        type Part<const BITS: usize> = [[uint8x16_t; REGS]; BITS];
        type Quad = [int8x16_t; REGS];
        type Integers = [int32x4_t; REGS];
        type Floats = [float32x4_t; REGS];

        #[inline(always)]
        unsafe fn part<const BITS: usize>(codes: *const u8, p: usize) -> Self::Part<BITS> {
            unsafe {
                let codes = codes.add(p * 64 * BITS);
                let mut part = [[vdupq_n_u8(0); REGS]; BITS];
                for (v, words) in part.iter_mut().enumerate() {
                    for (r, words) in words.iter_mut().enumerate() {
                        *words = vld1q_u8(codes.add(64 * v + 16 * r));
                    }
                }
                part
            }
        }

        #[inline(always)]
        unsafe fn integers(n: i32) -> Self::Integers {
            unsafe { [vdupq_n_s32(n); REGS] }
        }

        #[inline(always)]
        unsafe fn floats(x: f32) -> Self::Floats {
            unsafe { [vdupq_n_f32(x); REGS] }
        }

        #[inline(always)]
        unsafe fn scales(p: *const u8) -> Self::Floats {
            unsafe {
                let mut d = [vdupq_n_f32(0.0); REGS];
                for (r, d) in d.iter_mut().enumerate() {
                    let half = vld1_u16(p.add(8 * r).cast());
                    // The intrinsic is not stable.
                    core::arch::asm!(
                        "fcvtl {d:v}.4s, {s:v}.4h",
                        d = out(vreg) *d, s = in(vreg) half,
                        options(pure, nomem, nostack, preserves_flags),
                    );
                }
                d
            }
        }

        #[inline(always)]
        unsafe fn add_block(mut sum: Self::Floats, n: Self::Integers, d: Self::Floats) -> Self::Floats {
            for r in 0..REGS {
                sum[r] = unsafe { vaddq_f32(sum[r], vmulq_f32(vcvtq_f32_s32(n[r]), d[r])) };
            }
            sum
        }

        #[inline(always)]
        unsafe fn outputs(sum: Self::Floats, step: f32) -> [f32; PANEL_ROWS] {
            let mut outputs = [0.0; PANEL_ROWS];
            for r in 0..REGS {
                unsafe { vst1q_f32(outputs.as_mut_ptr().add(4 * r), vmulq_n_f32(sum[r], step)) };
            }
            outputs
        }

        #[inline(always)]
        fn prefetch(_: *const u8) {
            // The intrinsic is not stable; these processors prefetch a single stream well.
        }
    };
}

#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every block needs what the trait asks for, and no more"
)]
impl PanelKernel for DotProd {
    shared!();
    type Sums = [int32x4_t; REGS];

    #[inline(always)]
    unsafe fn quad<const BITS: usize>(part: Self::Part<BITS>, s: usize) -> Self::Quad {
        unsafe { four_columns::<BITS>(part, s) }
    }

    #[inline(always)]
    unsafe fn no_sums() -> Self::Sums {
        unsafe { [vdupq_n_s32(0); REGS] }
    }

    #[inline(always)]
    unsafe fn add_part<const T: usize>(
        sums: &mut [Self::Sums; T],
        quad: impl Fn(usize) -> Self::Quad,
        q: [*const i8; T],
    ) {
        for half in 0..2 {
            let quads = [quad(4 * half), quad(4 * half + 1), quad(4 * half + 2), quad(4 * half + 3)];
            for t in 0..T {
                unsafe {
                    let q = vld1q_s8(q[t].add(16 * half));
                    for r in 0..REGS {
                        let n = sdot::<0>(sums[t][r], quads[0][r], q);
                        let n = sdot::<1>(n, quads[1][r], q);
                        let n = sdot::<2>(n, quads[2][r], q);
                        sums[t][r] = sdot::<3>(n, quads[3][r], q);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn add_sums(mut n: Self::Integers, sums: Self::Sums, factor: i32) -> Self::Integers {
        for r in 0..REGS {
            n[r] = unsafe { vmlaq_n_s32(n[r], sums[r], factor) };
        }
        n
    }
}

#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every block needs what the trait asks for, and no more"
)]
impl PanelKernel for I8mm {
    shared!();
    type Sums = [int32x4_t; REGS];

    /// Eight columns: of rows 0 and 1 of each four if `s` is even, else of rows 2 and 3.
    #[inline(always)]
    unsafe fn quad<const BITS: usize>(part: Self::Part<BITS>, s: usize) -> Self::Quad {
        unsafe {
            let (a, b) = (four_columns::<BITS>(part, s & !1), four_columns::<BITS>(part, s | 1));
            let mut quad = a;
            for r in 0..REGS {
                let (a, b) = (vreinterpretq_s32_s8(a[r]), vreinterpretq_s32_s8(b[r]));
                let two = if s.is_multiple_of(2) { vzip1q_s32(a, b) } else { vzip2q_s32(a, b) };
                quad[r] = vreinterpretq_s8_s32(two);
            }
            quad
        }
    }

    #[inline(always)]
    unsafe fn no_sums() -> Self::Sums {
        unsafe { [vdupq_n_s32(0); REGS] }
    }

    #[inline(always)]
    unsafe fn add_part<const T: usize>(
        sums: &mut [Self::Sums; T],
        quad: impl Fn(usize) -> Self::Quad,
        q: [*const i8; T],
    ) {
        unsafe {
            if T % 2 == 1 {
                // Of one token twice.
                for t in 0..T {
                    let mut pair = [Self::no_sums(); 2];
                    for half in 0..2 {
                        add_eights(&mut pair, &quad, [q[t]; 2], half);
                    }
                    for r in 0..REGS {
                        sums[t][r] = vaddq_s32(sums[t][r], vuzp1q_s32(pair[0][r], pair[1][r]));
                    }
                }
                return;
            }
            for half in 0..2 {
                for (sums, q) in sums.as_chunks_mut::<2>().0.iter_mut().zip(q.as_chunks::<2>().0) {
                    add_eights(sums, &quad, *q, half);
                }
            }
        }
    }

    /// For one token, `sdot` does as much.
    #[inline(always)]
    unsafe fn part_sums<const BITS: usize>(part: Self::Part<BITS>, q: *const i8) -> Self::Sums {
        unsafe { DotProd::part_sums::<BITS>(part, q) }
    }

    #[inline(always)]
    unsafe fn add_sums(n: Self::Integers, sums: Self::Sums, factor: i32) -> Self::Integers {
        unsafe { DotProd::add_sums(n, sums, factor) }
    }

    #[inline(always)]
    unsafe fn all_integers<const T: usize>(n: [i32; T]) -> [Self::Integers; T] {
        unsafe {
            let mut all = [Self::integers(n[0]); T];
            for (all, n) in all.as_chunks_mut::<2>().0.iter_mut().zip(n.as_chunks::<2>().0) {
                *all = [[alternating(n[0], n[1]); REGS]; 2];
            }
            all
        }
    }

    #[inline(always)]
    unsafe fn add_all_sums<const T: usize>(
        n: &mut [Self::Integers; T],
        sums: [Self::Sums; T],
        factor: [i32; T],
    ) {
        unsafe {
            if T % 2 == 1 {
                for t in 0..T {
                    n[t] = Self::add_sums(n[t], sums[t], factor[t]);
                }
                return;
            }
            for t in 0..T {
                let factor = alternating(factor[t & !1], factor[t | 1]);
                for r in 0..REGS {
                    n[t][r] = vmlaq_s32(n[t][r], sums[t][r], factor);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn add_blocks<const T: usize>(
        sums: *mut Self::Floats,
        mut n: [Self::Integers; T],
        d: Self::Floats,
    ) {
        unsafe {
            for pair in n.as_chunks_mut::<2>().0 {
                for r in 0..REGS {
                    let (low, high) = (pair[0][r], pair[1][r]);
                    (pair[0][r], pair[1][r]) = (vuzp1q_s32(low, high), vuzp2q_s32(low, high));
                }
            }
            for (t, n) in n.into_iter().enumerate() {
                let sum = sums.add(t);
                *sum = Self::add_block(*sum, n, d);
            }
        }
    }
}

/// Adds the products of 16 columns, those of `half`, with the activations at `q`, to the interleaved `sums` of two tokens.
#[inline(always)]
unsafe fn add_eights(
    sums: &mut [[int32x4_t; REGS]; 2],
    quad: &impl Fn(usize) -> [int8x16_t; REGS],
    q: [*const i8; 2],
    half: usize,
) {
    // SAFETY: the caller has the instruction set, and a part of the activations at each `q`.
    unsafe {
        let q = [vld1q_s8(q[0].add(16 * half)), vld1q_s8(q[1].add(16 * half))];
        for at in 0..2 {
            let q = eights(q[0], q[1], at);
            for (rows, sums) in sums.iter_mut().enumerate() {
                let codes = quad(4 * half + 2 * at + rows);
                for r in 0..REGS {
                    sums[r] = smmla(sums[r], codes[r], q);
                }
            }
        }
    }
}

#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every block needs what the trait asks for, and no more"
)]
impl PanelKernel for Plain {
    shared!();
    type Sums = [[int16x8_t; 2]; REGS];

    #[inline(always)]
    unsafe fn quad<const BITS: usize>(part: Self::Part<BITS>, s: usize) -> Self::Quad {
        unsafe { four_columns::<BITS>(part, s) }
    }

    #[inline(always)]
    unsafe fn no_sums() -> Self::Sums {
        unsafe { [[vdupq_n_s16(0); 2]; REGS] }
    }

    #[inline(always)]
    unsafe fn add_part<const T: usize>(
        sums: &mut [Self::Sums; T],
        quad: impl Fn(usize) -> Self::Quad,
        q: [*const i8; T],
    ) {
        for half in 0..2 {
            for t in 0..T {
                unsafe {
                    let q = vld1q_s8(q[t].add(16 * half));
                    add_words::<0>(&mut sums[t], quad(4 * half), q);
                    add_words::<1>(&mut sums[t], quad(4 * half + 1), q);
                    add_words::<2>(&mut sums[t], quad(4 * half + 2), q);
                    add_words::<3>(&mut sums[t], quad(4 * half + 3), q);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn add_sums(mut n: Self::Integers, sums: Self::Sums, factor: i32) -> Self::Integers {
        for r in 0..REGS {
            unsafe {
                let fours = vpaddq_s32(vpaddlq_s16(sums[r][0]), vpaddlq_s16(sums[r][1]));
                n[r] = vmlaq_n_s32(n[r], fours, factor);
            }
        }
        n
    }
}

/// A table has 256 entries for eight columns.
pub(super) const LANES: Lanes = Lanes { vector: 8, vectors: 1, from: 3, rows: 1024 };

#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every block needs what the trait asks for, and no more"
)]
impl TokenLanes for Plain {
    const LANES: Lanes = LANES;
    type Sums = int16x8_t;
    type Integers = [int32x4_t; 2];
    type Factors = int16x8x2_t;

    #[inline(always)]
    unsafe fn load(p: *const i16) -> int16x8_t {
        unsafe { vld1q_s16(p) }
    }

    #[inline(always)]
    unsafe fn store(p: *mut i16, sums: int16x8_t) {
        unsafe { vst1q_s16(p, sums) };
    }

    #[inline(always)]
    unsafe fn add(a: int16x8_t, b: int16x8_t) -> int16x8_t {
        unsafe { vaddq_s16(a, b) }
    }

    #[inline(always)]
    unsafe fn load_integers(p: *const i32) -> [int32x4_t; 2] {
        unsafe { [vld1q_s32(p), vld1q_s32(p.add(4))] }
    }

    #[inline(always)]
    unsafe fn store_integers(p: *mut i32, n: [int32x4_t; 2]) {
        unsafe {
            vst1q_s32(p, n[0]);
            vst1q_s32(p.add(4), n[1]);
        }
    }

    #[inline(always)]
    unsafe fn add_integers(a: [int32x4_t; 2], b: [int32x4_t; 2]) -> [int32x4_t; 2] {
        unsafe { [vaddq_s32(a[0], b[0]), vaddq_s32(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn load_factors(p: *const i16) -> int16x8x2_t {
        unsafe { vld2q_s16(p) }
    }

    #[inline(always)]
    unsafe fn add_parts(
        n: [int32x4_t; 2],
        a: int16x8_t,
        b: int16x8_t,
        factors: int16x8x2_t,
    ) -> [int32x4_t; 2] {
        unsafe {
            let int16x8x2_t(of_a, of_b) = factors;
            let low = vmlal_s16(n[0], vget_low_s16(a), vget_low_s16(of_a));
            let high = vmlal_high_s16(n[1], a, of_a);
            [vmlal_s16(low, vget_low_s16(b), vget_low_s16(of_b)), vmlal_high_s16(high, b, of_b)]
        }
    }

    #[inline(always)]
    unsafe fn add_block(sums: *mut f32, n: [int32x4_t; 2], d: f32) {
        for (h, n) in n.into_iter().enumerate() {
            unsafe {
                let product = vmulq_n_f32(vcvtq_f32_s32(n), d);
                let sums = sums.add(4 * h);
                vst1q_f32(sums, vaddq_f32(vld1q_f32(sums), product));
            }
        }
    }

    #[inline(always)]
    unsafe fn scales(p: *const u8) -> [f32; PANEL_ROWS] {
        unsafe { Self::outputs(<Self as PanelKernel>::scales(p), 1.0) }
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "the block needs what the trait asks for, and no more")]
impl ByteLanes for Plain {
    #[inline(always)]
    unsafe fn entries(codes: *const u8, shift: u32, entries: *mut u16) {
        unsafe {
            let codes = vld1q_u8(codes);
            let by = vdupq_n_s16(shift as i16);
            vst1q_u16(entries, vshlq_u16(vmovl_u8(vget_low_u8(codes)), by));
            vst1q_u16(entries.add(8), vshlq_u16(vmovl_high_u8(codes), by));
        }
    }
}
