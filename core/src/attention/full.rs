//! Causal attention over everything cached, with an online softmax.
#![forbid(unsafe_code)]

use crate::cache::KvElement;
use crate::op::exp::exp;
use crate::op::{LANES, fold};

/// Positions scored before their values are added: keeps the scores on the stack.
const TILE: usize = 64;

/// `out = softmax(q . k^T / sqrt(head_dim)) v` for one query head over `len` cached positions.
///
/// `q`, `out`: `(head_dim)`; `keys`, `values`: `(len, head_dim)`. The softmax is computed in one pass over
/// the cache (Milakov & Gimelshein 2018, as in FlashAttention): a running maximum `m`, a running sum
/// `s` of `e^(score - m)`, and `out` rescaled whenever `m` grows. With `len == 0` the result is zero.
#[inline(always)]
pub fn attend<E: KvElement>(q: &[f32], keys: &[E], values: &[E], out: &mut [f32]) {
    let d = q.len();
    let scale = 1.0 / libm::sqrtf(d as f32);
    let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0f32);
    out.fill(0.0);
    for (keys, values) in keys.chunks(TILE * d).zip(values.chunks(TILE * d)) {
        let mut scores = [0.0f32; TILE];
        let mut tile_max = max;
        for (score, key) in scores.iter_mut().zip(keys.chunks_exact(d)) {
            *score = score_of(q, key) * scale;
            tile_max = if *score > tile_max { *score } else { tile_max };
        }
        // Only when every score so far is -inf or NaN is there no maximum to subtract.
        let shift = if tile_max == f32::NEG_INFINITY { 0.0 } else { tile_max };
        let decay = exp(max - shift);
        if decay != 1.0 {
            sum *= decay;
            for o in out.iter_mut() {
                *o *= decay;
            }
        }
        max = tile_max;
        for (score, value) in scores.iter().zip(values.chunks_exact(d)) {
            let p = exp(score - shift);
            sum += p;
            for (o, v) in out.iter_mut().zip(value) {
                *o += p * v.load();
            }
        }
    }
    if sum > 0.0 {
        let norm = 1.0 / sum;
        for o in out.iter_mut() {
            *o *= norm;
        }
    }
}

#[inline(always)]
fn score_of<E: KvElement>(q: &[f32], key: &[E]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (q, key) = (q.chunks_exact(LANES), key.chunks_exact(LANES));
    let tail = q.remainder().iter().zip(key.remainder()).fold(0.0, |s, (x, y)| s + x * y.load());
    for (x, y) in q.zip(key) {
        for i in 0..LANES {
            lanes[i] += x[i] * y[i].load();
        }
    }
    fold(lanes) + tail
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use half::f16;

    fn noise(n: usize, seed: u32) -> Vec<f32> {
        let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
        (0..n)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 22) as f32 - 2.0
            })
            .collect()
    }

    fn naive(q: &[f32], keys: &[f32], values: &[f32]) -> Vec<f64> {
        let d = q.len();
        let dot = |k: &[f32]| q.iter().zip(k).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
        let scores: Vec<f64> = keys.chunks_exact(d).map(|k| dot(k) / libm::sqrt(d as f64)).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| libm::exp(s - max)).collect();
        let sum: f64 = weights.iter().sum();
        (0..d)
            .map(|i| {
                weights.iter().zip(values.chunks_exact(d)).map(|(w, v)| w * f64::from(v[i])).sum::<f64>()
                    / sum
            })
            .collect()
    }

    #[test]
    fn agrees_with_naive_f64() {
        for (d, len) in [(64, 1), (128, 63), (64, 64), (20, 65), (128, 1000)] {
            let (q, k, v) = (noise(d, 1), noise(d * len, 2), noise(d * len, 3));
            let want = naive(&q, &k, &v);
            let mut out = alloc::vec![f32::NAN; d];
            attend(&q, &k, &v, &mut out);
            for i in 0..d {
                assert!((f64::from(out[i]) - want[i]).abs() < 2e-6, "{d} {len} {i}");
            }
            let half = |x: &[f32]| x.iter().map(|&x| f16::store(x)).collect::<Vec<_>>();
            let exact = |x: &[f16]| x.iter().map(|x| x.load()).collect::<Vec<_>>();
            let (k, v) = (half(&k), half(&v));
            let want = naive(&q, &exact(&k), &exact(&v));
            attend(&q, &k, &v, &mut out);
            for i in 0..d {
                assert!((f64::from(out[i]) - want[i]).abs() < 2e-6, "f16 {d} {len} {i}");
            }
        }
    }

    #[test]
    fn rising_scores_rescale_what_came_before() {
        let d = 16;
        let keys: Vec<f32> = (0..200).flat_map(|i| core::iter::repeat_n(i as f32 * 0.5, d)).collect();
        let values = noise(200 * d, 9);
        let q = alloc::vec![1.0; d];
        let mut out = alloc::vec![0.0; d];
        attend(&q, &keys, &values, &mut out);
        let want = naive(&q, &keys, &values);
        for i in 0..d {
            assert!((f64::from(out[i]) - want[i]).abs() < 1e-5);
        }
    }

    #[test]
    fn nothing_cached_gives_zero() {
        let mut out = [1.0; 4];
        attend::<f32>(&[1.0; 4], &[], &[], &mut out);
        assert_eq!(out, [0.0; 4]);
    }
}
