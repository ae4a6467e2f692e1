//! Lowering a [`Program`] to dispatches: a pass over its operations that decides in which precision each
//! value is stored, which buffers share memory, and which kernels compute an operation for one row and for
//! several.

use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::kernel::{
    self, Acts, AttentionTile, Element, Kernel, Layer, MAX_PARTS, Output, Product, RopeStore, RowSource,
    STEP_HEAD, View,
};
use crate::upload::{GpuModel, Matrix, UploadPlan, are_joined};
use core::num::NonZeroU32;
use shohin_accelerator::{Head, head};
use shohin_core::Activations;
use shohin_core::model::Program;
use shohin_core::model::program::{BufferId, Op, QkNorm, TensorId};
use wgpu::Buffer;

/// Sizes of the buffers of a program, in elements per row; known without a GPU.
#[derive(Debug)]
pub(crate) struct BufferPlan {
    /// By buffer of the program: elements stored as floats (0: never) and as integers.
    cols: Vec<[usize; 2]>,
    /// By operation of the body: the precisions in which its output is read.
    needs: Vec<Vec<Activations>>,
    /// Precisions in which the final hidden state is multiplied by the output.
    hidden: Vec<Activations>,
}

/// How an operation accesses a buffer.
enum Access {
    Reads(Vec<Activations>),
    /// Reads floats and writes others.
    Changes,
    Writes,
}

impl BufferPlan {
    pub(crate) fn new(plan: &UploadPlan, activations: Activations) -> BufferPlan {
        let program = plan.program();
        let inputs = |tensor| {
            let mut inputs: Vec<_> = plan.layouts(tensor).map(|packed| packed.input(activations)).collect();
            inputs.dedup();
            inputs
        };
        let needs: Vec<_> = (0..program.body.len()).map(|at| needs(program, at, &inputs)).collect();
        let hidden = inputs(program.output);
        let mut cols = vec![[0; 2]; program.buffers.len()];
        let mut hold = |id: BufferId, precision, width: usize| {
            let at = match precision {
                Activations::F32 => 0,
                Activations::Int8 => 1,
            };
            let held = &mut cols[id.index()][at];
            *held = width.max(*held);
        };
        // Those that share the memory of another buffer, to which an adapter or a bias adds.
        let mut joined = vec![false; program.buffers.len()];
        for (op, needs) in program.body.iter().zip(&needs) {
            if matches!(op, Op::LinearAdd { to, .. } | Op::Bias { x: to, .. } if joined[to.index()]) {
                continue;
            }
            if let Op::Linear { outputs, .. } = op {
                let are_joined = are_joined(program, outputs);
                outputs.iter().skip(1).for_each(|(_, out)| joined[out.index()] = are_joined);
            }
            for (id, width, floats) in written(program, op) {
                if floats {
                    hold(id, Activations::F32, width);
                }
                needs.iter().for_each(|&need| hold(id, need, width));
            }
        }
        hidden.iter().for_each(|&need| hold(program.hidden, need, program.tensor(program.output).cols));
        BufferPlan { cols, needs, hidden }
    }

    /// Bytes for `rows` rows.
    pub(crate) fn bytes(&self, rows: usize) -> u64 {
        let bytes = |&[floats, integers]: &[usize; 2]| {
            4 * (rows * floats) as u64
                + Acts::bytes(Activations::Int8, rows * integers / 32).iter().sum::<u64>()
        };
        self.cols.iter().map(bytes).sum()
    }
}

