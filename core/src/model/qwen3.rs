//! The forward pass of Qwen3, top to bottom.
//!
//! ```text
//! token -> embedding -> N x block -> RMSNorm -> head -> logits
//! block:  x += Wo attention(rope(norm(Wq n)), rope(norm(Wk n)), Wv n)   with n = RMSNorm(x)
//!         x += Wdown (silu(Wgate m) * Wup m)                            with m = RMSNorm(x)
//! ```
#![forbid(unsafe_code)]

use super::config::Qwen3Config;
use super::weights::{TransformerBlock, Weights};
use crate::attention::full::FullAttention;
use crate::cache::Store;
use crate::error::{Error, Result};
use crate::gguf::Gguf;
use crate::kernel::attend::Source;
use crate::kernel::{
    self, Input, Isa, Q8Block, Tables, Vectorize, for_each_chunk, matmul, matmul_each, q8_blocks, vectorize,
};
use crate::op::rmsnorm::{RmsNorm, rmsnorm_in_place};
use crate::op::rope::{Rope, rotate};
use crate::op::swiglu::Swiglu;
use crate::pool::{Pool, Serial};
use crate::quant::Matrix;

/// A loaded model: configuration and weights, immutable, shared by any number of sessions. Named after
/// the family it serves; any `qwen3` GGUF loads.
#[derive(Debug)]
pub struct BonsaiModel<'a> {
    config: Qwen3Config,
    weights: Weights<'a>,
    rope: Rope,
}

impl<'a> BonsaiModel<'a> {
    /// Checks configuration and tensors of `gguf`. Weights stay where they are and stay packed.
    pub fn from_gguf(gguf: &Gguf<'a>) -> Result<Self> {
        Self::with_config(gguf, Qwen3Config::from_gguf(gguf)?)
    }

    /// As [`BonsaiModel::from_gguf`], with numbers of the configuration overridden (rope scaling, say).
    pub fn with_config(gguf: &Gguf<'a>, config: Qwen3Config) -> Result<Self> {
        config.check()?;
        let weights = Weights::from_gguf(gguf, &config)?;
        let rope = Rope::new(config.head_dim, config.rope_freq_base, config.rope_scaling);
        Ok(BonsaiModel { config, weights, rope })
    }

    /// The model's numbers.
    pub fn config(&self) -> &Qwen3Config {
        &self.config
    }

    /// Its rotary embedding.
    pub(super) fn rope(&self) -> &Rope {
        &self.rope
    }

    /// The model's tensors.
    pub fn weights(&self) -> &Weights<'a> {
        &self.weights
    }
}

/// Working memory of one forward pass over up to `batch` tokens.
pub(super) struct Buffers<'b> {
    /// Residual stream, `(batch, hidden)`.
    pub(super) x: &'b mut [f32],
    /// Input of a matrix product, `(batch, max(hidden, q_size))`: normed rows, then attention's output.
    pub(super) input: &'b mut [f32],
    /// `(batch, q_size)`
    pub(super) q: &'b mut [f32],
    /// `(batch, kv_size)`
    pub(super) k: &'b mut [f32],
    /// `(batch, kv_size)`
    pub(super) v: &'b mut [f32],
    /// `(batch, intermediate)`
    pub(super) gate: &'b mut [f32],
    /// `(batch, intermediate)`
    pub(super) up: &'b mut [f32],
    /// What a block adds to the residual stream, `(batch, hidden)`.
    pub(super) delta: &'b mut [f32],
    /// Rotations of the batch's positions, each `(batch, head_dim / 2)`.
    pub(super) cos: &'b mut [f32],
    pub(super) sin: &'b mut [f32],
    /// Attention's own.
    pub(super) spare: &'b mut [f32],
    /// int8 form of the current matrix input, `(batch, blocks of its width)`; `None` computes with f32 activations.
    pub(super) q8: Option<&'b mut [Q8Block]>,
    /// Its tables; empty if no matrix has a use for them.
    pub(super) tables: &'b mut [Tables],
}

/// What stays the same during a forward pass.
pub(super) struct Pass<'p> {
    pub(super) isa: Isa,
    pub(super) pool: &'p dyn Pool,
    /// Position of the first token.
    pub(super) start: usize,
}

impl<'p> Pass<'p> {
    /// The pool, or none for so few multiplications that waking another thread takes longer.
    fn pool_for(&self, products: usize) -> &'p dyn Pool {
        const FEW: usize = 1 << 18; // some ten microseconds
        if products < FEW { &Serial } else { self.pool }
    }
}

