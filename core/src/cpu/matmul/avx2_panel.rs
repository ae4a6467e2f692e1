//! AVX2 over repacked rows, eight rows per register: `vpmaddubsw` adds two products of a code and an
//! activation, with the same activations for all rows; after 32 columns, 16-bit sums are multiplied by the
//! factor of the activations and added in pairs by `vpmaddwd`. With AVX-VNNI, `vpdpbusd` adds four products to 32 bits.
#![allow(unsafe_code)]

use core::arch::x86_64::*;

use super::args::{Kernel, MatmulArgs};
use super::lut_kernel::{self, EIGHTS, LutKernel};
use super::panel_kernel::{PanelKernel, QUADS, kernel_of, rows};
use super::token_lanes::{FIELDS, FieldLanes, Lanes, TokenLanes};
use crate::cpu::activation_lut::{self, ActivationLut, FOUR, Subsets};
use crate::cpu::activations::{Q8_LEN, Q8Block};
use crate::cpu::parallel::OutputRows;
use crate::cpu::repack::{Layout, PANEL_ROWS};
use crate::quant::Format;

/// The kernel for int8 activations and repacked rows.
pub(super) fn repacked(format: Format, layout: Layout) -> Option<Kernel> {
    kernel_of!(one_bit, kernel, format, layout)
}

/// [`repacked`] with AVX-VNNI.
pub(super) fn repacked_vnni(format: Format, layout: Layout) -> Option<Kernel> {
    kernel_of!(one_bit, kernel_vnni, format, layout)
}

#[target_feature(enable = "avx2,f16c")]
fn one_bit(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
    // SAFETY: the features of this function.
    unsafe { lut_kernel::rows::<Avx2<false>>(args, out) };
}

#[target_feature(enable = "avx2,f16c")]
fn kernel<const BITS: usize, const BLOCK: usize>(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
    // SAFETY: the features of this function.
    unsafe { rows::<Avx2<false>, BITS, BLOCK, 4>(args, out, 0) };
}

#[target_feature(enable = "avx2,f16c,avxvnni")]
fn kernel_vnni<const BITS: usize, const BLOCK: usize>(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
    // SAFETY: the features of this function.
    unsafe { rows::<Avx2<true>, BITS, BLOCK, 6>(args, out, 0) };
}

/// One token's lookup tables.
#[target_feature(enable = "avx2")]
pub(super) fn build_lut(q8: &[Q8Block], out: &mut [ActivationLut]) {
    // SAFETY: the features of this function.
    unsafe { activation_lut::fill::<Avx2<false>>(q8, out) };
}

/// Prefetch distance in bytes.
const PREFETCH: usize = 8192;

/// `VNNI`: with AVX-VNNI.
struct Avx2<const VNNI: bool>;

/// The lookup tables of parts 0 and 1, or of parts 2 and 3.
#[inline]
#[target_feature(enable = "avx2")]
fn table(parts: &[[u8; 16]; 4], half: usize) -> __m256i {
    // SAFETY: 32 bytes.
    unsafe { _mm256_loadu_si256(parts[2 * half..2 * half + 2].as_ptr().cast()) }
}

impl<const VNNI: bool> Avx2<VNNI> {
    /// `sums` plus the products of `codes` and `q`: of two columns each in 16 bits, where at most sixteen products of 3 * 127
    /// are added up, or of four in 32 bits.
    ///
    /// Safety: needs the instruction set.
    #[inline(always)]
    unsafe fn add_products(sums: __m256i, codes: __m256i, q: __m256i) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe {
            if VNNI {
                _mm256_dpbusd_avx_epi32(sums, codes, q)
            } else {
                _mm256_add_epi16(sums, _mm256_maddubs_epi16(codes, q))
            }
        }
    }
}

/// Arrays of two are rows 0 to 7 and 8 to 15.
#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every block needs what the trait asks for, and no more"
)]
impl<const VNNI: bool> PanelKernel for Avx2<VNNI> {
    type Part<const BITS: usize> = [[__m256i; 2]; BITS];
    type Quad = [__m256i; 2];
    /// Sums of pairs of columns, 16 bits each; with AVX-VNNI of all, 32 bits each.
    type Sums = [__m256i; 2];
    type Integers = [__m256i; 2];
    type Floats = [__m256; 2];

