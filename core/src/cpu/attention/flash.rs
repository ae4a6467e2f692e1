//! Attention of some queries over the cached keys and values of one head, for every instruction set.
//!
//! The softmax is computed in one pass over the cache (Milakov & Gimelshein 2018, as in FlashAttention).
//! The order of operations, the same for any number of queries at once and for any number of workers:
//!
//! * Positions are divided into splits of [`SPLIT`], which different workers may process, and splits into
//!   tiles of [`TILE`].
//! * A score is one running sum over the elements of a head, then multiplied by `1 / sqrt(head_dim)`; ALiBi adds the
//!   head's slope times the negative distance, rounded, to it.
//! * Tiles that no query sees are skipped. A query that does not see a position of another tile has the score -inf there,
//!   which changes no bit of its result.
//! * After a tile's scores, the maximum so far is subtracted; `e^x` of position `t` is added to partial sum
//!   `t % 16`, and the partial sums are folded; earlier sums are multiplied by `decay`, `e` to the power of
//!   the maximum's change.
//! * Outputs: `out = out * decay`, then `out += weight * value` position by position.
//! * Splits are merged first to last by [`merge`].
#![allow(unsafe_code)]

use core::mem::MaybeUninit;
use core::ops::Range;

use half::f16;

use crate::attention::{AttentionPattern, PATTERN_BLOCK};
use crate::cache::{CHUNK_POSITIONS, Codes, Float, Float8, KvCodec, KvView, Quantized};
use crate::cpu::isa::{Isa, Kind};
use crate::cpu::op::exp::exp;
use crate::cpu::op::fold;
use crate::cpu::parallel::Tile as OutputTile;
use crate::cpu::simd::{self, LANES, Simd};

/// Positions scored before their values are added: scores stay on the stack, and keys and values of a tile
/// stay in the L1 and L2 caches while all queries use them.
pub(super) const TILE: usize = PATTERN_BLOCK;

// A tile is read as one run of memory.
const _: () = assert!(CHUNK_POSITIONS.is_multiple_of(TILE) && SPLIT.is_multiple_of(TILE));

/// Positions per worker, if there are that many.
pub(crate) const SPLIT: usize = 1024;

/// Queries whose scores of a tile are held at once.
pub(super) const ROWS: usize = 32;

/// Floats of scratch memory per job.
pub(super) const SCRATCH: usize = TILE * 64;

/// The softmax state of a query: its output is the sum of `e^(score - max)` times the value, to be divided by
/// `sum`, the sum of `e^(score - max)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Softmax {
    max: f32,
    sum: f32,
}

impl Softmax {
    const NOTHING: Softmax = Softmax { max: f32::NEG_INFINITY, sum: 0.0 };
}

/// [`span`] for one cache format. Not a generic function, which every crate that runs a model would compile again.
pub(crate) trait Compiled: KvCodec {
    fn span(
        isa: Isa,
        head: KvView<'_, Self>,
        rows: &Rows<'_>,
        range: Range<usize>,
        out: &[*mut f32; ROWS],
        softmax: &mut [Softmax; ROWS],
    );
}

macro_rules! compiled {
    ($($codec:ty),*) => {
        $(impl Compiled for $codec {
            // For browsers, compiled with the crate that calls it, for size: no slower, and 5 kB less to download.
            #[cfg_attr(all(target_arch = "wasm32", not(debug_assertions)), inline)]
            fn span(
                isa: Isa,
                head: KvView<'_, Self>,
                rows: &Rows<'_>,
                range: Range<usize>,
                out: &[*mut f32; ROWS],
                softmax: &mut [Softmax; ROWS],
            ) {
                span(isa, head, rows, range, out, softmax);
            }
        })*
    };
}

compiled!(
    Float<f32>,
    Float<f16>,
    Float<Float8<3>>,
    Float<Float8<2>>,
    Quantized<Codes<8>>,
    Quantized<Codes<4>>
);

/// A cache format that attention reads in place.
pub(crate) trait FlashCodec: Compiled {
    /// Converts queries `(rows, head_dim)` to the operand that keys of this format are multiplied with by this instruction set.
    fn prepare(isa: Isa, q: &mut [f32], head_dim: usize);

