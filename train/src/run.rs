//! Steps of a tape: the loss of a batch and its gradients, or its derivative along a direction.
#![forbid(unsafe_code)]

mod tangent;

use alloc::vec;
use alloc::vec::Vec;
use core::mem::take;
use core::num::NonZeroU32;
use core::ops::Range;

use shohin_core::attention::AttentionPattern;
use shohin_core::cpu::Isa;
use shohin_core::error::Name;
use shohin_core::model::program::{Program, TensorId, TensorRole};
use shohin_core::pool::Pool;
use shohin_core::{Error, Result};

use crate::batch::Batch;
use crate::dropout::{self, Dropout};
use crate::gemm::{Gemm, Line, Store, Weight};
use crate::loss::Loss;
use crate::op::rope::{Angles, Heads};
use crate::op::{Gradient, add, attention, bias, embed, experts, gated, head, linear, norm, scale};
use crate::plan::{Checkpoints, Plan, Slot, Step, Target};
use crate::tape::{Mixture, Node, Tape, ValueId};

/// A tensor of a program as a step reads it.
#[derive(Clone, Copy, Debug)]
pub enum Tensor<'w> {
    /// An operand of products, or a table.
    Matrix(Weight<'w>),
    /// A row of floats.
    Vector(&'w [f32]),
}

impl<'w> Tensor<'w> {
    /// An operand of products; a vector has one row.
    pub(crate) fn matrix(self) -> Weight<'w> {
        match self {
            Tensor::Matrix(weight) => weight,
            Tensor::Vector(data) => Weight::Floats { data, cols: data.len(), fake: None },
        }
    }
}

/// What steps are planned for.
#[derive(Clone, Copy, Debug)]
pub struct StepOptions {
    /// Maximum number of rows of a batch.
    pub rows: usize,
    /// Maximum number of tokens of a sequence.
    pub longest: usize,
    /// Which activations are kept.
    pub checkpoints: Checkpoints,
    /// The earlier tokens that a token looks at.
    pub pattern: AttentionPattern,
}

/// Bytes of a step, by what they hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepMemory {
    /// Activations and their gradients.
    pub activations: u64,
    /// The logits of a few rows, and their hidden states.
    pub logits: u64,
    /// Probabilities of experts, and the rows of one with their products.
    pub experts: u64,
    /// What workers pack, and scores of attention.
    pub workers: u64,
    /// Cosines and sines.
    pub angles: u64,
}

impl StepMemory {
    /// All bytes.
    pub fn total(&self) -> u64 {
        self.activations + self.logits + self.experts + self.workers + self.angles
    }
}

/// Computes losses and gradients of a program.
#[derive(Debug)]
pub struct Steps<'p> {
    program: &'p Program,
    tape: Tape,
    plan: Plan,
    options: StepOptions,
    slots: Vec<Vec<Line>>,
    gemm: Gemm<'p>,
    attention: attention::Memory,
    experts: experts::Memory,
    dropped: dropout::Memory,
    head: head::Memory,
    /// Of each of [`Program::rotations`].
    angles: Vec<Angles>,
    positions: Vec<u32>,
    /// Where the gradient of each trained tensor is in the gradients of all.
    ranges: Vec<Option<Range<usize>>>,
    num_trained: usize,
    not_finite: Option<usize>,
    largest: f64,
    forward_mode: Option<ForwardMode>,
}

/// What a forward pass with tangents computes in which order, and where.
#[derive(Debug)]
struct ForwardMode {
    plan: Plan,
    slots: Vec<Vec<Line>>,
}

impl ForwardMode {
    fn new(tape: &Tape) -> Self {
        let plan = Plan::forward_mode(tape);
        ForwardMode { slots: vec![Vec::new(); plan.slots.len()], plan }
    }
}