/// The buffers that an operation writes: their width, and whether it always writes floats. Outputs that are
/// joined share the memory of the first.
fn written(program: &Program, op: &Op) -> Vec<(BufferId, usize, bool)> {
    let rows = |tensor: TensorId| program.tensor(tensor).rows;
    match op {
        Op::Embed { table, out } => vec![(*out, program.tensor(*table).cols, true)],
        Op::RmsNorm { weight, out, .. } => vec![(*out, program.tensor(*weight).cols, false)],
        Op::Linear { outputs, .. } if are_joined(program, outputs) => {
            let width = outputs.iter().map(|(tensor, _)| rows(*tensor)).sum();
            outputs.iter().take(1).map(|(_, out)| (*out, width, true)).collect()
        }
        Op::Linear { outputs, .. } => {
            outputs.iter().map(|(tensor, out)| (*out, rows(*tensor), true)).collect()
        }
        Op::Gated { gate, cols, .. } => vec![(*gate, *cols, true)],
        Op::LinearAdd { weight, to, .. } => vec![(*to, rows(*weight), true)],
        Op::Bias { x, bias } => vec![(*x, program.tensor(*bias).cols, true)],
        Op::Add { to: x, cols, .. } | Op::Scale { x, cols, .. } => vec![(*x, *cols, true)],
        Op::LinearSwiglu { gate, out, .. } => vec![(*out, rows(*gate), true)],
        Op::RopeStore { .. }
        | Op::Conv(_)
        | Op::DeltaNet(_)
        | Op::GatedNorm(_)
        | Op::SplitHeads { .. }
        | Op::Factor { .. }
        | Op::Hadamard(_)
        | Op::Experts(_)
        | Op::Select { .. }
        | Op::Merge { .. }
        | Op::Exchange(_) => Vec::new(),
        Op::Attention { out, .. } => vec![(*out, program.heads.query * program.heads.dim, false)],
    }
}

/// The accesses of `op` to `buffer`, in order.
fn accesses(op: &Op, buffer: BufferId, inputs: &impl Fn(TensorId) -> Vec<Activations>) -> Vec<Access> {
    let mut found = Vec::new();
    let floats = || Access::Reads(vec![Activations::F32]);
    match op {
        Op::Embed { out, .. } => {
            if *out == buffer {
                found.push(Access::Writes);
            }
        }
        Op::RmsNorm { x, out, .. } => {
            if *x == buffer {
                found.push(floats());
            }
            if *out == buffer {
                found.push(Access::Writes);
            }
        }
        Op::Linear { x, outputs } => {
            if *x == buffer {
                let all = outputs.iter().flat_map(|(tensor, _)| inputs(*tensor));
                found.push(Access::Reads(all.collect()));
            }
            if outputs.iter().any(|(_, out)| *out == buffer) {
                found.push(Access::Writes);
            }
        }
        Op::LinearAdd { x, weight, to } => {
            if *x == buffer {
                found.push(Access::Reads(inputs(*weight)));
            }
            if *to == buffer {
                found.push(Access::Changes);
            }
        }
        Op::LinearSwiglu { x, gate, out, .. } => {
            if *x == buffer {
                found.push(Access::Reads(inputs(*gate)));
            }
            if *out == buffer {
                found.push(Access::Writes);
            }
        }
        Op::Gated { gate, up, .. } => {
            if *up == buffer {
                found.push(floats());
            }
            if *gate == buffer {
                found.push(Access::Changes);
            }
        }
        Op::Bias { x, .. } | Op::Scale { x, .. } => {
            if *x == buffer {
                found.push(Access::Changes);
            }
        }
        Op::Add { x, to, .. } => {
            if *x == buffer {
                found.push(floats());
            }
            if *to == buffer {
                found.push(Access::Changes);
            }
        }
        // Refused when the model is uploaded.
        Op::Conv(_)
        | Op::DeltaNet(_)
        | Op::GatedNorm(_)
        | Op::SplitHeads { .. }
        | Op::Factor { .. }
        | Op::Hadamard(_)
        | Op::Experts(_)
        | Op::Select { .. }
        | Op::Merge { .. }
        | Op::Exchange(_) => {}
        Op::RopeStore { q, k, v, .. } => {
            if *q == buffer {
                found.push(Access::Changes);
            }
            if *k == buffer || *v == buffer {
                found.push(floats());
            }
        }
        Op::Attention { q, out, .. } => {
            if *q == buffer {
                found.push(floats());
            }
            if *out == buffer {
                found.push(Access::Writes);
            }
        }
    }
    found
}

