//! A training in a file, to go on with.
//!
//! The file is a [checkpoint](shohin_train::checkpoint) of tensors under their names in the base: masters as `NAME`, and moments of
//! the optimizer, if it has them, as `optim.m/NAME` and `optim.v/NAME`; a matrix is `(rows, cols)`, any other tensor `(cols)`.
//! Its metadata are
//!
//! | key | |
//! |---|---|
//! | `shohin.step`, `shohin.tokens` | steps that were done, and tokens whose prediction was learned |
//! | `shohin.epoch`, `shohin.next` | how far the data was read |
//! | `shohin.plateau` | what the schedule remembers of the losses of validation |
//! | `shohin.seed`, `shohin.recipe` | options that a training goes on with, one a line |
//! | `shohin.base` | the fingerprint of the base's file |

use super::Training;
use super::others::Call;
use crate::error::{Error, Result};
use shohin_core::error::Name;
use shohin_core::model::program::{TensorId, TensorRole};
use shohin_files::new_file::NewFile;
use shohin_files::{failed, map_file};
use shohin_train::checkpoint::{self, Checkpoint, Stored, Tensor};
use shohin_train::trainer::Progress;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

/// Prefixes of the optimizer's moments.
const MOMENTS: [&str; 2] = ["optim.m/", "optim.v/"];
const SEED: &str = "shohin.seed";
const RECIPE: &str = "shohin.recipe";
const BASE: &str = "shohin.base";
const PLATEAU: &str = "shohin.plateau";

