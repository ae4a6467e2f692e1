//! AVX-512 with VNNI: sixteen i32 lanes, the sixteen running sums of `scalar.rs` in one register.
//!
//! `vpdpbusd` multiplies unsigned by signed bytes. The weights are the unsigned side, as codes above a
//! zero point; lanes start at minus (zero point x sum of the activations), so that they end at the
//! exact integer.
#![allow(unsafe_code)]

use core::arch::x86_64::*;

use super::act::{Q8Block, Q8Order, q8_blocks};
use super::scalar::finish;
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
        Format::Q4_0 => integer_rows::<Q4_0>,
        Format::Q8_0 => integer_rows::<Q8_0>,
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

/// Rows that share the activations in a product with one token. Eight keep the loads and conversions
/// of the activations below a tenth of the work.
const GEMV_ROWS: usize = 8;
/// Rows and tokens whose running sums are in registers in a product with many tokens.
const ROWS: usize = 4;
const TOKENS: usize = 4;
/// Tokens that share one unpacking of the weights.
const TOKEN_BLOCK: usize = 64;
/// Steps of a row that are unpacked at once; with [`ROWS`], what stays in the first-level cache.
const STEPS: usize = 16;
/// How far ahead of the multiplication the weights are asked for, in bytes.
const PREFETCH: usize = 8192;

/// How a format's bytes become codes. A step is one or two vectors of 64 weights that share a scale
/// per lane.
trait Packed {
    /// Bytes of a unit: one block, or two blocks of 32 weights.
    const BYTES: usize;
    /// Steps in a unit.
    const PARTS: usize = 1;
    /// Vectors in a step: 2 for the formats with blocks of 128 or 256 weights, 1 for the others.
    const VECTORS: usize;
    /// Whether lanes follow the strided order.
    const STRIDED: bool;
    /// Logarithm of the zero point: 0, 3 or 7.
    const ZERO: u32 = 0;
    /// The codes (weight + zero point) of step `part`; with one vector, the second is not used.
    unsafe fn codes(unit: *const u8, part: usize) -> [__m512i; 2];
    /// The scale of each lane.
    unsafe fn scale(unit: *const u8) -> __m512;
}

#[inline(always)]
unsafe fn f16_all(p: *const u8) -> __m512 {
    // SAFETY: the caller has AVX-512, and two bytes at `p`.
    unsafe { _mm512_cvtph_ps(_mm256_set1_epi16(p.cast::<i16>().read_unaligned())) }
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

    #[inline(always)]
    unsafe fn codes(unit: *const u8, _: usize) -> [__m512i; 2] {
        // SAFETY: the caller has AVX-512, and a block at `unit`.
        unsafe {
            let two = _mm512_set1_epi8(2);
            let bits = unit.add(2).cast::<u64>();
            [
                _mm512_maskz_mov_epi8(bits.read_unaligned(), two),
                _mm512_maskz_mov_epi8(bits.add(1).read_unaligned(), two),
            ]
        }
    }

    #[inline(always)]
    unsafe fn scale(unit: *const u8) -> __m512 {
        // SAFETY: as `codes`.
        unsafe { f16_all(unit) }
    }
}

struct Codes128<const SCALE: usize, const CODES: usize>;
type Pq2_0 = Codes128<0, 2>;
type Tq2_0G128 = Codes128<32, 0>;
impl<const SCALE: usize, const CODES: usize> Packed for Codes128<SCALE, CODES> {
    const BYTES: usize = 34;
    const VECTORS: usize = 2;
    const STRIDED: bool = true;

    #[inline(always)]
    unsafe fn codes(unit: *const u8, _: usize) -> [__m512i; 2] {
        // SAFETY: the caller has AVX-512, and a block at `unit`.
        unsafe { [strided_codes(unit.add(CODES)), strided_codes(unit.add(CODES + 16))] }
    }

