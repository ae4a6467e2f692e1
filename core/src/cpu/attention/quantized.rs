//! Attention over keys and values stored as small integers.
//!
//! Queries and weights are converted to 16-bit integers, so that products are exact in 32 bits and the order
//! of additions is free: `score = sum over groups of f32(integer) * scale`, group by group, and
//! `out += f32(integer) * step` once per tile, where the scales of the values are part of the weights.
#![allow(unsafe_code)]

use half::f16;

use super::flash::{Compiled, FlashCodec, ROWS, Span, TILE, prefetch};
#[cfg(target_arch = "x86_64")]
use super::nibbles;
use super::pairs::{LEAST, LoadPairs};
use crate::cache::{BLOCK_POSITIONS, KvCodec, KvView, Quantized, SCALE_GROUP, largest, round};
use crate::cpu::isa::Isa;
use crate::cpu::simd::{LANES, Simd};

/// Whether several queries are computed at once.
const UNROLLED: bool = cfg!(feature = "unrolled");

impl<P: LoadPairs> FlashCodec for Quantized<P>
where
    Quantized<P>: Compiled,
{
    /// Stores pairs of 16-bit integers in the first half of a row, followed by their step as a float; see `nibbles.rs` for
    /// what those products take instead.
    #[inline(always)]
    fn prepare(isa: Isa, q: &mut [f32], head_dim: usize) {
        for row in q.chunks_exact_mut(head_dim) {
            let most = largest(row);
            let (step, inverse) = match most {
                most if most < LEAST => (0.0, 0.0),
                most if most.is_finite() => (most / P::MOST, P::MOST / most),
                _ => (f32::NAN, 0.0),
            };
            let integer = |x: f32| round(x * inverse);
            for p in 0..head_dim / 2 {
                let pair = integer(row[2 * p]) & 0xffff | integer(row[2 * p + 1]) << 16;
                bytemuck::cast_slice_mut::<f32, i32>(row)[p] = pair;
            }
            row[head_dim / 2] = step;
        }
        let _ = isa;
        #[cfg(target_arch = "x86_64")]
        if P::NIBBLES {
            nibbles::prepare(isa, q, head_dim);
        }
    }

    #[inline(always)]
    unsafe fn score<L: Simd, const N4: usize, const N2: usize, const N1: usize>(
        view: &KvView<'_, Self>,
        rows: &Span<'_>,
        q: &[*const f32; ROWS],
        start: usize,
        scores: &mut [[f32; TILE]; ROWS],
        _: *mut f32,
    ) {
        let (d, bytes) = (view.head_dim, Self::key_block(view.head_dim));
        let blocks = rows.most().div_ceil(BLOCK_POSITIONS);
        // SAFETY: the caller's promise.
        unsafe {
            let keys = view.block(view.head, start).0;
            let next = later_tile(view, start).map(|(keys, _)| keys);
            #[cfg(target_arch = "x86_64")]
            if P::NIBBLES && L::AVX512 && nibbles::fits(d) {
                let keys = nibbles::Tile { p: keys, block: bytes, blocks, head_dim: d, next };
                let rows = rows.first..rows.count;
                return nibbles::score(keys, &q[rows.clone()], &mut scores[rows]);
            }
            for b in 0..blocks {
                let keys = keys.add(b * bytes);
                let next = next.map(|next| next.wrapping_add(b * bytes));
                let mut r = rows.first;
                while r < rows.count {
                    let left = rows.count - r;
                    let next = next.filter(|_| r == rows.first);
                    let (q, scores) = (&q[r..], scores[r..].as_flattened_mut()[b * LANES..].as_mut_ptr());
                    r += if !UNROLLED {
                        score_block::<P, L, 1, 1>(keys, d, next, q, scores)
                    } else if left >= 4 {
                        score_block::<P, L, 4, 1>(keys, d, next, q, scores)
                    } else if left >= 2 {
                        score_block::<P, L, 2, 2>(keys, d, next, q, scores)
                    } else {
                        score_block::<P, L, 1, 4>(keys, d, next, q, scores)
                    };
                }
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
        scratch: *mut f32,
    ) {
        let (d, bytes) = (view.head_dim, Self::value_block(view.head_dim));
        let blocks = rows.most().div_ceil(BLOCK_POSITIONS);
        let next = later_tile(view, start).map(|(_, values)| values);
        let _ = scratch;
        #[cfg(target_arch = "x86_64")]
        if P::NIBBLES && L::AVX512 && nibbles::fits(d) {
            let (visible, rows) = (rows.visible, rows.first..rows.count);
            let (weights, visible, decay, out) =
                (&weights[rows.clone()], &visible[rows.clone()], &decay[rows.clone()], &out[rows]);
            // SAFETY: the caller's promise.
            return unsafe {
                let values = view.block(view.head, start).1;
                let values = nibbles::Tile { p: values, block: bytes, blocks, head_dim: d, next };
                nibbles::sum(values, weights, visible, decay, out, scratch);
            };
        }
        let mut integers = [[0; TILE]; ROWS];
        let mut steps = [0.0; ROWS];
        let mut scales = [0.0; TILE];
        let group = P::value_group(d).max(1);
        // SAFETY: the caller's promise.
        unsafe {
            let values = view.block(view.head, start).1;
            for g in 0..Self::value_scales(d) {
                for b in 0..blocks {
                    let at = b * bytes + Self::codes_len(d) + 2 * g * BLOCK_POSITIONS;
                    if let Some(next) = next {
                        L::prefetch(next.wrapping_add(at));
                    }
                    let scale = L::load_f16(values.add(at).cast());
                    L::store(scales.as_mut_ptr().add(b * BLOCK_POSITIONS), scale);
                }
                for r in rows.first..rows.count {
                    steps[r] = to_integers::<P, L>(&weights[r], &scales, rows.visible[r], &mut integers[r]);
                }
                let columns = (g * group, d.min((g + 1) * group));
                let values = Values { p: values, block: bytes, blocks, head_dim: d, columns, next };
                let mut r = rows.first;
                while r < rows.count {
                    let left = rows.count - r;
                    let values = Values { next: next.filter(|_| r == rows.first), ..values };
                    let (w, s, decay, out) = (&integers[r..], &steps[r..], &decay[r..], &out[r..]);
                    r += if !UNROLLED {
                        sum_columns::<P, L, 1, 1>(&values, w, s, decay, out)
                    } else if N4 > 0 && left >= 4 {
                        sum_columns::<P, L, 4, N4>(&values, w, s, decay, out)
                    } else if left >= 2 {
                        sum_columns::<P, L, 2, N2>(&values, w, s, decay, out)
                    } else {
                        sum_columns::<P, L, 1, N1>(&values, w, s, decay, out)
                    };
                }
            }
        }
    }
}

/// Where the keys and values of the second tile after the one at `start` begin, to prefetch them: a closer tile would arrive
/// too late. After the last tile of a head come those of the next head, if there is one.
#[inline(always)]
fn later_tile<C: KvCodec>(view: &KvView<'_, C>, start: usize) -> Option<(*const u8, *const u8)> {
    let next = start + 2 * TILE;
    let (head, next) = match next.checked_sub(view.len.next_multiple_of(TILE)) {
        None => (view.head, next),
        Some(next) => (view.head + 1, next),
    };
    (next < view.len && view.placement.holds(head, next + 1)).then(|| view.block(head, next))
}

/// Scores `R` queries against the keys of a block, with `S` independent accumulators each; returns `R`.
#[inline(always)]
unsafe fn score_block<P: LoadPairs, L: Simd, const R: usize, const S: usize>(
    keys: *const u8,
    d: usize,
    next: Option<*const u8>,
    q: &[*const f32],
    scores: *mut f32,
) -> usize {
    let scales = keys.wrapping_add(Quantized::<P>::codes_len(d)).cast::<f16>();
    // SAFETY: the caller's promise; a query's step comes after its pairs.
    unsafe {
        let mut sums = [L::splat(0.0); R];
        for (g, from) in (0..d / 2).step_by(SCALE_GROUP / 2).enumerate() {
            let to = (d / 2).min(from + SCALE_GROUP / 2);
            if let Some(next) = next {
                // A part of the block, scales included.
                let bytes = (SCALE_GROUP / 2 * P::PAIR + 2) * LANES;
                prefetch::<L>(next.wrapping_add(g * bytes), bytes);
            }
            let mut n = [[L::zero(); S]; R];
            let mut p = from;
            while p + S <= to {
                for s in 0..S {
                    let pairs = P::pairs::<L>(keys.add((p + s) * P::PAIR * LANES));
                    for r in 0..R {
                        n[r][s] = L::dot_at(n[r][s], pairs, q[r].cast::<i32>().add(p + s));
                    }
                }
                p += S;
            }
            while S > 1 && p < to {
                let pairs = P::pairs::<L>(keys.add(p * P::PAIR * LANES));
                for r in 0..R {
                    n[r][0] = L::dot(n[r][0], pairs, *q[r].cast::<i32>().add(p));
                }
                p += 1;
            }
            let scale = L::load_f16(scales.add(g * LANES));
            for r in 0..R {
                let mut all = n[r][0];
                for s in 1..S {
                    all = L::add_integers(all, n[r][s]);
                }
                sums[r] = L::add(sums[r], L::mul(L::to_float(all), scale));
            }
        }
        for r in 0..R {
            L::store(scores.add(r * TILE), L::mul(sums[r], L::splat(*q[r].add(d / 2))));
        }
    }
    R
}

/// Writes `weights * scales` of the first `n` positions as integers, zero for the others; returns their step.
///
/// Safety: as for [`Simd`].
#[inline(always)]
unsafe fn to_integers<P: LoadPairs, L: Simd>(
    weights: &[f32; TILE],
    scales: &[f32; TILE],
    n: usize,
    out: &mut [i16; TILE],
) -> f32 {
    let mut scaled = [0.0; TILE];
    for at in (0..TILE).step_by(LANES) {
        // SAFETY: the caller's promise; all have `TILE` floats.
        unsafe {
            let product = L::mul(L::load(weights.as_ptr().add(at)), L::load(scales.as_ptr().add(at)));
            L::store(scaled.as_mut_ptr().add(at), product);
        }
    }
    // The scales of other positions may be anything.
    if n < TILE {
        scaled[n..].fill(0.0);
    }
    // SAFETY: the caller's promise.
    let most = unsafe { L::largest(scaled.as_ptr(), TILE) };
    if most < LEAST {
        *out = [0; TILE];
        return 0.0;
    }
    let inverse = P::MOST / most;
    for (out, scaled) in out.iter_mut().zip(scaled) {
        *out = round(scaled * inverse) as i16;
    }
    most / P::MOST
}

/// The values of a tile.
#[derive(Clone, Copy)]
struct Values {
    p: *const u8,
    /// Bytes of a block.
    block: usize,
    blocks: usize,
    head_dim: usize,
    /// Start and end of the columns that share a scale.
    columns: (usize, usize),
    /// The same place in a later tile, to prefetch.
    next: Option<*const u8>,
}

/// Sums values for `R` queries; returns `R`.
#[inline(always)]
unsafe fn sum_columns<P: LoadPairs, L: Simd, const R: usize, const N: usize>(
    values: &Values,
    weights: &[[i16; TILE]],
    steps: &[f32],
    decay: &[f32],
    out: &[*mut f32],
) -> usize {
    let d = values.head_dim;
    let (mut c, end) = values.columns;
    // SAFETY: the caller's promise.
    unsafe {
        while c + N * LANES <= end {
            sum_tile::<P, L, R, N>(values, c, weights, steps, decay, out);
            c += N * LANES;
        }
        // Columns that share a scale may be fewer than `N` vectors.
        while N > 2 && c + 2 * LANES <= end {
            sum_tile::<P, L, R, 2>(values, c, weights, steps, decay, out);
            c += 2 * LANES;
        }
        while N > 1 && c + LANES <= end {
            sum_tile::<P, L, R, 1>(values, c, weights, steps, decay, out);
            c += LANES;
        }
        for c in c..end {
            for r in 0..R {
                let mut n = 0;
                for t in 0..values.blocks * BLOCK_POSITIONS {
                    let (block, t16) = (t / BLOCK_POSITIONS * values.block, t % BLOCK_POSITIONS);
                    let pair = values.p.add(block + (t16 / 2 * d + c) * P::PAIR);
                    let code = P::get(core::slice::from_raw_parts(pair, P::PAIR), t % 2);
                    n += i32::from(code) * i32::from(weights[r][t]);
                }
                let out = &mut *out[r].add(c);
                *out = *out * decay[r] + n as f32 * steps[r];
            }
        }
    }
    R
}

#[inline(always)]
unsafe fn sum_tile<P: LoadPairs, L: Simd, const R: usize, const N: usize>(
    values: &Values,
    c: usize,
    weights: &[[i16; TILE]],
    steps: &[f32],
    decay: &[f32],
    out: &[*mut f32],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let weights = weights[..R].as_flattened().as_ptr();
        let mut n = [[L::zero(); N]; R];
        for b in 0..values.blocks {
            let block = values.p.add(b * values.block);
            let next = values.next.map(|next| next.wrapping_add(b * values.block));
            for t in 0..BLOCK_POSITIONS / 2 {
                let at = P::PAIR * (t * values.head_dim + c);
                if let Some(next) = next {
                    prefetch::<L>(next.wrapping_add(at), N * P::PAIR * LANES);
                }
                let at = block.add(at);
                let mut pairs = [P::pairs::<L>(at); N];
                for n in 1..N {
                    pairs[n] = P::pairs::<L>(at.add(n * P::PAIR * LANES));
                }
                for r in 0..R {
                    let weight =
                        weights.add(r * TILE + b * BLOCK_POSITIONS + 2 * t).cast::<i32>().read_unaligned();
                    for i in 0..N {
                        n[r][i] = L::dot(n[r][i], pairs[i], weight);
                    }
                }
            }
        }
        for r in 0..R {
            for i in 0..N {
                let out = out[r].add(c + i * LANES);
                let old = L::mul(L::load(out), L::splat(decay[r]));
                L::store(out, L::add(old, L::mul(L::to_float(n[r][i]), L::splat(steps[r]))));
            }
        }
    }
}
