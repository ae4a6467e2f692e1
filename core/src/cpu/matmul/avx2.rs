//! AVX2: 32 weights per vector.
//!
//! As for AVX-512, weights are codes above a zero point of 1: `vpmaddubsw` sums pairs of products,
//! `vpmaddwd` pairs of those times the factors of the activations.
#![allow(unsafe_code)]

use core::arch::x86_64::*;
use core::marker::PhantomData;

use super::args::{Kernel, MatmulArgs};
use super::row_kernel::{RowKernel, rows};
use crate::cpu::activations::Q8Block;
use crate::cpu::op::finish_float;
use crate::cpu::parallel::OutputRows;
use crate::quant::Format;

/// The kernel for int8 activations; none for formats with at most 32 weights per scale.
pub(super) fn integer(format: Format) -> Option<Kernel> {
    Some(match format {
        Format::Q1_0 => integer_rows::<Q1_0>,
        Format::Pq2_0 => integer_rows::<Pq2_0>,
        Format::Tq2_0G128 => integer_rows::<Tq2_0G128>,
        Format::Tq2_0 => integer_rows::<Tq2_0>,
        Format::Tq1_0 => integer_rows::<Tq1_0>,
        Format::Ptq1_0 => integer_rows::<Ptq1_0>,
        Format::Q2_0 => integer_rows::<Q2_0>,
        _ => return None,
    })
}

/// The kernel for f32 activations.
pub(super) fn float(format: Format) -> Option<Kernel> {
    Some(match format {
        Format::F32 => float_rows::<F32>,
        Format::F16 => float_rows::<F16>,
        Format::Bf16 => float_rows::<Bf16>,
        _ => float_unpacked,
    })
}

/// Prefetches ahead of the bytes at `p`, which may be any address.
#[inline(always)]
pub(super) fn prefetch(p: *const u8, bytes: usize) {
    const DISTANCE: usize = 8192;
    prefetch_lines(p.wrapping_add(DISTANCE), bytes);
}

/// Prefetches the bytes at `p`, which may be any address.
#[inline(always)]
pub(super) fn prefetch_lines(p: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(64) {
        // SAFETY: a prefetch may be of any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(64 * line).cast()) };
    }
}

/// Unpacks a format's bytes to codes of zero point 1, at most 3.
trait Packed {
    const BYTES: usize;
    const PARTS: usize = 1;
    /// Multiples of 64 weights per step: 2, or 1 for blocks of 64 weights.
    const VECTORS: usize;
    /// Whether the codes are in the order of [`strided`].
    const STRIDED: bool;
    /// Offset of the scale.
    const SCALE: usize;
    /// The codes of step `part`; for blocks of 64 weights, the last two are not used.
    unsafe fn codes(block: *const u8, part: usize) -> [__m256i; 4];
}

/// Loads 16 bytes at `p` into both halves.
#[inline(always)]
pub(super) unsafe fn both16(p: *const u8) -> __m256i {
    // SAFETY: the caller has AVX2, and 16 bytes at `p`.
    unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(p.cast())) }
}

/// 64 sequential codes at `p`, in the order of [`strided`].
#[inline(always)]
unsafe fn strided_codes(p: *const u8) -> [__m256i; 2] {
    // SAFETY: the caller has AVX2, and 16 bytes at `p`.
    unsafe {
        let (bytes, three) = (both16(p), _mm256_set1_epi8(3));
        let shifts = [_mm256_setr_epi64x(0, 0, 4, 4), _mm256_setr_epi64x(2, 2, 6, 6)];
        shifts.map(|shift| _mm256_and_si256(_mm256_srlv_epi64(bytes, shift), three))
    }
}

struct Q1_0;
impl Packed for Q1_0 {
    const BYTES: usize = 18;
    const VECTORS: usize = 2;
    const STRIDED: bool = false;
    const SCALE: usize = 0;

