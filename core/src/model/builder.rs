//! How an architecture writes its forward pass.
#![forbid(unsafe_code)]

use alloc::vec::Vec;

use heapless::Vec as ArrayVec;

use super::config::{ExpertsConfig, ModelConfig};
use super::names::tensor_name;
use super::positions::{RopeFactors, Rotary};
use super::program::{
    BufferId, Experts, Heads, MAX_OUTPUTS, Op, Program, QkNorm, RopePairing, TensorId, TensorRole, TensorSpec,
};
use super::rope::{Rope, RopeScaling};
use super::{alibi, depths};

/// Builds a [`Program`], operation by operation. Tensor names are those of GGUF files without `blk.N.` and
/// `.weight`.
#[derive(Debug)]
pub struct Builder {
    program: Program,
    eps: f32,
    /// The current layer, if there is one.
    layer: Option<usize>,
}

impl Builder {
    /// Starts a program. `eps` applies to every norm.
    pub fn new(heads: Heads, rope: Rope, pairing: RopePairing, eps: f32) -> Builder {
        let none = BufferId::at(0);
        let program = Program {
            tensors: Vec::new(),
            buffers: Vec::new(),
            body: Vec::new(),
            tail: Vec::new(),
            head: Vec::new(),
            blocks: Vec::new(),
            ranks: 1,
            stages: 1,
            residual: none,
            hidden: none,
            output: TensorId::at(0),
            divided_vocab: None,
            layers: 0,
            routed_layers: Vec::new(),
            heads,
            rope,
            rope_factors: None,
            pairing,
            alibi_slopes: Vec::new(),
        };
        Builder { program, eps, layer: None }
    }

    fn tensor(&mut self, name: &str, rows: usize, cols: usize, role: TensorRole) -> TensorId {
        let name = tensor_name(self.layer, name);
        self.program.tensors.push(TensorSpec { name, rows, cols, role, matrices: 1, read: 1 });
        TensorId::at(self.program.tensors.len() - 1)
    }

    /// A matrix `(rows, cols)` for each of `matrices` experts, of which a token reads `read`.
    fn stack(&mut self, name: &str, [matrices, read]: [usize; 2], rows: usize, cols: usize) -> TensorId {
        let id = self.matrix(name, rows.saturating_mul(matrices), cols);
        let spec = &mut self.program.tensors[id.index()];
        (spec.matrices, spec.read) = (matrices, read);
        id
    }

    /// Adds the tensors of the file that the frequencies of the rotary embedding can be divided by, and the slopes of
    /// ALiBi, as `config` says.
    pub fn positions(&mut self, config: &ModelConfig) {
        let max_bias = config.positions.max_alibi_bias();
        if cfg!(feature = "variants") && max_bias > 0.0 {
            self.program.alibi_slopes = alibi::slopes(config.num_attention_heads, max_bias);
        }
        let pairs = self.program.heads.dim / 2;
        let mut factors = |name| self.tensor(name, 1, pairs, TensorRole::Vector);
        let Rotary { scaling, factors: found, .. } = config.positions.frequencies();
        self.program.rope_factors = match found {
            RopeFactors::None => None,
            RopeFactors::Llama3 => Some(factors("rope_freqs")),
            RopeFactors::LongRope => {
                let [short, long] = ["rope_factors_short", "rope_factors_long"].map(factors);
                match scaling {
                    RopeScaling::LongRope { original_context, context, .. } => {
                        Some(if context > original_context { long } else { short })
                    }
                    _ => None,
                }
            }
        };
    }

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> TensorId {
        self.tensor(name, rows, cols, TensorRole::Matrix)
    }

    fn vector(&mut self, name: &str, len: usize) -> TensorId {
        self.tensor(name, 1, len, TensorRole::Vector)
    }

    /// Looks up the rows of the embedding `(vocab, cols)` for the tokens; returns the residual stream.
    pub fn embed(&mut self, name: &str, vocab: usize, cols: usize) -> (TensorId, Stream) {
        let table = self.matrix(name, vocab, cols);
        let out = self.program.buffer("residual", cols);
        self.program.body.push(Op::Embed { table, out });
        self.program.residual = out;
        (table, Stream { buffer: out, cols })
    }

    /// Starts block `layer`, whose tensors the following operations use.
    pub fn block(&mut self, layer: usize) {
        self.layer = Some(layer);
        self.program.layers = self.program.layers.max(layer + 1);
        self.program.blocks.push(self.program.body.len());
    }

    /// The rows of `x` that the block's [router](depths) lets take part, which the following operations compute.
    pub fn select(&mut self, x: Stream) -> Stream {
        let router = self.vector(depths::ROUTER, x.cols);
        let out = self.program.buffer("taking part", x.cols);
        let layer = self.layer.unwrap_or(0);
        self.program.routed_layers.push(layer);
        self.program.body.push(Op::Select { layer, x: x.buffer, router, out });
        Stream { buffer: out, cols: x.cols }
    }

    /// Ends what [`Builder::select`] began: what the block added to `x`, times the router's weights, is added to `to`.
    pub fn merge(&mut self, x: Stream, to: Stream) {
        self.program.body.push(Op::Merge { x: x.buffer, to: to.buffer });
    }

