//! WebAssembly's 128-bit vectors, selected at build time.
//!
//! There is no 8-bit multiplication. The 2-bit and base-3 formats are unpacked to 16 bits, with the even
//! bytes of sixteen weights separate from the odd ones, so that adding 16-bit products yields sums of pairs;
//! for 1-bit weights the activations are masked and added in pairs. `i32x4.dot_i16x8_s` then multiplies pairs
//! by the factors of the activations.
#![allow(unsafe_code)]

use core::arch::wasm32::*;

use super::args::{Kernel, MatmulArgs};
use super::row_kernel::{RowKernel, rows};
use crate::cpu::activations::Q8Block;
use crate::cpu::parallel::OutputRows;
use crate::quant::{Format, f16_at};

/// The kernel for int8 activations; none for formats with at most 32 weights per scale.
pub(super) fn integer(format: Format) -> Option<Kernel> {
    Some(match format {
        Format::Q1_0 => |args, out| kernel::<Bits>(args, out),
        Format::Pq2_0 => |args, out| kernel::<PanelKernel<Pq2_0>>(args, out),
        Format::Tq2_0G128 => |args, out| kernel::<PanelKernel<Tq2_0G128>>(args, out),
        Format::Q2_0 => |args, out| kernel::<PanelKernel<Q2_0>>(args, out),
        Format::Tq2_0 => |args, out| kernel::<PanelKernel<Tq2_0>>(args, out),
        Format::Tq1_0 => |args, out| kernel::<PanelKernel<Tq1_0>>(args, out),
        Format::Ptq1_0 => |args, out| kernel::<PanelKernel<Ptq1_0>>(args, out),
        _ => return None,
    })
}

const GEMV_ROWS: usize = 4;
pub(super) const ROWS: usize = 4;
const TOKENS: usize = 1;

fn kernel<D: RowKernel>(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
    // SAFETY: this file is compiled only where simd128 is.
    unsafe { rows::<D, GEMV_ROWS, ROWS, TOKENS>(args, out) };
}

#[inline(always)]
pub(super) unsafe fn load(p: *const u8) -> v128 {
    // SAFETY: the caller has 16 bytes at `p`.
    unsafe { v128_load(p.cast()) }
}

/// 64 activations of `y`, four vectors.
#[inline(always)]
unsafe fn activations(y: &Q8Block) -> [v128; 4] {
    // SAFETY: `q` has 64 bytes.
    core::array::from_fn(|v| unsafe { load(y.q.as_ptr().cast::<u8>().add(16 * v)) })
}

/// The factors of the pairs of products of [`activations`].
#[inline(always)]
fn factors(y: &Q8Block) -> [v128; 4] {
    let [low, high] = y.factor.map(|f| i16x8_splat(f as i16));
    [low, low, high, high]
}

/// [`activations`] in the order in which shifting a vector of 2-bit codes by 0, 2, 4 and 6 bits yields the
/// weights: vector s has activations 4 i + s.
#[inline(always)]
unsafe fn strided(y: &Q8Block) -> [v128; 4] {
    // SAFETY: as for this function.
    let [a, b, c, d] = unsafe { activations(y) };
    let even = |a, b| i8x16_shuffle::<0, 4, 8, 12, 16, 20, 24, 28, 2, 6, 10, 14, 18, 22, 26, 30>(a, b);
    let odd = |a, b| i8x16_shuffle::<1, 5, 9, 13, 17, 21, 25, 29, 3, 7, 11, 15, 19, 23, 27, 31>(a, b);
    let (even, odd) = ([even(a, b), even(c, d)], [odd(a, b), odd(c, d)]);
    [
        i64x2_shuffle::<0, 2>(even[0], even[1]),
        i64x2_shuffle::<0, 2>(odd[0], odd[1]),
        i64x2_shuffle::<1, 3>(even[0], even[1]),
        i64x2_shuffle::<1, 3>(odd[0], odd[1]),
    ]
}

/// The factors of the pairs of products of [`strided`].
#[inline(always)]
fn strided_factors(y: &Q8Block) -> [v128; 4] {
    let [low, high] = y.factor.map(|f| i16x8_splat(f as i16));
    [i64x2_shuffle::<0, 2>(low, high); 4]
}

/// The initial value of the first lane of a block of `vectors` times 64 weights.
#[inline(always)]
unsafe fn start(y: *const Q8Block, vectors: usize) -> [v128; 2] {
    let mut start = 0i32;
    for v in 0..vectors {
        // SAFETY: the caller has `vectors` blocks at `y`.
        start = start.wrapping_add(unsafe { (*y.add(v)).start });
    }
    [i32x4_replace_lane::<0>(i32x4_splat(0), start), i32x4_splat(0)]
}

