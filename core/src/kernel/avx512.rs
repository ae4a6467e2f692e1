//! AVX-512 with VNNI: 64 weights a vector.
//!
//! `vpmaddubsw` multiplies unsigned by signed bytes into sums of pairs, `vpdpwssd` those by the factors
//! of the activations. The weights are the unsigned side, as codes above a zero point; lanes start at
//! minus (zero point x activations), so that they end at the exact integer.
#![allow(unsafe_code)]

use core::arch::x86_64::*;

use super::act::{Q8Block, Q8Order, q8_blocks};
use super::scalar::{finish, finish_float};
use super::{Kernel, OutRows, Work};
use crate::quant::Format;

/// The kernel for int8 activations.
pub(super) fn integer(format: Format) -> Option<Kernel> {
    Some(match format {
        Format::Q1_0 => integer_rows::<Q1_0>,
        Format::Pq2_0 => integer_rows::<Pq2_0>,
        Format::Tq2_0G128 => integer_rows::<Tq2_0G128>,
        Format::Tq2_0 => integer_rows::<Tq2_0>,
        Format::Tq1_0 => integer_rows::<Tq1_0>,
        Format::Ptq1_0 => integer_rows::<Ptq1_0>,
        Format::Q2_0 => integer_rows::<Q2_0>,
        // Wider vectors gain nothing where memory is the bound.
        _ => return super::avx2::integer(format),
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

/// Pairs of rows that share the activations in a product with one token: enough to make loading and
/// spreading the activations a tenth of the work.
const GEMV_PAIRS: usize = 4;
/// Pairs of rows, rows and tokens whose running sums are in registers in a product with many tokens.
const PAIRS: usize = 2;
const ROWS: usize = 4;
const TOKENS: usize = 4;
/// Tokens that share one unpacking of the weights.
const TOKEN_BLOCK: usize = 64;
/// Steps of a row that are unpacked at once; with [`ROWS`], what stays in the first-level cache.
const STEPS: usize = 16;
/// How far ahead of the multiplication the weights are asked for, in bytes.
const PREFETCH: usize = 8192;

/// How a format's bytes become codes of zero point 1, at most 3. A step is one or two vectors.
trait Packed {
    /// Bytes of a block.
    const BYTES: usize;
    /// Steps in a block.
    const PARTS: usize = 1;
    /// Vectors in a step: 2, or 1 for blocks of 64 weights.
    const VECTORS: usize;
    /// Whether the order of the activations is the strided one.
    const STRIDED: bool;
    /// Where the scale is.
    const SCALE: usize;
    /// The codes of step `part`; with one vector, the second is not used.
    unsafe fn codes(block: *const u8, part: usize) -> [__m512i; 2];
}

/// 16 bytes at `p` in each quarter.
#[inline(always)]
unsafe fn all16(p: *const u8) -> __m512i {
    // SAFETY: the caller has AVX-512, and 16 bytes at `p`.
    unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(p.cast())) }
}

/// 32 bytes at `p` in each half.
#[inline(always)]
unsafe fn all32(p: *const u8) -> __m512i {
    // SAFETY: the caller has AVX-512, and 32 bytes at `p`.
    unsafe { _mm512_broadcast_i64x4(_mm256_loadu_si256(p.cast())) }
}

/// The two bits at `shift` of each byte.
#[inline(always)]
unsafe fn two_bits(bytes: __m512i, shift: __m512i) -> __m512i {
    // SAFETY: the caller has AVX-512.
    unsafe { _mm512_and_si512(_mm512_srlv_epi64(bytes, shift), _mm512_set1_epi8(3)) }
}

/// 64 sequential codes at `p`, in strided order.
#[inline(always)]
unsafe fn strided_codes(p: *const u8) -> __m512i {
    // SAFETY: the caller has AVX-512, and 16 bytes at `p`.
    unsafe { two_bits(all16(p), _mm512_setr_epi64(0, 0, 2, 2, 4, 4, 6, 6)) }
}

struct Q1_0;
impl Packed for Q1_0 {
    const BYTES: usize = 18;
    const VECTORS: usize = 2;
    const STRIDED: bool = false;
    const SCALE: usize = 0;

    #[inline(always)]
    unsafe fn codes(block: *const u8, _: usize) -> [__m512i; 2] {
        // SAFETY: the caller has AVX-512, and a block at `block`.
        unsafe {
            let two = _mm512_set1_epi8(2);
            let bits = block.add(2).cast::<u64>();
            [
                _mm512_maskz_mov_epi8(bits.read_unaligned(), two),
                _mm512_maskz_mov_epi8(bits.add(1).read_unaligned(), two),
            ]
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
    unsafe fn codes(block: *const u8, _: usize) -> [__m512i; 2] {
        // SAFETY: the caller has AVX-512, and a block at `block`.
        unsafe { [strided_codes(block.add(CODES_AT)), strided_codes(block.add(CODES_AT + 16))] }
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
    unsafe fn codes(block: *const u8, part: usize) -> [__m512i; 2] {
        // SAFETY: the caller has AVX-512, and a block at `block`.
        unsafe {
            let bytes = all32(block.add(32 * part));
            [
                two_bits(bytes, _mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2)),
                two_bits(bytes, _mm512_setr_epi64(4, 4, 4, 4, 6, 6, 6, 6)),
            ]
        }
    }
}

/// The base-3 digit that multiplying each byte by its power of 3 brings to the top; bytes 2 i and
/// 2 i + 1 share `power[i]`.
#[inline(always)]
unsafe fn digits(bytes: __m512i, power: __m512i) -> __m512i {
    // SAFETY: the caller has AVX-512.
    unsafe {
        let low = _mm512_set1_epi16(0xff);
        let even = _mm512_and_si512(_mm512_mullo_epi16(_mm512_and_si512(bytes, low), power), low);
        let odd = _mm512_slli_epi16::<8>(_mm512_mullo_epi16(_mm512_srli_epi16::<8>(bytes), power));
        let x = _mm512_or_si512(even, odd);
        // (x * 3) >> 8 is how many of 86 and 171 are at most x.
        let (one, two) = (_mm512_set1_epi8(1), _mm512_set1_epi8(2));
        let some = _mm512_maskz_mov_epi8(_mm512_cmpge_epu8_mask(x, _mm512_set1_epi8(86)), one);
        _mm512_mask_mov_epi8(some, _mm512_cmpge_epu8_mask(x, _mm512_set1_epi8(171u8 as i8)), two)
    }
}

/// Each of four powers over 16 bytes.
#[inline(always)]
unsafe fn powers(p: [i16; 4]) -> __m512i {
    // SAFETY: the caller has AVX-512.
    unsafe {
        let q = p.map(|p| i64::from(p) * 0x0001_0001_0001_0001);
        _mm512_setr_epi64(q[0], q[0], q[1], q[1], q[2], q[2], q[3], q[3])
    }
}

/// Powers 1, 3, 9 and 27 for what holds four digits a byte: over four bytes each (TQ1_0) and over two
/// (PTQ1_0).
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
    unsafe fn codes(block: *const u8, part: usize) -> [__m512i; 2] {
        // SAFETY: the caller has AVX-512, and a block at `block`.
        unsafe {
            let first = all32(block);
            if part == 0 {
                return [digits(first, powers([1, 1, 3, 3])), digits(first, powers([9, 9, 27, 27]))];
            }
            let second = all16(block.add(32));
            let third = _mm512_set1_epi32(block.add(48).cast::<i32>().read_unaligned());
            let a = _mm512_mask_mov_epi64(first, 0b1111_0000, second);
            let b = _mm512_mask_mov_epi64(second, 0b1100_0000, third);
            let p = |x: i64| x * 0x0001_0001_0001_0001;
            let b_powers = _mm512_setr_epi64(p(9), p(9), p(27), p(27), p(81), p(81), TAIL_2[0], TAIL_2[1]);
            [digits(a, powers([81, 81, 1, 3])), digits(b, b_powers)]
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
    unsafe fn codes(block: *const u8, _: usize) -> [__m512i; 2] {
        // SAFETY: the caller has AVX-512, and a block at `block`.
        unsafe {
            let first = all16(block);
            let second = _mm512_set1_epi64(block.add(16).cast::<i64>().read_unaligned());
            let third = _mm512_set1_epi16(block.add(24).cast::<i16>().read_unaligned());
            let b = _mm512_mask_mov_epi64(second, 0b0000_0011, first);
            let b = _mm512_mask_mov_epi64(b, 0b1000_0000, third);
            let p = |x: i64| x * 0x0001_0001_0001_0001;
            let b_powers = _mm512_setr_epi64(p(81), p(81), p(1), p(3), p(9), p(27), p(81), TAIL_1);
            [digits(first, powers([1, 3, 9, 27])), digits(b, b_powers)]
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
    unsafe fn codes(block: *const u8, _: usize) -> [__m512i; 2] {
        // SAFETY: the caller has AVX-512, and a block at `block`.
        unsafe { [strided_codes(block.add(2)), _mm512_setzero_si512()] }
    }
}

/// The activations of a step, ready to be multiplied.
#[derive(Clone, Copy)]
struct Acts {
    q: [__m512i; 2],
    /// The factor of each pair of products.
    factor: [__m512i; 2],
    /// What the lanes start from.
    start: __m512i,
}

/// `factor` over the positions of 64 activations.
#[inline(always)]
unsafe fn factors(order: &Q8Order, strided: bool) -> __m512i {
    // SAFETY: the caller has AVX-512.
    unsafe {
        let factor = _mm512_broadcast_i32x4(_mm_load_si128(order.factor.as_ptr().cast()));
        if strided {
            return factor;
        }
        let quarter = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
        _mm512_castps_si512(_mm512_permutevar_ps(_mm512_castsi512_ps(factor), quarter))
    }
}

#[inline(always)]
unsafe fn acts<F: Packed>(y: *const Q8Block) -> Acts {
    // SAFETY: the caller has AVX-512, and `VECTORS` blocks at `y`.
    unsafe {
        let order = |v: usize| if F::STRIDED { &(*y.add(v)).strided } else { &(*y.add(v)).natural };
        let q = |v: usize| _mm512_load_si512(order(v).q.as_ptr().cast());
        let start = |v: usize| _mm256_load_si256(order(v).start.as_ptr().cast());
        if F::VECTORS == 2 {
            Acts {
                q: [q(0), q(1)],
                factor: [factors(order(0), F::STRIDED), factors(order(1), F::STRIDED)],
                start: _mm512_zextsi256_si512(_mm256_add_epi32(start(0), start(1))),
            }
        } else {
            let factor = factors(order(0), F::STRIDED);
            Acts { q: [q(0); 2], factor: [factor; 2], start: _mm512_zextsi256_si512(start(0)) }
        }
    }
}

/// `n` plus the products of pairs of 16-bit integers, summed in pairs.
///
/// In assembly because the compiler takes the intrinsic apart into two instructions, and the number of
/// instructions is what bounds these loops.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn dpwssd(mut n: __m512i, a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: reads and writes registers only.
    unsafe {
        core::arch::asm!(
            "vpdpwssd {n}, {a}, {b}",
            n = inout(zmm_reg) n, a = in(zmm_reg) a, b = in(zmm_reg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    n
}

/// The integers of a step; the sum of their halves is `n` of `scalar.rs`.
#[inline(always)]
unsafe fn integers<F: Packed>(codes: [__m512i; 2], y: Acts) -> __m512i {
    // SAFETY: the caller has AVX-512 VNNI.
    unsafe {
        let n = dpwssd(y.start, _mm512_maddubs_epi16(codes[0], y.q[0]), y.factor[0]);
        if F::VECTORS == 1 {
            return n;
        }
        dpwssd(n, _mm512_maddubs_epi16(codes[1], y.q[1]), y.factor[1])
    }
}

/// The scales of two rows, each over half of the lanes.
#[inline(always)]
unsafe fn scales<F: Packed>(blocks: [*const u8; 2]) -> __m512 {
    // SAFETY: the caller has AVX-512, and a block at each pointer.
    unsafe {
        let [a, b] =
            blocks.map(|block| _mm256_set1_epi16(block.add(F::SCALE).cast::<i16>().read_unaligned()));
        _mm512_cvtph_ps(_mm256_mask_mov_epi16(a, 0xff00, b))
    }
}

/// `sum + n * d` for two rows, each operation rounded.
#[inline(always)]
unsafe fn add_blocks(sum: __m512, n: [__m512i; 2], d: __m512) -> __m512 {
    // SAFETY: the caller has AVX-512.
    unsafe {
        let lower = _mm512_shuffle_i64x2::<0b01_00_01_00>(n[0], n[1]);
        let upper = _mm512_shuffle_i64x2::<0b11_10_11_10>(n[0], n[1]);
        let n = _mm512_cvtepi32_ps(_mm512_add_epi32(lower, upper));
        _mm512_add_ps(sum, _mm512_mul_ps(n, d))
    }
}

/// Puts rows `i` and, if it is there, `i + 1`.
#[inline(always)]
unsafe fn put(work: &Work<'_>, out: &mut OutRows<'_>, token: usize, i: usize, sum: __m512) {
    let mut lanes = [[0.0; 8]; 2];
    // SAFETY: the caller has AVX-512; `lanes` has room for 16 floats.
    unsafe { _mm512_storeu_ps(lanes.as_mut_ptr().cast(), sum) };
    for (r, lanes) in lanes.iter().enumerate().take(out.len() - i) {
        out.put(token, i + r, finish(lanes) * work.step(token));
    }
}

#[inline(always)]
unsafe fn prefetch(p: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(64) {
        // SAFETY: a prefetch may be of any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(PREFETCH + 64 * line).cast()) };
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,f16c")]
fn integer_rows<F: Packed>(work: &Work<'_>, out: &mut OutRows<'_>) {
    let mut i = 0;
    let row_bytes = work.w.row_bytes();
    // SAFETY: the features of this function; the rows are there.
    unsafe {
        while i < out.len() {
            let left = out.len() - i;
            let base = work.w.row(out.first() + i).as_ptr();
            // A last odd row is multiplied twice, side by side with itself.
            let stride = if left == 1 { 0 } else { row_bytes };
            match work.tokens {
                1 if left >= 2 * GEMV_PAIRS => {
                    gemv::<F, GEMV_PAIRS>(work, out, i, base, stride);
                    i += 2 * GEMV_PAIRS;
                }
                1 => {
                    gemv::<F, 1>(work, out, i, base, stride);
                    i += 2;
                }
                _ if left >= 2 * PAIRS => {
                    gemm::<F, PAIRS>(work, out, i, base, stride);
                    i += 2 * PAIRS;
                }
                _ => {
                    gemm::<F, 1>(work, out, i, base, stride);
                    i += 2;
                }
            }
        }
    }
}

/// P pairs of rows from row `i`, which is at `base`, for one token.
#[inline(always)]
unsafe fn gemv<F: Packed, const P: usize>(
    work: &Work<'_>,
    out: &mut OutRows<'_>,
    i: usize,
    base: *const u8,
    stride: usize,
) {
    let mut y = work.q8.as_ptr();
    // SAFETY: the caller has AVX-512, and whole rows, `stride` bytes apart; `y` has `VECTORS` blocks for
    // each step.
    unsafe {
        let mut sums = [_mm512_setzero_ps(); P];
        for at in (0..work.w.row_bytes()).step_by(F::BYTES) {
            prefetch(base.wrapping_add(at * 2 * P), F::BYTES * 2 * P);
            let first = acts::<F>(y);
            let second = if F::PARTS == 2 { acts::<F>(y.add(F::VECTORS)) } else { first };
            y = y.add(F::VECTORS * F::PARTS);
            for p in 0..P {
                let blocks = [2 * p, 2 * p + 1].map(|r| base.add(r * stride + at));
                let n = blocks.map(|block| {
                    let n = integers::<F>(F::codes(block, 0), first);
                    if F::PARTS == 1 {
                        return n;
                    }
                    _mm512_add_epi32(n, integers::<F>(F::codes(block, 1), second))
                });
                sums[p] = add_blocks(sums[p], n, scales::<F>(blocks));
            }
        }
        for p in 0..P {
            put(work, out, 0, i + 2 * p, sums[p]);
        }
    }
}

/// P pairs of rows from row `i`, which is at `base`, for many tokens: the weights are unpacked once per
/// block of tokens.
#[inline(always)]
unsafe fn gemm<F: Packed, const P: usize>(
    work: &Work<'_>,
    out: &mut OutRows<'_>,
    i: usize,
    base: *const u8,
    stride: usize,
) {
    let blocks = work.w.row_bytes() / F::BYTES;
    let y_blocks = q8_blocks(work.w.cols());
    // SAFETY: the caller has AVX-512, and whole rows, `stride` bytes apart; each token has `y_blocks` =
    // `blocks` * `PARTS` * `VECTORS` blocks.
    unsafe {
        let mut codes = [[[[_mm512_setzero_si512(); 2]; 2]; P]; STEPS];
        let mut d = [[_mm512_setzero_ps(); P]; STEPS];
        for first in (0..work.tokens).step_by(TOKEN_BLOCK) {
            let tokens = TOKEN_BLOCK.min(work.tokens - first);
            let mut sums = [[_mm512_setzero_ps(); P]; TOKEN_BLOCK];
            for start in (0..blocks).step_by(STEPS / F::PARTS) {
                let n = (STEPS / F::PARTS).min(blocks - start);
                for p in 0..P {
                    for b in 0..n {
                        let at = (start + b) * F::BYTES;
                        let blocks = [2 * p, 2 * p + 1].map(|r| base.add(r * stride + at));
                        for part in 0..F::PARTS {
                            codes[b * F::PARTS + part][p] = blocks.map(|block| F::codes(block, part));
                        }
                        d[b][p] = scales::<F>(blocks);
                    }
                }
                let (codes, d) = (&codes[..n * F::PARTS], &d[..n]);
                let y = work.q8.as_ptr().add(first * y_blocks + start * F::PARTS * F::VECTORS);
                let mut t = 0;
                while t + TOKENS <= tokens {
                    tile::<F, P, TOKENS>(codes, d, y.add(t * y_blocks), y_blocks, &mut sums[t..]);
                    t += TOKENS;
                }
                while t < tokens {
                    tile::<F, P, 1>(codes, d, y.add(t * y_blocks), y_blocks, &mut sums[t..]);
                    t += 1;
                }
            }
            for t in 0..tokens {
                for p in 0..P {
                    put(work, out, first + t, i + 2 * p, sums[t][p]);
                }
            }
        }
    }
}

/// Adds to the sums of P pairs of rows and T tokens; all of them stay in registers.
#[inline(always)]
unsafe fn tile<F: Packed, const P: usize, const T: usize>(
    codes: &[[[[__m512i; 2]; 2]; P]],
    d: &[[__m512; P]],
    y: *const Q8Block,
    y_blocks: usize,
    sums: &mut [[__m512; P]],
) {
    // SAFETY: the caller has AVX-512, and T tokens of `codes.len()` * `VECTORS` blocks, `y_blocks`
    // apart, at `y`.
    unsafe {
        let mut tile: [[__m512; P]; T] = core::array::from_fn(|t| sums[t]);
        for (b, (codes, d)) in codes.chunks_exact(F::PARTS).zip(d).enumerate() {
            for t in 0..T {
                let y = y.add(t * y_blocks + b * F::PARTS * F::VECTORS);
                let first = acts::<F>(y);
                let second = if F::PARTS == 2 { acts::<F>(y.add(F::VECTORS)) } else { first };
                for p in 0..P {
                    let n = [0, 1].map(|r| {
                        let n = integers::<F>(codes[0][p][r], first);
                        if F::PARTS == 1 {
                            return n;
                        }
                        _mm512_add_epi32(n, integers::<F>(codes[1][p][r], second))
                    });
                    tile[t][p] = add_blocks(tile[t][p], n, d[p]);
                }
            }
        }
        sums[..T].copy_from_slice(&tile);
    }
}

/// Weights stored one by one.
trait Float {
    const BYTES: usize;
    /// 16 weights.
    unsafe fn load(p: *const u8) -> __m512;
}

struct F32;
impl Float for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m512 {
        // SAFETY: the caller has AVX-512, and 16 weights at `p`.
        unsafe { _mm512_loadu_ps(p.cast()) }
    }
}

struct F16;
impl Float for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m512 {
        // SAFETY: the caller has AVX-512, and 16 weights at `p`.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
}

struct Bf16;
impl Float for Bf16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m512 {
        // SAFETY: the caller has AVX-512, and 16 weights at `p`.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,f16c")]
fn float_rows<F: Float>(work: &Work<'_>, out: &mut OutRows<'_>) {
    let mut i = 0;
    // SAFETY: the features of this function; the rows and tokens are there.
    unsafe {
        while i < out.len() {
            let rows = if i + ROWS <= out.len() { ROWS } else { 1 };
            let mut t = 0;
            while t < work.tokens {
                let tokens = if t + TOKENS <= work.tokens { TOKENS } else { 1 };
                match (rows, tokens) {
                    (ROWS, TOKENS) => float_tile::<F, ROWS, TOKENS>(work, out, i, t),
                    (ROWS, _) => float_tile::<F, ROWS, 1>(work, out, i, t),
                    (_, TOKENS) => float_tile::<F, 1, TOKENS>(work, out, i, t),
                    _ => float_tile::<F, 1, 1>(work, out, i, t),
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
    work: &Work<'_>,
    out: &mut OutRows<'_>,
    i: usize,
    t: usize,
) {
    let (cols, row_bytes) = (work.w.cols(), work.w.row_bytes());
    let base = work.w.row(out.first() + i).as_ptr();
    // SAFETY: the caller has AVX-512, and R rows and T tokens of `cols`; beyond the last whole 16 of
    // them, what is loaded is a copy filled up with zeros.
    unsafe {
        let x = work.x.as_ptr().add(t * cols);
        let mut sums = [[_mm512_setzero_ps(); R]; T];
        let whole = cols / 16 * 16;
        for k in (0..whole).step_by(16) {
            prefetch(base.wrapping_add(k * F::BYTES * R), 16 * F::BYTES * R);
            let x: [__m512; T] = core::array::from_fn(|t| _mm512_loadu_ps(x.add(t * cols + k)));
            for r in 0..R {
                let w = F::load(base.add(r * row_bytes + k * F::BYTES));
                for t in 0..T {
                    sums[t][r] = _mm512_add_ps(sums[t][r], _mm512_mul_ps(w, x[t]));
                }
            }
        }
        if whole < cols {
            let rest = cols - whole;
            let mask = (1u16 << rest) - 1;
            for r in 0..R {
                let mut copy = [0; 64];
                let from =
                    core::slice::from_raw_parts(base.add(r * row_bytes + whole * F::BYTES), rest * F::BYTES);
                copy[..from.len()].copy_from_slice(from);
                let w = F::load(copy.as_ptr());
                for t in 0..T {
                    let x = _mm512_maskz_loadu_ps(mask, x.add(t * cols + whole));
                    sums[t][r] = _mm512_add_ps(sums[t][r], _mm512_mul_ps(w, x));
                }
            }
        }
        for t_ in 0..T {
            for r in 0..R {
                let mut lanes = [0.0; 16];
                _mm512_storeu_ps(lanes.as_mut_ptr(), sums[t_][r]);
                out.put(t + t_, i + r, finish_float(&lanes));
            }
        }
    }
}

/// The reference, compiled for AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,f16c")]
fn float_unpacked(work: &Work<'_>, out: &mut OutRows<'_>) {
    super::scalar::float(work, out);
}
