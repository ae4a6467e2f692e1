//! Runs of 32 weights in AVX-512: two rows in a vector. Weights are unpacked as in AVX2.
#![allow(unsafe_code)]

use core::arch::x86_64::*;

use super::args::{Kernel, MatmulArgs};
use super::avx2;
use super::avx2_runs::{Runs, Width};
use super::run_format::RunFormat;
use super::run_kernel::{self, Products, RunKernels};
use crate::cpu::parallel::OutputRows;
use crate::quant::Format;

/// The kernel for int8 activations and row-major weights.
pub(super) fn integer(format: Format) -> Option<Kernel> {
    // Wider vectors gain nothing where sums cross lanes.
    run_kernel::of::<Runs<Wide>>(format).or_else(|| avx2::integer(format))
}

/// Vectors of AVX-512.
pub(super) struct Wide;

impl Width for Wide {
    type Wide = Pairs;
}

/// Runs of two rows.
pub(super) struct Pairs;

/// 32 activations, twice.
#[derive(Clone, Copy)]
pub(super) struct PairActs {
    q: __m512i,
    /// In floats: an integer below 2^24 times the factor is rounded as their product in integers would be.
    factor: __m512,
    /// Minus the products of the zero point, without the factor: the initial value of the lanes.
    start: __m512i,
}

impl Products for Pairs {
    type Codes = __m512i;
    type Acts = PairActs;
    type Floats = __m512;

    #[inline(always)]
    unsafe fn acts<const SIGNED: bool>(q: *const i8, factor: i32, zero: i8) -> PairActs {
        // SAFETY: the caller has AVX-512 with VNNI, and 32 bytes at `q`.
        unsafe {
            let q = _mm512_broadcast_i64x4(_mm256_loadu_si256(q.cast()));
            // Signed integers are multiplied as if 128 were added.
            let zero = if SIGNED { i8::MIN } else { zero };
            let off = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(zero), q);
            PairActs {
                q,
                factor: _mm512_set1_ps(factor as f32),
                start: _mm512_sub_epi32(_mm512_setzero_si512(), off),
            }
        }
    }

    #[inline(always)]
    unsafe fn sums(acts: PairActs) -> __m512 {
        // SAFETY: the caller has AVX-512 with VNNI.
        unsafe {
            let n = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), acts.q);
            _mm512_mul_ps(_mm512_cvtepi32_ps(n), acts.factor)
        }
    }

    #[inline(always)]
    unsafe fn dot<const SIGNED: bool>(w: __m512i, acts: PairActs) -> __m512 {
        // SAFETY: the caller has AVX-512 with VNNI.
        unsafe {
            let w = if SIGNED { _mm512_xor_si512(w, _mm512_set1_epi8(i8::MIN)) } else { w };
            let n = _mm512_dpbusd_epi32(acts.start, w, acts.q);
            _mm512_mul_ps(_mm512_cvtepi32_ps(n), acts.factor)
        }
    }

    #[inline(always)]
    unsafe fn add(sum: __m512, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller has AVX-512.
        unsafe { _mm512_add_ps(sum, _mm512_mul_ps(a, b)) }
    }
}

impl RunKernels for Runs<Wide> {
    fn kernel<F: RunFormat>() -> Kernel {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,f16c")]
        fn kernel<F: RunFormat>(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
            // SAFETY: the features of this function.
            unsafe { run_kernel::rows::<Runs<Wide>, F, 4, 8, 4>(args, out) };
        }
        kernel::<F>
    }
}
