//! NEON over [`Layout::Words`]: a lane is a row, four rows a register.
//!
//! `sdot` adds four products of a code and an activation to each lane, the four activations being the
//! same for all rows; without it, products are widened to words and added in fours after 32 columns.
//! Then the factor of the activations is multiplied in. Nothing is ever added across rows.
#![allow(unsafe_code)]

use core::arch::aarch64::*;

use super::act::{Q8_LEN, Q8Block, q8_blocks};
use super::scalar::integer_from;
use super::{Kernel, OutRows, Work};
use crate::quant::{Format, GROUP, Layout, ONE_BIT_SHIFT};

/// The kernel for int8 activations and interleaved rows.
pub(super) fn interleaved(format: Format, layout: Layout) -> Option<Kernel> {
    if layout != Layout::Words {
        return None;
    }
    Some(match format {
        Format::Q1_0 => plain::<1, 128>,
        Format::Q2_0 => plain::<2, 64>,
        Format::Pq2_0 => plain::<2, 128>,
        Format::Tq2_0 => plain::<2, 256>,
        _ => return None,
    })
}

/// [`interleaved`] with `sdot`.
pub(super) fn interleaved_dotprod(format: Format, layout: Layout) -> Option<Kernel> {
    if layout != Layout::Words {
        return None;
    }
    Some(match format {
        Format::Q1_0 => dotprod::<1, 128>,
        Format::Q2_0 => dotprod::<2, 64>,
        Format::Pq2_0 => dotprod::<2, 128>,
        Format::Tq2_0 => dotprod::<2, 256>,
        _ => return None,
    })
}

/// Columns that share a factor.
const PART: usize = 32;
/// Registers of 16 rows.
const REGS: usize = GROUP / 4;
/// Columns that are unpacked at once in a product with many tokens: 4 KB of codes.
const CHUNK: usize = 256;
/// Tokens that share one unpacking of the weights.
const TOKENS: usize = 64;

/// The codes of four columns of 16 rows.
type Quad = [uint8x16_t; REGS];

/// The codes of columns `4 s .. 4 s + 4` of the part at `codes`; zero point 1.
#[inline(always)]
unsafe fn quad<const BITS: usize>(codes: *const u8, s: usize) -> Quad {
    // SAFETY: the caller has NEON and the part.
    unsafe {
        let mut quad = [vdupq_n_u8(0); REGS];
        for (r, quad) in quad.iter_mut().enumerate() {
            let words = vld1q_u8(codes.add(s * BITS / 8 * 64 + 16 * r));
            // How far right the codes of 0 to 3, or of 0 or 2, are.
            let (by, mask) = if BITS == 1 { (ONE_BIT_SHIFT[s] as i8 - 1, 2) } else { (s as i8 % 4 * 2, 3) };
            *quad = vandq_u8(vshlq_u8(words, vdupq_n_s8(-by)), vdupq_n_u8(mask));
        }
        quad
    }
}

/// `n` plus, in each lane, the sum of four products, the four activations `I` of `q` being the same in
/// every lane.
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

/// The sums of products of a part, not yet added up.
#[derive(Clone, Copy)]
struct Sums<const DOT: bool> {
    /// With `sdot`: four rows a register.
    fours: [int32x4_t; REGS],
    /// Without: two rows a register, four columns each.
    words: [[int16x8_t; 2]; REGS],
}

impl<const DOT: bool> Sums<DOT> {
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller has NEON.
        unsafe { Sums { fours: [vdupq_n_s32(0); REGS], words: [[vdupq_n_s16(0); 2]; REGS] } }
    }

    /// Adds the products of `codes` with the four activations `I` of the 16 in `q`.
    #[inline(always)]
    unsafe fn add<const I: usize>(&mut self, codes: Quad, q: int8x16_t) {
        for r in 0..REGS {
            // SAFETY: the caller has NEON, and `sdot` where DOT says so.
            unsafe {
                let codes = vreinterpretq_s8_u8(codes[r]);
                if DOT {
                    self.fours[r] = sdot::<I>(self.fours[r], codes, q);
                } else {
                    let q = vreinterpretq_s8_s32(vdupq_n_s32(match I {
                        0 => vgetq_lane_s32::<0>(vreinterpretq_s32_s8(q)),
                        1 => vgetq_lane_s32::<1>(vreinterpretq_s32_s8(q)),
                        2 => vgetq_lane_s32::<2>(vreinterpretq_s32_s8(q)),
                        _ => vgetq_lane_s32::<3>(vreinterpretq_s32_s8(q)),
                    }));
                    // Eight products of at most 3 * 127 fit 16 bits.
                    let [low, high] = self.words[r];
                    self.words[r] =
                        [vmlal_s8(low, vget_low_s8(codes), vget_low_s8(q)), vmlal_high_s8(high, codes, q)];
                }
            }
        }
    }

    /// A part's sums, four rows a register.
    #[inline(always)]
    unsafe fn fours(self) -> [int32x4_t; REGS] {
        if DOT {
            return self.fours;
        }
        let mut fours = self.fours;
        for r in 0..REGS {
            let [low, high] = self.words[r];
            // SAFETY: the caller has NEON.
            fours[r] = unsafe { vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)) };
        }
        fours
    }
}

