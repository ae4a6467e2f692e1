//! The operations of a [`Program`] with a name for every value, so that they can be run backwards.
//!
//! A program reuses its buffers; a [`Tape`] does not. An operation that changes a buffer in place gives a new value, products
//! that share an input are nodes of their own, and a gated product is two products and their gate: each node then has one
//! derivative, in a file of `op`.
#![forbid(unsafe_code)]

use alloc::vec;
use alloc::vec::Vec;
use core::num::NonZeroU32;
use core::ops::Range;

use heapless::Vec as ArrayVec;
use shohin_core::error::Name;
use shohin_core::model::program::{self, Activation, BufferId, Op, Program, TensorId};
use shohin_core::{Error, Result};

/// A value of a [`Tape`]: an index into [`Tape::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(u32);

impl ValueId {
    /// The index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Rows of floats, one for each token of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// Its name in formulas: that of the program's buffer.
    pub name: &'static str,
    /// Elements per row.
    pub cols: usize,
    /// The node that computes it.
    pub node: usize,
    /// Whether a tensor that is trained is before it, so that the loss has a gradient by it.
    pub grad: bool,
}

/// The experts of a block, whose weights are frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mixture {
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
}

/// An operation with its operands. `x`, `to` and so on are read, `out` is written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Node {
    /// `out = table[token]`
    Embed {
        /// `(vocabulary, cols)`
        table: TensorId,
        /// `(rows, cols)`
        out: ValueId,
    },
    /// `out = x / sqrt(mean(x^2) + eps) * weight`
    RmsNorm {
        /// `(rows, cols)`
        x: ValueId,
        /// `(cols)`
        weight: TensorId,
        /// Avoids division by zero.
        eps: f32,
        /// `(rows, cols)`
        out: ValueId,
    },
    /// `out = x W^T`
    Linear {
        /// `(rows, cols)`
        x: ValueId,
        /// `(outputs, cols)`
        weight: TensorId,
        /// `(rows, outputs)`
        out: ValueId,
    },
    /// `out = to + x W^T`
    LinearAdd {
        /// `(rows, cols)`
        x: ValueId,
        /// `(outputs, cols)`
        weight: TensorId,
        /// `(rows, outputs)`
        to: ValueId,
        /// `(rows, outputs)`
        out: ValueId,
    },
    /// `out = f(gate) * up`
    Gated {
        /// `f`
        activation: Activation,
        /// `(rows, cols)`
        gate: ValueId,
        /// `(rows, cols)`
        up: ValueId,
        /// `(rows, cols)`
        out: ValueId,
    },
    /// `out = x + bias`
    Bias {
        /// `(rows, cols)`
        x: ValueId,
        /// `(cols)`
        bias: TensorId,
        /// `(rows, cols)`
        out: ValueId,
    },
    /// `out = to + x`
    Add {
        /// `(rows, cols)`
        x: ValueId,
        /// `(rows, cols)`
        to: ValueId,
        /// `(rows, cols)`
        out: ValueId,
    },
    /// `out = factor x`
    Scale {
        /// `(rows, cols)`
        x: ValueId,
        /// The factor.
        factor: f32,
        /// `(rows, cols)`
        out: ValueId,
    },
    /// `out = to + sum_e p_e (silu(x G_e^T) * (x U_e^T)) D_e^T` over the experts `e` of the highest `p = softmax(logits)`.
    Experts {
        /// `(rows, cols)`
        x: ValueId,
        /// `(rows, experts)`
        logits: ValueId,
        /// The experts.
        mixture: Mixture,
        /// `(rows, cols)`
        to: ValueId,
        /// `(rows, cols)`
        out: ValueId,
    },
    /// Each head of `x`, normalized if there is a norm, then rotated to its position and multiplied by a factor.
    Rope {
        /// `(rows, heads * head_dim)`
        x: ValueId,
        /// The rotation, an index into [`Program::rotations`].
        rotation: usize,
        /// The factor.
        factor: f32,
        /// Weights of the norm, `(head_dim)`.
        norm: Option<TensorId>,
        /// Epsilon of the norm.
        eps: f32,
        /// `(rows, heads * head_dim)`
        out: ValueId,
    },
    /// `out = softmax(q K^T / sqrt(head_dim) + B) V` within each sequence.
    Attention {
        /// How many of the last positions a row sees, its own included; without it, all.
        window: Option<NonZeroU32>,
        /// `(rows, query heads * head_dim)`
        q: ValueId,
        /// `(rows, kv heads * head_dim)`
        k: ValueId,
        /// `(rows, kv heads * head_dim)`
        v: ValueId,
        /// `(rows, query heads * head_dim)`
        out: ValueId,
        /// The logarithm of each softmax's denominator, `(rows, query heads)`.
        lse: ValueId,
    },
}

