//! AVX2 over [`Layout::Words`], eight rows a register: `vpmaddubsw` adds two products of a code and an
//! activation, the activations being the same for all rows; after 32 columns, sums of 16 bits are
//! multiplied by the factor of the activations and added in pairs by `vpmaddwd`.
#![allow(unsafe_code)]

use core::arch::x86_64::*;

use super::words::{QUADS, Words, kernel_of, rows};
use super::{Kernel, OutRows, Work};
use crate::quant::{Format, GROUP, Layout, ONE_BIT_SHIFT};

/// The kernel for int8 activations and interleaved rows.
pub(super) fn interleaved(format: Format, layout: Layout) -> Option<Kernel> {
    kernel_of!(kernel, format, layout)
}

#[target_feature(enable = "avx2,f16c")]
fn kernel<const BITS: usize, const BLOCK: usize>(work: &Work<'_>, out: &mut OutRows<'_>) {
    // SAFETY: the features of this function.
    unsafe { rows::<Avx2, BITS, BLOCK, 4>(work, out) };
}

/// How far ahead of the multiplication the weights are asked for, in bytes.
const PREFETCH: usize = 8192;

struct Avx2;

/// Arrays of two are rows 0 to 7 and 8 to 15.
#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every block needs what the trait asks for, and no more"
)]
impl Words for Avx2 {
    type Part<const BITS: usize> = [[__m256i; 2]; BITS];
    type Quad = [__m256i; 2];
    /// Of pairs of columns, in words.
    type Sums = [__m256i; 2];
    type Integers = [__m256i; 2];
    type Floats = [__m256; 2];

    #[inline(always)]
    unsafe fn part<const BITS: usize>(codes: *const u8) -> [[__m256i; 2]; BITS] {
        unsafe {
            let mut part = [[_mm256_setzero_si256(); 2]; BITS];
            for (v, words) in part.iter_mut().enumerate() {
                for (h, words) in words.iter_mut().enumerate() {
                    *words = _mm256_loadu_si256(codes.add(64 * v + 32 * h).cast());
                }
            }
            part
        }
    }

    #[inline(always)]
    unsafe fn quad<const BITS: usize>(part: [[__m256i; 2]; BITS], s: usize) -> [__m256i; 2] {
        let mut quad = part[s / 4 % BITS];
        for words in &mut quad {
            unsafe {
                // 0 or 2, or 0 to 3.
                let (by, mask) =
                    if BITS == 1 { (ONE_BIT_SHIFT[s] as i32 - 1, 2) } else { (s as i32 % 4 * 2, 3) };
                let shifted = match by {
                    -1 => _mm256_add_epi32(*words, *words),
                    0 => *words,
                    _ => _mm256_srlv_epi32(*words, _mm256_set1_epi32(by)),
                };
                *words = _mm256_and_si256(shifted, _mm256_set1_epi8(mask));
            }
        }
        quad
    }

    #[inline(always)]
    unsafe fn no_sums() -> [__m256i; 2] {
        unsafe { [_mm256_setzero_si256(); 2] }
    }

    #[inline(always)]
    unsafe fn add_part<const T: usize>(
        sums: &mut [[__m256i; 2]; T],
        quad: impl Fn(usize) -> [__m256i; 2],
        q: [*const i8; T],
    ) {
        for s in 0..QUADS {
            let quad = quad(s);
            for t in 0..T {
                unsafe {
                    // Sixteen products of at most 3 * 127 fit 16 bits.
                    let q = _mm256_set1_epi32(q[t].add(4 * s).cast::<i32>().read_unaligned());
                    for h in 0..2 {
                        sums[t][h] = _mm256_add_epi16(sums[t][h], _mm256_maddubs_epi16(quad[h], q));
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn integers(n: i32) -> [__m256i; 2] {
        unsafe { [_mm256_set1_epi32(n); 2] }
    }

    #[inline(always)]
    unsafe fn add_sums(n: [__m256i; 2], sums: [__m256i; 2], factor: i32) -> [__m256i; 2] {
        unsafe {
            let factor = _mm256_set1_epi16(factor as i16);
            [
                _mm256_add_epi32(n[0], _mm256_madd_epi16(sums[0], factor)),
                _mm256_add_epi32(n[1], _mm256_madd_epi16(sums[1], factor)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn floats(x: f32) -> [__m256; 2] {
        unsafe { [_mm256_set1_ps(x); 2] }
    }

    #[inline(always)]
    unsafe fn scales(p: *const u8) -> [__m256; 2] {
        unsafe {
            [_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(16).cast()))]
        }
    }

    #[inline(always)]
    unsafe fn add_block(sum: [__m256; 2], n: [__m256i; 2], d: [__m256; 2]) -> [__m256; 2] {
        unsafe {
            [
                _mm256_add_ps(sum[0], _mm256_mul_ps(_mm256_cvtepi32_ps(n[0]), d[0])),
                _mm256_add_ps(sum[1], _mm256_mul_ps(_mm256_cvtepi32_ps(n[1]), d[1])),
            ]
        }
    }

    #[inline(always)]
    unsafe fn outputs(sum: [__m256; 2], step: f32) -> [f32; GROUP] {
        let mut outputs = [0.0; GROUP];
        unsafe {
            let step = _mm256_set1_ps(step);
            _mm256_storeu_ps(outputs.as_mut_ptr(), _mm256_mul_ps(sum[0], step));
            _mm256_storeu_ps(outputs.as_mut_ptr().add(8), _mm256_mul_ps(sum[1], step));
        }
        outputs
    }

    #[inline(always)]
    fn prefetch(p: *const u8) {
        // SAFETY: a prefetch may be of any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(PREFETCH).cast()) };
    }
}
