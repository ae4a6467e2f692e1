//! AVX-512 VNNI over repacked rows: `vpdpbusd` adds four products of a code and an activation to each lane,
//! with the same four activations for all rows; after 32 columns `vpdpwssd` multiplies by their factor.
#![allow(unsafe_code)]

use core::arch::x86_64::*;

use super::args::{Kernel, MatmulArgs};
use super::lut_kernel::{self, EIGHTS, LutKernel};
use super::panel_kernel::{PanelKernel, QUADS, kernel_of, rows};
use super::token_lanes::{FIELDS, FieldLanes, Lanes, TokenLanes};
use crate::cpu::activation_lut::ActivationLut;
use crate::cpu::parallel::OutputRows;
use crate::cpu::repack::{Layout, PANEL_ROWS};
use crate::cpu::simd::avx512::dpwssd;
use crate::quant::Format;

/// The kernel for int8 activations and repacked rows.
pub(super) fn repacked(format: Format, layout: Layout) -> Option<Kernel> {
    kernel_of!(one_bit, kernel, format, layout)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,f16c")]
pub(super) fn one_bit(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
    // SAFETY: the features of this function.
    unsafe { lut_kernel::rows::<Avx512>(args, out) };
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,f16c")]
pub(super) fn kernel<const BITS: usize, const BLOCK: usize>(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
    // SAFETY: the features of this function.
    unsafe { rows::<Avx512, BITS, BLOCK, 8>(args, out, 0) };
}

/// Prefetch distance in bytes.
const PREFETCH: usize = 8192;

pub(super) struct Avx512;

/// The lookup tables of four parts.
#[inline]
#[target_feature(enable = "avx512f")]
fn table(parts: &[[u8; 16]; 4]) -> __m512i {
    // SAFETY: 64 bytes.
    unsafe { _mm512_loadu_si512(parts.as_ptr().cast()) }
}

#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every block needs what the trait asks for, and no more"
)]
impl PanelKernel for Avx512 {
    type Part<const BITS: usize> = [__m512i; BITS];
    type Quad = __m512i;
    type Sums = __m512i;
    type Integers = __m512i;
    type Floats = __m512;

    #[inline(always)]
    unsafe fn part<const BITS: usize>(codes: *const u8, p: usize) -> [__m512i; BITS] {
        unsafe {
            let mut part = [_mm512_setzero_si512(); BITS];
            for (v, words) in part.iter_mut().enumerate() {
                *words = _mm512_loadu_si512(codes.add(64 * (BITS * p + v)).cast());
            }
            part
        }
    }

    #[inline(always)]
    unsafe fn quad<const BITS: usize>(part: [__m512i; BITS], s: usize) -> __m512i {
        unsafe {
            let (words, by) = (part[s / 4 % BITS], s % 4 * 2);
            let shifted =
                if by == 0 { words } else { _mm512_srlv_epi32(words, _mm512_set1_epi32(by as i32)) };
            _mm512_and_si512(shifted, _mm512_set1_epi8(3))
        }
    }

    #[inline(always)]
    unsafe fn no_sums() -> __m512i {
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    unsafe fn add_part<const T: usize>(
        sums: &mut [__m512i; T],
        quad: impl Fn(usize) -> __m512i,
        q: [*const i8; T],
    ) {
        for s in 0..QUADS {
            let quad = quad(s);
            for t in 0..T {
                unsafe {
                    let q = _mm512_set1_epi32(q[t].add(4 * s).cast::<i32>().read_unaligned());
                    sums[t] = _mm512_dpbusd_epi32(sums[t], quad, q);
                }
            }
        }
    }

    /// Every second code stays in place within its byte, four times as large, and so are its sums.
    #[inline(always)]
    unsafe fn part_sums<const BITS: usize>(part: [__m512i; BITS], q: *const i8) -> __m512i {
        const { assert!(BITS == 2) };
        unsafe {
            let four = |s: usize| _mm512_set1_epi32(q.add(4 * s).cast::<i32>().read_unaligned());
            let (low, high) = (_mm512_set1_epi8(0x03), _mm512_set1_epi8(0x0c));
            let (mut ones, mut fours) = (_mm512_setzero_si512(), _mm512_setzero_si512());
            for v in 0..BITS {
                let (words, later) = (part[v], _mm512_srli_epi32::<4>(part[v]));
                ones = _mm512_dpbusd_epi32(ones, _mm512_and_si512(words, low), four(4 * v));
                fours = _mm512_dpbusd_epi32(fours, _mm512_and_si512(words, high), four(4 * v + 1));
                ones = _mm512_dpbusd_epi32(ones, _mm512_and_si512(later, low), four(4 * v + 2));
                fours = _mm512_dpbusd_epi32(fours, _mm512_and_si512(later, high), four(4 * v + 3));
            }
            _mm512_add_epi32(ones, _mm512_srai_epi32::<2>(fours))
        }
    }

    #[inline(always)]
    unsafe fn integers(n: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(n) }
    }

