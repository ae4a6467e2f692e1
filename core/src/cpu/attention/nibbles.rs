//! Attention over 4-bit keys and values with AVX-512, as products of bytes.
//!
//! Elsewhere nibbles become 16-bit integers, which takes longer than to multiply them. Here they become bytes, in fewer
//! instructions. A 16-bit integer of a query, or a weight, is two bytes then, `256 high + low`, and `vpdpbusd` multiplies
//! four bytes without a sign by four with one in each lane:
//!
//! ```text
//! keys    sum(q c) = 256 sum(high (c + 8)) + sum(low (c + 8)) - 8 sum(q)    low and high with a sign
//! values  16 sum(w c) = 256 sum(high (16 c)) + sum(low (16 c))              low and high without
//! ```
//! `c + 8` is a nibble with the upper bit inverted, and `16 c` is one in the upper half of a byte. Weights are not negative, as
//! neither `e^x` nor a scale is. (If a saved session was changed so that a scale is, its group of values counts as zero here.) All
//! sums are exact: the results are those of the other instruction sets.
#![allow(unsafe_code)]

use core::arch::x86_64::*;
use core::hint::black_box;

use super::flash::{SCRATCH, TILE, prefetch};
use super::pairs::{LEAST, LoadPairs};
use crate::cache::{BLOCK_POSITIONS, Codes, SCALE_GROUP};
use crate::cpu::isa::{Isa, Kind};
use crate::cpu::simd::Avx512;

/// The most groups of a head.
const GROUPS: usize = 8;
/// 16-bit integers of a vector.
const WORDS: usize = 32;

/// The scales of values and the weights of two queries as bytes.
const _: () = assert!(4 * GROUPS * TILE + 2 * GROUPS * 2 * TILE <= 4 * SCRATCH);

/// Of each 16 bytes, those of four integers with even index, then with odd index: the low ones, then the high ones.
const PLANES: [u8; 16] = [0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15];
/// The columns of four rows of four.
const COLUMNS: [u8; 16] = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15];
/// The lower halves of the 32-bit integers of two vectors.
const EVEN: [u16; WORDS] = {
    let mut even = [0; WORDS];
    let mut i = 0;
    while i < WORDS {
        even[i] = 2 * i as u16;
        i += 1;
    }
    even
};

/// Whether 4-bit keys and values of such heads are computed here.
#[inline(always)]
pub(super) fn fits(head_dim: usize) -> bool {
    head_dim.is_multiple_of(SCALE_GROUP) && head_dim <= GROUPS * SCALE_GROUP
}

/// Bytes four times. Hidden from the compiler, which makes several instructions of a shuffle that it knows.
#[inline]
#[target_feature(enable = "avx512f")]
fn repeated(bytes: &[u8; 16]) -> __m512i {
    // SAFETY: the pointer is that of 16 bytes.
    _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(black_box(bytes).as_ptr().cast()) })
}