impl<'p> Steps<'p> {
    /// Plans the steps of `program` of which the tensors that `trained` names learn.
    ///
    /// # Errors
    /// As [`Tape::new`]; [`Error::Memory`] if [`Checkpoints::Bytes`] are too few, [`Error::Option`] for an invalid pattern.
    pub fn new(
        program: &'p Program,
        trained: impl Fn(TensorId) -> bool,
        options: StepOptions,
        isa: Isa,
        pool: &'p dyn Pool,
    ) -> Result<Self> {
        options.pattern.check()?;
        let tape = Tape::new(program, trained)?;
        for node in &tape.nodes {
            if let Node::Attention { window, .. } = node {
                options.pattern.within(*window)?;
            }
        }
        let plan = Plan::new(&tape, options.checkpoints, options.rows)?;
        let (mut ranges, mut at) = (Vec::new(), 0);
        for id in program.tensor_ids() {
            let spec = program.tensor(id);
            let range = at..at + spec.rows * spec.cols;
            ranges.push(tape.is_trained(id).then_some(range.clone()));
            at = if tape.is_trained(id) { range.end } else { at };
        }
        Ok(Steps {
            program,
            slots: vec![Vec::new(); plan.slots.len()],
            gemm: Gemm::new(isa, pool),
            attention: attention::Memory::new(isa, pool),
            experts: experts::Memory::default(),
            dropped: dropout::Memory::default(),
            head: head::Memory::default(),
            angles: program.rotations.iter().map(|_| Angles::default()).collect(),
            positions: Vec::new(),
            tape,
            plan,
            options,
            ranges,
            num_trained: at,
            not_finite: None,
            largest: 0.0,
            forward_mode: None,
        })
    }

    /// The tape.
    pub fn tape(&self) -> &Tape {
        &self.tape
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.gemm.isa()
    }