impl Node {
    /// What it reads.
    pub fn reads(&self) -> ArrayVec<ValueId, 4> {
        let ids: &[ValueId] = match self {
            Node::Embed { .. } => &[],
            Node::RmsNorm { x, .. }
            | Node::Linear { x, .. }
            | Node::Bias { x, .. }
            | Node::Scale { x, .. }
            | Node::Rope { x, .. } => &[*x],
            Node::LinearAdd { x, to, .. } | Node::Add { x, to, .. } => &[*x, *to],
            Node::Gated { gate, up, .. } => &[*gate, *up],
            Node::Experts { x, logits, to, .. } => &[*x, *logits, *to],
            Node::Attention { q, k, v, .. } => &[*q, *k, *v],
        };
        ids.iter().copied().collect()
    }

    /// What it writes, the result first.
    pub fn writes(&self) -> ArrayVec<ValueId, 2> {
        let ids: &[ValueId] = match self {
            Node::Attention { out, lse, .. } => &[*out, *lse],
            Node::Embed { out, .. }
            | Node::RmsNorm { out, .. }
            | Node::Linear { out, .. }
            | Node::LinearAdd { out, .. }
            | Node::Gated { out, .. }
            | Node::Bias { out, .. }
            | Node::Add { out, .. }
            | Node::Scale { out, .. }
            | Node::Experts { out, .. }
            | Node::Rope { out, .. } => &[*out],
        };
        ids.iter().copied().collect()
    }

    /// Its result.
    pub fn out(&self) -> ValueId {
        self.writes()[0]
    }

    /// The tensor that it reads, if that can be trained.
    pub fn tensor(&self) -> Option<TensorId> {
        match self {
            Node::Embed { table, .. } => Some(*table),
            Node::RmsNorm { weight, .. } | Node::Linear { weight, .. } | Node::LinearAdd { weight, .. } => {
                Some(*weight)
            }
            Node::Bias { bias, .. } => Some(*bias),
            Node::Rope { norm, .. } => *norm,
            Node::Gated { .. }
            | Node::Add { .. }
            | Node::Scale { .. }
            | Node::Experts { .. }
            | Node::Attention { .. } => None,
        }
    }

    /// What it adds its result to, whose gradient is that of the sum.
    pub fn added_to(&self) -> Option<ValueId> {
        match self {
            Node::LinearAdd { to, .. } | Node::Add { to, .. } | Node::Experts { to, .. } => Some(*to),
            Node::Bias { x, .. } => Some(*x),
            Node::Embed { .. }
            | Node::RmsNorm { .. }
            | Node::Linear { .. }
            | Node::Gated { .. }
            | Node::Scale { .. }
            | Node::Rope { .. }
            | Node::Attention { .. } => None,
        }
    }