/// The metadata that say how far a training is.
fn numbers(progress: &mut Progress) -> [(&'static str, &mut u64); 4] {
    let Progress { step, tokens, cursor, plateau: _ } = progress;
    [
        ("shohin.step", step),
        ("shohin.tokens", tokens),
        ("shohin.epoch", &mut cursor.epoch),
        ("shohin.next", &mut cursor.next),
    ]
}

/// The error of a file that is not of this training.
fn differs(expected: impl Into<String>, found: impl Into<String>) -> shohin_train::Error {
    shohin_train::Error::Checkpoint { at: None, expected: expected.into(), found: found.into() }
}

fn get<'c>(file: &'c Checkpoint<'_>, key: &str) -> shohin_train::Result<&'c str> {
    file.get(key)
        .ok_or_else(|| differs(format!("a training with the metadata {key:?}"), "weights without it"))
}

/// The tensor `name` of a file, of this shape.
fn stored<'c, 'a>(
    file: &'c Checkpoint<'a>,
    name: &str,
    shape: &[u64],
) -> shohin_train::Result<&'c Stored<'a>> {
    match file.tensor(name) {
        None => Err(differs(format!("the tensor {name:?}"), "none of this name")),
        Some(tensor) if tensor.shape() != shape => {
            Err(differs(format!("the shape {shape:?} of {name:?}"), format!("{:?}", tensor.shape())))
        }
        Some(tensor) => Ok(tensor),
    }
}

/// Reads the checkpoint `path`, and calls `job` with it.
fn with<T>(path: &Path, job: impl FnOnce(&Checkpoint<'_>) -> shohin_train::Result<T>) -> Result<T> {
    let failed = failed("open the checkpoint", path);
    let refused = |problem| Err(shohin_files::Error::NotAFile { path: path.into(), problem }.into());
    // Before it is opened: opening a pipe waits for a writer.
    let found = fs::metadata(path).map_err(failed)?;
    if !found.is_file() {
        return refused("is not a regular file, expected a checkpoint");
    }
    if found.len() == 0 {
        return refused("is empty, expected a checkpoint");
    }
    let bytes = map_file(&File::open(path).map_err(failed)?).map_err(failed)?;
    let done = Checkpoint::parse(&bytes).and_then(|file| job(&file));
    done.map_err(|source| Error::Checkpoint { path: path.into(), source: Box::new(source) })
}

impl Training<'_> {
    /// Writes all that the training needs to go on to the file `path`. One that is there is replaced, once all of the new one is
    /// on disk.
    ///
    /// # Errors
    /// [`Error::File`]; [`Error::Train`] for names that the format does not have.
    pub fn checkpoint(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let failed = failed("write", path);
        let trained = self.trained_tensors();
        let mut parts: Vec<(String, &[u64], &[f32])> = Vec::new();
        for (id, name, shape) in &trained {
            parts.push((name.to_string(), shape, self.trainer.master(*id).unwrap_or(&[])));
        }
        for (i, prefix) in MOMENTS.into_iter().enumerate() {
            for (id, name, shape) in &trained {
                match self.trainer.moments(*id).map_or(&[][..], |moments| moments[i]) {
                    [] => {}
                    moments => parts.push((format!("{prefix}{name}"), shape, moments)),
                }
            }
        }
        let tensors: Vec<Tensor<'_>> =
            parts.iter().map(|(name, shape, data)| Tensor { name, shape, data }).collect();
        let mut metadata: Vec<(&str, String)> =
            numbers(&mut self.progress().clone()).map(|(key, n)| (key, n.to_string())).into();
        metadata.push((SEED, self.options.seed.to_string()));
        metadata.push((RECIPE, self.recipe()?));
        metadata.push((BASE, self.fingerprint()));
        metadata.push((PLATEAU, self.progress().plateau.to_string()));
        let metadata: Vec<(&str, &str)> = metadata.iter().map(|(key, text)| (*key, text.as_str())).collect();
        let mut file = NewFile::create(path).map_err(failed)?;
        let mut put = |bytes: &[u8]| Ok::<_, Error>(file.write_all(bytes).map_err(failed)?);
        checkpoint::write(&metadata, &tensors, &mut put)?;
        Ok(file.finish().map_err(failed)?)
    }

    /// Goes on from where the training that wrote `path` was: the steps that follow have the bits that its own would have had. The
    /// number of steps may be another one.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for a file that is damaged, of another base, of other options, or that has not exactly the tensors
    /// of this training; [`Error::File`]. The training is unchanged then.
    pub fn resume(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let recipe = self.recipe()?;
        self.go_on(path, |file| Self::same_recipe(file, &recipe))?;
        self.all_read(Call::Resume(path.into()))
    }

    /// As [`Training::resume`], with options that may be others than those of the training that wrote `path`: the weights, the
    /// optimizer's moments and the number of the step are its own, what follows is of these options. A training has phases so,
    /// such as longer rows at its end. Returns each line of the options that changed, as `then -> now`.
    ///
    /// # Errors
    /// As [`Training::resume`], whatever the options.
    pub fn resume_changed(&mut self, path: impl AsRef<Path>) -> Result<Vec<String>> {
        let path = path.as_ref();
        let recipe = self.recipe()?;
        let mut changes = Vec::new();
        self.go_on(path, |file| {
            let found = get(file, RECIPE)?;
            // By name: a file of an older version lacks those of newer options.
            let then = |now: &str| {
                let name = now.split(' ').next();
                found.lines().find(|then| then.split(' ').next() == name).unwrap_or("none")
            };
            let all = recipe.lines().map(|now| (then(now), now)).filter(|(then, now)| then != now);
            changes = all.map(|(then, now)| format!("{} -> {now}", Name::new(then))).collect();
            Ok(())
        })?;
        self.all_read(Call::ResumeChanged(path.into()))?;
        Ok(changes)
    }

    fn go_on(
        &mut self,
        path: &Path,
        check: impl FnOnce(&Checkpoint<'_>) -> shohin_train::Result<()>,
    ) -> Result<()> {
        with(path, |file| {
            let progress = self.progress_of(file)?;
            check(file)?;
            self.restore(file, true)?;
            self.trainer.resume(progress);
            Ok(())
        })
    }

    /// Begins with the weights of a checkpoint, of any training of a model with the same tensors, or of another program: the
    /// optimizer and the data begin anew.
    ///
    /// # Errors
    /// As [`Training::resume`], whatever the base and the options.
    pub fn init_from(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        with(path, |file| self.restore(file, false))?;
        self.all_read(Call::InitFrom(path.into()))
    }

    /// Tensors that are trained, with their names and shapes.
    fn trained_tensors(&self) -> Vec<(TensorId, String, Vec<u64>)> {
        let program = self.base.program();
        let trained = program.tensor_ids().filter(|id| self.trainer.master(*id).is_some());
        let tensor = |id| {
            let spec = program.tensor(id);
            let (rows, cols) = (spec.rows as u64, spec.cols as u64);
            let shape = match spec.role {
                TensorRole::Matrix => vec![rows, cols],
                TensorRole::Vector => vec![cols],
            };
            (id, spec.name.to_string(), shape)
        };
        trained.map(tensor).collect()
    }

    /// The options that a training goes on with, and what the factors of an adapter are multiplied by, one a line.
    fn recipe(&self) -> Result<String> {
        let mut text = self.options.text();
        let mut factors: Vec<f64> = self.factors()?.into_iter().map(|(_, factor)| factor).collect();
        factors.dedup();
        factors.iter().for_each(|factor| text += &format!("alpha/rank {factor}\n"));
        Ok(text)
    }

    fn fingerprint(&self) -> String {
        self.base.model.file().fingerprint().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// How far the training of a file is, if it is one with this base.
    fn progress_of(&self, file: &Checkpoint<'_>) -> shohin_train::Result<Progress> {
        let (base, found) = (self.fingerprint(), get(file, BASE)?);
        if found != base {
            let found = format!("{:?}", Name::new(found));
            return Err(differs(format!("a training of the model with the fingerprint {base:?}"), found));
        }
        let mut progress = Progress::default();
        for (key, n) in numbers(&mut progress) {
            let found = get(file, key)?;
            let other =
                |_| differs(format!("a number as the metadata {key:?}"), format!("{:?}", Name::new(found)));
            *n = found.parse().map_err(other)?;
        }
        let found = get(file, PLATEAU)?;
        progress.plateau = found.parse().map_err(|_| {
            let found = format!("{:?}", Name::new(found));
            differs(format!("the state of a schedule as the metadata {PLATEAU:?}"), found)
        })?;
        Ok(progress)
    }

    /// Refuses the training of a file that has other options than `recipe`.
    fn same_recipe(file: &Checkpoint<'_>, recipe: &str) -> shohin_train::Result<()> {
        let found = get(file, RECIPE)?;
        let mut lines = (recipe.lines(), found.lines());
        loop {
            match (lines.0.next(), lines.1.next()) {
                (None, None) => return Ok(()),
                (expected, found) if expected == found => {}
                (expected, found) => {
                    let line =
                        |line: Option<&str>| line.map_or("no more".into(), |l| format!("{:?}", Name::new(l)));
                    let expected = format!("a training with the option {}", line(expected));
                    return Err(differs(expected, line(found)));
                }
            }
        }
    }

    /// Takes masters, and moments if they are asked for, from a file that has them all.
    fn restore(&mut self, file: &Checkpoint<'_>, moments: bool) -> shohin_train::Result<()> {
        let mut parts = Vec::new();
        for (id, name, shape) in self.trained_tensors() {
            let has = self.trainer.moments(id).map(|moments| moments.map(|moment| !moment.is_empty()));
            let master = stored(file, &name, &shape)?;
            let mut of_optimizer = [None, None];
            if moments {
                for i in 0..MOMENTS.len() {
                    if has.is_some_and(|has| has[i]) {
                        of_optimizer[i] = Some(stored(file, &format!("{}{name}", MOMENTS[i]), &shape)?);
                    }
                }
            }
            parts.push((id, name, master, of_optimizer));
        }
        let known = |name: &str| {
            let of_optimizer = MOMENTS.iter().enumerate().find_map(|(i, p)| Some((i, name.strip_prefix(p)?)));
            match of_optimizer {
                Some(_) if !moments => true,
                Some((i, name)) => parts.iter().any(|(_, other, _, has)| other == name && has[i].is_some()),
                None => parts.iter().any(|(_, other, ..)| other == name),
            }
        };
        if let Some(other) = file.tensors().iter().find(|tensor| !known(tensor.name())) {
            let expected = "only tensors of what is trained";
            return Err(differs(expected, format!("{:?}", Name::new(other.name()))));
        }
        for (id, _, master, of_optimizer) in parts {
            let master: Vec<f32> = master.values().collect();
            let now = self.trainer.moments(id).unwrap_or_default();
            let [m, v] = [0, 1].map(|i| match of_optimizer[i] {
                Some(stored) => stored.values().collect(),
                None => now[i].to_vec(),
            });
            self.trainer.restore(id, &master, [&m, &v])?;
        }
        Ok(())
    }
}