    #[inline(always)]
    unsafe fn scale(unit: *const u8) -> __m512 {
        // SAFETY: as `codes`.
        unsafe { f16_all(unit.add(SCALE)) }
    }
}

struct Tq2_0;
impl Packed for Tq2_0 {
    const BYTES: usize = 66;
    const PARTS: usize = 2;
    const VECTORS: usize = 2;
    const STRIDED: bool = false;

    #[inline(always)]
    unsafe fn codes(unit: *const u8, part: usize) -> [__m512i; 2] {
        // SAFETY: the caller has AVX-512, and a block at `unit`.
        unsafe {
            let bytes = all32(unit.add(32 * part));
            [
                two_bits(bytes, _mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2)),
                two_bits(bytes, _mm512_setr_epi64(4, 4, 4, 4, 6, 6, 6, 6)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn scale(unit: *const u8) -> __m512 {
        // SAFETY: as `codes`.
        unsafe { f16_all(unit.add(64)) }
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

    #[inline(always)]
    unsafe fn codes(unit: *const u8, part: usize) -> [__m512i; 2] {
        // SAFETY: the caller has AVX-512, and a block at `unit`.
        unsafe {
            let first = all32(unit);
            if part == 0 {
                return [digits(first, powers([1, 1, 3, 3])), digits(first, powers([9, 9, 27, 27]))];
            }
            let second = all16(unit.add(32));
            let third = _mm512_set1_epi32(unit.add(48).cast::<i32>().read_unaligned());
            let a = _mm512_mask_mov_epi64(first, 0b1111_0000, second);
            let b = _mm512_mask_mov_epi64(second, 0b1100_0000, third);
            let p = |x: i64| x * 0x0001_0001_0001_0001;
            let b_powers = _mm512_setr_epi64(p(9), p(9), p(27), p(27), p(81), p(81), TAIL_2[0], TAIL_2[1]);
            [digits(a, powers([81, 81, 1, 3])), digits(b, b_powers)]
        }
    }

    #[inline(always)]
    unsafe fn scale(unit: *const u8) -> __m512 {
        // SAFETY: as `codes`.
        unsafe { f16_all(unit.add(52)) }
    }
}

struct Ptq1_0;
impl Packed for Ptq1_0 {
    const BYTES: usize = 28;
    const VECTORS: usize = 2;
    const STRIDED: bool = false;

    #[inline(always)]
    unsafe fn codes(unit: *const u8, _: usize) -> [__m512i; 2] {
        // SAFETY: the caller has AVX-512, and a block at `unit`.
        unsafe {
            let first = all16(unit);
            let second = _mm512_set1_epi64(unit.add(16).cast::<i64>().read_unaligned());
            let third = _mm512_set1_epi16(unit.add(24).cast::<i16>().read_unaligned());
            let b = _mm512_mask_mov_epi64(second, 0b0000_0011, first);
            let b = _mm512_mask_mov_epi64(b, 0b1000_0000, third);
            let p = |x: i64| x * 0x0001_0001_0001_0001;
            let b_powers = _mm512_setr_epi64(p(81), p(81), p(1), p(3), p(9), p(27), p(81), TAIL_1);
            [digits(first, powers([1, 3, 9, 27])), digits(b, b_powers)]
        }
    }

    #[inline(always)]
    unsafe fn scale(unit: *const u8) -> __m512 {
        // SAFETY: as `codes`.
        unsafe { f16_all(unit.add(26)) }
    }
}

struct Q2_0;
impl Packed for Q2_0 {
    const BYTES: usize = 18;
    const VECTORS: usize = 1;
    const STRIDED: bool = true;

    #[inline(always)]
    unsafe fn codes(unit: *const u8, _: usize) -> [__m512i; 2] {
        // SAFETY: the caller has AVX-512, and a block at `unit`.
        unsafe { [strided_codes(unit.add(2)), _mm512_setzero_si512()] }
    }

    #[inline(always)]
    unsafe fn scale(unit: *const u8) -> __m512 {
        // SAFETY: as `codes`.
        unsafe { f16_all(unit) }
    }
}

/// The scales of two blocks of 32, `BYTES` apart, each over its half of the lanes.
#[inline(always)]
unsafe fn two_scales<const BYTES: usize>(packed: *const u8) -> __m512 {
    // SAFETY: the caller has AVX-512, and two blocks at `packed`.
    unsafe {
        let a = _mm_set1_epi16(packed.cast::<i16>().read_unaligned());
        let b = _mm_set1_epi16(packed.add(BYTES).cast::<i16>().read_unaligned());
        _mm512_cvtph_ps(_mm256_inserti128_si256::<1>(_mm256_castsi128_si256(a), b))
    }
}

struct Q4_0;
impl Packed for Q4_0 {
    const BYTES: usize = 36;
    const VECTORS: usize = 1;
    const STRIDED: bool = false;
    const ZERO: u32 = 3;

    #[inline(always)]
    unsafe fn codes(unit: *const u8, _: usize) -> [__m512i; 2] {
        // SAFETY: the caller has AVX-512, and two blocks at `unit`.
        unsafe {
            let bytes = _mm512_mask_mov_epi64(all16(unit.add(2)), 0b1111_0000, all16(unit.add(20)));
            let nibbles = _mm512_srlv_epi64(bytes, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4));
            [_mm512_and_si512(nibbles, _mm512_set1_epi8(15)), _mm512_setzero_si512()]
        }
    }

    #[inline(always)]
    unsafe fn scale(unit: *const u8) -> __m512 {
        // SAFETY: as `codes`.
        unsafe { two_scales::<18>(unit) }
    }
}

struct Q8_0;
impl Packed for Q8_0 {
    const BYTES: usize = 68;
    const VECTORS: usize = 1;
    const STRIDED: bool = false;
    const ZERO: u32 = 7;

    #[inline(always)]
    unsafe fn codes(unit: *const u8, _: usize) -> [__m512i; 2] {
        // SAFETY: the caller has AVX-512, and two blocks at `unit`.
        unsafe {
            let a = _mm256_loadu_si256(unit.add(2).cast());
            let b = _mm256_loadu_si256(unit.add(36).cast());
            let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(a), b);
            [_mm512_xor_si512(both, _mm512_set1_epi8(-128)), _mm512_setzero_si512()]
        }
    }

    #[inline(always)]
    unsafe fn scale(unit: *const u8) -> __m512 {
        // SAFETY: as `codes`.
        unsafe { two_scales::<34>(unit) }
    }
}

/// 64 activations, ready to be multiplied.
#[derive(Clone, Copy)]
struct Act {
    q: __m512i,
    /// What the lanes start from.
    start: __m512i,
    /// The activation scale of each lane.
    scale: __m512,
}

#[inline(always)]
unsafe fn act(y: *const Q8Block, strided: bool, zero: u32) -> Act {
    // SAFETY: the caller has AVX-512, and a block at `y`.
    unsafe {
        let order: &Q8Order = if strided { &(*y).strided } else { &(*y).natural };
        let sums = _mm512_cvtepi16_epi32(_mm256_load_si256(order.minus_sum.as_ptr().cast()));
        let scale = _mm512_broadcast_f32x4(_mm_load_ps(order.scale.as_ptr()));
        Act {
            q: _mm512_load_si512(order.q.as_ptr().cast()),
            start: match zero {
                0 => sums,
                3 => _mm512_slli_epi32::<3>(sums),
                _ => _mm512_slli_epi32::<7>(sums),
            },
            scale: if strided {
                scale
            } else {
                let quarter = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
                _mm512_permutevar_ps(scale, quarter)
            },
        }
    }
}

/// `n_j * s_j` of `scalar.rs`.
#[inline(always)]
unsafe fn scaled(codes: __m512i, y: Act) -> __m512 {
    // SAFETY: the caller has AVX-512 VNNI.
    unsafe { _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_dpbusd_epi32(y.start, codes, y.q)), y.scale) }
}

