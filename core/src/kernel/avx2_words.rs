//! AVX2 over [`Layout::Words`]: a lane is a row, eight rows a register.
//!
//! `vpmaddubsw` adds two products of a code and an activation, the activations being the same for all
//! rows; after 32 columns, sums of 16 bits are multiplied by the factor of the activations and added in
//! pairs by `vpmaddwd`. Nothing is ever added across lanes.
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
/// Pairs of vectors of unpacked codes of a part, four columns each.
const QUADS: usize = PART / 4;
/// Columns that are unpacked at once in a product with many tokens: 8 KB, a quarter of the first cache.
const CHUNK: usize = 512;
/// Tokens whose sums are in registers.
const TILE: usize = 4;
/// Tokens that share one unpacking of the weights.
const TOKENS: usize = 128;
/// How far ahead of the multiplication the weights are asked for, in bytes.
const PREFETCH: usize = 8192;

/// The codes of the columns `4 s .. 4 s + 4` of a part, of eight rows, whose words are in `BITS` vectors;
/// zero point 1.
#[inline(always)]
unsafe fn quad<const BITS: usize>(words: [__m256i; BITS], s: usize) -> __m256i {
    // SAFETY: the caller has AVX2.
    unsafe {
        if BITS == 1 {
            // 0 or 2.
            let two = _mm256_set1_epi8(2);
            return match ONE_BIT_SHIFT[s] {
                0 => _mm256_and_si256(_mm256_add_epi32(words[0], words[0]), two),
                1 => _mm256_and_si256(words[0], two),
                by => _mm256_and_si256(_mm256_srlv_epi32(words[0], _mm256_set1_epi32(by as i32 - 1)), two),
            };
        }
        let (words, by) = (words[s / 4 % BITS], s % 4 * 2);
        let shifted = if by == 0 { words } else { _mm256_srlv_epi32(words, _mm256_set1_epi32(by as i32)) };
        _mm256_and_si256(shifted, _mm256_set1_epi8(3))
    }
}

/// The sums of two products, `q` being four activations.
#[inline(always)]
unsafe fn products(codes: __m256i, q: *const i8) -> __m256i {
    // SAFETY: the caller has AVX2, and four activations at `q`.
    unsafe { _mm256_maddubs_epi16(codes, _mm256_set1_epi32(q.cast::<i32>().read_unaligned())) }
}

/// Activations and factor of part `p` from `y` on.
#[inline(always)]
unsafe fn part(y: *const Q8Block, p: usize) -> (*const i8, __m256i) {
    // SAFETY: the caller has AVX2, and the part.
    unsafe {
        let y = &*y.add(p / 2);
        (y.q.as_ptr().add(p % 2 * PART), _mm256_set1_epi16(y.factor[p % 2] as i16))
    }
}

/// What a block of `BLOCK` columns starts from, in every lane.
#[inline(always)]
unsafe fn start<const BLOCK: usize>(y: *const Q8Block) -> __m256i {
    let mut start = 0i32;
    for i in 0..BLOCK / Q8_LEN {
        // SAFETY: the caller has the activations.
        start = start.wrapping_add(unsafe { (*y.add(i)).start });
    }
    // SAFETY: the caller has AVX2.
    unsafe { _mm256_set1_epi32(start) }
}

/// Sixteen scales.
#[inline(always)]
unsafe fn scales(p: *const u8) -> [__m256; 2] {
    // SAFETY: the caller has AVX2 and F16C, and 32 bytes at `p`.
    unsafe {
        [_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(16).cast()))]
    }
}

/// `sum + n * d`, each operation rounded.
#[inline(always)]
unsafe fn add_block(sum: __m256, n: __m256i, d: __m256) -> __m256 {
    // SAFETY: the caller has AVX2.
    unsafe { _mm256_add_ps(sum, _mm256_mul_ps(_mm256_cvtepi32_ps(n), d)) }
}

#[inline(always)]
unsafe fn put(work: &Work<'_>, out: &mut OutRows<'_>, token: usize, i: usize, sum: [__m256; 2]) {
    let mut values = [0.0; GROUP];
    // SAFETY: the caller has AVX2.
    unsafe {
        let step = _mm256_set1_ps(work.step(token));
        _mm256_storeu_ps(values.as_mut_ptr(), _mm256_mul_ps(sum[0], step));
        _mm256_storeu_ps(values.as_mut_ptr().add(8), _mm256_mul_ps(sum[1], step));
    }
    out.put16(token, i, &values);
}

#[target_feature(enable = "avx2,f16c")]
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

