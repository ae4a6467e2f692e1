//! Training a model, step by step.
//!
//! ```text
//! batch -> G micro-batches -> gradients, added in a fixed binary tree -> clipping -> optimizer -> weights
//! ```
//! A step follows from the weights, the optimizer's moments, the recipe and the number of the step alone: training that was
//! interrupted goes on with the same bits, on any number of threads, and on 1, 2, 4, 8 ranks if the micro-batches are as many or
//! more.
#![forbid(unsafe_code)]

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use shohin_core::attention::AttentionPattern;
use shohin_core::collective::Collective;
use shohin_core::cpu::Isa;
use shohin_core::error::Name;
use shohin_core::model::program::{Program, TensorId, TensorRole};
use shohin_core::pool::Pool;

use crate::batch::{Batch, Teacher};
use crate::data::{BatchSize, Cursor, Data, Order, Rows};
use crate::dropout::Dropout;
use crate::error::{Error, Result};
use crate::gemm::Weight;
use crate::loss::Loss;
use crate::op::add;
use crate::optimizer::{Moments, Optimizer, clip_by_norm, clip_by_value};
use crate::plan::Checkpoints;
use crate::quantize::{self, Fake, GROUP};
use crate::run::{StepMemory, StepOptions, Steps, Tensor, check_tensors};
use crate::schedule::{Plateau, Schedule};

/// How a model is trained.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// Rows of a step, and tokens of a row.
    pub size: BatchSize,
    /// Micro-batches that a step's rows are divided into: memory is that of one.
    pub accumulate: usize,
    /// The order of rows.
    pub order: Order,
    /// What everything random follows from.
    pub seed: u64,
    /// Steps of the whole training, which schedules depend on.
    pub steps: u64,
    /// What turns gradients into changes of weights.
    pub optimizer: Optimizer,
    /// The highest learning rate.
    pub learning_rate: f64,
    /// How it changes over the steps.
    pub schedule: Schedule,
    /// The largest norm of all gradients together.
    pub clip_norm: Option<f64>,
    /// The largest magnitude of a gradient.
    pub clip_value: Option<f32>,
    /// What is minimized.
    pub loss: Loss,
    /// What matrices are multiplied in place of masters that are trained.
    pub fake: Option<Fake>,
    /// Probability that an element of what the first factor of an adapter is multiplied by is 0 in a step.
    pub dropout: f64,
    /// Which activations are kept.
    pub checkpoints: Checkpoints,
    /// The earlier tokens that a token looks at.
    pub pattern: AttentionPattern,
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Its number, from 1.
    pub step: u64,
    /// The loss before it.
    pub loss: f64,
    /// The norm of all gradients together, before clipping.
    pub grad_norm: f64,
    /// The learning rate.
    pub learning_rate: f64,
    /// Tokens whose prediction was learned so far.
    pub tokens: u64,
}

/// A part of what [`Trainer::learn`] minimizes: `weight` times the mean loss of `batch`.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// What is learned.
    pub batch: Batch<'a>,
    /// The loss of its rows.
    pub loss: Loss,
    /// Its weight.
    pub weight: f64,
}

/// How far a training is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// Steps that were done.
    pub step: u64,
    /// Tokens whose prediction was learned.
    pub tokens: u64,
    /// How far the data was read.
    pub cursor: Cursor,
    /// Of the plateau schedule.
    pub plateau: Plateau,
}

/// Bytes of a training, by what they hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrainMemory {
    /// Weights that are trained, in f32.
    pub masters: u64,
    /// Their gradients, of all micro-batches that exist at the same time.
    pub gradients: u64,
    /// The optimizer's moments.
    pub moments: u64,
    /// What a step allocates.
    pub step: StepMemory,
}

impl TrainMemory {
    /// All bytes, without weights that are not trained.
    pub fn total(&self) -> u64 {
        self.masters + self.gradients + self.moments + self.step.total()
    }
}

/// A teacher's program and tensors.
#[derive(Debug)]
pub struct TeacherModel<'p> {
    steps: Steps<'p>,
    output: TensorId,
    tensors: Vec<Tensor<'p>>,
    hidden: Vec<f32>,
}