/// Adds a block to the running sum of a row.
#[inline(always)]
fn add_block(sum: f32, n: [v128; 2], scale: f32) -> f32 {
    let n = i32x4_add(n[0], n[1]);
    let n = i32x4_add(n, i64x2_shuffle::<1, 1>(n, n));
    let n = i32x4_extract_lane::<0>(n).wrapping_add(i32x4_extract_lane::<1>(n));
    sum + n as f32 * scale
}

/// The scale at `p`.
#[inline(always)]
unsafe fn scale(p: *const u8) -> f32 {
    // SAFETY: the caller has two bytes at `p`.
    f16_at(unsafe { core::slice::from_raw_parts(p, 2) }, 0)
}

/// Q1_0.
struct Bits;

/// The activations of 128 1-bit weights.
#[derive(Clone, Copy)]
struct BitActs {
    q: [v128; 8],
    factor: [v128; 8],
    start: [v128; 2],
}

impl RowKernel for Bits {
    const BYTES: usize = 18;
    const PARTS: usize = 1;
    const VECTORS: usize = 2;
    const GEMV_ROWS: usize = GEMV_ROWS;
    const ROWS: usize = ROWS;
    const TOKENS: usize = TOKENS;
    /// -1 where the weight is positive.
    type Codes = [v128; 8];
    type Acts = BitActs;
    type Integers = [v128; 2];
    type Scale = f32;
    type Sum = f32;

    #[inline(always)]
    unsafe fn codes(block: *const u8, _: usize) -> [v128; 8] {
        // SAFETY: as for this function.
        let bits = unsafe { load(block.add(2)) };
        let bit = u64x2_splat(0x8040_2010_0804_0201);
        [
            i8x16_shuffle::<0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1>(bits, bits),
            i8x16_shuffle::<2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3>(bits, bits),
            i8x16_shuffle::<4, 4, 4, 4, 4, 4, 4, 4, 5, 5, 5, 5, 5, 5, 5, 5>(bits, bits),
            i8x16_shuffle::<6, 6, 6, 6, 6, 6, 6, 6, 7, 7, 7, 7, 7, 7, 7, 7>(bits, bits),
            i8x16_shuffle::<8, 8, 8, 8, 8, 8, 8, 8, 9, 9, 9, 9, 9, 9, 9, 9>(bits, bits),
            i8x16_shuffle::<10, 10, 10, 10, 10, 10, 10, 10, 11, 11, 11, 11, 11, 11, 11, 11>(bits, bits),
            i8x16_shuffle::<12, 12, 12, 12, 12, 12, 12, 12, 13, 13, 13, 13, 13, 13, 13, 13>(bits, bits),
            i8x16_shuffle::<14, 14, 14, 14, 14, 14, 14, 14, 15, 15, 15, 15, 15, 15, 15, 15>(bits, bits),
        ]
        .map(|spread| i8x16_eq(v128_and(spread, bit), bit))
    }

    #[inline(always)]
    unsafe fn scale(block: *const u8) -> f32 {
        // SAFETY: as for this function.
        unsafe { scale(block) }
    }

    #[inline(always)]
    unsafe fn acts(y: *const Q8Block) -> BitActs {
        // SAFETY: as for this function.
        unsafe {
            let (q, factor) = ([0, 1].map(|b| activations(&*y.add(b))), [0, 1].map(|b| factors(&*y.add(b))));
            BitActs {
                q: core::array::from_fn(|v| q[v / 4][v % 4]),
                factor: core::array::from_fn(|v| factor[v / 4][v % 4]),
                start: start(y, 2),
            }
        }
    }

    #[inline(always)]
    unsafe fn dot(codes: [v128; 8], acts: BitActs) -> [v128; 2] {
        let mut set = [i32x4_splat(0); 2];
        for v in 0..8 {
            let pairs = i16x8_extadd_pairwise_i8x16(v128_and(codes[v], acts.q[v]));
            set[v % 2] = i32x4_add(set[v % 2], i32x4_dot_i16x8(pairs, acts.factor[v]));
        }
        // Codes 0 and 2.
        [0, 1].map(|h| i32x4_add(acts.start[h], i32x4_shl(set[h], 1)))
    }

    #[inline(always)]
    unsafe fn add(a: [v128; 2], b: [v128; 2]) -> [v128; 2] {
        [0, 1].map(|h| i32x4_add(a[h], b[h]))
    }

    #[inline(always)]
    unsafe fn zero() -> f32 {
        0.0
    }

    #[inline(always)]
    unsafe fn add_block(sum: f32, n: [v128; 2], scale: f32) -> f32 {
        add_block(sum, n, scale)
    }