/// Adds products of bytes without a sign and bytes with one. In assembly because the compiler splits the intrinsic into two
/// instructions.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn dot(mut n: __m512i, unsigned: __m512i, signed: __m512i) -> __m512i {
    // SAFETY: reads and writes registers only.
    unsafe {
        core::arch::asm!(
            "vpdpbusd {n}, {unsigned}, {signed}",
            n = inout(zmm_reg) n, unsigned = in(zmm_reg) unsigned, signed = in(zmm_reg) signed,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    n
}

/// [`dot`] with the four bytes at `p + AT` for all lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn dot_all<const AT: usize>(mut n: __m512i, unsigned: __m512i, p: *const u8) -> __m512i {
    // SAFETY: reads registers and, as the caller allows, the bytes.
    unsafe {
        core::arch::asm!(
            "vpdpbusd {n}, {unsigned}, dword ptr [{p} + {at}]{{1to16}}",
            n = inout(zmm_reg) n, unsigned = in(zmm_reg) unsigned, p = in(reg) p, at = const AT,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    n
}

/// Four bytes at `p + AT` for the lower half of the lanes, and four 16 after them for the upper half. In assembly because the
/// compiler loads them first and takes another instruction to spread them.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn both<const AT: usize>(p: *const u8) -> __m512i {
    let n: __m512i;
    // SAFETY: writes a register and, as the caller allows, reads the bytes.
    unsafe {
        core::arch::asm!(
            "vpbroadcastd {n}, dword ptr [{p} + {at}]",
            "vpbroadcastd {n} {{{mask}}}, dword ptr [{p} + {at} + 16]",
            n = out(zmm_reg) n, p = in(reg) p, at = const AT, mask = in(kreg) 0xff00_u16,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    n
}

/// Splits the 16-bit integers of queries `(rows, head_dim)` into bytes, for each eight `[low or high][even or odd][4]`, for the
/// instruction sets whose attention is [`score`]. The sums of the groups, times -8, follow the step.
pub(super) fn prepare(isa: Isa, q: &mut [f32], head_dim: usize) {
    match isa.kind() {
        Kind::Avx512Vnni | Kind::Avx512Words | Kind::Avx512Amx if fits(head_dim) => {
            // SAFETY: the processor has the instructions.
            q.chunks_exact_mut(head_dim).for_each(|row| unsafe { split(row) });
        }
        _ => {}
    }
}

#[target_feature(enable = "avx512f,avx512bw")]
fn split(row: &mut [f32]) {
    let (integers, rest) = row.split_at_mut(row.len() / 2);
    let planes = repeated(&PLANES);
    // The high byte is rounded, so that the low one has a sign.
    let rounding = _mm512_set1_epi16(128);
    for (group, sum) in integers.as_chunks_mut::<{ SCALE_GROUP / 2 }>().0.iter_mut().zip(&mut rest[1..]) {
        // SAFETY: a group is a vector.
        unsafe {
            let words = _mm512_loadu_si512(group.as_ptr().cast());
            let bytes = _mm512_xor_si512(_mm512_add_epi16(words, rounding), rounding);
            _mm512_storeu_si512(group.as_mut_ptr().cast(), _mm512_shuffle_epi8(bytes, planes));
            let sums = _mm512_madd_epi16(words, _mm512_set1_epi16(-8));
            *bytemuck::cast_mut::<f32, i32>(sum) = _mm512_reduce_add_epi32(sums);
        }
    }
}

/// The keys or values of a tile.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub(super) p: *const u8,
    /// Bytes of a block.
    pub(super) block: usize,
    pub(super) blocks: usize,
    pub(super) head_dim: usize,
    /// Those of a later tile, to prefetch.
    pub(super) next: Option<*const u8>,
}

impl Tile {
    /// Without prefetching, unless it is for the first query.
    fn for_query(self, r: usize) -> Tile {
        Tile { next: self.next.filter(|_| r == 0), ..self }
    }

    /// Where the scales of a block begin.
    fn scales(&self) -> usize {
        self.head_dim * BLOCK_POSITIONS / 2
    }
}

/// Writes the scores of the queries `q`.
///
/// Safety: the processor has AVX-512 with VNNI; the pointers are valid; the queries are prepared, and [`fits`].
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) unsafe fn score(keys: Tile, q: &[*const f32], scores: &mut [[f32; TILE]]) {
    for b in 0..keys.blocks {
        let mut r = 0;
        while r < q.len() {
            let keys = keys.for_query(r);
            let (q, scores) = (&q[r..], scores[r..].as_flattened_mut()[b * BLOCK_POSITIONS..].as_mut_ptr());
            // SAFETY: the caller's promise.
            r += unsafe {
                match q.len() {
                    4.. => score_block::<4, 2>(keys, b, q, scores),
                    2.. => score_block::<2, 4>(keys, b, q, scores),
                    _ => score_block::<1, 4>(keys, b, q, scores),
                }
            };
        }
    }
}

/// Scores `R` queries against block `b`; returns `R`. `S` is the number of independent sums of each: 2, of low and high bytes,
/// or 4, of codes with even and odd index too.
#[inline]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn score_block<const R: usize, const S: usize>(
    keys: Tile,
    b: usize,
    q: &[*const f32],
    scores: *mut f32,
) -> usize {
    // (a & b) ^ c
    const AND_XOR: i32 = 0b0110_1010;
    let d = keys.head_dim;
    let columns = repeated(&COLUMNS);
    // Four pairs come with their 16 positions one pair after the other: first the four of four positions, then columns of them.
    let positions = _mm512_cvtepu8_epi32(_mm512_castsi512_si128(columns));
    let (mask, upper) = (_mm512_set1_epi8(0x0f), _mm512_set1_epi8(8));
    // SAFETY: the caller's promise; a query's step comes after its bytes.
    unsafe {
        let block = keys.p.add(b * keys.block);
        let mut sums = [_mm512_setzero_ps(); R];
        for g in 0..d / SCALE_GROUP {
            let group = SCALE_GROUP / 2 * BLOCK_POSITIONS;
            if let Some(next) = keys.next {
                // A part of the block, scales included.
                let part = group + 2 * BLOCK_POSITIONS;
                prefetch::<Avx512>(next.wrapping_add(b * keys.block + g * part), part);
            }
            let mut n = [[_mm512_setzero_si512(); S]; R];
            for r in 0..R {
                n[r][0] = _mm512_set1_epi32(q[r].add(d / 2 + 1 + g).cast::<i32>().read());
            }
            for i in 0..group / 64 {
                let pairs = _mm512_loadu_si512(block.add(g * group + i * 64).cast());
                let pairs = _mm512_shuffle_epi8(_mm512_permutexvar_epi32(positions, pairs), columns);
                let codes = [pairs, _mm512_srli_epi16::<4>(pairs)]
                    .map(|codes| _mm512_ternarylogic_epi32::<AND_XOR>(codes, mask, upper));
                for r in 0..R {
                    let p = q[r].cast::<u8>().add(g * 2 * SCALE_GROUP + i * 16);
                    // Low and even, low and odd, high and even, high and odd.
                    let at = [0, S / 4, S / 2, 3 * S / 4];
                    n[r][at[0]] = dot_all::<0>(n[r][at[0]], codes[0], p);
                    n[r][at[1]] = dot_all::<4>(n[r][at[1]], codes[1], p);
                    n[r][at[2]] = dot_all::<8>(n[r][at[2]], codes[0], p);
                    n[r][at[3]] = dot_all::<12>(n[r][at[3]], codes[1], p);
                }
            }
            let scales = block.add(keys.scales() + 2 * g * BLOCK_POSITIONS);
            let scale = _mm512_cvtph_ps(_mm256_loadu_si256(scales.cast()));
            for r in 0..R {
                let [mut low, mut high] = [n[r][0], n[r][S / 2]];
                if S == 4 {
                    low = _mm512_add_epi32(low, n[r][1]);
                    high = _mm512_add_epi32(high, n[r][3]);
                }
                let all = _mm512_add_epi32(_mm512_slli_epi32::<8>(high), low);
                sums[r] = _mm512_add_ps(sums[r], _mm512_mul_ps(_mm512_cvtepi32_ps(all), scale));
            }
        }
        for r in 0..R {
            let step = _mm512_set1_ps(*q[r].add(d / 2));
            _mm512_storeu_ps(scores.add(r * TILE), _mm512_mul_ps(sums[r], step));
        }
    }
    R
}

