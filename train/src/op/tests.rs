//! Each operation beside its formula in float64: results, tangents beside central differences, and gradients by
//! `<J v, u> = <v, J^T u>`.

extern crate std;

use alloc::vec;
use alloc::vec::Vec;

use shohin_core::attention::AttentionPattern;
use shohin_core::cpu::Isa;
use shohin_core::model::program;
use shohin_core::model::program::{Activation, RopePairing};
use shohin_core::model::rope::{Rope, RopeScaling};
use shohin_core::pool::{Pool, Serial};

use super::rope::{Angles, Heads};
use super::{Gradient, add, attention, bias, embed, experts, gated, head, linear, norm, scale};
use crate::batch::Batch;
use crate::gemm::{Gemm, Store, Weight};
use crate::loss::Loss;

/// Jobs in reverse order, as if there were three workers.
struct Three;

impl Pool for Three {
    fn workers(&self) -> usize {
        3
    }

    fn run(&self, jobs: usize, job: &(dyn Fn(usize) + Sync)) {
        (0..jobs).rev().for_each(job);
    }
}

/// Numbers between -1 and 1.
fn numbers(len: usize, seed: u64) -> Vec<f32> {
    let of = |i: u64| {
        let mut z = (seed << 32).wrapping_add(i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len as u64).map(of).collect()
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

fn product(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn length(a: &[f64]) -> f64 {
    product(a, a).sqrt()
}

fn distance(found: &[f64], want: &[f64]) -> f64 {
    assert_eq!(found.len(), want.len());
    let difference: Vec<f64> = found.iter().zip(want).map(|(a, b)| a - b).collect();
    length(&difference) / length(want)
}

/// Results of an operation's inputs, in float64.
type Reference<'a> = dyn Fn(&[Vec<f64>]) -> Vec<f64> + 'a;
/// Its results.
type Forward<'a> = dyn Fn(&mut Gemm<'_>) -> Vec<f32> + 'a;
/// Their tangents from those of the inputs.
type Tangent<'a> = dyn Fn(&mut Gemm<'_>, &[Option<&[f32]>]) -> Vec<f32> + 'a;
/// The gradients of the inputs, added to what is there or not.
type Backward<'a> = dyn Fn(&mut Gemm<'_>, &[f32], bool) -> Vec<Vec<f32>> + 'a;

/// An operation.
struct Case<'a> {
    name: &'static str,
    inputs: &'a [Vec<f32>],
    reference: &'a Reference<'a>,
    forward: &'a Forward<'a>,
    tangent: &'a Tangent<'a>,
    backward: &'a Backward<'a>,
}

