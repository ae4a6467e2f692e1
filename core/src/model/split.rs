//! Splits a program among ranks: passes over its operations.
//!
//! ```text
//! pipeline       rank r has the blocks from L r / N on; the residual stream goes from rank to rank, and back to rank 0,
//!                which has the embedding and the head
//! tensor         every matrix is divided by rows, and what each rank computes of a buffer is gathered before the next
//!                product: four times per block. Each output is computed whole by one rank, so that all bits are those of
//!                one device
//! tensor-reduce  the matrices that write to the residual stream are divided by columns, and the ranks' sums are added:
//!                two all-reduces per block (Shoeybi et al., Megatron-LM, arXiv:1909.08053, section 3). Sums of floats
//!                depend on their order, so that logits differ in their last bits
//! ```
//! Heads of attention and rows of the output matrix are divided in both of the latter.
#![forbid(unsafe_code)]

use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;
use core::str::FromStr;

use heapless::Vec as ArrayVec;

use super::program::{Conv, DeltaNet, Exchange, GatedNorm, Op, Program, QkNorm, TensorId, TensorSpec};
use crate::error::{Error, Name, Result};

/// Maximum number of ranks of a group.
pub const MAX_RANKS: usize = 64;

/// How a program is divided among how many ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Blocks.
    Pipeline(usize),
    /// Rows of matrices.
    Tensor(usize),
    /// Rows of matrices, and columns of those that write to the residual stream.
    TensorReduce(usize),
}

impl Split {
    /// Number of ranks.
    pub fn ranks(self) -> usize {
        match self {
            Split::Pipeline(ranks) | Split::Tensor(ranks) | Split::TensorReduce(ranks) => ranks,
        }
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, ranks) = match self {
            Split::Pipeline(ranks) => ("pipeline", ranks),
            Split::Tensor(ranks) => ("tensor", ranks),
            Split::TensorReduce(ranks) => ("tensor-reduce", ranks),
        };
        write!(f, "{name}:{ranks}")
    }
}

impl FromStr for Split {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Split, &'static str> {
        let expected = "expected tensor:N, tensor-reduce:N or pipeline:N, for N from 1 to 64";
        let (kind, ranks) = text.split_once(':').ok_or(expected)?;
        let ranks = ranks.parse().ok().filter(|ranks| (1..=MAX_RANKS).contains(ranks)).ok_or(expected)?;
        match kind {
            "pipeline" => Ok(Split::Pipeline(ranks)),
            "tensor" => Ok(Split::Tensor(ranks)),
            "tensor-reduce" => Ok(Split::TensorReduce(ranks)),
            _ => Err(expected),
        }
    }
}

/// The part of a tensor of the file that a rank has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The tensor in the program that was split.
    pub tensor: TensorId,
    /// Its rows.
    pub rows: Range<usize>,
    /// Its columns.
    pub cols: Range<usize>,
}

/// One rank's part of a program.
#[derive(Clone, Debug)]
pub struct SplitProgram {
    /// Its forward pass.
    pub program: Program,
    /// What each of its tensors is of the file's, in the order of [`Program::tensors`].
    pub pieces: Vec<Piece>,
}

fn unsupported(key: &str, found: impl AsRef<[u8]>, expected: &'static str) -> Error {
    error!(Unsupported { key: Name::new(key), found: Name::new(found), expected })
}

fn whole(program: &Program, tensor: TensorId) -> Piece {
    let spec = program.tensor(tensor);
    Piece { tensor, rows: 0..spec.rows, cols: 0..spec.cols }
}

/// The part of rank `rank` of `count` things.
fn share(count: usize, rank: usize, ranks: usize) -> Range<usize> {
    count * rank / ranks..count * (rank + 1) / ranks
}