    #[inline(always)]
    unsafe fn part<const BITS: usize>(codes: *const u8, p: usize) -> [[__m256i; 2]; BITS] {
        unsafe {
            let mut part = [[_mm256_setzero_si256(); 2]; BITS];
            for (v, words) in part.iter_mut().enumerate() {
                for (h, words) in words.iter_mut().enumerate() {
                    *words = _mm256_loadu_si256(codes.add(64 * (BITS * p + v) + 32 * h).cast());
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
                let by = s % 4 * 2;
                let shifted =
                    if by == 0 { *words } else { _mm256_srlv_epi32(*words, _mm256_set1_epi32(by as i32)) };
                *words = _mm256_and_si256(shifted, _mm256_set1_epi8(3));
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
                    let q = _mm256_set1_epi32(q[t].add(4 * s).cast::<i32>().read_unaligned());
                    for h in 0..2 {
                        sums[t][h] = Self::add_products(sums[t][h], quad[h], q);
                    }
                }
            }
        }
    }

    /// Every second code stays in place within its byte, four times as large, and so are its sums.
    #[inline(always)]
    unsafe fn part_sums<const BITS: usize>(part: [[__m256i; 2]; BITS], q: *const i8) -> [__m256i; 2] {
        const { assert!(BITS == 2) };
        unsafe {
            let (low, high) = (_mm256_set1_epi8(0x03), _mm256_set1_epi8(0x0c));
            let mut ones = [_mm256_setzero_si256(); 2];
            let mut fours = ones;
            for v in 0..BITS {
                let mut q4 = [low; 4];
                for (s, q4) in q4.iter_mut().enumerate() {
                    *q4 = _mm256_set1_epi32(q.add(4 * (4 * v + s)).cast::<i32>().read_unaligned());
                }
                for h in 0..2 {
                    // In 16 bits, eight products of at most 12 * 127.
                    let (words, later) = (part[v][h], _mm256_srli_epi32::<4>(part[v][h]));
                    ones[h] = Self::add_products(ones[h], _mm256_and_si256(words, low), q4[0]);
                    fours[h] = Self::add_products(fours[h], _mm256_and_si256(words, high), q4[1]);
                    ones[h] = Self::add_products(ones[h], _mm256_and_si256(later, low), q4[2]);
                    fours[h] = Self::add_products(fours[h], _mm256_and_si256(later, high), q4[3]);
                }
            }
            let mut sums = ones;
            for h in 0..2 {
                sums[h] = if VNNI {
                    _mm256_add_epi32(ones[h], _mm256_srai_epi32::<2>(fours[h]))
                } else {
                    _mm256_add_epi16(ones[h], _mm256_srai_epi16::<2>(fours[h]))
                };
            }
            sums
        }
    }

    #[inline(always)]
    unsafe fn integers(n: i32) -> [__m256i; 2] {
        unsafe { [_mm256_set1_epi32(n); 2] }
    }