impl Case<'_> {
    fn at(&self, along: &[Vec<f32>], step: f64) -> Vec<f64> {
        let moved = self
            .inputs
            .iter()
            .zip(along)
            .map(|(x, v)| x.iter().zip(v).map(|(x, v)| f64::from(*x) + step * f64::from(*v)).collect());
        (self.reference)(&moved.collect::<Vec<_>>())
    }

    /// The tangent along `v`, beside central differences.
    fn tangents(
        &self,
        gemm: &mut Gemm<'_>,
        v: &[Vec<f32>],
        given: &dyn Fn(usize) -> bool,
    ) -> (Vec<f64>, f64) {
        const STEP: f64 = 1e-5;
        let v: Vec<Vec<f32>> = v
            .iter()
            .enumerate()
            .map(|(i, v)| if given(i) { v.clone() } else { vec![0.0; v.len()] })
            .collect();
        let (after, before) = (self.at(&v, STEP), self.at(&v, -STEP));
        let want: Vec<f64> = after.iter().zip(&before).map(|(a, b)| (a - b) / (2.0 * STEP)).collect();
        let of = |(i, v)| if given(i) { Some(v) } else { None };
        let given: Vec<Option<&[f32]>> = v.iter().map(Vec::as_slice).enumerate().map(of).collect();
        let found = wide(&(self.tangent)(gemm, &given));
        let distance = distance(&found, &want);
        (found, distance)
    }

    fn check(&self) {
        let mut worst = [0.0f64; 3];
        let pools: [&dyn Pool; 2] = [&Serial, &Three];
        for (isa, pool) in Isa::available().flat_map(|isa| pools.map(|pool| (isa, pool))) {
            let mut gemm = Gemm::new(isa, pool);
            let v: Vec<Vec<f32>> = self.inputs.iter().zip(50..).map(|(x, s)| numbers(x.len(), s)).collect();
            let results = wide(&(self.forward)(&mut gemm));
            worst[0] = worst[0].max(distance(&results, &self.at(&v, 0.0)));
            let (along, from) = self.tangents(&mut gemm, &v, &|_| true);
            worst[1] = worst[1].max(from);
            for only in 0..v.len() {
                let (_, from) = self.tangents(&mut gemm, &v, &|i| i == only);
                worst[1] = worst[1].max(from);
            }
            // Along the tangent as well, so that the product does not cancel.
            let random = wide(&numbers(along.len(), 99));
            let (by, of) = (length(&along), 2.0 * length(&random));
            let u: Vec<f32> = along.iter().zip(&random).map(|(a, r)| (a / by + r / of) as f32).collect();
            let gradients = (self.backward)(&mut gemm, &u, false);
            assert!(gradients == (self.backward)(&mut gemm, &u, true), "{}", self.name);
            let left = product(&along, &wide(&u));
            let right: f64 = gradients.iter().zip(&v).map(|(g, v)| product(&wide(g), &wide(v))).sum();
            worst[2] = worst[2].max((right / left - 1.0).abs());
        }
        let [results, tangents, gradients] = worst;
        std::println!(
            "{}: results {results:.1e}, tangents {tangents:.1e}, gradients {gradients:.1e}",
            self.name
        );
        assert!(worst.iter().all(|x| *x < 1e-5), "{}: {worst:?}", self.name);
    }
}

fn floats(data: &[f32], cols: usize) -> Weight<'_> {
    Weight::Floats { data, cols, fake: None }
}

/// `x W^T`
fn times(x: &[f64], w: &[f64], cols: usize) -> Vec<f64> {
    x.chunks_exact(cols).flat_map(|x| w.chunks_exact(cols).map(|w| product(x, w))).collect()
}

fn silu(g: f64) -> f64 {
    g / (1.0 + (-g).exp())
}

fn normalized(x: &[f64], w: &[f64], eps: f64) -> Vec<f64> {
    let n = w.len();
    let of_row = |x: &[f64]| {
        let s = 1.0 / (product(x, x) / n as f64 + eps).sqrt();
        x.iter().zip(w).map(|(x, w)| x * s * w).collect::<Vec<_>>()
    };
    x.chunks_exact(n).flat_map(of_row).collect()
}

#[test]
fn embedding() {
    let (vocab, cols) = (11, 7);
    let tokens: Vec<u32> = (0..67).map(|i| i * i % 11).collect();
    let inputs = [numbers(vocab * cols, 1)];
    Case {
        name: "embed",
        inputs: &inputs,
        reference: &|x| tokens.iter().flat_map(|t| x[0][*t as usize * cols..][..cols].to_vec()).collect(),
        forward: &|gemm| {
            let mut out = vec![0.0; tokens.len() * cols];
            embed::forward(gemm, &tokens, floats(&inputs[0], cols), &mut out);
            out
        },
        tangent: &|gemm, d| {
            let mut out = vec![7.0; tokens.len() * cols];
            embed::tangent(gemm, &tokens, d[0].unwrap(), cols, &mut out);
            out
        },
        backward: &|_, u, _| {
            let mut dtable = vec![0.0; vocab * cols];
            embed::backward(&tokens, u, cols, &mut dtable);
            vec![dtable]
        },
    }
    .check();
}