    #[inline(always)]
    unsafe fn codes(block: *const u8, _: usize) -> [__m256i; 4] {
        // SAFETY: the caller has AVX2, and a block at `block`.
        unsafe {
            let bytes = both16(block.add(2));
            let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201u64 as i64);
            let eight = |a: i64| a * 0x0101_0101_0101_0101;
            [0, 4, 8, 12].map(|k| {
                let spread = _mm256_setr_epi64x(eight(k), eight(k + 1), eight(k + 2), eight(k + 3));
                let bits = _mm256_and_si256(_mm256_shuffle_epi8(bytes, spread), bit);
                // 0 or 2.
                _mm256_andnot_si256(_mm256_cmpeq_epi8(bits, _mm256_setzero_si256()), _mm256_set1_epi8(2))
            })
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
    unsafe fn codes(block: *const u8, _: usize) -> [__m256i; 4] {
        // SAFETY: the caller has AVX2, and a block at `block`.
        unsafe {
            let ([a, b], [c, d]) =
                (strided_codes(block.add(CODES_AT)), strided_codes(block.add(CODES_AT + 16)));
            [a, b, c, d]
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
    unsafe fn codes(block: *const u8, _: usize) -> [__m256i; 4] {
        // SAFETY: the caller has AVX2, and a block at `block`.
        unsafe {
            let [a, b] = strided_codes(block.add(2));
            [a, b, a, b]
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
    unsafe fn codes(block: *const u8, part: usize) -> [__m256i; 4] {
        // SAFETY: the caller has AVX2, and a block at `block`.
        unsafe {
            let bytes = _mm256_loadu_si256(block.add(32 * part).cast());
            let three = _mm256_set1_epi8(3);
            [
                _mm256_and_si256(bytes, three),
                _mm256_and_si256(_mm256_srli_epi16::<2>(bytes), three),
                _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), three),
                _mm256_and_si256(_mm256_srli_epi16::<6>(bytes), three),
            ]
        }
    }
}

/// The base-3 digit that multiplying each byte by its power of 3 moves to the top; bytes 2 i and 2 i + 1
/// share `power[i]`.
#[inline(always)]
unsafe fn digits(bytes: __m256i, power: __m256i) -> __m256i {
    // SAFETY: the caller has AVX2.
    unsafe {
        let low = _mm256_set1_epi16(0xff);
        let even = _mm256_and_si256(_mm256_mullo_epi16(_mm256_and_si256(bytes, low), power), low);
        let odd = _mm256_slli_epi16::<8>(_mm256_mullo_epi16(_mm256_srli_epi16::<8>(bytes), power));
        let x = _mm256_or_si256(even, odd);
        // (x * 3) >> 8 is the number of thresholds 86 and 171 that are at most x; a true comparison is -1.
        let at_least = |n: u8| _mm256_cmpeq_epi8(_mm256_max_epu8(x, _mm256_set1_epi8(n as i8)), x);
        let minus = _mm256_add_epi8(at_least(86), at_least(171));
        _mm256_sub_epi8(_mm256_setzero_si256(), minus)
    }
}

/// A power of 3 four times over.
const fn p(power: i64) -> i64 {
    power * 0x0001_0001_0001_0001
}

/// Powers 1, 3, 9 and 27 for bytes with four digits: four bytes each (TQ1_0) and two bytes each (PTQ1_0).
const TAIL_2: [i64; 2] = [0x0003_0003_0001_0001, 0x001b_001b_0009_0009];
const TAIL_1: i64 = 0x001b_0009_0003_0001;

struct Tq1_0;
impl Packed for Tq1_0 {
    const BYTES: usize = 54;
    const PARTS: usize = 2;
    const VECTORS: usize = 2;
    const STRIDED: bool = false;
    const SCALE: usize = 52;

    #[inline(always)]
    unsafe fn codes(block: *const u8, part: usize) -> [__m256i; 4] {
        // SAFETY: the caller has AVX2, and a block at `block`.
        unsafe {
            let first = _mm256_loadu_si256(block.cast());
            if part == 0 {
                // Not `map`: a closure that is not inlined would be compiled without AVX2.
                return [
                    digits(first, _mm256_set1_epi16(1)),
                    digits(first, _mm256_set1_epi16(3)),
                    digits(first, _mm256_set1_epi16(9)),
                    digits(first, _mm256_set1_epi16(27)),
                ];
            }
            let second = both16(block.add(32));
            let third = _mm256_set1_epi32(block.add(48).cast::<i32>().read_unaligned());
            [
                digits(first, _mm256_set1_epi16(81)),
                digits(second, _mm256_setr_epi64x(p(1), p(1), p(3), p(3))),
                digits(second, _mm256_setr_epi64x(p(9), p(9), p(27), p(27))),
                digits(
                    _mm256_blend_epi32::<0b1111_0000>(second, third),
                    _mm256_setr_epi64x(p(81), p(81), TAIL_2[0], TAIL_2[1]),
                ),
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
    unsafe fn codes(block: *const u8, _: usize) -> [__m256i; 4] {
        // SAFETY: the caller has AVX2, and a block at `block`.
        unsafe {
            let first = both16(block);
            let second = _mm256_set1_epi64x(block.add(16).cast::<i64>().read_unaligned());
            let third = _mm256_set1_epi16(block.add(24).cast::<i16>().read_unaligned());
            [
                digits(first, _mm256_setr_epi64x(p(1), p(1), p(3), p(3))),
                digits(first, _mm256_setr_epi64x(p(9), p(9), p(27), p(27))),
                digits(
                    _mm256_blend_epi32::<0b1111_0000>(first, second),
                    _mm256_setr_epi64x(p(81), p(81), p(1), p(3)),
                ),
                digits(
                    _mm256_blend_epi32::<0b1100_0000>(second, third),
                    _mm256_setr_epi64x(p(9), p(27), p(81), TAIL_1),
                ),
            ]
        }
    }
}

/// The activations of a step.
#[derive(Clone, Copy)]
struct Acts {
    q: [__m256i; 4],
    /// The factor of each pair of products.
    factor: [__m256i; 4],
    /// The initial value of the lanes.
    start: __m256i,
}

/// 64 activations and their factors in the order in which shifting a vector of 2-bit codes by 0 (and 4), and
/// by 2 (and 6), yields the weights: activations 4 i, then 4 i + 2; 4 i + 1, then 4 i + 3.
#[inline(always)]
unsafe fn strided(q: [__m256i; 2], factor: [__m256i; 2]) -> ([__m256i; 2], [__m256i; 2]) {
    // SAFETY: the caller has AVX2.
    unsafe {
        let fours =
            _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
        let halves = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        let a = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(q[0], fours), halves);
        let b = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(q[1], fours), halves);
        let q = [_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b)];
        (q, [_mm256_unpacklo_epi64(factor[0], factor[1]); 2])
    }
}

struct Avx2<F>(PhantomData<F>);

impl<F: Packed> RowKernel for Avx2<F> {
    const BYTES: usize = F::BYTES;
    const PARTS: usize = F::PARTS;
    const VECTORS: usize = F::VECTORS;
    const GEMV_ROWS: usize = 4;
    const ROWS: usize = 4;
    const TOKENS: usize = 2;
    type Codes = [__m256i; 4];
    type Acts = Acts;
    type Integers = __m256i;
    type Scale = __m128;
    /// In the lowest lane.
    type Sum = __m128;

    #[inline(always)]
    unsafe fn codes(block: *const u8, part: usize) -> [__m256i; 4] {
        // SAFETY: as for this function.
        unsafe { F::codes(block, part) }
    }

    #[inline(always)]
    unsafe fn scale(block: *const u8) -> __m128 {
        // SAFETY: as for this function; the scale is in the block.
        unsafe {
            let bits = block.add(F::SCALE).cast::<u16>().read_unaligned();
            _mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits)))
        }
    }

