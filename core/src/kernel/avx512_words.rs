//! AVX-512 VNNI over [`Layout::Words`]: a lane is a row.
//!
//! `vpdpbusd` adds four products of a code and an activation to each lane, the four activations being the
//! same for all rows; after 32 columns `vpdpwssd` multiplies by the factor of the activations. Nothing
//! is ever added across lanes.
#![allow(unsafe_code)]

use core::arch::x86_64::*;

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
        Format::Q1_0 => rows::<1, 128>,
        Format::Q2_0 => rows::<2, 64>,
        Format::Pq2_0 => rows::<2, 128>,
        Format::Tq2_0 => rows::<2, 256>,
        _ => return None,
    })
}

/// Columns that share a factor.
const PART: usize = 32;
/// Vectors of unpacked codes of a part, four columns each.
const QUADS: usize = PART / 4;
/// Columns that are unpacked at once in a product with many tokens: 8 KB, a quarter of the first cache.
const CHUNK: usize = 512;
/// Tokens whose sums are in registers.
const TILE: usize = 8;
/// Tokens that share one unpacking of the weights.
const TOKENS: usize = 128;
/// How far ahead of the multiplication the weights are asked for, in bytes.
const PREFETCH: usize = 8192;

/// The codes of the columns `4 s .. 4 s + 4` of a part, whose words are in `BITS` vectors; zero point 1.
#[inline(always)]
unsafe fn quad<const BITS: usize>(words: [__m512i; BITS], s: usize) -> __m512i {
    // SAFETY: the caller has AVX-512.
    unsafe {
        if BITS == 1 {
            // 0 or 2.
            let two = _mm512_set1_epi8(2);
            return match ONE_BIT_SHIFT[s] {
                0 => _mm512_and_si512(_mm512_add_epi32(words[0], words[0]), two),
                1 => _mm512_and_si512(words[0], two),
                by => _mm512_and_si512(_mm512_srlv_epi32(words[0], _mm512_set1_epi32(by as i32 - 1)), two),
            };
        }
        let (words, by) = (words[s / 4 % BITS], s % 4 * 2);
        let shifted = if by == 0 { words } else { _mm512_srlv_epi32(words, _mm512_set1_epi32(by as i32)) };
        _mm512_and_si512(shifted, _mm512_set1_epi8(3))
    }
}

/// `n` plus the sums of four products of unsigned by signed bytes.
#[inline(always)]
unsafe fn dpbusd(n: __m512i, codes: __m512i, q: *const i8) -> __m512i {
    // SAFETY: the caller has AVX-512 VNNI, and four activations at `q`.
    unsafe { _mm512_dpbusd_epi32(n, codes, _mm512_set1_epi32(q.cast::<i32>().read_unaligned())) }
}

