//! The weights of several models combined.

use crate::delta::Deltas;
use crate::edit::Edit;
use crate::error::{ConvertError, Result};
use crate::folder::Folder;
use crate::kind::is_folder;
use crate::options::ConvertOptions;
use crate::plan::{Plan, holds_deltas};
use crate::report::Converted;
use crate::tensor::Tensor;
use crate::to_folder;
use crate::to_gguf;
use shohin_core::Format;
use shohin_core::gguf::{Gguf, Metadata};
use shohin_core::sample::Pcg32;
use shohin_files::MappedModel;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// How the weights of models are combined, each tensor by itself. `t_i` are the weights of model `i`, `w_i` its share in
/// [`ModelMerge::weights`], `b` those of the base, and `d_i = t_i - b`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum MergeMethod {
    /// `sum w_i t_i / sum w_i` (Wortsman et al. 2022, arXiv:2203.05482).
    Linear,
    /// Of two models, along the arc between them: `sin((1 - t) a) / sin a t_0 + sin(t a) / sin a t_1`, where `a` is the angle
    /// between the whole tensors (Shoemake 1985). Linear where its cosine is beyond 0.9995.
    Slerp {
        /// 0 gives the first model, 1 the second.
        t: f64,
    },
    /// `b + sum w_i d_i` (Ilharco et al. 2022, arXiv:2212.04089).
    Task,
    /// Of each `d_i`, the `int(density n)` of `n` numbers that are largest, and at least one; of these, those whose sign is that of
    /// `sum w_i d_i`; then `b + sum w_i d_i / sum w_i` over what is left (Yadav et al. 2023, arXiv:2306.01708). Of equal numbers,
    /// the first are kept.
    Ties {
        /// The part that is kept, of more than 0 and at most 1.
        density: f64,
    },
    /// As TIES, but each number of `d_i` is kept with the probability `density`, and divided by it (Yu et al. 2023,
    /// arXiv:2311.03099). Which are kept depends on the seed, the name of the tensor and the number of the model.
    Dare {
        /// The part that is kept, of more than 0 and at most 1.
        density: f64,
        /// Of the random choice.
        seed: u64,
    },
}

/// The cosine beyond which [`MergeMethod::Slerp`] is linear.
const PARALLEL: f64 = 0.9995;

/// How models are combined.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ModelMerge {
    /// The method.
    pub method: MergeMethod,
    /// The share of each model; 1 unless set. Not for [`MergeMethod::Slerp`].
    pub weights: Option<Vec<f64>>,
    /// The model from which differences are counted; for the methods that need one.
    pub base: Option<PathBuf>,
}

impl ModelMerge {
    /// Combines by `method`, with equal shares.
    pub fn new(method: MergeMethod) -> Self {
        ModelMerge { method, weights: None, base: None }
    }

    /// Sets [`ModelMerge::weights`](#structfield.weights).
    pub fn weights(mut self, weights: Vec<f64>) -> Self {
        self.weights = Some(weights);
        self
    }

    /// Sets [`ModelMerge::base`](#structfield.base).
    pub fn base(mut self, base: impl Into<PathBuf>) -> Self {
        self.base = Some(base.into());
        self
    }

    fn needs_base(&self) -> bool {
        match self.method {
            MergeMethod::Linear | MergeMethod::Slerp { .. } => false,
            MergeMethod::Task | MergeMethod::Ties { .. } | MergeMethod::Dare { .. } => true,
        }
    }

