//! AVX-512 over repacked rows of one bit per weight, for several tokens: `vpermw` and `vpermi2w` look up sums of five
//! and of six activations for 32 rows at once.
//!
//! As with `token_lanes.rs`, all subset sums of a few columns are tabulated and bits of a row are the index. Here a
//! table of one token fills one or two registers and lanes are rows, so that memory is not read for each sum, and a few
//! tokens suffice.
#![allow(unsafe_code)]

use core::arch::x86_64::*;
use core::mem::MaybeUninit;
use core::ops::Range;

use super::args::{Kernel, MatmulArgs};
use super::avx512_panel::{self, Avx512};
use super::lut_kernel::{BLOCK_BYTES, later};
use super::panel_kernel::{PART, panel_rows};
use super::scalar::integer_from;
use super::token_lanes::{self, Fields};
use crate::cpu::activation_lut::LUT_COLS;
use crate::cpu::activations::{Q8_LEN, Q8Block};
use crate::cpu::parallel::OutputRows;
use crate::cpu::repack::{Layout, PANEL_ROWS};
use crate::cpu::simd::avx512::dpwssd;
use crate::quant::Format;

/// Parts of the columns that share a scale.
const PARTS: usize = LUT_COLS / PART;
/// The first column of each table of a part; those before columns 10 and 26 are of five, those two of six.
const TABLES: [usize; 6] = [0, 5, 10, 16, 21, 26];
/// Panels whose rows fill two vectors of 16-bit integers.
const PANELS: usize = 4;
/// Rows of a set of panels.
const SET: usize = PANELS * PANEL_ROWS;
/// Sets that share the tables of more than [`GROUP`] tokens, and the indices of these tokens.
const SETS: usize = 16;
/// Rows that should share tables: to build them takes as long as to compute some 80 rows.
const ROWS: usize = SETS * SET;
/// A product with fewer tokens takes less time by `lut_kernel.rs`.
const FEWEST: usize = 4;
/// So does one of fewer rows, which are a share of a matrix: the tables are built for them alone.
const FEW_ROWS: usize = 512;
/// Tokens whose tables exist at the same time: 16 KB.
const GROUP: usize = 8;
/// Maximum number of tokens that share the indices.
const TOKENS: usize = 32;
/// Sums of tokens and sets that exist at the same time: 128 KB.
const SUMS: usize = SETS * TOKENS;
/// Prefetch distance in blocks.
const AHEAD: usize = 4;

/// The kernel for int8 activations and repacked rows.
pub(super) fn repacked(format: Format, layout: Layout) -> Option<Kernel> {
    match (format, layout) {
        (Format::Q1_0, Layout::Panels8) => Some(one_bit),
        _ => avx512_panel::repacked(format, layout),
    }
}

/// Of the `rows` that are a worker's share, those that should share the tables of `tokens`, of which `in_lanes` are computed in
/// lanes.
pub(super) const fn rows_per_table(rows: usize, tokens: usize, in_lanes: usize) -> usize {
    if tokens > in_lanes && tokens >= FEWEST && rows >= FEW_ROWS {
        ROWS
    } else if in_lanes > 0 {
        avx512_panel::LANES.rows
    } else {
        0
    }
}

/// Twice the subset sums of a part's columns for one token: a register for each five columns, two for six.
type Tables = [[__m512i; 8]; PARTS];
/// The indices into the [`TABLES`] of each part, for rows 0 to 7 of four panels and for rows 8 to 15.
type Indices = [[[__m512i; TABLES.len()]; PARTS]; 2];
/// A number for each row of a set: vector `q` holds rows `4 q .. 4 q + 4` of each panel.
type Floats = [__m512; PANELS];

#[repr(C, align(64))]
struct Buffers {
    tables: [Tables; GROUP],
    indices: [Indices; SETS],
    scales: [Floats; SETS],
    /// `(sets, tokens)`
    sums: [Floats; SUMS],
}

