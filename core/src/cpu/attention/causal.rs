//! Causal attention over cached positions, spread over workers.
#![forbid(unsafe_code)]

use super::flash::{
    FlashCodec, Queries, SPLIT, flash_attention, flash_attention_split, merge_splits, part_len,
};
use crate::attention::AttentionPattern;
use crate::cache::{KvShape, KvStorage};
use crate::cpu::isa::Isa;
use crate::cpu::parallel::{for_each_chunk, for_each_tile};
use crate::pool::{Pool, Serial};

/// Query rows per job if many tokens are computed at once.
const ROWS: usize = 32;

/// Attention of one layer for tokens that are already in the cache.
pub(crate) struct CausalAttention<'a, 'b, C> {
    pub(crate) cache: &'a KvStorage<'b, C>,
    pub(crate) layer: usize,
    /// Position of the first token.
    pub(crate) start: usize,
    /// Query heads that share a key-value head.
    pub(crate) group: usize,
    /// The positions that each token sees.
    pub(crate) pattern: AttentionPattern,
    /// ALiBi's slope of each query head, `(query heads)`; empty without ALiBi.
    pub(crate) slopes: &'a [f32],
    /// `(tokens, query heads, head_dim)`, prepared by [`FlashCodec::prepare`].
    pub(crate) q: &'a [f32],
}

/// Floats of scratch memory that [`CausalAttention::run`] needs for sessions of this shape.
pub(crate) fn scratch_len(shape: &KvShape, query_heads: usize, batch: usize) -> usize {
    if shape.capacity <= SPLIT {
        return 0;
    }
    let splits = shape.capacity.div_ceil(SPLIT);
    let one = splits.saturating_mul(query_heads).saturating_mul(part_len(shape.head_dim));
    let many = batch.saturating_mul(query_heads).saturating_mul(shape.head_dim);
    if batch == 1 { one } else { one.max(many) }
}