/// The precisions in which the buffers that operation `at` writes are read, until they are written again.
fn needs(program: &Program, at: usize, inputs: &impl Fn(TensorId) -> Vec<Activations>) -> Vec<Activations> {
    let mut needs = Vec::new();
    for (buffer, ..) in written(program, &program.body[at]) {
        for need in reads(program, at, buffer, inputs) {
            if !needs.contains(&need) {
                needs.push(need);
            }
        }
    }
    needs
}

/// The precisions in which `buffer` is read after operation `at`, until it is written again.
fn reads(
    program: &Program,
    at: usize,
    buffer: BufferId,
    inputs: &impl Fn(TensorId) -> Vec<Activations>,
) -> Vec<Activations> {
    let mut found = Vec::new();
    for op in &program.body[at + 1..] {
        for access in accesses(op, buffer, inputs) {
            match access {
                Access::Reads(more) => found.extend(more),
                Access::Changes => {
                    found.push(Activations::F32);
                    return found;
                }
                Access::Writes => return found,
            }
        }
    }
    if buffer == program.residual {
        found.push(Activations::F32);
    }
    found
}

/// The buffers of a program, and the other buffers of a device.
pub(crate) struct Scratch {
    /// Number of rows, tokens, angles `(rotations, batch, head_dim)`.
    pub(crate) step: Buffer,
    /// Rows that are read out: their number, then their indices.
    pub(crate) read_out: Buffer,
    /// `(query heads, MAX_PARTS, head_dim + 4)`
    pub(crate) parts: Buffer,
    floats: Vec<Option<Buffer>>,
    integers: Vec<Option<[Buffer; 2]>>,
    /// Final hidden states `(batch, hidden)`.
    pub(crate) hidden: Buffer,
    pub(crate) batch: usize,
    activations: Activations,
}

/// Bytes of [`Scratch`] besides the buffers of the program.
pub(crate) fn other_bytes(program: &Program, batch: usize) -> [u64; 4] {
    let heads = program.heads;
    [
        4 * (STEP_HEAD + batch + program.rotations.len() * batch * heads.dim) as u64,
        4 * (1 + batch) as u64,
        4 * (heads.query * MAX_PARTS * (heads.dim + 4)) as u64,
        4 * (batch * program.tensor(program.output).cols) as u64,
    ]
}

impl Scratch {
    pub(crate) async fn new(
        gpu: &Gpu,
        program: &Program,
        plan: &BufferPlan,
        batch: usize,
        activations: Activations,
    ) -> Result<Scratch> {
        let [step, read_out, parts, hidden] = other_bytes(program, batch);
        let (mut floats, mut integers) = (Vec::new(), Vec::new());
        for (&[f32, int8], spec) in plan.cols.iter().zip(&program.buffers) {
            floats.push(match f32 {
                0 => None,
                cols => Some(gpu.storage(spec.name, 4 * (batch * cols) as u64).await?),
            });
            integers.push(match int8 {
                0 => None,
                cols => {
                    let [words, scales] = Acts::bytes(Activations::Int8, batch * cols / 32);
                    Some([
                        gpu.storage(spec.name, words).await?,
                        gpu.storage("activation scales", scales).await?,
                    ])
                }
            });
        }
        Ok(Scratch {
            step: gpu.storage("step", step).await?,
            read_out: gpu.storage("rows read out", read_out).await?,
            parts: gpu.storage("parts", parts).await?,
            hidden: gpu.storage("hidden states", hidden).await?,
            floats,
            integers,
            batch,
            activations,
        })
    }

    fn floats(&self, id: BufferId) -> Result<&Buffer> {
        self.floats[id.index()]
            .as_ref()
            .ok_or(Error::Operation { found: "a buffer", expected: "one that an operation has written" })
    }