impl Program {
    /// Rank `rank`'s part of the program.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if it has an operation that cannot be divided in this way, or a dimension that is not a
    /// multiple of the number of ranks; [`Error::Option`] for a rank or a number of ranks out of range.
    pub fn split(&self, split: Split, rank: usize) -> Result<SplitProgram> {
        let ranks = split.ranks();
        if !(1..=MAX_RANKS).contains(&ranks) || rank >= ranks {
            return Err(error!(Option { what: "ranks", found: ranks as f64, expected: "1 to 64" }));
        }
        if !self.routed_layers.is_empty() {
            return Err(unsupported("operation", "a mixture of depths", "blocks that no token skips"));
        }
        if !self.bases.is_empty() {
            let expected = "weights that are not rotated (prism.hadamard.*)";
            return Err(unsupported("operation", "a rotated basis", expected));
        }
        if self.state_len > 0 {
            return Err(unsupported("operation", "a recurrent state", "attention in every layer"));
        }
        let mut part = match split {
            Split::Pipeline(ranks) => self.stage(rank, ranks),
            Split::Tensor(ranks) => TensorSplit { program: self, rank, ranks, reduce: false }.run(),
            Split::TensorReduce(ranks) => TensorSplit { program: self, rank, ranks, reduce: true }.run(),
        }?;
        part.program.ranks = ranks;
        Ok(part)
    }

    fn stage(&self, rank: usize, ranks: usize) -> Result<SplitProgram> {
        if self.blocks.len() < ranks {
            let expected = "at most one per block of the model";
            return Err(error!(Option { what: "stages of the pipeline", found: ranks as f64, expected }));
        }
        let blocks = share(self.blocks.len(), rank, ranks);
        let at = |block: usize| self.blocks.get(block).copied().unwrap_or(self.body.len());
        let mut program = self.clone();
        program.body = self.body[at(blocks.start)..at(blocks.end)].to_vec();
        let x = self.residual;
        if rank == 0 {
            program.body.splice(0..0, self.body[..at(0)].iter().cloned());
        } else {
            program.body.insert(0, Op::Exchange(Exchange::Receive { x, rank: rank - 1 }));
            program.head.clear();
        }
        if ranks > 1 {
            program.body.push(Op::Exchange(Exchange::Send { x, rank: (rank + 1) % ranks }));
            if rank == 0 {
                program.tail.push(Op::Exchange(Exchange::Receive { x, rank: ranks - 1 }));
                program.stages = ranks;
            }
        }
        program.layers = blocks.len();
        // Only the tensors that are still used; the output is, for the size of the vocabulary.
        let mut kept: Vec<TensorId> = Vec::new();
        let mut renumber = |id: &mut TensorId| {
            let at = kept.iter().position(|kept| kept == id).unwrap_or_else(|| {
                kept.push(*id);
                kept.len() - 1
            });
            *id = TensorId::at(at);
        };
        program.body.iter_mut().chain(&mut program.head).for_each(|op| op.each_tensor(&mut renumber));
        renumber(&mut program.output);
        program.rope_factors.iter_mut().for_each(renumber);
        program.tensors = kept.iter().map(|id| self.tensor(*id).clone()).collect();
        for op in &mut program.body {
            if let Op::RopeStore { layer, .. } | Op::Attention { layer, .. } = op {
                *layer -= blocks.start;
            }
        }
        Ok(SplitProgram { pieces: kept.into_iter().map(|id| whole(self, id)).collect(), program })
    }
}

/// Divides matrices.
struct TensorSplit<'p> {
    program: &'p Program,
    rank: usize,
    ranks: usize,
    /// Whether matrices that write to the residual stream are divided by columns.
    reduce: bool,
}

/// The program and the pieces so far.
struct Parts {
    program: Program,
    pieces: Vec<Piece>,
}

