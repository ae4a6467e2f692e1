//! Keys and values: how they are stored, and how queries attend to them.
#![forbid(unsafe_code)]

use core::num::NonZeroU32;
use core::ops::Range;

use super::hadamard;
use super::rmsnorm::rmsnorm_in_place;
use super::rope::{rotate, rotate_interleaved};
use crate::cache::{KvCodec, KvStorage, with_codec};
use crate::cpu::attention::{CausalAttention, FlashCodec};
use crate::cpu::cache::CpuCache;
use crate::cpu::context::Context;
use crate::cpu::isa::Isa;
use crate::cpu::scratch::{CurrentRows, Scratch};
use crate::cpu::simd::{SimdOp, dispatch};
use crate::error::Result;
use crate::hadamard::rotate_head;
use crate::model::program::{BufferId, QkNorm, RopePairing};
use crate::model::weights::ModelBytes;
use crate::rows::Rows;

/// The arguments of [`Op::RopeStore`](crate::model::program::Op::RopeStore).
pub(in crate::cpu) struct Heads {
    pub(in crate::cpu) layer: usize,
    /// Index of the rotation.
    pub(in crate::cpu) rotation: usize,
    /// Queries, keys and values.
    pub(in crate::cpu) buffers: [BufferId; 3],
    pub(in crate::cpu) norm: Option<QkNorm>,
    pub(in crate::cpu) eps: f32,
}

