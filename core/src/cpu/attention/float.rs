//! Attention over keys and values stored as floats.
#![allow(unsafe_code)]

use core::marker::PhantomData;
use core::ops::Range;

use half::f16;

use super::flash::{Compiled, FlashCodec, ROWS, SCRATCH, Span, TILE, prefetch};
use crate::cache::{BLOCK_POSITIONS, Element, Float, Float8, KvView};
use crate::cpu::isa::Isa;
use crate::cpu::simd::{LANES, Simd, SimdOp};

/// Elements of a head that are converted to f32 at once for many queries.
const STRIP: usize = SCRATCH / TILE;

/// A cached float that vectors are loaded from.
pub(crate) trait LoadLanes: Element {
    /// 16 of them as floats.
    ///
    /// Safety: as for [`Simd`].
    unsafe fn lanes<L: Simd>(p: *const Self::Stored) -> L::F;

    /// From this many queries on, converting a tile's keys and values to f32 first is faster.
    const MANY: usize;
}

impl LoadLanes for f32 {
    #[inline(always)]
    unsafe fn lanes<L: Simd>(p: *const f32) -> L::F {
        // SAFETY: the caller's promise.
        unsafe { L::load(p) }
    }

    const MANY: usize = usize::MAX;
}

impl LoadLanes for f16 {
    #[inline(always)]
    unsafe fn lanes<L: Simd>(p: *const f16) -> L::F {
        // SAFETY: the caller's promise.
        unsafe { L::load_f16(p) }
    }

    const MANY: usize = 8;
}

impl<const MANTISSA: u32> LoadLanes for Float8<MANTISSA> {
    #[inline(always)]
    unsafe fn lanes<L: Simd>(p: *const u8) -> L::F {
        // SAFETY: the caller's promise.
        unsafe { L::load_f8::<MANTISSA>(p) }
    }

    // In WebAssembly, no kernels of its own: each is downloaded.
    const MANY: usize = if cfg!(target_arch = "wasm32") { 1 } else { 8 };
}

impl<E: LoadLanes> FlashCodec for Float<E>
where
    Float<E>: Compiled,
{
    #[inline(always)]
    fn prepare(_: Isa, _: &mut [f32], _: usize) {}

    #[inline(always)]
    unsafe fn score<L: Simd, const N4: usize, const N2: usize, const N1: usize>(
        view: &KvView<'_, Self>,
        rows: &Span<'_>,
        q: &[*const f32; ROWS],
        start: usize,
        scores: &mut [[f32; TILE]; ROWS],
        floats: *mut f32,
    ) {
        let d = view.head_dim;
        let blocks = rows.most().div_ceil(BLOCK_POSITIONS);
        // SAFETY: the caller's promise; a tile is within a chunk.
        unsafe {
            let keys = view.block(view.head, start).0.cast::<E::Stored>();
            if E::MANY > 1 && rows.count - rows.first < E::MANY {
                let next = Some(next_tile::<E>(view, start).0);
                let keys = Keys { p: keys, stride: d * LANES, blocks, at: 0, n: d, next };
                return score::<L, E, N4, N2, N1>(rows, q, keys, scores);
            }
            for at in (0..d).step_by(STRIP) {
                let n = STRIP.min(d - at);
                for b in 0..blocks {
                    for i in 0..n {
                        let key = E::lanes::<L>(keys.add((b * d + at + i) * LANES));
                        L::store(floats.add((b * STRIP + i) * LANES), key);
                    }
                }
                let p = floats.cast_const();
                let keys = Keys { p, stride: STRIP * LANES, blocks, at, n, next: None };
                score::<L, f32, N4, N2, N1>(rows, q, keys, scores);
            }
        }
    }

    #[inline(always)]
    unsafe fn sum<L: Simd, const N4: usize, const N2: usize, const N1: usize>(
        view: &KvView<'_, Self>,
        rows: &Span<'_>,
        weights: &[[f32; TILE]; ROWS],
        decay: &[f32; ROWS],
        start: usize,
        out: &[*mut f32; ROWS],
        floats: *mut f32,
    ) {
        let d = view.head_dim;
        let whole = d / LANES * LANES;
        // SAFETY: the caller's promise; a tile is within a chunk.
        unsafe {
            let values = view.block(view.head, start).1.cast::<E::Stored>();
            if E::MANY > 1 && rows.count - rows.first < E::MANY {
                let next = Some(next_tile::<E>(view, start).1);
                let values = Values { p: values, stride: d, at: 0, n: whole, next };
                sum::<L, E, N4, N2, N1>(rows, values, weights, decay, out);
            } else {
                for at in (0..whole).step_by(STRIP) {
                    let n = STRIP.min(whole - at);
                    for t in 0..rows.most() {
                        for i in (0..n).step_by(LANES) {
                            let value = E::lanes::<L>(values.add(t * d + at + i));
                            L::store(floats.add(t * STRIP + i), value);
                        }
                    }
                    let p = floats.cast_const();
                    let values = Values { p, stride: STRIP, at, n, next: None };
                    sum::<L, f32, N4, N2, N1>(rows, values, weights, decay, out);
                }
            }
            for at in whole..d {
                for r in rows.first..rows.count {
                    let out = &mut *out[r].add(at);
                    *out *= decay[r];
                    for t in 0..rows.visible[r] {
                        *out += weights[r][t] * E::load(*values.add(t * d + at));
                    }
                }
            }
        }
    }
}