    /// The share of each of `count` models.
    fn shares(&self, count: usize) -> Result<Vec<f64>, ConvertError> {
        let wrong = |key: &str, found: String, expected| {
            Err(ConvertError::Value { key: key.into(), found, expected })
        };
        match self.method {
            MergeMethod::Slerp { .. } if count != 2 => {
                return wrong("the number of models", count.to_string(), "2 for slerp");
            }
            MergeMethod::Slerp { .. } if self.weights.is_some() => {
                return wrong("weights of slerp", "set".into(), "t alone");
            }
            MergeMethod::Slerp { t } if !(0.0..=1.0).contains(&t) => {
                return wrong("t of slerp", t.to_string(), "0 to 1");
            }
            MergeMethod::Ties { density } | MergeMethod::Dare { density, .. }
                if !(density > 0.0 && density <= 1.0) =>
            {
                return wrong("the density", density.to_string(), "more than 0 and at most 1");
            }
            MergeMethod::Linear if count < 2 => {
                return wrong("the number of models", count.to_string(), "at least 2");
            }
            _ if count == 0 => return wrong("the number of models", count.to_string(), "at least 1"),
            _ => {}
        }
        match (self.needs_base(), &self.base) {
            (true, None) => {
                return wrong("the base", "missing".into(), "the model that the others were made from");
            }
            (false, Some(base)) => {
                return wrong("the base", base.display().to_string(), "none for this method");
            }
            _ => {}
        }
        let shares = self.weights.clone().unwrap_or_else(|| vec![1.0; count]);
        if shares.len() != count {
            let found = format!("{} for {count} models", shares.len());
            return wrong("the number of weights", found, "one for each model");
        }
        if let Some(share) = shares.iter().find(|share| !share.is_finite()) {
            return wrong("a weight", share.to_string(), "finite numbers");
        }
        if self.method == MergeMethod::Linear && shares.iter().sum::<f64>().abs() < 1e-8 {
            return wrong("the sum of the weights", "0".into(), "another number, by which it is divided");
        }
        Ok(shares)
    }
}

/// Writes a model whose weights are those of `models` combined, all GGUF files or what [`convert`](crate::convert) reads. `out`
/// is a GGUF file by its extension, and else a Hugging Face folder.
///
/// Everything but the weights is the first model's: its metadata, tokenizer and chat template, and, unless `options` have others,
/// the formats of its tensors. A tensor of each model is in memory at a time. Sums are computed in f64, differences from the base
/// in f32. [`ConvertedTensor::merge`](crate::ConvertedTensor) says how much changed from the first model.
///
/// ```no_run
/// use shohin_convert::{ConvertOptions, MergeMethod, ModelMerge, merge_models};
///
/// let how = ModelMerge::new(MergeMethod::Ties { density: 0.3 }).base("base.gguf").weights(vec![1.0, 0.5]);
/// let models = ["poet.gguf".into(), "sql.gguf".into()];
/// merge_models(&models, &how, "both.gguf", &ConvertOptions::new(), |_, _| ())?;
/// # Ok::<(), shohin_convert::Error>(())
/// ```
///
/// # Errors
/// As for [`convert`](crate::convert); if shares, density or `t` are out of range; if models differ in architecture, vocabulary,
/// names or shapes of tensors; if a matrix would be 1-bit or ternary, without [`ConvertOptions::requantize`].
pub fn merge_models(
    models: &[PathBuf],
    how: &ModelMerge,
    out: impl AsRef<Path>,
    options: &ConvertOptions,
    mut progress: impl FnMut(u64, u64),
) -> Result<Converted> {
    let out = out.as_ref();
    let shares = how.shares(models.len()).map_err(|error| error.at(out))?;
    let paths: Vec<&Path> = models.iter().chain(&how.base).map(PathBuf::as_path).collect();
    let opened = paths.iter().map(|path| Opened::open(path)).collect::<Result<Vec<_>>>()?;
    let ggufs = opened.iter().map(|model| model.gguf(options)).collect::<Result<Vec<_>>>()?;
    let exact = ConvertOptions::new().id42(options.id42);
    let mut plans = Vec::new();
    for (i, (model, gguf)) in opened.iter().zip(&ggufs).enumerate() {
        plans.push(model.plan(gguf.as_ref(), if i == 0 { options } else { &exact })?);
    }
    for (path, plan) in paths.iter().zip(&plans).skip(1) {
        same_model(&plans[0], plan).map_err(|error| error.at(path))?;
    }
    let first = plans.remove(0);
    let others =
        plans.iter().map(|plan| plan.tensors().map(|tensor| (tensor.name.as_str(), tensor)).collect());
    let combination =
        Combination { method: how.method, shares, others: others.collect(), requantize: options.requantize };
    let plan = first.edited(&combination)?;
    match to_gguf::is_file(out) {
        true => to_gguf::save_new(&plan, out, options, &mut progress),
        false => to_folder::of_plan(&plan, out, options, &mut progress),
    }
}

