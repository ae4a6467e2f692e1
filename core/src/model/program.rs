//! A forward pass as data, which any device can run.
//!
//! An architecture writes its formulas once, with a [`Builder`](super::builder::Builder); devices interpret, record or transform the
//! result. Operations are coarse, so that a device can run each in the fastest way: in one kernel or several,
//! for one row or many.
//!
//! All buffers have a row for each token of a batch: `(rows, cols)`.
#![forbid(unsafe_code)]

use alloc::string::String;
use alloc::vec::Vec;
use core::num::NonZeroU32;

use heapless::Vec as ArrayVec;

use super::basis::Basis;
use super::rope::Rope;
use crate::error::{Error, Name, Result};
use crate::gguf::Header;

/// The tensor of a reranker with which it judges its last state, `(labels, hidden)`: llama.cpp's converter writes it.
pub const CLASSIFIER: &str = "cls.output.weight";

/// Maximum number of outputs of an [`Op::Linear`].
pub const MAX_OUTPUTS: usize = 4;

/// A tensor of a [`Program`]: an index into [`Program::tensors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorId(u32);

impl TensorId {
    pub(crate) const fn at(index: usize) -> TensorId {
        TensorId(index as u32)
    }

    /// The index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A buffer of a [`Program`]: an index into [`Program::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferId(u32);

impl BufferId {
    pub(crate) const fn at(index: usize) -> BufferId {
        BufferId(index as u32)
    }

    /// The index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The use of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorRole {
    /// Packed weights: an operand of matrix products, or rows that are looked up.
    Matrix,
    /// One row of numbers, small enough to be stored as f32.
    Vector,
}

/// A tensor that the model file must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name in the file.
    pub name: String,
    /// Outputs, of all its matrices together.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Its use.
    pub role: TensorRole,
    /// The matrices of `rows / matrices` outputs that it stacks: one for each expert, or 1.
    pub matrices: usize,
    /// How many of these a token reads.
    pub read: usize,
}

impl TensorSpec {
    /// Outputs of each of its matrices.
    pub fn rows_each(&self) -> usize {
        self.rows / self.matrices.max(1)
    }
}

/// A buffer of `(rows, cols)` floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferSpec {
    /// Its name in formulas.
    pub name: &'static str,
    /// Elements per row.
    pub cols: usize,
}

/// The elements of a head that the rotary embedding rotates together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopePairing {
    /// `i` with `i + head_dim / 2`.
    Neox,
    /// `2 i` with `2 i + 1`.
    Interleaved,
}

/// The activation of a gated feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x / (1 + e^-x)`
    Silu,
    /// `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`, the usual approximation of GELU (Hendrycks & Gimpel 2016).
    GeluTanh,
    /// `max(x, 0)^2` (So et al. 2021)
    Relu2,
    /// `1 / (1 + e^-x)`
    Sigmoid,
}

/// The weights `(head_dim)` that normalize each head of queries and keys before the rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QkNorm {
    /// Weights for queries.
    pub q: TensorId,
    /// Weights for keys.
    pub k: TensorId,
}

/// A feed-forward block of experts, of which each row uses a few: the operands of [`Op::Experts`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// `(rows, cols)`
    pub x: BufferId,
    /// `(experts, cols)`
    pub router: TensorId,
    /// `(outputs, cols)` of each expert.
    pub gate: TensorId,
    /// `(outputs, cols)` of each expert.
    pub up: TensorId,
    /// `(cols, outputs)` of each expert.
    pub down: TensorId,
    /// How many experts a row uses.
    pub used: usize,
    /// Whether the probabilities of these are divided by their sum.
    pub normalize: bool,
    /// `c`, if the gated product is `silu(min(gate, c)) * max(min(up, c), -c)`.
    pub clamp: Option<f32>,
    /// The rows' probabilities of the experts, `(rows, experts)`.
    pub probabilities: BufferId,
    /// The rows that use an expert, `(rows, cols)`.
    pub routed: BufferId,
    /// Their gated products, `(rows, outputs)`.
    pub gated: BufferId,
    /// `(rows, cols)`
    pub to: BufferId,
}