/// What a product with 128 columns of a token needs besides its tables.
#[derive(Clone, Copy, Default)]
struct Block {
    /// The initial value.
    start: i32,
    /// The factors of two parts each, the first in the lower 16 bits.
    factors: [i32; PARTS / 2],
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,f16c")]
fn one_bit(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
    let has_tables = !args.luts.is_empty();
    if args.tokens < FEWEST || has_tables && out.len() < FEW_ROWS {
        avx512_panel::one_bit(args, out);
    } else {
        several(args, out);
    }
}

/// Not inlined, so that single tokens have no use for the memory of its buffers.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,f16c")]
fn several(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
    let end = panel_rows(args, out);
    // Without the blocks of tokens in lanes, all are computed here.
    let done = if args.luts.is_empty() {
        0
    } else {
        // SAFETY: the features of this function.
        unsafe { token_lanes::rows::<Avx512, Fields>(args, out, end, LUT_COLS) }
    };
    let mut buffers = MaybeUninit::<Buffers>::uninit();
    for first in (done..args.tokens).step_by(TOKENS) {
        let tokens = TOKENS.min(args.tokens - first);
        let most = if tokens > GROUP { ROWS } else { SUMS / GROUP * SET };
        for row in (0..end).step_by(most) {
            let rows = row..end.min(row + most);
            // SAFETY: the rows are in panels, and `most` keeps their sets within the buffers.
            unsafe { some_rows(args, out, rows, first..first + tokens, buffers.as_mut_ptr()) };
        }
    }
    integer_from(end, args, out);
}

/// Computes `rows` of `out` for `tokens`.
///
/// Safety: the rows are whole panels, at least one; at most [`TOKENS`], and at most `SUMS / GROUP` sets of panels with up to
/// [`GROUP`] tokens, [`SETS`] with more.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,f16c")]
unsafe fn some_rows(
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
    rows: Range<usize>,
    tokens: Range<usize>,
    buffers: *mut Buffers,
) {
    let blocks = args.w.cols() / LUT_COLS;
    let sets = rows.len().div_ceil(SET);
    debug_assert!(sets > 0 && rows.len().is_multiple_of(PANEL_ROWS) && sets * tokens.len() <= SUMS);
    debug_assert!(tokens.len() <= GROUP || sets <= SETS);
    let panel = args.w.panel(out.first() + rows.start);
    let (stride, panel) = (panel.len(), panel.as_ptr());
    // The rows of a set that is not full are computed several times.
    let last = rows.len() / PANEL_ROWS - 1;
    // SAFETY: the panels are there, and a row has `blocks` blocks. Only the written part of the buffers is read.
    unsafe {
        let (tables, indices) = (&raw mut (*buffers).tables, &raw mut (*buffers).indices);
        let (scales, sums) = (&raw mut (*buffers).scales, (&raw mut (*buffers).sums).cast::<Floats>());
        for i in 0..sets * tokens.len() {
            sums.add(i).write([_mm512_setzero_ps(); PANELS]);
        }
        for b in 0..blocks {
            for group in (0..tokens.len()).step_by(GROUP) {
                let len = GROUP.min(tokens.len() - group);
                let mut block = [Block::default(); GROUP];
                for (i, block) in block[..len].iter_mut().enumerate() {
                    let y = &args.q8[((tokens.start + group + i) * blocks + b) * (LUT_COLS / Q8_LEN)..];
                    *block = build([&y[0], &y[1]], &raw mut (*tables)[i]);
                }
                for s in 0..sets {
                    // Those of a single group are not kept, so that they stay in the L1 cache.
                    let at = if tokens.len() > GROUP { s } else { 0 };
                    if group == 0 {
                        let panels = [0, 1, 2, 3].map(|p| panel.add(stride * (s * PANELS + p).min(last)));
                        for panel in panels {
                            prefetch(panel, b, blocks, sets * PANELS * stride);
                        }
                        let codes = panels.map(|p| p.add(2 * PANEL_ROWS * blocks + BLOCK_BYTES * b));
                        find(codes, &raw mut (*indices)[at]);
                        (*scales)[at] = widen(panels.map(|p| p.add(2 * PANEL_ROWS * b)));
                    }
                    let (indices, scales) = (&(*indices)[at], &(*scales)[at]);
                    let sums = sums.add(s * tokens.len() + group);
                    let mut i = 0;
                    while i + 2 <= len {
                        let tables = [&(*tables)[i], &(*tables)[i + 1]];
                        add(indices, scales, tables, [block[i], block[i + 1]], &mut *sums.add(i).cast());
                        i += 2;
                    }
                    if i < len {
                        add(indices, scales, [&(*tables)[i]], [block[i]], &mut *sums.add(i).cast());
                    }
                }
            }
        }
        for s in 0..sets {
            let row = rows.start + s * SET;
            for (i, t) in tokens.clone().enumerate() {
                let (sums, step) = (*sums.add(s * tokens.len() + i), _mm512_set1_ps(args.step(t)));
                let panels = transpose(sums.map(|sums| _mm512_castps_si512(sums)));
                for (row, sums) in (row..rows.end).step_by(PANEL_ROWS).zip(panels) {
                    let mut values = [0.0; PANEL_ROWS];
                    _mm512_storeu_ps(values.as_mut_ptr(), _mm512_mul_ps(_mm512_castsi512_ps(sums), step));
                    out.put_all(t, row, &values);
                }
            }
        }
    }
}

/// Prefetches the block [`AHEAD`] of block `b` of a panel, or of the panel `next` bytes later.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,f16c")]
fn prefetch(panel: *const u8, b: usize, blocks: usize, next: usize) {
    let (b, next) = later(AHEAD, b, blocks, next);
    let panel = panel.wrapping_add(next);
    let codes = panel.wrapping_add(2 * PANEL_ROWS * blocks + BLOCK_BYTES * b);
    for line in [0, 64, 128, 192].map(|at| codes.wrapping_add(at)) {
        _mm_prefetch::<_MM_HINT_T1>(line.cast());
    }
    _mm_prefetch::<_MM_HINT_T1>(panel.wrapping_add(2 * PANEL_ROWS * b).cast());
}

/// Exchanges vectors and their 128-bit lanes.
#[inline]
#[target_feature(enable = "avx512f")]
fn transpose([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let (ab01, ab23) = (_mm512_shuffle_i64x2::<0x44>(a, b), _mm512_shuffle_i64x2::<0xee>(a, b));
    let (cd01, cd23) = (_mm512_shuffle_i64x2::<0x44>(c, d), _mm512_shuffle_i64x2::<0xee>(c, d));
    [
        _mm512_shuffle_i64x2::<0x88>(ab01, cd01),
        _mm512_shuffle_i64x2::<0xdd>(ab01, cd01),
        _mm512_shuffle_i64x2::<0x88>(ab23, cd23),
        _mm512_shuffle_i64x2::<0xdd>(ab23, cd23),
    ]
}

/// Writes the indices that the codes of four panels are.
///
/// Safety: [`BLOCK_BYTES`] bytes at each pointer, and memory for the indices.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn find(codes: [*const u8; PANELS], indices: *mut Indices) {
    // SAFETY: the caller's promise.
    let byte = |p: usize, i: usize| unsafe { _mm512_loadu_si512(codes[p].add(64 * i).cast()) };
    for word in 0..2 {
        // Byte `i` of 16 rows of each part becomes half of a word of eight rows.
        let low = [0, 1, 2, 3].map(|p| _mm512_unpacklo_epi8(byte(p, 2 * word), byte(p, 2 * word + 1)));
        let high = [0, 1, 2, 3].map(|p| _mm512_unpackhi_epi8(byte(p, 2 * word), byte(p, 2 * word + 1)));
        for (v, words) in [low, high].into_iter().enumerate() {
            for (part, words) in transpose(words).into_iter().enumerate() {
                // SAFETY: the caller's promise. The lookups ignore bits above an index.
                unsafe {
                    let indices = &raw mut (*indices)[v][part];
                    (*indices)[3 * word] = words;
                    (*indices)[3 * word + 1] = _mm512_srli_epi16::<5>(words);
                    (*indices)[3 * word + 2] = _mm512_srli_epi16::<10>(words);
                }
            }
        }
    }
}

/// The scales of four panels.
///
/// Safety: 16 half-precision numbers at each pointer.
#[inline]
#[target_feature(enable = "avx512f,avx2")]
unsafe fn widen(scales: [*const u8; PANELS]) -> Floats {
    // SAFETY: the caller's promise.
    let [a, b, c, d] = scales.map(|p| unsafe { _mm256_loadu_si256(p.cast()) });
    let ab = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(a), b);
    let cd = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(c), d);
    let halves = [
        _mm512_permutex2var_epi64(ab, _mm512_setr_epi64(0, 4, 8, 12, 1, 5, 9, 13), cd),
        _mm512_permutex2var_epi64(ab, _mm512_setr_epi64(2, 6, 10, 14, 3, 7, 11, 15), cd),
    ];
    let low = halves.map(|half| _mm512_cvtph_ps(_mm512_castsi512_si256(half)));
    let high = halves.map(|half| _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(half)));
    [low[0], high[0], low[1], high[1]]
}

