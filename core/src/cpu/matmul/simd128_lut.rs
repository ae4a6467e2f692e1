//! simd128 over [`Layout::Panels8`]: table lookup of activation sums, sixteen rows at a time.
//!
//! There is no 8-bit multiplication, but `i8x16.swizzle` looks up sixteen bytes at once.
#![allow(unsafe_code)]

use core::arch::wasm32::*;

use super::args::{Kernel, MatmulArgs};
use super::panel_kernel::panel_rows;
use super::scalar::integer_from;
use super::token_lanes::{self, ByteLanes, Bytes, Codes, Lanes, Pair, Planes, TokenLanes};
use crate::cpu::activation_lut::{self, ActivationLut, FOUR, LUT_COLS, Subsets};
use crate::cpu::activations::{Q8_LEN, Q8Block, q8_blocks};
use crate::cpu::parallel::OutputRows;
use crate::cpu::repack::{Layout, PANEL_ROWS};
use crate::quant::Format;

/// The kernel for int8 activations and repacked rows.
pub(super) fn repacked(format: Format, layout: Layout) -> Option<Kernel> {
    if layout != Layout::Panels8 {
        return None;
    }
    Some(match format {
        Format::Q1_0 => rows::<LutKernel<1, 128>>,
        Format::Q2_0 => rows::<LutKernel<2, 64>>,
        Format::Pq2_0 => rows::<LutKernel<2, 128>>,
        Format::Tq2_0 => rows::<LutKernel<2, 256>>,
        _ => return None,
    })
}

/// Columns that share a factor.
const PART: usize = 32;
/// Bytes of a row, in each plane, that hold a part.
const PART_BYTES: usize = PART / 8;

/// Parts per block of one bit per code, and per [`ActivationLut`].
const PARTS: usize = LUT_COLS / PART;
/// Distance from one table to the next of the same part.
const TABLE_STRIDE: usize = 16 * PARTS;

/// Rows that are multiplied by many tokens before the next rows: their weights stay in the L2 cache, the
/// lookup tables of one token in the L1 cache.
const CHUNK: usize = 16 * PANEL_ROWS;

/// Sixteen repacked rows, times one token.
pub(super) trait Group {
    /// Iterations of the innermost loop.
    const TURNS: usize;
    /// Whether it uses lookup tables.
    const LOOKS_UP: bool;
    /// The running sums of a group of rows. `turns` is [`Self::TURNS`], passed at run time so that the
    /// compiler does not unroll the innermost loop: an engine's compiler hoists all loads of an unrolled loop
    /// to its start and runs out of registers.
    ///
    /// Safety: the group is complete, and `y` and `luts`, if it uses any, have all its columns.
    unsafe fn sums(group: &[u8], y: &[Q8Block], luts: &[ActivationLut], turns: usize) -> [v128; 4];

    /// Fills `out` up to row `end` for the first tokens. Returns how many.
    ///
    /// Safety: these rows are complete groups; `args` has lookup tables if it uses any.
    unsafe fn in_lanes(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>, end: usize) -> usize;
}

/// Fills `out` group by group.
pub(super) fn rows<G: Group>(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
    if G::LOOKS_UP && args.luts.is_empty() {
        return integer_from(0, args, out);
    }
    let stride = q8_blocks(args.w.cols());
    let luts = if G::LOOKS_UP { args.w.cols().div_ceil(LUT_COLS) } else { 0 };
    let end = panel_rows(args, out);
    // SAFETY: the rows and lookup tables are there.
    let in_lanes = unsafe { G::in_lanes(args, out, end) };
    let turns = core::hint::black_box(G::TURNS);
    for start in (0..end).step_by(CHUNK) {
        for t in in_lanes..args.tokens {
            let y = &args.q8[t * stride..][..stride];
            let luts = &args.luts[t * luts..][..luts];
            for i in (start..end.min(start + CHUNK)).step_by(PANEL_ROWS) {
                // SAFETY: the group is complete, and `y` and `luts` have all its columns.
                let sums = unsafe { G::sums(args.w.panel(out.first() + i), y, luts, turns) };
                let mut values = [0.0; PANEL_ROWS];
                for (values, sums) in values.as_chunks_mut::<4>().0.iter_mut().zip(sums) {
                    let sums = f32x4_mul(sums, f32x4_splat(args.step(t)));
                    // SAFETY: four floats.
                    unsafe { v128_store(values.as_mut_ptr().cast(), sums) };
                }
                out.put_all(t, i, &values);
            }
        }
    }
    integer_from(end, args, out);
}

#[inline(always)]
pub(super) unsafe fn load(p: *const u8) -> v128 {
    // SAFETY: the caller has 16 bytes at `p`.
    unsafe { v128_load(p.cast()) }
}

