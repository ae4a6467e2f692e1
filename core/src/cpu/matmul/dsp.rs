//! Ternary products with the DSP instructions of Cortex-M4, M7 and M33: SMLAD multiplies two pairs of 16-bit integers and
//! adds both products.
//!
//! A word has the codes of 16 columns. Masked with 0x00030003 after a shift by `2 k`, it is the codes of columns `k` and
//! `8 + k`, so the activations are paired in that order.
#![allow(unsafe_code)]

use core::arch::asm;

use super::args::{Kernel, MatmulArgs};
use super::built::TERNARY;
use super::byte_tables;
use super::pair_kernel::{BlockLayout, PairKernel, layouts, rows, rows_of};
use crate::cpu::parallel::OutputRows;
use crate::quant::Format;

/// The kernel for int8 activations and row-major weights. One bit per weight is looked up: eight products take fewer
/// instructions than SMLAD needs.
pub(super) fn integer(format: Format) -> Option<Kernel> {
    if !UNROLLED {
        return if ternary(format).is_some() { Some(any_layout) } else { byte_tables::one_bit(format) };
    }
    match format {
        Format::Q2_0 if TERNARY => Some(rows::<Q2_0>),
        Format::Pq2_0 if TERNARY => Some(rows::<Pq2_0>),
        Format::Tq2_0G128 if TERNARY => Some(rows::<Tq2_0G128>),
        _ => byte_tables::one_bit(format),
    }
}

/// Whether each layout has a loop of its own, which takes a kB.
const UNROLLED: bool = cfg!(feature = "unrolled");

fn ternary(format: Format) -> Option<BlockLayout> {
    match format {
        Format::Q2_0 if TERNARY => Some(Q2_0::LAYOUT),
        Format::Pq2_0 if TERNARY => Some(Pq2_0::LAYOUT),
        Format::Tq2_0G128 if TERNARY => Some(Tq2_0G128::LAYOUT),
        _ => None,
    }
}

fn any_layout(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
    if let Some(layout) = ternary(args.w.format()) {
        rows_of::<Pq2_0>(layout, args, out);
    }
}

layouts!(Q2_0, 64, 18, 0, 2, 1, Pairs, pairs, dot);
layouts!(Pq2_0, 128, 34, 0, 2, 1, Pairs, pairs, dot);
layouts!(Tq2_0G128, 128, 34, 32, 0, 1, Pairs, pairs, dot);

/// 64 activations in pairs: word `8 r + k` has those of columns `16 r + k` and `16 r + 8 + k`. Aligned for LDRD.
#[derive(Clone, Copy, Default)]
#[repr(align(8))]
pub(super) struct Pairs([[u32; 8]; 4]);

fn pairs(q: &[i8; 64]) -> Pairs {
    let mut pairs = Pairs::default();
    for (pairs, q) in pairs.0.iter_mut().zip(q.as_chunks::<16>().0) {
        for k in 0..8 {
            let half = |q: i8| u32::from(i16::from(q) as u16);
            pairs[k] = half(q[k]) | half(q[8 + k]) << 16;
        }
    }
    pairs
}

#[inline(always)]
unsafe fn dot(codes: [*const u8; 2], acts: &Pairs) -> [[i32; 2]; 2] {
    let mut sums = [[0; 2]; 2];
    for part in 0..2 {
        // SAFETY: the caller's promise: 16 bytes of codes, of which these are 8.
        let [first, second] = unsafe { dot_32(codes.map(|codes| codes.add(8 * part)), &acts.0[2 * part..]) };
        (sums[0][part], sums[1][part]) = (first, second);
    }
    sums
}

/// Loads a word of codes of each row.
macro_rules! load {
    ($at:literal) => {
        concat!("ldr {w0}, [{p0}, #", $at, "]\nldr {w1}, [{p1}, #", $at, "]")
    };
}

/// Multiplies two pairs of columns of each row, whose codes are at these shifts, by two words of activations.
macro_rules! columns {
    ($at:literal, $even:literal, $odd:literal) => {
        concat!(
            "ldrd {a}, {b}, [{acts}, #",
            $at,
            "]\nand {t}, {m}, {w0}, ",
            $even,
            "\nsmlad {s0}, {t}, {a}, {s0}\nand {t}, {m}, {w1}, ",
            $even,
            "\nsmlad {s1}, {t}, {a}, {s1}\nand {t}, {m}, {w0}, ",
            $odd,
            "\nsmlad {s0}, {t}, {b}, {s0}\nand {t}, {m}, {w1}, ",
            $odd,
            "\nsmlad {s1}, {t}, {b}, {s1}",
        )
    };
}

/// Safety: 8 bytes of codes are readable at both pointers, at any alignment; `acts` has two runs.
#[cfg_attr(feature = "unrolled", inline(always))]
#[cfg_attr(not(feature = "unrolled"), inline(never))]
unsafe fn dot_32(codes: [*const u8; 2], acts: &[[u32; 8]]) -> [i32; 2] {
    let (mut first, mut second) = (0, 0);
    // SAFETY: the build was asked for this instruction set, or would not have assembled; it reads 8 bytes of codes and 64 of
    // activations.
    unsafe {
        asm!(
            load!(0),
            columns!(0, "lsl #0", "lsr #2"),
            columns!(8, "lsr #4", "lsr #6"),
            columns!(16, "lsr #8", "lsr #10"),
            columns!(24, "lsr #12", "lsr #14"),
            load!(4),
            columns!(32, "lsl #0", "lsr #2"),
            columns!(40, "lsr #4", "lsr #6"),
            columns!(48, "lsr #8", "lsr #10"),
            columns!(56, "lsr #12", "lsr #14"),
            p0 = in(reg) codes[0],
            p1 = in(reg) codes[1],
            acts = in(reg) acts.as_ptr(),
            m = in(reg) 0x0003_0003,
            s0 = inout(reg) first,
            s1 = inout(reg) second,
            w0 = out(reg) _,
            w1 = out(reg) _,
            a = out(reg) _,
            b = out(reg) _,
            t = out(reg) _,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    [first, second]
}
