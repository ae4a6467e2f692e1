//! Attention of some queries to the cached keys and values of one head, for every instruction set.
//!
//! The softmax is computed in one pass over the cache (Milakov & Gimelshein 2018, as in FlashAttention).
//! The order of operations, the same for any number of queries at once and for any number of workers:
//!
//! * Positions go in splits of [`SPLIT`], which different workers may have, and those in tiles of [`TILE`].
//! * A score is one running sum over the numbers of a head, then multiplied by `1 / sqrt(head_dim)`.
//! * After a tile's scores, the maximum so far is subtracted; `e^x` of position `t` goes to running sum
//!   `t % 16`, which are folded; what was summed before is multiplied by `decay`, `e` to the power of
//!   the maximum's change.
//! * Outputs: `out = out * decay`, then `out += weight * value` position after position.
//! * Splits are merged first to last by [`merge`].
#![allow(unsafe_code)]

use core::mem::MaybeUninit;
use core::ops::Range;

use half::f16;

use super::isa::{Isa, Kind};
use super::lanes::{self, LANES, Lanes};
use super::parallel::Tile;
use crate::cache::{BLOCK, KvElement};
use crate::op::exp::exp;
use crate::op::fold;

/// Positions scored before their values are added: scores stay on the stack, keys and values of a tile in
/// the first caches while all queries look at them.
const TILE: usize = 64;

/// Positions that one worker sees at least, if there are as many.
pub(crate) const SPLIT: usize = 1024;

/// Queries whose scores of a tile are held at once.
const ROWS: usize = 32;

/// Numbers a head that are turned to floats at once for many queries.
const STRIP: usize = 64;

/// So many queries make it worth to turn a tile's keys and values to floats before they are used.
const MANY: usize = 8;

/// What a query has seen so far: its output is the sum of `e^(score - max)` times the value, to be
/// divided by `sum`, that of `e^(score - max)`.
#[derive(Clone, Copy, Debug)]
struct Softmax {
    max: f32,
    sum: f32,
}

impl Softmax {
    const NOTHING: Softmax = Softmax { max: f32::NEG_INFINITY, sum: 0.0 };
}

/// A cached number that vectors can be made of.
pub(crate) trait Element: KvElement {
    /// 16 of them as floats.
    ///
    /// Safety: as for [`Lanes`].
    unsafe fn lanes<L: Lanes>(p: *const Self) -> L::F;

    /// Whether it takes work to make a float of it.
    const PACKED: bool;
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn lanes<L: Lanes>(p: *const Self) -> L::F {
        // SAFETY: the caller's promise.
        unsafe { L::load(p) }
    }

    const PACKED: bool = false;
}

impl Element for f16 {
    #[inline(always)]
    unsafe fn lanes<L: Lanes>(p: *const Self) -> L::F {
        // SAFETY: the caller's promise.
        unsafe { L::load_f16(p) }
    }

    const PACKED: bool = true;
}

/// What one key-value head has cached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head<'a, E> {
    /// `(blocks of 16 positions, head_dim, 16)`
    pub(crate) keys: &'a [E],
    /// `(positions, head_dim)`
    pub(crate) values: &'a [E],
    /// Numbers a head.
    pub(crate) head_dim: usize,
}

/// The queries of a job: `heads` side by side for each of `tokens`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queries<'a> {
    /// The first head of the first token begins here.
    pub(crate) q: &'a [f32],
    /// Numbers from one token to the next.
    pub(crate) stride: usize,
    pub(crate) tokens: usize,
    pub(crate) heads: usize,
    /// Positions that the first token sees; each token sees one more than the one before.
    pub(crate) seen: usize,
}

/// The queries of [`Queries`] one by one, token after token.
#[derive(Clone, Copy)]
struct Rows<'a> {
    q: Queries<'a>,
    head_dim: usize,
    /// The first one that is meant.
    first: usize,
    count: usize,
}

