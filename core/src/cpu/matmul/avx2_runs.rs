//! Runs of 32 weights in AVX2: tiles of 8 rows, one per 32-bit lane. A vector holds four bytes of each row; they are
//! transposed as they are read. Codes are not negative where their zero point allows it, so that `vpmaddubsw`
//! multiplies them as they are. With AVX-VNNI, `vpdpbusd` multiplies and adds four bytes of each row.
#![allow(unsafe_code)]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every block needs what the trait asks for, and no more"
)]

use core::arch::x86_64::*;

use super::args::{Kernel, MatmulArgs};
use super::avx2::{self, both16, prefetch_lines};
use super::run_format::RunFormat;
use super::run_isa::{Rows, RunIsa};
use super::run_kernel::{self, RunKernels};
use crate::cpu::parallel::OutputRows;
use crate::quant::Format;

/// The kernel for int8 activations and row-major weights.
pub(super) fn integer(format: Format) -> Option<Kernel> {
    run_kernel::of::<Runs<false>>(format).or_else(|| avx2::integer(format))
}

/// [`integer`] with AVX-VNNI.
pub(super) fn integer_vnni(format: Format) -> Option<Kernel> {
    // Where sums cross lanes and have two factors, it saves nothing.
    run_kernel::of::<Runs<true>>(format).or_else(|| avx2::integer(format))
}

/// `VNNI`: with AVX-VNNI.
struct Runs<const VNNI: bool>;

/// 16 bytes of each row.
#[inline(always)]
unsafe fn transposed(rows: Rows) -> [__m256i; 4] {
    unsafe {
        // Rows `r` and `r + 4`.
        let two = |r: usize| {
            let row = |r: usize| _mm_loadu_si128(rows.row(r).cast());
            _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(row(r)), row(r + 4))
        };
        let (a, b, c, d) = (two(0), two(1), two(2), two(3));
        let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
        let (ab_high, cd_high) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
        [
            _mm256_unpacklo_epi64(ab, cd),
            _mm256_unpackhi_epi64(ab, cd),
            _mm256_unpacklo_epi64(ab_high, cd_high),
            _mm256_unpackhi_epi64(ab_high, cd_high),
        ]
    }
}

/// `f` for each element.
macro_rules! each {
    ($len:literal, |$i:ident| $f:expr) => {{
        // A loop, as closures are not always inlined to where the instruction set is.
        let mut all = [_mm256_setzero_si256(); $len];
        for $i in 0..$len {
            all[$i] = $f;
        }
        all
    }};
}

impl<const VNNI: bool> RunIsa<8> for Runs<VNNI> {
    /// `(bytes / 4)`
    type Bytes = [__m256i; 8];
    type Codes = [__m256i; 8];
    type Words = __m256i;
    type Floats = __m256;
    const SIGNED_ZERO: i32 = if VNNI { 128 } else { 0 };

    #[inline(always)]
    unsafe fn load(rows: Rows) -> [__m256i; 8] {
        unsafe {
            let ([a, b, c, d], [e, f, g, h]) = (transposed(rows), transposed(rows.skip(16)));
            [a, b, c, d, e, f, g, h]
        }
    }

    #[inline(always)]
    unsafe fn nibbles(rows: Rows) -> [__m256i; 8] {
        unsafe {
            let x = transposed(rows);
            let fifteen = _mm256_set1_epi8(15);
            let [a, b, c, d] = each!(4, |i| _mm256_and_si256(x[i], fifteen));
            let [e, f, g, h] = each!(4, |i| _mm256_and_si256(_mm256_srli_epi16::<4>(x[i]), fifteen));
            [a, b, c, d, e, f, g, h]
        }
    }

    #[inline(always)]
    unsafe fn words(rows: Rows) -> [__m256i; 4] {
        unsafe { transposed(rows) }
    }

    #[inline(always)]
    unsafe fn to_words(x: &[u32; 8]) -> __m256i {
        unsafe { _mm256_loadu_si256(x.as_ptr().cast()) }
    }

    #[inline(always)]
    unsafe fn word_field(x: __m256i, shift: usize, mask: u32) -> __m256i {
        unsafe {
            let shifted = _mm256_srl_epi32(x, _mm_cvtsi32_si128(shift as i32));
            _mm256_and_si256(shifted, _mm256_set1_epi32(mask as i32))
        }
    }

    #[inline(always)]
    unsafe fn join(a: __m256i, b: __m256i, shift: usize) -> __m256i {
        unsafe { _mm256_or_si256(a, _mm256_sll_epi32(b, _mm_cvtsi32_si128(shift as i32))) }
    }

    #[inline(always)]
    unsafe fn offset(x: __m256i, n: i32) -> __m256i {
        unsafe { _mm256_add_epi32(x, _mm256_set1_epi32(n)) }
    }

    #[inline(always)]
    unsafe fn byte(x: __m256i, at: usize, zero: i32) -> __m256 {
        unsafe {
            let high = _mm256_sll_epi32(x, _mm_cvtsi32_si128(24 - 8 * at as i32));
            let byte = _mm256_srai_epi32::<24>(high);
            _mm256_cvtepi32_ps(_mm256_sub_epi32(byte, _mm256_set1_epi32(zero)))
        }
    }

    #[inline(always)]
    unsafe fn f16(x: __m256i) -> __m256 {
        unsafe {
            let halves = _mm256_and_si256(x, _mm256_set1_epi32(0xffff));
            let packed = _mm256_permute4x64_epi64::<0b10_00>(_mm256_packus_epi32(halves, halves));
            _mm256_cvtph_ps(_mm256_castsi256_si128(packed))
        }
    }