/// The weights of `R` queries as bytes, for each group of columns.
struct Weights<const R: usize> {
    /// `(R, groups, positions / 8, [low or high][even or odd][4])`
    bytes: *mut u8,
    groups: usize,
    /// A sixteenth of the steps, `(R, groups, 4)`: each four times.
    steps: [[f32; 4 * GROUPS]; R],
}

impl<const R: usize> Weights<R> {
    /// Those of query `r` for the columns of group `g`.
    unsafe fn at(&self, r: usize, g: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { self.bytes.add((r * self.groups + g) * 2 * TILE) }
    }
}

/// `out = out * decay`, then adds the values times the weights. Query `r` sees `visible[r]` positions.
///
/// Safety: the processor has AVX-512 with VNNI; the pointers are valid, `scratch` for [`SCRATCH`] floats; [`fits`].
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) unsafe fn sum(
    values: Tile,
    weights: &[[f32; TILE]],
    visible: &[usize],
    decay: &[f32],
    out: &[*mut f32],
    scratch: *mut f32,
) {
    let groups = values.head_dim / SCALE_GROUP;
    // SAFETY: the caller's promise.
    unsafe {
        // (groups, TILE)
        for g in 0..groups {
            for b in 0..TILE / BLOCK_POSITIONS {
                let mut scales = _mm512_setzero_ps();
                if b < values.blocks {
                    let at = b * values.block + values.scales() + 2 * g * BLOCK_POSITIONS;
                    if let Some(next) = values.next {
                        prefetch::<Avx512>(next.wrapping_add(at), 1);
                    }
                    scales = _mm512_cvtph_ps(_mm256_loadu_si256(values.p.add(at).cast()));
                }
                _mm512_storeu_ps(scratch.add(g * TILE + b * BLOCK_POSITIONS), scales);
            }
        }
        let mut r = 0;
        while r < weights.len() {
            let values = values.for_query(r);
            let (weights, visible, decay, out) = (&weights[r..], &visible[r..], &decay[r..], &out[r..]);
            r += match weights.len() {
                2.. => sum_queries::<2>(values, weights, visible, decay, out, scratch),
                _ => sum_queries::<1>(values, weights, visible, decay, out, scratch),
            };
        }
    }
}