#[test]
fn norms() {
    const EPS: f32 = 0.01;
    for (rows, cols) in [(67, 37), (3, 1), (130, 16)] {
        let inputs = [numbers(rows * cols, 2), numbers(cols, 3)];
        let [x, w] = &inputs;
        Case {
            name: "norm",
            inputs: &inputs,
            reference: &|x| normalized(&x[0], &x[1], f64::from(EPS)),
            forward: &|gemm| {
                let mut out = vec![0.0; rows * cols];
                norm::forward(gemm.pool(), gemm.isa(), x, w, EPS, &mut out);
                out
            },
            tangent: &|gemm, d| {
                let mut out = vec![7.0; rows * cols];
                norm::tangent(gemm.pool(), gemm.isa(), x, w, EPS, [d[0], d[1]], &mut out);
                out
            },
            backward: &|gemm, u, add| {
                let (mut dx, mut dw) = (vec![0.0; rows * cols], vec![0.0; cols]);
                let to = Some(Gradient { data: &mut dx, add });
                norm::backward(gemm.pool(), gemm.isa(), [x, u], w, EPS, to, Some(&mut dw));
                vec![dx, dw]
            },
        }
        .check();
    }
}

#[test]
fn products() {
    let (rows, cols, outputs) = (13, 301, 37);
    let inputs = [numbers(rows * cols, 4), numbers(outputs * cols, 5), numbers(rows * outputs, 6)];
    let [x, w, to] = &inputs;
    Case {
        name: "linear",
        inputs: &inputs,
        reference: &|x| {
            let products = times(&x[0], &x[1], cols);
            products.iter().zip(&x[2]).map(|(a, b)| a + b).collect()
        },
        forward: &|gemm| {
            let mut out = to.clone();
            linear::forward(gemm, x, floats(w, cols), &mut out, Store::Add);
            out
        },
        tangent: &|gemm, d| {
            let (mut out, store) = match d[2] {
                Some(to) => (to.to_vec(), Store::Add),
                None => (vec![7.0; rows * outputs], Store::Replace),
            };
            linear::tangent(gemm, x, floats(w, cols), [d[0], d[1]], &mut out, store);
            out
        },
        backward: &|gemm, u, add| {
            let (mut dx, mut dw) = (vec![0.0; rows * cols], vec![0.0; outputs * cols]);
            linear::backward_input(gemm, u, floats(w, cols), Gradient { data: &mut dx, add });
            linear::backward_weight(gemm, u, x, cols, &mut dw);
            vec![dx, dw, u.to_vec()]
        },
    }
    .check();
}

/// An activation in float64.
fn activated(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => silu(x),
        Activation::GeluTanh => {
            let inner = (2.0 / core::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
            x / 2.0 * (1.0 + inner.tanh())
        }
        Activation::Relu2 => x.max(0.0).powi(2),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
    }
}

#[test]
fn gates() {
    let (rows, cols) = (67, 301);
    let inputs = [7, 8].map(|seed| numbers(rows * cols, seed).iter().map(|x| 6.0 * x).collect::<Vec<_>>());
    let [gate, up] = &inputs;
    for activation in [Activation::Silu, Activation::GeluTanh, Activation::Relu2, Activation::Sigmoid] {
        Case {
            name: "gated",
            inputs: &inputs,
            reference: &|x| x[0].iter().zip(&x[1]).map(|(g, u)| activated(activation, *g) * u).collect(),
            forward: &|gemm| {
                let mut out = vec![0.0; rows * cols];
                gated::forward(gemm.pool(), gemm.isa(), activation, [gate, up], &mut out);
                out
            },
            tangent: &|gemm, d| {
                let mut out = vec![7.0; rows * cols];
                let (pool, isa) = (gemm.pool(), gemm.isa());
                gated::tangent(pool, isa, activation, [gate, up], [d[0], d[1]], &mut out);
                out
            },
            backward: &|gemm, u, add| {
                let (pool, isa, read) = (gemm.pool(), gemm.isa(), [gate, up, u]);
                let mut to = [vec![0.0; rows * cols], vec![0.0; rows * cols]];
                let gradients = to.each_mut().map(|data| Some(Gradient { data, add }));
                gated::backward(pool, isa, activation, read, cols, gradients);
                for half in 0..2 {
                    let mut only = [vec![0.0; rows * cols], vec![0.0; rows * cols]];
                    let mut gradients = only.each_mut().map(|data| Some(Gradient { data, add }));
                    gradients[1 - half] = None;
                    gated::backward(pool, isa, activation, read, cols, gradients);
                    assert!(only[half] == to[half], "{activation:?} {half}");
                }
                to.to_vec()
            },
        }
        .check();
    }
}