    #[inline(always)]
    unsafe fn finish(sum: f32) -> f32 {
        sum
    }

    #[inline(always)]
    fn prefetch(_: *const u8, _: usize) {}
}

/// Unpacks a format's bytes to codes of zero point 1, at most 3.
trait Packed {
    const BYTES: usize;
    const PARTS: usize = 1;
    const VECTORS: usize;
    const STRIDED: bool;
    const SCALE: usize;
    /// The codes of step `part`: for each sixteen weights, the even ones and the odd ones; for blocks of 64
    /// weights, the last four are not used.
    unsafe fn codes(block: *const u8, part: usize) -> [[v128; 2]; 8];
}

/// The even bytes and the odd ones, sign-extended to 16 bits.
#[inline(always)]
pub(super) fn signed_words(bytes: v128) -> [v128; 2] {
    [i16x8_shr(i16x8_shl(bytes, 8), 8), i16x8_shr(bytes, 8)]
}

/// The two bits at `shift` of each byte: of the even bytes, then of the odd ones.
#[inline(always)]
fn two_bits(bytes: v128, shift: u32) -> [v128; 2] {
    let three = i16x8_splat(3);
    [v128_and(u16x8_shr(bytes, shift), three), v128_and(u16x8_shr(bytes, 8 + shift), three)]
}

/// 64 sequential codes at `p`, in strided order.
#[inline(always)]
unsafe fn strided_codes(p: *const u8) -> [[v128; 2]; 4] {
    // SAFETY: the caller has 16 bytes at `p`.
    let bytes = unsafe { load(p) };
    [0, 2, 4, 6].map(|shift| two_bits(bytes, shift))
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
    unsafe fn codes(block: *const u8, _: usize) -> [[v128; 2]; 8] {
        // SAFETY: as for this function.
        let halves = unsafe { [strided_codes(block.add(CODES_AT)), strided_codes(block.add(CODES_AT + 16))] };
        core::array::from_fn(|v| halves[v / 4][v % 4])
    }
}

struct Q2_0;
impl Packed for Q2_0 {
    const BYTES: usize = 18;
    const VECTORS: usize = 1;
    const STRIDED: bool = true;
    const SCALE: usize = 0;

    #[inline(always)]
    unsafe fn codes(block: *const u8, _: usize) -> [[v128; 2]; 8] {
        // SAFETY: as for this function.
        let codes = unsafe { strided_codes(block.add(2)) };
        core::array::from_fn(|v| codes[v % 4])
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
    unsafe fn codes(block: *const u8, part: usize) -> [[v128; 2]; 8] {
        // SAFETY: as for this function.
        let bytes = unsafe { [load(block.add(32 * part)), load(block.add(32 * part + 16))] };
        core::array::from_fn(|v| two_bits(bytes[v % 2], v as u32 / 2 * 2))
    }
}

/// The base-3 digits that multiplying each byte by its power of 3 moves to the top; bytes 2 i and 2 i + 1
/// share `power[i]`.
#[inline(always)]
fn digits(bytes: v128, power: v128) -> [v128; 2] {
    let low = i16x8_splat(0xff);
    [v128_and(bytes, low), u16x8_shr(bytes, 8)].map(|byte| {
        let top = v128_and(i16x8_mul(byte, power), low);
        u16x8_shr(i16x8_mul(top, i16x8_splat(3)), 8)
    })
}

/// Powers 1, 3, 9 and 27, four bytes each.
const TAIL_2: v128 = i16x8(1, 1, 3, 3, 9, 9, 27, 27);

/// Two powers, eight bytes each.
const fn two(a: i16, b: i16) -> v128 {
    i16x8(a, a, a, a, b, b, b, b)
}

struct Tq1_0;
impl Packed for Tq1_0 {
    const BYTES: usize = 54;
    const PARTS: usize = 2;
    const VECTORS: usize = 2;
    const STRIDED: bool = false;
    const SCALE: usize = 52;