/// `P` planes of bits, blocks of `B` columns.
struct LutKernel<const P: usize, const B: usize>;

impl<const P: usize, const B: usize> Group for LutKernel<P, B> {
    const TURNS: usize = PART_BYTES;
    const LOOKS_UP: bool = true;

    #[inline(always)]
    unsafe fn sums(group: &[u8], y: &[Q8Block], luts: &[ActivationLut], part_bytes: usize) -> [v128; 4] {
        let blocks = group.len() / (2 * PANEL_ROWS + B / 8 * P * PANEL_ROWS);
        let (scales, codes) = group.split_at(blocks * 2 * PANEL_ROWS);
        let finite = finite(scales);
        let mut sum = [f32x4_splat(0.0); 4];
        let mut codes = codes.as_ptr();
        let (mut y, mut luts, mut half) = (y.as_ptr(), luts.as_ptr(), 0);
        for b in 0..blocks {
            let mut n = [i32x4_splat(0); 4];
            let mut start = 0i32;
            for _ in 0..B / Q8_LEN {
                // SAFETY: the caller has the group, the activations and their lookup tables.
                unsafe {
                    let parts = [0, 1].map(|part| {
                        let sums = (&raw const (*luts).sums).cast::<u8>().add((2 * half + part) * 16);
                        // See `Layout::Panels8` for the order of the bytes.
                        let codes = if P == 1 {
                            codes.add((2 * half + part) * PANEL_ROWS)
                        } else {
                            codes.add(part * PART_BYTES * P * PANEL_ROWS)
                        };
                        self::part::<P>(codes, sums, part_bytes)
                    });
                    let factor = i32x4_splat((*y).factor[0] | (*y).factor[1] << 16);
                    for half in 0..2 {
                        let [a, b] = parts.map(|part| part[half]);
                        let pairs = [
                            i16x8_shuffle::<0, 8, 1, 9, 2, 10, 3, 11>(a, b),
                            i16x8_shuffle::<4, 12, 5, 13, 6, 14, 7, 15>(a, b),
                        ];
                        for (n, pairs) in n[2 * half..].iter_mut().zip(pairs) {
                            *n = i32x4_add(*n, i32x4_dot_i16x8(pairs, factor));
                        }
                    }
                    // A weight is twice its bit minus 1, or its code minus 1.
                    let base = if P == 1 { 2 } else { 3 };
                    let moved = (&raw const (*luts).base).cast::<i32>().add(half).read().wrapping_mul(base);
                    start = start.wrapping_add((*y).start).wrapping_add(moved);
                    // A table has two halves.
                    (y, luts, half) = (y.add(1), luts.add(half), half ^ 1);
                    if P > 1 {
                        codes = codes.add(Q8_LEN / 8 * P * PANEL_ROWS);
                    }
                }
            }
            if P == 1 {
                codes = codes.wrapping_add(B / 8 * PANEL_ROWS);
            }
            // SAFETY: there are as many scales as blocks.
            let d = unsafe { self::scales(scales.as_ptr().add(b * 2 * PANEL_ROWS), finite) };
            for l in 0..4 {
                let n = if P == 1 { i32x4_shl(n[l], 1) } else { n[l] };
                let n = f32x4_convert_i32x4(i32x4_add(n, i32x4_splat(start)));
                sum[l] = f32x4_add(sum[l], f32x4_mul(n, d[l]));
            }
        }
        sum
    }

    #[inline(always)]
    unsafe fn in_lanes(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>, end: usize) -> usize {
        // SAFETY: the caller's promise.
        unsafe {
            match P {
                1 => in_lanes::<Bytes>(args, out, end, B),
                _ => in_lanes::<Planes>(args, out, end, B),
            }
        }
    }
}

/// [`token_lanes::rows`], compiled once for all formats.
#[inline(never)]
pub(super) unsafe fn in_lanes<C: Codes<Simd128> + Codes<Pair<Simd128>>>(
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
    end: usize,
    block: usize,
) -> usize {
    // SAFETY: the caller's promise.
    unsafe { token_lanes::rows::<Simd128, C>(args, out, end, block) }
}

/// Sixteen bytes of a table, at indices below 16, for which relaxed SIMD's instruction has the same result
/// everywhere.
#[inline(always)]
fn swizzle(table: v128, index: v128) -> v128 {
    #[cfg(target_feature = "relaxed-simd")]
    return u8x16_relaxed_swizzle(table, index);
    #[cfg(not(target_feature = "relaxed-simd"))]
    u8x16_swizzle(table, index)
}

