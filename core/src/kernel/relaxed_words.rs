//! Relaxed SIMD over [`Layout::Words`], four rows a register, for codes of two bits: pairs of products with four
//! activations, which are the same for all rows, are added up in 16 bits over 32 columns.
//!
//! The instruction takes codes to 127, and says the same everywhere for these.
#![allow(unsafe_code)]

use core::arch::wasm32::*;

use super::Kernel;
use super::act::{Q8_LEN, Q8Block};
use super::simd128_tables::{self, Group, finite, load, rows, scales};
use super::tables::Tables;
use super::words::kernel_of;
use crate::quant::{Format, GROUP, Layout};

/// The kernel for int8 activations and interleaved rows.
pub(super) fn interleaved(format: Format, layout: Layout) -> Option<Kernel> {
    let kernel: Option<Kernel> = kernel_of!(kernel, format, layout);
    kernel.or_else(|| simd128_tables::interleaved(format, layout))
}

fn kernel<const BITS: usize, const BLOCK: usize>(work: &super::Work<'_>, out: &mut super::OutRows<'_>) {
    rows::<Products<BLOCK>>(work, out);
}

/// Whether the products take one instruction, as they do on x86. Elsewhere they take three, and table lookups are
/// faster. There, and nowhere else, codes above 127 are taken for what they are.
pub(super) fn multiplies_fast() -> bool {
    let (activations, codes) = core::hint::black_box((i8x16_splat(1), u8x16_splat(128)));
    i16x8_extract_lane::<0>(i16x8_relaxed_dot_i8x16_i7x16(activations, codes)) == 256
}

/// Registers of 16 rows.
const REGS: usize = GROUP / 4;
/// Columns of a word.
const WORD: usize = 16;
/// Columns that share a factor.
const PART: usize = 32;

/// Codes of two bits in blocks of `B` columns, multiplied.
struct Products<const B: usize>;

impl<const B: usize> Group for Products<B> {
    const TURNS: usize = PART / WORD;
    const LOOKS_UP: bool = false;

    #[inline(always)]
    unsafe fn sums(group: &[u8], y: &[Q8Block], _: &[Tables], turns: usize) -> [v128; REGS] {
        let blocks = group.len() / (2 * GROUP + B / 4 * GROUP);
        let (d, codes) = group.split_at(blocks * 2 * GROUP);
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
                        codes = codes.add(PART / 4 * GROUP);
                    }
                    start = start.wrapping_add((*y).start);
                    y = y.add(1);
                }
            }
            // SAFETY: there are as many scales as blocks.
            let d = unsafe { scales(d.as_ptr().add(b * 2 * GROUP), finite) };
            for r in 0..REGS {
                let n = f32x4_convert_i32x4(i32x4_add(n[r], i32x4_splat(start)));
                sum[r] = f32x4_add(sum[r], f32x4_mul(n, d[r]));
            }
        }
        sum
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
                // Codes that stay where they are, four times too large.
                let large = i16x8_add(dot(1, low, 12), dot(3, high, 12));
                let ones = i16x8_add(dot(0, low, 3), dot(2, high, 3));
                *sums = i16x8_add(*sums, i16x8_add(ones, i16x8_shr(large, 2)));
            }
        }
        (codes, q) = (codes.wrapping_add(WORD / 4 * GROUP), q.wrapping_add(WORD));
    }
    sums
}