    #[inline(always)]
    unsafe fn f32(x: __m256i) -> __m256 {
        unsafe { _mm256_castsi256_ps(x) }
    }

    #[inline(always)]
    unsafe fn field(x: [__m256i; 8], shift: usize, mask: u8) -> [__m256i; 8] {
        unsafe {
            let (by, mask) = (_mm_cvtsi32_si128(shift as i32), _mm256_set1_epi8(mask as i8));
            each!(8, |i| _mm256_and_si256(_mm256_srl_epi16(x[i], by), mask))
        }
    }

    #[inline(always)]
    unsafe fn shl(x: [__m256i; 8], shift: usize) -> [__m256i; 8] {
        unsafe { each!(8, |i| _mm256_sll_epi16(x[i], _mm_cvtsi32_si128(shift as i32))) }
    }

    #[inline(always)]
    unsafe fn or(a: [__m256i; 8], b: [__m256i; 8]) -> [__m256i; 8] {
        unsafe { each!(8, |i| _mm256_or_si256(a[i], b[i])) }
    }

    #[inline(always)]
    unsafe fn bits(bits: __m256i, value: u8) -> [__m256i; 8] {
        unsafe {
            each!(8, |i| {
                // Byte `i / 2` of each word, four times.
                let each = _mm256_set1_epi32((i / 2) as i32 * 0x0101_0101);
                let words = _mm256_setr_epi32(
                    0,
                    0x0404_0404,
                    0x0808_0808,
                    0x0c0c_0c0c,
                    0,
                    0x0404_0404,
                    0x0808_0808,
                    0x0c0c_0c0c,
                );
                let spread = _mm256_shuffle_epi8(bits, _mm256_add_epi32(words, each));
                let bit = _mm256_set1_epi32(if i % 2 == 0 { 0x0804_0201 } else { 0x8040_2010u32 as i32 });
                let set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
                _mm256_and_si256(set, _mm256_set1_epi8(value as i8))
            })
        }
    }

    #[inline(always)]
    unsafe fn look_up(table: &[i8; 16], x: [__m256i; 8]) -> [__m256i; 8] {
        unsafe {
            let table = both16(table.as_ptr().cast());
            each!(8, |i| _mm256_shuffle_epi8(table, x[i]))
        }
    }

    #[inline(always)]
    unsafe fn swap_middle([a, b, c, d, e, f, g, h]: [__m256i; 8]) -> [__m256i; 8] {
        [a, b, e, f, c, d, g, h]
    }

    #[inline(always)]
    unsafe fn codes(x: [__m256i; 8], signed: bool) -> [__m256i; 8] {
        if VNNI && signed {
            unsafe { each!(8, |i| _mm256_xor_si256(x[i], _mm256_set1_epi8(i8::MIN))) }
        } else {
            x
        }
    }

    #[inline(always)]
    unsafe fn dot(
        w: &[__m256i; 8],
        half: Option<usize>,
        q: *const i8,
        start: i32,
        largest: Option<u8>,
    ) -> __m256 {
        unsafe {
            let mut n = _mm256_set1_epi32(start);
            let one = _mm256_set1_epi16(1);
            let (first, quads) = half.map_or((0, 8), |half| (4 * half, 4));
            let q = |i: usize| _mm256_set1_epi32(q.add(4 * i).cast::<i32>().read_unaligned());
            if VNNI {
                for i in 0..quads {
                    n = _mm256_dpbusd_avx_epi32(n, w[first + i], q(i));
                }
                return _mm256_cvtepi32_ps(n);
            }
            // How many sums of two products fit 16 bits together.
            let together = match largest {
                None => 1,
                Some(..=15) => quads,
                Some(..=31) => 4,
                Some(_) => 2,
            };
            for at in (0..quads).step_by(together) {
                let mut pairs = _mm256_setzero_si256();
                for i in at..at + together {
                    let two = match largest {
                        // Pairs of at most 2 * 128 * 127 fit 16 bits.
                        None => {
                            let w = w[first + i];
                            _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(q(i), w))
                        }
                        Some(_) => _mm256_maddubs_epi16(w[first + i], q(i)),
                    };
                    pairs = _mm256_add_epi16(pairs, two);
                }
                n = _mm256_add_epi32(n, _mm256_madd_epi16(pairs, one));
            }
            _mm256_cvtepi32_ps(n)
        }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        unsafe { _mm256_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn add(sum: __m256, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_add_ps(sum, _mm256_mul_ps(a, b)) }
    }

    #[inline(always)]
    unsafe fn store(sum: __m256) -> [f32; 8] {
        let mut lanes = [0.0; 8];
        unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), sum) };
        lanes
    }

    #[inline(always)]
    fn prefetch(p: *const u8, bytes: usize) {
        prefetch_lines(p, bytes);
    }
}

impl RunKernels for Runs<false> {
    fn kernel<F: RunFormat>() -> Kernel {
        #[target_feature(enable = "avx2,f16c")]
        fn kernel<F: RunFormat>(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
            // SAFETY: the features of this function.
            unsafe { run_kernel::rows::<Runs<false>, F, 8, 4>(args, out) };
        }
        kernel::<F>
    }
}

impl RunKernels for Runs<true> {
    fn kernel<F: RunFormat>() -> Kernel {
        #[target_feature(enable = "avx2,f16c,avxvnni")]
        fn kernel<F: RunFormat>(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
            // SAFETY: the features of this function.
            unsafe { run_kernel::rows::<Runs<true>, F, 8, 4>(args, out) };
        }
        kernel::<F>
    }
}