    /// Writes the products of the queries and the keys from position `start` on to `scores`, which are zero.
    /// `N4` is the number of vectors processed at once for four queries (0: never four), `N2` for two, `N1`
    /// for one.
    ///
    /// Safety: the processor has the instruction set; `view` holds all positions that `rows` see; `q` are
    /// prepared; `scratch` has [`SCRATCH`] floats.
    unsafe fn score<L: Simd, const N4: usize, const N2: usize, const N1: usize>(
        view: &KvView<'_, Self>,
        rows: &Span<'_>,
        q: &[*const f32; ROWS],
        start: usize,
        scores: &mut [[f32; TILE]; ROWS],
        scratch: *mut f32,
    );

    /// `out = out * decay`, then adds the values from position `start` on times `weights`.
    ///
    /// Safety: as above; each `out` has room for `head_dim` floats.
    unsafe fn sum<L: Simd, const N4: usize, const N2: usize, const N1: usize>(
        view: &KvView<'_, Self>,
        rows: &Span<'_>,
        weights: &[[f32; TILE]; ROWS],
        decay: &[f32; ROWS],
        start: usize,
        out: &[*mut f32; ROWS],
        scratch: *mut f32,
    );
}

/// The queries of a job: `heads` side by side for each of `tokens`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queries<'a> {
    /// Starts with the first head of the first token.
    pub(crate) q: &'a [f32],
    /// Floats from one token to the next.
    pub(crate) stride: usize,
    pub(crate) tokens: usize,
    pub(crate) heads: usize,
    /// Positions up to that of the first token; each token has one more than the one before.
    pub(crate) seen: usize,
    /// Which of them it sees.
    pub(crate) pattern: AttentionPattern,
    /// ALiBi's slope of each of `heads`; empty without ALiBi.
    pub(crate) slopes: &'a [f32],
}

/// The individual queries of [`Queries`], token by token.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    q: Queries<'a>,
    head_dim: usize,
    /// The first query.
    first: usize,
    count: usize,
}

