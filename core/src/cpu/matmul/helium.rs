//! 1-bit and ternary products with Helium, the vectors of Cortex-M55 and M85.
//!
//! One bit per weight is a predicate: it selects the activations that VADDVA adds, sixteen at once. 2-bit codes of 32
//! columns, eight bytes, are loaded twice side by side; shifted by a different amount in each half and masked, they are
//! the codes of columns `4 m` and `4 m + 1`, then of `4 m + 2` and `4 m + 3`, and VMLADAV adds sixteen products at once.
#![allow(unsafe_code)]

use core::arch::asm;

use super::args::Kernel;
use super::built::{ONE_BIT, TERNARY};
use super::pair_kernel::{BlockLayout, PairKernel, layouts, rows};
use crate::quant::Format;

/// The kernel for int8 activations and row-major weights.
pub(super) fn integer(format: Format) -> Option<Kernel> {
    match format {
        Format::Q1_0 if ONE_BIT => Some(rows::<Q1_0>),
        Format::Q2_0 if TERNARY => Some(rows::<Q2_0>),
        Format::Pq2_0 if TERNARY => Some(rows::<Pq2_0>),
        Format::Tq2_0G128 if TERNARY => Some(rows::<Tq2_0G128>),
        _ => None,
    }
}

layouts!(Q1_0, 128, 18, 0, 2, 2, Acts, in_sequence, dot_bits);
layouts!(Q2_0, 64, 18, 0, 2, 1, Acts, strided, dot_codes);
layouts!(Pq2_0, 128, 34, 0, 2, 1, Acts, strided, dot_codes);
layouts!(Tq2_0G128, 128, 34, 32, 0, 1, Acts, strided, dot_codes);

/// 64 activations.
#[derive(Clone, Copy)]
#[repr(align(16))]
pub(super) struct Acts([i8; 64]);

impl Default for Acts {
    fn default() -> Self {
        Acts([0; 64])
    }
}

fn in_sequence(q: &[i8; 64]) -> Acts {
    Acts(*q)
}

/// Column `4 m + k` of each 32 at `8 k + m`.
fn strided(q: &[i8; 64]) -> Acts {
    Acts(core::array::from_fn(|i| q[i / 32 * 32 + i % 8 * 4 + i % 32 / 8]))
}

#[inline(always)]
unsafe fn dot_codes(codes: [*const u8; 2], acts: &Acts) -> [[i32; 2]; 2] {
    // SAFETY: the caller's promise.
    codes.map(|codes| unsafe { dot_codes_row(codes, acts) })
}

/// Safety: 16 bytes of codes are readable.
#[inline(always)]
unsafe fn dot_codes_row(codes: *const u8, acts: &Acts) -> [i32; 2] {
    /// The bytes to load, and the shifts of the first and of the second pair of columns; negative is to the right.
    static LANES: [[i8; 16]; 3] = [
        [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7],
        [0, 0, 0, 0, 0, 0, 0, 0, -2, -2, -2, -2, -2, -2, -2, -2],
        [-4, -4, -4, -4, -4, -4, -4, -4, -6, -6, -6, -6, -6, -6, -6, -6],
    ];
    let (first, second);
    // SAFETY: the build was asked for this instruction set, or would not have assembled; it reads 16 bytes of codes, 64 of
    // activations and the constants.
    unsafe {
        asm!(
            "vldrb.u8 q0, [{k}]",
            "vldrb.u8 q1, [{k}, #16]",
            "vldrb.u8 q2, [{k}, #32]",
            "vmov.i8 q3, #3",
            "vldrb.u8 q4, [{codes}, q0]",
            "vshl.u8 q5, q4, q1",
            "vshl.u8 q6, q4, q2",
            "vand q5, q5, q3",
            "vand q6, q6, q3",
            "vldrb.u8 q7, [{acts}, #0]",
            "vmladav.s8 r0, q5, q7",
            "vldrb.u8 q7, [{acts}, #16]",
            "vmladava.s8 r0, q6, q7",
            "add {codes}, {codes}, #8",
            "vldrb.u8 q4, [{codes}, q0]",
            "vshl.u8 q5, q4, q1",
            "vshl.u8 q6, q4, q2",
            "vand q5, q5, q3",
            "vand q6, q6, q3",
            "vldrb.u8 q7, [{acts}, #32]",
            "vmladav.s8 r2, q5, q7",
            "vldrb.u8 q7, [{acts}, #48]",
            "vmladava.s8 r2, q6, q7",
            codes = inout(reg) codes => _,
            acts = in(reg) acts.0.as_ptr(),
            k = in(reg) LANES.as_ptr(),
            out("r0") first,
            out("r2") second,
            out("q0") _, out("q1") _, out("q2") _, out("q3") _,
            out("q4") _, out("q5") _, out("q6") _, out("q7") _,
            options(pure, readonly, nostack),
        );
    }
    [first, second]
}

#[inline(always)]
unsafe fn dot_bits(codes: [*const u8; 2], acts: &Acts) -> [[i32; 2]; 2] {
    // SAFETY: the caller's promise.
    codes.map(|codes| unsafe { dot_bits_row(codes, acts) })
}

/// Safety: 8 bytes of codes are readable, at any alignment.
#[inline(always)]
unsafe fn dot_bits_row(codes: *const u8, acts: &Acts) -> [i32; 2] {
    let (first, second);
    // SAFETY: the build was asked for this instruction set, or would not have assembled; it reads 8 bytes of codes and 64 of
    // activations.
    unsafe {
        asm!(
            "vmrs {saved}, p0",
            "mov r0, #0",
            "ldr {w}, [{codes}, #0]",
            "vldrb.u8 q0, [{acts}, #0]",
            "vldrb.u8 q1, [{acts}, #16]",
            "vmsr p0, {w}",
            "vpst",
            "vaddvat.s8 r0, q0",
            "lsr {w}, {w}, #16",
            "vmsr p0, {w}",
            "vpst",
            "vaddvat.s8 r0, q1",
            "mov r2, #0",
            "ldr {w}, [{codes}, #4]",
            "vldrb.u8 q0, [{acts}, #32]",
            "vldrb.u8 q1, [{acts}, #48]",
            "vmsr p0, {w}",
            "vpst",
            "vaddvat.s8 r2, q0",
            "lsr {w}, {w}, #16",
            "vmsr p0, {w}",
            "vpst",
            "vaddvat.s8 r2, q1",
            // The compiler cannot be told that the predicate changes.
            "vmsr p0, {saved}",
            codes = in(reg) codes,
            acts = in(reg) acts.0.as_ptr(),
            w = out(reg) _,
            saved = out(reg) _,
            out("r0") first,
            out("r2") second,
            out("q0") _, out("q1") _,
            options(pure, readonly, nostack),
        );
    }
    [first, second]
}