/// A depthwise causal convolution along a sequence, the operands of [`Op::Conv`]: `out[t][c] = sum_j w[c][j] u[t - (taps - 1) + j][c]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv {
    /// `u (rows, cols)`; or `B`, `C` and `X` side by side, `(rows, 3 cols)`. It is overwritten.
    pub x: BufferId,
    /// `(cols, taps)`, that of the oldest row first.
    pub weight: TensorId,
    /// Channels.
    pub cols: usize,
    /// Rows that a result depends on.
    pub taps: usize,
    /// Whether `u = B X`, and the result is multiplied by `C`.
    pub gated: bool,
    /// Whether the result is `silu` of the sum.
    pub silu: bool,
    /// Where the [state](Program::state_len) has the last `u (taps - 1, cols)`.
    pub state: usize,
    /// `(rows, cols)`
    pub out: BufferId,
}

/// Linear attention by the gated delta rule, the operands of [`Op::DeltaNet`]. For each value head, with the state
/// `S (key_dim, value_dim)` and the query and key head `head % key_heads`, normalized to length 1 (queries then divided by
/// `sqrt(key_dim)`):
///
/// ```text
/// S <- e^(decay softplus(alpha + dt)) S;  d = sigmoid(beta) (v - S^T k);  S <- S + k d^T;  out = S^T q
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaNet {
    /// Queries, keys and values side by side, `(rows, 2 key_heads key_dim + value_heads value_dim)`. It is overwritten.
    pub x: BufferId,
    /// `(rows, value_heads)`, overwritten.
    pub alpha: BufferId,
    /// `(rows, value_heads)`, overwritten.
    pub beta: BufferId,
    /// `(value_heads)`, not above 0.
    pub decay: TensorId,
    /// `(value_heads)`
    pub dt: TensorId,
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, a multiple of those of keys.
    pub value_heads: usize,
    /// Elements of a key.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Where the [state](Program::state_len) has `S` of all heads.
    pub state: usize,
    /// `(rows, value_heads value_dim)`
    pub out: BufferId,
}

impl DeltaNet {
    /// Elements of a row of [`DeltaNet::x`].
    pub const fn cols(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// Elements of the states of all heads.
    pub const fn state_len(&self) -> usize {
        self.value_heads * self.key_dim * self.value_dim
    }
}

/// A norm of each head with a gate, the operands of [`Op::GatedNorm`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedNorm {
    /// `(rows, heads * head_dim)`
    pub x: BufferId,
    /// `(rows, heads * head_dim)`
    pub gate: BufferId,
    /// `(head_dim)`
    pub weight: TensorId,
    /// Heads.
    pub heads: usize,
    /// Avoids division by zero.
    pub eps: f32,
}

/// A rotation by a Hadamard matrix, the operands of [`Op::Hadamard`], see [`hadamard`](super::hadamard).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hadamard {
    /// `(rows, cols)`
    pub x: BufferId,
    /// `(rows, cols)`; it may be `x`, if heads keep their order.
    pub out: BufferId,
    /// Index into [`Program::bases`], which has `cols` and the signs `s`.
    pub basis: usize,
    /// Whether `out = s * (H x) / sqrt(n)`, on blocks of `n` elements; otherwise `H (s * x) / sqrt(n)`.
    pub inverse: bool,
}

