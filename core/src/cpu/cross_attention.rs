//! Cross-attention: a decoder's tokens attend to all states of an encoder (Vaswani et al. 2017, section 3.2.3).
//!
//! ```text
//! Q = x Wq^T + bq,  K = s Wk^T + bk,  V = s Wv^T + bv        x (rows, hidden), s (len, width) the encoder's states
//! out = softmax(Q K^T / sqrt(head_dim)) V Wo^T + bo          head by head; (rows, hidden)
//! ```
//! Keys and values are computed once for each text of the encoder, and kept in any [`KvFormat`]. There are no positions and no
//! mask. No architecture of [`Program`](crate::model::Program) has it: encoder-decoder models call it between their own layers.
#![forbid(unsafe_code)]

use alloc::format;
use alloc::vec::Vec;

use super::attention::{CausalAttention, FlashCodec, scratch_len};
use super::cache::CpuCache;
use super::isa::Isa;
use super::matmul::{Input, matmul, matmul_each};
use super::repack::PackedMatrix;
use crate::attention::AttentionPattern;
use crate::cache::{KvFormat, KvShape, with_codec};
use crate::device::SessionOptions;
use crate::error::{Error, Result};
use crate::gguf::Gguf;
use crate::limits::Limits;
use crate::model::program::Heads;
use crate::pool::Pool;
use crate::quant::Matrix;

/// A matrix `(outputs, inputs)` and a bias `(outputs)`, which may be empty: `x W^T + b`.
#[derive(Clone, Debug)]
pub struct Projection<'w> {
    weight: PackedMatrix<'w>,
    bias: Vec<f32>,
}

impl<'w> Projection<'w> {
    /// # Errors
    /// [`Error::Length`] for a bias of another length, unless it is empty.
    pub fn new(weight: Matrix<'w>, bias: Vec<f32>) -> Result<Self> {
        let (expected, found) = (weight.rows() as u64, bias.len() as u64);
        if found > 0 && found != expected {
            return Err(error!(Length { what: "bias of a projection", expected, found }));
        }
        Ok(Projection { weight: weight.into(), bias })
    }

    /// The tensors `NAME.weight` and, if the file has it, `NAME.bias`.
    fn named(gguf: &Gguf<'w>, name: &str) -> Result<Self> {
        let bias_name = format!("{name}.bias");
        let mut bias = Vec::new();
        if gguf.header().tensor(&bias_name).is_some() {
            let row = gguf.matrix(&bias_name)?;
            bias = zeros(row.cols())?;
            row.unpack_row(0, &mut bias)?;
        }
        Projection::new(gguf.matrix(&format!("{name}.weight"))?, bias)
    }

    fn add_bias(&self, rows: &mut [f32]) {
        if !self.bias.is_empty() {
            for row in rows.chunks_exact_mut(self.bias.len()) {
                row.iter_mut().zip(&self.bias).for_each(|(x, b)| *x += b);
            }
        }
    }
}

/// The weights of a cross-attention layer.
///
/// ```
/// use shohin_core::cpu::cross_attention::{CrossAttention, Projection};
/// use shohin_core::cpu::Isa;
/// use shohin_core::model::program::Heads;
/// use shohin_core::quant::Matrix;
/// use shohin_core::{Format, KvFormat, Serial};
///
/// // One head of 2 over 4 wide states; all matrices keep the first two elements.
/// let identity: Vec<u8> = [1.0f32, 0., 0., 0., 0., 1., 0., 0.].iter().flat_map(|x| x.to_le_bytes()).collect();
/// let back: Vec<u8> = [1.0f32, 0., 0., 1., 0., 0., 0., 0.].iter().flat_map(|x| x.to_le_bytes()).collect();
/// let projection = |rows, cols, data| Projection::new(Matrix::new(Format::F32, rows, cols, data)?, Vec::new());
/// let heads = Heads { query: 1, kv: 1, dim: 2 };
/// let [q, k, v] = [(); 3].map(|()| projection(2, 4, &identity));
/// let cross = CrossAttention::new(heads, [q?, k?, v?, projection(4, 2, &back)?], Isa::detect())?;
///
/// // The same state twice: whatever the query, its values come out.
/// let states = [5.0, 7.0, 1.0, 1.0, 5.0, 7.0, 1.0, 1.0];
/// let mut encoded = cross.encode(&states, KvFormat::F32, &Serial)?;
/// let mut scratch = cross.scratch(1, &encoded)?;
/// let mut out = [0.0; 4];
/// cross.attend(&[0.3, -1.0, 0.0, 2.0], &mut encoded, &mut scratch, &Serial, &mut out)?;
/// assert_eq!(out, [5.0, 7.0, 0.0, 0.0]);
/// # Ok::<(), shohin_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CrossAttention<'w> {
    heads: Heads,
    q: Projection<'w>,
    k: Projection<'w>,
    v: Projection<'w>,
    o: Projection<'w>,
    isa: Isa,
}

/// The keys and values of an encoder's states.
#[derive(Debug)]
pub struct Encoded {
    cache: CpuCache<'static>,
    /// Number of states.
    len: usize,
}