/// `n` plus the products of the lower 16 bits of each lane.
///
/// In assembly because the compiler takes the intrinsic apart into two instructions.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn dpwssd(mut n: __m512i, sums: __m512i, factor: __m512i) -> __m512i {
    // SAFETY: reads and writes registers only.
    unsafe {
        core::arch::asm!(
            "vpdpwssd {n}, {a}, {b}",
            n = inout(zmm_reg) n, a = in(zmm_reg) sums, b = in(zmm_reg) factor,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    n
}

/// Activations and factor of part `p` from `y` on.
#[inline(always)]
unsafe fn part(y: *const Q8Block, p: usize) -> (*const i8, __m512i) {
    // SAFETY: the caller has AVX-512, and the part. The upper half of a factor
    // is zero, as it is below 2^15.
    unsafe {
        let y = &*y.add(p / 2);
        (y.q.as_ptr().add(p % 2 * PART), _mm512_set1_epi32(y.factor[p % 2]))
    }
}

/// What a block of `BLOCK` columns starts from, in every lane.
#[inline(always)]
unsafe fn start<const BLOCK: usize>(y: *const Q8Block) -> __m512i {
    let mut start = 0i32;
    for i in 0..BLOCK / Q8_LEN {
        // SAFETY: the caller has the activations.
        start = start.wrapping_add(unsafe { (*y.add(i)).start });
    }
    // SAFETY: the caller has AVX-512.
    unsafe { _mm512_set1_epi32(start) }
}

/// Sixteen scales.
#[inline(always)]
unsafe fn scales(p: *const u8) -> __m512 {
    // SAFETY: the caller has AVX-512, and 32 bytes at `p`.
    unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
}

/// `sum + n * d`, each operation rounded.
#[inline(always)]
unsafe fn add_block(sum: __m512, n: __m512i, d: __m512) -> __m512 {
    // SAFETY: the caller has AVX-512.
    unsafe { _mm512_add_ps(sum, _mm512_mul_ps(_mm512_cvtepi32_ps(n), d)) }
}

#[inline(always)]
unsafe fn put(work: &Work<'_>, out: &mut OutRows<'_>, token: usize, i: usize, sum: __m512) {
    let mut values = [0.0; GROUP];
    // SAFETY: the caller has AVX-512.
    unsafe { _mm512_storeu_ps(values.as_mut_ptr(), _mm512_mul_ps(sum, _mm512_set1_ps(work.step(token)))) };
    out.put16(token, i, &values);
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,f16c")]
fn rows<const BITS: usize, const BLOCK: usize>(work: &Work<'_>, out: &mut OutRows<'_>) {
    let mut i = 0;
    while i + GROUP <= out.len() && !work.w.group(out.first() + i).is_empty() {
        // SAFETY: the features of this function, and the group is there.
        unsafe {
            if work.tokens == 1 {
                gemv::<BITS, BLOCK>(work, out, i);
            } else {
                gemm::<BITS, BLOCK>(work, out, i);
            }
        }
        i += GROUP;
    }
    integer_from(i, work, out);
}

/// The words of a part of 16 rows, which start at `codes`.
#[inline(always)]
unsafe fn words<const BITS: usize>(codes: *const u8) -> [__m512i; BITS] {
    // SAFETY: the caller has AVX-512 and the part.
    unsafe {
        let mut words = [_mm512_setzero_si512(); BITS];
        for (v, words) in words.iter_mut().enumerate() {
            *words = _mm512_loadu_si512(codes.add(64 * v).cast());
        }
        words
    }
}

/// Asks for what lies [`PREFETCH`] behind the `bytes` bytes at `p`, scales and codes alike.
#[inline(always)]
unsafe fn prefetch(p: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(64) {
        // SAFETY: a prefetch may be of any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(PREFETCH + 64 * line).cast()) };
    }
}

/// 16 rows from row `i` for one token.
#[inline(always)]
unsafe fn gemv<const BITS: usize, const BLOCK: usize>(work: &Work<'_>, out: &mut OutRows<'_>, i: usize) {
    let blocks = work.w.cols() / BLOCK;
    let group = work.w.group(out.first() + i).as_ptr();
    let mut y = work.q8.as_ptr();
    // SAFETY: the caller has AVX-512 and the group; `y` has all columns.
    unsafe {
        let mut codes = group.add(blocks * 2 * GROUP);
        let bytes = GROUP * (2 + BITS * BLOCK / 8);
        let mut sum = _mm512_setzero_ps();
        for b in 0..blocks {
            prefetch(group.wrapping_add(b * bytes), bytes);
            let mut n = start::<BLOCK>(y);
            for p in 0..BLOCK / PART {
                let words = words::<BITS>(codes);
                codes = codes.add(64 * BITS);
                let (q, factor) = part(y, p);
                let mut sums = _mm512_setzero_si512();
                for s in 0..QUADS {
                    sums = dpbusd(sums, quad(words, s), q.add(4 * s));
                }
                n = dpwssd(n, sums, factor);
            }
            y = y.add(BLOCK / Q8_LEN);
            sum = add_block(sum, n, scales(group.add(b * 2 * GROUP)));
        }
        put(work, out, 0, i, sum);
    }
}

/// 16 rows from row `i` for many tokens.
#[inline(always)]
unsafe fn gemm<const BITS: usize, const BLOCK: usize>(work: &Work<'_>, out: &mut OutRows<'_>, i: usize) {
    let cols = work.w.cols();
    let stride = q8_blocks(cols);
    let group = work.w.group(out.first() + i).as_ptr();
    // SAFETY: the caller has AVX-512 and the group; each token has `stride` blocks of activations.
    unsafe {
        let codes = group.add(cols / BLOCK * 2 * GROUP);
        let mut unpacked = [_mm512_setzero_si512(); CHUNK / 4];
        let mut d = [_mm512_setzero_ps(); CHUNK / 64];
        for first in (0..work.tokens).step_by(TOKENS) {
            let tokens = TOKENS.min(work.tokens - first);
            let mut sums = [_mm512_setzero_ps(); TOKENS];
            for at in (0..cols).step_by(CHUNK) {
                let len = CHUNK.min(cols - at);
                for p in 0..len / PART {
                    let words = words::<BITS>(codes.add((at / PART + p) * 64 * BITS));
                    for s in 0..QUADS {
                        unpacked[p * QUADS + s] = quad(words, s);
                    }
                }
                for b in 0..len / BLOCK {
                    d[b] = scales(group.add((at / BLOCK + b) * 2 * GROUP));
                }
                let y = work.q8.as_ptr().add(first * stride + at / Q8_LEN);
                let (codes, d) = (&unpacked[..len / 4], &d[..len / BLOCK]);
                let mut t = 0;
                while t + TILE <= tokens {
                    tile::<BLOCK, TILE>(codes, d, y.add(t * stride), stride, &mut sums[t..t + TILE]);
                    t += TILE;
                }
                while t + 2 <= tokens {
                    tile::<BLOCK, 2>(codes, d, y.add(t * stride), stride, &mut sums[t..t + 2]);
                    t += 2;
                }
                if t < tokens {
                    tile::<BLOCK, 1>(codes, d, y.add(t * stride), stride, &mut sums[t..t + 1]);
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
unsafe fn tile<const BLOCK: usize, const T: usize>(
    codes: &[__m512i],
    d: &[__m512],
    y: *const Q8Block,
    stride: usize,
    sums: &mut [__m512],
) {
    // SAFETY: the caller has AVX-512, as many columns of activations as of codes, and T sums.
    unsafe {
        for (b, d) in d.iter().enumerate() {
            let (mut y, codes) = (y.add(b * (BLOCK / Q8_LEN)), codes.as_ptr().add(b * (BLOCK / 4)));
            let mut n = [_mm512_setzero_si512(); T];
            for t in 0..T {
                n[t] = start::<BLOCK>(y.add(t * stride));
            }
            for p in 0..BLOCK / PART {
                let mut fours = [_mm512_setzero_si512(); T];
                for s in 0..QUADS {
                    let codes = *codes.add(p * QUADS + s);
                    for t in 0..T {
                        let (q, _) = part(y.add(t * stride), p % 2);
                        fours[t] = dpbusd(fours[t], codes, q.add(4 * s));
                    }
                }
                for t in 0..T {
                    let (_, factor) = part(y.add(t * stride), p % 2);
                    n[t] = dpwssd(n[t], fours[t], factor);
                }
                y = y.add(p % 2);
            }
            for t in 0..T {
                let sum = sums.get_unchecked_mut(t);
                *sum = add_block(*sum, n[t], *d);
            }
        }
    }
}