impl TensorSplit<'_> {
    fn divided(&self, what: &'static str, count: usize) -> Result<usize> {
        if count.is_multiple_of(self.ranks) {
            return Ok(count / self.ranks);
        }
        let found = alloc::format!("{count}");
        Err(unsupported(what, found, "a multiple of the number of ranks"))
    }

    /// Keeps this rank's rows of a tensor; returns how many these are.
    fn rows(&self, parts: &mut Parts, id: TensorId) -> Result<usize> {
        let rows = self.divided("rows of a matrix", self.program.tensor(id).rows)?;
        parts.pieces[id.index()].rows = rows * self.rank..rows * (self.rank + 1);
        parts.program.tensors[id.index()].rows = rows;
        Ok(rows)
    }

    fn cols(&self, parts: &mut Parts, id: TensorId) -> Result<()> {
        let cols = self.divided("columns of a matrix", self.program.tensor(id).cols)?;
        parts.pieces[id.index()].cols = cols * self.rank..cols * (self.rank + 1);
        parts.program.tensors[id.index()].cols = cols;
        Ok(())
    }

    fn run(&self) -> Result<SplitProgram> {
        let mut parts = Parts {
            program: self.program.clone(),
            pieces: self.program.tensor_ids().map(|id| whole(self.program, id)).collect(),
        };
        if self.ranks == 1 {
            return Ok(SplitProgram { program: parts.program, pieces: parts.pieces });
        }
        let heads = self.program.heads;
        parts.program.heads.kv = self.divided("key-value heads", heads.kv)?;
        parts.program.heads.query = self.divided("query heads", heads.query)?;
        if !self.program.alibi_slopes.is_empty() {
            let mine = share(heads.query, self.rank, self.ranks);
            parts.program.alibi_slopes = self.program.alibi_slopes[mine].to_vec();
        }
        // Positions of blocks in the new body.
        let mut blocks = Vec::new();
        let mut body: Vec<Op> = Vec::new();
        for (i, op) in self.program.body.iter().enumerate() {
            if self.program.blocks.contains(&i) {
                blocks.push(body.len());
            }
            self.op(op, self.program.body.get(i + 1), &mut parts, &mut body)?;
        }
        (parts.program.body, parts.program.blocks) = (body, blocks);
        self.output(&mut parts)?;
        Ok(SplitProgram { program: parts.program, pieces: parts.pieces })
    }

    fn op(&self, op: &Op, next: Option<&Op>, parts: &mut Parts, body: &mut Vec<Op>) -> Result<()> {
        match *op {
            Op::Embed { .. } | Op::RmsNorm { .. } | Op::RopeStore { .. } => body.push(op.clone()),
            Op::Linear { x, ref outputs } => {
                // Heads, which stay apart until attention has read them.
                let heads = match next {
                    Some(Op::RopeStore { q, k, v, .. }) => {
                        outputs.iter().all(|(_, out)| [q, k, v].contains(&out))
                    }
                    _ => false,
                };
                if !heads {
                    return Err(unsupported(
                        "operation",
                        "a product",
                        "one whose outputs are heads of attention",
                    ));
                }
                for (weight, out) in outputs {
                    parts.program.buffers[out.index()].cols = self.rows(parts, *weight)?;
                }
                body.push(Op::Linear { x, outputs: outputs.clone() });
            }
            Op::Attention { layer, window, q, out } => {
                let heads = parts.program.heads;
                let mine = parts.program.buffer("heads of attention", heads.query * heads.dim);
                body.push(Op::Attention { layer, window, q, out: mine });
                if !self.reduce {
                    body.push(Op::Exchange(Exchange::Gather { x: mine, to: out }));
                }
            }
            Op::LinearSwiglu { x, gate, up, out } => {
                let cols = self.rows(parts, gate)?;
                self.rows(parts, up)?;
                let mine = parts.program.buffer("gated part", cols);
                body.push(Op::LinearSwiglu { x, gate, up, out: mine });
                if !self.reduce {
                    body.push(Op::Exchange(Exchange::Gather { x: mine, to: out }));
                }
            }
            Op::LinearAdd { x, weight, to } => {
                let spec = self.program.tensor(weight);
                // What the operation before has computed of `x`.
                let (x, cols) = match body.last() {
                    Some(Op::Attention { out, .. } | Op::LinearSwiglu { out, .. }) if self.reduce => {
                        self.cols(parts, weight)?;
                        (*out, spec.rows)
                    }
                    Some(Op::Exchange(Exchange::Gather { to: whole, .. })) if *whole == x => {
                        (x, self.rows(parts, weight)?)
                    }
                    _ => {
                        return Err(unsupported(
                            "operation",
                            "a product",
                            "one of heads or of a gated product",
                        ));
                    }
                };
                let delta = parts.program.buffer("delta", cols);
                let mut outputs = ArrayVec::new();
                // There is room for one.
                let _ = outputs.push((weight, delta));
                body.push(Op::Linear { x, outputs });
                body.push(Op::Exchange(match self.reduce {
                    true => Exchange::ReduceAdd { x: delta, to },
                    false => Exchange::GatherAdd { x: delta, to },
                }));
            }
            Op::Experts(_) => {
                return Err(unsupported(
                    "operation",
                    "a mixture of experts",
                    "one feed-forward block; or pipeline:N",
                ));
            }
            Op::Gated { .. }
            | Op::Bias { .. }
            | Op::Add { .. }
            | Op::Scale { .. }
            | Op::Conv(_)
            | Op::DeltaNet(_)
            | Op::GatedNorm(_)
            | Op::SplitHeads { .. }
            | Op::Factor { .. }
            | Op::Hadamard(_) => {
                let expected = "one of Qwen3 or Llama without biases and adapters (LoRA); or pipeline:N";
                return Err(unsupported("operation", "a program", expected));
            }
            Op::Select { .. } | Op::Merge { .. } => {
                return Err(unsupported("operation", "a mixture of depths", "blocks that no token skips"));
            }
            Op::Exchange(_) => {
                return Err(unsupported("operation", "an exchange", "a program that is not split"));
            }
        }
        Ok(())
    }

    /// Divides the rows of the output matrix, the last rank having fewer. As an embedding it is still needed whole.
    fn output(&self, parts: &mut Parts) -> Result<()> {
        let spec = self.program.tensor(self.program.output).clone();
        let share = spec.rows.div_ceil(self.ranks);
        let start = share * self.rank;
        if share * (self.ranks - 1) >= spec.rows {
            return Err(unsupported("ranks", alloc::format!("{}", self.ranks), "fewer than tokens"));
        }
        let rows = start..spec.rows.min(start + share);
        parts.program.divided_vocab = Some(spec.rows);
        let piece = Piece { tensor: self.program.output, rows, cols: 0..spec.cols };
        parts.program.output = TensorId::at(parts.pieces.len());
        parts.program.tensors.push(TensorSpec { rows: piece.rows.len(), ..spec });
        parts.pieces.push(piece);
        Ok(())
    }
}

