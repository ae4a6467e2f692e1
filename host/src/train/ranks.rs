//! Ranks that are threads, and train one model together.

use super::others::{Call, Failure, Others, meet};
use super::{Base, TrainOptions, Training};
use crate::error::{Error, Result};
use crate::split::ThreadGroup;
use crate::threads::ThreadPool;
use shohin_core::collective::Collective;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

/// Threads that train a model together: each is a rank, which computes its share of the micro-batches of a step with its own
/// threads and its own masters, gradients and moments. All have the same weights after each step, and the bits are the same for
/// 1, 2, 4, ... ranks.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shohin::train::{Corpus, Ranks, TrainOptions, Training};
/// use shohin::Model;
///
/// let model = Model::builder().inspect_only().threads(8).load("smollm2-135m.gguf")?;
/// let corpus = Corpus::text(&model, &std::fs::read_to_string("notes.txt")?)?;
/// let base = Training::base(&model)?;
/// let options = TrainOptions { accumulate: 4, ..TrainOptions::new() };
/// Ranks::new(&base, 4)?.train(&options, |training| -> shohin::Result<()> {
///     while !training.is_done() {
///         println!("{:.4}", training.step(&corpus)?.loss);
///     }
///     training.save("notes.gguf", false)
/// })?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Ranks<'b> {
    base: &'b Base,
    teacher: Option<&'b Base>,
    /// Of each rank, if there are several.
    pools: Vec<ThreadPool>,
}

impl<'b> Ranks<'b> {
    /// As many ranks, among which the threads of the model are divided.
    ///
    /// # Errors
    /// [`Error::Option`] unless `count` is a power of two; [`Error::Threads`].
    pub fn new(base: &'b Base, count: usize) -> Result<Self> {
        if !count.is_power_of_two() {
            let (found, expected) = (count.to_string(), "a power of two".into());
            return Err(Error::Option { name: "ranks", found, expected });
        }
        let threads = (base.model.threads() / count).max(1);
        let pool = |_| ThreadPool::new(threads).map_err(|source| Error::Threads { count: threads, source });
        let pools = if count == 1 { Vec::new() } else { (0..count).map(pool).collect::<Result<_>>()? };
        Ok(Ranks { base, teacher: None, pools })
    }

    /// Learns from what `teacher` predicts, see [`Training::teach_by`].
    #[must_use]
    pub fn taught_by(mut self, teacher: &'b Base) -> Self {
        self.teacher = Some(teacher);
        self
    }

    /// Number of ranks.
    pub fn count(&self) -> usize {
        self.pools.len().max(1)
    }

