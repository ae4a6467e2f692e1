//! Runs of 32 weights in AVX2: one vector. Codes are not negative where their zero point allows it, so that
//! `vpmaddubsw` multiplies them as they are.
#![allow(unsafe_code)]

use core::arch::x86_64::*;
use core::marker::PhantomData;

use super::args::{Kernel, MatmulArgs};
use super::avx2::{both16, prefetch};
use super::run_format::RunFormat;
use super::run_kernel::{self, Products, RunIsa, RunKernels};
use crate::cpu::parallel::OutputRows;

/// 32 activations.
#[derive(Clone, Copy)]
pub(super) struct RunActs {
    q: __m256i,
    factor: __m256i,
    /// Minus the products of the zero point: the initial value of the lanes.
    start: __m256i,
}

/// Runs of one row, multiplied in vectors of `W`.
pub(super) struct Runs<W>(PhantomData<W>);

/// The vectors that multiply unpacked rows.
pub(super) trait Width {
    type Wide: Products;
}

/// Vectors of AVX2.
pub(super) struct Narrow;

impl Width for Narrow {
    type Wide = Runs<Narrow>;
}

impl<W: Width> Products for Runs<W> {
    type Codes = __m256i;
    type Acts = RunActs;
    type Floats = __m256;

    #[inline(always)]
    unsafe fn acts<const SIGNED: bool>(q: *const i8, factor: i32, zero: i8) -> RunActs {
        // SAFETY: as for this function.
        unsafe {
            let (q, factor) = (_mm256_loadu_si256(q.cast()), _mm256_set1_epi16(factor as i16));
            let off = _mm256_maddubs_epi16(_mm256_set1_epi8(zero), q);
            let start = _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_madd_epi16(off, factor));
            RunActs { q, factor, start }
        }
    }

    #[inline(always)]
    unsafe fn sums(acts: RunActs) -> __m256 {
        // SAFETY: the caller has AVX2.
        unsafe {
            let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), acts.q);
            _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, acts.factor))
        }
    }

    #[inline(always)]
    unsafe fn dot<const SIGNED: bool>(w: __m256i, acts: RunActs) -> __m256 {
        // SAFETY: the caller has AVX2.
        unsafe {
            let pairs = if SIGNED {
                // Pairs of at most 2 * 128 * 127 fit 16 bits.
                _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(acts.q, w))
            } else {
                _mm256_maddubs_epi16(w, acts.q)
            };
            let n = _mm256_madd_epi16(pairs, acts.factor);
            _mm256_cvtepi32_ps(if SIGNED { n } else { _mm256_add_epi32(n, acts.start) })
        }
    }

    #[inline(always)]
    unsafe fn add(sum: __m256, a: __m256, b: __m256) -> __m256 {
        // SAFETY: the caller has AVX2.
        unsafe { _mm256_add_ps(sum, _mm256_mul_ps(a, b)) }
    }
}

impl<W: Width> RunIsa for Runs<W> {
    type Wide = W::Wide;
    type Bytes = __m256i;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m256i {
        // SAFETY: as for this function.
        unsafe { _mm256_loadu_si256(p.cast()) }
    }

    #[inline(always)]
    unsafe fn nibbles(p: *const u8) -> __m256i {
        // SAFETY: as for this function.
        unsafe {
            let nibbles = _mm256_srlv_epi64(both16(p), _mm256_setr_epi64x(0, 0, 4, 4));
            _mm256_and_si256(nibbles, _mm256_set1_epi8(15))
        }
    }

    #[inline(always)]
    unsafe fn field(x: __m256i, shift: usize, mask: u8) -> __m256i {
        // SAFETY: the caller has AVX2.
        unsafe {
            let shifted = _mm256_srl_epi16(x, _mm_cvtsi32_si128(shift as i32));
            _mm256_and_si256(shifted, _mm256_set1_epi8(mask as i8))
        }
    }

    #[inline(always)]
    unsafe fn shl(x: __m256i, shift: usize) -> __m256i {
        // SAFETY: the caller has AVX2.
        unsafe { _mm256_sll_epi16(x, _mm_cvtsi32_si128(shift as i32)) }
    }

    #[inline(always)]
    unsafe fn or(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the caller has AVX2.
        unsafe { _mm256_or_si256(a, b) }
    }

    #[inline(always)]
    unsafe fn bits(bits: u32, value: u8) -> __m256i {
        // SAFETY: the caller has AVX2.
        unsafe {
            let eight = |a: i64| a * 0x0101_0101_0101_0101;
            let spread = _mm256_setr_epi64x(0, eight(1), eight(2), eight(3));
            let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201u64 as i64);
            let bits = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits as i32), spread), bit);
            _mm256_and_si256(_mm256_cmpeq_epi8(bits, bit), _mm256_set1_epi8(value as i8))
        }
    }

    #[inline(always)]
    unsafe fn look_up(table: &[i8; 16], x: __m256i) -> __m256i {
        // SAFETY: the caller has AVX2.
        unsafe { _mm256_shuffle_epi8(both16(table.as_ptr().cast()), x) }
    }

    #[inline(always)]
    unsafe fn swap_middle(x: __m256i) -> __m256i {
        // SAFETY: the caller has AVX2.
        unsafe { _mm256_permute4x64_epi64::<0b11_01_10_00>(x) }
    }

    #[inline(always)]
    unsafe fn f16(p: *const u8) -> f32 {
        // SAFETY: as for this function; the caller has F16C.
        unsafe {
            let bits = p.cast::<u16>().read_unaligned();
            _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits))))
        }
    }

    #[inline(always)]
    unsafe fn codes<const SIGNED: bool>(x: __m256i) -> __m256i {
        x
    }

    #[inline(always)]
    unsafe fn lanes(a: f32, b: f32) -> __m256 {
        // SAFETY: the caller has AVX2.
        unsafe { _mm256_set_m128(_mm_set1_ps(b), _mm_set1_ps(a)) }
    }

    #[inline(always)]
    unsafe fn store(sum: __m256) -> [f32; 8] {
        let mut lanes = [0.0; 8];
        // SAFETY: the caller has AVX2; `lanes` has room.
        unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), sum) };
        lanes
    }

    #[inline(always)]
    fn prefetch(p: *const u8, bytes: usize) {
        prefetch(p, bytes);
    }
}

impl RunKernels for Runs<Narrow> {
    fn kernel<F: RunFormat>() -> Kernel {
        #[target_feature(enable = "avx2,f16c")]
        fn kernel<F: RunFormat>(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
            // SAFETY: the features of this function.
            unsafe { run_kernel::rows::<Runs<Narrow>, F, 4, 4, 2>(args, out) };
        }
        kernel::<F>
    }
}