/// Where the keys and values of the tile after the one at `start` begin, to prefetch them: possibly those of
/// the next head, or past the end of the last head.
#[inline(always)]
fn next_tile<E: LoadLanes>(view: &KvView<'_, Float<E>>, start: usize) -> (*const u8, *const u8) {
    let next = start + TILE;
    let (head, position) = if next < view.len { (view.head, next) } else { (view.head + 1, 0) };
    view.block(head, position)
}

/// Bytes per vector.
const fn bytes<E: Element>() -> usize {
    LANES * size_of::<E::Stored>()
}

/// Elements `at..at + n` of the keys of a tile.
#[derive(Clone, Copy)]
struct Keys<E: Element> {
    /// `(blocks, stride)`, starting with element `at` of the first block's keys.
    p: *const E::Stored,
    stride: usize,
    blocks: usize,
    at: usize,
    n: usize,
    /// The same place in the next tile, to prefetch.
    next: Option<*const u8>,
}

/// Adds the products of queries and keys to `scores`.
#[inline(always)]
unsafe fn score<L: Simd, E: LoadLanes, const N4: usize, const N2: usize, const N1: usize>(
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
            let keys = Keys { next: keys.next.filter(|_| r == rows.first), ..keys };
            let (q, scores) = (&q[r..], scores[r..].as_flattened_mut().as_mut_ptr());
            r += if N4 > 0 && left >= 4 {
                L::apart(ScoreBlocks::<L, E, 4, N4> { q, keys, scores, simd: PhantomData })
            } else if left >= 2 {
                L::apart(ScoreBlocks::<L, E, 2, N2> { q, keys, scores, simd: PhantomData })
            } else {
                L::apart(ScoreBlocks::<L, E, 1, N1> { q, keys, scores, simd: PhantomData })
            };
        }
    }
}

/// Scores `R` queries against all blocks of a tile; returns `R`.
struct ScoreBlocks<'a, L, E: Element, const R: usize, const N: usize> {
    q: &'a [*const f32],
    keys: Keys<E>,
    scores: *mut f32,
    simd: PhantomData<L>,
}

impl<L: Simd, E: LoadLanes, const R: usize, const N: usize> SimdOp for ScoreBlocks<'_, L, E, R, N> {
    type Output = usize;

    #[inline(always)]
    fn run(self) -> usize {
        let ScoreBlocks { q, keys, scores, .. } = self;
        // Not read from memory again in each step.
        let q: [*const f32; R] = core::array::from_fn(|r| q[r].wrapping_add(keys.at));
        let mut b = 0;
        // SAFETY: made in [`score`] only, by whose caller's promise a tile of scores has room for all blocks.
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
}