    /// The values that its derivative reads, beside the gradient of its result; `trained` says whether its tensor is.
    pub fn saved(&self, trained: bool) -> ArrayVec<ValueId, 5> {
        let ids: &[ValueId] = match self {
            Node::Embed { .. } | Node::Bias { .. } | Node::Add { .. } | Node::Scale { .. } => &[],
            Node::RmsNorm { x, .. } => &[*x],
            Node::Linear { x, .. } | Node::LinearAdd { x, .. } if trained => &[*x],
            Node::Linear { .. } | Node::LinearAdd { .. } => &[],
            Node::Gated { gate, up, .. } => &[*gate, *up],
            Node::Experts { x, logits, .. } => &[*x, *logits],
            Node::Rope { x, norm: Some(_), .. } => &[*x],
            Node::Rope { norm: None, .. } => &[],
            Node::Attention { q, k, v, out, lse, .. } => &[*q, *k, *v, *out, *lse],
        };
        ids.iter().copied().collect()
    }

    /// Whether computing its result again costs no more than a pass over it: such values are not kept. Sums are, as what they
    /// are computed from would have to be in their place.
    pub fn is_cheap(&self) -> bool {
        matches!(
            self,
            Node::Embed { .. }
                | Node::RmsNorm { .. }
                | Node::Gated { .. }
                | Node::Scale { .. }
                | Node::Rope { .. }
        )
    }
}

/// A program's operations as nodes.
#[derive(Clone, Debug)]
pub struct Tape {
    /// The nodes, each after those that it reads from.
    pub nodes: Vec<Node>,
    /// The values.
    pub values: Vec<Value>,
    /// The nodes of each part that begins with the residual stream alone: what is before the first block, each block, and
    /// what follows them.
    pub segments: Vec<Range<usize>>,
    /// The final hidden state, from which the logits are computed.
    pub hidden: ValueId,
    /// Which tensors are trained.
    pub trained: Vec<bool>,
}

impl Tape {
    /// The operations of `program`, of which the tensors that `trained` names learn.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a mixture of depths, a split program, or if the weights of experts are to be trained.
    pub fn new(program: &Program, trained: impl Fn(TensorId) -> bool) -> Result<Tape> {
        let trained: Vec<bool> = program.tensor_ids().map(trained).collect();
        let tape =
            Tape { nodes: Vec::new(), values: Vec::new(), segments: Vec::new(), hidden: ValueId(0), trained };
        let mut lowering =
            Lowering { tape, program, current: vec![None; program.buffers.len()], cache: Vec::new() };
        if program.before_output.is_some() {
            return Err(rotated());
        }
        if !program.tail.is_empty() || program.ranks > 1 {
            return Err(refused("a split program", "a program of one rank"));
        }
        let mut start = 0;
        for (i, op) in program.body.iter().chain(&program.head).enumerate() {
            if program.blocks.contains(&i) || i == program.body.len() {
                let end = lowering.tape.nodes.len();
                lowering.tape.segments.push(start..end);
                start = end;
            }
            lowering.op(op)?;
        }
        let hidden = lowering.read(program.hidden)?;
        let mut tape = lowering.tape;
        tape.segments.push(start..tape.nodes.len());
        tape.segments.retain(|segment| !segment.is_empty());
        tape.hidden = hidden;
        Ok(tape)
    }

    /// The value that is all what the first block with trained tensors reads of what is before it: the residual stream. `None` if
    /// tensors before the blocks are trained, or none at all.
    pub fn prefix(&self) -> Option<ValueId> {
        let learns = |node: usize| self.value(self.nodes[node].out()).grad;
        let first = self.segments.iter().find(|segment| (*segment).clone().any(learns))?;
        let before = |id: &ValueId| self.value(*id).node < first.start;
        let mut read = first.clone().flat_map(|node| self.nodes[node].reads()).filter(before);
        let prefix = read.next()?;
        // A later block reads what the first one made of it.
        let later = self.nodes[first.start..].iter().flat_map(Node::reads).filter(before);
        later.into_iter().all(|id| id == prefix).then_some(prefix)
    }

    /// Whether the tensor `id` is trained.
    pub fn is_trained(&self, id: TensorId) -> bool {
        self.trained.get(id.index()).copied().unwrap_or(false)
    }

    /// The value `id`.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }
}

