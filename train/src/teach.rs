//! Teaching: an adapter that learns a few facts, while the model keeps what else it says.
//!
//! ```text
//! L = mean over answers of -log p(token) + w mean over rehearsed replies of KL(p0 || p)
//! ```
//! `p0` is what the model said before. The rehearsed replies are its own, to questions that have nothing to do with the facts:
//! without them, it forgets much of what it knew. What the adapter leaves as it is, all that is before its first layer, is computed
//! once for each row.
#![forbid(unsafe_code)]

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use shohin_core::attention::AttentionPattern;
use shohin_core::cpu::Isa;
use shohin_core::model::lora::{A, B};
use shohin_core::model::program::{Program, TensorId};
use shohin_core::pool::Pool;
use shohin_core::sample::Pcg32;

use crate::batch::{Batch, Teacher};
use crate::data::{BatchSize, Order, Rows};
use crate::error::{Error, Result};
use crate::loss::Loss;
use crate::optimizer::Optimizer;
use crate::plan::Checkpoints;
use crate::run::Tensor;
use crate::schedule::Schedule;
use crate::text;
use crate::trainer::{Part, Recipe, TrainMemory, Trainer};

/// Rows that are computed at the same time, unless a conversation is longer.
const TOKENS: usize = 512;

/// Steps in which the learning rate rises.
const WARMUP: u64 = 5;

/// Steps after all was learned in step `at`, in which the learning rate falls to 0: what else changed comes back.
fn settling(at: u64) -> u64 {
    (at / 2).max(6)
}

/// Questions whose answers are rehearsed, one a line, of things that small models talk about, and of things that they do not know. Every
/// fifth is meant to be asked before and after instead, to see what changed.
pub const QUESTIONS: &str = include_str!("rehearsal.txt");

/// A conversation whose replies are learned, or rehearsed.
#[derive(Clone, Debug, PartialEq)]
pub struct Lesson {
    /// All of it.
    pub tokens: Vec<u32>,
    /// Where the replies are.
    pub replies: Vec<Range<usize>>,
}

/// How facts are taught.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TeachOptions {
    /// Steps at most.
    pub steps: u64,
    /// The highest learning rate.
    pub learning_rate: f64,
    /// Replies that are rehearsed in a step.
    pub rehearse: usize,
    /// Their weight, beside 1 of the facts.
    pub rehearsal: f64,
    /// All is learned when every token of every answer is as probable as this.
    pub sure: f64,
    /// What the order of rehearsals follows from.
    pub seed: u64,
}

/// Ten facts take some 80 steps with an adapter of rank 8 in the last third of the layers of a model of 5 million weights; of 551 questions
/// that it answered before, it then answers 545. A higher rate is faster, and the model forgets more.
impl Default for TeachOptions {
    fn default() -> Self {
        TeachOptions { steps: 80, learning_rate: 3e-3, rehearse: 20, rehearsal: 10.0, sure: 0.7, seed: 0 }
    }
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LessonReport {
    /// Its number, from 1.
    pub step: u64,
    /// The loss before it, of facts and rehearsals.
    pub loss: f64,
    /// The probability of the least probable token of an answer, before it.
    pub least: f64,
    /// Whether all was learned.
    pub is_learned: bool,
}

/// The rows of some lessons.
#[derive(Clone, Debug, Default)]
struct Lines {
    rows: Rows,
    /// `(rows, hidden)`, before the first layer that learns.
    prefix: Vec<f32>,
    /// `(rows, hidden)`, the final states of the model as it was; empty for facts.
    hidden: Vec<f32>,
}

impl Lines {
    fn push(&mut self, lesson: &Lesson) {
        let (rows, n) = (&mut self.rows, lesson.tokens.len() - 1);
        rows.tokens.extend_from_slice(&lesson.tokens[..n]);
        rows.targets.extend_from_slice(&lesson.tokens[1..]);
        rows.lengths.push(n);
        let learned = |at: &usize| lesson.replies.iter().any(|reply| reply.contains(at));
        rows.weights.extend((1..=n).map(|at| if learned(&at) { 1.0 } else { 0.0 }));
    }

