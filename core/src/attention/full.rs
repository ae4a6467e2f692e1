//! Causal attention over everything cached, with an online softmax.
#![forbid(unsafe_code)]

use crate::cache::KvElement;
use crate::kernel::Vectorize;
use crate::op::exp::exp;
use crate::op::{LANES, fold};

/// Positions scored before their values are added: scores stay on the stack, keys and values of a tile in
/// the first cache while every query head of the group looks at them.
const TILE: usize = 64;

/// Query heads that share one pass over the cache.
const HEADS: usize = 16;

/// `out = softmax(q . k^T / sqrt(head_dim)) v` for the query heads of one key-value head.
///
/// The softmax is computed in one pass over the cache (Milakov & Gimelshein 2018, as in FlashAttention):
/// per head a running maximum `m`, a running sum of `e^(score - m)`, and `out` rescaled whenever `m`
/// grows. With nothing cached the result is zero.
#[derive(Debug)]
pub struct Attend<'a, E> {
    /// `(heads, head_dim)`
    pub q: &'a [f32],
    /// `(positions, head_dim)`
    pub keys: &'a [E],
    /// `(positions, head_dim)`
    pub values: &'a [E],
    /// Numbers a head.
    pub head_dim: usize,
    /// `(heads, head_dim)`
    pub out: &'a mut [f32],
}

impl<E: KvElement> Vectorize for Attend<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let d = self.head_dim;
        for (q, out) in self.q.chunks(HEADS * d).zip(self.out.chunks_mut(HEADS * d)) {
            let mut softmax = [Softmax { max: f32::NEG_INFINITY, sum: 0.0 }; HEADS];
            out.fill(0.0);
            for (keys, values) in self.keys.chunks(TILE * d).zip(self.values.chunks(TILE * d)) {
                for (i, (q, out)) in q.chunks_exact(d).zip(out.chunks_exact_mut(d)).enumerate() {
                    softmax[i].add_tile(q, keys, values, out);
                }
            }
            for (softmax, out) in softmax.iter().zip(out.chunks_exact_mut(d)) {
                let norm = if softmax.sum > 0.0 { 1.0 / softmax.sum } else { 1.0 };
                for o in out {
                    *o *= norm;
                }
            }
        }
    }
}

/// What one head has seen so far.
#[derive(Clone, Copy)]
struct Softmax {
    max: f32,
    sum: f32,
}

impl Softmax {
    /// Adds up to [`TILE`] positions to `out`, which holds the sum so far times `e^-max`.
    #[inline(always)]
    fn add_tile<E: KvElement>(&mut self, q: &[f32], keys: &[E], values: &[E], out: &mut [f32]) {
        let d = q.len();
        let scale = 1.0 / libm::sqrtf(d as f32);
        let mut weights = [f32::NEG_INFINITY; TILE];
        let mut max = self.max;
        for (weight, key) in weights.iter_mut().zip(keys.chunks_exact(d)) {
            *weight = score(q, key) * scale;
            max = if *weight > max { *weight } else { max };
        }
        // Only when every score so far is -inf or NaN is there no maximum to subtract.
        let shift = if max == f32::NEG_INFINITY { 0.0 } else { max };
        let mut lanes = [0.0f32; LANES];
        for weights in weights.chunks_exact_mut(LANES) {
            for i in 0..LANES {
                weights[i] = exp(weights[i] - shift);
                lanes[i] += weights[i];
            }
        }
        let decay = exp(self.max - shift);
        self.sum = self.sum * decay + fold(lanes);
        self.max = max;
        add_values(&weights[..keys.len() / d], values, decay, out);
    }
}