/// A model that is there.
pub(crate) enum Opened {
    Folder(Folder),
    File(PathBuf, MappedModel),
}

impl Opened {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        Ok(match is_folder(path) {
            true => Opened::Folder(Folder::open(path)?),
            false => Opened::File(path.into(), MappedModel::open(path)?),
        })
    }

    pub(crate) fn gguf(&self, options: &ConvertOptions) -> Result<Option<Gguf<'_>>> {
        match self {
            Opened::Folder(_) => Ok(None),
            Opened::File(_, file) => Ok(Some(file.gguf(&options.read_options())?)),
        }
    }

    /// `gguf` is what [`Opened::gguf`] returned.
    pub(crate) fn plan<'f>(&'f self, gguf: Option<&Gguf<'f>>, options: &ConvertOptions) -> Result<Plan<'f>> {
        match (self, gguf) {
            (Opened::Folder(folder), _) => Plan::of_folder(folder, options, &Deltas::default()),
            (Opened::File(path, _), Some(gguf)) => Plan::of_gguf(path, gguf, options, &Deltas::default()),
            (Opened::File(path, file), None) => {
                Plan::of_gguf(path, &file.gguf(&options.read_options())?, options, &Deltas::default())
            }
        }
    }
}

/// Refuses a model whose tensors or vocabulary are not those of `first`.
fn same_model(first: &Plan<'_>, other: &Plan<'_>) -> Result<(), ConvertError> {
    let differs = |key: &str, found: String, expected: &'static str| {
        Err(ConvertError::Value { key: key.into(), found, expected })
    };
    first.header(|first| {
        other.header(|other| {
            let (a, b) = (first.metadata(), other.metadata());
            let architecture = "general.architecture";
            if a.str(architecture)? != b.str(architecture)? {
                let found = format!("{:?}", b.str(architecture)?.unwrap_or_default());
                return differs(architecture, found, "that of the first model");
            }
            same_vocabulary(a, b)
        })
    })?;
    let shapes: BTreeMap<&str, Vec<usize>> =
        first.tensors().map(|tensor| (tensor.name.as_str(), tensor.shape())).collect();
    for tensor in other.tensors() {
        match shapes.get(tensor.name.as_str()) {
            None => return Err(ConvertError::tensor(&tensor.name, "is not in the first model")),
            Some(shape) if *shape != tensor.shape() => {
                let problem = format!("has the shape {:?}, but {shape:?} in the first model", tensor.shape());
                return Err(ConvertError::tensor(&tensor.name, problem));
            }
            Some(_) => {}
        }
    }
    let has = |name: &str| other.tensors().any(|tensor| tensor.name == name);
    match shapes.keys().find(|name| !has(name)) {
        Some(name) => Err(ConvertError::tensor(name, "is missing, but is in the first model")),
        None => Ok(()),
    }
}

/// Refuses another vocabulary, by the first token that differs.
fn same_vocabulary(a: &Metadata<'_>, b: &Metadata<'_>) -> Result<(), ConvertError> {
    const TOKENS: &str = "tokenizer.ggml.tokens";
    let (Some(a), Some(b)) = (a.strings(TOKENS)?, b.strings(TOKENS)?) else { return Ok(()) };
    let differs = |found, expected| Err(ConvertError::Value { key: TOKENS.into(), found, expected });
    if a.len() != b.len() {
        return differs(format!("of {} tokens", b.len()), "the vocabulary of the first model");
    }
    match a.iter().zip(b.iter()).position(|(a, b)| a != b) {
        Some(at) => differs(format!("another one at token {at}"), "the vocabulary of the first model"),
        None => Ok(()),
    }
}

/// Weights that are combined.
struct Combination<'p, 'f> {
    method: MergeMethod,
    /// Of each model.
    shares: Vec<f64>,
    /// The tensors of the models after the first, and then of the base.
    others: Vec<BTreeMap<&'p str, &'p Tensor<'f>>>,
    requantize: bool,
}