/// Adds the products of a part's 8 quads with the 32 activations at `q`.
#[inline(always)]
unsafe fn add_part<const DOT: bool>(sums: &mut Sums<DOT>, quads: impl Fn(usize) -> Quad, q: *const i8) {
    // SAFETY: the caller has NEON, and `sdot` where DOT says so.
    unsafe {
        for half in 0..2 {
            let q = vld1q_s8(q.add(16 * half));
            sums.add::<0>(quads(4 * half), q);
            sums.add::<1>(quads(4 * half + 1), q);
            sums.add::<2>(quads(4 * half + 2), q);
            sums.add::<3>(quads(4 * half + 3), q);
        }
    }
}

/// Sixteen scales.
#[inline(always)]
unsafe fn scales(p: *const u8) -> [float32x4_t; REGS] {
    // SAFETY: the caller has NEON, and 32 bytes at `p`; the assembly reads and writes registers only.
    unsafe {
        let mut d = [vdupq_n_f32(0.0); REGS];
        for (r, d) in d.iter_mut().enumerate() {
            let half = vld1_u16(p.add(8 * r).cast());
            core::arch::asm!(
                "fcvtl {d:v}.4s, {s:v}.4h",
                d = out(vreg) *d, s = in(vreg) half,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        d
    }
}

/// `sum + n * d`, each operation rounded.
#[inline(always)]
unsafe fn add_block(sum: &mut [float32x4_t; REGS], n: [int32x4_t; REGS], d: [float32x4_t; REGS]) {
    for r in 0..REGS {
        // SAFETY: the caller has NEON.
        sum[r] = unsafe { vaddq_f32(sum[r], vmulq_f32(vcvtq_f32_s32(n[r]), d[r])) };
    }
}

#[inline(always)]
unsafe fn put(work: &Work<'_>, out: &mut OutRows<'_>, token: usize, i: usize, sum: [float32x4_t; REGS]) {
    let mut values = [0.0; GROUP];
    for r in 0..REGS {
        // SAFETY: the caller has NEON.
        unsafe { vst1q_f32(values.as_mut_ptr().add(4 * r), vmulq_n_f32(sum[r], work.step(token))) };
    }
    out.put16(token, i, &values);
}

/// What a block of `BLOCK` columns starts from, in every lane.
#[inline(always)]
unsafe fn start<const BLOCK: usize>(y: *const Q8Block) -> [int32x4_t; REGS] {
    let mut start = 0i32;
    for i in 0..BLOCK / Q8_LEN {
        // SAFETY: the caller has the activations.
        start = start.wrapping_add(unsafe { (*y.add(i)).start });
    }
    // SAFETY: the caller has NEON.
    [unsafe { vdupq_n_s32(start) }; REGS]
}

/// `n + sums * factor`.
#[inline(always)]
unsafe fn add_factored(n: &mut [int32x4_t; REGS], fours: [int32x4_t; REGS], factor: i32) {
    for r in 0..REGS {
        // SAFETY: the caller has NEON.
        n[r] = unsafe { vmlaq_n_s32(n[r], fours[r], factor) };
    }
}

#[target_feature(enable = "neon")]
fn plain<const BITS: usize, const BLOCK: usize>(work: &Work<'_>, out: &mut OutRows<'_>) {
    // SAFETY: the features of this function.
    unsafe { rows::<BITS, BLOCK, 2, false>(work, out) };
}

#[target_feature(enable = "neon,dotprod")]
fn dotprod<const BITS: usize, const BLOCK: usize>(work: &Work<'_>, out: &mut OutRows<'_>) {
    // SAFETY: the features of this function.
    unsafe { rows::<BITS, BLOCK, 4, true>(work, out) };
}

/// Fills `out`, with T tokens' sums in registers.
#[inline(always)]
unsafe fn rows<const BITS: usize, const BLOCK: usize, const T: usize, const DOT: bool>(
    work: &Work<'_>,
    out: &mut OutRows<'_>,
) {
    let mut i = 0;
    while i + GROUP <= out.len() && !work.w.group(out.first() + i).is_empty() {
        // SAFETY: as for this function, and the group is there.
        unsafe {
            if work.tokens == 1 {
                gemv::<BITS, BLOCK, DOT>(work, out, i);
            } else {
                gemm::<BITS, BLOCK, T, DOT>(work, out, i);
            }
        }
        i += GROUP;
    }
    integer_from(i, work, out);
}

/// 16 rows from row `i` for one token.
#[inline(always)]
unsafe fn gemv<const BITS: usize, const BLOCK: usize, const DOT: bool>(
    work: &Work<'_>,
    out: &mut OutRows<'_>,
    i: usize,
) {
    let blocks = work.w.cols() / BLOCK;
    let group = work.w.group(out.first() + i).as_ptr();
    let mut y = work.q8.as_ptr();
    // SAFETY: the caller has NEON and the group; `y` has all columns.
    unsafe {
        let mut codes = group.add(blocks * 2 * GROUP);
        let mut sum = [vdupq_n_f32(0.0); REGS];
        for b in 0..blocks {
            let mut n = start::<BLOCK>(y);
            for p in 0..BLOCK / PART {
                let y = &*y.add(p / 2);
                let mut sums = Sums::<DOT>::zero();
                add_part(&mut sums, |s| quad::<BITS>(codes, s), y.q.as_ptr().add(p % 2 * PART));
                add_factored(&mut n, sums.fours(), y.factor[p % 2]);
                codes = codes.add(64 * BITS);
            }
            y = y.add(BLOCK / Q8_LEN);
            add_block(&mut sum, n, scales(group.add(b * 2 * GROUP)));
        }
        put(work, out, 0, i, sum);
    }
}

/// 16 rows from row `i` for many tokens.
#[inline(always)]
unsafe fn gemm<const BITS: usize, const BLOCK: usize, const T: usize, const DOT: bool>(
    work: &Work<'_>,
    out: &mut OutRows<'_>,
    i: usize,
) {
    let cols = work.w.cols();
    let stride = q8_blocks(cols);
    let group = work.w.group(out.first() + i).as_ptr();
    // SAFETY: the caller has NEON and the group; each token has `stride` blocks of activations.
    unsafe {
        let codes = group.add(cols / BLOCK * 2 * GROUP);
        let mut unpacked = [[vdupq_n_u8(0); REGS]; CHUNK / 4];
        let mut d = [[vdupq_n_f32(0.0); REGS]; CHUNK / 64];
        for first in (0..work.tokens).step_by(TOKENS) {
            let tokens = TOKENS.min(work.tokens - first);
            let mut sums = [[vdupq_n_f32(0.0); REGS]; TOKENS];
            for at in (0..cols).step_by(CHUNK) {
                let len = CHUNK.min(cols - at);
                for p in 0..len / PART {
                    for s in 0..PART / 4 {
                        unpacked[p * (PART / 4) + s] =
                            quad::<BITS>(codes.add((at / PART + p) * 64 * BITS), s);
                    }
                }
                for b in 0..len / BLOCK {
                    d[b] = scales(group.add((at / BLOCK + b) * 2 * GROUP));
                }
                let y = work.q8.as_ptr().add(first * stride + at / Q8_LEN);
                let (codes, d) = (&unpacked[..len / 4], &d[..len / BLOCK]);
                let mut t = 0;
                while t + T <= tokens {
                    tile::<BLOCK, T, DOT>(codes, d, y.add(t * stride), stride, &mut sums[t..t + T]);
                    t += T;
                }
                while t < tokens {
                    tile::<BLOCK, 1, DOT>(codes, d, y.add(t * stride), stride, &mut sums[t..t + 1]);
                    t += 1;
                }
            }
            for (t, sum) in sums[..tokens].iter().enumerate() {
                put(work, out, first + t, i, *sum);
            }
        }
    }
}

/// Adds the products of 16 rows of unpacked codes, scales `d`, with T tokens, `stride` apart at `y`.
#[inline(always)]
unsafe fn tile<const BLOCK: usize, const T: usize, const DOT: bool>(
    codes: &[Quad],
    d: &[[float32x4_t; REGS]],
    y: *const Q8Block,
    stride: usize,
    sums: &mut [[float32x4_t; REGS]],
) {
    // SAFETY: the caller has NEON, `sdot` where DOT says so, as many columns of activations as of codes,
    // and T sums.
    unsafe {
        for (b, d) in d.iter().enumerate() {
            let (y, codes) = (y.add(b * (BLOCK / Q8_LEN)), codes.as_ptr().add(b * (BLOCK / 4)));
            let mut n = [[vdupq_n_s32(0); REGS]; T];
            for t in 0..T {
                n[t] = start::<BLOCK>(y.add(t * stride));
            }
            for p in 0..BLOCK / PART {
                let codes = codes.add(p * (PART / 4));
                let mut part = [Sums::<DOT>::zero(); T];
                for t in 0..T {
                    let y = &*y.add(t * stride + p / 2);
                    add_part(&mut part[t], |s| *codes.add(s), y.q.as_ptr().add(p % 2 * PART));
                }
                for t in 0..T {
                    add_factored(&mut n[t], part[t].fours(), (*y.add(t * stride + p / 2)).factor[p % 2]);
                }
            }
            for t in 0..T {
                add_block(sums.get_unchecked_mut(t), n[t], *d);
            }
        }
    }
}