/// `sum` and the products of a step, each operation rounded.
#[inline(always)]
unsafe fn add_step<F: Packed>(sum: __m512, codes: [__m512i; 2], y: [Act; 2], d: __m512) -> __m512 {
    // SAFETY: the caller has AVX-512 VNNI.
    unsafe {
        let mut n = scaled(codes[0], y[0]);
        if F::VECTORS == 2 {
            n = _mm512_add_ps(n, scaled(codes[1], y[1]));
        }
        _mm512_add_ps(sum, _mm512_mul_ps(n, d))
    }
}

/// The activations of a step.
#[inline(always)]
unsafe fn acts<F: Packed>(y: *const Q8Block) -> [Act; 2] {
    // SAFETY: the caller has AVX-512, and `VECTORS` blocks at `y`.
    unsafe {
        let first = act(y, F::STRIDED, F::ZERO);
        [first, if F::VECTORS == 2 { act(y.add(1), F::STRIDED, F::ZERO) } else { first }]
    }
}

#[inline(always)]
unsafe fn put(out: &mut OutRows<'_>, token: usize, i: usize, sum: __m512) {
    let mut lanes = [0.0; 16];
    // SAFETY: the caller has AVX-512; `lanes` has room for 16 floats.
    unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), sum) };
    out.put(token, i, finish(&lanes));
}

