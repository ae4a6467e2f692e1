//! Relaxed SIMD over [`Layout::Panels32`], four rows per register, for 2-bit codes: pairs of products with
//! four activations, which are the same for all rows, are added in 16 bits over 32 columns.
//!
//! The result of the instruction is the same everywhere for codes up to 127.
#![allow(unsafe_code)]

use core::arch::wasm32::*;

use super::args::{Kernel, MatmulArgs};
use super::panel_kernel::kernel_of;
use super::simd128_lut::{self, Group, finite, load, rows, scales};
use super::token_lanes::Words;
use crate::cpu::activation_lut::ActivationLut;
use crate::cpu::activations::{Q8_LEN, Q8Block};
use crate::cpu::parallel::OutputRows;
use crate::cpu::repack::{Layout, PANEL_ROWS};
use crate::quant::Format;

/// The kernel for int8 activations and repacked rows.
pub(super) fn repacked(format: Format, layout: Layout) -> Option<Kernel> {
    let kernel: Option<Kernel> = kernel_of!(kernel, format, layout);
    kernel.or_else(|| simd128_lut::repacked(format, layout))
}

fn kernel<const BITS: usize, const BLOCK: usize>(
    args: &super::args::MatmulArgs<'_>,
    out: &mut crate::cpu::parallel::OutputRows<'_>,
) {
    rows::<Products<BLOCK>>(args, out);
}

/// Registers per 16 rows.
const REGS: usize = PANEL_ROWS / 4;
/// Columns per 32-bit word.
const WORD: usize = 16;
/// Columns that share a factor.
const PART: usize = 32;

/// Multiplies 2-bit codes in blocks of `B` columns.
struct Products<const B: usize>;

impl<const B: usize> Group for Products<B> {
    const TURNS: usize = PART / WORD;
    const LOOKS_UP: bool = false;

    #[inline(always)]
    unsafe fn sums(group: &[u8], y: &[Q8Block], _: &[ActivationLut], turns: usize) -> [v128; REGS] {
        let blocks = group.len() / (2 * PANEL_ROWS + B / 4 * PANEL_ROWS);
        let (d, codes) = group.split_at(blocks * 2 * PANEL_ROWS);
        let finite = finite(d);
        let mut sum = [f32x4_splat(0.0); REGS];
        let (mut codes, mut y) = (codes.as_ptr(), y.as_ptr());
        for b in 0..blocks {
            let mut n = [i32x4_splat(0); REGS];
            let mut start = 0i32;
            for _ in 0..B / Q8_LEN {
                // SAFETY: the caller has the group and the activations of its columns.
                unsafe {
                    for half in 0..Q8_LEN / PART {
                        let q = (&raw const (*y).q).cast::<u8>().add(half * PART);
                        let products = part(codes, q, turns);
                        let factor = i16x8_splat((*y).factor[half] as i16);
                        for (n, products) in n.iter_mut().zip(products) {
                            *n = i32x4_add(*n, i32x4_dot_i16x8(products, factor));
                        }
                        codes = codes.add(PART / 4 * PANEL_ROWS);
                    }
                    start = start.wrapping_add((*y).start);
                    y = y.add(1);
                }
            }
            // SAFETY: there are as many scales as blocks.
            let d = unsafe { scales(d.as_ptr().add(b * 2 * PANEL_ROWS), finite) };
            for r in 0..REGS {
                let n = f32x4_convert_i32x4(i32x4_add(n[r], i32x4_splat(start)));
                sum[r] = f32x4_add(sum[r], f32x4_mul(n, d[r]));
            }
        }
        sum
    }

    #[inline(always)]
    unsafe fn in_lanes(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>, end: usize) -> usize {
        if args.luts.is_empty() {
            return 0;
        }
        // SAFETY: the caller's promise.
        unsafe { simd128_lut::in_lanes::<Words<2>>(args, out, end, B) }
    }
}

/// The products of 32 columns of sixteen rows, in pairs: at most 16 times 3 * 127.
#[inline(always)]
unsafe fn part(mut codes: *const u8, mut q: *const u8, turns: usize) -> [v128; REGS] {
    let mut sums = [i16x8_splat(0); REGS];
    for _ in 0..turns {
        // SAFETY: the caller has `turns` times sixteen columns.
        unsafe {
            let fours = [0, 4, 8, 12].map(|at| v128_load32_splat(q.add(at).cast()));
            for (r, sums) in sums.iter_mut().enumerate() {
                let low = load(codes.add(16 * r));
                let high = u16x8_shr(low, 4);
                let dot = |four: usize, words, mask| {
                    i16x8_relaxed_dot_i8x16_i7x16(fours[four], v128_and(words, u8x16_splat(mask)))
                };
                // Codes left in place, four times too large.
                let large = i16x8_add(dot(1, low, 12), dot(3, high, 12));
                let ones = i16x8_add(dot(0, low, 3), dot(2, high, 3));
                *sums = i16x8_add(*sums, i16x8_add(ones, i16x8_shr(large, 2)));
            }
        }
        (codes, q) = (codes.wrapping_add(WORD / 4 * PANEL_ROWS), q.wrapping_add(WORD));
    }
    sums
}