    fn acts(&self, id: BufferId, precision: Activations) -> Result<Acts> {
        match (precision, &self.integers[id.index()]) {
            (Activations::Int8, Some([words, scale])) => {
                Ok(Acts::Int8 { words: words.clone(), scale: scale.clone() })
            }
            (Activations::Int8, None) => {
                Err(Error::Operation { found: "a buffer", expected: "one that is written as integers" })
            }
            (Activations::F32, _) => Ok(Acts::F32(self.floats(id)?.clone())),
        }
    }
}

/// Kernels of an operation for one row, and for several.
#[derive(Default)]
pub(crate) struct Pair {
    pub(crate) one: Vec<Kernel>,
    pub(crate) several: Vec<Kernel>,
}

impl Pair {
    fn same(kernel: Kernel) -> Pair {
        Pair { one: vec![kernel.clone()], several: vec![kernel] }
    }

    fn extend(&mut self, other: Pair) {
        self.one.extend(other.one);
        self.several.extend(other.several);
    }

    /// The kernels for `rows` rows.
    pub(crate) fn of(&self, rows: usize) -> &[Kernel] {
        if rows == 1 { &self.one } else { &self.several }
    }
}

/// A part of a recorded program.
pub(crate) enum Step {
    /// Kernels over all rows of the batch.
    Rows(Pair),
    /// An operation on the cache, by its index among those, run sequence by sequence.
    Cache(usize),
}

/// An operation that uses a cache.
pub(crate) enum CacheOp {
    RopeStore { layer: usize, rotation: usize, qkv: [View; 3], norm: Option<[Buffer; 2]>, eps: f32 },
    Attention { layer: usize, window: Option<NonZeroU32>, q: View, outs: Vec<Acts> },
}

/// A program as dispatches.
pub(crate) struct Recording {
    pub(crate) body: Vec<Step>,
    pub(crate) cache_ops: Vec<CacheOp>,
    /// From the residual stream of the rows that are read out to logits `(rows, vocab)`.
    pub(crate) logits: Pair,
    /// From the residual stream of the rows that are read out to [`Scratch::hidden`].
    pub(crate) hidden: Kernel,
}

impl Recording {
    /// Lowers every operation.
    ///
    /// # Errors
    /// For a combination of operations without kernels.
    pub(crate) fn new(
        model: &GpuModel,
        plan: &BufferPlan,
        scratch: &Scratch,
        logits: &Buffer,
    ) -> Result<Recording> {
        let program = model.program();
        let mut recorder = Recorder { model, program, scratch, views: vec![None; program.buffers.len()] };
        let (mut body, mut cache_ops): (Vec<Step>, Vec<CacheOp>) = (Vec::new(), Vec::new());
        for (op, needs) in program.body.iter().zip(&plan.needs) {
            match recorder.lower(op, needs)? {
                Lowered::Rows(pair) => match body.last_mut() {
                    Some(Step::Rows(last)) => last.extend(pair),
                    _ => body.push(Step::Rows(pair)),
                },
                Lowered::Cache(op) => {
                    body.push(Step::Cache(cache_ops.len()));
                    cache_ops.push(op);
                }
            }
        }
        let Some(Head { x, weight, eps, factor }) = head(program)? else {
            return Err(Error::Operation {
                found: "no operation after the last block",
                expected: "an RMSNorm",
            });
        };
        let (out, constants, mut head) = (program.hidden, [eps, factor], Pair::default());
        let rows = RowSource::ReadOut(&scratch.read_out);
        for &need in &plan.hidden {
            head.extend(Pair::same(recorder.rmsnorm(
                x,
                weight,
                constants,
                rows,
                &scratch.acts(out, need)?,
            )?));
        }
        let vocab = program.vocab();
        let output = model.matrix(program.output)?;
        let into = View { buffer: logits.clone(), first: 0, stride: vocab };
        head.extend(recorder.products(output, out, Output::Store, &into, &scratch.read_out)?);
        let hidden = recorder.rmsnorm(x, weight, constants, rows, &Acts::F32(scratch.hidden.clone()))?;
        Ok(Recording { body, cache_ops, logits: head, hidden })
    }
}