#[inline(always)]
unsafe fn prefetch(p: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(64) {
        // SAFETY: a prefetch may be of any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(PREFETCH + 64 * line).cast()) };
    }
}

/// The bytes of a unit that the row has only one of two blocks of, filled up with zeros.
#[inline(always)]
fn last_unit<F: Packed>(row: &[u8]) -> [u8; 68] {
    let mut unit = [0; 68];
    let rest = row.chunks_exact(F::BYTES).remainder();
    unit[..rest.len()].copy_from_slice(rest);
    unit
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,f16c")]
fn integer_rows<F: Packed>(work: &Work<'_>, out: &mut OutRows<'_>) {
    let mut i = 0;
    // SAFETY: the features of this function.
    unsafe {
        if work.tokens == 1 {
            while i + GEMV_ROWS <= out.len() {
                gemv::<F, GEMV_ROWS>(work, out, i);
                i += GEMV_ROWS;
            }
            while i < out.len() {
                gemv::<F, 1>(work, out, i);
                i += 1;
            }
        } else {
            while i + ROWS <= out.len() {
                gemm::<F, ROWS>(work, out, i);
                i += ROWS;
            }
            while i < out.len() {
                gemm::<F, 1>(work, out, i);
                i += 1;
            }
        }
    }
}

/// Rows `i..i + R` for one token.
#[inline(always)]
unsafe fn gemv<F: Packed, const R: usize>(work: &Work<'_>, out: &mut OutRows<'_>, i: usize) {
    let row_bytes = work.w.row_bytes();
    let units = row_bytes / F::BYTES;
    let first = out.first() + i;
    let base = work.w.row(first).as_ptr();
    let mut y = work.q8.as_ptr();
    // SAFETY: the caller has AVX-512. Each of the R rows at `base` has `units` units, and `y` has
    // `VECTORS` blocks for each part of each, and for the last, incomplete one.
    unsafe {
        let mut sums = [_mm512_setzero_ps(); R];
        for u in 0..units {
            prefetch(base.wrapping_add(u * F::BYTES * R), F::BYTES * R);
            for part in 0..F::PARTS {
                let acts = acts::<F>(y);
                y = y.add(F::VECTORS);
                for r in 0..R {
                    let unit = base.add(r * row_bytes + u * F::BYTES);
                    sums[r] = add_step::<F>(sums[r], F::codes(unit, part), acts, F::scale(unit));
                }
            }
        }
        if units * F::BYTES < row_bytes {
            for r in 0..R {
                let unit = last_unit::<F>(work.w.row(first + r));
                sums[r] =
                    add_step::<F>(sums[r], F::codes(unit.as_ptr(), 0), acts::<F>(y), F::scale(unit.as_ptr()));
            }
        }
        for r in 0..R {
            put(out, 0, i + r, sums[r]);
        }
    }
}

/// Rows `i..i + R` for many tokens: the weights are unpacked into `codes` once per block of tokens.
#[inline(always)]
unsafe fn gemm<F: Packed, const R: usize>(work: &Work<'_>, out: &mut OutRows<'_>, i: usize) {
    let row_bytes = work.w.row_bytes();
    let units = row_bytes / F::BYTES;
    let steps = row_bytes.div_ceil(F::BYTES) * F::PARTS;
    let y_blocks = q8_blocks(work.w.cols());
    // SAFETY: the caller has AVX-512. Each of the rows has `units` units and perhaps an incomplete one,
    // and each token has `y_blocks` = `steps` * `VECTORS` blocks.
    unsafe {
        let mut codes = [[[_mm512_setzero_si512(); 2]; R]; STEPS];
        let mut scales = [[_mm512_setzero_ps(); R]; STEPS];
        for first in (0..work.tokens).step_by(TOKEN_BLOCK) {
            let tokens = TOKEN_BLOCK.min(work.tokens - first);
            let mut sums = [[_mm512_setzero_ps(); R]; TOKEN_BLOCK];
            for start in (0..steps).step_by(STEPS) {
                let n = STEPS.min(steps - start);
                for r in 0..R {
                    let row = work.w.row(out.first() + i + r);
                    for k in 0..n {
                        let (u, part) = ((start + k) / F::PARTS, (start + k) % F::PARTS);
                        let last = if u == units { last_unit::<F>(row) } else { [0; 68] };
                        let unit = if u == units { last.as_ptr() } else { row.as_ptr().add(u * F::BYTES) };
                        codes[k][r] = F::codes(unit, part);
                        scales[k][r] = F::scale(unit);
                    }
                }
                let y = work.q8.as_ptr().add(first * y_blocks + start * F::VECTORS);
                let mut t = 0;
                while t + TOKENS <= tokens {
                    let y = y.add(t * y_blocks);
                    tile::<F, R, TOKENS>(&codes[..n], &scales[..n], y, y_blocks, &mut sums[t..]);
                    t += TOKENS;
                }
                while t < tokens {
                    let y = y.add(t * y_blocks);
                    tile::<F, R, 1>(&codes[..n], &scales[..n], y, y_blocks, &mut sums[t..]);
                    t += 1;
                }
            }
            for t in 0..tokens {
                for r in 0..R {
                    put(out, first + t, i + r, sums[t][r]);
                }
            }
        }
    }
}

/// Adds to the sums of R rows and T tokens; all of them stay in registers.
#[inline(always)]
unsafe fn tile<F: Packed, const R: usize, const T: usize>(
    codes: &[[[__m512i; 2]; R]],
    scales: &[[__m512; R]],
    y: *const Q8Block,
    y_blocks: usize,
    sums: &mut [[__m512; R]],
) {
    // SAFETY: the caller has AVX-512, and T tokens of `codes.len()` * `VECTORS` blocks, `y_blocks`
    // apart, at `y`.
    unsafe {
        let mut tile: [[__m512; R]; T] = core::array::from_fn(|t| sums[t]);
        for (k, (codes, scales)) in codes.iter().zip(scales).enumerate() {
            for t in 0..T {
                let acts = acts::<F>(y.add(t * y_blocks + k * F::VECTORS));
                for r in 0..R {
                    tile[t][r] = add_step::<F>(tile[t][r], codes[r], acts, scales[r]);
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
                put(out, t + t_, i + r, sums[t_][r]);
            }
        }
    }
}

/// The reference, compiled for AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,f16c")]
fn float_unpacked(work: &Work<'_>, out: &mut OutRows<'_>) {
    super::scalar::float(work, out);
}