/// [`sum`] for `R` queries; returns `R`.
#[inline]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn sum_queries<const R: usize>(
    values: Tile,
    weights: &[[f32; TILE]],
    visible: &[usize],
    decay: &[f32],
    out: &[*mut f32],
    scratch: *mut f32,
) -> usize {
    let groups = values.head_dim / SCALE_GROUP;
    // SAFETY: the caller's promise.
    unsafe {
        let mut bytes =
            Weights { bytes: scratch.add(groups * TILE).cast(), groups, steps: [[0.0; 4 * GROUPS]; R] };
        for r in 0..R {
            to_bytes(&mut bytes, r, &weights[r], visible[r], scratch);
        }
        for g in 0..groups {
            let n = sum_columns(values, g, &bytes);
            for r in 0..R {
                let (step, decay) = (_mm512_set1_ps(bytes.steps[r][4 * g]), _mm512_set1_ps(decay[r]));
                for i in 0..2 {
                    let out = out[r].add(g * SCALE_GROUP + 16 * i);
                    let added = _mm512_mul_ps(_mm512_cvtepi32_ps(n[r][i]), step);
                    let old = _mm512_mul_ps(_mm512_loadu_ps(out), decay);
                    _mm512_storeu_ps(out, _mm512_add_ps(old, added));
                }
            }
        }
    }
    R
}

/// Converts the weights of query `r`, which sees `n` positions, times the scales `(groups, TILE)`.
#[inline]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn to_bytes<const R: usize>(
    to: &mut Weights<R>,
    r: usize,
    weights: &[f32; TILE],
    n: usize,
    scales: *const f32,
) {
    const VECTORS: usize = TILE / 16;
    /// See `cache::round`: the lower 16 bits of a sum are the integer.
    const ROUND: f32 = 12_582_912.0;
    // SAFETY: the caller's promise.
    unsafe {
        let (planes, even) = (repeated(&PLANES), _mm512_loadu_si512(black_box(&EVEN).as_ptr().cast()));
        // The scales of other positions may be anything.
        let mut seen = [0; VECTORS];
        for v in 0..VECTORS {
            seen[v] = ((1u32 << n.saturating_sub(16 * v).min(16)) - 1) as __mmask16;
        }
        let scaled = |g: usize, v: usize| {
            let scale = _mm512_loadu_ps(scales.add(g * TILE + 16 * v));
            _mm512_maskz_mul_ps(seen[v], _mm512_loadu_ps(weights.as_ptr().add(16 * v)), scale)
        };
        for first in (0..to.groups).step_by(4) {
            let groups = first..to.groups.min(first + 4);
            let mut most = [_mm512_setzero_si512(); 4];
            for g in groups.clone() {
                for v in 0..VECTORS {
                    most[g - first] = _mm512_max_epu32(most[g - first], _mm512_castps_si512(scaled(g, v)));
                }
            }
            // In 128 bits each.
            let most = _mm512_castsi512_ps(largest_of(most));
            let counts = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(most, _mm512_set1_ps(LEAST));
            let largest = _mm512_set1_ps(Codes::<4>::MOST);
            let steps = _mm512_mul_ps(_mm512_div_ps(most, largest), _mm512_set1_ps(1.0 / 16.0));
            let steps = _mm512_maskz_mov_ps(counts, steps);
            _mm512_storeu_ps(to.steps[r].as_mut_ptr().add(4 * first), steps);
            let mut inverse = [0.0; 16];
            _mm512_storeu_ps(inverse.as_mut_ptr(), _mm512_maskz_div_ps(counts, largest, most));
            for g in groups {
                let inverse = _mm512_set1_ps(inverse[4 * (g - first)]);
                let integer = |v: usize| {
                    let rounded = _mm512_add_ps(_mm512_mul_ps(scaled(g, v), inverse), _mm512_set1_ps(ROUND));
                    _mm512_castps_si512(rounded)
                };
                for v in (0..VECTORS).step_by(2) {
                    let words = _mm512_permutex2var_epi16(integer(v), even, integer(v + 1));
                    let at = to.at(r, g).add(32 * v);
                    _mm512_storeu_si512(at.cast(), _mm512_shuffle_epi8(words, planes));
                }
            }
        }
    }
}