impl BonsaiModel<'_> {
    /// Runs `tokens` (at most the batch) through all blocks: fills the cache at their positions and leaves
    /// the residual stream in `b.x`. The caller has checked ids and room.
    pub(super) fn forward_blocks<'c, C: Store<'c>>(
        &self,
        tokens: &[u32],
        cache: &mut C,
        b: &mut Buffers<'_>,
        pass: &Pass<'_>,
    ) -> Result<()> {
        let (h, half) = (self.config.hidden_size, self.config.head_dim / 2);
        for (t, &token) in tokens.iter().enumerate() {
            self.weights.token_embd.unpack_row(token as usize, &mut b.x[t * h..(t + 1) * h])?;
            let angles = t * half..(t + 1) * half;
            self.rope.angles(pass.start + t, &mut b.cos[angles.clone()], &mut b.sin[angles]);
        }
        for (layer, block) in self.weights.blocks.iter().enumerate() {
            self.attention(layer, block, tokens.len(), cache, b, pass)?;
            self.feed_forward(block, tokens.len(), b, pass)?;
        }
        Ok(())
    }

    fn attention<'c, C: Store<'c>>(
        &self,
        layer: usize,
        block: &TransformerBlock<'_>,
        n: usize,
        cache: &mut C,
        b: &mut Buffers<'_>,
        pass: &Pass<'_>,
    ) -> Result<()> {
        let c = &self.config;
        let (h, q_size, kv_size) = (c.hidden_size, c.q_size(), c.kv_size());
        let (x, input) = (&b.x[..n * h], &mut b.input[..n * h]);
        self.rmsnorm(pass, x, &block.attn_norm, input);
        let input = quantize(pass, input, n, &mut b.q8, b.tables)?;
        let products = [
            (&block.attn_q, &mut b.q[..n * q_size]),
            (&block.attn_k, &mut b.k[..n * kv_size]),
            (&block.attn_v, &mut b.v[..n * kv_size]),
        ];
        matmul_each(pass.isa, pass.pool, &input, n, products)?;

        let (q, k, v) = (&mut b.q[..n * q_size], &mut b.k[..n * kv_size], &b.v[..n * kv_size]);
        vectorize(
            pass.isa,
            Remember { block, config: c, cos: b.cos, sin: b.sin, layer, start: pass.start, q, k, v, cache },
        );
        let (cache, group) = (&*cache, c.num_attention_heads / c.num_kv_heads);
        FullAttention { cache, layer, start: pass.start, group, q: &b.q[..n * q_size] }.run(
            pass.isa,
            pass.pool,
            &mut b.input[..n * q_size],
            b.spare,
        );
        let input = quantize(pass, &b.input[..n * q_size], n, &mut b.q8, b.tables)?;
        linear(pass, &block.attn_output, &input, n, &mut b.delta[..n * h])?;
        add(&mut b.x[..n * h], &b.delta[..n * h]);
        Ok(())
    }

    fn feed_forward(
        &self,
        block: &TransformerBlock<'_>,
        n: usize,
        b: &mut Buffers<'_>,
        pass: &Pass<'_>,
    ) -> Result<()> {
        let (h, f) = (self.config.hidden_size, self.config.intermediate_size);
        let input = &mut b.input[..n * h];
        self.rmsnorm(pass, &b.x[..n * h], &block.ffn_norm, input);
        let input = quantize(pass, input, n, &mut b.q8, b.tables)?;
        let products = [(&block.ffn_gate, &mut b.gate[..n * f]), (&block.ffn_up, &mut b.up[..n * f])];
        matmul_each(pass.isa, pass.pool, &input, n, products)?;
        for_each_chunk(pass.pool_for(n * f), &mut b.gate[..n * f], f, &|t, gate| {
            vectorize(pass.isa, Swiglu { gate, up: &b.up[t * f..(t + 1) * f] });
        });
        let input = quantize(pass, &b.gate[..n * f], n, &mut b.q8, b.tables)?;
        linear(pass, &block.ffn_down, &input, n, &mut b.delta[..n * h])?;
        add(&mut b.x[..n * h], &b.delta[..n * h]);
        Ok(())
    }

    /// Rows `rows` of the residual stream after the last norm, `(rows, hidden)`: what the head reads.
    pub(super) fn normed<'b>(
        &self,
        rows: core::ops::Range<usize>,
        b: &'b mut Buffers<'_>,
        pass: &Pass<'_>,
    ) -> &'b [f32] {
        let h = self.config.hidden_size;
        let input = &mut b.input[..rows.len() * h];
        self.rmsnorm(pass, &b.x[rows.start * h..rows.end * h], &self.weights.output_norm, input);
        input
    }

    /// Logits of rows `rows` of the residual stream, `(rows, vocab)`.
    pub(super) fn head(
        &self,
        rows: core::ops::Range<usize>,
        b: &mut Buffers<'_>,
        logits: &mut [f32],
        pass: &Pass<'_>,
    ) -> Result<()> {
        let (h, n) = (self.config.hidden_size, rows.len());
        self.normed(rows, b, pass);
        let input = quantize(pass, &b.input[..n * h], n, &mut b.q8, b.tables)?;
        linear(pass, &self.weights.output, &input, n, &mut logits[..n * self.config.vocab_size])
    }

    /// `x`, `y`: `(rows, n)`, `weight`: `(n)`
    fn rmsnorm(&self, pass: &Pass<'_>, x: &[f32], weight: &[f32], y: &mut [f32]) {
        vectorize(pass.isa, RmsNorm { x, weight, eps: self.config.rms_norm_eps, y });
    }

    /// An error for the first id outside the vocabulary.
    pub(super) fn check_tokens(&self, tokens: &[u32]) -> Result<()> {
        let vocab = self.config.vocab_size as u32;
        tokens.iter().find(|&&id| id >= vocab).map_or(Ok(()), |&id| Err(Error::Token { id, vocab }))
    }
}