/// [`Op::RopeStore`](crate::model::program::Op::RopeStore), of `n` rows.
pub(in crate::cpu) fn store<B: ModelBytes>(
    context: &Context<'_, B>,
    Heads { layer, rotation, buffers: [q, k, v], norm, eps }: Heads,
    n: usize,
    rows: &Rows<'_>,
    caches: &mut [&mut CpuCache<'_>],
    scratch: &mut Scratch<'_>,
) -> Result<()> {
    let (weights, isa) = (context.weights, context.isa);
    let program = weights.program();
    let heads = program.heads;
    let (head_dim, half) = (heads.dim, heads.dim / 2);
    let (q_size, kv_size) = (heads.query * heads.dim, heads.kv * heads.dim);
    let norms = norm.map(|norm| (weights.vector(norm.q), weights.vector(norm.k)));
    let pairs = match cfg!(feature = "variants") {
        true => program.rotations.get(rotation).map_or(0, |rope| rope.speeds().len()),
        false => half,
    };
    let Scratch { buffers, current, .. } = scratch;
    let first = rotation * current.rotation_len;
    let [q, k, v] = buffers.disjoint([(q, n * q_size), (k, n * kv_size), (v, n * kv_size)])?;
    each_segment(layer, rows, caches, current, |cache, rows, start| {
        let range = |cols: usize| rows.start * cols..rows.end * cols;
        let angles = first + rows.start * half..first + rows.end * half;
        let segment = Rotated {
            isa,
            norms,
            eps,
            pairing: program.pairing,
            pairs,
            query_scale: program.query_scale,
            cos: &current.cos[angles.clone()],
            sin: &current.sin[angles],
            layer,
            start,
            head_dim,
            q_size,
            kv_size,
            q: &mut q[range(q_size)],
            k: &mut k[range(kv_size)],
            v: &mut v[range(kv_size)],
        };
        with_codec!(cache.format, C => {
            rope_store::<C>(segment, cache.storage()?);
        });
        Ok(())
    })
}

/// Called: inlined next to one another, the formats' copies take six times the code.
#[inline(never)]
fn rope_store<C: FlashCodec>(segment: Rotated<'_>, storage: KvStorage<'_, C>) {
    dispatch(segment.isa, QkNormRopeStore { segment, storage });
}

/// [`Op::Attention`](crate::model::program::Op::Attention), of `n` rows.
pub(in crate::cpu) fn attend<B: ModelBytes>(
    context: &Context<'_, B>,
    (layer, window): (usize, Option<NonZeroU32>),
    (q, out): (BufferId, BufferId),
    n: usize,
    rows: &Rows<'_>,
    caches: &mut [&mut CpuCache<'_>],
    scratch: &mut Scratch<'_>,
) -> Result<()> {
    let program = context.weights.program();
    let (heads, slopes) = (program.heads, &*program.alibi_slopes);
    let (size, group) = (heads.query * heads.dim, heads.query / heads.kv);
    let Scratch { buffers, current, attention: memory, .. } = scratch;
    let [q, out] = buffers.disjoint([(q, n * size), (out, n * size)])?;
    each_segment(layer, rows, caches, current, |cache, rows, start| {
        let range = rows.start * size..rows.end * size;
        let (q, out, pattern) = (
            &q[range.clone()],
            &mut out[range],
            match cfg!(feature = "variants") {
                true => cache.attention.within(window)?,
                false => cache.attention,
            },
        );
        with_codec!(cache.format, C => {
            let storage: KvStorage<'_, C> = cache.storage()?;
            let attention = CausalAttention { cache: &storage, layer, start, group, pattern, slopes, q };
            attention.run(context.isa, context.pool, out, memory);
            if C::ROTATED {
                hadamard::heads(context.isa, context.pool_for(out.len()), out, (size, heads.dim));
            }
        });
        Ok(())
    })
}

/// Calls `f` for each sequence with rows that take part: with its cache, which of the current rows are its own, and the
/// position of the first of them in the layer's cache.
fn each_segment<'m>(
    layer: usize,
    rows: &Rows<'_>,
    caches: &mut [&mut CpuCache<'m>],
    current: &CurrentRows<'_>,
    mut f: impl FnMut(&mut CpuCache<'m>, Range<usize>, usize) -> Result<()>,
) -> Result<()> {
    for segment in rows.segments() {
        let rows = current.of(segment.row..segment.row + segment.tokens.len());
        if !rows.is_empty() {
            let cache = &mut *caches[segment.sequence];
            let start = cache.stored(layer, segment.position)?;
            f(cache, rows, start)?;
        }
    }
    Ok(())
}

/// Rows of one sequence, whose heads are normalized and rotated.
struct Rotated<'a> {
    isa: Isa,
    /// Weights `(head_dim)` of the norms of queries and of keys.
    norms: Option<(&'a [f32], &'a [f32])>,
    eps: f32,
    pairing: RopePairing,
    /// How many pairs of a head are rotated, the first ones.
    pairs: usize,
    /// What queries are multiplied by.
    query_scale: f32,
    /// `(tokens, head_dim / 2)`
    cos: &'a [f32],
    sin: &'a [f32],
    layer: usize,
    /// Position of the first token.
    start: usize,
    head_dim: usize,
    q_size: usize,
    kv_size: usize,
    /// `(tokens, q_size)`
    q: &'a mut [f32],
    /// `(tokens, kv_size)`
    k: &'a mut [f32],
    /// `(tokens, kv_size)`
    v: &'a mut [f32],
}

/// Normalizes and rotates the heads of `q` and `k`, stores `k` and `v`, and prepares `q` for the cache
/// format. Of formats that say so, the heads of all three are [rotated](rotate_head) before: products of queries and keys stay the same, and
/// the weighted sum of values is rotated back.
struct QkNormRopeStore<'a, C> {
    segment: Rotated<'a>,
    storage: KvStorage<'a, C>,
}

impl<C: FlashCodec> SimdOp for QkNormRopeStore<'_, C> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (segment, mut storage) = (self.segment, self.storage);
        let d = segment.head_dim;
        let angles = segment.cos.chunks_exact(d / 2).zip(segment.sin.chunks_exact(d / 2));
        let tokens =
            segment.q.chunks_exact_mut(segment.q_size).zip(segment.k.chunks_exact_mut(segment.kv_size));
        let tokens = tokens.zip(segment.v.chunks_exact_mut(segment.kv_size)).zip(angles);
        for (t, (((q, k), v), (cos, sin))) in tokens.enumerate() {
            let norms = segment.norms.map_or([None, None], |(q, k)| [Some(q), Some(k)]);
            let (cos, sin) = (&cos[..segment.pairs], &sin[..segment.pairs]);
            for (heads, norm) in [&mut *q, &mut *k].into_iter().zip(norms) {
                for head in heads.chunks_exact_mut(d) {
                    if let Some(norm) = norm {
                        rmsnorm_in_place(head, norm, segment.eps);
                    }
                    let rotated = &mut head[..2 * segment.pairs];
                    match segment.pairing {
                        RopePairing::Neox => rotate(rotated, cos, sin),
                        RopePairing::Interleaved => rotate_interleaved(rotated, cos, sin),
                    }
                }
            }
            if cfg!(feature = "variants") && segment.query_scale != 1.0 {
                q.iter_mut().for_each(|q| *q *= segment.query_scale);
            }
            if C::ROTATED {
                for heads in [&mut *q, &mut *k, &mut *v] {
                    heads.chunks_exact_mut(d).for_each(rotate_head);
                }
            }
            storage.write(segment.layer, segment.start + t, k, v);
            C::prepare(segment.isa, q, d);
        }
    }
}