/// One operation, over all rows of the batch.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// `out (rows, cols) = table[token]`
    Embed {
        /// `(vocabulary, cols)`
        table: TensorId,
        /// `(rows, cols)`
        out: BufferId,
    },
    /// `out = x / sqrt(mean(x^2) + eps) * weight`, row by row.
    RmsNorm {
        /// `(rows, cols)`
        x: BufferId,
        /// `(cols)`
        weight: TensorId,
        /// Avoids division by zero.
        eps: f32,
        /// `(rows, cols)`
        out: BufferId,
    },
    /// `out_i = x W_i^T` for each output: products that share their input.
    Linear {
        /// `(rows, cols)`
        x: BufferId,
        /// Weights `(outputs, cols)` and output `(rows, outputs)` of each product.
        outputs: ArrayVec<(TensorId, BufferId), MAX_OUTPUTS>,
    },
    /// `to += x W^T`: a product added to the residual stream.
    LinearAdd {
        /// `(rows, cols)`
        x: BufferId,
        /// `(outputs, cols)`
        weight: TensorId,
        /// `(rows, outputs)`
        to: BufferId,
    },
    /// `out = silu(x G^T) * (x U^T)`: the gated half of a feed-forward block.
    LinearSwiglu {
        /// `(rows, cols)`
        x: BufferId,
        /// `(outputs, cols)`
        gate: TensorId,
        /// `(outputs, cols)`
        up: TensorId,
        /// `(rows, outputs)`
        out: BufferId,
    },
    /// `gate = f(gate) * up`: of a gated product whose halves were computed by [`Op::Linear`], since an
    /// [adapter](super::lora) adds to them or since `f` is not SiLU.
    Gated {
        /// `f`
        activation: Activation,
        /// `(rows, cols)`
        gate: BufferId,
        /// `(rows, cols)`
        up: BufferId,
        /// Elements per row.
        cols: usize,
    },
    /// `x += bias`, in every row.
    Bias {
        /// `(rows, cols)`
        x: BufferId,
        /// `(cols)`
        bias: TensorId,
    },
    /// `to += x`
    Add {
        /// `(rows, cols)`
        x: BufferId,
        /// `(rows, cols)`
        to: BufferId,
        /// Elements per row.
        cols: usize,
    },
    /// `x *= factor`
    Scale {
        /// `(rows, cols)`
        x: BufferId,
        /// Elements per row.
        cols: usize,
        /// The factor.
        factor: f32,
    },
    /// `to += sum_e p_e (silu(x G_e^T) * (x U_e^T)) D_e^T` over the experts `e` of the highest
    /// `p = softmax(x R^T)`, the lower index first where two are equal.
    Experts(Experts),
    /// Normalizes (if there is a norm) and rotates each head of `q` and `k`, multiplies `q` by [`Program::query_scale`], and
    /// stores `k` and `v` in the sequence's cache. Prepares `q` for the cache format.
    RopeStore {
        /// Layer of the cache.
        layer: usize,
        /// The rotation, an index into [`Program::rotations`].
        rotation: usize,
        /// `(rows, query heads * head_dim)`
        q: BufferId,
        /// `(rows, kv heads * head_dim)`
        k: BufferId,
        /// `(rows, kv heads * head_dim)`
        v: BufferId,
        /// Weights of the per-head norms.
        norm: Option<QkNorm>,
        /// Epsilon of the norms.
        eps: f32,
    },
    /// `out = softmax(q K^T / sqrt(head_dim) + B) V` over the positions that each row's sequence has seen,
    /// including its own. `B` is 0, or [ALiBi](super::alibi)'s with [`Program::alibi_slopes`].
    Attention {
        /// Layer of the cache.
        layer: usize,
        /// How many of the last positions a row sees, its own included; without it, all.
        window: Option<NonZeroU32>,
        /// `(rows, query heads * head_dim)`, from [`Op::RopeStore`].
        q: BufferId,
        /// `(rows, query heads * head_dim)`
        out: BufferId,
    },
    /// A causal convolution along the sequence.
    Conv(Conv),
    /// The gated delta rule.
    DeltaNet(DeltaNet),
    /// `x = x / sqrt(mean(x^2) + eps) * weight * silu(gate)`, head by head.
    GatedNorm(GatedNorm),
    /// `a` and `b`, whose heads alternate in `x`.
    SplitHeads {
        /// `(rows, heads * 2 * dim)`: of each head `dim` elements of `a`, then as many of `b`.
        x: BufferId,
        /// `(rows, heads * dim)`
        a: BufferId,
        /// `(rows, heads * dim)`
        b: BufferId,
        /// Heads.
        heads: usize,
        /// Elements of a head.
        dim: usize,
    },
    /// `x *= factor`, with the [factor of a matrix](super::factors).
    Factor {
        /// `(rows, cols)`
        x: BufferId,
        /// Elements per row.
        cols: usize,
        /// One number.
        factor: TensorId,
    },
    /// A rotation of what a matrix reads whose weights are stored rotated, or of an embedding back.
    Hadamard(Hadamard),
    /// Begins a [block that tokens skip](super::depths): up to [`Op::Merge`], operations compute the rows that take
    /// part in it, which are those with `r = router . x` over 0. The cache has their keys and values in this layer, one
    /// after another, and none of the others.
    Select {
        /// Layer of the cache.
        layer: usize,
        /// `(rows, cols)`
        x: BufferId,
        /// `(cols)`
        router: TensorId,
        /// The rows of `x` that take part, `(rows, cols)`.
        out: BufferId,
    },
    /// Ends it: `to += r (x - to)` for the rows that took part.
    Merge {
        /// Those rows, `(rows, cols)`.
        x: BufferId,
        /// `(rows, cols)`
        to: BufferId,
    },
    /// Talks to the other ranks of a split program.
    Exchange(Exchange),
}