/// The sums of 32 columns of sixteen rows, in 16 bits; those of the planes are added by their weight.
#[inline(always)]
unsafe fn part<const P: usize>(mut codes: *const u8, mut luts: *const u8, bytes: usize) -> [v128; 2] {
    let four = u8x16_splat(15);
    let mut sums = [[u8x16_splat(0); 2]; P];
    for _ in 0..bytes {
        for (p, sums) in sums.iter_mut().enumerate() {
            // SAFETY: the caller has `bytes` vectors of codes per plane and two lookup tables.
            unsafe {
                let byte = load(codes.add(p * PANEL_ROWS));
                for (nibble, index) in
                    [v128_and(byte, four), v128_and(u16x8_shr(byte, 4), four)].into_iter().enumerate()
                {
                    for (half, sums) in sums.iter_mut().enumerate() {
                        let table = load(luts.add((2 * nibble + half) * TABLE_STRIDE));
                        *sums = u8x16_add(*sums, swizzle(table, index));
                    }
                }
            }
        }
        codes = codes.wrapping_add(if P == 1 { PARTS * PANEL_ROWS } else { P * PANEL_ROWS });
        luts = luts.wrapping_add(4 * TABLE_STRIDE);
    }
    let sums = sums.map(|[low, high]| {
        let add = |low, high| u16x8_add(low, u16x8_shl(high, 4));
        [
            add(u16x8_extend_low_u8x16(low), u16x8_extend_low_u8x16(high)),
            add(u16x8_extend_high_u8x16(low), u16x8_extend_high_u8x16(high)),
        ]
    });
    [0, 1].map(
        |half| {
            if P == 1 { sums[0][half] } else { u16x8_add(sums[0][half], u16x8_shl(sums[P - 1][half], 1)) }
        },
    )
}

const F16_INFINITE: i16 = 0x7c00;

/// Whether all scales of a group are finite.
#[inline(always)]
pub(super) fn finite(scales: &[u8]) -> bool {
    let mut found = i16x8_splat(0);
    for scales in scales.as_chunks::<16>().0 {
        // SAFETY: sixteen bytes.
        let scales = unsafe { load(scales.as_ptr()) };
        let infinite = i16x8_splat(F16_INFINITE);
        found = v128_or(found, i16x8_eq(v128_and(scales, infinite), infinite));
    }
    !v128_any_true(found)
}

/// Sixteen scales.
#[inline(always)]
pub(super) unsafe fn scales(p: *const u8, finite: bool) -> [v128; 4] {
    // SAFETY: the caller has 32 bytes at `p`.
    let (a, b) = unsafe { (load(p), load(p.add(16))) };
    let words = [
        i32x4_extend_low_i16x8(a),
        i32x4_extend_high_i16x8(a),
        i32x4_extend_low_i16x8(b),
        i32x4_extend_high_i16x8(b),
    ];
    // Sign, exponent and mantissa are in place; only the exponent's bias is wrong.
    let words = words.map(|word| v128_and(u32x4_shl(word, 13), u32x4_splat(0x8fff_e000)));
    let floats = words.map(|word| f32x4_mul(word, f32x4_splat(f32::from_bits((127 + 112) << 23))));
    if finite {
        return floats;
    }
    core::array::from_fn(|l| {
        let infinite = u32x4_splat((F16_INFINITE as u32) << 13);
        let infinite = i32x4_eq(v128_and(words[l], infinite), infinite);
        v128_or(floats[l], v128_and(infinite, u32x4_splat(0x7f80_0000)))
    })
}

/// One token's lookup tables.
pub(super) fn build_lut(q8: &[Q8Block], out: &mut [ActivationLut]) {
    // SAFETY: this module is compiled only with simd128.
    unsafe { activation_lut::fill::<Simd128>(q8, out) };
}

/// simd128.
pub(super) struct Simd128;

impl Subsets for Simd128 {
    #[inline(always)]
    unsafe fn shifts(q: &[i8; Q8_LEN]) -> [i32; Q8_LEN / FOUR] {
        let mut shifts = [0; Q8_LEN / FOUR];
        for (q, shifts) in q.as_chunks::<16>().0.iter().zip(shifts.as_chunks_mut::<4>().0) {
            // SAFETY: sixteen bytes.
            let q = unsafe { load(q.as_ptr().cast()) };
            let sums = i32x4_extadd_pairwise_i16x8(i16x8_extadd_pairwise_i8x16(q));
            let less = i32x4_sub(i32x4_shr(sums, 1), i32x4_splat(254));
            // SAFETY: four integers.
            unsafe { v128_store(shifts.as_mut_ptr().cast(), less) };
        }
        shifts
    }

