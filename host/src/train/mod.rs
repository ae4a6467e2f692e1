//! Training: a model, what it learns from, and the files that come out.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use shohin::train::{Corpus, Training, TrainOptions};
//! use shohin::Model;
//!
//! let model = Model::builder().inspect_only().load("smollm2-135m.gguf")?;
//! let corpus = Corpus::text(&model, &std::fs::read_to_string("notes.txt")?)?;
//! let base = Training::base(&model)?;
//! let mut training = Training::new(&base, TrainOptions { steps: 100, ..TrainOptions::new() })?;
//! while !training.is_done() {
//!     let report = training.step(&corpus)?;
//!     println!("{}: {:.4}", report.step, report.loss);
//! }
//! training.save("notes.gguf", false)?;
//! # Ok(())
//! # }
//! ```

mod adapter;
mod checkpoint;
mod corpus;
mod gradients;
mod others;
mod ranks;
mod recipe;
mod save;
mod taught;
mod teach;

use crate::error::{Error, Result};
use crate::model::Model;
use crate::threads::ThreadPool;
use others::{Call, Others};
use shohin_core::collective::Collective;
use shohin_core::model::program::{Program, TensorId, TensorRole};
use shohin_train::data::Data;
use shohin_train::gemm::Weight;
use shohin_train::run::Tensor;
use shohin_train::trainer::Trainer;

pub use shohin_train::trainer::{Progress, StepReport, TrainMemory};

pub use adapter::new_adapter;
pub use corpus::{Corpus, CorpusOptions, Example};
pub use gradients::gradients;
pub use ranks::Ranks;
pub use recipe::{Method, TrainOptions, WeightKind};
pub use shohin_train::adapter::AdapterOptions;
pub use shohin_train::data::Order;
pub use shohin_train::loss::Loss;
pub use shohin_train::optimizer::Optimizer;
pub use shohin_train::plan::Checkpoints;
pub use shohin_train::schedule::Schedule;
pub use shohin_train::teach::{LessonReport, TeachOptions};
pub use taught::{Fact, taught_facts};
pub use teach::{Answer, Answers, Taught, TeachSettings, teach};

/// A model whose weights are where training begins.
#[derive(Debug)]
pub struct Base {
    model: Model,
    /// Of the tensors that are no matrices.
    vectors: Vec<Vec<f32>>,
}

impl Base {
    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    fn program(&self) -> &Program {
        self.model.weights().model().program()
    }

    fn pool(&self) -> &ThreadPool {
        self.model.pool()
    }

    /// The tensors of the program, as they are in the file.
    fn tensors(&self) -> Result<Vec<Tensor<'_>>> {
        let weights = self.model.weights().model().weights();
        let tensor = |id: TensorId| match self.program().tensor(id).role {
            TensorRole::Matrix => Ok(Tensor::Matrix(Weight::Packed(weights.matrix(id)?))),
            TensorRole::Vector => Ok(Tensor::Vector(&self.vectors[id.index()])),
        };
        self.program().tensor_ids().map(tensor).collect()
    }
}

/// Training of a model, step by step.
#[derive(Debug)]
pub struct Training<'b> {
    base: &'b Base,
    options: TrainOptions,
    trainer: Trainer<'b>,
    pool: &'b ThreadPool,
    /// On the first of several [`Ranks`], the others.
    others: Option<Others<'b>>,
}

impl<'b> Training<'b> {
    /// A model to train, which [`Builder::inspect_only`](crate::Builder::inspect_only) leaves in its file.
    ///
    /// # Errors
    /// If the weights are not in the layout of their file.
    pub fn base(model: &Model) -> Result<Base> {
        let (program, weights) = (model.weights().model().program(), model.weights().model().weights());
        if model.weights().is_repacked() {
            let (name, found) = ("repack", "a model that is repacked for inference".into());
            let expected = "one in the layout of its file: load it with `inspect_only`".into();
            return Err(Error::Option { name, found, expected });
        }
        let vector = |id: TensorId| {
            let spec = program.tensor(id);
            let mut row = vec![0.0; if spec.role == TensorRole::Vector { spec.cols } else { 0 }];
            if !row.is_empty() {
                weights.matrix(id)?.unpack_row(0, &mut row)?;
            }
            Ok(row)
        };
        let vectors = program.tensor_ids().map(vector).collect::<Result<_>>()?;
        Ok(Base { model: model.clone(), vectors })
    }

    /// Begins a training with `options`.
    ///
    /// # Errors
    /// [`Error::Train`] for options that do not fit each other or the model.
    pub fn new(base: &'b Base, options: TrainOptions) -> Result<Self> {
        Training::on(base, options, base.pool())
    }

