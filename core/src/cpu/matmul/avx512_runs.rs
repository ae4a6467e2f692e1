//! Runs of 32 weights in AVX-512: tiles of 16 rows, one per 32-bit lane. A vector holds four bytes of each row;
//! they are transposed as they are read.
#![allow(unsafe_code)]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every block needs what the trait asks for, and no more"
)]

use core::arch::x86_64::*;

use super::args::{Kernel, MatmulArgs};
use super::avx2::{self, prefetch_lines};
use super::run_format::RunFormat;
use super::run_isa::{Rows, RunIsa};
use super::run_kernel::{self, RunKernels};
use crate::cpu::parallel::OutputRows;
use crate::quant::Format;

/// The kernel for int8 activations and row-major weights.
pub(super) fn integer(format: Format) -> Option<Kernel> {
    // Wider vectors gain nothing where sums cross lanes.
    run_kernel::of::<Runs>(format).or_else(|| avx2::integer(format))
}

struct Runs;

/// 16 bytes of each row.
#[inline(always)]
unsafe fn transposed(rows: Rows) -> [__m512i; 4] {
    unsafe {
        // Rows `r`, `r + 4`, `r + 8` and `r + 12`.
        let four = |r: usize| {
            let row = |i: usize| _mm_loadu_si128(rows.row(r + 4 * i).cast());
            let first = _mm512_castsi128_si512(row(0));
            let two = _mm512_inserti32x4::<1>(first, row(1));
            _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(two, row(2)), row(3))
        };
        let (a, b, c, d) = (four(0), four(1), four(2), four(3));
        let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
        let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
        [
            _mm512_unpacklo_epi64(ab, cd),
            _mm512_unpackhi_epi64(ab, cd),
            _mm512_unpacklo_epi64(ab_high, cd_high),
            _mm512_unpackhi_epi64(ab_high, cd_high),
        ]
    }
}

/// `f` for each element.
macro_rules! each {
    ($len:literal, |$i:ident| $f:expr) => {{
        // A loop, as closures are not always inlined to where the instruction set is.
        let mut all = [_mm512_setzero_si512(); $len];
        for $i in 0..$len {
            all[$i] = $f;
        }
        all
    }};
}

impl RunIsa<16> for Runs {
    /// `(bytes / 4)`
    type Bytes = [__m512i; 8];
    type Codes = [__m512i; 8];
    type Words = __m512i;
    type Floats = __m512;
    const SIGNED_ZERO: i32 = 128;

    #[inline(always)]
    unsafe fn load(rows: Rows) -> [__m512i; 8] {
        unsafe {
            let ([a, b, c, d], [e, f, g, h]) = (transposed(rows), transposed(rows.skip(16)));
            [a, b, c, d, e, f, g, h]
        }
    }

    #[inline(always)]
    unsafe fn nibbles(rows: Rows) -> [__m512i; 8] {
        unsafe {
            let x = transposed(rows);
            let fifteen = _mm512_set1_epi8(15);
            let [a, b, c, d] = each!(4, |i| _mm512_and_si512(x[i], fifteen));
            let [e, f, g, h] = each!(4, |i| _mm512_and_si512(_mm512_srli_epi16::<4>(x[i]), fifteen));
            [a, b, c, d, e, f, g, h]
        }
    }

    #[inline(always)]
    unsafe fn words(rows: Rows) -> [__m512i; 4] {
        unsafe { transposed(rows) }
    }

    #[inline(always)]
    unsafe fn to_words(x: &[u32; 16]) -> __m512i {
        unsafe { _mm512_loadu_si512(x.as_ptr().cast()) }
    }

    #[inline(always)]
    unsafe fn word_field(x: __m512i, shift: usize, mask: u32) -> __m512i {
        unsafe {
            let shifted = _mm512_srl_epi32(x, _mm_cvtsi32_si128(shift as i32));
            _mm512_and_si512(shifted, _mm512_set1_epi32(mask as i32))
        }
    }

    #[inline(always)]
    unsafe fn join(a: __m512i, b: __m512i, shift: usize) -> __m512i {
        unsafe { _mm512_or_si512(a, _mm512_sll_epi32(b, _mm_cvtsi32_si128(shift as i32))) }
    }

    #[inline(always)]
    unsafe fn offset(x: __m512i, n: i32) -> __m512i {
        unsafe { _mm512_add_epi32(x, _mm512_set1_epi32(n)) }
    }