/// Refuses integers of what shares its memory with others.
fn only_floats(needs: &[Activations]) -> Result<()> {
    match needs.contains(&Activations::Int8) {
        true => Err(Error::Operation {
            found: "a product of one of several products",
            expected: "attention of them",
        }),
        false => Ok(()),
    }
}

enum Lowered {
    Rows(Pair),
    Cache(CacheOp),
}

struct Recorder<'r> {
    model: &'r GpuModel,
    program: &'r Program,
    scratch: &'r Scratch,
    /// The location of the floats of each buffer; `None` before they are written.
    views: Vec<Option<View>>,
}

impl Recorder<'_> {
    fn gpu(&self) -> &Gpu {
        &self.model.gpu
    }

    fn lower(&mut self, op: &Op, needs: &[Activations]) -> Result<Lowered> {
        Ok(Lowered::Rows(match *op {
            Op::Embed { table, out } => {
                let (x, cols) = (self.scratch.floats(out)?, self.program.tensor(table).cols);
                let step = &self.scratch.step;
                let kernels = self.model.matrix(table)?.chunks.iter();
                let kernels: Vec<_> =
                    kernels.map(|chunk| kernel::embed(self.gpu(), cols, chunk, step, x)).collect();
                self.whole(out, cols, needs, Pair { one: kernels.clone(), several: kernels })?
            }
            Op::RmsNorm { x, weight, eps, out } => {
                let mut pair = Pair::default();
                for &need in needs {
                    let acts = self.scratch.acts(out, need)?;
                    pair.extend(Pair::same(self.rmsnorm(x, weight, [eps, 1.0], RowSource::All, &acts)?));
                }
                self.written(out, self.program.tensor(weight).cols);
                pair
            }
            Op::Linear { x, ref outputs } => {
                if are_joined(self.program, outputs) {
                    self.joined(x, outputs, needs)?
                } else {
                    let mut pair = Pair::default();
                    for &(tensor, out) in outputs {
                        let cols = self.program.tensor(tensor).rows;
                        let product = self.product(tensor, x, Output::Store, &self.own(out, cols)?)?;
                        pair.extend(self.whole(out, cols, needs, product)?);
                    }
                    pair
                }
            }
            Op::LinearAdd { x, weight, to } => {
                let cols = self.program.tensor(weight).rows;
                let pair = self.product(weight, x, Output::Add, &self.view(to)?)?;
                self.changed(to, cols, needs, pair)?
            }
            Op::LinearSwiglu { x, gate, up: _, out } => {
                let cols = self.program.tensor(gate).rows;
                let pair = self.product(gate, x, Output::Swiglu, &self.own(out, cols)?)?;
                self.whole(out, cols, needs, pair)?
            }
            Op::Gated { activation, gate, up, cols } => {
                let [to, from] = [self.plain(gate, cols)?, self.plain(up, cols)?];
                self.whole(
                    gate,
                    cols,
                    needs,
                    Pair::same(kernel::gate(self.gpu(), activation, cols, &to, &from)),
                )?
            }
            Op::Bias { x, bias } => {
                let change = Element::Bias(self.model.vector(bias)?);
                self.elementwise(x, self.program.tensor(bias).cols, needs, &change)?
            }
            Op::Add { x, to, cols } => self.elementwise(to, cols, needs, &Element::Sum(&self.view(x)?))?,
            Op::Scale { x, cols, factor } => self.elementwise(x, cols, needs, &Element::Factor(factor))?,
            Op::Conv(_)
            | Op::DeltaNet(_)
            | Op::GatedNorm(_)
            | Op::SplitHeads { .. }
            | Op::Factor { .. }
            | Op::Hadamard(_)
            | Op::Experts(_)
            | Op::Select { .. }
            | Op::Merge { .. }
            | Op::Exchange(_) => {
                return Err(Error::Operation {
                    found: "an operation that is refused when the model is uploaded",
                    expected: "a supported one",
                });
            }
            Op::RopeStore { layer, rotation, q, k, v, norm, eps } => {
                let norm = norm.map(|QkNorm { q, k }| {
                    Ok::<_, Error>([self.model.vector(q)?.clone(), self.model.vector(k)?.clone()])
                });
                let qkv = [self.view(q)?, self.view(k)?, self.view(v)?];
                if qkv.iter().any(|view| view.buffer != qkv[0].buffer) {
                    return Err(Error::Operation {
                        found: "queries, keys and values",
                        expected: "those of one product",
                    });
                }
                let norm = norm.transpose()?;
                return Ok(Lowered::Cache(CacheOp::RopeStore { layer, rotation, qkv, norm, eps }));
            }
            Op::Attention { layer, window, q, out } => {
                let q = self.view(q)?;
                self.written(out, self.program.heads.query * self.program.heads.dim);
                let outs = needs.iter().map(|&need| self.scratch.acts(out, need)).collect::<Result<_>>()?;
                return Ok(Lowered::Cache(CacheOp::Attention { layer, window, q, outs }));
            }
        }))
    }

    /// The products of several matrices that are stored as one: queries, keys and values, side by side.
    fn joined(
        &mut self,
        x: BufferId,
        outputs: &[(TensorId, BufferId)],
        needs: &[Activations],
    ) -> Result<Pair> {
        let [(first, out), ..] = *outputs else { return Ok(Pair::default()) };
        let stride = outputs.iter().map(|(tensor, _)| self.program.tensor(*tensor).rows).sum();
        let into = self.own(out, stride)?;
        let pair = self.product(first, x, Output::Store, &into)?;
        if outputs.len() == 1 {
            return self.whole(out, stride, needs, pair);
        }
        let mut at = 0;
        for &(tensor, out) in outputs {
            self.views[out.index()] = Some(View { first: at, ..into.clone() });
            at += self.program.tensor(tensor).rows;
        }
        only_floats(needs)?;
        Ok(pair)
    }

    /// Records that `pair` has written `out`, `cols` floats per row, and adds the conversion to integers.
    fn whole(&mut self, out: BufferId, cols: usize, needs: &[Activations], mut pair: Pair) -> Result<Pair> {
        self.written(out, cols);
        if needs.contains(&Activations::Int8) {
            let acts = self.scratch.acts(out, Activations::Int8)?;
            pair.extend(Pair::same(kernel::quantize(self.gpu(), cols, self.scratch.floats(out)?, &acts)));
        }
        Ok(pair)
    }

    /// Records that `pair` has changed `cols` columns of `to`, which may share its memory.
    fn changed(&mut self, to: BufferId, cols: usize, needs: &[Activations], pair: Pair) -> Result<Pair> {
        let View { first, stride, .. } = self.view(to)?;
        if (first, stride) == (0, cols) {
            return self.whole(to, cols, needs, pair);
        }
        only_floats(needs)?;
        Ok(pair)
    }

    fn elementwise(
        &mut self,
        x: BufferId,
        cols: usize,
        needs: &[Activations],
        change: &Element<'_>,
    ) -> Result<Pair> {
        let kernel = kernel::elementwise(self.gpu(), cols, &self.view(x)?, change);
        self.changed(x, cols, needs, Pair::same(kernel))
    }

    /// A buffer's own memory, with rows of `cols` floats.
    fn own(&self, id: BufferId, cols: usize) -> Result<View> {
        Ok(View { buffer: self.scratch.floats(id)?.clone(), first: 0, stride: cols })
    }

    fn written(&mut self, out: BufferId, cols: usize) {
        let buffer = self.scratch.floats[out.index()].clone();
        self.views[out.index()] = buffer.map(|buffer| View { buffer, first: 0, stride: cols });
    }

    fn view(&self, id: BufferId) -> Result<View> {
        self.views[id.index()]
            .clone()
            .ok_or(Error::Operation { found: "a buffer", expected: "one that an operation has written" })
    }

    /// The floats of a buffer that does not share its memory.
    fn plain(&self, id: BufferId, cols: usize) -> Result<Buffer> {
        let view = self.view(id)?;
        if (view.first, view.stride) != (0, cols) {
            return Err(Error::Operation {
                found: "a product of one of several products",
                expected: "attention of them",
            });
        }
        Ok(view.buffer)
    }

    fn rmsnorm(
        &self,
        x: BufferId,
        weight: TensorId,
        constants: [f32; 2],
        rows: RowSource<'_>,
        acts: &Acts,
    ) -> Result<Kernel> {
        let cols = self.program.tensor(weight).cols;
        let x = self.plain(x, cols)?;
        Ok(kernel::rmsnorm(self.gpu(), cols, constants, rows, &x, self.model.vector(weight)?, acts))
    }

    /// A product over all rows of the batch, with the matrix whose first tensor this is.
    fn product(&self, tensor: TensorId, x: BufferId, output: Output, into: &View) -> Result<Pair> {
        self.products(self.model.matrix(tensor)?, x, output, into, &self.scratch.step)
    }

    /// A product over all rows that `step` counts.
    fn products(
        &self,
        matrix: &Matrix,
        x: BufferId,
        output: Output,
        into: &View,
        step: &Buffer,
    ) -> Result<Pair> {
        let mut pair = Pair::default();
        for chunk in &matrix.chunks {
            let acts = &self.scratch.acts(x, chunk.packed.input(self.scratch.activations))?;
            let product = Product { cols: matrix.cols, chunk, acts, output, into };
            pair.one.push(product.gemv(self.gpu()));
            pair.several.push(product.gemm(self.gpu(), step));
        }
        Ok(pair)
    }
}