/// For each entry of half a table of five columns, twice the bits of its index that columns 0, 1 and 3 are multiplied by,
/// and at `[1]` that of column 4, the last of the four columns from the next one on. Bit 2 is that of the other half.
const BITS: [[[u8; 4]; 16]; 2] = {
    let mut bits = [[[0; 4]; 16]; 2];
    let mut i = 0;
    while i < 16 {
        bits[0][i] = [2 * (i as u8 & 1), 2 * (i as u8 >> 1 & 1), 0, 2 * (i as u8 >> 2 & 1)];
        bits[1][i][3] = 2 * (i as u8 >> 3);
        i += 1;
    }
    bits
};

/// Builds the tables of 128 columns of a token.
///
/// Safety: memory for the tables.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn build(y: [&Q8Block; 2], tables: *mut Tables) -> Block {
    // SAFETY: 64 bytes each.
    let bits = BITS.map(|bits| unsafe { _mm512_loadu_si512(bits.as_ptr().cast()) });
    let (third, last) = (_mm512_set1_epi32(2 << 16), _mm512_set1_epi32(2 << 24));
    for part in 0..PARTS {
        let q = &y[part / 2].q[part % 2 * PART..][..PART];
        let four = |at: usize| {
            let four: [i8; 4] = q[at..][..4].try_into().unwrap_or_default();
            _mm512_set1_epi32(bytemuck::cast(four))
        };
        let mut to = 0;
        for (t, at) in TABLES.into_iter().enumerate() {
            let without = _mm512_dpbusd_epi32(_mm512_setzero_si512(), bits[0], four(at));
            let without = _mm512_dpbusd_epi32(without, bits[1], four(at + 1));
            let with = _mm512_dpbusd_epi32(without, third, four(at));
            // Lanes of four entries alternate.
            // SAFETY: the caller's promise.
            unsafe { (*tables)[part][to] = _mm512_packs_epi32(without, with) };
            to += 1;
            if t % 3 == 2 {
                let sixth = four(at + 2);
                let without = _mm512_dpbusd_epi32(without, last, sixth);
                let with = _mm512_dpbusd_epi32(with, last, sixth);
                // SAFETY: as above.
                unsafe { (*tables)[part][to] = _mm512_packs_epi32(without, with) };
                to += 1;
            }
        }
    }
    let factors = y.map(|y| y.factor[0] | y.factor[1] << 16);
    Block { start: y[0].start.wrapping_add(y[1].start), factors }
}