/// An operation that talks to other ranks, see [`Collective`](crate::collective::Collective).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// `to (rows, cols) = ` the ranks' `x (rows, cols / ranks)`, side by side.
    Gather {
        /// `(rows, cols / ranks)`
        x: BufferId,
        /// `(rows, cols)`
        to: BufferId,
    },
    /// `to += ` the same.
    GatherAdd {
        /// `(rows, cols / ranks)`
        x: BufferId,
        /// `(rows, cols)`
        to: BufferId,
    },
    /// `to += ` the sum of the ranks' `x`.
    ReduceAdd {
        /// `(rows, cols)`, replaced by the sum.
        x: BufferId,
        /// `(rows, cols)`
        to: BufferId,
    },
    /// Sends `x` to a rank.
    Send {
        /// `(rows, cols)`
        x: BufferId,
        /// The rank.
        rank: usize,
    },
    /// Receives `x` from a rank.
    Receive {
        /// `(rows, cols)`
        x: BufferId,
        /// The rank.
        rank: usize,
    },
}

/// Shape of the attention heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub query: usize,
    /// Key-value heads, a divisor of the query heads.
    pub kv: usize,
    /// Elements per head, even.
    pub dim: usize,
}

/// A forward pass: its tensors, its buffers and its operations, consistent by construction.
#[derive(Clone, Debug)]
pub struct Program {
    /// The tensors of the file: all of these, and no others.
    pub tensors: Vec<TensorSpec>,
    /// Buffers between operations.
    pub buffers: Vec<BufferSpec>,
    /// Operations from tokens to the residual stream.
    pub body: Vec<Op>,
    /// Operations that end the body later: of a pipeline's first stage, when the others have computed theirs.
    pub tail: Vec<Op>,
    /// Operations from the residual stream of the rows that are read out to [`Program::hidden`].
    pub head: Vec<Op>,
    /// The first operation of each block, an index into [`Program::body`].
    pub blocks: Vec<usize>,
    /// Ranks that the program is split among.
    pub ranks: usize,
    /// How many parts of a batch can be on their way through a pipeline at once.
    pub stages: usize,
    /// The residual stream after the body.
    pub residual: BufferId,
    /// The final hidden state.
    pub hidden: BufferId,
    /// `(vocabulary, hidden)`: `logits = hidden output^T`.
    pub output: TensorId,
    /// The size of the vocabulary if the rows of [`Program::output`] are divided among ranks.
    pub divided_vocab: Option<usize>,
    /// Layers of the cache.
    pub layers: usize,
    /// Those of them with keys and values of only the tokens that [take part](super::depths), in order.
    pub routed_layers: Vec<usize>,
    /// Floats of state beside keys and values that a sequence has: what [`Op::Conv`] and [`Op::DeltaNet`] carry from row to row.
    pub state_len: usize,
    /// Shape of the attention heads.
    pub heads: Heads,
    /// The frequencies of rotary embeddings: layers may [differ](Op::RopeStore).
    pub rotations: Vec<Rope>,
    /// The vector that the frequencies of the first of [`Program::rotations`] are divided by, if there is one; see
    /// [`Program::divide_rope`].
    pub rope_factors: Option<TensorId>,
    /// The elements of a head that are rotated together.
    pub pairing: RopePairing,
    /// What queries are multiplied by after their rotation: 1, unless scores have another scale than `1 / sqrt(head_dim)`.
    pub query_scale: f32,
    /// The rotations of [`Op::Hadamard`].
    pub bases: Vec<Basis>,
    /// What [`Program::output`] multiplies in the place of [`Program::hidden`], if its weights are stored rotated.
    pub before_output: Option<Hadamard>,
    /// ALiBi's slope of each query head, `(query heads)`; empty without ALiBi.
    pub alibi_slopes: Vec<f32>,
}

impl Program {
    /// The tensors' ids, in the order of [`Program::tensors`].
    pub fn tensor_ids(&self) -> impl Iterator<Item = TensorId> + use<> {
        (0..self.tensors.len() as u32).map(TensorId)
    }

    /// The buffer called `name`, with at least `cols` elements per row. Buffers with the same name are shared.
    pub(super) fn buffer(&mut self, name: &'static str, cols: usize) -> BufferId {
        let at = self.buffers.iter().position(|buffer| buffer.name == name).unwrap_or_else(|| {
            self.buffers.push(BufferSpec { name, cols });
            self.buffers.len() - 1
        });
        self.buffers[at].cols = self.buffers[at].cols.max(cols);
        BufferId::at(at)
    }