/// At the ends of the range, derivatives are what they converge to.
#[test]
fn gates_of_large_numbers() {
    let gate = [-1e6, -30.0, 30.0, 1e6];
    for (activation, want) in [
        (Activation::Silu, [0.0, 0.0, 1.0, 1.0]),
        (Activation::GeluTanh, [0.0, 0.0, 1.0, 1.0]),
        (Activation::Relu2, [0.0, 0.0, 60.0, 2e6]),
    ] {
        for isa in Isa::available() {
            let mut dgate = [7.0; 4];
            let to = [Some(Gradient { data: &mut dgate, add: false }), None];
            gated::backward(&Serial, isa, activation, [&gate, &[1.0; 4], &[1.0; 4]], 4, to);
            let near = |(found, want): (&f32, &f32)| (found - want).abs() <= 1e-6 * want.max(1.0);
            assert!(dgate.iter().zip(&want).all(near), "{activation:?} {dgate:?}");
        }
    }
}

#[test]
fn biases() {
    for (rows, cols) in [(67, 137), (3, 1), (130, 64)] {
        let inputs = [numbers(rows * cols, 23), numbers(cols, 24)];
        let [x, b] = &inputs;
        Case {
            name: "bias",
            inputs: &inputs,
            reference: &|x| {
                x[0].chunks_exact(cols).flat_map(|row| row.iter().zip(&x[1]).map(|(x, b)| x + b)).collect()
            },
            forward: &|gemm| {
                let mut out = x.clone();
                bias::forward(gemm.pool(), b, &mut out);
                out
            },
            tangent: &|gemm, d| {
                let mut out = d[0].map_or(vec![0.0; rows * cols], <[f32]>::to_vec);
                if let Some(db) = d[1] {
                    bias::forward(gemm.pool(), db, &mut out);
                }
                out
            },
            backward: &|gemm, u, _| {
                let mut dbias = vec![0.0; cols];
                bias::backward(gemm.pool(), u, &mut dbias);
                vec![u.to_vec(), dbias]
            },
        }
        .check();
    }
}

#[test]
fn sums() {
    const LEN: usize = 20_011;
    let inputs = [numbers(LEN, 25), numbers(LEN, 26)];
    let [x, to] = &inputs;
    let sum = |pool: &dyn Pool, x: Option<&[f32]>, to: Option<&[f32]>| {
        let mut out = to.map_or(vec![0.0; LEN], <[f32]>::to_vec);
        if let Some(x) = x {
            add::forward(pool, x, &mut out);
        }
        out
    };
    Case {
        name: "add",
        inputs: &inputs,
        reference: &|x| x[0].iter().zip(&x[1]).map(|(x, to)| x + to).collect(),
        forward: &|gemm| sum(gemm.pool(), Some(x), Some(to)),
        tangent: &|gemm, d| sum(gemm.pool(), d[0], d[1]),
        backward: &|gemm, u, add| {
            let mut dx = vec![0.0; LEN];
            add::backward(gemm.pool(), u, Gradient { data: &mut dx, add });
            vec![dx, u.to_vec()]
        },
    }
    .check();
}

#[test]
fn factors() {
    const LEN: usize = 20_011;
    let inputs = [numbers(LEN, 27)];
    Case {
        name: "scale",
        inputs: &inputs,
        reference: &|x| x[0].iter().map(|x| x * f64::from(0.3f32)).collect(),
        forward: &|gemm| {
            let mut out = vec![7.0; LEN];
            scale::forward(gemm.pool(), 0.3, &inputs[0], &mut out);
            out
        },
        tangent: &|gemm, d| {
            let mut out = vec![7.0; LEN];
            scale::forward(gemm.pool(), 0.3, d[0].unwrap(), &mut out);
            out
        },
        backward: &|gemm, u, add| {
            let mut dx = vec![0.0; LEN];
            scale::backward(gemm.pool(), 0.3, u, Gradient { data: &mut dx, add });
            vec![dx]
        },
    }
    .check();
}