/// The largest integer of each vector, without a sign, in 128 bits.
#[inline]
#[target_feature(enable = "avx512f")]
fn largest_of([a, b, c, d]: [__m512i; 4]) -> __m512i {
    let two = |a, b| {
        let lower = _mm512_shuffle_i32x4::<0b01_00_01_00>(a, b);
        _mm512_max_epu32(lower, _mm512_shuffle_i32x4::<0b11_10_11_10>(a, b))
    };
    let (a, c) = (two(a, b), two(c, d));
    let lower = _mm512_shuffle_i32x4::<0b10_00_10_00>(a, c);
    let x = _mm512_max_epu32(lower, _mm512_shuffle_i32x4::<0b11_01_11_01>(a, c));
    let x = _mm512_max_epu32(x, _mm512_shuffle_epi32::<0b01_00_11_10>(x));
    _mm512_max_epu32(x, _mm512_shuffle_epi32::<0b10_11_00_01>(x))
}

/// 16 times the sums of the 32 columns of group `g`.
#[inline]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn sum_columns<const R: usize>(values: Tile, g: usize, weights: &Weights<R>) -> [[__m512i; 2]; R] {
    let d = values.head_dim;
    let upper = _mm512_set1_epi8(0xf0_u8 as i8);
    // Of low and high bytes; four columns in each 128 bits, from rows 0 to 3 in the lower 256 and 4 to 7 in the upper ones.
    let mut n = [[[[_mm512_setzero_si512(); 2]; 2]; 2]; R];
    // SAFETY: the caller's promise.
    unsafe {
        for b in 0..values.blocks {
            let at = b * values.block + g * SCALE_GROUP;
            let mut rows = [_mm512_setzero_si512(); 4];
            for k in 0..4 {
                for half in 0..2 {
                    let at = at + (k + 4 * half) * d;
                    // Two groups share a cache line.
                    if let Some(next) = values.next
                        && g.is_multiple_of(2)
                    {
                        prefetch::<Avx512>(next.wrapping_add(at), 1);
                    }
                    let row = _mm256_loadu_si256(values.p.add(at).cast());
                    rows[k] = match half {
                        0 => _mm512_castsi256_si512(row),
                        _ => _mm512_inserti64x4::<1>(rows[k], row),
                    };
                }
            }
            let mut with = [[_mm512_setzero_si512(); 4]; R];
            for r in 0..R {
                let p = weights.at(r, g).add(b * 2 * BLOCK_POSITIONS);
                with[r] = [both::<0>(p), both::<4>(p), both::<8>(p), both::<12>(p)];
            }
            for i in 0..2 {
                let pairs = match i {
                    0 => [_mm512_unpacklo_epi8(rows[0], rows[1]), _mm512_unpacklo_epi8(rows[2], rows[3])],
                    _ => [_mm512_unpackhi_epi8(rows[0], rows[1]), _mm512_unpackhi_epi8(rows[2], rows[3])],
                };
                let four =
                    [_mm512_unpacklo_epi16(pairs[0], pairs[1]), _mm512_unpackhi_epi16(pairs[0], pairs[1])];
                for j in 0..2 {
                    let codes = [_mm512_slli_epi16::<4>(four[j]), four[j]]
                        .map(|codes| _mm512_and_si512(codes, upper));
                    for r in 0..R {
                        for k in 0..4 {
                            let sum = &mut n[r][i][j][k / 2];
                            *sum = dot(*sum, with[r][k], codes[k % 2]);
                        }
                    }
                }
            }
        }
        let mut out = [[_mm512_setzero_si512(); 2]; R];
        for r in 0..R {
            let mut eights = [_mm512_setzero_si512(); 2];
            for i in 0..2 {
                let mut fours = [_mm512_setzero_si512(); 2];
                for j in 0..2 {
                    let [low, high] = n[r][i][j];
                    fours[j] = _mm512_add_epi32(_mm512_slli_epi32::<8>(high), low);
                }
                let [a, b] = fours;
                // Columns 8 i to 8 i + 3, those 16 after them, 8 i + 4 to 8 i + 7, and those 16 after them.
                let lower = _mm512_shuffle_i32x4::<0b01_00_01_00>(a, b);
                eights[i] = _mm512_add_epi32(lower, _mm512_shuffle_i32x4::<0b11_10_11_10>(a, b));
            }
            out[r][0] = _mm512_shuffle_i32x4::<0b10_00_10_00>(eights[0], eights[1]);
            out[r][1] = _mm512_shuffle_i32x4::<0b11_01_11_01>(eights[0], eights[1]);
        }
        out
    }
}