    /// The workers.
    pub fn pool(&self) -> &'p dyn Pool {
        self.gemm.pool()
    }

    /// The number of trained weights: the length of their gradients.
    pub fn num_trained(&self) -> usize {
        self.num_trained
    }

    /// Where the gradient of a tensor is, if it is trained.
    pub fn range(&self, id: TensorId) -> Option<Range<usize>> {
        self.ranges.get(id.index()).cloned().flatten()
    }

    /// Nodes that a step computes twice, except cheap ones.
    pub fn recomputed(&self) -> usize {
        self.plan.recomputed
    }

    /// The bytes that [`Steps::run`] allocates.
    pub fn memory(&self) -> StepMemory {
        let StepOptions { rows, longest, .. } = self.options;
        let heads = self.program.heads;
        let workers = self.gemm.pool().workers().max(1) as u64;
        let of_worker = Gemm::worker_bytes() as u64 + attention::Memory::worker_bytes(longest, heads.dim);
        let hidden = self.tape.value(self.tape.hidden).cols;
        let dropped = self.dropped.dropout.map_or(0, |_| dropout::Memory::bytes(self.program, rows));
        let angles = self.program.rotations.iter().map(|rope| Angles::bytes(longest, rope.speeds().len()));
        StepMemory {
            activations: self.plan.bytes(rows) + dropped,
            logits: head::Memory::bytes(rows, hidden, self.program.vocab()),
            experts: experts::Memory::bytes(rows, self.program),
            workers: workers * of_worker,
            angles: angles.sum(),
        }
    }

    /// The bytes that [`Steps::tangent`] allocates. What is no activation, it shares with [`Steps::run`].
    pub fn tangent_memory(&self) -> StepMemory {
        let StepOptions { rows, longest, .. } = self.options;
        let workers = self.gemm.pool().workers().max(1) as u64;
        let memory = self.memory();
        StepMemory {
            activations: Plan::forward_mode(&self.tape).bytes(rows),
            logits: memory.logits + head::Memory::tangent_bytes(rows, self.program.vocab()),
            experts: memory.experts + experts::Memory::tangent_bytes(rows, self.program),
            workers: memory.workers
                + workers * attention::Memory::tangent_bytes(longest, self.program.heads.dim),
            ..memory
        }
    }

    /// Drops elements of what the first factors of adapters are multiplied by in each [`Steps::run`] from now on, which is not
    /// done for losses and tangents alone.
    pub fn drop_inputs(&mut self, dropout: Option<Dropout>) {
        self.dropped.dropout = dropout.filter(Dropout::is_some);
    }

    /// The loss of `batch`, the sum of its rows' weighted losses divided by `total`; its gradients are added to `gradients`,
    /// of which [`Steps::range`] has the parts. `tensors` are those of the program, in its order.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Limit`] if the batch, the tensors or the gradients do not fit.
    pub fn run(
        &mut self,
        tensors: &[Tensor<'_>],
        batch: &Batch<'_>,
        loss: &Loss,
        total: f64,
        gradients: &mut [f32],
    ) -> Result<f64> {
        self.check(tensors, batch, gradients.len())?;
        Ok(self.sweep(tensors, batch, Sweep::Gradients(loss, total, gradients)).loss)
    }

    /// The loss of `batch` as in [`Steps::run`], and its derivative along `direction`, in which [`Steps::range`] has the part of
    /// each trained tensor: the product of gradients and direction, computed by a forward pass that carries each value's
    /// derivative (Wengert 1964, "A simple automatic derivative evaluation program"). Along quantized weights it is that of
    /// their masters, straight through.
    ///
    /// # Errors
    /// As [`Steps::run`].
    pub fn tangent(
        &mut self,
        tensors: &[Tensor<'_>],
        direction: &[f32],
        batch: &Batch<'_>,
        loss: &Loss,
        total: f64,
    ) -> Result<(f64, f64)> {
        self.check(tensors, batch, direction.len())?;
        let outcome = self.sweep(tensors, batch, Sweep::Tangent(loss, total, direction));
        Ok((outcome.loss, outcome.derivative))
    }

    /// The loss alone.
    ///
    /// # Errors
    /// As [`Steps::run`].
    pub fn loss(
        &mut self,
        tensors: &[Tensor<'_>],
        batch: &Batch<'_>,
        loss: &Loss,
        total: f64,
    ) -> Result<f64> {
        self.check(tensors, batch, self.num_trained)?;
        Ok(self.sweep(tensors, batch, Sweep::Loss(loss, total)).loss)
    }

    /// The final hidden states, `(rows, cols)`, to `to`.
    ///
    /// # Errors
    /// As [`Steps::run`].
    pub fn hidden(&mut self, tensors: &[Tensor<'_>], batch: &Batch<'_>, to: &mut Vec<f32>) -> Result<()> {
        self.check(tensors, batch, self.num_trained)?;
        self.sweep(tensors, batch, Sweep::Hidden(to));
        Ok(())
    }

    /// What is before everything that is trained, and so does not change from step to step: the residual stream `(rows, cols)` before
    /// the first block with trained tensors, to `to`. False if there is nothing of the kind.
    ///
    /// # Errors
    /// As [`Steps::run`].
    pub fn prefix(&mut self, tensors: &[Tensor<'_>], batch: &Batch<'_>, to: &mut Vec<f32>) -> Result<bool> {
        self.check(tensors, batch, self.num_trained)?;
        to.clear();
        if self.tape.prefix().is_none() {
            return Ok(false);
        }
        self.sweep(tensors, batch, Sweep::Prefix(to));
        Ok(true)
    }

    /// The largest loss of a row of the last batch.
    pub fn largest(&self) -> f64 {
        self.largest
    }

    /// The first row of the last batch whose loss was not a finite number.
    pub fn not_finite(&self) -> Option<usize> {
        self.not_finite
    }

    fn sweep(&mut self, tensors: &[Tensor<'_>], batch: &Batch<'_>, sweep: Sweep<'_>) -> head::Outcome {
        let rows = batch.tokens.len();
        let longest = batch.lengths.iter().copied().max().unwrap_or(0);
        for (angles, rope) in self.angles.iter_mut().zip(&self.program.rotations) {
            angles.extend(rope, longest);
        }
        self.positions.clear();
        for len in batch.lengths {
            self.positions.extend(0..*len as u32);
        }
        let (plan, slots, direction) = match sweep {
            Sweep::Tangent(_, _, direction) => {
                let mode = self.forward_mode.get_or_insert_with(|| ForwardMode::new(&self.tape));
                (&mode.plan, &mut mode.slots, direction)
            }
            Sweep::Prefix(_) | Sweep::Hidden(_) | Sweep::Loss(..) | Sweep::Gradients(..) => {
                (&self.plan, &mut self.slots, &[][..])
            }
        };
        for (slot, cols) in slots.iter_mut().zip(&plan.slots) {
            let lines = (cols * rows).div_ceil(16);
            if slot.len() < lines {
                slot.resize(lines, Line::ZERO);
            }
        }
        let drops = matches!(sweep, Sweep::Gradients(..));
        let dropout = self.dropped.dropout.take();
        self.dropped.dropout = dropout.filter(|_| drops);
        let mut one = One {
            program: self.program,
            tape: &self.tape,
            slots: Slots { slots, rows },
            gemm: &mut self.gemm,
            attention: &mut self.attention,
            experts: &mut self.experts,
            dropped: &mut self.dropped,
            head: &mut self.head,
            angles: &self.angles,
            positions: &self.positions,
            pattern: self.options.pattern,
            tensors: Tensors(tensors),
            batch,
            gradients: &mut [],
            direction,
            ranges: &self.ranges,
        };
        let (mut sweep, mut outcome) = (sweep, head::Outcome::default());
        let prefix = self.tape.prefix().map(|id| (self.tape.value(id).node, self.tape.value(id).cols));
        for step in &plan.steps {
            match (step, &mut sweep) {
                (Step::Forward { node, reads, writes }, Sweep::Prefix(to)) => {
                    one.forward(*node, reads, writes);
                    if let Some((_, cols)) = prefix.filter(|(last, _)| last == node) {
                        to.extend_from_slice(one.slots.read(writes[0], cols));
                        break;
                    }
                }
                (Step::Forward { node, writes, .. }, _)
                    if let (Some(given), Some((last, cols))) = (batch.prefix, prefix)
                        && *node <= last =>
                {
                    if *node == last {
                        one.slots.write(writes[0], &given[..cols * rows]);
                    }
                }
                (_, Sweep::Prefix(_)) => break,
                (Step::Forward { node, reads, writes }, _) => one.forward(*node, reads, writes),
                (Step::Loss { hidden, .. }, Sweep::Hidden(to)) => {
                    to.clear();
                    to.extend_from_slice(one.slots.read(*hidden, one.cols(self.tape.hidden)));
                    break;
                }
                (Step::Loss { hidden, .. }, Sweep::Loss(loss, total)) => {
                    outcome = one.loss(loss, *total, *hidden, None);
                    break;
                }
                (Step::Loss { hidden, grad }, Sweep::Gradients(loss, total, gradients)) => {
                    one.gradients = take(gradients);
                    outcome = one.loss(loss, *total, *hidden, *grad);
                }
                (Step::Loss { hidden, grad }, Sweep::Tangent(loss, total, _)) => {
                    outcome = one.loss_tangent(loss, *total, *hidden, *grad);
                }
                (Step::Tangent { node, saved, tangents, out }, _) => {
                    one.tangent(*node, saved, tangents, *out);
                }
                (Step::Backward { node, saved, grad, to }, _) => one.backward(*node, saved, *grad, to),
            }
        }
        self.dropped.dropout = dropout;
        self.not_finite = outcome.not_finite;
        self.largest = outcome.largest;
        outcome
    }

    fn check(&self, tensors: &[Tensor<'_>], batch: &Batch<'_>, gradients: usize) -> Result<()> {
        check_tensors(self.program, tensors)?;
        length("gradients", self.num_trained, gradients)?;
        batch.check(self.options.rows, self.program.vocab())?;
        if let Some(longest) = batch.lengths.iter().max().filter(|len| **len > self.options.longest) {
            let (what, max) = ("tokens of a sequence", self.options.longest as u64);
            return Err(Error::Limit { what, found: *longest as u64, max });
        }
        if let Some(prefix) = batch.prefix {
            let cols = self.tape.prefix().map_or(0, |id| self.tape.value(id).cols);
            length("prefix of a batch", batch.tokens.len() * cols, prefix.len())?;
        }
        if batch.lengths.contains(&0) {
            return Err(Error::Unsupported {
                key: Name::new("batch"),
                found: Name::new("a sequence without tokens"),
                expected: "sequences of at least 1 token",
            });
        }
        Ok(())
    }
}

fn length(what: &'static str, expected: usize, found: usize) -> Result<()> {
    let (expected, found) = (expected as u64, found as u64);
    if expected == found { Ok(()) } else { Err(Error::Length { what, expected, found }) }
}

/// Refuses tensors that are not those of `program`, in its order.
pub(crate) fn check_tensors(program: &Program, tensors: &[Tensor<'_>]) -> Result<()> {
    length("tensors of the model", program.tensors.len(), tensors.len())?;
    for (spec, tensor) in program.tensors.iter().zip(tensors) {
        match (tensor, spec.role) {
            (Tensor::Matrix(Weight::Packed(_)), TensorRole::Vector) => {
                return Err(Error::Unsupported {
                    key: Name::new(&spec.name),
                    found: Name::new("a packed matrix"),
                    expected: "a vector of floats",
                });
            }
            (Tensor::Matrix(weight), _) => {
                length("rows of a matrix", spec.rows, weight.rows())?;
                length("columns of a matrix", spec.cols, weight.cols())?;
            }
            (Tensor::Vector(data), _) => length("elements of a vector", spec.rows * spec.cols, data.len())?,
        }
    }
    Ok(())
}

/// How much of a step is computed.
enum Sweep<'a> {
    /// Up to the first block with trained tensors; what it begins with is copied.
    Prefix(&'a mut Vec<f32>),
    /// Up to the final hidden states, which are copied.
    Hidden(&'a mut Vec<f32>),
    /// Up to the loss, divided by the total.
    Loss(&'a Loss, f64),
    /// All of it; gradients are added to these.
    Gradients(&'a Loss, f64, &'a mut [f32]),
    /// The loss and its derivative along this direction.
    Tangent(&'a Loss, f64, &'a [f32]),
}

/// The values and gradients of a batch.
struct Slots<'s> {
    slots: &'s mut [Vec<Line>],
    rows: usize,
}

impl Slots<'_> {
    /// A slot that an operation writes: outside of the others until it is put back.
    fn take(&mut self, slot: Slot, cols: usize) -> Taken {
        Taken { slot, lines: take(&mut self.slots[slot]), len: cols * self.rows }
    }

    fn put(&mut self, taken: Taken) {
        self.slots[taken.slot] = taken.lines;
    }

    fn write(&mut self, slot: Slot, from: &[f32]) {
        bytemuck::cast_slice_mut(&mut self.slots[slot])[..from.len()].copy_from_slice(from);
    }

    fn read(&self, slot: Slot, cols: usize) -> &[f32] {
        &bytemuck::cast_slice(&self.slots[slot])[..cols * self.rows]
    }

    /// The slots of gradients that an operation computes.
    fn targets<const N: usize>(
        &mut self,
        to: [Option<Target>; N],
        cols: [usize; N],
    ) -> [Option<TakenTarget>; N] {
        let mut cols = cols.into_iter();
        to.map(|target| {
            let cols = cols.next().unwrap_or(0);
            target.map(|target| TakenTarget { taken: self.take(target.slot, cols), add: target.add })
        })
    }

    fn put_all<const N: usize>(&mut self, targets: [Option<TakenTarget>; N]) {
        for target in targets.into_iter().flatten() {
            self.put(target.taken);
        }
    }
}

struct Taken {
    slot: Slot,
    lines: Vec<Line>,
    len: usize,
}

impl Taken {
    fn data(&mut self) -> &mut [f32] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

struct TakenTarget {
    taken: Taken,
    add: bool,
}

fn gradient(target: &mut Option<TakenTarget>) -> Option<Gradient<'_>> {
    target.as_mut().map(|target| Gradient { add: target.add, data: target.taken.data() })
}

/// The tensors of the program.
#[derive(Clone, Copy)]
struct Tensors<'w>(&'w [Tensor<'w>]);

impl<'w> Tensors<'w> {
    fn matrix(self, id: TensorId) -> Weight<'w> {
        self.0[id.index()].matrix()
    }

    fn vector(self, id: TensorId) -> &'w [f32] {
        match self.0[id.index()] {
            Tensor::Vector(data) | Tensor::Matrix(Weight::Floats { data, .. }) => data,
            // Refused by `check`.
            Tensor::Matrix(Weight::Packed(_)) => &[],
        }
    }
}

/// A step of a batch.
struct One<'s, 'p> {
    program: &'p Program,
    tape: &'s Tape,
    slots: Slots<'s>,
    gemm: &'s mut Gemm<'p>,
    attention: &'s mut attention::Memory,
    experts: &'s mut experts::Memory,
    dropped: &'s mut dropout::Memory,
    head: &'s mut head::Memory,
    angles: &'s [Angles],
    positions: &'s [u32],
    pattern: AttentionPattern,
    tensors: Tensors<'s>,
    batch: &'s Batch<'s>,
    gradients: &'s mut [f32],
    direction: &'s [f32],
    ranges: &'s [Option<Range<usize>>],
}

impl<'s, 'p: 's> One<'s, 'p> {
    fn cols(&self, id: ValueId) -> usize {
        self.tape.value(id).cols
    }

    /// The heads that a [`Node::Rope`] rotates.
    fn heads(&self, rotation: usize, factor: f32, norm: Option<TensorId>, eps: f32) -> Heads<'s> {
        Heads {
            angles: &self.angles[rotation],
            pairing: self.program.pairing,
            dim: self.program.heads.dim,
            factor,
            positions: self.positions,
            norm: norm.map(|id| self.tensors.vector(id)),
            eps,
        }
    }

    fn layer(&self, mixture: Mixture, logits: ValueId) -> experts::Layer<'s> {
        let Mixture { gate, up, down, used, normalize } = mixture;
        let weights = [gate, up, down].map(|id| self.tensors.matrix(id));
        experts::Layer { weights, count: self.cols(logits), used, normalize }
    }

    fn shape(&self, window: Option<NonZeroU32>) -> attention::Shape<'s> {
        attention::Shape {
            heads: self.program.heads,
            // Patterns that have none were refused.
            pattern: self.pattern.within(window).unwrap_or(self.pattern),
            slopes: &self.program.alibi_slopes,
            lengths: self.batch.lengths,
        }
    }

    fn forward(&mut self, node: usize, reads: &[Slot], writes: &[Slot]) {
        let node = self.tape.nodes[node];
        let cols = self.cols(node.out());
        let (isa, pool) = (self.gemm.isa(), self.gemm.pool());
        let mut out = self.slots.take(writes[0], cols);
        match node {
            Node::Embed { table, .. } => {
                embed::forward(self.gemm, self.batch.tokens, self.tensors.matrix(table), out.data());
            }
            Node::RmsNorm { weight, eps, .. } => {
                let x = self.slots.read(reads[0], cols);
                norm::forward(pool, isa, x, self.tensors.vector(weight), eps, out.data());
            }
            Node::Linear { x, weight, .. } => {
                let x = self.slots.read(reads[0], self.cols(x));
                let x = self.dropped.input(self.program, pool, weight, x);
                linear::forward(self.gemm, x, self.tensors.matrix(weight), out.data(), Store::Replace);
            }
            Node::LinearAdd { x, weight, .. } => {
                self.begin_sum(&mut out, Some(reads[1]), cols);
                let x = self.slots.read(reads[0], self.cols(x));
                let x = self.dropped.input(self.program, pool, weight, x);
                linear::forward(self.gemm, x, self.tensors.matrix(weight), out.data(), Store::Add);
            }
            Node::Experts { x, logits, mixture, .. } => {
                self.begin_sum(&mut out, Some(reads[2]), cols);
                let layer = self.layer(mixture, logits);
                let x = self.slots.read(reads[0], self.cols(x));
                let logits = self.slots.read(reads[1], self.cols(logits));
                layer.forward(self.gemm, self.experts, [x, logits], out.data());
            }
            Node::Gated { activation, .. } => {
                let read = [0, 1].map(|i| self.slots.read(reads[i], cols));
                gated::forward(pool, isa, activation, read, out.data());
            }
            Node::Bias { bias, .. } => {
                self.begin_sum(&mut out, Some(reads[0]), cols);
                bias::forward(pool, self.tensors.vector(bias), out.data());
            }
            Node::Add { .. } => {
                self.begin_sum(&mut out, Some(reads[1]), cols);
                add::forward(pool, self.slots.read(reads[0], cols), out.data());
            }
            Node::Scale { factor, .. } => {
                scale::forward(pool, factor, self.slots.read(reads[0], cols), out.data());
            }
            Node::Rope { rotation, factor, norm, eps, .. } => {
                let x = self.slots.read(reads[0], cols);
                self.heads(rotation, factor, norm, eps).forward(pool, isa, x, cols, out.data());
            }
            Node::Attention { window, k, .. } => {
                let mut lse = self.slots.take(writes[1], self.program.heads.query);
                let kv = self.cols(k);
                let read = [(0, cols), (1, kv), (2, kv)].map(|(i, cols)| self.slots.read(reads[i], cols));
                self.shape(window).forward(pool, self.attention, read, [out.data(), lse.data()]);
                self.slots.put(lse);
            }
        }
        self.slots.put(out);
    }

    /// Begins a sum, or its tangent, with what is added to, or with 0.
    fn begin_sum(&self, out: &mut Taken, to: Option<Slot>, cols: usize) {
        match to {
            // It may be there already.
            Some(slot) if slot == out.slot => {}
            Some(slot) => out.data().copy_from_slice(self.slots.read(slot, cols)),
            None => out.data().fill(0.0),
        }
    }

    /// Passes the gradient of a sum on to what the operation added to.
    fn pass(&mut self, dy: &mut Taken, cols: usize, to: Option<Target>) {
        // It may be there already.
        if let Some(target) = to.filter(|target| target.slot != dy.slot) {
            let mut passed = self.slots.targets([Some(target)], [cols]);
            if let Some(passed) = gradient(&mut passed[0]) {
                add::backward(self.gemm.pool(), dy.data(), passed);
            }
            self.slots.put_all(passed);
        }
    }

    fn loss(&mut self, loss: &Loss, total: f64, hidden: Slot, grad: Option<Slot>) -> head::Outcome {
        let cols = self.cols(self.tape.hidden);
        let mut grad = grad.map(|slot| self.slots.take(slot, cols));
        let hidden = self.slots.read(hidden, cols);
        let output = self.tensors.matrix(self.program.output);
        let range = self.ranges[self.program.output.index()].clone();
        // There is none if only the loss is wanted.
        let doutput = range.and_then(|range| self.gradients.get_mut(range));
        let to = [grad.as_mut().map(Taken::data), doutput];
        let value = head::run(self.gemm, self.head, loss, self.batch, total, hidden, output, to);
        grad.into_iter().for_each(|grad| self.slots.put(grad));
        value
    }

    /// The gradients of a product with `weight`, whose input has `inputs` columns and is saved if the weights learn.
    fn linear_backward(
        &mut self,
        weight: TensorId,
        (inputs, saved): (usize, Option<Slot>),
        dy: &[f32],
        to: Option<Target>,
    ) {
        let pool = self.gemm.pool();
        let mut targets = self.slots.targets([to], [inputs]);
        if let Some(dx) = gradient(&mut targets[0]) {
            let matrix = self.tensors.matrix(weight);
            match self.dropped.gradient(self.program, weight, dx.data.len()) {
                None => linear::backward_input(self.gemm, dy, matrix, dx),
                Some(data) => {
                    let masked = Gradient { data, add: false };
                    linear::backward_input(self.gemm, dy, matrix, masked);
                    self.dropped.backward(self.program, pool, weight, dx.data, dx.add);
                }
            }
        }
        let range = self.ranges[weight.index()].clone();
        if let (Some(range), Some(saved)) = (range, saved) {
            let (x, dw) = (self.slots.read(saved, inputs), &mut self.gradients[range]);
            let x = self.dropped.input(self.program, pool, weight, x);
            linear::backward_weight(self.gemm, dy, x, inputs, dw);
        }
        self.slots.put_all(targets);
    }

    fn backward(&mut self, node: usize, saved: &[Slot], grad: Slot, to: &[Option<Target>]) {
        let node = self.tape.nodes[node];
        let cols = self.cols(node.out());
        let (isa, pool) = (self.gemm.isa(), self.gemm.pool());
        let tensor = node.tensor();
        let range = tensor.and_then(|id| self.ranges[id.index()].clone());
        let mut dy = self.slots.take(grad, cols);
        match node {
            Node::Embed { .. } => {
                if let Some(range) = range {
                    embed::backward(self.batch.tokens, dy.data(), cols, &mut self.gradients[range]);
                }
            }
            Node::RmsNorm { weight, eps, .. } => {
                let mut targets = self.slots.targets([to[0]], [cols]);
                let dw = range.map(|range| &mut self.gradients[range]);
                let read = [self.slots.read(saved[0], cols), dy.data()];
                let weight = self.tensors.vector(weight);
                norm::backward(pool, isa, read, weight, eps, gradient(&mut targets[0]), dw);
                self.slots.put_all(targets);
            }
            Node::Linear { x, weight, .. } | Node::LinearAdd { x, weight, .. } => {
                self.linear_backward(weight, (self.cols(x), saved.first().copied()), dy.data(), to[0]);
                self.pass(&mut dy, cols, to.get(1).copied().flatten());
            }
            Node::Experts { x, logits, mixture, .. } => {
                let layer = self.layer(mixture, logits);
                let widths = [self.cols(x), self.cols(logits)];
                let mut targets = self.slots.targets([to[0], to[1]], widths);
                let read = [0, 1].map(|i| self.slots.read(saved[i], widths[i]));
                let [dx, dlogits] = &mut targets;
                layer.backward(self.gemm, self.experts, read, dy.data(), [gradient(dx), gradient(dlogits)]);
                self.slots.put_all(targets);
                self.pass(&mut dy, cols, to[2]);
            }
            Node::Gated { activation, .. } => {
                let mut targets = self.slots.targets([to[0], to[1]], [cols; 2]);
                let [gate, up] = [0, 1].map(|i| self.slots.read(saved[i], cols));
                let [dgate, dup] = &mut targets;
                let (read, to) = ([gate, up, dy.data()], [gradient(dgate), gradient(dup)]);
                gated::backward(pool, isa, activation, read, cols, to);
                self.slots.put_all(targets);
            }
            Node::Bias { .. } => {
                if let Some(range) = range {
                    bias::backward(pool, dy.data(), &mut self.gradients[range]);
                }
                self.pass(&mut dy, cols, to[0]);
            }
            Node::Add { .. } => {
                self.pass(&mut dy, cols, to[0]);
                self.pass(&mut dy, cols, to[1]);
            }
            Node::Scale { factor, .. } => {
                let mut targets = self.slots.targets([to[0]], [cols]);
                if let Some(dx) = gradient(&mut targets[0]) {
                    scale::backward(pool, factor, dy.data(), dx);
                }
                self.slots.put_all(targets);
            }
            Node::Rope { rotation, factor, norm, eps, .. } => {
                let mut targets = self.slots.targets([to[0]], [cols]);
                let x = saved.first().map_or(&[][..], |slot| self.slots.read(*slot, cols));
                let heads = self.heads(rotation, factor, norm, eps);
                let dw = range.map(|range| &mut self.gradients[range]);
                heads.backward(pool, isa, x, dy.data(), cols, gradient(&mut targets[0]), dw);
                self.slots.put_all(targets);
            }
            Node::Attention { window, k, .. } => {
                let kv = self.cols(k);
                let mut targets = self.slots.targets([to[0], to[1], to[2]], [cols, kv, kv]);
                let cols = [cols, kv, kv, cols, self.program.heads.query];
                let read: [&[f32]; 5] = core::array::from_fn(|i| self.slots.read(saved[i], cols[i]));
                let [dq, dk, dv] = &mut targets;
                let to = [gradient(dq), gradient(dk), gradient(dv)];
                self.shape(window).backward(pool, self.attention, read, dy.data(), to);
                self.slots.put_all(targets);
            }
        }
        self.slots.put(dy);
    }
}
