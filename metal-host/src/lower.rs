//! Lowering a [`Program`] to kernels: a pass over its operations.
#![forbid(unsafe_code)]

use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::kernel::{
    Change, Choices, Kernel, Kernels, MAX_PARTS, Output, Pairs, Pipelines, RopeStore, TILE_ROWS,
};
use crate::weights::{Matrix, MetalModel};
use core::num::NonZeroU32;
use shohin_accelerator::{Head, head};
use shohin_core::Activations;
use shohin_core::model::Program;
use shohin_core::model::program::{BufferId, Experts, Op, QkNorm, RopePairing, TensorId};

/// The buffers of a program, and the inputs of a run.
pub(crate) struct Scratch<B> {
    /// `(batch)`
    pub(crate) tokens: B,
    /// Of each rotation `(batch, head_dim)`: cosines, then sines.
    pub(crate) angles: Vec<B>,
    /// Indices of the rows that are read out, `(batch)`.
    pub(crate) read_out: B,
    /// `(query heads, MAX_PARTS, head_dim + 2)`
    parts: B,
    /// Of a mixture of experts.
    choices: Option<Choices<B>>,
    /// By buffer of the program: `(batch, cols)`, or with more rows, see [`Program::rows_with_pairs`].
    floats: Vec<B>,
    /// The same as integers: words, and scales with sums; `None` if activations are floats.
    integers: Vec<Option<[B; 2]>>,
}

/// Bytes of [`Scratch`] besides the buffers of the program: of tokens, angles of one rotation, rows and parts.
fn other_bytes(program: &Program, batch: usize) -> [u64; 4] {
    let heads = program.heads;
    [4 * batch, 4 * batch * heads.dim, 4 * batch, 4 * heads.query * MAX_PARTS * (heads.dim + 2)]
        .map(|n| n as u64)
}

/// Bytes of [`Choices`] for the mixture with the most pairs and experts.
fn choices_bytes(program: &Program, batch: usize) -> Option<[u64; 4]> {
    let used = program.mixtures().map(|experts| experts.used).max()?;
    let counts = program.mixtures().map(|experts| program.tensor(experts.router).rows);
    let (pairs, experts) = (batch * used, counts.max().unwrap_or(0));
    let tiles = (pairs / TILE_ROWS + experts).max(used);
    Some([4 * pairs, 4 * pairs, 4 * pairs, 16 * tiles].map(|n| n as u64))
}

/// Bytes of a buffer of the program as floats, and as integers.
fn buffer_bytes(cols: usize, batch: usize, activations: Activations) -> (u64, Option<[u64; 2]>) {
    let units = (batch * cols.div_ceil(32)) as u64;
    let integers = match activations {
        Activations::Int8 => Some([32 * units, 8 * units]),
        Activations::F32 => None,
    };
    (4 * (batch * cols) as u64, integers)
}

/// Bytes of [`Scratch`].
pub(crate) fn scratch_bytes(program: &Program, batch: usize, activations: Activations) -> u64 {
    let buffers = program.buffers.iter().zip(program.rows_with_pairs()).map(|(buffer, rows)| {
        let (floats, integers) = buffer_bytes(buffer.cols, batch * rows, activations);
        floats + integers.map_or(0, |[words, scales]| words + scales)
    });
    let more = (program.rotations.len() as u64).saturating_sub(1) * other_bytes(program, batch)[1];
    let choices: u64 = choices_bytes(program, batch).iter().flatten().sum();
    buffers.sum::<u64>() + choices + other_bytes(program, batch).iter().sum::<u64>() + more
}

impl<B> Scratch<B> {
    pub(crate) fn new<D: Driver<Buffer = B>>(
        driver: &D,
        program: &Program,
        batch: usize,
        activations: Activations,
    ) -> Result<Scratch<B>> {
        let [tokens, angles, read_out, parts] = other_bytes(program, batch);
        let (mut floats, mut integers) = (Vec::new(), Vec::new());
        for (buffer, rows) in program.buffers.iter().zip(program.rows_with_pairs()) {
            let (bytes, both) = buffer_bytes(buffer.cols, batch * rows, activations);
            floats.push(driver.buffer(bytes)?);
            integers.push(match both {
                Some([words, scales]) => Some([driver.buffer(words)?, driver.buffer(scales)?]),
                None => None,
            });
        }
        let choices = match choices_bytes(program, batch) {
            Some([experts, weights, order, tiles]) => Some(Choices {
                experts: driver.buffer(experts)?,
                weights: driver.buffer(weights)?,
                order: driver.buffer(order)?,
                tiles: driver.buffer(tiles)?,
            }),
            None => None,
        };
        Ok(Scratch {
            choices,
            tokens: driver.buffer(tokens)?,
            angles: program.rotations.iter().map(|_| driver.buffer(angles)).collect::<Result<_>>()?,
            read_out: driver.buffer(read_out)?,
            parts: driver.buffer(parts)?,
            floats,
            integers,
        })
    }

