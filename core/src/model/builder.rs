//! How an architecture writes its forward pass.
#![forbid(unsafe_code)]

use alloc::string::String;
use alloc::vec::Vec;

use heapless::Vec as ArrayVec;

use super::config::{ExpertsConfig, LayerKinds, ModelConfig, Recurrence};
use super::names::tensor_name;
use super::positions::{Positions, RopeFactors, Rotary};
use super::program::{
    Activation, BufferId, Conv, DeltaNet, Experts, GatedNorm, MAX_OUTPUTS, Op, Program, QkNorm, RopePairing,
    TensorId, TensorRole, TensorSpec,
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
    /// The rotations of layers with a window, and of those without one.
    windowed: usize,
    unrotated: usize,
}

impl Builder {
    /// Starts a program of a model with `config`, with its positions: the tensors of the file that the frequencies of the
    /// rotary embedding can be divided by, and the slopes of ALiBi.
    pub fn new(config: &ModelConfig, pairing: RopePairing) -> Builder {
        let none = BufferId::at(0);
        let LayerKinds { rotary, unrotated, .. } = &config.layers;
        let mut rotations = Vec::from([config.positions.rope(config.rotated_len())]);
        let (mut of_windowed, mut of_unrotated) = (0, 0);
        if cfg!(feature = "variants") {
            if let Some(rotary) = *rotary {
                of_windowed = rotations.len();
                rotations.push(Positions::Rotary(rotary).rope(config.rotated_len()));
            }
            if !unrotated.is_empty() {
                of_unrotated = rotations.len();
                rotations.push(Rope::none(0));
            }
        }
        let query_scale = match cfg!(feature = "variants") {
            true => config.scales.of_queries(config.head_dim),
            false => 1.0,
        };
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
            state_len: 0,
            routed_layers: Vec::new(),
            heads: config.heads(),
            rotations,
            rope_factors: None,
            pairing,
            query_scale,
            bases: Vec::new(),
            before_output: None,
            alibi_slopes: Vec::new(),
        };
        let mut builder = Builder {
            program,
            eps: config.rms_norm_eps,
            layer: None,
            windowed: of_windowed,
            unrotated: of_unrotated,
        };
        builder.positions(config);
        builder
    }

    fn tensor(&mut self, name: &str, rows: usize, cols: usize, role: TensorRole) -> TensorId {
        let name = tensor_name(self.layer, name, ".weight");
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

    fn positions(&mut self, config: &ModelConfig) {
        let max_bias = config.positions.max_alibi_bias();
        if cfg!(feature = "variants") && max_bias > 0.0 {
            self.program.alibi_slopes = alibi::slopes(config.num_attention_heads, max_bias);
        }
        let pairs = config.rotated_len() / 2;
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
        self.rmsnorm_in(x, name, "input")
    }

    /// [`Builder::rmsnorm`] in a buffer of this name.
    pub fn rmsnorm_in(&mut self, x: Stream, name: &str, buffer: &'static str) -> Stream {
        let weight = self.vector(name, x.cols);
        let out = self.program.buffer(buffer, x.cols);
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
        let streams = self.linear(x, [("attn_q", "q", q), ("attn_k", "k", kv), ("attn_v", "v", kv)]);
        if cfg!(feature = "variants") && config.biases.qkv {
            for (stream, name) in streams.into_iter().zip(["attn_q", "attn_k", "attn_v"]) {
                self.bias(stream, name);
            }
        }
        streams
    }

    /// `x += b`, where `b` is the vector `name.bias`.
    pub fn bias(&mut self, x: Stream, name: &str) {
        let bias = self.named(tensor_name(self.layer, name, ".bias"), x.cols);
        self.program.body.push(Op::Bias { x: x.buffer, bias });
    }

    /// The vector with this name in the file.
    fn named(&mut self, name: String, len: usize) -> TensorId {
        let role = TensorRole::Vector;
        self.program.tensors.push(TensorSpec { name, rows: 1, cols: len, role, matrices: 1, read: 1 });
        TensorId::at(self.program.tensors.len() - 1)
    }

    /// `x *= factor`, unless it is 1.
    pub fn scale(&mut self, x: Stream, factor: f32) {
        if cfg!(feature = "variants") && factor != 1.0 {
            self.program.body.push(Op::Scale { x: x.buffer, cols: x.cols, factor });
        }
    }

    /// `to += x`
    pub fn add(&mut self, x: Stream, to: Stream) {
        self.program.body.push(Op::Add { x: x.buffer, to: to.buffer, cols: to.cols });
    }

    /// The attention of a block: `x += Wo attention(Wq n, Wk n, Wv n)`, with the model's biases. `norm` are the tensors that
    /// normalize the heads of queries and of keys.
    pub fn attention_block(&mut self, n: Stream, x: Stream, norm: Option<[&str; 2]>, config: &ModelConfig) {
        let qkv = self.linear_qkv(n, config);
        self.rope_store(qkv, norm, config);
        let attended = self.attention(qkv[0], config);
        self.scale(attended, config.scales.residual);
        self.linear_add(attended, "attn_output", x);
        if cfg!(feature = "variants") && config.biases.output {
            self.bias(x, "attn_output");
        }
    }

    /// A gated feed-forward block: `x += Wdown (silu(Wgate m) * Wup m)`.
    pub fn feed_forward(&mut self, m: Stream, x: Stream, config: &ModelConfig) {
        let gated = self.linear_swiglu(m, "ffn_gate", "ffn_up", config.intermediate_size);
        self.scale(gated, config.scales.residual);
        self.linear_add(gated, "ffn_down", x);
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

    /// `f(x G^T) * (x U^T)`, of `cols` outputs.
    pub fn linear_gated(&mut self, x: Stream, f: Activation, gate: &str, up: &str, cols: usize) -> Stream {
        if f == Activation::Silu {
            return self.linear_swiglu(x, gate, up, cols);
        }
        let [gate, up] = self.linear(x, [(gate, "gate", cols), (up, "up", cols)]);
        self.gated(gate, up, f)
    }

    /// `to += ` the experts' feed-forward blocks of `x`, weighted by the router's probabilities.
    pub fn experts(&mut self, x: Stream, shape: ExpertsConfig, to: Stream) {
        let ExpertsConfig { count, used, feed_forward, normalize, clamp } = shape;
        let router = self.matrix("ffn_gate_inp", count, x.cols);
        let gate = self.stack("ffn_gate_exps", [count, used], feed_forward, x.cols);
        let up = self.stack("ffn_up_exps", [count, used], feed_forward, x.cols);
        let down = self.stack("ffn_down_exps", [count, used], to.cols, feed_forward);
        let probabilities = self.program.buffer("probabilities", count);
        let routed = self.program.buffer("routed", x.cols);
        let gated = self.program.buffer("gate", feed_forward);
        let (x, to) = (x.buffer, to.buffer);
        let experts =
            Experts { x, router, gate, up, down, used, normalize, clamp, probabilities, routed, gated, to };
        self.program.body.push(Op::Experts(experts));
    }

    /// Normalizes heads by the tensors `norm` (for queries, for keys), rotates them, and stores keys and
    /// values.
    pub fn rope_store(&mut self, [q, k, v]: [Stream; 3], norm: Option<[&str; 2]>, config: &ModelConfig) {
        let dim = self.program.heads.dim;
        let norm = norm.map(|[q, k]| QkNorm { q: self.vector(q, dim), k: self.vector(k, dim) });
        // Of the cache, which layers without attention do not have.
        let (block, layer) = (self.layer.unwrap_or(0), self.program.layers);
        self.program.layers += 1;
        let (q, k, v) = (q.buffer, k.buffer, v.buffer);
        let rotation = match () {
            () if !cfg!(feature = "variants") => 0,
            () if config.layers.unrotated.binary_search(&block).is_ok() => self.unrotated,
            () if config.layers.window(block).is_some() => self.windowed,
            () => 0,
        };
        self.program.body.push(Op::RopeStore { layer, rotation, q, k, v, norm, eps: self.eps });
    }

    /// Adds `len` numbers to the state; what exceeds the address space is refused with its memory.
    fn carry(&mut self, len: usize) {
        self.program.state_len = self.program.state_len.saturating_add(len);
    }

    /// A causal convolution of `x` with the vector `name`, with the gates of LFM2 if `x` is three times as wide as the model is;
    /// otherwise with SiLU.
    pub fn conv(&mut self, x: Stream, name: &str, config: &ModelConfig) -> Stream {
        let taps = config.recurrence.map_or(1, |recurrence| recurrence.taps);
        let gated = config.recurrence.is_some_and(|recurrence| recurrence.value_heads == 0);
        let cols = if gated { x.cols / 3 } else { x.cols };
        let weight = self.tensor(name, cols, taps, TensorRole::Vector);
        let out = self.program.buffer("convolved", cols);
        let state = self.program.state_len;
        self.carry((taps - 1).saturating_mul(cols));
        let silu = !gated;
        self.program.body.push(Op::Conv(Conv { x: x.buffer, weight, cols, taps, gated, silu, state, out }));
        Stream { buffer: out, cols }
    }

    /// The gated delta rule of the rows `x` (queries, keys, values), `alpha` and `beta`, with the vectors `decay` and `dt`, of which
    /// the latter is a bias in files.
    pub fn delta_net(
        &mut self,
        [x, alpha, beta]: [Stream; 3],
        [decay, dt]: [&str; 2],
        shape: Recurrence,
    ) -> Stream {
        let Recurrence { key_heads, value_heads, head_dim, .. } = shape;
        let decay = self.named(tensor_name(self.layer, decay, ""), value_heads);
        let dt = self.named(tensor_name(self.layer, dt, ".bias"), value_heads);
        let cols = value_heads * head_dim;
        let out = self.program.buffer("normalized", cols);
        let net = DeltaNet {
            x: x.buffer,
            alpha: alpha.buffer,
            beta: beta.buffer,
            decay,
            dt,
            key_heads,
            value_heads,
            key_dim: head_dim,
            value_dim: head_dim,
            state: self.program.state_len,
            out,
        };
        self.carry(net.state_len());
        self.program.body.push(Op::DeltaNet(net));
        Stream { buffer: out, cols }
    }

    /// `x = RMSNorm(x) silu(gate)`, head by head.
    pub fn gated_norm(&mut self, x: Stream, gate: Stream, name: &str, head_dim: usize) {
        let weight = self.vector(name, head_dim);
        let (x, gate, heads, eps) = (x.buffer, gate.buffer, x.cols / head_dim, self.eps);
        self.program.body.push(Op::GatedNorm(GatedNorm { x, gate, weight, heads, eps }));
    }

    /// The two halves of each head of `x`, in buffers of these names.
    pub fn split_heads(&mut self, x: Stream, names: [&'static str; 2], config: &ModelConfig) -> [Stream; 2] {
        let (heads, dim) = (config.num_attention_heads, config.head_dim);
        let cols = heads * dim;
        let halves = names.map(|name| Stream { buffer: self.program.buffer(name, cols), cols });
        let [a, b] = halves.map(|half| half.buffer);
        self.program.body.push(Op::SplitHeads { x: x.buffer, a, b, heads, dim });
        halves
    }

    /// `gate = f(gate) * up`; returns it.
    pub fn gated(&mut self, gate: Stream, up: Stream, f: Activation) -> Stream {
        let (cols, up) = (gate.cols, up.buffer);
        self.program.body.push(Op::Gated { activation: f, gate: gate.buffer, up, cols });
        gate
    }

    /// Causal attention of `q` over the cache, in the layer's window.
    pub fn attention(&mut self, q: Stream, config: &ModelConfig) -> Stream {
        let out = self.program.buffer("input", q.cols);
        let layer = self.program.layers.saturating_sub(1);
        let block = self.layer.unwrap_or(0);
        let window = config.layers.window(block).filter(|_| cfg!(feature = "variants"));
        self.program.body.push(Op::Attention { layer, window, q: q.buffer, out });
        Stream { buffer: out, cols: q.cols }
    }

    /// Ends the program: the final norm `norm` of `x`, and the logits from the matrix `output`. Where these are divided by a
    /// [scale](super::config::Scales::logits), the hidden state is.
    pub fn head(mut self, x: Stream, norm: &str, output: Output<'_>, config: &ModelConfig) -> Program {
        self.layer = None;
        let weight = self.vector(norm, x.cols);
        let out = self.program.buffer("input", x.cols);
        self.program.head.push(Op::RmsNorm { x: x.buffer, weight, eps: self.eps, out });
        if cfg!(feature = "variants") && config.scales.logits != 1.0 {
            let factor = 1.0 / config.scales.logits;
            self.program.head.push(Op::Scale { x: out, cols: x.cols, factor });
        }
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