    fn append(&mut self, other: &Lines) {
        let (rows, from) = (&mut self.rows, &other.rows);
        rows.tokens.extend_from_slice(&from.tokens);
        rows.lengths.extend_from_slice(&from.lengths);
        rows.targets.extend_from_slice(&from.targets);
        rows.weights.extend_from_slice(&from.weights);
        self.prefix.extend_from_slice(&other.prefix);
        self.hidden.extend_from_slice(&other.hidden);
    }

    fn clear(&mut self) {
        self.rows.clear();
        self.prefix.clear();
        self.hidden.clear();
    }

    fn len(&self) -> usize {
        self.rows.tokens.len()
    }

    fn batch(&self) -> Batch<'_> {
        Batch { prefix: (!self.prefix.is_empty()).then_some(&self.prefix), ..self.rows.batch() }
    }
}

/// Teaches facts to a model with an adapter that is new.
#[derive(Debug)]
pub struct Teaching<'p> {
    program: &'p Program,
    options: TeachOptions,
    trainer: Trainer<'p>,
    /// Of the model without what is learned; it does not change.
    output: Tensor<'p>,
    facts: Vec<Lines>,
    /// One reply each.
    pool: Vec<Lines>,
    /// How many of both have what does not change.
    prepared: usize,
    rehearsed: Vec<Lines>,
    random: Pcg32,
    /// What of the pool comes next.
    order: Vec<usize>,
    /// The step in which all was learned for the first time, and the share of the learning rate then.
    learned_at: Option<(u64, f64)>,
    is_learned: bool,
}

impl<'p> Teaching<'p> {
    /// Begins to teach `facts` to the factors of the adapter that `program` has, with `pool` to rehearse. `base` has the tensors of the
    /// program in its order.
    ///
    /// # Errors
    /// Those of [`Trainer::new`]; [`Error::Core`] without facts, for lessons without replies, or numbers that are none.
    pub fn new(
        program: &'p Program,
        base: Vec<Tensor<'p>>,
        facts: &[Lesson],
        pool: &[Lesson],
        options: TeachOptions,
        isa: Isa,
        workers: &'p dyn Pool,
    ) -> Result<Self> {
        check(facts, pool, &options)?;
        let longest = facts.iter().chain(pool).map(|lesson| lesson.tokens.len() - 1).max().unwrap_or(1);
        let recipe = Recipe {
            size: BatchSize { rows: 1, row_tokens: TOKENS.max(longest) },
            accumulate: 1,
            order: Order::Sequential,
            seed: options.seed,
            steps: options.steps,
            optimizer: Optimizer::AdamW { betas: [0.9, 0.95], eps: 1e-8, weight_decay: 1.0 },
            learning_rate: options.learning_rate,
            schedule: Schedule::Constant { warmup: 0 },
            clip_norm: Some(1.0),
            clip_value: None,
            loss: Loss::default(),
            fake: None,
            dropout: 0.0,
            checkpoints: Checkpoints::None,
            pattern: AttentionPattern::Full,
        };
        let trained = |id: TensorId| {
            let name = &program.tensor(id).name;
            name.ends_with(A) || name.ends_with(B)
        };
        let output = base.get(program.output.index()).copied();
        let trainer = Trainer::new(program, base, trained, recipe, isa, workers)?;
        let mut teaching = Teaching {
            program,
            options,
            trainer,
            // There is one: the trainer has checked them.
            output: output.unwrap_or(Tensor::Vector(&[])),
            facts: Vec::new(),
            pool: Vec::new(),
            prepared: 0,
            rehearsed: Vec::new(),
            random: Pcg32::new(options.seed),
            order: Vec::new(),
            learned_at: None,
            is_learned: false,
        };
        teaching.facts = teaching.divided(facts);
        for lesson in pool {
            let mut lines = Lines::default();
            lines.push(lesson);
            teaching.pool.push(lines);
        }
        Ok(teaching)
    }