    #[inline(always)]
    unsafe fn codes(block: *const u8, part: usize) -> [[v128; 2]; 8] {
        // SAFETY: as for this function.
        unsafe {
            let first = [load(block), load(block.add(16))];
            if part == 0 {
                return core::array::from_fn(|v| digits(first[v % 2], i16x8_splat([1, 3, 9, 27][v / 2])));
            }
            let second = load(block.add(32));
            let third = v128_load32_splat(block.add(48).cast());
            [
                digits(first[0], i16x8_splat(81)),
                digits(first[1], i16x8_splat(81)),
                digits(second, i16x8_splat(1)),
                digits(second, i16x8_splat(3)),
                digits(second, i16x8_splat(9)),
                digits(second, i16x8_splat(27)),
                digits(second, i16x8_splat(81)),
                digits(third, TAIL_2),
            ]
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
    unsafe fn codes(block: *const u8, _: usize) -> [[v128; 2]; 8] {
        // SAFETY: as for this function.
        unsafe {
            let first = load(block);
            let second = v128_load64_splat(block.add(16).cast());
            let third = v128_load16_splat(block.add(24).cast());
            let last = i64x2_shuffle::<0, 3>(second, third);
            [
                digits(first, i16x8_splat(1)),
                digits(first, i16x8_splat(3)),
                digits(first, i16x8_splat(9)),
                digits(first, i16x8_splat(27)),
                digits(first, i16x8_splat(81)),
                digits(second, two(1, 3)),
                digits(second, two(9, 27)),
                digits(last, i16x8(81, 81, 81, 81, 1, 3, 9, 27)),
            ]
        }
    }
}

/// The formats unpacked to 16 bits.
struct PanelKernel<F>(core::marker::PhantomData<F>);

/// The activations of a step.
#[derive(Clone, Copy)]
struct WordActs {
    /// The even ones and the odd ones of each sixteen.
    q: [[v128; 2]; 8],
    factor: [v128; 8],
    start: [v128; 2],
}

impl<F: Packed> RowKernel for PanelKernel<F> {
    const BYTES: usize = F::BYTES;
    const PARTS: usize = F::PARTS;
    const VECTORS: usize = F::VECTORS;
    const GEMV_ROWS: usize = GEMV_ROWS;
    const ROWS: usize = ROWS;
    const TOKENS: usize = TOKENS;
    type Codes = [[v128; 2]; 8];
    type Acts = WordActs;
    type Integers = [v128; 2];
    type Scale = f32;
    type Sum = f32;

    #[inline(always)]
    unsafe fn codes(block: *const u8, part: usize) -> [[v128; 2]; 8] {
        // SAFETY: as for this function.
        unsafe { F::codes(block, part) }
    }

    #[inline(always)]
    unsafe fn scale(block: *const u8) -> f32 {
        // SAFETY: as for this function.
        unsafe { scale(block.add(F::SCALE)) }
    }

    #[inline(always)]
    unsafe fn acts(y: *const Q8Block) -> WordActs {
        // SAFETY: as for this function; with one block, the second half repeats the first.
        unsafe {
            let block = |v: usize| &*y.add(v / 4 % F::VECTORS);
            let (q, factor): ([[v128; 4]; 2], [[v128; 4]; 2]) = if F::STRIDED {
                ([0, 4].map(|v| strided(block(v))), [0, 4].map(|v| strided_factors(block(v))))
            } else {
                ([0, 4].map(|v| activations(block(v))), [0, 4].map(|v| factors(block(v))))
            };
            WordActs {
                q: core::array::from_fn(|v| signed_words(q[v / 4][v % 4])),
                factor: core::array::from_fn(|v| factor[v / 4][v % 4]),
                start: start(y, F::VECTORS),
            }
        }
    }

    #[inline(always)]
    unsafe fn dot(codes: [[v128; 2]; 8], acts: WordActs) -> [v128; 2] {
        let pairs =
            |v: usize| i16x8_add(i16x8_mul(codes[v][0], acts.q[v][0]), i16x8_mul(codes[v][1], acts.q[v][1]));
        let mut n = acts.start;
        for v in 0..4 * F::VECTORS {
            // In strided order, vectors at a distance of two have the same factors.
            if !F::STRIDED {
                n[v % 2] = i32x4_add(n[v % 2], i32x4_dot_i16x8(pairs(v), acts.factor[v]));
            } else if v % 4 < 2 {
                let pairs = i16x8_add(pairs(v), pairs(v + 2));
                n[v % 2] = i32x4_add(n[v % 2], i32x4_dot_i16x8(pairs, acts.factor[v]));
            }
        }
        n
    }

    #[inline(always)]
    unsafe fn add(a: [v128; 2], b: [v128; 2]) -> [v128; 2] {
        [0, 1].map(|h| i32x4_add(a[h], b[h]))
    }

    #[inline(always)]
    unsafe fn zero() -> f32 {
        0.0
    }

    #[inline(always)]
    unsafe fn add_block(sum: f32, n: [v128; 2], scale: f32) -> f32 {
        add_block(sum, n, scale)
    }

    #[inline(always)]
    unsafe fn finish(sum: f32) -> f32 {
        sum
    }

    #[inline(always)]
    fn prefetch(_: *const u8, _: usize) {}
}