impl<'a> Rows<'a> {
    /// Chunks of at most [`ROWS`] queries.
    fn parts(q: Queries<'a>, head_dim: usize) -> impl Iterator<Item = Rows<'a>> {
        let all = q.tokens * q.heads;
        (0..all).step_by(ROWS).map(move |first| Rows { q, head_dim, first, count: ROWS.min(all - first) })
    }

    /// The token of query `i`, and the offset of its head within the token.
    fn place(&self, i: usize) -> (usize, usize) {
        let row = self.first + i;
        (row / self.q.heads, row % self.q.heads * self.head_dim)
    }

    /// Pointers to their outputs in `out`, which has a row for each token.
    fn pointers(&self, out: &mut OutputTile<'_>) -> [*mut f32; ROWS] {
        let mut pointers = [core::ptr::null_mut(); ROWS];
        for (i, pointer) in pointers[..self.count].iter_mut().enumerate() {
            let (t, at) = self.place(i);
            *pointer = out.pointer(t, at, self.head_dim);
        }
        pointers
    }
}

/// `out = softmax(q . k^T / sqrt(head_dim)) v`. `out` and `scratch` have a row for each token, of `heads`
/// times `head_dim` floats; `scratch` is only used beyond [`SPLIT`] positions.
pub(crate) fn flash_attention<C: FlashCodec>(
    isa: Isa,
    head: KvView<'_, C>,
    q: Queries<'_>,
    out: &mut OutputTile<'_>,
    scratch: &mut OutputTile<'_>,
) {
    let d = head.head_dim;
    for rows in Rows::parts(q, d) {
        let seen = q.seen + rows.place(rows.count - 1).0;
        let mut total = [Softmax::NOTHING; ROWS];
        C::span(isa, head, &rows, 0..seen.min(SPLIT), &rows.pointers(out), &mut total);
        for start in (SPLIT..seen).step_by(SPLIT) {
            let mut part = [Softmax::NOTHING; ROWS];
            let range = start..seen.min(start + SPLIT);
            C::span(isa, head, &rows, range, &rows.pointers(scratch), &mut part);
            for i in 0..rows.count {
                let (t, at) = rows.place(i);
                if q.seen + t > start {
                    merge(&mut total[i], &mut out.row(t)[at..at + d], part[i], &scratch.row(t)[at..at + d]);
                }
            }
        }
        for (i, total) in total[..rows.count].iter().enumerate() {
            let (t, at) = rows.place(i);
            finish(*total, &mut out.row(t)[at..at + d]);
        }
    }
}

/// Floats of a query's partial result of a split: its output, then the maximum and the sum; whole cache lines
/// for the usual dimensions.
pub(crate) const fn part_len(head_dim: usize) -> usize {
    head_dim + LANES
}

/// [`flash_attention`] for one token and positions `range`, a split, without dividing by the sum. `parts` is
/// `(heads, part_len(head_dim))`.
pub(crate) fn flash_attention_split<C: FlashCodec>(
    isa: Isa,
    head: KvView<'_, C>,
    q: Queries<'_>,
    range: Range<usize>,
    parts: &mut [f32],
) {
    let d = head.head_dim;
    let one = Queries { tokens: 1, ..q };
    for rows in Rows::parts(one, d) {
        let mut softmax = [Softmax::NOTHING; ROWS];
        let parts = &mut parts[rows.first * part_len(d)..][..rows.count * part_len(d)];
        let mut tile = OutputTile::new(parts, part_len(d));
        let mut out = [core::ptr::null_mut(); ROWS];
        for (i, out) in out[..rows.count].iter_mut().enumerate() {
            *out = tile.pointer(i, 0, d);
        }
        C::span(isa, head, &rows, range.clone(), &out, &mut softmax);
        for (part, softmax) in parts.chunks_exact_mut(part_len(d)).zip(softmax) {
            (part[d], part[d + 1]) = (softmax.max, softmax.sum);
        }
    }
}

/// Merges the partial results of [`flash_attention_split`] for one query: `parts` yields them, first to last.
pub(crate) fn merge_splits<'p>(mut parts: impl Iterator<Item = &'p [f32]>, out: &mut [f32]) {
    let d = out.len();
    let softmax = |part: &[f32]| Softmax { max: part[d], sum: part[d + 1] };
    let mut total = Softmax::NOTHING;
    if let Some(part) = parts.next() {
        total = softmax(part);
        out.copy_from_slice(&part[..d]);
    }
    for part in parts {
        merge(&mut total, out, softmax(part), &part[..d]);
    }
    finish(total, out);
}

/// Merges the partial result of a later split.
fn merge(total: &mut Softmax, out: &mut [f32], part: Softmax, part_out: &[f32]) {
    let max = if part.max > total.max { part.max } else { total.max };
    // If every score so far is -inf or NaN, there is no maximum to subtract.
    let shift = if max == f32::NEG_INFINITY { 0.0 } else { max };
    let (a, b) = (exp(total.max - shift), exp(part.max - shift));
    *total = Softmax { max, sum: total.sum * a + part.sum * b };
    for (o, p) in out.iter_mut().zip(part_out) {
        *o = *o * a + p * b;
    }
}

fn finish(total: Softmax, out: &mut [f32]) {
    let norm = if total.sum > 0.0 { 1.0 / total.sum } else { 1.0 };
    out.iter_mut().for_each(|o| *o *= norm);
}

/// The arguments of [`run`]; its pointers are valid for `head_dim` floats.
struct Job<'a, C> {
    head: KvView<'a, C>,
    /// Within one split; begins at a multiple of [`TILE`].
    range: Range<usize>,
    count: usize,
    q: [*const f32; ROWS],
    out: [*mut f32; ROWS],
    /// Positions up to that of each query, non-decreasing.
    seen: [usize; ROWS],
    pattern: AttentionPattern,
    /// ALiBi's slopes, those of the queries in turn, beginning with that of query `first_slope`; empty without ALiBi.
    slopes: &'a [f32],
    first_slope: usize,
}

/// Whether modules for browsers leave the scalar code out: nothing selects it there, and it adds 9 kB to a
/// download.
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
const SIMD_ONLY: bool = cfg!(not(debug_assertions));