    #[inline(always)]
    unsafe fn add_sums(n: __m512i, sums: __m512i, factor: i32) -> __m512i {
        // Sums fit 16 bits, and the upper half of a factor is zero.
        unsafe { dpwssd(n, sums, _mm512_set1_epi32(factor)) }
    }

    #[inline(always)]
    unsafe fn floats(x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn scales(p: *const u8) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }

    #[inline(always)]
    unsafe fn add_block(sum: __m512, n: __m512i, d: __m512) -> __m512 {
        unsafe { _mm512_add_ps(sum, _mm512_mul_ps(_mm512_cvtepi32_ps(n), d)) }
    }

    #[inline(always)]
    unsafe fn outputs(sum: __m512, step: f32) -> [f32; PANEL_ROWS] {
        let mut outputs = [0.0; PANEL_ROWS];
        unsafe { _mm512_storeu_ps(outputs.as_mut_ptr(), _mm512_mul_ps(sum, _mm512_set1_ps(step))) };
        outputs
    }

    #[inline(always)]
    fn prefetch(p: *const u8) {
        // SAFETY: a prefetch may be of any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(PREFETCH).cast()) };
    }
}

#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every block needs what the trait asks for, and no more"
)]
impl LutKernel for Avx512 {
    const VECTORS: usize = 1;
    const AHEAD: usize = 16;
    type Indices = [__m512i; 2];

    #[inline(always)]
    unsafe fn indices(codes: *const u8) -> [__m512i; 2] {
        unsafe {
            let (codes, nibble) = (_mm512_loadu_si512(codes.cast()), _mm512_set1_epi8(15));
            [_mm512_and_si512(codes, nibble), _mm512_and_si512(_mm512_srli_epi16::<4>(codes), nibble)]
        }
    }

    #[inline(always)]
    unsafe fn block<const G: usize>(
        luts: &ActivationLut,
        start: i32,
        indices: impl Fn(usize, usize) -> [__m512i; 2],
    ) -> [__m512i; G] {
        unsafe {
            let mut low = [_mm512_setzero_si512(); G];
            let mut high = low;
            for i in 0..EIGHTS {
                let sums = &luts.sums[i];
                let (low0, high0) = (table(&sums[0][0]), table(&sums[0][1]));
                let (low1, high1) = (table(&sums[1][0]), table(&sums[1][1]));
                for g in 0..G {
                    let [first, second] = indices(g, i);
                    low[g] = _mm512_add_epi8(low[g], _mm512_shuffle_epi8(low0, first));
                    low[g] = _mm512_add_epi8(low[g], _mm512_shuffle_epi8(low1, second));
                    high[g] = _mm512_add_epi8(high[g], _mm512_shuffle_epi8(high0, first));
                    high[g] = _mm512_add_epi8(high[g], _mm512_shuffle_epi8(high1, second));
                }
            }
            // Parts 0 and 2 alternate, then parts 1 and 3, in the 128-bit lanes.
            let factor = _mm512_set1_epi32(luts.factor[0]);
            let factor = _mm512_mask_set1_epi32(factor, 0xf0f0, luts.factor[1]);
            let start = _mm512_maskz_set1_epi32(0x0f0f, start);
            let weight = _mm512_set1_epi16(32 << 8 | 2);
            let evens = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
            let odds = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
            let mut n = low;
            for g in 0..G {
                // Twice the sums of eight lookups, in 16 bits, for rows 0 to 7 and 8 to 15 of four parts.
                let a = _mm512_maddubs_epi16(_mm512_unpacklo_epi8(low[g], high[g]), weight);
                let b = _mm512_maddubs_epi16(_mm512_unpackhi_epi8(low[g], high[g]), weight);
                let parts01 = _mm512_shuffle_i64x2::<0x44>(a, b);
                let parts23 = _mm512_shuffle_i64x2::<0xee>(a, b);
                let a = dpwssd(start, _mm512_unpacklo_epi16(parts01, parts23), factor);
                let b = dpwssd(start, _mm512_unpackhi_epi16(parts01, parts23), factor);
                let evens = _mm512_permutex2var_epi64(a, evens, b);
                let odds = _mm512_permutex2var_epi64(a, odds, b);
                n[g] = _mm512_add_epi32(evens, odds);
            }
            n
        }
    }