/// Normalises and rotates the heads of `q` and `k`, puts `k` and `v` into the cache, and gives `q` the form
/// that the cache's attention takes.
struct Remember<'a, C> {
    block: &'a TransformerBlock<'a>,
    config: &'a Qwen3Config,
    /// `(tokens, head_dim / 2)` and more
    cos: &'a [f32],
    sin: &'a [f32],
    layer: usize,
    /// Position of the first token.
    start: usize,
    /// `(tokens, q_size)`
    q: &'a mut [f32],
    /// `(tokens, kv_size)`
    k: &'a mut [f32],
    /// `(tokens, kv_size)`
    v: &'a [f32],
    cache: &'a mut C,
}

impl<'c, C: Store<'c>> Vectorize for Remember<'_, C> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (c, d) = (self.config, self.config.head_dim);
        let angles = self.cos.chunks_exact(d / 2).zip(self.sin.chunks_exact(d / 2));
        let tokens = self.q.chunks_exact_mut(c.q_size()).zip(self.k.chunks_exact_mut(c.kv_size()));
        let tokens = tokens.zip(self.v.chunks_exact(c.kv_size())).zip(angles);
        for (t, (((q, k), v), (cos, sin))) in tokens.enumerate() {
            for (heads, norm) in [(&mut *q, &self.block.attn_q_norm), (&mut *k, &self.block.attn_k_norm)] {
                for head in heads.chunks_exact_mut(d) {
                    rmsnorm_in_place(head, norm, c.rms_norm_eps);
                    rotate(head, cos, sin);
                }
            }
            self.cache.write(self.layer, self.start + t, k, v);
            <C::Head<'_> as Source>::prepare(q, d);
        }
    }
}

/// Prepares activations `(n, cols)` for the matrix products that share them.
fn quantize<'x>(
    pass: &Pass<'_>,
    x: &'x [f32],
    n: usize,
    q8: &'x mut Option<&mut [Q8Block]>,
    tables: &'x mut [Tables],
) -> Result<Input<'x>> {
    let Some(blocks) = q8 else { return Ok(Input { f32: x, q8: None, tables: &[] }) };
    let cols = x.len() / n;
    let blocks = &mut blocks[..n * q8_blocks(cols)];
    kernel::quantize(pass.isa, x, cols, blocks)?;
    let wanted = kernel::tables(pass.isa, n, cols).min(tables.len());
    let tables = &mut tables[..wanted];
    if !tables.is_empty() {
        kernel::fill_tables(pass.isa, blocks, cols, tables)?;
    }
    Ok(Input { f32: x, q8: Some(blocks), tables })
}

/// `y (n, rows) = x (n, cols) w^T`
fn linear(pass: &Pass<'_>, w: &Matrix<'_>, x: &Input<'_>, n: usize, y: &mut [f32]) -> Result<()> {
    matmul(pass.isa, pass.pool, w, x, n, y)
}

fn add(x: &mut [f32], delta: &[f32]) {
    for (x, d) in x.iter_mut().zip(delta) {
        *x += d;
    }
}