fn refused(found: &str, expected: &'static str) -> Error {
    Error::Unsupported { key: Name::new("training"), found: Name::new(found), expected }
}

fn rotated() -> Error {
    refused("a model in a rotated basis (prism.hadamard.*)", "weights that are not rotated")
}

/// The tape so far, and what the buffers hold.
struct Lowering<'p> {
    tape: Tape,
    program: &'p Program,
    current: Vec<Option<ValueId>>,
    /// Keys and values of each layer, and its rotated queries.
    cache: Vec<(usize, [ValueId; 2])>,
}

impl Lowering<'_> {
    fn read(&self, buffer: BufferId) -> Result<ValueId> {
        let value = self.current.get(buffer.index()).copied().flatten();
        value.ok_or_else(|| refused("a program that reads a buffer before it is written", "a valid program"))
    }

    /// A value of the next node, which reads `from`.
    fn value(
        &mut self,
        name: &'static str,
        cols: usize,
        from: &[ValueId],
        tensor: Option<TensorId>,
    ) -> ValueId {
        let trained = tensor.is_some_and(|id| self.tape.is_trained(id));
        let grad = trained || from.iter().any(|id| self.tape.value(*id).grad);
        let node = self.tape.nodes.len();
        self.tape.values.push(Value { name, cols, node, grad });
        ValueId(self.tape.values.len() as u32 - 1)
    }

    /// Appends a node that writes to `buffer`.
    fn push(
        &mut self,
        buffer: BufferId,
        cols: usize,
        from: &[ValueId],
        tensor: Option<TensorId>,
        node: impl FnOnce(ValueId) -> Node,
    ) -> ValueId {
        let out = self.value(self.program.buffers[buffer.index()].name, cols, from, tensor);
        self.tape.nodes.push(node(out));
        self.current[buffer.index()] = Some(out);
        out
    }

    fn linear(&mut self, x: ValueId, weight: TensorId, buffer: BufferId) -> ValueId {
        let outputs = self.program.tensor(weight).rows;
        self.push(buffer, outputs, &[x], Some(weight), |out| Node::Linear { x, weight, out })
    }

    fn op(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::Embed { table, out } => {
                let (table, cols) = (*table, self.program.tensor(*table).cols);
                self.push(*out, cols, &[], Some(table), |out| Node::Embed { table, out });
            }
            Op::RmsNorm { x, weight, eps, out } => {
                let (x, weight, eps) = (self.read(*x)?, *weight, *eps);
                let cols = self.tape.value(x).cols;
                self.push(*out, cols, &[x], Some(weight), |out| Node::RmsNorm { x, weight, eps, out });
            }
            Op::Linear { x, outputs } => {
                let x = self.read(*x)?;
                for (weight, buffer) in outputs {
                    self.linear(x, *weight, *buffer);
                }
            }
            Op::LinearAdd { x, weight, to: buffer } => {
                let (x, to, weight) = (self.read(*x)?, self.read(*buffer)?, *weight);
                let cols = self.tape.value(to).cols;
                self.push(*buffer, cols, &[x, to], Some(weight), |out| Node::LinearAdd {
                    x,
                    weight,
                    to,
                    out,
                });
            }
            Op::LinearSwiglu { x, gate, up, out } => {
                let x = self.read(*x)?;
                let gate = self.linear(x, *gate, *out);
                let up = self.linear(x, *up, *out);
                self.gated(Activation::Silu, gate, up, *out);
            }
            Op::Gated { activation, gate: buffer, up, .. } => {
                let (gate, up) = (self.read(*buffer)?, self.read(*up)?);
                self.gated(*activation, gate, up, *buffer);
            }
            Op::Bias { x: buffer, bias } => {
                let (x, bias) = (self.read(*buffer)?, *bias);
                let cols = self.tape.value(x).cols;
                self.push(*buffer, cols, &[x], Some(bias), |out| Node::Bias { x, bias, out });
            }
            Op::Add { x, to: buffer, cols } => {
                let (x, to) = (self.read(*x)?, self.read(*buffer)?);
                self.push(*buffer, *cols, &[x, to], None, |out| Node::Add { x, to, out });
            }
            Op::Scale { x: buffer, cols, factor } => {
                let (x, factor) = (self.read(*buffer)?, *factor);
                self.push(*buffer, *cols, &[x], None, |out| Node::Scale { x, factor, out });
            }
            Op::RopeStore { layer, rotation, q, k, v, norm, eps } => {
                let (rotation, eps) = (*rotation, *eps);
                let norms = [norm.map(|norm| norm.q), norm.map(|norm| norm.k)];
                let factors = [self.program.query_scale, 1.0];
                for ((buffer, norm), factor) in [*q, *k].into_iter().zip(norms).zip(factors) {
                    if norm.is_none() && factor == 1.0 && !self.rotates(rotation) {
                        continue;
                    }
                    let x = self.read(buffer)?;
                    let cols = self.tape.value(x).cols;
                    let node = |out| Node::Rope { x, rotation, factor, norm, eps, out };
                    self.push(buffer, cols, &[x], norm, node);
                }
                let stored = [self.read(*k)?, self.read(*v)?];
                self.cache.retain(|(of, _)| of != layer);
                self.cache.push((*layer, stored));
            }
            Op::Attention { layer, window, q, out } => {
                let (q, window) = (self.read(*q)?, *window);
                let stored = self.cache.iter().find(|(of, _)| of == layer).map(|(_, stored)| *stored);
                let unwritten = || refused("attention to a layer without keys", "a valid program");
                let [k, v] = stored.ok_or_else(unwritten)?;
                let (cols, heads) = (self.tape.value(q).cols, self.program.heads.query);
                // Both are values of the node that is pushed.
                let lse = self.value("lse", heads, &[q, k, v], None);
                self.push(*out, cols, &[q, k, v], None, |out| Node::Attention { window, q, k, v, out, lse });
            }
            Op::Experts(experts) => self.experts(experts)?,
            Op::Conv(_) | Op::DeltaNet(_) | Op::GatedNorm(_) | Op::SplitHeads { .. } => {
                return Err(refused("training a model with a recurrent state", "attention in every layer"));
            }
            Op::Factor { .. } => {
                return Err(refused("a model with factors of single matrices", "matrices without a factor"));
            }
            Op::Hadamard(_) => return Err(rotated()),
            Op::Select { .. } | Op::Merge { .. } => {
                return Err(refused("a mixture of depths", "blocks that all tokens take part in"));
            }
            Op::Exchange(_) => return Err(refused("a split program", "a program of one rank")),
        }
        Ok(())
    }

    /// Whether some of a head's pairs are rotated.
    fn rotates(&self, rotation: usize) -> bool {
        self.program.rotations.get(rotation).is_some_and(|rope| !rope.speeds().is_empty())
    }

    fn experts(&mut self, experts: &program::Experts) -> Result<()> {
        let program::Experts { router, gate, up, down, used, normalize, clamp, .. } = *experts;
        if clamp.is_some() {
            return Err(refused("experts with clamped activations", "experts without a clamp"));
        }
        if [gate, up, down].into_iter().any(|id| self.tape.is_trained(id)) {
            return Err(refused("training the weights of experts", "experts that are frozen"));
        }
        let (x, to) = (self.read(experts.x)?, self.read(experts.to)?);
        let logits = self.linear(x, router, experts.probabilities);
        let cols = self.tape.value(to).cols;
        let mixture = Mixture { gate, up, down, used, normalize };
        self.push(experts.to, cols, &[x, logits, to], None, |out| Node::Experts {
            x,
            logits,
            mixture,
            to,
            out,
        });
        Ok(())
    }

    fn gated(&mut self, activation: Activation, gate: ValueId, up: ValueId, buffer: BufferId) {
        let cols = self.tape.value(gate).cols;
        self.push(buffer, cols, &[gate, up], None, |out| Node::Gated { activation, gate, up, out });
    }
}