    #[inline(always)]
    unsafe fn add_sums(n: [__m256i; 2], sums: [__m256i; 2], factor: i32) -> [__m256i; 2] {
        unsafe {
            if VNNI {
                // Sums fit 16 bits, and the upper half of a factor is zero.
                let factor = _mm256_set1_epi32(factor);
                return [
                    _mm256_dpwssd_avx_epi32(n[0], sums[0], factor),
                    _mm256_dpwssd_avx_epi32(n[1], sums[1], factor),
                ];
            }
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
    unsafe fn outputs(sum: [__m256; 2], step: f32) -> [f32; PANEL_ROWS] {
        let mut outputs = [0.0; PANEL_ROWS];
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

#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every block needs what the trait asks for, and no more"
)]
impl LutKernel for Avx2<false> {
    /// One vector holds parts 0 and 1, the next parts 2 and 3.
    const VECTORS: usize = 2;
    const AHEAD: usize = 8;
    type Indices = [__m256i; 2];

    #[inline(always)]
    unsafe fn indices(codes: *const u8) -> [__m256i; 2] {
        unsafe {
            let (codes, nibble) = (_mm256_loadu_si256(codes.cast()), _mm256_set1_epi8(15));
            [_mm256_and_si256(codes, nibble), _mm256_and_si256(_mm256_srli_epi16::<4>(codes), nibble)]
        }
    }

    #[inline(always)]
    unsafe fn block<const G: usize>(
        luts: &ActivationLut,
        start: i32,
        indices: impl Fn(usize, usize) -> [__m256i; 2],
    ) -> [[__m256i; 2]; G] {
        unsafe {
            let weight = _mm256_set1_epi16(32 << 8 | 2);
            // Twice the sums of eight lookups, in 16 bits, for rows 0 to 7 and 8 to 15 of two parts each.
            let mut parts = [[[_mm256_setzero_si256(); 2]; 2]; G];
            for half in 0..2 {
                let mut low = [_mm256_setzero_si256(); G];
                let mut high = low;
                for i in 0..EIGHTS {
                    let sums = &luts.sums[i];
                    let (low0, high0) = (table(&sums[0][0], half), table(&sums[0][1], half));
                    let (low1, high1) = (table(&sums[1][0], half), table(&sums[1][1], half));
                    for g in 0..G {
                        let [first, second] = indices(g, 2 * i + half);
                        low[g] = _mm256_add_epi8(low[g], _mm256_shuffle_epi8(low0, first));
                        low[g] = _mm256_add_epi8(low[g], _mm256_shuffle_epi8(low1, second));
                        high[g] = _mm256_add_epi8(high[g], _mm256_shuffle_epi8(high0, first));
                        high[g] = _mm256_add_epi8(high[g], _mm256_shuffle_epi8(high1, second));
                    }
                }
                for g in 0..G {
                    let rows = _mm256_unpacklo_epi8(low[g], high[g]);
                    parts[g][half][0] = _mm256_maddubs_epi16(rows, weight);
                    let rows = _mm256_unpackhi_epi8(low[g], high[g]);
                    parts[g][half][1] = _mm256_maddubs_epi16(rows, weight);
                }
            }
            let [even, odd] = luts.factor;
            let factor = _mm256_blend_epi32::<0xf0>(_mm256_set1_epi32(even), _mm256_set1_epi32(odd));
            let mut n = [[_mm256_set1_epi32(start); 2]; G];
            for g in 0..G {
                for (rows, n) in n[g].iter_mut().enumerate() {
                    let (parts01, parts23) = (parts[g][0][rows], parts[g][1][rows]);
                    let a = _mm256_madd_epi16(_mm256_unpacklo_epi16(parts01, parts23), factor);
                    let b = _mm256_madd_epi16(_mm256_unpackhi_epi16(parts01, parts23), factor);
                    *n = _mm256_add_epi32(*n, _mm256_permute2x128_si256::<0x20>(a, b));
                    *n = _mm256_add_epi32(*n, _mm256_permute2x128_si256::<0x31>(a, b));
                }
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

#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every block needs what the trait asks for, and no more"
)]
impl Subsets for Avx2<false> {
    #[inline(always)]
    unsafe fn shifts(q: &[i8; Q8_LEN]) -> [i32; Q8_LEN / FOUR] {
        let mut shifts = [0; Q8_LEN / FOUR];
        unsafe {
            for (q, shifts) in q.as_chunks::<32>().0.iter().zip(shifts.as_chunks_mut::<8>().0) {
                let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), _mm256_loadu_si256(q.as_ptr().cast()));
                let sums = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
                let less = _mm256_sub_epi32(_mm256_srai_epi32::<1>(sums), _mm256_set1_epi32(254));
                _mm256_storeu_si256(shifts.as_mut_ptr().cast(), less);
            }
        }
        shifts
    }

    #[inline(always)]
    unsafe fn table(q: [i8; FOUR], shift: i32, low: &mut [u8; 16], high: &mut [u8; 16]) {
        /// For each subset, whether it contains the first and the second activation of a pair.
        const fn pairs(first: usize) -> [u8; 32] {
            let (mut bits, mut at) = ([0; 32], 0);
            while at < 32 {
                bits[at] = (((at / 2) >> (first + at % 2)) & 1) as u8;
                at += 1;
            }
            bits
        }
        const PAIRS: [[u8; 32]; 2] = [pairs(0), pairs(2)];
        unsafe {
            let [a, b, c, d] = q;
            let subsets = |pair: usize, q: [i8; 2]| {
                let pairs = _mm256_loadu_si256(PAIRS[pair].as_ptr().cast());
                _mm256_maddubs_epi16(pairs, _mm256_set1_epi16(i16::from_le_bytes(q.map(|q| q as u8))))
            };
            let sums = _mm256_add_epi16(subsets(0, [a, b]), subsets(1, [c, d]));
            let sums = _mm256_sub_epi16(sums, _mm256_set1_epi16(shift as i16));
            let four = _mm256_and_si256(sums, _mm256_set1_epi16(15));
            let bytes = _mm256_packus_epi16(four, _mm256_srli_epi16::<4>(sums));
            let bytes = _mm256_permute4x64_epi64::<0b11_01_10_00>(bytes);
            _mm_storeu_si128(low.as_mut_ptr().cast(), _mm256_castsi256_si128(bytes));
            _mm_storeu_si128(high.as_mut_ptr().cast(), _mm256_extracti128_si256::<1>(bytes));
        }
    }
}

/// The tables of 32 columns have 256 entries.
pub(super) const LANES: Lanes = Lanes { vector: 16, vectors: 2, from: 14, rows: 512 };

#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every block needs what the trait asks for, and no more"
)]
impl TokenLanes for Avx2<false> {
    const LANES: Lanes = LANES;
    type Sums = __m256i;
    type Integers = [__m256i; 2];
    type Factors = [__m256i; 2];