/// Sets `out` and `softmax` to the result of `rows` over positions `range`. The pointers of `out` are valid
/// for `head_dim` floats and not aliased.
fn span<C: FlashCodec>(
    isa: Isa,
    head: KvView<'_, C>,
    rows: &Rows<'_>,
    range: Range<usize>,
    out: &[*mut f32; ROWS],
    softmax: &mut [Softmax; ROWS],
) {
    let d = head.head_dim;
    // The callers split at tiles within the cache; the unsafe reads below rely on it.
    assert!(range.start.is_multiple_of(TILE) && head.holds(range.end) && rows.count <= ROWS);
    let (count, pattern, slopes, first_slope) = (rows.count, rows.q.pattern, rows.q.slopes, rows.first);
    let (q, seen) = ([core::ptr::null(); ROWS], [0; ROWS]);
    let mut job = Job { head, range, count, q, out: *out, seen, pattern, slopes, first_slope };
    for i in 0..rows.count {
        let (t, at) = rows.place(i);
        job.q[i] = rows.q.q[t * rows.q.stride + at..][..d].as_ptr();
        job.seen[i] = rows.q.seen + t;
    }
    // SAFETY: an `Isa` of a kind exists only where its instructions do; the pointers were checked.
    unsafe {
        match isa.kind() {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 | Kind::AvxVnni => avx2(&job, softmax),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni | Kind::Avx512Words | Kind::Avx512Amx => avx512(&job, softmax),
            #[cfg(target_arch = "aarch64")]
            Kind::Neon | Kind::NeonDot | Kind::NeonI8mm => run::<simd::Neon, C, 1, 2, 4, 2>(&job, softmax),
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Kind::Scalar if SIMD_ONLY => simd128(&job, softmax),
            Kind::Scalar => scalar(&job, softmax),
            #[cfg(any(target_arch = "arm", target_arch = "riscv32"))]
            Kind::Tables => scalar(&job, softmax),
            #[cfg(all(target_arch = "arm", feature = "dsp"))]
            Kind::Dsp => scalar(&job, softmax),
            #[cfg(all(target_arch = "arm", feature = "helium"))]
            Kind::Helium => scalar(&job, softmax),
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Kind::Simd128 => simd128(&job, softmax),
            #[cfg(all(target_arch = "wasm32", target_feature = "relaxed-simd"))]
            Kind::RelaxedDot => simd128(&job, softmax),
        }
    }
}