impl Edit for Combination<'_, '_> {
    fn changes(&self, _tensor: &Tensor<'_>) -> bool {
        true
    }

    fn check(&self, tensor: &Tensor<'_>, format: Format) -> Result<(), ConvertError> {
        if self.requantize || tensor.vector { Ok(()) } else { holds_deltas(&tensor.name, format) }
    }

    fn weights(&self, tensor: &Tensor<'_>) -> Result<Vec<f32>, ConvertError> {
        combine(self.method, &self.shares, &tensor.name, |model| match model.checked_sub(1) {
            None => tensor.numbers(),
            Some(other) => match self.others.get(other).and_then(|all| all.get(tensor.name.as_str())) {
                Some(tensor) => tensor.numbers(),
                None => Err(ConvertError::tensor(&tensor.name, "is missing in another model")),
            },
        })
    }
}

/// The tensor `name` of the models whose shares are given; `numbers(i)` reads that of model `i`, and that of the base after them.
fn combine(
    method: MergeMethod,
    shares: &[f64],
    name: &str,
    numbers: impl Fn(usize) -> Result<Vec<f32>, ConvertError>,
) -> Result<Vec<f32>, ConvertError> {
    match method {
        MergeMethod::Linear => {
            let mut sum = Vec::new();
            for (i, &share) in shares.iter().enumerate() {
                let numbers = numbers(i)?;
                sum.resize(numbers.len(), 0.0);
                add(&mut sum, share, &numbers);
            }
            let whole: f64 = shares.iter().sum();
            return Ok(sum.into_iter().map(|sum| (sum / whole) as f32).collect());
        }
        MergeMethod::Slerp { t } => return Ok(slerp(t, numbers(0)?, &numbers(1)?)),
        MergeMethod::Task | MergeMethod::Ties { .. } | MergeMethod::Dare { .. } => {}
    }
    let base = numbers(shares.len())?;
    let mut sum = vec![0.0f64; base.len()];
    let mut kept = Vec::new();
    for (i, &share) in shares.iter().enumerate() {
        let mut delta = numbers(i)?;
        delta.iter_mut().zip(&base).for_each(|(delta, base)| *delta -= base);
        match method {
            MergeMethod::Ties { density } => keep_largest(&mut delta, density),
            MergeMethod::Dare { density, seed } => keep_some(&mut delta, density, seed, name, i as u64),
            _ => {}
        }
        add(&mut sum, share, &delta);
        if method != MergeMethod::Task {
            kept.push(delta);
        }
    }
    if method != MergeMethod::Task {
        sum.iter_mut().enumerate().for_each(|(at, sum)| {
            *sum =
                consensus(*sum, kept.iter().zip(shares).map(|(delta, share)| (f64::from(delta[at]), *share)));
        });
    }
    Ok(base.iter().zip(sum).map(|(base, sum)| (f64::from(*base) + sum) as f32).collect())
}

/// `sum += share numbers`
fn add(sum: &mut [f64], share: f64, numbers: &[f32]) {
    sum.iter_mut().zip(numbers).for_each(|(sum, x)| *sum += share * f64::from(*x));
}

/// The mean, by shares, of the differences that have, with their shares, the sign of their weighted `sum`; 0 counts as positive.
fn consensus(sum: f64, differences: impl Iterator<Item = (f64, f64)>) -> f64 {
    let mut agreed = (0.0, 0.0);
    for (difference, share) in differences {
        let weighted = share * difference;
        if weighted != 0.0 && (weighted > 0.0) == (sum >= 0.0) {
            agreed.0 += weighted;
            agreed.1 += share;
        }
    }
    if agreed.1 == 0.0 { agreed.0 } else { agreed.0 / agreed.1 }
}