    /// `x / rms(x) * weight`
    pub fn rmsnorm(&mut self, x: Stream, name: &str) -> Stream {
        let weight = self.vector(name, x.cols);
        let out = self.program.buffer("input", x.cols);
        self.program.body.push(Op::RmsNorm { x: x.buffer, weight, eps: self.eps, out });
        Stream { buffer: out, cols: x.cols }
    }

    /// Several products with the same input: tensor, buffer and outputs of each.
    pub fn linear<const N: usize>(
        &mut self,
        x: Stream,
        outputs: [(&str, &'static str, usize); N],
    ) -> [Stream; N] {
        const { assert!(N <= MAX_OUTPUTS) };
        let mut list = ArrayVec::new();
        let streams = outputs.map(|(name, buffer, cols)| {
            let weight = self.matrix(name, cols, x.cols);
            let buffer = self.program.buffer(buffer, cols);
            // There is room for N.
            let _ = list.push((weight, buffer));
            Stream { buffer, cols }
        });
        self.program.body.push(Op::Linear { x: x.buffer, outputs: list });
        streams
    }

    /// The queries, keys and values of a block: [`Builder::linear`] with `attn_q`, `attn_k` and `attn_v`.
    pub fn linear_qkv(&mut self, x: Stream, config: &ModelConfig) -> [Stream; 3] {
        let (q, kv) = (config.q_size(), config.kv_size());
        self.linear(x, [("attn_q", "q", q), ("attn_k", "k", kv), ("attn_v", "v", kv)])
    }

    /// `to += x W^T`
    pub fn linear_add(&mut self, x: Stream, name: &str, to: Stream) {
        let weight = self.matrix(name, to.cols, x.cols);
        self.program.body.push(Op::LinearAdd { x: x.buffer, weight, to: to.buffer });
    }

    /// `silu(x G^T) * (x U^T)`, of `cols` outputs.
    pub fn linear_swiglu(&mut self, x: Stream, gate: &str, up: &str, cols: usize) -> Stream {
        let gate = self.matrix(gate, cols, x.cols);
        let up = self.matrix(up, cols, x.cols);
        let out = self.program.buffer("gate", cols);
        self.program.body.push(Op::LinearSwiglu { x: x.buffer, gate, up, out });
        Stream { buffer: out, cols }
    }

    /// `to += ` the experts' feed-forward blocks of `x`, weighted by the router's probabilities.
    pub fn experts(&mut self, x: Stream, shape: ExpertsConfig, to: Stream) {
        let ExpertsConfig { count, used, feed_forward, normalize } = shape;
        let router = self.matrix("ffn_gate_inp", count, x.cols);
        let gate = self.stack("ffn_gate_exps", [count, used], feed_forward, x.cols);
        let up = self.stack("ffn_up_exps", [count, used], feed_forward, x.cols);
        let down = self.stack("ffn_down_exps", [count, used], to.cols, feed_forward);
        let probabilities = self.program.buffer("probabilities", count);
        let routed = self.program.buffer("routed", x.cols);
        let gated = self.program.buffer("gate", feed_forward);
        let (x, to) = (x.buffer, to.buffer);
        let experts =
            Experts { x, router, gate, up, down, used, normalize, probabilities, routed, gated, to };
        self.program.body.push(Op::Experts(experts));
    }

    /// Normalizes heads by the tensors `norm` (for queries, for keys), rotates them, and stores keys and
    /// values.
    pub fn rope_store(&mut self, [q, k, v]: [Stream; 3], norm: Option<[&str; 2]>) {
        let dim = self.program.heads.dim;
        let norm = norm.map(|[q, k]| QkNorm { q: self.vector(q, dim), k: self.vector(k, dim) });
        let layer = self.layer.unwrap_or(0);
        let (q, k, v) = (q.buffer, k.buffer, v.buffer);
        self.program.body.push(Op::RopeStore { layer, q, k, v, norm, eps: self.eps });
    }

    /// Causal attention of `q` over the cache.
    pub fn attention(&mut self, q: Stream) -> Stream {
        let out = self.program.buffer("input", q.cols);
        let layer = self.layer.unwrap_or(0);
        self.program.body.push(Op::Attention { layer, q: q.buffer, out });
        Stream { buffer: out, cols: q.cols }
    }

    /// Ends the program: the final norm `norm` of `x`, and the logits from the matrix `output`.
    pub fn head(mut self, x: Stream, norm: &str, output: Output<'_>) -> Program {
        self.layer = None;
        let weight = self.vector(norm, x.cols);
        let out = self.program.buffer("input", x.cols);
        self.program.head.push(Op::RmsNorm { x: x.buffer, weight, eps: self.eps, out });
        self.program.hidden = out;
        self.program.output = match output {
            Output::Tied(table) => table,
            Output::Own(name, vocab) => self.matrix(name, vocab, x.cols),
        };
        self.program
    }
}

/// A value in a program being built: a buffer, and how many elements of its rows are used.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    buffer: BufferId,
    cols: usize,
}

/// A model's output matrix.
#[derive(Clone, Copy, Debug)]
pub enum Output<'n> {
    /// It is the embedding.
    Tied(TensorId),
    /// A tensor with this name, for this many tokens.
    Own(&'n str, usize),
}

impl<'a> Output<'a> {
    /// The matrix `name`, or the table of embeddings in models that use it for both.
    pub fn of(config: &ModelConfig, embedding: TensorId, name: &'a str) -> Self {
        match config.tied_embeddings {
            true => Output::Tied(embedding),
            false => Output::Own(name, config.vocab_size),
        }
    }
}
