//! Attention within the sequences of a batch.
//!
//! ```text
//! S = c Q K^T + B     P = softmax(S) = e^(S - lse)     O = P V          c = 1 / sqrt(head_dim)
//! dP = dO V^T         D = rowsum(dO O)                 dS = P (dP - D)
//! dQ = c dS K         dK = c dS^T Q                    dV = P^T dO
//! S' = c (Q' K^T + Q K'^T)    P' = P (S' - rowsum(P S'))    O' = P' V + P V'
//! ```
//! `B` is minus infinity where a token does not look, and ALiBi's bias; neither has a gradient. Scores are computed for
//! [`QUERIES`] queries at once and never kept: the derivative computes them again from `lse` (Dao 2023, arXiv:2307.08691).
//!
//! A job is a sequence and a head of keys. It adds what its query heads and queries contribute to the gradients of keys and
//! values in order.
#![forbid(unsafe_code)]

use alloc::vec::Vec;

use shohin_core::attention::AttentionPattern;
use shohin_core::cpu::Isa;
use shohin_core::cpu::op::dot;
use shohin_core::cpu::op::exp::exp;
use shohin_core::cpu::parallel::for_each_chunk;
use shohin_core::cpu::simd::{SimdOp, dispatch};
use shohin_core::model::program;
use shohin_core::pool::Pool;

use super::Gradient;
use crate::gemm::{Block, Columns, Left, Prepared, Rows, Small, Store};

/// Queries of a tile.
const QUERIES: usize = 56;

/// What a worker computes with.
#[derive(Debug)]
struct Worker {
    small: Small,
    /// `K^T`, `V` or `V^T`, `K`.
    packed: [Prepared; 3],
    /// Queries or gradients of a tile, or `V'`.
    tile: Prepared,
    /// `(QUERIES, keys)`
    scores: Vec<f32>,
    /// `(QUERIES, keys)`
    gradients: Vec<f32>,
}

/// The memory of attention.
#[derive(Debug)]
pub(crate) struct Memory {
    workers: Vec<Worker>,
}

impl Memory {
    pub(crate) fn new(isa: Isa, pool: &dyn Pool) -> Self {
        let worker = |_| Worker {
            small: Small::new(isa),
            packed: Default::default(),
            tile: Prepared::default(),
            scores: Vec::new(),
            gradients: Vec::new(),
        };
        Memory { workers: (0..pool.workers().max(1)).map(worker).collect() }
    }

    /// Bytes of a worker for sequences of `longest` tokens.
    pub(crate) const fn worker_bytes(longest: usize, dim: usize) -> u64 {
        let keys = Small::prepared_len(dim, longest);
        let values = Small::prepared_len(longest, dim);
        let tile = Small::prepared_len(QUERIES, dim);
        let floats = 2 * keys + values + tile + 2 * QUERIES * longest.next_multiple_of(16);
        (floats * size_of::<f32>()) as u64
    }
}

impl Memory {
    /// Bytes that tangents take beside those of [`Memory::worker_bytes`].
    pub(crate) const fn tangent_bytes(longest: usize, dim: usize) -> u64 {
        (Small::prepared_len(longest, dim) * size_of::<f32>()) as u64
    }
}

/// The shape of a batch's attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape<'a> {
    pub(crate) heads: program::Heads,
    pub(crate) pattern: AttentionPattern,
    /// `(query heads)`, or empty.
    pub(crate) slopes: &'a [f32],
    /// Tokens of each sequence.
    pub(crate) lengths: &'a [usize],
}