/// Sets all but the `int(density n)` largest numbers to 0, and at least one; of equal ones, the first are kept.
fn keep_largest(numbers: &mut [f32], density: f64) {
    let kept = ((density * numbers.len() as f64) as usize).max(1);
    let Some(removed) = numbers.len().checked_sub(kept).filter(|removed| *removed > 0) else { return };
    let mut order: Vec<u32> = (0..numbers.len() as u32).collect();
    // Bits of positive floats have their order.
    let place = |&at: &u32| (numbers[at as usize].abs().to_bits(), std::cmp::Reverse(at));
    order.select_nth_unstable_by_key(removed - 1, place);
    order[..removed].iter().for_each(|at| numbers[*at as usize] = 0.0);
}

/// Keeps each number with the probability `density`, divided by it; the others become 0.
fn keep_some(numbers: &mut [f32], density: f64, seed: u64, name: &str, model: u64) {
    let mut random = Pcg32::with_stream(seed ^ hash(name), model);
    for number in numbers {
        *number = if random.next_f64() < density { (f64::from(*number) / density) as f32 } else { 0.0 };
    }
}

/// FNV-1a.
pub(crate) fn hash(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

fn slerp(t: f64, mut a: Vec<f32>, b: &[f32]) -> Vec<f32> {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    // Tensors of zeros have no direction: as in mergekit, they are at a right angle to all.
    let norm = |of: &[f32]| Some(dot(of, of).sqrt()).filter(|norm| *norm > 1e-8).unwrap_or(1.0);
    let cosine = (dot(&a, b) / (norm(&a) * norm(b))).clamp(-1.0, 1.0);
    let (of_a, of_b) = if cosine.abs() > PARALLEL {
        (1.0 - t, t)
    } else {
        let angle = cosine.acos();
        (((1.0 - t) * angle).sin() / angle.sin(), (t * angle).sin() / angle.sin())
    };
    a.iter_mut().zip(b).for_each(|(a, b)| *a = (of_a * f64::from(*a) + of_b * f64::from(*b)) as f32);
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums of tests/oracle/merge.py, which calls mergekit.
    #[test]
    fn methods_are_those_of_mergekit() {
        let file: serde_json::Value =
            serde_json::from_str(include_str!("../../tests/fixtures/merge.json")).unwrap();
        let numbers = |value: &serde_json::Value| -> Vec<f32> {
            value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
        };
        let tensors: Vec<_> = ["a", "b", "base"].map(|name| numbers(&file[name])).into();
        let cases = file["cases"].as_array().unwrap();
        assert!(cases.len() > 10);
        for case in cases {
            let option = |name: &str| case[name].as_f64().unwrap_or(f64::NAN);
            let method = match case["method"].as_str().unwrap() {
                "linear" => MergeMethod::Linear,
                "slerp" => MergeMethod::Slerp { t: option("t") },
                "task" => MergeMethod::Task,
                "ties" => MergeMethod::Ties { density: option("density") },
                _ => MergeMethod::Dare { density: option("density"), seed: 1 },
            };
            let shares = numbers(&case["weights"]).into_iter().map(f64::from).collect::<Vec<_>>();
            let parallel = case["parallel"].as_bool() == Some(true);
            let read = |i: usize| {
                let scaled = tensors[0].iter().map(|x| 1.5 * x).collect();
                Ok(if parallel && i == 1 { scaled } else { tensors[i].clone() })
            };
            let found = combine(method, &shares, "t", read).unwrap();
            for (found, expected) in found.iter().zip(numbers(&case["expected"])) {
                assert!((found - expected).abs() <= 2e-6, "{case}: {found}, expected {expected}");
            }
        }
    }

    #[test]
    fn dare_keeps_a_share_of_the_differences_and_enlarges_them() {
        let mut numbers = vec![1.0f32; 10_000];
        keep_some(&mut numbers, 0.25, 7, "blk.0.attn_q.weight", 0);
        let kept = numbers.iter().filter(|x| **x != 0.0).count();
        assert!((2_350..2_650).contains(&kept), "{kept}");
        assert!(numbers.iter().all(|x| *x == 0.0 || *x == 4.0));
        let mut other = vec![1.0f32; 10_000];
        keep_some(&mut other, 0.25, 7, "blk.0.attn_q.weight", 1);
        assert_ne!(numbers, other);
    }
}