    #[inline(always)]
    unsafe fn byte(x: __m512i, at: usize, zero: i32) -> __m512 {
        unsafe {
            let high = _mm512_sll_epi32(x, _mm_cvtsi32_si128(24 - 8 * at as i32));
            let byte = _mm512_srai_epi32::<24>(high);
            _mm512_cvtepi32_ps(_mm512_sub_epi32(byte, _mm512_set1_epi32(zero)))
        }
    }

    #[inline(always)]
    unsafe fn f16(x: __m512i) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x)) }
    }

    #[inline(always)]
    unsafe fn f32(x: __m512i) -> __m512 {
        unsafe { _mm512_castsi512_ps(x) }
    }

    #[inline(always)]
    unsafe fn field(x: [__m512i; 8], shift: usize, mask: u8) -> [__m512i; 8] {
        unsafe {
            let (by, mask) = (_mm_cvtsi32_si128(shift as i32), _mm512_set1_epi8(mask as i8));
            each!(8, |i| _mm512_and_si512(_mm512_srl_epi16(x[i], by), mask))
        }
    }

    #[inline(always)]
    unsafe fn shl(x: [__m512i; 8], shift: usize) -> [__m512i; 8] {
        unsafe { each!(8, |i| _mm512_sll_epi16(x[i], _mm_cvtsi32_si128(shift as i32))) }
    }

    #[inline(always)]
    unsafe fn or(a: [__m512i; 8], b: [__m512i; 8]) -> [__m512i; 8] {
        unsafe { each!(8, |i| _mm512_or_si512(a[i], b[i])) }
    }

    #[inline(always)]
    unsafe fn bits(bits: __m512i, value: u8) -> [__m512i; 8] {
        unsafe {
            each!(8, |i| {
                let spread = _mm512_shuffle_epi8(bits, _mm512_broadcast_i32x4(lane_byte(i / 2)));
                let bit = _mm512_set1_epi32(if i % 2 == 0 { 0x0804_0201 } else { 0x8040_2010u32 as i32 });
                _mm512_maskz_set1_epi8(_mm512_test_epi8_mask(spread, bit), value as i8)
            })
        }
    }

    #[inline(always)]
    unsafe fn look_up(table: &[i8; 16], x: [__m512i; 8]) -> [__m512i; 8] {
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            each!(8, |i| _mm512_shuffle_epi8(table, x[i]))
        }
    }

    #[inline(always)]
    unsafe fn swap_middle([a, b, c, d, e, f, g, h]: [__m512i; 8]) -> [__m512i; 8] {
        [a, b, e, f, c, d, g, h]
    }

    #[inline(always)]
    unsafe fn codes(x: [__m512i; 8], signed: bool) -> [__m512i; 8] {
        if signed { unsafe { each!(8, |i| _mm512_xor_si512(x[i], _mm512_set1_epi8(i8::MIN))) } } else { x }
    }

    #[inline(always)]
    unsafe fn dot(w: &[__m512i; 8], half: Option<usize>, q: *const i8, start: i32, _: Option<u8>) -> __m512 {
        unsafe {
            let mut n = _mm512_set1_epi32(start);
            let (first, quads) = half.map_or((0, 8), |half| (4 * half, 4));
            for i in 0..quads {
                let q = _mm512_set1_epi32(q.add(4 * i).cast::<i32>().read_unaligned());
                n = _mm512_dpbusd_epi32(n, w[first + i], q);
            }
            _mm512_cvtepi32_ps(n)
        }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn add(sum: __m512, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(sum, _mm512_mul_ps(a, b)) }
    }

    #[inline(always)]
    unsafe fn store(sum: __m512) -> [f32; 16] {
        let mut lanes = [0.0; 16];
        unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), sum) };
        lanes
    }

    #[inline(always)]
    fn prefetch(p: *const u8, bytes: usize) {
        prefetch_lines(p, bytes);
    }
}

/// In each 32-bit lane its byte `at`, four times, as indices of a shuffle.
#[inline(always)]
unsafe fn lane_byte(at: usize) -> __m128i {
    unsafe {
        let each = at as i32 * 0x0101_0101;
        _mm_add_epi32(_mm_setr_epi32(0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c), _mm_set1_epi32(each))
    }
}

impl RunKernels for Runs {
    fn kernel<F: RunFormat>() -> Kernel {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,f16c")]
        fn kernel<F: RunFormat>(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
            // SAFETY: the features of this function.
            unsafe { run_kernel::rows::<Runs, F, 16, 8>(args, out) };
        }
        kernel::<F>
    }
}