#[test]
fn rotations() {
    const EPS: f32 = 0.01;
    let (heads, dim) = (3, 6);
    let (rows, cols) = (67usize, heads * dim);
    let positions: Vec<u32> = (0..rows as u32).map(|i| i % 31).collect();
    let pairings = [RopePairing::Neox, RopePairing::Interleaved];
    let all = pairings.into_iter().flat_map(|pairing| [(pairing, true), (pairing, false)]);
    // All pairs of a head, some, or none.
    let all = all
        .flat_map(|(pairing, normed)| [(6, 1.0), (4, 1.5), (0, 1.5)].map(|(n, c)| (pairing, normed, n, c)));
    for (pairing, normed, rotated_len, factor) in all {
        let mut angles = Angles::default();
        angles.extend(&Rope::new(rotated_len, 100.0, RopeScaling::None), 31);
        let all = [numbers(rows * cols, 9), numbers(dim, 10)];
        let inputs = if normed { &all[..] } else { &all[..1] };
        let norm = normed.then_some(&all[1][..]);
        let of = Heads { angles: &angles, pairing, dim, factor, positions: &positions, norm, eps: EPS };
        let rotated = |x: &[Vec<f64>]| {
            let mut y = if normed { normalized(&x[0], &x[1], f64::from(EPS)) } else { x[0].clone() };
            for (row, position) in y.chunks_exact_mut(cols).zip(&positions) {
                for head in row.chunks_exact_mut(dim) {
                    for i in 0..rotated_len / 2 {
                        let speed = 100f64.powf(-2.0 * i as f64 / rotated_len as f64);
                        let (s, c) = (f64::from(*position) * speed).sin_cos();
                        let [a, b] = match pairing {
                            RopePairing::Neox => [i, i + rotated_len / 2],
                            RopePairing::Interleaved => [2 * i, 2 * i + 1],
                        };
                        (head[a], head[b]) = (head[a] * c - head[b] * s, head[a] * s + head[b] * c);
                    }
                    head.iter_mut().for_each(|x| *x *= f64::from(factor));
                }
            }
            y
        };
        Case {
            name: "rope",
            inputs,
            reference: &rotated,
            forward: &|gemm| {
                let mut out = vec![0.0; rows * cols];
                of.forward(gemm.pool(), gemm.isa(), &inputs[0], cols, &mut out);
                out
            },
            tangent: &|gemm, d| {
                let mut out = vec![7.0; rows * cols];
                let along = [d[0], d.get(1).copied().flatten()];
                of.tangent(gemm.pool(), gemm.isa(), &inputs[0], along, cols, &mut out);
                out
            },
            backward: &|gemm, u, add| {
                let (mut dx, mut dw, mut dy) = (vec![0.0; rows * cols], vec![0.0; dim], u.to_vec());
                let to = Some(Gradient { data: &mut dx, add });
                let weights = normed.then_some(&mut dw[..]);
                of.backward(gemm.pool(), gemm.isa(), &inputs[0], &mut dy, cols, to, weights);
                if normed { vec![dx, dw] } else { vec![dx] }
            },
        }
        .check();
    }
}

/// Attention of `lengths`, in float64.
fn attended(shape: &attention::Shape<'_>, x: &[Vec<f64>]) -> Vec<f64> {
    let program::Heads { query, kv, dim } = shape.heads;
    let (mut out, mut first) = (Vec::new(), 0);
    for len in shape.lengths {
        for t in 0..*len {
            for head in 0..query {
                let of = head / (query / kv);
                let row = |x: &[f64], r: usize, heads: usize, head: usize| {
                    x[((first + r) * heads + head) * dim..][..dim].to_vec()
                };
                let q = row(&x[0], t, query, head);
                let seen: Vec<usize> = (0..=t).filter(|j| shape.pattern.sees(t, *j)).collect();
                let slope = shape.slopes.get(head).map_or(0.0, |slope| f64::from(*slope));
                let weights: Vec<f64> = seen
                    .iter()
                    .map(|j| {
                        product(&q, &row(&x[1], *j, kv, of)) / (dim as f64).sqrt() - slope * (t - j) as f64
                    })
                    .map(f64::exp)
                    .collect();
                let sum: f64 = weights.iter().sum();
                out.extend((0..dim).map(|i| {
                    let values = seen.iter().zip(&weights).map(|(j, w)| w * row(&x[2], *j, kv, of)[i]);
                    values.sum::<f64>() / sum
                }));
            }
        }
        first += len;
    }
    out
}