impl<C: FlashCodec> CausalAttention<'_, '_, C> {
    /// `out = softmax(q . k^T / sqrt(head_dim) + slope (key - query)) v` over the positions that each token sees, shaped as `q`. The result does not depend on the pool, on
    /// the instruction set, or on how many tokens are computed at once. `scratch` has [`scratch_len`] floats.
    pub(crate) fn run(&self, isa: Isa, pool: &dyn Pool, out: &mut [f32], scratch: &mut [f32]) {
        let shape = self.cache.shape();
        let (d, heads) = (shape.head_dim, shape.kv_heads);
        let (width, columns) = (self.group * d, heads * self.group * d);
        let tokens = out.len() / columns;
        let seen = self.start + tokens;
        // Below this, waking another thread takes longer than the work.
        const FEW: usize = 1 << 16;
        let pool = if seen.saturating_mul(out.len()) < FEW { &Serial } else { pool };
        let queries = |token: usize, column: usize, tokens: usize| Queries {
            q: &self.q[token * columns + column..],
            stride: columns,
            tokens,
            heads: self.group,
            seen: self.start + token + 1,
            pattern: self.pattern,
            slopes: self.slopes.get(column / d..column / d + self.group).unwrap_or(&[]),
        };
        if tokens == 1 && seen > SPLIT {
            let (splits, len) = (seen.div_ceil(SPLIT), part_len(d));
            let scratch = &mut scratch[..splits * heads * self.group * len];
            for_each_chunk(pool, scratch, self.group * len, &|job, parts| {
                // The splits of a head follow one another, as the positions after a split are prefetched.
                let (head, split) = (job / splits, job % splits);
                let range = split * SPLIT..seen.min((split + 1) * SPLIT);
                let q = queries(0, head * width, 1);
                flash_attention_split(isa, self.cache.view(self.layer, head, seen), q, range, parts);
            });
            for (i, out) in out.chunks_exact_mut(d).enumerate() {
                let (head, query) = (i / self.group, i % self.group);
                let parts = scratch.chunks_exact(len).skip(head * splits * self.group + query);
                merge_splits(parts.step_by(self.group).take(splits), out);
            }
            return;
        }
        let scratch = if seen > SPLIT { &mut scratch[..out.len()] } else { &mut [] };
        let tile = (ROWS.div_ceil(self.group), width);
        for_each_tile(
            pool,
            [out, scratch],
            (tokens, columns),
            tile,
            &|token, column, [mut out, mut scratch]| {
                let q = queries(token, column, out.rows());
                let head = self.cache.view(self.layer, column / width, self.start + token + q.tokens);
                flash_attention(isa, head, q, &mut out, &mut scratch);
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{Arena, Planner};
    use crate::cache::{Codes, Element, Float, Float8, Quantized, SCALE_GROUP};
    use alloc::vec::Vec;
    use half::f16;

    /// Every instruction set of this machine, every pool and every number of tokens at once must agree to the
    /// bit. `q` and the result are `(tokens, group * kv_heads, d)`, `keys` and `values` `(len, kv_heads, d)`;
    /// the tokens are the last ones.
    fn attention<C: FlashCodec>(
        shape: (usize, usize, usize),
        pattern: AttentionPattern,
        q: &[f32],
        keys: &[f32],
        values: &[f32],
    ) -> Vec<f32> {
        biased::<C>(shape, pattern, &[], q, keys, values)
    }

    /// [`attention`] with a slope for each query head, if any.
    fn biased<C: FlashCodec>(
        (kv_heads, group, d): (usize, usize, usize),
        pattern: AttentionPattern,
        slopes: &[f32],
        q: &[f32],
        keys: &[f32],
        values: &[f32],
    ) -> Vec<f32> {
        let (columns, row) = (kv_heads * group * d, kv_heads * d);
        let (tokens, len) = (q.len() / columns, keys.len() / row);
        let shape = KvShape { layers: 2, kv_heads, capacity: len, head_dim: d };
        let mut plan = Planner::default();
        KvStorage::<C>::plan(shape, &mut plan);
        // The previous content of the memory must not matter.
        let mut memory = alloc::vec![0xff; plan.total().unwrap()];
        let mut cache = KvStorage::<C>::new(shape, &mut Arena::new(&mut memory)).unwrap();
        for position in 0..len {
            let row = position * row..(position + 1) * row;
            cache.write(1, position, &keys[row.clone()], &values[row]);
        }
        let run = |isa, pool: &dyn Pool, first: usize, n: usize| {
            let mut q = q[first * columns..(first + n) * columns].to_vec();
            C::prepare(isa, &mut q, d);
            let (start, q) = (len - tokens + first, &q[..]);
            let attention = CausalAttention { cache: &cache, layer: 1, start, group, pattern, slopes, q };
            let mut out = alloc::vec![f32::NAN; n * columns];
            let mut scratch = alloc::vec![f32::NAN; scratch_len(&shape, kv_heads * group, n)];
            attention.run(isa, pool, &mut out, &mut scratch);
            out
        };
        let want = run(Isa::SCALAR, &Serial, 0, tokens);
        for isa in Isa::available() {
            for pool in [&Serial as &dyn Pool, &Backwards] {
                assert_eq!(run(isa, pool, 0, tokens), want, "{isa:?}");
                for n in [1, 3, tokens.div_ceil(2)].into_iter().filter(|&n| n < tokens) {
                    let parts = (0..tokens).step_by(n).flat_map(|t| run(isa, pool, t, n.min(tokens - t)));
                    assert!(parts.eq(want.iter().copied()), "{isa:?} {n} at once");
                }
            }
        }
        want
    }

    /// Many workers, the last job first.
    struct Backwards;

    impl Pool for Backwards {
        fn workers(&self) -> usize {
            7
        }

        fn run(&self, jobs: usize, job: &(dyn Fn(usize) + Sync)) {
            (0..jobs).rev().for_each(job);
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

    const FULL: AttentionPattern = AttentionPattern::Full;

    /// Computes [`attention`] from the formula, over the positions for which `sees` holds.
    fn naive(
        shape: (usize, usize, usize),
        sees: &dyn Fn(usize, usize) -> bool,
        q: &[f32],
        keys: &[f32],
        values: &[f32],
    ) -> Vec<f64> {
        naive_biased(shape, sees, &[], q, keys, values)
    }

    /// [`biased`] from the formula.
    fn naive_biased(
        (kv_heads, group, d): (usize, usize, usize),
        sees: &dyn Fn(usize, usize) -> bool,
        slopes: &[f32],
        q: &[f32],
        keys: &[f32],
        values: &[f32],
    ) -> Vec<f64> {
        let heads = kv_heads * group;
        let (tokens, len) = (q.len() / heads / d, keys.len() / kv_heads / d);
        let mut out = Vec::new();
        for (i, q) in q.chunks_exact(d).enumerate() {
            let (token, head) = (i / heads, i % heads / group);
            let query = len - tokens + token;
            let slope = f64::from(slopes.get(i % heads).copied().unwrap_or(0.0));
            let bias =
                (0..=query).filter(|&key| sees(query, key)).map(|key| slope * (key as f64 - query as f64));
            let rows = |x: &[f32]| -> Vec<Vec<f64>> {
                let rows = x.chunks_exact(d).skip(head).step_by(kv_heads).take(query + 1).enumerate();
                let rows = rows.filter(|(key, _)| sees(query, *key));
                rows.map(|(_, row)| row.iter().map(|&x| f64::from(x)).collect()).collect()
            };
            let dot = |k: &Vec<f64>| q.iter().zip(k).map(|(&a, &b)| f64::from(a) * b).sum::<f64>();
            let scores: Vec<f64> =
                rows(keys).iter().zip(bias).map(|(k, bias)| dot(k) / libm::sqrt(d as f64) + bias).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| libm::exp(s - max)).collect();
            let sum: f64 = weights.iter().sum();
            let values = rows(values);
            out.extend((0..d).map(|i| weights.iter().zip(&values).map(|(w, v)| w * v[i]).sum::<f64>() / sum));
        }
        out
    }

    #[test]
    fn agrees_with_naive_f64() {
        // Heads and groups, elements per head, tokens, positions.
        for (shape, tokens, len) in [
            ((1, 1, 64), 1, 1),
            ((2, 2, 128), 1, 63),
            ((2, 1, 64), 2, 64),
            ((1, 3, 20), 5, 65),
            ((2, 4, 96), 66, 150),
            ((1, 2, 128), 40, SPLIT + 17),
            ((1, 37, 18), 3, 2 * SPLIT + 1),
            ((1, 5, 32), 2, 130),
            ((2, 1, 96), 3, 70),
            ((1, 3, 256), 1, 140),
            ((1, 2, 288), 2, 20),
        ] {
            let (kv_heads, group, d) = shape;
            let q = noise(tokens * kv_heads * group * d, 1);
            let (k, v) = (noise(kv_heads * d * len, 2), noise(kv_heads * d * len, 3));
            let close = |got: Vec<f32>, want: Vec<f64>, what| {
                for (i, (got, want)) in got.iter().zip(want).enumerate() {
                    assert!((f64::from(*got) - want).abs() < 2e-6, "{what} {shape:?} {len} {i}");
                }
            };
            close(
                attention::<Float<f32>>(shape, FULL, &q, &k, &v),
                naive(shape, &|_, _| true, &q, &k, &v),
                "f32",
            );
            let halves = |x: &[f32]| x.iter().map(|&x| f16::load(f16::store(x))).collect::<Vec<_>>();
            let want = naive(shape, &|_, _| true, &q, &halves(&k), &halves(&v));
            close(attention::<Float<f16>>(shape, FULL, &q, &k, &v), want, "f16");
            let e4m3 =
                |x: &[f32]| x.iter().map(|&x| Float8::<3>::load(Float8::<3>::store(x))).collect::<Vec<_>>();
            let want = naive(shape, &|_, _| true, &q, &e4m3(&k), &e4m3(&v));
            close(attention::<Float<Float8<3>>>(shape, FULL, &q, &k, &v), want, "fp8_e4m3");
            let e5m2 =
                |x: &[f32]| x.iter().map(|&x| Float8::<2>::load(Float8::<2>::store(x))).collect::<Vec<_>>();
            let want = naive(shape, &|_, _| true, &q, &e5m2(&k), &e5m2(&v));
            close(attention::<Float<Float8<2>>>(shape, FULL, &q, &k, &v), want, "fp8_e5m2");
        }
    }

    /// Masks written out position by position, as in the papers.
    #[test]
    fn patterns_agree_with_naive_f64() {
        type Sees = fn(usize, usize) -> bool;
        let cases: [(&str, Sees); 6] = [
            ("window:1", |i, j| i == j),
            ("window:100", |i, j| j + 100 > i),
            ("window:70:5", |i, j| j + 70 > i || j < 5),
            ("window:9:90", |i, j| j + 9 > i || j < 90),
            ("dilated:2:3", |i, j| i / 64 == j / 64 || i / 64 == j / 64 + 3),
            ("strided:2:3", |i, j| i / 64 <= j / 64 + 1 || (i / 64 - j / 64) % 3 == 0),
        ];
        for (text, sees) in cases {
            let pattern: AttentionPattern = text.parse().unwrap();
            for (shape, tokens, len) in [
                ((2, 1, 16), 1, 1),
                ((1, 3, 20), 70, 150),
                ((1, 2, 16), 40, SPLIT + 17),
                ((1, 2, 18), 3, 2 * SPLIT + 1),
            ] {
                let (kv_heads, group, d) = shape;
                let q = noise(tokens * kv_heads * group * d, 1);
                let (k, v) = (noise(kv_heads * d * len, 2), noise(kv_heads * d * len, 3));
                let want = naive(shape, &sees, &q, &k, &v);
                let got = attention::<Float<f32>>(shape, pattern, &q, &k, &v);
                for (i, (got, want)) in got.iter().zip(want).enumerate() {
                    assert!((f64::from(*got) - want).abs() < 2e-6, "{text} {shape:?} {len} {i}");
                }
            }
        }
    }

    #[test]
    fn biases_agree_with_naive_f64() {
        for (pattern, tokens, len) in
            [("full", 1, 1), ("full", 70, 150), ("window:90:3", 40, SPLIT + 17), ("full", 3, 2 * SPLIT + 1)]
        {
            let pattern: AttentionPattern = pattern.parse().unwrap();
            // More query heads than rows are held at once, and a number that is no power of two.
            for shape in [(2, 3, 16), (1, 37, 18)] {
                let (kv_heads, group, d) = shape;
                let slopes = crate::model::alibi::slopes(kv_heads * group, 8.0);
                let q = noise(tokens * kv_heads * group * d, 1);
                let (k, v) = (noise(kv_heads * d * len, 2), noise(kv_heads * d * len, 3));
                let want = naive_biased(shape, &|query, key| pattern.sees(query, key), &slopes, &q, &k, &v);
                let got = biased::<Float<f32>>(shape, pattern, &slopes, &q, &k, &v);
                for (i, (got, want)) in got.iter().zip(want).enumerate() {
                    assert!((f64::from(*got) - want).abs() < 2e-6, "{pattern} {shape:?} {len} {i}");
                }
                // Of the others, that all instruction sets agree.
                biased::<Float<f16>>(shape, pattern, &slopes, &q, &k, &v);
                biased::<Quantized<Codes<8>>>(shape, pattern, &slopes, &q, &k, &v);
                biased::<Quantized<Codes<4>>>(shape, pattern, &slopes, &q, &k, &v);
            }
        }
    }

    /// What a cache of `C` holds of these heads, as keys or as values.
    fn through_cache<C: FlashCodec>(x: &[f32], d: usize, keys: bool) -> Vec<f32> {
        let mut block = alloc::vec![0; C::key_block(d).max(C::value_block(d))];
        let mut row = alloc::vec![0.0; d];
        let stored = |x: &[f32]| {
            if keys {
                C::put_key(&mut block, 5, x);
                C::get_key(&block, 5, &mut row);
            } else {
                C::put_value(&mut block, 5, x);
                C::get_value(&block, 5, &mut row);
            }
            row.clone()
        };
        x.chunks_exact(d).flat_map(stored).collect()
    }

    /// Rounds as a quantized cache does: one scale per `group` elements of a head, and codes up to `largest`.
    fn through_codes(x: &[f32], d: usize, group: usize, largest: f32) -> Vec<f32> {
        let codes = |x: &[f32]| -> Vec<f32> {
            let most = x.iter().fold(0.0, |m: f32, x| m.max(x.abs()));
            let scale = f16::load(f16::store(most / largest));
            x.iter().map(|x| libm::roundf(x / scale).clamp(-largest, largest) * scale).collect()
        };
        x.chunks_exact(d).flat_map(|row| row.chunks(group).flat_map(codes).collect::<Vec<_>>()).collect()
    }

    /// `C` equals the formula over its decoded numbers, and the squared error is at most `allowed` of the
    /// squared exact result.
    fn codes_agree_with_the_numbers_they_stand_for<C: FlashCodec>(
        largest: f32,
        value_group: fn(usize) -> usize,
        allowed: f64,
    ) {
        // Their scales are chosen, see the tests of the format.
        let nibbles = largest == 7.0;
        for (shape, tokens, len) in [
            ((1, 1, 64), 1, 1),
            ((2, 2, 128), 1, 63),
            ((2, 4, 90), 66, 150),
            ((1, 2, 128), 40, SPLIT + 17),
            ((1, 37, 18), 3, 2 * SPLIT + 1),
            ((1, 5, 32), 2, 130),
            ((2, 1, 96), 3, 70),
            ((1, 3, 256), 1, 140),
            ((1, 2, 288), 2, 20),
        ] {
            let (kv_heads, group, d) = shape;
            let q = noise(tokens * kv_heads * group * d, 1);
            let (k, v) = (noise(kv_heads * d * len, 2), noise(kv_heads * d * len, 3));
            let got = attention::<C>(shape, FULL, &q, &k, &v);
            let stored = naive(
                shape,
                &|_, _| true,
                &q,
                &if nibbles {
                    through_cache::<C>(&k, d, true)
                } else {
                    through_codes(&k, d, SCALE_GROUP, largest)
                },
                &if nibbles {
                    through_cache::<C>(&v, d, false)
                } else {
                    through_codes(&v, d, value_group(d), largest)
                },
            );
            let exact = naive(shape, &|_, _| true, &q, &k, &v);
            let (mut noise, mut signal) = (0.0, 0.0);
            for (i, got) in got.iter().enumerate() {
                let got = f64::from(*got);
                // Rounding to 16 bits, and numbers half-way between two integers.
                let error = (got - stored[i]).abs();
                assert!(error < 0.064 / f64::from(largest), "{shape:?} {len} {i}: {got} {}", stored[i]);
                noise += (got - exact[i]) * (got - exact[i]);
                signal += exact[i] * exact[i];
            }
            assert!(noise < allowed * signal, "{shape:?}: {}", libm::sqrt(noise / signal));
        }
    }

    #[test]
    fn bytes_agree_with_what_they_stand_for() {
        codes_agree_with_the_numbers_they_stand_for::<Quantized<Codes<8>>>(127.0, |d| d, 4e-4);
    }

    /// Steps are 18 times as large as those of 8 bits, and so are errors at most.
    #[test]
    fn nibbles_agree_with_what_they_stand_for() {
        codes_agree_with_the_numbers_they_stand_for::<Quantized<Codes<4>>>(7.0, |_| SCALE_GROUP, 0.1);
    }

    #[test]
    fn rising_scores_rescale_what_came_before() {
        let (d, len) = (16, 2 * SPLIT + 200);
        let keys: Vec<f32> = (0..len).flat_map(|i| core::iter::repeat_n(i as f32 / 32.0, d)).collect();
        let values = noise(len * d, 9);
        let q = alloc::vec![1.0; d];
        let got = attention::<Float<f32>>((1, 1, d), FULL, &q, &keys, &values);
        let want = naive((1, 1, d), &|_, _| true, &q, &keys, &values);
        for i in 0..d {
            assert!((f64::from(got[i]) - want[i]).abs() < 1e-5);
        }
    }

    #[test]
    fn a_later_tokens_nan_stays_its_own() {
        let d = 16;
        let (q, mut k, mut v) = (noise(20 * d, 1), noise(100 * d, 2), noise(100 * d, 3));
        k[95 * d] = f32::NAN;
        v[90 * d] = f32::NAN;
        for out in [
            last_tokens::<Float<f16>>(&q, &k, &v, d),
            last_tokens::<Float<Float8<3>>>(&q, &k, &v, d),
            last_tokens::<Float<Float8<2>>>(&q, &k, &v, d),
            last_tokens::<Quantized<Codes<8>>>(&q, &k, &v, d),
            last_tokens::<Quantized<Codes<4>>>(&q, &k, &v, d),
        ] {
            assert!(out[..10 * d].iter().all(|x| !x.is_nan()) && out[10 * d].is_nan());
            assert!(out[15 * d..].iter().all(|x| x.is_nan()));
        }
    }

    fn last_tokens<C: FlashCodec>(q: &[f32], k: &[f32], v: &[f32], d: usize) -> Vec<f32> {
        let shape = KvShape { layers: 1, kv_heads: 1, capacity: k.len() / d, head_dim: d };
        let mut plan = Planner::default();
        KvStorage::<C>::plan(shape, &mut plan);
        let mut memory = alloc::vec![0; plan.total().unwrap()];
        let mut cache = KvStorage::<C>::new(shape, &mut Arena::new(&mut memory)).unwrap();
        for (position, (k, v)) in k.chunks_exact(d).zip(v.chunks_exact(d)).enumerate() {
            cache.write(0, position, k, v);
        }
        let mut q = q.to_vec();
        C::prepare(Isa::detect(), &mut q, d);
        let start = (k.len() - q.len()) / d;
        let mut out = alloc::vec![0.0; q.len()];
        let attention =
            CausalAttention { cache: &cache, layer: 0, start, group: 1, pattern: FULL, slopes: &[], q: &q };
        attention.run(Isa::detect(), &Serial, &mut out, &mut []);
        out
    }
}