/// Trains a model.
pub struct Trainer<'p> {
    program: &'p Program,
    recipe: Recipe,
    steps: Steps<'p>,
    /// All tensors of the base; those that are trained are replaced by their masters.
    base: Vec<Tensor<'p>>,
    /// `(trained weights)`
    masters: Vec<f32>,
    /// `(trained weights)`, as many as the optimizer has.
    moments: [Vec<f32>; 2],
    /// One for each level of the tree of micro-batches.
    gradients: Vec<Vec<f32>>,
    rows: Vec<Rows>,
    progress: Progress,
    /// Factors of the learning rate, of tensors that have one.
    rates: Vec<(TensorId, f64)>,
    teacher: Option<TeacherModel<'p>>,
    group: Option<&'p dyn Collective>,
    gathered: Vec<f32>,
    largest: f64,
    /// The places among the masters that stay 0.
    zeros: Vec<u32>,
}

impl core::fmt::Debug for Trainer<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Trainer { recipe, progress, .. } = self;
        f.debug_struct("Trainer").field("recipe", recipe).field("progress", progress).finish_non_exhaustive()
    }
}

fn unsupported(key: &str, found: &str, expected: &'static str) -> Error {
    let (key, found) = (Name::new(key), Name::new(found));
    Error::Core(shohin_core::Error::Unsupported { key, found, expected })
}

impl<'p> Trainer<'p> {
    /// Begins a training of the tensors of `program` that `trained` names, from their values in `base`, which are the tensors of
    /// the program in its order.
    ///
    /// # Errors
    /// As [`Steps::new`]; [`Error::Core`] if micro-batches do not divide the rows, or groups do not divide the rows of a
    /// matrix.
    pub fn new(
        program: &'p Program,
        base: Vec<Tensor<'p>>,
        trained: impl Fn(TensorId) -> bool,
        recipe: Recipe,
        isa: Isa,
        pool: &'p dyn Pool,
    ) -> Result<Self> {
        if recipe.accumulate == 0 || !recipe.size.rows.is_multiple_of(recipe.accumulate) {
            return Err(unsupported("micro-batches", "another number", "a divisor of the rows of a step"));
        }
        check_tensors(program, &base)?;
        recipe.optimizer.check()?;
        recipe.schedule.check()?;
        let micro = BatchSize { rows: recipe.size.rows / recipe.accumulate, ..recipe.size };
        let options = StepOptions {
            rows: micro.tokens(),
            longest: micro.tokens(),
            checkpoints: recipe.checkpoints,
            pattern: recipe.pattern,
        };
        if !(0.0..1.0).contains(&recipe.dropout) {
            return Err(unsupported("dropout", "another number", "one from 0, less than 1"));
        }
        let mut steps = Steps::new(program, trained, options, isa, pool)?;
        // For what is said of its memory.
        let Recipe { dropout: probability, seed, .. } = recipe;
        steps.drop_inputs(Some(Dropout { probability, seed, step: 0, first_row: 0 }));
        let n = steps.num_trained();
        let mut masters = vec![0.0; n];
        for id in program.tensor_ids() {
            let Some(range) = steps.range(id) else { continue };
            let spec = program.tensor(id);
            let fake = recipe.fake.filter(|_| spec.role == TensorRole::Matrix);
            if fake.is_some() && !spec.cols.is_multiple_of(GROUP) {
                let expected = "matrices whose rows are groups of 128";
                return Err(unsupported(
                    "weights that are quantized while they are trained",
                    &spec.name,
                    expected,
                ));
            }
            let master = &mut masters[range];
            match &base[id.index()] {
                Tensor::Vector(data) => master.copy_from_slice(data),
                Tensor::Matrix(weight) => {
                    for (row, to) in master.chunks_exact_mut(spec.cols).enumerate() {
                        weight.row(isa, row, to);
                    }
                }
            }
            if let Some(fake) = fake {
                quantize::masters(isa, fake, master);
            }
        }
        let moments = recipe.optimizer.moments();
        let moment = |i: usize| vec![0.0; if i < moments { n } else { 0 }];
        Ok(Trainer {
            program,
            steps,
            base,
            masters,
            moments: [moment(0), moment(1)],
            gradients: Vec::new(),
            rows: Vec::new(),
            progress: Progress::default(),
            rates: Vec::new(),
            teacher: None,
            group: None,
            gathered: Vec::new(),
            largest: 0.0,
            zeros: Vec::new(),
            recipe,
        })
    }