    #[inline(always)]
    unsafe fn table(q: [i8; FOUR], shift: i32, low: &mut [u8; 16], high: &mut [u8; 16]) {
        let q = q.map(i16::from);
        let subset = |bits: v128, q: i16| v128_and(bits, i16x8_splat(q));
        let first = i16x8_add(
            i16x8_add(
                subset(i16x8(0, -1, 0, -1, 0, -1, 0, -1), q[0]),
                subset(i16x8(0, 0, -1, -1, 0, 0, -1, -1), q[1]),
            ),
            i16x8_sub(subset(i16x8(0, 0, 0, 0, -1, -1, -1, -1), q[2]), i16x8_splat(shift as i16)),
        );
        // The subsets that also contain the last activation.
        let second = i16x8_add(first, i16x8_splat(q[3]));
        let four = i16x8_splat(15);
        let lows = u8x16_narrow_i16x8(v128_and(first, four), v128_and(second, four));
        let highs = u8x16_narrow_i16x8(u16x8_shr(first, 4), u16x8_shr(second, 4));
        // SAFETY: sixteen bytes each.
        unsafe {
            v128_store(low.as_mut_ptr().cast(), lows);
            v128_store(high.as_mut_ptr().cast(), highs);
        }
    }
}

/// A table has 256 entries for eight columns.
pub(super) const LANES: Lanes = Lanes { vector: 8, vectors: 2, from: 3, rows: 1024 };

#[allow(clippy::undocumented_unsafe_blocks, reason = "each block requires what the trait requires")]
impl TokenLanes for Simd128 {
    const LANES: Lanes = LANES;
    type Sums = v128;
    type Integers = [v128; 2];
    type Factors = [v128; 2];

    #[inline(always)]
    unsafe fn load(p: *const i16) -> v128 {
        unsafe { v128_load(p.cast()) }
    }

    #[inline(always)]
    unsafe fn store(p: *mut i16, sums: v128) {
        unsafe { v128_store(p.cast(), sums) };
    }

    #[inline(always)]
    unsafe fn add(a: v128, b: v128) -> v128 {
        i16x8_add(a, b)
    }

    #[inline(always)]
    unsafe fn load_integers(p: *const i32) -> [v128; 2] {
        unsafe { [v128_load(p.cast()), v128_load(p.add(4).cast())] }
    }

    #[inline(always)]
    unsafe fn store_integers(p: *mut i32, n: [v128; 2]) {
        unsafe {
            v128_store(p.cast(), n[0]);
            v128_store(p.add(4).cast(), n[1]);
        }
    }

    #[inline(always)]
    unsafe fn add_integers(a: [v128; 2], b: [v128; 2]) -> [v128; 2] {
        [i32x4_add(a[0], b[0]), i32x4_add(a[1], b[1])]
    }

    #[inline(always)]
    unsafe fn load_factors(p: *const i16) -> [v128; 2] {
        unsafe { [v128_load(p.cast()), v128_load(p.add(8).cast())] }
    }

    #[inline(always)]
    unsafe fn add_parts(n: [v128; 2], a: v128, b: v128, factors: [v128; 2]) -> [v128; 2] {
        let low = i16x8_shuffle::<0, 8, 1, 9, 2, 10, 3, 11>(a, b);
        let high = i16x8_shuffle::<4, 12, 5, 13, 6, 14, 7, 15>(a, b);
        [
            i32x4_add(n[0], i32x4_dot_i16x8(low, factors[0])),
            i32x4_add(n[1], i32x4_dot_i16x8(high, factors[1])),
        ]
    }

    #[inline(always)]
    unsafe fn add_block(sums: *mut f32, n: [v128; 2], d: f32) {
        for (h, n) in n.into_iter().enumerate() {
            let product = f32x4_mul(f32x4_convert_i32x4(n), f32x4_splat(d));
            unsafe {
                let sums = sums.add(4 * h).cast();
                v128_store(sums, f32x4_add(v128_load(sums), product));
            }
        }
    }

    #[inline(always)]
    unsafe fn scales(p: *const u8) -> [f32; PANEL_ROWS] {
        let mut d = [0.0; PANEL_ROWS];
        unsafe {
            for (d, scales) in d.as_chunks_mut::<4>().0.iter_mut().zip(self::scales(p, false)) {
                v128_store(d.as_mut_ptr().cast(), scales);
            }
        }
        d
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "the block needs what the trait asks for, and no more")]
impl ByteLanes for Simd128 {
    #[inline(always)]
    unsafe fn entries(codes: *const u8, shift: u32, entries: *mut u16) {
        unsafe {
            let codes = v128_load(codes.cast());
            v128_store(entries.cast(), i16x8_shl(u16x8_extend_low_u8x16(codes), shift));
            v128_store(entries.add(8).cast(), i16x8_shl(u16x8_extend_high_u8x16(codes), shift));
        }
    }
}