    /// The rows of `lessons`, as many in one as are computed at the same time.
    fn divided(&self, lessons: &[Lesson]) -> Vec<Lines> {
        let room = self.trainer.recipe().size.tokens();
        let mut all = vec![Lines::default()];
        for lesson in lessons {
            let last = all.len() - 1;
            if all[last].len() + lesson.tokens.len() - 1 > room {
                all.push(Lines::default());
            }
            let last = all.len() - 1;
            all[last].push(lesson);
        }
        all
    }

    /// Computes a part of what does not change; the share that is done. [`Teaching::step`] computes what is left of it.
    ///
    /// # Errors
    /// As [`Trainer::step`].
    pub fn prepare(&mut self) -> Result<f64> {
        let all = self.facts.len() + self.pool.len();
        if let Some(lines) = self.facts.get_mut(self.prepared) {
            let mut prefix = Vec::new();
            self.trainer.prefix(&lines.batch(), &mut prefix)?;
            lines.prefix = prefix;
            self.prepared += 1;
        } else if self.prepared < all {
            self.prepare_rehearsals(self.prepared - self.facts.len())?;
        }
        Ok(if all == 0 { 1.0 } else { self.prepared as f64 / all as f64 })
    }

    /// Those of the pool from `first` on that are computed at the same time.
    fn prepare_rehearsals(&mut self, first: usize) -> Result<()> {
        let room = self.trainer.recipe().size.tokens();
        let (mut together, mut count) = (Lines::default(), 0);
        for lines in &self.pool[first..] {
            if together.len() + lines.len() > room {
                break;
            }
            together.append(lines);
            count += 1;
        }
        let (mut prefix, mut hidden) = (Vec::new(), Vec::new());
        self.trainer.prefix(&together.batch(), &mut prefix)?;
        self.trainer.hidden(&together.batch(), &mut hidden)?;
        let (rows, mut at) = (together.len().max(1), 0);
        for lines in &mut self.pool[first..first + count] {
            let range = at..at + lines.len();
            at = range.end;
            let part = |all: &[f32]| {
                let cols = all.len() / rows;
                all[range.start * cols..range.end * cols].to_vec()
            };
            (lines.prefix, lines.hidden) = (part(&prefix), part(&hidden));
        }
        self.prepared += count;
        Ok(())
    }

    /// The lessons that are rehearsed in the next step: each of the pool once, in an order of its own, then again.
    fn draw(&mut self) {
        let room = self.trainer.recipe().size.tokens();
        self.rehearsed.iter_mut().for_each(Lines::clear);
        let mut at = 0;
        for _ in 0..self.options.rehearse.min(self.pool.len()) {
            if self.order.is_empty() {
                self.order = (0..self.pool.len()).collect();
                for i in (1..self.order.len()).rev() {
                    let other = (self.random.next_f64() * (i + 1) as f64) as usize;
                    self.order.swap(i, other.min(i));
                }
            }
            let Some(next) = self.order.pop() else { return };
            let lines = &self.pool[next];
            if self.rehearsed.get(at).is_some_and(|r| r.len() + lines.len() > room) {
                at += 1;
            }
            if self.rehearsed.len() <= at {
                self.rehearsed.push(Lines::default());
            }
            self.rehearsed[at].append(lines);
        }
    }

    /// How far it is.
    pub fn step_count(&self) -> u64 {
        self.trainer.progress().step
    }

    /// Whether all was learned and has settled, or all steps were done.
    pub fn is_done(&self) -> bool {
        self.step_count() >= self.last()
    }