/// Kernels of an operation on the cache of a sequence.
pub(crate) struct CacheKernels {
    /// For one row with few positions, with many, and for several rows.
    pub(crate) short: Vec<Kernel>,
    pub(crate) long: Vec<Kernel>,
    pub(crate) several: Vec<Kernel>,
}

impl CacheKernels {
    pub(crate) fn new<'c>(
        gpu: &Gpu,
        program: &Program,
        scratch: &Scratch,
        op: &CacheOp,
        layer: &impl Fn(usize, Option<NonZeroU32>) -> Result<Layer<'c>>,
    ) -> Result<CacheKernels> {
        let heads = &program.heads;
        match op {
            CacheOp::RopeStore { layer: at, rotation, qkv: [q, k, v], norm, eps } => {
                let (step, batch, pairing) = (&scratch.step, scratch.batch, program.pairing);
                let norm = norm.as_ref().map(|[q, k]| [q, k]);
                let pairs = program.rotations.get(*rotation).map_or(0, |rope| rope.speeds().len());
                let (eps, rotation) = (*eps, *rotation);
                let op = RopeStore { q, k, v, norm, eps, pairing, pairs, rotation, step, batch };
                let kernel = kernel::rope(gpu, heads, &layer(*at, None)?, &op);
                let kernels = || vec![kernel.clone()];
                Ok(CacheKernels { short: kernels(), long: kernels(), several: kernels() })
            }
            CacheOp::Attention { layer: at, window, q, outs } => {
                let layer = &layer(*at, *window)?;
                let attention = |tile| {
                    outs.iter().map(|acts| kernel::attention(gpu, heads, layer, tile, q, acts)).collect()
                };
                let mut long = vec![kernel::attention_part(gpu, heads, layer, q, &scratch.parts)];
                let combine =
                    |acts| kernel::attention_combine(gpu, heads, &scratch.parts, layer.sequence, acts);
                long.extend(outs.iter().map(combine));
                Ok(CacheKernels {
                    short: attention(AttentionTile::One),
                    long,
                    several: attention(AttentionTile::Many),
                })
            }
        }
    }

    /// The kernels for rows of a sequence, with attention divided into `parts`.
    pub(crate) fn of(&self, rows: usize, parts: usize) -> &[Kernel] {
        match (rows, parts) {
            (1, 1) => &self.short,
            (1, _) => &self.long,
            _ => &self.several,
        }
    }
}