    /// The rotation of the keys of layer `layer` of the cache.
    pub fn rotation(&self, layer: usize) -> Option<&Rope> {
        let index = self.body.iter().find_map(|op| match op {
            Op::RopeStore { layer: of, rotation, .. } if *of == layer => Some(*rotation),
            _ => None,
        });
        self.rotations.get(index?)
    }

    /// The tensor `id`.
    pub fn tensor(&self, id: TensorId) -> &TensorSpec {
        &self.tensors[id.index()]
    }

    /// Whether an operation from number `at` of the body on, the tail or the head reads `buffer` before one replaces it, or it is
    /// [`Program::hidden`] and none does.
    pub fn reads_later(&self, at: usize, buffer: BufferId) -> bool {
        let later = self.body.iter().skip(at).chain(&self.tail);
        later.chain(&self.head).find_map(|op| op.reads(buffer)).unwrap_or(buffer == self.hidden)
    }

    /// Elements per row of buffer `id`.
    pub fn cols(&self, id: BufferId) -> usize {
        self.buffers[id.index()].cols
    }

    /// Size of the vocabulary.
    pub fn vocab(&self) -> usize {
        self.divided_vocab.unwrap_or(self.tensor(self.output).rows)
    }

    /// The tensors that a matrix product reads, in the order of the operations, the output last.
    pub fn matrices(&self) -> impl Iterator<Item = TensorId> {
        let of_ops = self.body.iter().chain(&self.head).flat_map(Op::matrices);
        of_ops.chain([self.output])
    }

    /// The matrix whose rows are looked up for tokens.
    pub fn embedding(&self) -> Option<TensorId> {
        self.body.iter().find_map(|op| match op {
            Op::Embed { table, .. } => Some(*table),
            _ => None,
        })
    }

    /// The mixtures of experts.
    pub fn mixtures(&self) -> impl Iterator<Item = &Experts> {
        self.body.iter().filter_map(|op| match op {
            Op::Experts(experts) => Some(experts),
            _ => None,
        })
    }

    /// Rows of each buffer per row of the batch, for devices that compute all pairs of a row and an expert at once: 1,
    /// or of [`Experts::routed`] and [`Experts::gated`] the experts that a row uses.
    pub fn rows_with_pairs(&self) -> Vec<usize> {
        let mut rows = alloc::vec![1; self.buffers.len()];
        for experts in self.mixtures() {
            for id in [experts.routed, experts.gated] {
                rows[id.index()] = rows[id.index()].max(experts.used);
            }
        }
        rows
    }

    /// Columns of the widest input of a matrix product.
    pub fn widest_input(&self) -> usize {
        self.matrices().map(|id| self.tensor(id).cols).max().unwrap_or(0)
    }

    /// Divides the frequencies of the rotary embedding by the model's factors, the weights of
    /// [`Program::rope_factors`].
    ///
    /// # Errors
    /// If one is not a positive number.
    pub fn divide_rope(&mut self, factors: &[f32]) -> Result<()> {
        self.rotations.first_mut().map_or(Ok(()), |rope| rope.divide(factors))
    }

    /// Number of parameters, vectors included.
    pub fn num_parameters(&self) -> u64 {
        self.tensors.iter().map(|t| t.rows as u64 * t.cols as u64).sum()
    }

    /// Finds every tensor in `header`; returns its index there, in the order of [`Program::tensors`].
    ///
    /// # Errors
    /// If a tensor is missing or has an invalid shape or type, or if the file has a tensor that the program
    /// does not use: ignoring it would silently change the model. [`CLASSIFIER`] is beside the model.
    pub fn bind(&self, header: &Header<'_>) -> Result<Vec<usize>> {
        let mut bound = Vec::with_capacity(self.tensors.len());
        for spec in &self.tensors {
            let name = Name::new(&spec.name);
            let index = header.tensor_index(&spec.name).ok_or(error!(MissingTensor { name }))?;
            let info = &header.tensors()[index];
            let dims = [spec.cols, spec.rows_each(), spec.matrices];
            let [cols, rows, matrices] = dims.map(|dim| dim as u64);
            if info.shape() != [cols, rows, matrices, 1] {
                let expected = dims.map(|dim| u32::try_from(dim).unwrap_or(u32::MAX));
                return Err(error!(TensorShape { name, expected, found: info.shape() }));
            }
            if info.format().is_none() {
                let expected = match info.type_name() {
                    "I2_S" => "a loadable tensor type: `shohin convert` makes one of it",
                    _ => "a loadable tensor type",
                };
                return Err(error!(TensorType { name, found: info.type_id(), expected }));
            }
            bound.push(index);
        }
        let judged = usize::from(header.tensor_index(CLASSIFIER).is_some());
        if header.tensors().len() != bound.len() + judged {
            let used = |name: &str| name == CLASSIFIER || self.tensors.iter().any(|spec| spec.name == name);
            let found = header.tensors().iter().map(|t| t.name()).find(|name| !used(name)).unwrap_or("");
            let expected = "only tensors of the architecture";
            return Err(error!(Unsupported { key: Name::new("tensor"), found: Name::new(found), expected }));
        }
        Ok(bound)
    }
}