#[inline(always)]
unsafe fn score_tile<L: Simd, E: LoadLanes, const R: usize, const N: usize>(
    q: [*const f32; R],
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
        // Steps per cache line.
        let line = const { if size_of::<E::Stored>() < 4 { 4 / size_of::<E::Stored>() } else { 1 } };
        let mut i = 0;
        // A loop of its own, as a condition in each step takes time.
        if let (true, Some(next)) = (L::PREFETCHES, keys.next) {
            let next = next.wrapping_add(b * keys.stride * size_of::<E::Stored>());
            while i + line <= keys.n {
                prefetch::<L>(next.wrapping_add(i * N * bytes::<E>()), N * line * bytes::<E>());
                for i in i..i + line {
                    score_step::<L, E, R, N>(q, keys, keys_at, i, &mut sums);
                }
                i += line;
            }
        }
        while i + line <= keys.n {
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
unsafe fn score_step<L: Simd, E: LoadLanes, const R: usize, const N: usize>(
    q: [*const f32; R],
    keys: Keys<E>,
    keys_at: *const E::Stored,
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
            let x = L::splat(*q[r].add(i));
            for n in 0..N {
                sums[r][n] = L::add(sums[r][n], L::mul(x, k[n]));
            }
        }
    }
}

/// Elements `at..at + n` of the values of a tile; `n` is a multiple of [`LANES`].
#[derive(Clone, Copy)]
struct Values<E: Element> {
    /// `(positions, stride)`, starting with element `at` of the first position.
    p: *const E::Stored,
    stride: usize,
    at: usize,
    n: usize,
    /// The same place in the next tile, to prefetch.
    next: Option<*const u8>,
}

/// `out = out * decay`, then adds the values times `weights`.
#[inline(always)]
unsafe fn sum<L: Simd, E: LoadLanes, const N4: usize, const N2: usize, const N1: usize>(
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
            let values = Values { next: values.next.filter(|_| r == rows.first), ..values };
            // Positions that the first query sees are seen by the others.
            let n = rows.visible[r];
            let (w, d, o) = (&weights[r..], &decay[r..], &out[r..]);
            let shared = if N4 > 0 && left >= 4 {
                L::apart(SumColumns::<L, E, 4, N4>::new(values, w, 0..n, d, o))
            } else if left >= 2 {
                L::apart(SumColumns::<L, E, 2, N2>::new(values, w, 0..n, d, o))
            } else {
                L::apart(SumColumns::<L, E, 1, N1>::new(values, w, 0..n, d, o))
            };
            for r in r + 1..r + shared {
                if rows.visible[r] > n {
                    let rest = n..rows.visible[r];
                    L::apart(SumColumns::<L, E, 1, N1>::new(values, &weights[r..], rest, &[1.0], &out[r..]));
                }
            }
            r += shared;
        }
    }
}

/// Sums values for `R` queries over positions `range`; returns `R`.
struct SumColumns<'a, L, E: Element, const R: usize, const N: usize> {
    values: Values<E>,
    weights: &'a [[f32; TILE]],
    range: Range<usize>,
    decay: &'a [f32],
    out: &'a [*mut f32],
    simd: PhantomData<L>,
}

impl<'a, L, E: Element, const R: usize, const N: usize> SumColumns<'a, L, E, R, N> {
    /// Safety: as for [`sum`], whose rows these are.
    #[inline(always)]
    unsafe fn new(
        values: Values<E>,
        weights: &'a [[f32; TILE]],
        range: Range<usize>,
        decay: &'a [f32],
        out: &'a [*mut f32],
    ) -> Self {
        SumColumns { values, weights, range, decay, out, simd: PhantomData }
    }
}

impl<L: Simd, E: LoadLanes, const R: usize, const N: usize> SimdOp for SumColumns<'_, L, E, R, N> {
    type Output = usize;

    #[inline(always)]
    fn run(self) -> usize {
        let SumColumns { values, weights, range, decay, out, .. } = self;
        let mut c = 0;
        // SAFETY: the promise of `new`'s caller.
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
}

#[inline(always)]
unsafe fn sum_tile<L: Simd, E: LoadLanes, const R: usize, const N: usize>(
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
        let next = values.next.map(|next| next.wrapping_add(c * size_of::<E::Stored>()));
        for t in range {
            if let Some(next) = next {
                prefetch::<L>(
                    next.wrapping_add(t * values.stride * size_of::<E::Stored>()),
                    N * bytes::<E>(),
                );
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