impl Op {
    /// Calls `visit` with each tensor of the operation.
    fn each_tensor(&mut self, visit: &mut impl FnMut(&mut TensorId)) {
        match self {
            Op::Embed { table, .. } => visit(table),
            Op::RmsNorm { weight, .. } | Op::LinearAdd { weight, .. } => visit(weight),
            Op::Linear { outputs, .. } => outputs.iter_mut().for_each(|(weight, _)| visit(weight)),
            Op::LinearSwiglu { gate, up, .. } => [gate, up].into_iter().for_each(visit),
            Op::Experts(experts) => {
                let all = [&mut experts.router, &mut experts.gate, &mut experts.up, &mut experts.down];
                all.into_iter().for_each(visit);
            }
            Op::RopeStore { norm: Some(QkNorm { q, k }), .. } => [q, k].into_iter().for_each(visit),
            Op::Select { router: vector, .. }
            | Op::Bias { bias: vector, .. }
            | Op::Factor { factor: vector, .. }
            | Op::Conv(Conv { weight: vector, .. })
            | Op::GatedNorm(GatedNorm { weight: vector, .. }) => visit(vector),
            Op::DeltaNet(DeltaNet { decay, dt, .. }) => [decay, dt].into_iter().for_each(visit),
            Op::RopeStore { norm: None, .. }
            | Op::Gated { .. }
            | Op::Add { .. }
            | Op::Scale { .. }
            | Op::SplitHeads { .. }
            | Op::Hadamard(_)
            | Op::Attention { .. }
            | Op::Merge { .. }
            | Op::Exchange(_) => {}
        }
    }
}