#[test]
fn attentions() {
    let heads = program::Heads { query: 4, kv: 2, dim: 6 };
    let lengths = [1, 61, 9];
    let slopes = [0.5, 0.25, 0.125, 0.0625];
    let rows: usize = lengths.iter().sum();
    let (q_cols, kv_cols) = (heads.query * heads.dim, heads.kv * heads.dim);
    let inputs = [numbers(rows * q_cols, 11), numbers(rows * kv_cols, 12), numbers(rows * kv_cols, 13)];
    let inputs = inputs.map(|x| x.iter().map(|x| 2.0 * x).collect::<Vec<f32>>());
    let read = inputs.each_ref().map(Vec::as_slice);
    let window: AttentionPattern = "window:7".parse().unwrap();
    for (pattern, slopes) in
        [(AttentionPattern::Full, &[][..]), (window, &[]), (AttentionPattern::Full, &slopes)]
    {
        let shape = attention::Shape { heads, pattern, slopes, lengths: &lengths };
        let forward = |gemm: &Gemm<'_>, memory: &mut attention::Memory| {
            let (mut out, mut lse) = (vec![0.0; rows * q_cols], vec![0.0; rows * heads.query]);
            shape.forward(gemm.pool(), memory, read, [&mut out, &mut lse]);
            [out, lse]
        };
        Case {
            name: "attention",
            inputs: &inputs,
            reference: &|x| attended(&shape, x),
            forward: &|gemm| {
                let [out, _] = forward(gemm, &mut attention::Memory::new(gemm.isa(), gemm.pool()));
                out
            },
            tangent: &|gemm, d| {
                let mut memory = attention::Memory::new(gemm.isa(), gemm.pool());
                let [saved, lse] = forward(gemm, &mut memory);
                let mut out = vec![7.0; rows * q_cols];
                let saved = [read[0], read[1], read[2], &saved, &lse];
                shape.tangent(gemm.pool(), &mut memory, saved, [d[0], d[1], d[2]], &mut out);
                out
            },
            backward: &|gemm, u, add| {
                let mut memory = attention::Memory::new(gemm.isa(), gemm.pool());
                let [out, lse] = forward(gemm, &mut memory);
                let saved = [read[0], read[1], read[2], &out, &lse];
                let mut to = inputs.each_ref().map(|x| vec![0.0; x.len()]);
                let gradients = to.each_mut().map(|data| Some(Gradient { data, add }));
                shape.backward(gemm.pool(), &mut memory, saved, u, gradients);
                to.to_vec()
            },
        }
        .check();
    }
}

/// A layer of experts in float64, from `x`, logits and `to`.
fn mixed(layer: &experts::Layer<'_>, weights: &[Vec<f32>; 3], cols: usize, x: &[Vec<f64>]) -> Vec<f64> {
    let weights = weights.each_ref().map(|w| wide(w));
    let rows = x[0].chunks_exact(cols).zip(x[1].chunks_exact(layer.count)).zip(x[2].chunks_exact(cols));
    let of_row = |((x, logits), to): ((&[f64], &[f64]), &[f64])| {
        let mut order: Vec<usize> = (0..layer.count).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
        let chosen = &order[..layer.used];
        let of = |experts: &[usize]| experts.iter().map(|e| logits[*e].exp()).sum::<f64>();
        let whole = if layer.normalize { of(chosen) } else { of(&order) };
        let mut out = to.to_vec();
        for expert in chosen {
            let [gate, up, down] = weights.each_ref().map(|w| {
                let len = w.len() / layer.count;
                &w[expert * len..][..len]
            });
            let inner: Vec<f64> =
                times(x, gate, cols).iter().zip(times(x, up, cols)).map(|(g, u)| silu(*g) * u).collect();
            let p = logits[*expert].exp() / whole;
            out.iter_mut().zip(times(&inner, down, inner.len())).for_each(|(out, y)| *out += p * y);
        }
        out
    };
    rows.flat_map(of_row).collect()
}