    #[inline(always)]
    unsafe fn acts(y: *const Q8Block) -> Acts {
        // SAFETY: as for this function.
        unsafe {
            let zero = _mm256_setzero_si256();
            let mut acts = Acts { q: [zero; 4], factor: [zero; 4], start: zero };
            let mut start = 0i32;
            for v in 0..F::VECTORS {
                let y = &*y.add(v);
                let q = y.q.as_ptr().cast::<__m256i>();
                let q = [_mm256_loadu_si256(q), _mm256_loadu_si256(q.add(1))];
                let factor = [_mm256_set1_epi16(y.factor[0] as i16), _mm256_set1_epi16(y.factor[1] as i16)];
                let (q, factor) = if F::STRIDED { strided(q, factor) } else { (q, factor) };
                [acts.q[2 * v], acts.q[2 * v + 1]] = q;
                [acts.factor[2 * v], acts.factor[2 * v + 1]] = factor;
                start = start.wrapping_add(y.start);
            }
            acts.start = _mm256_zextsi128_si256(_mm_cvtsi32_si128(start));
            acts
        }
    }

    #[inline(always)]
    unsafe fn dot(codes: [__m256i; 4], acts: Acts) -> __m256i {
        let mut n = acts.start;
        for v in 0..2 * F::VECTORS {
            // SAFETY: the caller has AVX2.
            n = unsafe {
                _mm256_add_epi32(
                    n,
                    _mm256_madd_epi16(_mm256_maddubs_epi16(codes[v], acts.q[v]), acts.factor[v]),
                )
            };
        }
        n
    }