    /// Begins a training, and calls `first` with that of the first rank, on this thread. The other ranks do what it does: its
    /// steps, what it resumes from and what it tells the schedule. It alone evaluates and writes files.
    ///
    /// A step that fails on any rank ends them all: `first` gets an error from the next call at the latest.
    ///
    /// # Errors
    /// That of `first`, or of another rank, if it failed earlier; [`Error::Option`] unless the micro-batches are a power of two, and
    /// as many as ranks or more; those of [`Training::new`] and [`Training::teach_by`].
    ///
    /// # Panics
    /// If a rank does.
    pub fn train<T, E: From<Error>>(
        &self,
        options: &TrainOptions,
        first: impl FnOnce(&mut Training<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let ranks = self.count();
        if ranks == 1 {
            return first(&mut self.training(options, self.base.pool())?);
        }
        if !options.accumulate.is_power_of_two() || options.accumulate < ranks {
            let expected = format!("a power of two, and at least {ranks}, the number of ranks");
            let found = options.accumulate.to_string();
            return Err(Error::Option { name: "accumulate", found, expected }.into());
        }
        let failure = Failure::new();
        let failed = &failure;
        let done = thread::scope(|scope| {
            // On every way out of here it is dropped, which ends the others.
            let mut group = ThreadGroup::new(ranks, None);
            let others = group.split_off(1);
            let group = &group[0];
            let mut calls = Vec::new();
            for (pool, group) in self.pools[1..].iter().zip(others) {
                let (sender, receiver) = channel();
                calls.push(sender);
                let thread = thread::Builder::new().name(format!("shohin-rank-{}", group.rank()));
                let started = thread.spawn_scoped(scope, move || {
                    // Before the group is dropped, by which the others learn of it.
                    if let Err(error) = self.follow(options, pool, &group, receiver) {
                        failed.get_or_init(|| Some(error));
                    }
                });
                started.map_err(|source| Error::Threads { count: ranks, source })?;
            }
            let mut training = self.training(options, &self.pools[0])?;
            training.join(group)?;
            training.others = Some(Others { group, calls, failure: failed });
            first(&mut training)
        });
        match (done, failure.into_inner().flatten()) {
            (Err(_), Some(error)) => Err(error.into()),
            (done, _) => done,
        }
    }

    fn training<'r>(&'r self, options: &TrainOptions, pool: &'r ThreadPool) -> Result<Training<'r>> {
        let mut training = Training::on(self.base, options.clone(), pool)?;
        if let Some(teacher) = self.teacher {
            training.teach_by(teacher)?;
        }
        Ok(training)
    }

    /// Does what the first rank says, until it says no more. Without a call nothing is allocated.
    fn follow(
        &self,
        options: &TrainOptions,
        pool: &ThreadPool,
        group: &ThreadGroup,
        calls: Receiver<Call>,
    ) -> Result<()> {
        let mut calls = calls.into_iter().peekable();
        if calls.peek().is_none() {
            return Ok(());
        }
        let mut training = self.training(options, pool)?;
        training.join(group)?;
        for call in calls {
            match call {
                Call::Step(corpus) => drop(training.step(&corpus)?),
                Call::Plateau(loss) => training.plateau(loss),
                Call::Resume(path) => {
                    training.resume(path)?;
                    meet(group)?;
                }
                Call::ResumeChanged(path) => {
                    training.resume_changed(path)?;
                    meet(group)?;
                }
                Call::InitFrom(path) => {
                    training.init_from(path)?;
                    meet(group)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Model;
    use crate::train::{Corpus, Method};
    use std::path::Path;

    const TEXT: &str = "Once upon a time there was a fox. The fox lived in a small wood by the river. Every morning it went out.";

    fn base() -> Base {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/sprout-nano.gguf");
        Training::base(&Model::builder().threads(4).inspect_only().load(path).unwrap()).unwrap()
    }

    fn options() -> TrainOptions {
        let size = TrainOptions { rows: 4, row_tokens: 8, accumulate: 4, ..TrainOptions::new() };
        TrainOptions { steps: 3, method: Method::Norms, ..size }
    }

    /// The first rank's side of what `job` does on four ranks, which have no failure in common.
    fn train<T>(job: impl FnOnce(&mut Training<'_>, &Corpus) -> Result<T>) -> Result<T> {
        let base = base();
        let corpus = Corpus::text(base.model(), TEXT).unwrap();
        Ranks::new(&base, 4).unwrap().train(&options(), |training| job(training, &corpus))
    }

    #[test]
    fn a_rank_that_fails_ends_all_with_its_error() {
        let done = train(|training, corpus| {
            training.step(corpus)?;
            // The others find no file.
            let error = training.all_read(Call::Resume("nowhere".into())).unwrap_err().to_string();
            assert!(error.contains("lost"), "{error}");
            training.step(corpus)
        });
        let error = done.unwrap_err().to_string();
        assert!(error.starts_with("cannot open the checkpoint nowhere"), "{error}");
    }

    #[test]
    fn the_first_rank_may_end_whenever_it_likes() {
        train(|_, _| Ok(())).unwrap();
        train(|training, corpus| training.step(corpus)).unwrap();
        let error = train(|training, corpus| {
            training.step(corpus)?;
            Err::<(), _>(Error::NotFinite)
        });
        assert!(matches!(error, Err(Error::NotFinite)));
        let panicked = std::panic::catch_unwind(|| {
            train(|training, corpus| -> Result<()> {
                training.step(corpus)?;
                panic!("as it likes")
            })
        });
        assert!(panicked.is_err());
    }

    #[test]
    fn after_an_error_there_are_no_more_steps() {
        let base = base();
        let corpus = Corpus::text(base.model(), TEXT).unwrap();
        let options = TrainOptions { learning_rate: 1e38, clip_norm: None, ..options() };
        let done = Ranks::new(&base, 2).unwrap().train(&options, |training| {
            let failed = (0..3).find_map(|_| training.step(&corpus).err());
            assert!(failed.is_some());
            let error = training.step(&corpus).unwrap_err().to_string();
            assert!(error.contains("lost"), "{error}");
            failed.map_or(Ok(()), Err)
        });
        let error = done.unwrap_err().to_string();
        assert!(error.contains("is not a finite number"), "{error}");
    }

    #[test]
    fn ranks_are_powers_of_two_and_no_more_than_micro_batches() {
        let base = base();
        let error = Ranks::new(&base, 3).unwrap_err().to_string();
        assert_eq!(error, "ranks is \"3\", expected a power of two");
        let ranks = Ranks::new(&base, 4).unwrap();
        assert_eq!(ranks.count(), 4);
        for accumulate in [2, 12] {
            let options = TrainOptions { rows: 12, accumulate, ..options() };
            let error = ranks.train(&options, |_| Ok::<_, Error>(())).unwrap_err().to_string();
            let expected = "expected a power of two, and at least 4, the number of ranks";
            assert_eq!(error, format!("accumulate is \"{accumulate}\", {expected}"));
        }
    }
}