impl Op {
    /// Whether the operation reads `buffer`; `None` if it has nothing to do with it, `Some(false)` if it only replaces
    /// what is there.
    pub fn reads(&self, buffer: BufferId) -> Option<bool> {
        let of = |read: &[BufferId], replaced: &[BufferId]| {
            if read.contains(&buffer) { Some(true) } else { replaced.contains(&buffer).then_some(false) }
        };
        match self {
            Op::Embed { out, .. } => of(&[], &[*out]),
            Op::RmsNorm { x, out, .. }
            | Op::LinearSwiglu { x, out, .. }
            | Op::Attention { q: x, out, .. }
            | Op::Select { x, out, .. } => of(&[*x], &[*out]),
            Op::Linear { x, outputs } => {
                let replaced: ArrayVec<BufferId, MAX_OUTPUTS> = outputs.iter().map(|(_, out)| *out).collect();
                of(&[*x], &replaced)
            }
            Op::LinearAdd { x, to, .. }
            | Op::Merge { x, to }
            | Op::Gated { gate: to, up: x, .. }
            | Op::Add { x, to, .. } => of(&[*x, *to], &[]),
            Op::Bias { x, .. } | Op::Scale { x, .. } | Op::Factor { x, .. } => of(&[*x], &[]),
            Op::Conv(conv) => of(&[conv.x], &[conv.out]),
            Op::DeltaNet(net) => of(&[net.x, net.alpha, net.beta], &[net.out]),
            Op::GatedNorm(norm) => of(&[norm.x, norm.gate], &[]),
            Op::Hadamard(rotation) => of(&[rotation.x], &[rotation.out]),
            Op::SplitHeads { x, a, b, .. } => of(&[*x], &[*a, *b]),
            Op::Experts(e) => of(&[e.x, e.to], &[e.probabilities, e.routed, e.gated]),
            Op::RopeStore { q, k, v, .. } => of(&[*q, *k, *v], &[]),
            Op::Exchange(exchange) => match exchange {
                Exchange::Gather { x, to } => of(&[*x], &[*to]),
                Exchange::GatherAdd { x, to } | Exchange::ReduceAdd { x, to } => of(&[*x, *to], &[]),
                Exchange::Send { x, .. } => of(&[*x], &[]),
                Exchange::Receive { x, .. } => of(&[], &[*x]),
            },
        }
    }

    /// The tensors that a matrix product of this operation reads.
    pub fn matrices(&self) -> ArrayVec<TensorId, MAX_OUTPUTS> {
        let mut ids = ArrayVec::new();
        match self {
            Op::Linear { outputs, .. } => ids.extend(outputs.iter().map(|(id, _)| *id)),
            Op::LinearAdd { weight, .. } => ids.extend([*weight]),
            Op::LinearSwiglu { gate, up, .. } => ids.extend([*gate, *up]),
            Op::Experts(experts) => ids.extend([experts.router, experts.gate, experts.up, experts.down]),
            Op::Embed { .. }
            | Op::RmsNorm { .. }
            | Op::Gated { .. }
            | Op::Bias { .. }
            | Op::Add { .. }
            | Op::Scale { .. }
            | Op::Conv(_)
            | Op::DeltaNet(_)
            | Op::GatedNorm(_)
            | Op::SplitHeads { .. }
            | Op::Factor { .. }
            | Op::Hadamard(_)
            | Op::RopeStore { .. }
            | Op::Attention { .. }
            | Op::Select { .. }
            | Op::Merge { .. }
            | Op::Exchange(_) => {}
        }
        ids
    }
}