impl<'a> Rows<'a> {
    /// Up to [`ROWS`] of them at a time.
    fn parts(q: Queries<'a>, head_dim: usize) -> impl Iterator<Item = Rows<'a>> {
        let all = q.tokens * q.heads;
        (0..all).step_by(ROWS).map(move |first| Rows { q, head_dim, first, count: ROWS.min(all - first) })
    }

    /// Token of the `i`-th, and where its head begins beside the token's others.
    fn place(&self, i: usize) -> (usize, usize) {
        let row = self.first + i;
        (row / self.q.heads, row % self.q.heads * self.head_dim)
    }

    /// Where their outputs are in `out`, which has a row for each token.
    fn pointers(&self, out: &mut Tile<'_>) -> [*mut f32; ROWS] {
        let mut pointers = [core::ptr::null_mut(); ROWS];
        for (i, pointer) in pointers[..self.count].iter_mut().enumerate() {
            let (t, at) = self.place(i);
            *pointer = out.pointer(t, at, self.head_dim);
        }
        pointers
    }
}

/// `out = softmax(q . k^T / sqrt(head_dim)) v`. `out` and `spare` have a row for each token, of `heads`
/// times `head_dim` numbers; `spare` is only used beyond [`SPLIT`] positions.
pub(crate) fn attend<E: Element>(
    isa: Isa,
    head: Head<'_, E>,
    q: Queries<'_>,
    out: &mut Tile<'_>,
    spare: &mut Tile<'_>,
) {
    let d = head.head_dim;
    for rows in Rows::parts(q, d) {
        let seen = q.seen + rows.place(rows.count - 1).0;
        let mut total = [Softmax::NOTHING; ROWS];
        span(isa, &head, &rows, 0..seen.min(SPLIT), &rows.pointers(out), &mut total);
        for start in (SPLIT..seen).step_by(SPLIT) {
            let mut part = [Softmax::NOTHING; ROWS];
            let range = start..seen.min(start + SPLIT);
            span(isa, &head, &rows, range, &rows.pointers(spare), &mut part);
            for i in 0..rows.count {
                let (t, at) = rows.place(i);
                if q.seen + t > start {
                    merge(&mut total[i], &mut out.row(t)[at..at + d], part[i], &spare.row(t)[at..at + d]);
                }
            }
        }
        for (i, total) in total[..rows.count].iter().enumerate() {
            let (t, at) = rows.place(i);
            finish(*total, &mut out.row(t)[at..at + d]);
        }
    }
}

/// Numbers of a query's part of a split: its output, then the maximum and the sum; whole cache lines for
/// the usual dimensions.
pub(crate) const fn part_len(head_dim: usize) -> usize {
    head_dim + LANES
}

/// [`attend`] for one token and positions `range`, a split, without dividing by the sum. `parts` is
/// `(heads, part_len(head_dim))`.
pub(crate) fn attend_split<E: Element>(
    isa: Isa,
    head: Head<'_, E>,
    q: Queries<'_>,
    range: Range<usize>,
    parts: &mut [f32],
) {
    let d = head.head_dim;
    let one = Queries { tokens: 1, ..q };
    for rows in Rows::parts(one, d) {
        let mut softmax = [Softmax::NOTHING; ROWS];
        let parts = &mut parts[rows.first * part_len(d)..][..rows.count * part_len(d)];
        let mut tile = Tile::new(parts, part_len(d));
        let mut out = [core::ptr::null_mut(); ROWS];
        for (i, out) in out[..rows.count].iter_mut().enumerate() {
            *out = tile.pointer(i, 0, d);
        }
        span(isa, &head, &rows, range.clone(), &out, &mut softmax);
        for (part, softmax) in parts.chunks_exact_mut(part_len(d)).zip(softmax) {
            (part[d], part[d + 1]) = (softmax.max, softmax.sum);
        }
    }
}

/// Puts what [`attend_split`] left of the splits of one query together: `parts` yields them, first to
/// last.
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

/// Adds what was seen in a later split.
fn merge(total: &mut Softmax, out: &mut [f32], part: Softmax, part_out: &[f32]) {
    let max = if part.max > total.max { part.max } else { total.max };
    // Only when every score so far is -inf or NaN is there no maximum to subtract.
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

/// What [`run`] works on; its pointers are good for `head_dim` numbers.
struct Job<'a, E> {
    head: Head<'a, E>,
    /// Within one split; begins at a multiple of [`TILE`].
    range: Range<usize>,
    count: usize,
    q: [*const f32; ROWS],
    out: [*mut f32; ROWS],
    /// Positions that each sees, not falling.
    seen: [usize; ROWS],
}

/// Sets `out` and `softmax` to what `rows` see of positions `range`. The pointers of `out` are good for
/// `head_dim` numbers, which nobody else has.
fn span<E: Element>(
    isa: Isa,
    head: &Head<'_, E>,
    rows: &Rows<'_>,
    range: Range<usize>,
    out: &[*mut f32; ROWS],
    softmax: &mut [Softmax; ROWS],
) {
    let d = head.head_dim;
    assert!(range.start.is_multiple_of(TILE) && head.keys.len() >= range.end.next_multiple_of(BLOCK) * d);
    assert!(head.values.len() >= range.end * d && rows.count <= ROWS);
    let mut job = Job {
        head: *head,
        range,
        count: rows.count,
        q: [core::ptr::null(); ROWS],
        out: *out,
        seen: [0; ROWS],
    };
    for i in 0..rows.count {
        let (t, at) = rows.place(i);
        job.q[i] = rows.q.q[t * rows.q.stride + at..][..d].as_ptr();
        job.seen[i] = rows.q.seen + t;
    }
    // SAFETY: an `Isa` of a kind exists only where its instructions do; the pointers were checked.
    unsafe {
        match isa.kind() {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => avx2(&job, softmax),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni => avx512(&job, softmax),
            #[cfg(target_arch = "aarch64")]
            Kind::Neon | Kind::NeonDot => run::<lanes::Neon, E, 1, 2, 4, 2>(&job, softmax),
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Kind::Simd128 => run::<lanes::Simd128, E, 0, 1, 2, 1>(&job, softmax),
            Kind::Scalar => run::<lanes::Scalar, E, 0, 1, 2, 1>(&job, softmax),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
unsafe fn avx2<E: Element>(job: &Job<'_, E>, softmax: &mut [Softmax; ROWS]) {
    // SAFETY: the caller's promise.
    unsafe { run::<lanes::Avx2, E, 1, 2, 4, 2>(job, softmax) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl")]
unsafe fn avx512<E: Element>(job: &Job<'_, E>, softmax: &mut [Softmax; ROWS]) {
    // SAFETY: the caller's promise.
    unsafe { run::<lanes::Avx512, E, 4, 1, 4, 8>(job, softmax) }
}

/// The vectors whose sums are in registers at once: `N4` for each of four queries (0: never four), `N2`
/// for each of two, `N1` for one.
///
/// Safety: the instruction set is there, the job's pointers are good and not aliased.
#[inline(always)]
unsafe fn run<L: Lanes, E: Element, const N4: usize, const N2: usize, const N1: usize, const V2: usize>(
    job: &Job<'_, E>,
    softmax: &mut [Softmax; ROWS],
) {
    let (d, count) = (job.head.head_dim, job.count);
    let scale = 1.0 / libm::sqrtf(d as f32);
    let mut scores = [[0.0; TILE]; ROWS];
    let mut decay = [0.0; ROWS];
    let mut floats = [const { MaybeUninit::<f32>::uninit() }; TILE * STRIP];
    let floats: *mut f32 = floats.as_mut_ptr().cast();
    // SAFETY: see at each.
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
            let mut visible = [0; ROWS];
            for r in first..count {
                visible[r] = job.seen[r].min(end) - start;
            }
            let most = visible[count - 1];
            let many = E::PACKED && count - first >= MANY;
            let rows = Span { first, count, visible: &visible };

            scores[first..count].fill([0.0; TILE]);
            let blocks = most.div_ceil(BLOCK);
            // A block has 16 times d numbers; there are as many as positions, rounded up.
            let keys = job.head.keys.as_ptr().add(start * d);
            if many {
                for at in (0..d).step_by(STRIP) {
                    let n = STRIP.min(d - at);
                    for b in 0..blocks {
                        for i in 0..n {
                            let key = E::lanes::<L>(keys.add((b * d + at + i) * LANES));
                            L::store(floats.add((b * STRIP + i) * LANES), key);
                        }
                    }
                    let keys =
                        Keys { p: floats.cast_const(), stride: STRIP * LANES, blocks, at, n, ahead: false };
                    score::<L, f32, N4, N2, N1>(&rows, &job.q, keys, &mut scores);
                }
            } else {
                let keys = Keys { p: keys, stride: d * LANES, blocks, at: 0, n: d, ahead: true };
                score::<L, E, N4, N2, N1>(&rows, &job.q, keys, &mut scores);
            }

            for r in first..count {
                decay[r] = softmax[r].add_tile(&mut scores[r], visible[r], scale);
            }

            let values = job.head.values.as_ptr().add(start * d);
            let whole = d / LANES * LANES;
            if many {
                for at in (0..whole).step_by(STRIP) {
                    let n = STRIP.min(whole - at);
                    for t in 0..most {
                        for i in (0..n).step_by(LANES) {
                            let value = E::lanes::<L>(values.add(t * d + at + i));
                            L::store(floats.add(t * STRIP + i), value);
                        }
                    }
                    let values = Values { p: floats.cast_const(), stride: STRIP, at, n, ahead: false };
                    sum::<L, f32, N4, V2, N1>(&rows, values, &scores, &decay, &job.out);
                }
            } else {
                let values = Values { p: values, stride: d, at: 0, n: whole, ahead: true };
                sum::<L, E, N4, V2, N1>(&rows, values, &scores, &decay, &job.out);
            }
            for at in whole..d {
                for r in first..count {
                    let out = &mut *job.out[r].add(at);
                    *out *= decay[r];
                    for t in 0..visible[r] {
                        *out += scores[r][t] * (*values.add(t * d + at)).load();
                    }
                }
            }
        }
    }
}

impl Softmax {
    /// Turns the first `n` dot products of a tile into weights; returns what earlier outputs are to be
    /// multiplied by.
    #[inline(always)]
    fn add_tile(&mut self, scores: &mut [f32; TILE], n: usize, scale: f32) -> f32 {
        let mut most = [self.max; LANES];
        for (i, scores) in scores.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            for l in 0..LANES {
                // What is masked adds nothing, as e^-inf is 0.
                scores[l] = if i * LANES + l < n { scores[l] * scale } else { f32::NEG_INFINITY };
                most[l] = if scores[l] > most[l] { scores[l] } else { most[l] };
            }
        }
        let mut max = self.max;
        for most in most {
            max = if most > max { most } else { max };
        }
        // Only when every score so far is -inf or NaN is there no maximum to subtract.
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

/// Asks for the cache lines of vectors `first..first + n` at `p`.
#[inline(always)]
fn ask<L: Lanes, E>(p: *const u8, first: usize, n: usize) {
    const LINE: usize = 64;
    let bytes = LANES * size_of::<E>();
    for line in 0..(n * bytes).div_ceil(LINE) {
        L::prefetch(p.wrapping_add(first * bytes + line * LINE));
    }
}

/// The queries that see something of a tile: `first..count`, of which `visible[r]` positions.
struct Span<'a> {
    first: usize,
    count: usize,
    visible: &'a [usize; ROWS],
}

/// Numbers `at..at + n` of the keys of a tile.
#[derive(Clone, Copy)]
struct Keys<E> {
    /// `(blocks, stride)`; number `at` of the first block's keys is first.
    p: *const E,
    stride: usize,
    blocks: usize,
    at: usize,
    n: usize,
    /// Whether the next tile follows in memory and should be asked for.
    ahead: bool,
}

/// Adds the products of queries and keys to `scores`.
#[inline(always)]
unsafe fn score<L: Lanes, E: Element, const N4: usize, const N2: usize, const N1: usize>(
    rows: &Span<'_>,
    q: &[*const f32; ROWS],
    keys: Keys<E>,
    scores: &mut [[f32; TILE]; ROWS],
) {
    let mut r = rows.first;
    // SAFETY: the caller's promise.
    unsafe {
        while r < rows.count {
            let left = rows.count - r;
            let keys = Keys { ahead: keys.ahead && r == rows.first, ..keys };
            let (q, scores) = (&q[r..], scores[r..].as_flattened_mut().as_mut_ptr());
            r += if N4 > 0 && left >= 4 {
                score_blocks::<L, E, 4, N4>(q, keys, scores)
            } else if left >= 2 {
                score_blocks::<L, E, 2, N2>(q, keys, scores)
            } else {
                score_blocks::<L, E, 1, N1>(q, keys, scores)
            };
        }
    }
}

/// `R` queries and all blocks of a tile; `R`.
#[inline(always)]
unsafe fn score_blocks<L: Lanes, E: Element, const R: usize, const N: usize>(
    q: &[*const f32],
    keys: Keys<E>,
    scores: *mut f32,
) -> usize {
    let mut b = 0;
    // SAFETY: the caller's promise; a tile of scores has room for all blocks.
    unsafe {
        while b + N <= keys.blocks {
            score_tile::<L, E, R, N>(q, keys, b, scores);
            b += N;
        }
        while b < keys.blocks {
            score_tile::<L, E, R, 1>(q, keys, b, scores);
            b += 1;
        }
    }
    R
}

#[inline(always)]
unsafe fn score_tile<L: Lanes, E: Element, const R: usize, const N: usize>(
    q: &[*const f32],
    keys: Keys<E>,
    b: usize,
    scores: *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let keys_at = keys.p.add(b * keys.stride);
        let scores = scores.add(b * LANES);
        let mut sums = [[L::splat(0.0); N]; R];
        for r in 0..R {
            for n in 0..N {
                sums[r][n] = L::load(scores.add(r * TILE + n * LANES));
            }
        }
        let next = keys_at.wrapping_add(TILE / LANES * keys.stride).cast::<u8>();
        // Steps that make up a cache line.
        let line = const { if size_of::<E>() < 4 { 4 / size_of::<E>() } else { 1 } };
        let mut i = 0;
        while i + line <= keys.n {
            if keys.ahead {
                ask::<L, E>(next, i * N, N * line);
            }
            for i in i..i + line {
                score_step::<L, E, R, N>(q, keys, keys_at, i, &mut sums);
            }
            i += line;
        }
        while i < keys.n {
            score_step::<L, E, R, N>(q, keys, keys_at, i, &mut sums);
            i += 1;
        }
        for r in 0..R {
            for n in 0..N {
                L::store(scores.add(r * TILE + n * LANES), sums[r][n]);
            }
        }
    }
}

#[inline(always)]
unsafe fn score_step<L: Lanes, E: Element, const R: usize, const N: usize>(
    q: &[*const f32],
    keys: Keys<E>,
    keys_at: *const E,
    i: usize,
    sums: &mut [[L::F; N]; R],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut k = [L::splat(0.0); N];
        for n in 0..N {
            k[n] = E::lanes::<L>(keys_at.add(n * keys.stride + i * LANES));
        }
        for r in 0..R {
            let x = L::splat(*q[r].add(keys.at + i));
            for n in 0..N {
                sums[r][n] = L::add(sums[r][n], L::mul(x, k[n]));
            }
        }
    }
}

/// Numbers `at..at + n` of the values of a tile; `n` is a multiple of [`LANES`].
#[derive(Clone, Copy)]
struct Values<E> {
    /// `(positions, stride)`; number `at` of the first position is first.
    p: *const E,
    stride: usize,
    at: usize,
    n: usize,
    /// Whether the next tile follows in memory and should be asked for.
    ahead: bool,
}

/// `out = out * decay`, and then the sum of the values times `weights`.
#[inline(always)]
unsafe fn sum<L: Lanes, E: Element, const N4: usize, const N2: usize, const N1: usize>(
    rows: &Span<'_>,
    values: Values<E>,
    weights: &[[f32; TILE]; ROWS],
    decay: &[f32; ROWS],
    out: &[*mut f32; ROWS],
) {
    let mut r = rows.first;
    // SAFETY: the caller's promise.
    unsafe {
        while r < rows.count {
            let left = rows.count - r;
            let values = Values { ahead: values.ahead && r == rows.first, ..values };
            // What the first of them sees, the others see.
            let n = rows.visible[r];
            let (w, d, o) = (&weights[r..], &decay[r..], &out[r..]);
            let shared = if N4 > 0 && left >= 4 {
                sum_columns::<L, E, 4, N4>(values, w, 0..n, d, o)
            } else if left >= 2 {
                sum_columns::<L, E, 2, N2>(values, w, 0..n, d, o)
            } else {
                sum_columns::<L, E, 1, N1>(values, w, 0..n, d, o)
            };
            for r in r + 1..r + shared {
                if rows.visible[r] > n {
                    let rest = n..rows.visible[r];
                    sum_columns::<L, E, 1, N1>(values, &weights[r..], rest, &[1.0], &out[r..]);
                }
            }
            r += shared;
        }
    }
}

/// `R` queries and positions `range`; `R`.
#[inline(always)]
unsafe fn sum_columns<L: Lanes, E: Element, const R: usize, const N: usize>(
    values: Values<E>,
    weights: &[[f32; TILE]],
    range: Range<usize>,
    decay: &[f32],
    out: &[*mut f32],
) -> usize {
    let mut c = 0;
    // SAFETY: the caller's promise.
    unsafe {
        while c + N * LANES <= values.n {
            sum_tile::<L, E, R, N>(values, c, weights, range.clone(), decay, out);
            c += N * LANES;
        }
        while c < values.n {
            sum_tile::<L, E, R, 1>(values, c, weights, range.clone(), decay, out);
            c += LANES;
        }
    }
    R
}

#[inline(always)]
unsafe fn sum_tile<L: Lanes, E: Element, const R: usize, const N: usize>(
    values: Values<E>,
    c: usize,
    weights: &[[f32; TILE]],
    range: Range<usize>,
    decay: &[f32],
    out: &[*mut f32],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let weights = weights[..R].as_flattened().as_ptr();
        let mut sums = [[L::splat(0.0); N]; R];
        for r in 0..R {
            for n in 0..N {
                let o = L::load(out[r].add(values.at + c + n * LANES));
                sums[r][n] = L::mul(o, L::splat(decay[r]));
            }
        }
        let next = values.p.wrapping_add(TILE * values.stride + c);
        for t in range {
            if values.ahead {
                ask::<L, E>(next.wrapping_add(t * values.stride).cast(), 0, N);
            }
            let mut v = [L::splat(0.0); N];
            for n in 0..N {
                v[n] = E::lanes::<L>(values.p.add(t * values.stride + c + n * LANES));
            }
            for r in 0..R {
                let w = L::splat(*weights.add(r * TILE + t));
                for n in 0..N {
                    sums[r][n] = L::add(sums[r][n], L::mul(w, v[n]));
                }
            }
        }
        for r in 0..R {
            for n in 0..N {
                L::store(out[r].add(values.at + c + n * LANES), sums[r][n]);
            }
        }
    }
}