impl Encoded {
    /// Number of states.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: there is at least one.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Scratch memory for some rows at once.
#[derive(Debug)]
pub struct CrossScratch {
    rows: usize,
    /// `(rows, query heads * head_dim)`
    q: Vec<f32>,
    /// `(kv heads, rows, query heads / kv heads, head_dim)`
    by_head: Vec<f32>,
    /// The same.
    attended: Vec<f32>,
    parts: Vec<f32>,
}

fn zeros(len: usize) -> Result<Vec<f32>> {
    let need = (len as u64).saturating_mul(4);
    bytemuck::allocation::try_zeroed_vec(len).map_err(|()| error!(Memory { need, have: 0 }))
}

impl<'w> CrossAttention<'w> {
    /// With projections for queries, keys, values, and the output.
    ///
    /// # Errors
    /// [`Error::Option`] for heads that are none, are odd or cannot be shared; [`Error::Length`] for a matrix of another shape.
    pub fn new(heads: Heads, projections: [Projection<'w>; 4], isa: Isa) -> Result<Self> {
        let Heads { query, kv, dim } = heads;
        let most = usize::from(u16::MAX);
        for (what, found, right) in [
            ("heads of cross-attention", query, (1..=most).contains(&query)),
            ("key-value heads of cross-attention", kv, kv > 0 && query.is_multiple_of(kv)),
            ("elements of a head", dim, (2..=most).contains(&dim) && dim.is_multiple_of(2)),
        ] {
            if !right {
                let expected = "at least 1, a divisor of the query heads, or an even number";
                return Err(error!(Option { what, found: found as f64, expected }));
            }
        }
        let [q, k, v, o] = projections;
        let (hidden, width) = (q.weight.cols(), k.weight.cols());
        for (what, found, expected) in [
            ("rows of the query projection", q.weight.rows(), query * dim),
            ("rows of the key projection", k.weight.rows(), kv * dim),
            ("rows of the value projection", v.weight.rows(), kv * dim),
            ("columns of the value projection", v.weight.cols(), width),
            ("columns of the output projection", o.weight.cols(), query * dim),
            ("rows of the output projection", o.weight.rows(), hidden),
        ] {
            if found != expected {
                return Err(error!(Length { what, expected: expected as u64, found: found as u64 }));
            }
        }
        Ok(CrossAttention { heads, q, k, v, o, isa })
    }

    /// With the tensors `PREFIX_q`, `PREFIX_k`, `PREFIX_v` and `PREFIX_o`, each `.weight` and perhaps `.bias`, as in GGUF files of
    /// T5, where the prefix is `dec.blk.N.cross_attn`.
    ///
    /// # Errors
    /// If a weight is missing or not loadable, and as [`CrossAttention::new`].
    pub fn from_gguf(gguf: &Gguf<'w>, prefix: &str, heads: Heads, isa: Isa) -> Result<Self> {
        let named = |which: &str| Projection::named(gguf, &format!("{prefix}_{which}"));
        CrossAttention::new(heads, [named("q")?, named("k")?, named("v")?, named("o")?], isa)
    }

    /// Computes keys and values of the encoder's `states` `(len, width)`.
    ///
    /// # Errors
    /// [`Error::Length`] for no states, or part of one; [`Error::Unsupported`] if the format was left out of this build;
    /// [`Error::Memory`].
    pub fn encode(&self, states: &[f32], format: KvFormat, pool: &dyn Pool) -> Result<Encoded> {
        let (width, kv_size) = (self.k.weight.cols(), self.k.weight.rows());
        let len = rows_of("encoder states", states, width)?;
        if len as u64 > Limits::DEFAULT.context {
            return Err(error!(Limit {
                what: "encoder states",
                found: len as u64,
                max: Limits::DEFAULT.context,
            }));
        }
        let shape = KvShape { layers: 1, kv_heads: self.heads.kv, capacity: len, head_dim: self.heads.dim };
        let options = SessionOptions { context: len, kv: format, attention: AttentionPattern::Full };
        let mut cache = CpuCache::new(&options, shape, &[])?;
        // Some at a time, so that these are not all there as floats.
        const AT_ONCE: usize = 64;
        let rows = AT_ONCE.min(len);
        let (mut k, mut v) = (zeros(rows * kv_size)?, zeros(rows * kv_size)?);
        for (i, part) in states.chunks(rows * width).enumerate() {
            let n = part.len() / width;
            let (k, v) = (&mut k[..n * kv_size], &mut v[..n * kv_size]);
            let input = Input { f32: part, q8: None, luts: &[] };
            matmul_each(
                self.isa,
                pool,
                &input,
                n,
                &mut [(self.k.weight, &mut *k), (self.v.weight, &mut *v)],
            )?;
            self.k.add_bias(k);
            self.v.add_bias(v);
            with_codec!(format, C => {
                let mut storage = cache.storage::<C>()?;
                for (j, (k, v)) in k.chunks_exact(kv_size).zip(v.chunks_exact(kv_size)).enumerate() {
                    storage.write(0, i * rows + j, k, v);
                }
            });
        }
        Ok(Encoded { cache, len })
    }

    /// Scratch memory for `rows` at once over `encoded`, or over another one that is not longer.
    ///
    /// # Errors
    /// [`Error::Memory`], [`Error::Limit`].
    pub fn scratch(&self, rows: usize, encoded: &Encoded) -> Result<CrossScratch> {
        let (rows, max) = (rows.max(1), 1 << 16);
        if rows > max {
            return Err(error!(Limit { what: "rows at once", found: rows as u64, max: max as u64 }));
        }
        let q = rows.saturating_mul(self.q.weight.rows());
        let parts = scratch_len(&encoded.cache.shape, rows.saturating_mul(self.heads.query), 1);
        Ok(CrossScratch { rows, q: zeros(q)?, by_head: zeros(q)?, attended: zeros(q)?, parts: zeros(parts)? })
    }

    /// Writes the attention of `x` `(rows, hidden)` over the encoder's states to `out` `(rows, hidden)`. Rows do not depend on
    /// each other, and as everywhere the bits depend neither on the pool nor on the instruction set.
    ///
    /// # Errors
    /// [`Error::Length`] for a part of a row, another length of `out`, or `encoded` and `scratch` of another layer's shape.
    pub fn attend(
        &self,
        x: &[f32],
        encoded: &mut Encoded,
        scratch: &mut CrossScratch,
        pool: &dyn Pool,
        out: &mut [f32],
    ) -> Result<()> {
        let (hidden, q_size) = (self.q.weight.cols(), self.q.weight.rows());
        rows_of("inputs of cross-attention", x, hidden)?;
        let shape = encoded.cache.shape;
        let parts = scratch_len(&shape, scratch.rows.saturating_mul(self.heads.query), 1);
        for (what, expected, found) in [
            ("outputs of cross-attention", x.len(), out.len()),
            ("key-value heads of the encoder's states", self.heads.kv, shape.kv_heads),
            ("elements of a head of the encoder's states", self.heads.dim, shape.head_dim),
            ("scratch of cross-attention", scratch.rows * q_size, scratch.q.len()),
            ("scratch for the encoder's states", parts, scratch.parts.len().min(parts)),
        ] {
            if expected != found {
                return Err(error!(Length { what, expected: expected as u64, found: found as u64 }));
            }
        }
        let at_once = scratch.rows * hidden;
        for (x, out) in x.chunks(at_once).zip(out.chunks_mut(at_once)) {
            let n = x.len() / hidden;
            let q = &mut scratch.q[..n * q_size];
            matmul(self.isa, pool, &self.q.weight, &Input { f32: x, q8: None, luts: &[] }, n, q)?;
            self.q.add_bias(q);
            with_codec!(encoded.cache.format, C => self.heads_of::<C>(n, encoded, scratch, pool)?);
            let input = Input { f32: &scratch.q[..n * q_size], q8: None, luts: &[] };
            matmul(self.isa, pool, &self.o.weight, &input, n, out)?;
            self.o.add_bias(out);
        }
        Ok(())
    }

    /// Replaces the queries in `scratch.q` by what they attend to.
    fn heads_of<C: FlashCodec>(
        &self,
        n: usize,
        encoded: &mut Encoded,
        scratch: &mut CrossScratch,
        pool: &dyn Pool,
    ) -> Result<()> {
        let Heads { query, kv, dim } = self.heads;
        // Without a mask, all rows that share a key-value head are the queries of one token at the last position.
        let (group, width) = (query / kv, query / kv * dim);
        let CrossScratch { q, by_head, attended, parts, .. } = scratch;
        let (by_head, attended) = (&mut by_head[..n * query * dim], &mut attended[..n * query * dim]);
        for (i, q) in q.chunks_exact(width).take(n * kv).enumerate() {
            let (row, head) = (i / kv, i % kv);
            by_head[(head * n + row) * width..][..width].copy_from_slice(q);
        }
        C::prepare(self.isa, by_head, dim);
        let cache = encoded.cache.storage::<C>()?;
        let attention = CausalAttention {
            cache: &cache,
            layer: 0,
            start: encoded.len - 1,
            group: n * group,
            pattern: AttentionPattern::Full,
            slopes: &[],
            q: by_head,
        };
        attention.run(self.isa, pool, attended, parts);
        for (i, q) in q.chunks_exact_mut(width).take(n * kv).enumerate() {
            let (row, head) = (i / kv, i % kv);
            q.copy_from_slice(&attended[(head * n + row) * width..][..width]);
        }
        Ok(())
    }
}

/// The number of rows; at least 1, and no part of one.
fn rows_of(what: &'static str, x: &[f32], cols: usize) -> Result<usize> {
    match x.len().checked_div(cols) {
        Some(rows) if rows > 0 && rows * cols == x.len() => Ok(rows),
        _ => Err(error!(Length { what, expected: cols as u64, found: x.len() as u64 })),
    }
}