/// One copy for all kinds without vectors.
unsafe fn scalar<C: FlashCodec>(job: &Job<'_, C>, softmax: &mut [Softmax; ROWS]) {
    // SAFETY: the caller's promise.
    unsafe { run::<simd::Scalar, C, 0, 1, 2, 1>(job, softmax) }
}

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
unsafe fn simd128<C: FlashCodec>(job: &Job<'_, C>, softmax: &mut [Softmax; ROWS]) {
    // SAFETY: the caller's promise.
    unsafe { run::<simd::Simd128, C, 0, 1, 2, 1>(job, softmax) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
unsafe fn avx2<C: FlashCodec>(job: &Job<'_, C>, softmax: &mut [Softmax; ROWS]) {
    // SAFETY: the caller's promise.
    unsafe { run::<simd::Avx2, C, 1, 2, 4, 2>(job, softmax) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn avx512<C: FlashCodec>(job: &Job<'_, C>, softmax: &mut [Softmax; ROWS]) {
    // SAFETY: the caller's promise.
    unsafe { run::<simd::Avx512, C, 4, 1, 4, 8>(job, softmax) }
}

/// Safety: the processor has the instruction set, and the job's pointers are valid and not aliased. For the
/// constants see [`FlashCodec::score`]; `V2` replaces `N2` where values are added.
#[inline(always)]
unsafe fn run<L: Simd, C: FlashCodec, const N4: usize, const N2: usize, const N1: usize, const V2: usize>(
    job: &Job<'_, C>,
    softmax: &mut [Softmax; ROWS],
) {
    let (d, count) = (job.head.head_dim, job.count);
    let scale = 1.0 / libm::sqrtf(d as f32);
    let mut scores = [[0.0; TILE]; ROWS];
    let mut decay = [0.0; ROWS];
    let mut scratch = [const { MaybeUninit::<f32>::uninit() }; SCRATCH];
    let scratch: *mut f32 = scratch.as_mut_ptr().cast();
    // SAFETY: the caller's promise; `span` has checked that the head holds the positions.
    unsafe {
        for &out in &job.out[..count] {
            out.write_bytes(0, d);
        }
        for start in job.range.clone().step_by(TILE) {
            let end = job.range.end.min(start + TILE);
            let mut first = 0;
            while first < count && job.seen[first] <= start {
                first += 1;
            }
            if first == count {
                return;
            }
            let (mut visible, mut hidden) = ([0; ROWS], [const { 0..0 }; ROWS]);
            let mut skip = true;
            for r in first..count {
                visible[r] = job.seen[r].min(end) - start;
                hidden[r] = job.pattern.hidden(job.seen[r] - 1, start / TILE);
                skip &= hidden[r].start == 0 && hidden[r].end >= visible[r];
            }
            if skip {
                continue;
            }
            let rows = Span { first, count, visible: &visible };
            scores[first..count].fill([0.0; TILE]);
            C::score::<L, N4, N2, N1>(&job.head, &rows, &job.q, start, &mut scores, scratch);
            for r in first..count {
                scores[r].iter_mut().for_each(|score| *score *= scale);
                if cfg!(feature = "variants") && !job.slopes.is_empty() {
                    let slope = job.slopes[(job.first_slope + r) % job.slopes.len()];
                    add_bias(&mut scores[r], slope, job.seen[r] - 1 - start);
                }
                decay[r] = softmax[r].add_tile::<L>(&mut scores[r], visible[r], hidden[r].clone());
            }
            C::sum::<L, N4, V2, N1>(&job.head, &rows, &scores, &decay, start, &job.out, scratch);
        }
    }
}

/// Adds ALiBi's bias to the scores of a tile, for a query `ahead` of the tile's first position.
///
/// One copy for all instruction sets and formats: 64 sums are little beside the products of a tile, and code is downloaded.
#[inline(never)]
fn add_bias(scores: &mut [f32; TILE], slope: f32, ahead: usize) {
    let ahead = ahead as f32;
    for (t, score) in scores.iter_mut().enumerate() {
        *score += slope * (t as f32 - ahead);
    }
}

impl Softmax {
    /// Turns the first `n` scores of a tile but those `hidden` into weights; returns the factor for earlier outputs.
    ///
    /// In WebAssembly one copy for all cache formats: code is downloaded.
    ///
    /// Safety: as for [`Simd`].
    #[cfg_attr(target_arch = "wasm32", inline(never))]
    #[cfg_attr(not(target_arch = "wasm32"), inline(always))]
    unsafe fn add_tile<L: Simd>(&mut self, scores: &mut [f32; TILE], n: usize, hidden: Range<usize>) -> f32 {
        // Masked positions add nothing, as e^-inf is 0.
        scores[n..].fill(f32::NEG_INFINITY);
        if let Some(hidden) = scores.get_mut(hidden) {
            hidden.fill(f32::NEG_INFINITY);
        }
        // SAFETY: the caller's promise.
        let max = unsafe { L::most(self.max, scores.as_ptr(), TILE) };
        // If every score so far is -inf or NaN, there is no maximum to subtract.
        let shift = if max == f32::NEG_INFINITY { 0.0 } else { max };
        let mut sums = [0.0; LANES];
        for scores in scores.as_chunks_mut::<LANES>().0 {
            for l in 0..LANES {
                scores[l] = exp(scores[l] - shift);
                sums[l] += scores[l];
            }
        }
        let decay = exp(self.max - shift);
        *self = Softmax { max, sum: self.sum * decay + fold(sums) };
        decay
    }
}

/// The queries that see part of a tile: `first..count`, each `visible[r]` positions, non-decreasing.
pub(crate) struct Span<'a> {
    pub(super) first: usize,
    pub(super) count: usize,
    pub(super) visible: &'a [usize; ROWS],
}

impl Span<'_> {
    /// Positions that the last query sees, the most of any.
    #[inline(always)]
    pub(super) fn most(&self) -> usize {
        self.visible[self.count - 1]
    }
}

/// Prefetches `bytes` at `p`, which may be any address.
#[inline(always)]
pub(super) fn prefetch<L: Simd>(p: *const u8, bytes: usize) {
    const LINE: usize = 64;
    for line in 0..bytes.div_ceil(LINE) {
        L::prefetch(p.wrapping_add(line * LINE));
    }
}