    #[inline(always)]
    unsafe fn add(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the caller has AVX2.
        unsafe { _mm256_add_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn zero() -> __m128 {
        // SAFETY: the caller has AVX2.
        unsafe { _mm_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn add_block(sum: __m128, n: __m256i, scale: __m128) -> __m128 {
        // SAFETY: the caller has AVX2.
        unsafe {
            let n = _mm_add_epi32(_mm256_castsi256_si128(n), _mm256_extracti128_si256::<1>(n));
            let n = _mm_add_epi32(n, _mm_unpackhi_epi64(n, n));
            let n = _mm_add_epi32(n, _mm_shuffle_epi32::<1>(n));
            _mm_add_ss(sum, _mm_mul_ss(_mm_cvtepi32_ps(n), scale))
        }
    }

    #[inline(always)]
    unsafe fn finish(sum: __m128) -> f32 {
        // SAFETY: the caller has AVX2.
        unsafe { _mm_cvtss_f32(sum) }
    }

    #[inline(always)]
    fn prefetch(p: *const u8, bytes: usize) {
        prefetch(p, bytes);
    }
}

#[target_feature(enable = "avx2,f16c")]
fn integer_rows<F: Packed>(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
    // SAFETY: the features of this function.
    unsafe { rows::<Avx2<F>, 4, 4, 2>(args, out) };
}

/// Weights stored one by one.
trait Float {
    const BYTES: usize;
    /// 8 weights.
    unsafe fn load(p: *const u8) -> __m256;
}

struct F32;
impl Float for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m256 {
        // SAFETY: the caller has AVX2, and 8 weights at `p`.
        unsafe { _mm256_loadu_ps(p.cast()) }
    }
}

struct F16;
impl Float for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m256 {
        // SAFETY: the caller has F16C, and 8 weights at `p`.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }
}

struct Bf16;
impl Float for Bf16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m256 {
        // SAFETY: the caller has AVX2, and 8 weights at `p`.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
}

#[target_feature(enable = "avx2,f16c")]
fn float_rows<F: Float>(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
    let mut i = 0;
    // SAFETY: the features of this function; the rows and tokens are there.
    unsafe {
        while i < out.len() {
            let rows = if i + 2 <= out.len() { 2 } else { 1 };
            let mut t = 0;
            while t < args.tokens {
                let tokens = if t + 2 <= args.tokens { 2 } else { 1 };
                match (rows, tokens) {
                    (2, 2) => float_tile::<F, 2, 2>(args, out, i, t),
                    (2, _) => float_tile::<F, 2, 1>(args, out, i, t),
                    (_, 2) => float_tile::<F, 1, 2>(args, out, i, t),
                    _ => float_tile::<F, 1, 1>(args, out, i, t),
                }
                t += tokens;
            }
            i += rows;
        }
    }
}

/// Rows `i..i + R` for tokens `t..t + T`.
#[inline(always)]
unsafe fn float_tile<F: Float, const R: usize, const T: usize>(
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
    i: usize,
    t: usize,
) {
    let (cols, row_bytes) = (args.w.cols(), args.w.row_bytes());
    let base = args.w.row(out.first() + i).as_ptr();
    // SAFETY: the caller has AVX2, and R rows and T tokens of `cols`; the remainder after the last whole 16
    // of them is loaded from a zero-padded copy.
    unsafe {
        let x = args.x.as_ptr().add(t * cols);
        let mut sums = [[[_mm256_setzero_ps(); 2]; R]; T];
        let (mut w_last, mut x_last) = ([[0u8; 64]; R], [[0f32; 16]; T]);
        let (mut ws, mut xs) = ([base; R], [x; T]);
        // Loops and no closures: a closure that is not inlined would be compiled without AVX2.
        for k in (0..cols).step_by(16) {
            let rest = cols - k;
            for r in 0..R {
                ws[r] = base.add(r * row_bytes + k * F::BYTES);
                if rest < 16 {
                    w_last[r].as_mut_ptr().copy_from_nonoverlapping(ws[r], rest * F::BYTES);
                    ws[r] = w_last[r].as_ptr();
                }
            }
            for t in 0..T {
                xs[t] = x.add(t * cols + k);
                if rest < 16 {
                    x_last[t].as_mut_ptr().copy_from_nonoverlapping(xs[t], rest);
                    xs[t] = x_last[t].as_ptr();
                }
            }
            prefetch(base.wrapping_add(k * F::BYTES * R), 16 * F::BYTES * R);
            for h in 0..2 {
                for r in 0..R {
                    let w = F::load(ws[r].add(8 * h * F::BYTES));
                    for t in 0..T {
                        let x = _mm256_loadu_ps(xs[t].add(8 * h));
                        sums[t][r][h] = _mm256_add_ps(sums[t][r][h], _mm256_mul_ps(w, x));
                    }
                }
            }
        }
        for a in 0..T {
            for r in 0..R {
                let mut lanes = [0.0; 16];
                _mm256_storeu_ps(lanes.as_mut_ptr(), sums[a][r][0]);
                _mm256_storeu_ps(lanes.as_mut_ptr().add(8), sums[a][r][1]);
                out.put(t + a, i + r, finish_float(&lanes));
            }
        }
    }
}

/// The reference, compiled for AVX2.
#[target_feature(enable = "avx2,f16c")]
fn float_unpacked(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
    super::scalar::float(args, out);
}