    /// The last step, as far as that is known.
    fn last(&self) -> u64 {
        let settled = self.learned_at.map(|(at, _)| at + settling(at));
        settled.map_or(self.options.steps, |last| last.min(self.options.steps))
    }

    /// The share of the learning rate in the next step: up, then down to 0 at the last step, sooner when all is learned.
    fn share(&self) -> f64 {
        let (step, steps) = (self.step_count(), self.options.steps);
        let warm = ((step + 1) as f64 / WARMUP as f64).min(1.0);
        let line =
            |from: u64, to: u64| (to.saturating_sub(step)) as f64 / (to.saturating_sub(from)).max(1) as f64;
        match self.learned_at {
            Some((at, share)) => share * line(at, at + settling(at)),
            None => warm * line(WARMUP.min(steps), steps).min(1.0),
        }
    }

    /// Whether all was learned.
    pub fn is_learned(&self) -> bool {
        self.is_learned
    }

    /// The bytes that it needs beside the model, without what is kept of the lessons.
    pub fn memory(&self) -> TrainMemory {
        self.trainer.memory()
    }

    /// The next step.
    ///
    /// # Errors
    /// As [`Trainer::step`].
    pub fn step(&mut self) -> Result<LessonReport> {
        while self.prepare()? < 1.0 {}
        self.draw();
        let output = self.output.matrix();
        let counted = |lines: &Lines| lines.batch().total();
        let all = |lines: &[Lines]| lines.iter().map(counted).sum::<f64>();
        let (of_facts, of_rehearsed) = (all(&self.facts), all(&self.rehearsed));
        let mut parts: Vec<Part<'_>> = Vec::new();
        for lines in &self.facts {
            let weight = counted(lines) / of_facts;
            parts.push(Part { batch: lines.batch(), loss: Loss::default(), weight });
        }
        for lines in self.rehearsed.iter().filter(|lines| lines.len() > 0) {
            let teacher = Some(Teacher { hidden: &lines.hidden, output });
            let weight = self.options.rehearsal * counted(lines) / of_rehearsed;
            parts.push(Part { batch: Batch { teacher, ..lines.batch() }, loss: Loss::Kl, weight });
        }
        let share = self.share();
        let done = self.trainer.learn(&parts, share)?;
        let least = libm::exp(-self.trainer.largest());
        self.is_learned = least >= self.options.sure;
        if self.is_learned && self.learned_at.is_none() {
            self.learned_at = Some((done.step, share));
        }
        Ok(LessonReport { step: done.step, loss: done.loss, least, is_learned: self.is_learned })
    }

    /// A factor of the adapter as it is now, by its name in the file.
    pub fn factor(&self, name: &str) -> Option<&[f32]> {
        let id = self.program.tensor_ids().find(|id| self.program.tensor(*id).name == name)?;
        self.trainer.master(id)
    }
}

fn check(facts: &[Lesson], pool: &[Lesson], options: &TeachOptions) -> Result<()> {
    let TeachOptions { learning_rate, rehearsal, sure, .. } = *options;
    let positive = |x: f64| x > 0.0 && x.is_finite();
    text::check(positive(learning_rate), "learning rate", learning_rate, "a number over 0")?;
    text::check(positive(rehearsal), "weight of rehearsals", rehearsal, "a number over 0")?;
    text::check(sure > 0.0 && sure < 1.0, "probability of answers", sure, "a number between 0 and 1")?;
    let length = |what, found: usize| {
        Err(Error::Core(shohin_core::Error::Length { what, expected: 1, found: found as u64 }))
    };
    if facts.is_empty() {
        return length("facts to teach", 0);
    }
    for lesson in facts.iter().chain(pool) {
        let n = lesson.tokens.len();
        let learned = lesson.replies.iter().any(|reply| reply.start.max(1) < reply.end.min(n));
        if n < 2 || !learned {
            return length("replies of a lesson", 0);
        }
    }
    Ok(())
}