#[test]
fn mixtures() {
    for (rows, count, used, normalize, [cols, outputs]) in [
        (67, 5, 2, true, [19, 23]),
        (67, 5, 2, false, [19, 23]),
        (9, 3, 3, false, [4, 17]),
        // More rows of an expert than are computed at once.
        (911, 2, 1, false, [3, 5]),
    ] {
        let weights = [14, 15, 16].map(|seed| numbers(count * outputs * cols, seed));
        let [gate, up, down] = &weights;
        let stacked = [floats(gate, cols), floats(up, cols), floats(down, outputs)];
        let layer = experts::Layer { weights: stacked, count, used, normalize };
        let inputs = [numbers(rows * cols, 17), numbers(rows * count, 18), numbers(rows * cols, 19)];
        let [x, logits, to] = &inputs;
        Case {
            name: "experts",
            inputs: &inputs,
            reference: &|x| mixed(&layer, &weights, cols, x),
            forward: &|gemm| {
                let mut out = to.clone();
                layer.forward(gemm, &mut experts::Memory::default(), [x, logits], &mut out);
                out
            },
            tangent: &|gemm, d| {
                let mut out = d[2].map_or(vec![0.0; rows * cols], <[f32]>::to_vec);
                let mut memory = experts::Memory::default();
                layer.tangent(gemm, &mut memory, [x, logits], [d[0], d[1]], &mut out);
                out
            },
            backward: &|gemm, u, add| {
                let mut to = [vec![0.0; rows * cols], vec![0.0; rows * count]];
                let gradients = to.each_mut().map(|data| Some(Gradient { data, add }));
                layer.backward(gemm, &mut experts::Memory::default(), [x, logits], u, gradients);
                let [dx, dlogits] = to;
                vec![dx, dlogits, u.to_vec()]
            },
        }
        .check();
    }
}

#[test]
fn heads() {
    let (rows, cols, vocab) = (131, 7, 37);
    let inputs = [numbers(rows * cols, 20), numbers(vocab * cols, 21)];
    let [hidden, output] = &inputs;
    let tokens: Vec<u32> = (0..rows as u32).map(|i| i * i % vocab as u32).collect();
    let weights: Vec<f32> = numbers(rows, 22).iter().map(|x| if *x < -0.5 { 0.0 } else { x.abs() }).collect();
    let batch = Batch {
        tokens: &tokens,
        lengths: &[rows],
        targets: &tokens,
        weights: &weights,
        teacher: None,
        prefix: None,
    };
    let total = batch.total();
    let loss = Loss::CrossEntropy { smoothing: 0.0 };
    let output_matrix = floats(output, cols);
    Case {
        name: "head",
        inputs: &inputs,
        reference: &|x| {
            let logits = times(&x[0], &x[1], cols);
            let of_rows =
                logits.chunks_exact(vocab).zip(&tokens).zip(&weights).map(|((z, token), weight)| {
                    let sum: f64 = z.iter().map(|z| z.exp()).sum();
                    f64::from(*weight) * (sum.ln() - z[*token as usize])
                });
            vec![of_rows.sum::<f64>() / total]
        },
        forward: &|gemm| {
            let mut memory = head::Memory::default();
            let none = [None, None];
            let outcome = head::run(gemm, &mut memory, &loss, &batch, total, hidden, output_matrix, none);
            vec![outcome.loss as f32]
        },
        tangent: &|gemm, d| {
            let mut memory = head::Memory::default();
            let along = [d[0], d[1]];
            let outcome =
                head::tangent(gemm, &mut memory, &loss, &batch, total, hidden, output_matrix, along);
            vec![outcome.derivative as f32]
        },
        backward: &|gemm, u, _| {
            let (mut memory, mut to) =
                (head::Memory::default(), [vec![7.0; rows * cols], vec![0.0; vocab * cols]]);
            let gradients = to.each_mut().map(|to| Some(&mut to[..]));
            head::run(gemm, &mut memory, &loss, &batch, total, hidden, output_matrix, gradients);
            to.iter().map(|to| to.iter().map(|d| d * u[0]).collect()).collect()
        },
    }
    .check();
}