/// `q . key`, both `(head_dim)`.
#[inline(always)]
fn score<E: KvElement>(q: &[f32], key: &[E]) -> f32 {
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

/// `out = out * decay + sum_t weights[t] values[t]`; `weights` `(n)`, `values` `(n, head_dim)`. Columns go
/// in strips that stay in registers over all positions.
#[inline(always)]
fn add_values<E: KvElement>(weights: &[f32], values: &[E], decay: f32, out: &mut [f32]) {
    const STRIP: usize = 64;
    let d = out.len();
    let mut strips = out.chunks_exact_mut(STRIP);
    let mut at = 0;
    for strip in &mut strips {
        let mut sums = [0.0f32; STRIP];
        for (sum, o) in sums.iter_mut().zip(&*strip) {
            *sum = o * decay;
        }
        for (weight, value) in weights.iter().zip(values.chunks_exact(d)) {
            for (sum, v) in sums.iter_mut().zip(&value[at..at + STRIP]) {
                *sum += weight * v.load();
            }
        }
        strip.copy_from_slice(&sums);
        at += STRIP;
    }
    let rest = strips.into_remainder();
    for o in rest.iter_mut() {
        *o *= decay;
    }
    for (weight, value) in weights.iter().zip(values.chunks_exact(d)) {
        for (o, v) in rest.iter_mut().zip(&value[at..]) {
            *o += weight * v.load();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Isa, vectorize};
    use alloc::vec::Vec;
    use half::f16;

    /// On every instruction set of this machine, which must agree to the bit.
    fn attend<E: KvElement>(q: &[f32], keys: &[E], values: &[E], head_dim: usize, out: &mut [f32]) {
        Attend { q, keys, values, head_dim, out }.run();
        for isa in Isa::available() {
            let mut again = alloc::vec![f32::NAN; out.len()];
            vectorize(isa, Attend { q, keys, values, head_dim, out: &mut again });
            assert_eq!(out, again, "{isa:?}");
        }
    }

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
            attend(&q, &k, &v, d, &mut out);
            for i in 0..d {
                assert!((f64::from(out[i]) - want[i]).abs() < 2e-6, "{d} {len} {i}");
            }
            let half = |x: &[f32]| x.iter().map(|&x| f16::store(x)).collect::<Vec<_>>();
            let exact = |x: &[f16]| x.iter().map(|x| x.load()).collect::<Vec<_>>();
            let (k, v) = (half(&k), half(&v));
            let want = naive(&q, &exact(&k), &exact(&v));
            attend(&q, &k, &v, d, &mut out);
            for i in 0..d {
                assert!((f64::from(out[i]) - want[i]).abs() < 2e-6, "f16 {d} {len} {i}");
            }
        }
    }

    #[test]
    fn every_head_of_a_group_sees_the_same_cache() {
        let (d, heads, len) = (32, 19, 70);
        let (q, k, v) = (noise(heads * d, 1), noise(d * len, 2), noise(d * len, 3));
        let mut out = alloc::vec![0.0; heads * d];
        attend(&q, &k, &v, d, &mut out);
        for (q, out) in q.chunks_exact(d).zip(out.chunks_exact(d)) {
            let want = naive(q, &k, &v);
            assert!(out.iter().zip(want).all(|(a, b)| (f64::from(*a) - b).abs() < 2e-6));
        }
    }

    #[test]
    fn rising_scores_rescale_what_came_before() {
        let d = 16;
        let keys: Vec<f32> = (0..200).flat_map(|i| core::iter::repeat_n(i as f32 * 0.5, d)).collect();
        let values = noise(200 * d, 9);
        let q = alloc::vec![1.0; d];
        let mut out = alloc::vec![0.0; d];
        attend(&q, &keys, &values, d, &mut out);
        let want = naive(&q, &keys, &values);
        for i in 0..d {
            assert!((f64::from(out[i]) - want[i]).abs() < 1e-5);
        }
    }

    #[test]
    fn nothing_cached_gives_zero() {
        let mut out = [1.0; 4];
        attend::<f32>(&[1.0; 4], &[], &[], 4, &mut out);
        assert_eq!(out, [0.0; 4]);
    }
}