    /// Learns from what `program` with `tensors`, a model with the same vocabulary, predicts.
    ///
    /// # Errors
    /// As [`Steps::new`]; [`Error::Core`] for another vocabulary.
    pub fn teach_by(
        &mut self,
        program: &'p Program,
        tensors: Vec<Tensor<'p>>,
        isa: Isa,
        pool: &'p dyn Pool,
    ) -> Result<()> {
        if program.vocab() != self.program.vocab() {
            return Err(unsupported("the teacher", "another vocabulary", "that of the model"));
        }
        let tokens = self.micro().tokens();
        let options = StepOptions {
            rows: tokens,
            longest: tokens,
            checkpoints: Checkpoints::None,
            pattern: AttentionPattern::Full,
        };
        let steps = Steps::new(program, |_| false, options, isa, pool)?;
        self.teacher = Some(TeacherModel { steps, output: program.output, tensors, hidden: Vec::new() });
        Ok(())
    }

    /// Trains as one rank of `group`: each computes a part of the micro-batches, and all have the same weights afterwards.
    ///
    /// # Errors
    /// [`Error::Core`] unless the number of ranks is a power of two that divides that of micro-batches, another one.
    pub fn join(&mut self, group: &'p dyn Collective) -> Result<()> {
        let (ranks, micro) = (group.ranks(), self.recipe.accumulate);
        if !ranks.is_power_of_two() || !micro.is_power_of_two() || ranks > micro {
            let expected = "a power of two, and as many micro-batches or twice, four times, ... as many";
            return Err(unsupported("ranks", "another number", expected));
        }
        self.group = Some(group);
        Ok(())
    }

    /// Trains a tensor with `factor` times the learning rate.
    pub fn scale_rate(&mut self, id: TensorId, factor: f64) {
        self.rates.retain(|(other, _)| *other != id);
        self.rates.push((id, factor));
    }

    fn micro(&self) -> BatchSize {
        BatchSize { rows: self.recipe.size.rows / self.recipe.accumulate, ..self.recipe.size }
    }

    /// The recipe.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// How far it is.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// The masters of a tensor that is trained.
    pub fn master(&self, id: TensorId) -> Option<&[f32]> {
        self.steps.range(id).map(|range| &self.masters[range])
    }

    /// Keeps weights of matrices that are 0 now at 0 from now on.
    pub fn keep_zeros(&mut self) {
        let of_matrices = |id: &TensorId| self.program.tensor(*id).role == TensorRole::Matrix;
        let ranges = self.program.tensor_ids().filter(of_matrices).filter_map(|id| self.steps.range(id));
        let zeros = ranges.flatten().filter(|at| self.masters[*at] == 0.0);
        // Masters of more than 2^32 weights would take 64 GiB with what belongs to them.
        self.zeros = zeros.filter_map(|at| u32::try_from(at).ok()).collect();
    }

    /// The gradient of a tensor that is trained, as the last step used it.
    pub fn gradient(&self, id: TensorId) -> Option<&[f32]> {
        self.gradients.first()?.get(self.steps.range(id)?)
    }

    /// The optimizer's moments of a tensor that is trained; empty if it has none.
    pub fn moments(&self, id: TensorId) -> Option<[&[f32]; 2]> {
        let range = self.steps.range(id)?;
        Some([0, 1].map(|i| self.moments[i].get(range.clone()).unwrap_or(&[])))
    }

    /// Goes on from where another training was: replaces the masters and moments of a tensor.
    ///
    /// # Errors
    /// [`Error::Core`] if the lengths are others.
    pub fn restore(&mut self, id: TensorId, master: &[f32], moments: [&[f32]; 2]) -> Result<()> {
        let Some(range) = self.steps.range(id) else {
            let name = &self.program.tensor(id).name;
            return Err(unsupported("tensor of a checkpoint", name, "one that is trained"));
        };
        let put = |to: &mut Vec<f32>, from: &[f32]| match to.get_mut(range.clone()) {
            Some(to) if to.len() == from.len() => {
                to.copy_from_slice(from);
                Ok(())
            }
            None if from.is_empty() => Ok(()),
            to => {
                let (expected, found) = (to.map_or(0, |to| to.len()) as u64, from.len() as u64);
                let what = "numbers of a tensor of the checkpoint";
                Err(Error::Core(shohin_core::Error::Length { what, expected, found }))
            }
        };
        put(&mut self.masters, master)?;
        for (to, from) in self.moments.iter_mut().zip(moments) {
            put(to, from)?;
        }
        Ok(())
    }