/// The words of a part of eight rows, which start at `codes`.
#[inline(always)]
unsafe fn words<const BITS: usize>(codes: *const u8) -> [__m256i; BITS] {
    // SAFETY: the caller has AVX2 and the part.
    unsafe {
        let mut words = [_mm256_setzero_si256(); BITS];
        for (v, words) in words.iter_mut().enumerate() {
            *words = _mm256_loadu_si256(codes.add(64 * v).cast());
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
    // SAFETY: the caller has AVX2 and the group; `y` has all columns.
    unsafe {
        let mut codes = group.add(blocks * 2 * GROUP);
        let bytes = GROUP * (2 + BITS * BLOCK / 8);
        let mut sum = [_mm256_setzero_ps(); 2];
        for b in 0..blocks {
            prefetch(group.wrapping_add(b * bytes), bytes);
            let mut n = [start::<BLOCK>(y); 2];
            for p in 0..BLOCK / PART {
                let words = [words::<BITS>(codes), words::<BITS>(codes.add(32))];
                codes = codes.add(64 * BITS);
                let (q, factor) = part(y, p);
                let mut sums = [_mm256_setzero_si256(); 2];
                for s in 0..QUADS {
                    for h in 0..2 {
                        sums[h] = _mm256_add_epi16(sums[h], products(quad(words[h], s), q.add(4 * s)));
                    }
                }
                for h in 0..2 {
                    n[h] = _mm256_add_epi32(n[h], _mm256_madd_epi16(sums[h], factor));
                }
            }
            y = y.add(BLOCK / Q8_LEN);
            let d = scales(group.add(b * 2 * GROUP));
            for h in 0..2 {
                sum[h] = add_block(sum[h], n[h], d[h]);
            }
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
    // SAFETY: the caller has AVX2 and the group; each token has `stride` blocks of activations.
    unsafe {
        let codes = group.add(cols / BLOCK * 2 * GROUP);
        let mut unpacked = [[_mm256_setzero_si256(); 2]; CHUNK / 4];
        let mut d = [[_mm256_setzero_ps(); 2]; CHUNK / 64];
        for first in (0..work.tokens).step_by(TOKENS) {
            let tokens = TOKENS.min(work.tokens - first);
            let mut sums = [[_mm256_setzero_ps(); 2]; TOKENS];
            for at in (0..cols).step_by(CHUNK) {
                let len = CHUNK.min(cols - at);
                for p in 0..len / PART {
                    let codes = codes.add((at / PART + p) * 64 * BITS);
                    let words = [words::<BITS>(codes), words::<BITS>(codes.add(32))];
                    for s in 0..QUADS {
                        unpacked[p * QUADS + s] = [quad(words[0], s), quad(words[1], s)];
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
                while t < tokens {
                    tile::<BLOCK, 1>(codes, d, y.add(t * stride), stride, &mut sums[t..t + 1]);
                    t += 1;
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
    codes: &[[__m256i; 2]],
    d: &[[__m256; 2]],
    y: *const Q8Block,
    stride: usize,
    sums: &mut [[__m256; 2]],
) {
    // SAFETY: the caller has AVX2, as many columns of activations as of codes, and T sums.
    unsafe {
        for (b, d) in d.iter().enumerate() {
            let (mut y, codes) = (y.add(b * (BLOCK / Q8_LEN)), codes.as_ptr().add(b * (BLOCK / 4)));
            let mut n = [[_mm256_setzero_si256(); 2]; T];
            for t in 0..T {
                n[t] = [start::<BLOCK>(y.add(t * stride)); 2];
            }
            for p in 0..BLOCK / PART {
                let mut pairs = [[_mm256_setzero_si256(); 2]; T];
                for s in 0..QUADS {
                    let codes = *codes.add(p * QUADS + s);
                    for t in 0..T {
                        let (q, _) = part(y.add(t * stride), p % 2);
                        for h in 0..2 {
                            pairs[t][h] = _mm256_add_epi16(pairs[t][h], products(codes[h], q.add(4 * s)));
                        }
                    }
                }
                for t in 0..T {
                    let (_, factor) = part(y.add(t * stride), p % 2);
                    for h in 0..2 {
                        n[t][h] = _mm256_add_epi32(n[t][h], _mm256_madd_epi16(pairs[t][h], factor));
                    }
                }
                y = y.add(p % 2);
            }
            for t in 0..T {
                let sum = sums.get_unchecked_mut(t);
                *sum = [add_block(sum[0], n[t][0], d[0]), add_block(sum[1], n[t][1], d[1])];
            }
        }
    }
}