/// A sequence and a head of keys.
struct Job<'a> {
    /// The sequence's first row.
    first: usize,
    len: usize,
    head: usize,
    /// What it writes of the queries' heads and of the keys' head.
    query: [Option<Block<'a>>; 2],
    key: [Option<Block<'a>>; 2],
}

/// Divides buffers `(rows, heads * dim)` into blocks, one for each sequence and head.
fn divide<'a>(buffer: &'a mut [f32], lengths: &[usize], heads: usize) -> Vec<Block<'a>> {
    let rows: usize = lengths.iter().sum();
    let cols = buffer.len().checked_div(rows).unwrap_or(0);
    let mut blocks = Vec::with_capacity(lengths.len() * heads);
    let mut rest = Block::new(buffer, cols);
    for len in lengths {
        let (mut sequence, others) = rest.split_rows(*len);
        rest = others;
        for _ in 0..heads {
            let (head, others) = sequence.split_cols(cols / heads);
            sequence = others;
            blocks.push(head);
        }
    }
    blocks
}

impl Shape<'_> {
    fn jobs<'a>(&self, query: [Option<&'a mut [f32]>; 2], key: [Option<&'a mut [f32]>; 2]) -> Vec<Job<'a>> {
        let heads = self.heads.kv;
        let mut divided = query
            .into_iter()
            .chain(key)
            .map(|buffer| buffer.map(|buffer| divide(buffer, self.lengths, heads).into_iter()))
            .collect::<Vec<_>>();
        let (mut jobs, mut first) = (Vec::new(), 0);
        for len in self.lengths {
            for head in 0..heads {
                let mut next = |i: usize| divided[i].as_mut().and_then(Iterator::next);
                let (query, key) = ([next(0), next(1)], [next(2), next(3)]);
                jobs.push(Job { first, len: *len, head, query, key });
            }
            first += len;
        }
        jobs
    }

    /// Runs `job` for all jobs, each on a worker.
    fn run(
        &self,
        pool: &dyn Pool,
        memory: &mut Memory,
        jobs: Vec<Job<'_>>,
        job: &(dyn Fn(&mut Worker, &mut Job<'_>) + Sync),
    ) {
        let workers = memory.workers.len();
        // The longest first, in turn: with that, workers have about as much to do.
        let mut order: Vec<Job<'_>> = jobs;
        order.sort_by_key(|job| core::cmp::Reverse(job.len));
        let mut of_worker: Vec<(&mut Worker, Vec<Job<'_>>)> =
            memory.workers.iter_mut().map(|worker| (worker, Vec::new())).collect();
        for (i, job) in order.into_iter().enumerate() {
            of_worker[i % workers].1.push(job);
        }
        for_each_chunk(pool, &mut of_worker, 1, &|_, part| {
            for (worker, jobs) in part {
                jobs.iter_mut().for_each(|one| job(worker, one));
            }
        });
    }

    fn group(&self) -> usize {
        self.heads.query / self.heads.kv
    }

    fn scale(&self) -> f32 {
        1.0 / libm::sqrtf(self.heads.dim as f32)
    }

    fn slope(&self, head: usize) -> f32 {
        self.slopes.get(head).copied().unwrap_or(0.0)
    }

    /// `out` and `lse (rows, query heads)` from `q (rows, query heads * dim)`, `k` and `v (rows, kv heads * dim)`.
    pub(crate) fn forward(
        &self,
        pool: &dyn Pool,
        memory: &mut Memory,
        [q, k, v]: [&[f32]; 3],
        [out, lse]: [&mut [f32]; 2],
    ) {
        let (dim, group) = (self.heads.dim, self.group());
        let (q_cols, kv_cols) = (self.heads.query * dim, self.heads.kv * dim);
        let jobs = self.jobs([Some(out), Some(lse)], [None, None]);
        self.run(pool, memory, jobs, &|worker, job| {
            let Job { first, len, head, .. } = *job;
            let [Some(out), Some(lse)] = &mut job.query else { return };
            let Worker { small, packed, scores, .. } = worker;
            let at = first * kv_cols + head * dim;
            small.prepare(&Rows { data: &k[at..], stride: kv_cols }, dim, len, &mut packed[0]);
            small.prepare(&Columns { data: &v[at..], stride: kv_cols }, len, dim, &mut packed[1]);
            for g in 0..group {
                let slope = self.slope(head * group + g);
                for start in (0..len).step_by(QUERIES) {
                    let end = (start + QUERIES).min(len);
                    scores.resize(QUERIES * end.max(1), 0.0);
                    let tile = &mut scores[..(end - start) * end];
                    let at = (first + start) * q_cols + (head * group + g) * dim;
                    let queries = Left { data: &q[at..], row: q_cols, col: 1 };
                    small.product(dim, queries, &packed[0], Block::new(tile, end), Store::Replace);
                    for (row, t) in tile.chunks_exact_mut(end).zip(start..) {
                        let softmax = Softmax { row, t, scale: self.scale(), slope, pattern: self.pattern };
                        lse.row(t)[g] = dispatch(small.isa(), softmax);
                    }
                    let out = out.reborrow().part(start..end, g * dim..(g + 1) * dim);
                    small.product(end, Left::rows(tile, end), &packed[1], out, Store::Replace);
                }
            }
        });
    }

    /// The tangent of `out` from those of `q`, `k` and `v`, of which those that are not there are 0; `saved` are `q`, `k`, `v`,
    /// `out` and `lse`.
    pub(crate) fn tangent(
        &self,
        pool: &dyn Pool,
        memory: &mut Memory,
        saved: [&[f32]; 5],
        tangents: [Option<&[f32]>; 3],
        out: &mut [f32],
    ) {
        let [q, k, v, _, lse] = saved;
        let [dq, dk, dv] = tangents;
        let (dim, group) = (self.heads.dim, self.group());
        let (q_cols, kv_cols) = (self.heads.query * dim, self.heads.kv * dim);
        let jobs = self.jobs([Some(out), None], [None, None]);
        self.run(pool, memory, jobs, &|worker, job| {
            let Job { first, len, head, .. } = *job;
            let Some(out) = &mut job.query[0] else { return };
            let Worker { small, packed, tile, scores, gradients } = worker;
            let at = first * kv_cols + head * dim;
            small.prepare(&Rows { data: &k[at..], stride: kv_cols }, dim, len, &mut packed[0]);
            small.prepare(&Columns { data: &v[at..], stride: kv_cols }, len, dim, &mut packed[1]);
            if let Some(dk) = dk {
                small.prepare(&Rows { data: &dk[at..], stride: kv_cols }, dim, len, &mut packed[2]);
            }
            if let Some(dv) = dv {
                small.prepare(&Columns { data: &dv[at..], stride: kv_cols }, len, dim, tile);
            }
            for g in 0..group {
                let (of, slope) = (head * group + g, self.slope(head * group + g));
                for start in (0..len).step_by(QUERIES) {
                    let end = (start + QUERIES).min(len);
                    let at = (first + start) * q_cols + of * dim;
                    scores.resize(QUERIES * end, 0.0);
                    gradients.resize(QUERIES * end, 0.0);
                    let (p, dp) = (&mut scores[..(end - start) * end], &mut gradients[..(end - start) * end]);
                    let left = |data| Left { data, row: q_cols, col: 1 };
                    small.product(dim, left(&q[at..]), &packed[0], Block::new(p, end), Store::Replace);
                    dp.fill(0.0);
                    if let Some(dq) = dq {
                        small.product(dim, left(&dq[at..]), &packed[0], Block::new(dp, end), Store::Add);
                    }
                    if dk.is_some() {
                        small.product(dim, left(&q[at..]), &packed[2], Block::new(dp, end), Store::Add);
                    }
                    for ((p, dp), t) in p.chunks_exact_mut(end).zip(dp.chunks_exact_mut(end)).zip(start..) {
                        let lse = lse[(first + t) * self.heads.query + of];
                        let (scale, pattern) = (self.scale(), self.pattern);
                        dispatch(small.isa(), Tangents { p, dp, t, lse, scale, slope, pattern });
                    }
                    let mut out = out.reborrow().part(start..end, g * dim..(g + 1) * dim);
                    small.product(end, Left::rows(dp, end), &packed[1], out.reborrow(), Store::Replace);
                    if dv.is_some() {
                        small.product(end, Left::rows(p, end), tile, out, Store::Add);
                    }
                }
            }
        });
    }

    /// The gradients of `q`, `k` and `v` from that of `out`; `saved` are `q`, `k`, `v`, `out` and `lse`.
    pub(crate) fn backward(
        &self,
        pool: &dyn Pool,
        memory: &mut Memory,
        saved: [&[f32]; 5],
        dy: &[f32],
        to: [Option<Gradient<'_>>; 3],
    ) {
        let [q, k, v, out, lse] = saved;
        let (dim, group) = (self.heads.dim, self.group());
        let (q_cols, kv_cols) = (self.heads.query * dim, self.heads.kv * dim);
        let [dq, dk, dv] = to.map(|to| {
            to.map(|to| {
                if !to.add {
                    to.data.fill(0.0);
                }
                to.data
            })
        });
        let jobs = self.jobs([dq, None], [dk, dv]);
        self.run(pool, memory, jobs, &|worker, job| {
            let Job { first, len, head, .. } = *job;
            let Worker { small, packed, tile, scores, gradients } = worker;
            let at = first * kv_cols + head * dim;
            small.prepare(&Rows { data: &k[at..], stride: kv_cols }, dim, len, &mut packed[0]);
            small.prepare(&Rows { data: &v[at..], stride: kv_cols }, dim, len, &mut packed[1]);
            small.prepare(&Columns { data: &k[at..], stride: kv_cols }, len, dim, &mut packed[2]);
            for g in 0..group {
                let (of, slope) = (head * group + g, self.slope(head * group + g));
                for start in (0..len).step_by(QUERIES) {
                    let end = (start + QUERIES).min(len);
                    let at = (first + start) * q_cols + of * dim;
                    scores.resize(QUERIES * end, 0.0);
                    gradients.resize(QUERIES * end, 0.0);
                    let (p, dp) = (&mut scores[..(end - start) * end], &mut gradients[..(end - start) * end]);
                    let left = |data| Left { data, row: q_cols, col: 1 };
                    small.product(dim, left(&q[at..]), &packed[0], Block::new(p, end), Store::Replace);
                    small.product(dim, left(&dy[at..]), &packed[1], Block::new(dp, end), Store::Replace);
                    for ((p, dp), t) in p.chunks_exact_mut(end).zip(dp.chunks_exact_mut(end)).zip(start..) {
                        let row = (first + t) * q_cols + of * dim;
                        let d = dot(&dy[row..row + dim], &out[row..row + dim]);
                        let lse = lse[(first + t) * self.heads.query + of];
                        let (scale, pattern) = (self.scale(), self.pattern);
                        dispatch(small.isa(), Scores { p, dp, t, d, lse, scale, slope, pattern });
                    }
                    let (p, dp) = (&*p, &*dp);
                    if let Some(dv) = &mut job.key[1] {
                        let dy = Columns { data: &dy[at..], stride: q_cols };
                        small.prepare(&dy, end - start, dim, tile);
                        let dv = dv.reborrow().part(0..end, 0..dim);
                        small.product(end - start, Left::columns(p, end), tile, dv, Store::Add);
                    }
                    if let Some(dk) = &mut job.key[0] {
                        let q = Columns { data: &q[at..], stride: q_cols };
                        small.prepare(&q, end - start, dim, tile);
                        let dk = dk.reborrow().part(0..end, 0..dim);
                        small.product(end - start, Left::columns(dp, end), tile, dk, Store::Add);
                    }
                    if let Some(dq) = &mut job.query[0] {
                        let dq = dq.reborrow().part(start..end, g * dim..(g + 1) * dim);
                        small.product(end, Left::rows(dp, end), &packed[2], dq, Store::Add);
                    }
                }
            }
        });
    }
}

/// Turns products of a query with keys into probabilities, and returns the logarithm of their denominator.
struct Softmax<'a> {
    /// `(keys)`, of which the query looks at the first `t + 1` at most.
    row: &'a mut [f32],
    t: usize,
    scale: f32,
    slope: f32,
    pattern: AttentionPattern,
}

impl SimdOp for Softmax<'_> {
    type Output = f32;

    #[inline(always)]
    fn run(self) -> f32 {
        let Softmax { row, t, scale, slope, pattern } = self;
        let (seen, later) = row.split_at_mut(t + 1);
        later.fill(0.0);
        score(seen, t, scale, slope);
        hide(seen, t, pattern, f32::NEG_INFINITY);
        let mut lanes = [f32::NEG_INFINITY; 16];
        for part in seen.chunks(16) {
            for (lane, x) in lanes.iter_mut().zip(part) {
                *lane = if *x > *lane { *x } else { *lane };
            }
        }
        let max = lanes.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut sums = [0.0f32; 16];
        for part in seen.chunks_mut(16) {
            for (sum, x) in sums.iter_mut().zip(part) {
                *x = exp(*x - max);
                *sum += *x;
            }
        }
        let sum = sums.iter().fold(0.0, |sum, lane| sum + lane);
        seen.iter_mut().for_each(|x| *x /= sum);
        max + libm::logf(sum)
    }
}

/// `c x + slope (key - t)`
#[inline(always)]
fn score(seen: &mut [f32], t: usize, scale: f32, slope: f32) {
    if slope == 0.0 {
        seen.iter_mut().for_each(|x| *x *= scale);
    } else {
        for (j, x) in seen.iter_mut().enumerate() {
            *x = *x * scale - slope * (t - j) as f32;
        }
    }
}

/// Replaces what the query at `t` does not look at.
#[inline(always)]
fn hide(seen: &mut [f32], t: usize, pattern: AttentionPattern, by: f32) {
    if pattern != AttentionPattern::Full {
        for (j, x) in seen.iter_mut().enumerate() {
            if !pattern.sees(t, j) {
                *x = by;
            }
        }
    }
}

/// Turns products of a query with keys into probabilities `p`, and their tangents `dp` into those of the probabilities.
struct Tangents<'a> {
    p: &'a mut [f32],
    dp: &'a mut [f32],
    t: usize,
    lse: f32,
    scale: f32,
    slope: f32,
    pattern: AttentionPattern,
}

impl SimdOp for Tangents<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Tangents { p, dp, t, lse, scale, slope, pattern } = self;
        let (seen, later) = p.split_at_mut(t + 1);
        later.fill(0.0);
        let (tangents, later) = dp.split_at_mut(t + 1);
        later.fill(0.0);
        score(seen, t, scale, slope);
        hide(seen, t, pattern, f32::NEG_INFINITY);
        for p in seen.iter_mut() {
            *p = exp(*p - lse);
        }
        let along = dot(seen, tangents);
        for (p, dp) in seen.iter().zip(tangents) {
            *dp = *p * (*dp - along) * scale;
        }
    }
}

/// Turns products of a query with keys into probabilities `p`, and the gradients `dp` of these into those of the products.
struct Scores<'a> {
    p: &'a mut [f32],
    dp: &'a mut [f32],
    t: usize,
    d: f32,
    lse: f32,
    scale: f32,
    slope: f32,
    pattern: AttentionPattern,
}

impl SimdOp for Scores<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Scores { p, dp, t, d, lse, scale, slope, pattern } = self;
        let (seen, later) = p.split_at_mut(t + 1);
        later.fill(0.0);
        let (gradients, later) = dp.split_at_mut(t + 1);
        later.fill(0.0);
        score(seen, t, scale, slope);
        hide(seen, t, pattern, f32::NEG_INFINITY);
        for (p, dp) in seen.iter_mut().zip(gradients) {
            *p = exp(*p - lse);
            *dp = *p * (*dp - d) * scale;
        }
    }
}