/// Adds the products of 128 columns of a set of rows with `T` tokens to their `sums`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn add<const T: usize>(
    indices: &Indices,
    scales: &Floats,
    tables: [&Tables; T],
    block: [Block; T],
    sums: &mut [Floats; T],
) {
    let mut n = [[_mm512_setzero_si512(); PANELS]; T];
    for t in 0..T {
        n[t] = [_mm512_set1_epi32(block[t].start); PANELS];
    }
    for pair in 0..PARTS / 2 {
        let [a, b] = [2 * pair, 2 * pair + 1].map(|part| {
            let mut sums = [[_mm512_setzero_si512(); 2]; T];
            for (v, indices) in indices.iter().enumerate() {
                let [a, b, c, d, e, f] = indices[part];
                for t in 0..T {
                    let tables = &tables[t][part];
                    let of_five = |i, table: usize| _mm512_permutexvar_epi16(i, tables[table]);
                    let of_six =
                        |i, table: usize| _mm512_permutex2var_epi16(tables[table], i, tables[table + 1]);
                    let sum = _mm512_add_epi16(of_five(a, 0), of_five(b, 1));
                    let sum = _mm512_add_epi16(sum, of_six(c, 2));
                    let sum = _mm512_add_epi16(sum, of_five(d, 4));
                    let sum = _mm512_add_epi16(sum, of_five(e, 5));
                    sums[t][v] = _mm512_add_epi16(sum, of_six(f, 6));
                }
            }
            sums
        });
        for t in 0..T {
            let factors = _mm512_set1_epi32(block[t].factors[pair]);
            for v in 0..2 {
                let (low, high) = (2 * v, 2 * v + 1);
                n[t][low] = dpwssd(n[t][low], _mm512_unpacklo_epi16(a[t][v], b[t][v]), factors);
                n[t][high] = dpwssd(n[t][high], _mm512_unpackhi_epi16(a[t][v], b[t][v]), factors);
            }
        }
    }
    for t in 0..T {
        for q in 0..PANELS {
            let product = _mm512_mul_ps(_mm512_cvtepi32_ps(n[t][q]), scales[q]);
            sums[t][q] = _mm512_add_ps(sums[t][q], product);
        }
    }
}