    #[inline(always)]
    unsafe fn load(p: *const i16) -> __m256i {
        unsafe { _mm256_loadu_si256(p.cast()) }
    }

    #[inline(always)]
    unsafe fn store(p: *mut i16, sums: __m256i) {
        unsafe { _mm256_storeu_si256(p.cast(), sums) };
    }

    #[inline(always)]
    unsafe fn add(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_add_epi16(a, b) }
    }

    #[inline(always)]
    unsafe fn load_integers(p: *const i32) -> [__m256i; 2] {
        unsafe { [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(8).cast())] }
    }

    #[inline(always)]
    unsafe fn store_integers(p: *mut i32, n: [__m256i; 2]) {
        unsafe {
            _mm256_storeu_si256(p.cast(), n[0]);
            _mm256_storeu_si256(p.add(8).cast(), n[1]);
        }
    }

    #[inline(always)]
    unsafe fn add_integers(a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        unsafe { [_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn load_factors(p: *const i16) -> [__m256i; 2] {
        unsafe { Self::load_integers(p.cast()) }
    }

    #[inline(always)]
    unsafe fn add_parts(n: [__m256i; 2], a: __m256i, b: __m256i, factors: [__m256i; 2]) -> [__m256i; 2] {
        unsafe {
            [
                _mm256_add_epi32(n[0], _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), factors[0])),
                _mm256_add_epi32(n[1], _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), factors[1])),
            ]
        }
    }

    #[inline(always)]
    unsafe fn add_block(sums: *mut f32, n: [__m256i; 2], d: f32) {
        unsafe {
            for (h, n) in n.into_iter().enumerate() {
                let sums = sums.add(8 * h);
                let product = _mm256_mul_ps(_mm256_cvtepi32_ps(n), _mm256_set1_ps(d));
                _mm256_storeu_ps(sums, _mm256_add_ps(_mm256_loadu_ps(sums), product));
            }
        }
    }

    #[inline(always)]
    unsafe fn scales(p: *const u8) -> [f32; PANEL_ROWS] {
        unsafe { Self::outputs(<Self as PanelKernel>::scales(p), 1.0) }
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "the block needs what the trait asks for, and no more")]
impl FieldLanes for Avx2<false> {
    #[inline(always)]
    unsafe fn fields(codes: [[*const u8; 4]; 2], shift: u32, entries: *mut u64) {
        unsafe {
            // Words of rows 0 to 3, 4 to 7 and so on.
            let mut words = [[_mm_setzero_si128(); 4]; 2];
            for (words, codes) in words.iter_mut().zip(codes) {
                let [a, b, c, d] = codes.map(|codes| _mm_loadu_si128(codes.cast()));
                let pairs = [
                    [_mm_unpacklo_epi8(a, b), _mm_unpacklo_epi8(c, d)],
                    [_mm_unpackhi_epi8(a, b), _mm_unpackhi_epi8(c, d)],
                ];
                for (words, [low, high]) in words.as_chunks_mut::<2>().0.iter_mut().zip(pairs) {
                    *words = [_mm_unpacklo_epi16(low, high), _mm_unpackhi_epi16(low, high)];
                }
            }
            for (h, (a, b)) in words[0].into_iter().zip(words[1]).enumerate() {
                let both = _mm256_set_m128i(_mm_unpackhi_epi32(a, b), _mm_unpacklo_epi32(a, b));
                let mut from = 0;
                for (f, cols) in FIELDS.into_iter().enumerate() {
                    let field = match shift.checked_sub(from) {
                        Some(by) => _mm256_sll_epi16(both, _mm_cvtsi32_si128(by as i32)),
                        None => _mm256_srl_epi16(both, _mm_cvtsi32_si128((from - shift) as i32)),
                    };
                    let field = _mm256_and_si256(field, _mm256_set1_epi16(((1 << cols) - 1) << shift));
                    _mm256_storeu_si256(entries.add(f * PANEL_ROWS + 4 * h).cast(), field);
                    from += cols as u32;
                }
            }
        }
    }
}