    fn on(base: &'b Base, options: TrainOptions, pool: &'b ThreadPool) -> Result<Self> {
        let program = base.program();
        options.check(&base.model)?;
        let trained = |id| options.trains(program, id);
        let tensors = base.tensors()?;
        let trainer = Trainer::new(program, tensors, trained, options.recipe(), base.model.isa(), pool)?;
        let mut training = Training { base, options, trainer, pool, others: None };
        if training.options.method == Method::Lora {
            training.scale_rates()?;
        }
        Ok(training)
    }

    /// Learns from what `teacher`, a model with the same vocabulary, predicts, too.
    ///
    /// # Errors
    /// [`Error::Train`] for another vocabulary.
    pub fn teach_by(&mut self, teacher: &'b Base) -> Result<()> {
        let (found, longest) = (self.options.row_tokens, teacher.model.config().max_context_length);
        if found > longest {
            let expected = format!("at most {longest}, the teacher's longest context");
            return Err(Error::Option { name: "row-tokens", found: found.to_string(), expected });
        }
        let tensors = teacher.tensors()?;
        Ok(self.trainer.teach_by(teacher.program(), tensors, self.base.model.isa(), self.pool)?)
    }

    /// Keeps weights of matrices that are 0 now, such as those of a [pruned](crate::convert::prune) model, at 0 from now on.
    pub fn keep_zeros(&mut self) {
        self.trainer.keep_zeros();
    }

    /// Trains as one rank of `group`: all ranks have the same options and data, and make the same calls. [`Ranks`] does so with
    /// threads.
    ///
    /// # Errors
    /// [`Error::Train`] unless the number of ranks is a power of two that divides that of micro-batches.
    pub fn join(&mut self, group: &'b dyn Collective) -> Result<()> {
        Ok(self.trainer.join(group)?)
    }

    /// The options.
    pub fn options(&self) -> &TrainOptions {
        &self.options
    }

    /// How far it is.
    pub fn progress(&self) -> &Progress {
        self.trainer.progress()
    }

    /// Whether all steps were done.
    pub fn is_done(&self) -> bool {
        self.progress().step >= self.options.steps
    }

    /// The bytes that it needs, beside the model's file; each of several ranks needs as many.
    pub fn memory(&self) -> TrainMemory {
        self.trainer.memory()
    }

    /// Numbers that are trained.
    pub fn num_trained(&self) -> u64 {
        let program = self.base.program();
        let trained = program.tensor_ids().filter_map(|id| self.trainer.master(id));
        trained.map(|master| master.len() as u64).sum()
    }

    /// The next step.
    ///
    /// # Errors
    /// [`Error::Train`] for a loss or gradients that are not finite: the weights are then those before the step.
    pub fn step(&mut self, corpus: &Corpus) -> Result<StepReport> {
        let data = self.data(corpus)?;
        self.tell(|| Call::Step(corpus.clone()))?;
        let done = self.trainer.step(data);
        if let (Err(_), Some(others)) = (&done, &self.others) {
            others.fail();
        }
        Ok(done?)
    }

    /// The mean cross entropy of all of `corpus`, in nats per token.
    ///
    /// # Errors
    /// [`Error::Train`] for sequences longer than a batch.
    pub fn evaluate(&mut self, corpus: &Corpus) -> Result<f64> {
        let data = self.data(corpus)?;
        let loss = self.trainer.evaluate(data)?;
        Ok(loss)
    }

    /// Tells the plateau schedule a loss of [`Training::evaluate`].
    pub fn plateau(&mut self, loss: f64) {
        self.trainer.plateau(loss);
        // If a rank is lost, the next step says so.
        let _ = self.tell(|| Call::Plateau(loss));
    }

    /// Tells the other ranks, if there are others, what this one does next.
    fn tell(&self, call: impl FnOnce() -> Call) -> Result<()> {
        self.others.as_ref().map_or(Ok(()), |others| others.tell(&call()))
    }

    /// As [`Training::tell`], of a file that this rank has read; waits until all have.
    fn all_read(&self, call: Call) -> Result<()> {
        self.tell(|| call)?;
        self.others.as_ref().map_or(Ok(()), |others| others::meet(others.group))
    }

    /// The data of `corpus`, if its sequences fit into a micro-batch.
    fn data<'c>(&self, corpus: &'c Corpus) -> Result<&'c Data> {
        let tokens = self.options.row_tokens * self.options.rows / self.options.accumulate;
        match corpus.data().longest() {
            Some(longest) if longest > self.options.row_tokens.min(tokens) => {
                Err(corpus.too_long(self.options.row_tokens))
            }
            _ => Ok(corpus.data()),
        }
    }
}