    /// As [`Trainer::restore`], how far it was.
    pub fn resume(&mut self, progress: Progress) {
        self.progress = progress;
    }

    /// The tensors of the program, with the masters of those that are trained.
    pub fn tensors(&self) -> Vec<Tensor<'_>> {
        tensors(self.program, &self.base, &self.steps, &self.masters, self.recipe.fake)
    }

    /// Bytes of the training.
    pub fn memory(&self) -> TrainMemory {
        let n = self.masters.len() as u64 * 4;
        let here = self.recipe.accumulate / self.group.map_or(1, Collective::ranks);
        let levels = here.max(1).ilog2() as u64 + u64::from(here > 1 || self.group.is_some()) + 1;
        TrainMemory {
            masters: n,
            gradients: n * levels,
            moments: n * self.recipe.optimizer.moments() as u64,
            step: self.steps.memory(),
        }
    }

    /// The next step.
    ///
    /// # Errors
    /// [`Error::NotFinite`] for a loss or gradients that are not finite: the weights are then those before the step.
    /// [`Error::Core`] for tokens outside of the vocabulary, sequences longer than a micro-batch, or if a rank is lost.
    pub fn step(&mut self, data: &Data) -> Result<StepReport> {
        let Recipe { accumulate, order, seed, loss, .. } = self.recipe;
        if loss.needs_teacher() && self.teacher.is_none() {
            return Err(unsupported("a loss against a teacher", "no teacher", "a model to learn from"));
        }
        let (micro, mut cursor) = (self.micro(), self.progress.cursor);
        self.rows.resize_with(accumulate, Rows::default);
        for rows in &mut self.rows {
            data.next(micro, order, seed, &mut cursor, rows)?;
        }
        let total: f64 = self.rows.iter().map(|rows| rows.batch().total()).sum();
        let learned =
            self.rows.iter().flat_map(|rows| &rows.weights).filter(|weight| **weight != 0.0).count();
        let step = self.progress.step + 1;
        let loss = self.micro_batches(total, step)?;
        let Recipe { schedule, learning_rate, steps, .. } = &self.recipe;
        let rate = schedule.rate(step - 1, *learning_rate, *steps) * self.progress.plateau.factor();
        let report = self.update(step, loss, learned as u64, rate)?;
        self.progress.cursor = cursor;
        Ok(report)
    }

    /// A step on `parts` in place of data, with `share` of the highest learning rate in place of the schedule's: their losses are
    /// added. Each has at most the rows of a micro-batch.
    ///
    /// # Errors
    /// As [`Trainer::step`].
    pub fn learn(&mut self, parts: &[Part<'_>], share: f64) -> Result<StepReport> {
        let step = self.progress.step + 1;
        if self.gradients.is_empty() {
            self.gradients.push(vec![0.0; self.masters.len()]);
        }
        self.gradients[0].fill(0.0);
        self.steps.drop_inputs(None);
        let (mut loss, mut learned, mut largest) = (0.0, 0, 0.0f64);
        for part in parts {
            let total = part.batch.total() / part.weight;
            let tensors = tensors(self.program, &self.base, &self.steps, &self.masters, self.recipe.fake);
            loss += self.steps.run(&tensors, &part.batch, &part.loss, total, &mut self.gradients[0])?;
            if let Some(row) = self.steps.not_finite() {
                return Err(Error::NotFinite { what: "the loss", step, row: Some(row) });
            }
            learned += (0..part.batch.tokens.len()).filter(|row| part.batch.weight(*row) != 0.0).count();
            if !part.loss.needs_teacher() {
                largest = largest.max(self.steps.largest());
            }
        }
        let report = self.update(step, loss, learned as u64, share * self.recipe.learning_rate)?;
        self.largest = largest;
        Ok(report)
    }

    /// The largest loss of a token in the last [`Trainer::learn`], without those against a teacher.
    pub fn largest(&self) -> f64 {
        self.largest
    }

    /// What is before all that is trained, see [`Steps::prefix`].
    ///
    /// # Errors
    /// As [`Trainer::step`].
    pub fn prefix(&mut self, batch: &Batch<'_>, to: &mut Vec<f32>) -> Result<bool> {
        let tensors = tensors(self.program, &self.base, &self.steps, &self.masters, self.recipe.fake);
        Ok(self.steps.prefix(&tensors, batch, to)?)
    }

    /// The final hidden states, see [`Steps::hidden`].
    ///
    /// # Errors
    /// As [`Trainer::step`].
    pub fn hidden(&mut self, batch: &Batch<'_>, to: &mut Vec<f32>) -> Result<()> {
        let tensors = tensors(self.program, &self.base, &self.steps, &self.masters, self.recipe.fake);
        Ok(self.steps.hidden(&tensors, batch, to)?)
    }

    /// Changes the weights by the gradients of a step.
    fn update(&mut self, step: u64, loss: f64, learned: u64, learning_rate: f64) -> Result<StepReport> {
        let gradients = &mut self.gradients[0];
        let of_tensor = |id: TensorId| {
            let decay = self.program.tensor(id).role == TensorRole::Matrix;
            let rate = self.rates.iter().find(|(other, _)| *other == id).map_or(1.0, |(_, factor)| *factor);
            self.steps.range(id).map(|range| (range, decay, rate))
        };
        let ranges: Vec<(Range<usize>, bool, f64)> =
            self.program.tensor_ids().filter_map(of_tensor).collect();
        if let Some(limit) = self.recipe.clip_value {
            clip_by_value(gradients, limit);
        }
        let limit = self.recipe.clip_norm.unwrap_or(f64::INFINITY);
        let grad_norm = clip_by_norm(&mut [&mut gradients[..]], limit);
        if !grad_norm.is_finite() {
            return Err(Error::NotFinite { what: "the norm of the gradients", step, row: None });
        }
        let optimizer = &self.recipe.optimizer;
        let [m, v] = &mut self.moments;
        for (range, decay, factor) in ranges {
            let moments = Moments {
                m: m.get_mut(range.clone()).unwrap_or(&mut []),
                v: v.get_mut(range.clone()).unwrap_or(&mut []),
            };
            let (weights, gradients) = (&mut self.masters[range.clone()], &gradients[range]);
            let rate = learning_rate * factor;
            optimizer.step(self.steps.isa(), weights, gradients, moments, step, rate, decay);
        }
        self.zeros.iter().for_each(|at| self.masters[*at as usize] = 0.0);
        self.progress.step = step;
        self.progress.tokens += learned;
        Ok(StepReport { step, loss, grad_norm, learning_rate, tokens: self.progress.tokens })
    }

    /// The loss of all micro-batches; their gradients, added, are the first of [`Trainer::gradients`] then.
    fn micro_batches(&mut self, total: f64, step: u64) -> Result<f64> {
        let n = self.masters.len();
        let (rank, ranks) = self.group.map_or((0, 1), |group| (group.rank(), group.ranks()));
        let here = self.recipe.accumulate / ranks;
        // One for each level of the tree, as the gradients.
        let mut losses = Vec::new();
        for i in 0..here {
            let level = losses.len();
            if self.gradients.len() <= level {
                self.gradients.push(vec![0.0; n]);
            }
            self.gradients[level].fill(0.0);
            let (before, rest) = self.rows.split_at(rank * here + i);
            let rows = &rest[0];
            let first_row = before.iter().map(|rows| rows.tokens.len() as u64).sum();
            let Recipe { dropout: probability, seed, .. } = self.recipe;
            self.steps.drop_inputs(Some(Dropout { probability, seed, step, first_row }));
            let mut batch = rows.batch();
            if let Some(teacher) = &mut self.teacher {
                teacher.steps.hidden(&teacher.tensors, &batch, &mut teacher.hidden)?;
                let output = teacher.tensors[teacher.output.index()].matrix();
                batch.teacher = Some(Teacher { hidden: &teacher.hidden, output });
            }
            let tensors = tensors(self.program, &self.base, &self.steps, &self.masters, self.recipe.fake);
            let gradients = &mut self.gradients[level];
            losses.push(self.steps.run(&tensors, &batch, &self.recipe.loss, total, gradients)?);
            if let Some(row) = self.steps.not_finite() {
                return Err(Error::NotFinite { what: "the loss", step, row: Some(row) });
            }
            // Two parts of the tree that are complete become one.
            let mut done = i + 1;
            while done.is_multiple_of(2) {
                self.add_last(&mut losses);
                done /= 2;
            }
        }
        // What is left if their number is no power of two.
        while losses.len() > 1 {
            self.add_last(&mut losses);
        }
        match self.group {
            Some(group) if ranks > 1 => self.reduce(group, losses[0]),
            _ => Ok(losses[0]),
        }
    }

    /// Adds the last level of the tree, of those that have `losses`, to the one before.
    fn add_last(&mut self, losses: &mut Vec<f64>) {
        let last = losses.len() - 1;
        let (left, right) = self.gradients.split_at_mut(last);
        add::forward(self.steps.pool(), &right[0], &mut left[last - 1]);
        losses[last - 1] += losses[last];
        losses.truncate(last);
    }

    /// Adds the gradients and the losses of all ranks, two and two.
    fn reduce(&mut self, group: &dyn Collective, loss: f64) -> Result<f64> {
        const PIECE: usize = 1 << 16;
        let ranks = group.ranks();
        for mine in self.gradients[0].chunks_mut(PIECE) {
            self.gathered.resize(ranks * mine.len(), 0.0);
            group.all_gather(mine, &mut self.gathered)?;
            let mut apart = 1;
            while apart < ranks {
                for first in (0..ranks).step_by(2 * apart) {
                    let (left, right) = self.gathered.split_at_mut((first + apart) * mine.len());
                    let (to, from) = (&mut left[first * mine.len()..][..mine.len()], &right[..mine.len()]);
                    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
                }
                apart *= 2;
            }
            mine.copy_from_slice(&self.gathered[..mine.len()]);
        }
        // An f64 in two f32 would lose bits: as four numbers of 16 bits.
        let words = loss.to_bits().to_le_bytes();
        let mine: [f32; 4] =
            core::array::from_fn(|i| f32::from(u16::from_le_bytes([words[2 * i], words[2 * i + 1]])));
        self.gathered.resize(4 * ranks, 0.0);
        group.all_gather(&mine, &mut self.gathered)?;
        let of_rank = |numbers: &[f32]| {
            let bits = numbers.iter().rev().fold(0, |bits, word| bits << 16 | u64::from(*word as u16));
            f64::from_bits(bits)
        };
        let mut losses: Vec<f64> = self.gathered.chunks_exact(4).map(of_rank).collect();
        while losses.len() > 1 {
            losses = losses.chunks(2).map(|pair| pair.iter().sum()).collect();
        }
        Ok(losses[0])
    }

    /// The mean loss of all of `data`.
    ///
    /// # Errors
    /// As [`Trainer::step`].
    pub fn evaluate(&mut self, data: &Data) -> Result<f64> {
        let micro = self.micro();
        let loss = Loss::CrossEntropy { smoothing: 0.0 };
        let (mut sum, mut total) = (0.0, 0.0);
        let Trainer { program, base, steps, masters, recipe, .. } = self;
        data.each(micro, |rows| {
            let batch: Batch<'_> = rows.batch();
            let tensors = tensors(program, base, steps, masters, recipe.fake);
            if batch.total() > 0.0 {
                sum += steps.loss(&tensors, &batch, &loss, 1.0)?;
                total += batch.total();
            }
            Ok(())
        })?;
        Ok(sum / total)
    }

    /// Tells the plateau schedule the loss of data that is not trained on.
    pub fn plateau(&mut self, loss: f64) {
        self.progress.plateau.observe(&self.recipe.schedule, loss);
    }
}

/// The tensors of the program, with the masters of those that are trained.
fn tensors<'a>(
    program: &Program,
    base: &[Tensor<'a>],
    steps: &Steps<'_>,
    masters: &'a [f32],
    fake: Option<Fake>,
) -> Vec<Tensor<'a>> {
    let tensor = |(id, base): (TensorId, &Tensor<'a>)| match steps.range(id) {
        None => *base,
        Some(range) => match program.tensor(id).role {
            TensorRole::Vector => Tensor::Vector(&masters[range]),
            TensorRole::Matrix => {
                let cols = program.tensor(id).cols;
                Tensor::Matrix(Weight::Floats { data: &masters[range], cols, fake })
            }
        },
    };
    program.tensor_ids().zip(base).map(tensor).collect()
}