    /// The floats of a buffer of the program.
    pub(crate) fn floats(&self, id: BufferId) -> &B {
        &self.floats[id.index()]
    }
}

/// A part of a lowered program.
pub(crate) enum Step<D: Driver> {
    /// Kernels over all rows, for one row and for several.
    Rows { one: Kernel<D>, several: Kernel<D> },
    /// The same kernel for any number of rows.
    Any(Kernel<D>),
    /// A kernel that a single row does not need.
    Several(Kernel<D>),
    /// An operation on the cache, by its index among those, sequence by sequence.
    Cache(usize),
}

/// An operation on the cache of a sequence.
pub(crate) enum CacheOp<D: Driver> {
    RopeStore(RopeStore<D::Buffer>),
    Attention {
        layer: usize,
        window: Option<NonZeroU32>,
        query_scale: f32,
        q: D::Buffer,
        out: D::Buffer,
        parts: D::Buffer,
        combine: Kernel<D>,
    },
}

/// A program as kernels.
pub(crate) struct Lowered<D: Driver> {
    pub(crate) body: Vec<Step<D>>,
    pub(crate) cache_ops: Vec<CacheOp<D>>,
    /// The final norm of the rows that are read out.
    pub(crate) norm: Kernel<D>,
    /// From there to the logits.
    pub(crate) logits: Vec<Step<D>>,
}

impl<D: Driver> Lowered<D> {
    /// Lowers every operation.
    ///
    /// # Errors
    /// For a combination of operations without kernels.
    pub(crate) fn new(
        model: &MetalModel<D>,
        scratch: &Scratch<D::Buffer>,
        pipelines: &mut Pipelines<D>,
        activations: Activations,
        logits: &D::Buffer,
    ) -> Result<Lowered<D>> {
        let program = model.program();
        let kernels = Kernels { driver: model.driver(), pipelines };
        let fresh = vec![false; program.buffers.len()];
        let mut lowering = Lowering {
            model,
            scratch,
            kernels,
            activations,
            fresh,
            steps: Vec::new(),
            cache_ops: Vec::new(),
        };
        program.body.iter().try_for_each(|op| lowering.op(op))?;
        let body = core::mem::take(&mut lowering.steps);
        // A factor is one of the weights.
        let Some(Head { x, weight, eps, .. }) = head(program)? else {
            return Err(Error::Operation {
                found: "no operation after the last block",
                expected: "an RMSNorm",
            });
        };
        let out = program.hidden;
        let norm = lowering.rmsnorm(x, weight, eps, Some(&scratch.read_out), out)?;
        lowering.linear(program.output, out, logits, Output::Store, None)?;
        let Lowering { steps, cache_ops, .. } = lowering;
        Ok(Lowered { body, cache_ops, norm, logits: steps })
    }
}

struct Lowering<'l, D: Driver> {
    model: &'l MetalModel<D>,
    scratch: &'l Scratch<D::Buffer>,
    kernels: Kernels<'l, D>,
    activations: Activations,
    /// By buffer: whether its integers are those of its floats.
    fresh: Vec<bool>,
    steps: Vec<Step<D>>,
    cache_ops: Vec<CacheOp<D>>,
}