    #[inline(always)]
    fn prefetch_line(p: *const u8) {
        // SAFETY: a prefetch may be of any address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) };
    }
}

/// The tables of 32 columns have 256 entries.
pub(super) const LANES: Lanes = Lanes { vector: 32, vectors: 1, from: 28, rows: 512 };

#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every block needs what the trait asks for, and no more"
)]
impl TokenLanes for Avx512 {
    const LANES: Lanes = LANES;
    type Sums = __m512i;
    type Integers = [__m512i; 2];
    type Factors = [__m512i; 2];

    #[inline(always)]
    unsafe fn load(p: *const i16) -> __m512i {
        unsafe { _mm512_loadu_si512(p.cast()) }
    }

    #[inline(always)]
    unsafe fn store(p: *mut i16, sums: __m512i) {
        unsafe { _mm512_storeu_si512(p.cast(), sums) };
    }

    #[inline(always)]
    unsafe fn add(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi16(a, b) }
    }

    #[inline(always)]
    unsafe fn load_integers(p: *const i32) -> [__m512i; 2] {
        unsafe { [_mm512_loadu_si512(p.cast()), _mm512_loadu_si512(p.add(16).cast())] }
    }

    #[inline(always)]
    unsafe fn store_integers(p: *mut i32, n: [__m512i; 2]) {
        unsafe {
            _mm512_storeu_si512(p.cast(), n[0]);
            _mm512_storeu_si512(p.add(16).cast(), n[1]);
        }
    }

    #[inline(always)]
    unsafe fn add_integers(a: [__m512i; 2], b: [__m512i; 2]) -> [__m512i; 2] {
        unsafe { [_mm512_add_epi32(a[0], b[0]), _mm512_add_epi32(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn load_factors(p: *const i16) -> [__m512i; 2] {
        unsafe { Self::load_integers(p.cast()) }
    }

    #[inline(always)]
    unsafe fn add_parts(n: [__m512i; 2], a: __m512i, b: __m512i, factors: [__m512i; 2]) -> [__m512i; 2] {
        unsafe {
            [
                dpwssd(n[0], _mm512_unpacklo_epi16(a, b), factors[0]),
                dpwssd(n[1], _mm512_unpackhi_epi16(a, b), factors[1]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn add_block(sums: *mut f32, n: [__m512i; 2], d: f32) {
        unsafe {
            for (h, n) in n.into_iter().enumerate() {
                let sums = sums.add(16 * h);
                let product = _mm512_mul_ps(_mm512_cvtepi32_ps(n), _mm512_set1_ps(d));
                _mm512_storeu_ps(sums, _mm512_add_ps(_mm512_loadu_ps(sums), product));
            }
        }
    }

    #[inline(always)]
    unsafe fn scales(p: *const u8) -> [f32; PANEL_ROWS] {
        unsafe { Self::outputs(<Self as PanelKernel>::scales(p), 1.0) }
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "the block needs what the trait asks for, and no more")]
impl FieldLanes for Avx512 {
    #[inline(always)]
    unsafe fn fields(codes: [[*const u8; 4]; 2], shift: u32, entries: *mut u64) {
        unsafe {
            // In a loop, as closures are not always inlined to where the instruction set is.
            let mut words = [_mm512_setzero_si512(); 2];
            for (words, codes) in words.iter_mut().zip(codes) {
                for (i, codes) in codes.into_iter().enumerate() {
                    let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(codes.cast()));
                    let by = _mm_cvtsi32_si128(8 * i as i32);
                    *words = _mm512_or_si512(*words, _mm512_sll_epi32(bytes, by));
                }
            }
            let [first, second] = words;
            // Rows 0 to 7 and 8 to 15, the words of a row side by side.
            let even = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let halves = [even, _mm512_add_epi32(even, _mm512_set1_epi32(8))];
            for (h, rows) in halves.into_iter().enumerate() {
                let both = _mm512_permutex2var_epi32(first, rows, second);
                let mut from = 0;
                for (f, cols) in FIELDS.into_iter().enumerate() {
                    let field = match shift.checked_sub(from) {
                        Some(by) => _mm512_sll_epi16(both, _mm_cvtsi32_si128(by as i32)),
                        None => _mm512_srl_epi16(both, _mm_cvtsi32_si128((from - shift) as i32)),
                    };
                    let field = _mm512_and_si512(field, _mm512_set1_epi16(((1 << cols) - 1) << shift));
                    _mm512_storeu_si512(entries.add(f * PANEL_ROWS + 8 * h).cast(), field);
                    from += cols as u32;
                }
            }
        }
    }
}