impl<D: Driver> Lowering<'_, D> {
    fn op(&mut self, op: &Op) -> Result<()> {
        match *op {
            Op::Embed { table, out } => {
                let table = self.model.matrix(table)?;
                let kernel = self.kernels.embed(table, &self.scratch.tokens, self.scratch.floats(out))?;
                self.steps.push(Step::Any(kernel));
                self.fresh[out.index()] = false;
                Ok(())
            }
            Op::RmsNorm { x, weight, eps, out } => {
                let kernel = self.rmsnorm(x, weight, eps, None, out)?;
                self.steps.push(Step::Any(kernel));
                Ok(())
            }
            Op::Linear { x, ref outputs } => outputs.iter().try_for_each(|&(weight, out)| {
                self.linear(weight, x, self.scratch.floats(out), Output::Store, None)?;
                self.fresh[out.index()] = false;
                Ok(())
            }),
            Op::LinearAdd { x, weight, to } => {
                self.linear(weight, x, self.scratch.floats(to), Output::Add, None)?;
                self.fresh[to.index()] = false;
                Ok(())
            }
            Op::LinearSwiglu { x, gate, up, out } => self.swiglu(x, [gate, up], out, None),
            Op::Exchange(_) => Err(Error::Operation {
                found: "a program that is split among devices",
                expected: "a whole one",
            }),
            Op::Experts(ref experts) => self.experts(experts),
            Op::Gated { activation, gate, up, cols } => {
                let [from, to] = [up, gate].map(|id| self.scratch.floats(id));
                let kernel = self.kernels.gate(activation, cols, to, from)?;
                self.steps.push(Step::Any(kernel));
                self.fresh[gate.index()] = false;
                Ok(())
            }
            Op::Conv(_) | Op::DeltaNet(_) | Op::GatedNorm(_) | Op::SplitHeads { .. } => {
                Err(Error::Operation {
                    found: "layers with a recurrent state",
                    expected: "attention in every layer; the CPU computes both",
                })
            }
            Op::Factor { .. } | Op::Hadamard(_) => Err(Error::Operation {
                found: "weights with factors or in a rotated basis",
                expected: "others; the CPU computes them",
            }),
            Op::Bias { x, bias } => {
                let cols = self.model.program().tensor(bias).cols;
                self.change(x, cols, &Change::Bias(self.model.vector(bias)?))
            }
            Op::Add { x, to, cols } => self.change(to, cols, &Change::Sum(self.scratch.floats(x))),
            Op::Scale { x, cols, factor } => self.change(x, cols, &Change::Factor(factor)),
            Op::Select { .. } | Op::Merge { .. } => {
                Err(Error::Operation { found: "a mixture of depths", expected: "blocks that no token skips" })
            }
            Op::RopeStore { layer, rotation, q, k, v, norm, eps } => {
                let norm = norm.map(|QkNorm { q, k }| {
                    Ok::<_, Error>([self.model.vector(q)?.clone(), self.model.vector(k)?.clone()])
                });
                let [q_rows, k, v] = [q, k, v].map(|id| self.scratch.floats(id).clone());
                let Program { rotations, pairing, .. } = self.model.program();
                let (Some(angles), Some(rope)) =
                    (self.scratch.angles.get(rotation).cloned(), rotations.get(rotation))
                else {
                    return Err(Error::Operation { found: "a rotation", expected: "one of the program" });
                };
                let halves = match pairing {
                    RopePairing::Neox => rope.speeds().len(),
                    RopePairing::Interleaved => 0,
                };
                let norm = norm.transpose()?;
                self.fresh[q.index()] = false;
                self.cache(CacheOp::RopeStore(RopeStore {
                    layer,
                    q: q_rows,
                    k,
                    v,
                    norm,
                    angles,
                    eps,
                    halves,
                }));
                Ok(())
            }
            Op::Attention { layer, window, q, out } => {
                let heads = &self.model.program().heads;
                let combine =
                    self.kernels.attention_combine(heads, &self.scratch.parts, self.scratch.floats(out))?;
                let parts = self.scratch.parts.clone();
                self.fresh[out.index()] = false;
                let [q, out] = [q, out].map(|id| self.scratch.floats(id).clone());
                let query_scale = self.model.program().query_scale;
                self.cache(CacheOp::Attention { layer, window, query_scale, q, out, parts, combine });
                Ok(())
            }
        }
    }

    fn change(&mut self, x: BufferId, cols: usize, change: &Change<'_, D::Buffer>) -> Result<()> {
        let kernel = self.kernels.change(cols, self.scratch.floats(x), change)?;
        self.steps.push(Step::Any(kernel));
        self.fresh[x.index()] = false;
        Ok(())
    }

    fn cache(&mut self, op: CacheOp<D>) {
        self.steps.push(Step::Cache(self.cache_ops.len()));
        self.cache_ops.push(op);
    }

    fn rmsnorm(
        &mut self,
        x: BufferId,
        weight: TensorId,
        eps: f32,
        gather: Option<&D::Buffer>,
        out: BufferId,
    ) -> Result<Kernel<D>> {
        let cols = self.model.program().tensor(weight).cols;
        let (weight, scratch) = (self.model.vector(weight)?, self.scratch);
        let integers = scratch.integers[out.index()].as_ref();
        self.fresh[out.index()] = integers.is_some();
        self.kernels.rmsnorm(cols, eps, scratch.floats(x), weight, gather, scratch.floats(out), integers)
    }

    /// The rows of `x` in the precision that `matrix` is multiplied by, of which there are `each` per row of the batch.
    fn input(&mut self, x: BufferId, matrix: &Matrix<D::Buffer>, each: usize) -> Result<[D::Buffer; 2]> {
        let floats = self.scratch.floats(x);
        let integers = match matrix.packed.input(self.activations) {
            Activations::F32 => None,
            Activations::Int8 => self.scratch.integers[x.index()].as_ref(),
        };
        let Some(integers) = integers else { return Ok([floats.clone(), floats.clone()]) };
        if !self.fresh[x.index()] {
            let kernel = self.kernels.quantize((matrix.cols, each), floats, integers)?;
            self.steps.push(Step::Any(kernel));
            self.fresh[x.index()] = true;
        }
        Ok(integers.clone())
    }

    fn linear(
        &mut self,
        weight: TensorId,
        x: BufferId,
        output: &D::Buffer,
        how: Output,
        pairs: Option<Pairs<'_, D::Buffer>>,
    ) -> Result<()> {
        let matrix = self.model.matrix(weight)?;
        let each = pairs.map_or(1, |pairs| pairs.used / pairs.share);
        let [words, scale] = self.input(x, matrix, each)?;
        let mut tile = |tile| {
            self.kernels.linear(matrix, self.activations, [&words, &scale], output, how, (tile, pairs))
        };
        self.steps.push(Step::Rows { one: tile(1)?, several: tile(TILE_ROWS)? });
        Ok(())
    }

    fn swiglu(
        &mut self,
        x: BufferId,
        [gate, up]: [TensorId; 2],
        out: BufferId,
        pairs: Option<Pairs<'_, D::Buffer>>,
    ) -> Result<()> {
        let matrices = [self.model.matrix(gate)?, self.model.matrix(up)?];
        let [words, scale] = self.input(x, matrices[0], 1)?;
        let output = self.scratch.floats(out);
        let mut tile =
            |tile| self.kernels.swiglu(matrices, self.activations, [&words, &scale], output, (tile, pairs));
        self.steps.push(Step::Rows { one: tile(1)?, several: tile(TILE_ROWS)? });
        self.fresh[out.index()] = false;
        Ok(())
    }

    /// A mixture of experts. Each expert computes the rows that use it; the weights of others are not read.
    fn experts(&mut self, e: &Experts) -> Result<()> {
        let (program, scratch) = (self.model.program(), self.scratch);
        let (experts, cols) = (program.tensor(e.router).rows, program.tensor(e.down).rows_each());
        let Some(choices) = &scratch.choices else {
            return Err(Error::Operation { found: "a mixture of experts", expected: "scratch" });
        };
        let logits = scratch.floats(e.probabilities);
        self.linear(e.router, e.x, logits, Output::Store, None)?;
        let [route, tiles] = self.kernels.route([experts, e.used], e.normalize, logits, choices)?;
        self.steps.extend([Step::Any(route), Step::Several(tiles)]);
        let pairs =
            Pairs { tiles: &choices.tiles, order: &choices.order, experts, used: e.used, share: e.used };
        self.swiglu(e.x, [e.gate, e.up], e.gated, Some(pairs))?;
        let (results, to) = (scratch.floats(e.routed), scratch.floats(e.to));
        self.linear(e.down, e.gated, results, Output::Store, Some(Pairs { share: 1, ..pairs }))?;
        let add = self.kernels.experts_add([cols, e.used], [&choices.weights, results, to])?;
        self.steps.push(Step::Any(add));
        for id in [e.probabilities, e.routed, e.to] {
            self.fresh[id.index()] = false;
        }
        Ok(())
    }
}
