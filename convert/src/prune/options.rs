//! What is pruned, and what matters least.

use crate::combine::hash;
use crate::error::{ConvertError, Result};
use crate::tensor::Tensor;
use shohin_core::sample::Pcg32;
use std::collections::BTreeMap;

/// What says how much a weight `w` matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PruneMethod {
    /// `|w|`, and the sum of these.
    L1,
    /// `w^2`, and the sum of these: as L1 for single weights.
    L2,
    /// Nothing: a random choice.
    Random {
        /// Of the choice.
        seed: u64,
    },
    /// `|w g|` with the gradient `g` of the loss over a text, and for several weights the absolute value of their sum (Molchanov et al. 2017,
    /// arXiv:1611.06440).
    Taylor,
}

/// What is pruned together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Structure {
    /// Single weights become 0.
    Weights,
    /// Of `of` weights of a row, side by side, all but `keep` become 0.
    Pattern {
        /// How many stay.
        keep: usize,
        /// Of how many.
        of: usize,
    },
    /// Rows of matrices become 0.
    Rows,
    /// Columns of matrices become 0.
    Columns,
    /// Key and value heads leave the file, with their query heads: as many in each layer.
    Heads,
    /// Neurons of feed-forward blocks leave the file: as many in each layer.
    Neurons,
    /// Layers leave the file.
    Layers,
}

/// What is pruned.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PruneOptions {
    /// What says how much a weight matters.
    pub method: PruneMethod,
    /// What is pruned together.
    pub structure: Structure,
    /// The part that is pruned, of 0 to less than 1; not for [`Structure::Pattern`].
    pub sparsity: f64,
    /// Whether single weights are compared across all matrices, not within each.
    pub global: bool,
    /// The tensors whose weights become 0, as patterns in which `*` is any text; every matrix of the layers if there are none.
    pub tensors: Vec<String>,
    /// The gradients for [`PruneMethod::Taylor`], `(rows, cols)`, by the names of tensors.
    pub gradients: BTreeMap<String, Vec<f32>>,
}

impl PruneOptions {
    /// Prunes `sparsity` of the weights of every matrix of the layers.
    pub fn new(method: PruneMethod, structure: Structure, sparsity: f64) -> Self {
        let (tensors, gradients) = (Vec::new(), BTreeMap::new());
        PruneOptions { method, structure, sparsity, global: false, tensors, gradients }
    }

    /// Sets [`PruneOptions::global`](#structfield.global).
    pub fn global(mut self, global: bool) -> Self {
        self.global = global;
        self
    }

    /// Sets [`PruneOptions::tensors`](#structfield.tensors).
    pub fn tensors(mut self, tensors: Vec<String>) -> Self {
        self.tensors = tensors;
        self
    }

    /// Sets [`PruneOptions::gradients`](#structfield.gradients).
    pub fn gradients(mut self, gradients: BTreeMap<String, Vec<f32>>) -> Self {
        self.gradients = gradients;
        self
    }

    pub(super) fn removes(&self) -> bool {
        matches!(self.structure, Structure::Heads | Structure::Neurons | Structure::Layers)
    }

    pub(super) fn check(&self) -> Result<(), ConvertError> {
        let wrong = |key: &str, found: String, expected| {
            Err(ConvertError::Value { key: key.into(), found, expected })
        };
        if let Structure::Pattern { keep, of } = self.structure {
            if keep == 0 || keep >= of || of > 64 {
                return wrong(
                    "the pattern",
                    format!("{keep}:{of}"),
                    "N:M with N of 1 to less than M, and M of at most 64",
                );
            }
        } else if !(0.0..1.0).contains(&self.sparsity) {
            return wrong("the sparsity", self.sparsity.to_string(), "0 to less than 1");
        }
        if self.global && self.structure != Structure::Weights {
            return wrong("global pruning", "set".into(), "unset: it compares single weights");
        }
        if self.removes() && !self.tensors.is_empty() {
            return wrong(
                "the pattern of tensors",
                "set".into(),
                "unset: heads, neurons and layers have several",
            );
        }
        Ok(())
    }

    /// Whether the weights of a tensor may become 0.
    pub(super) fn is_pruned(&self, tensor: &Tensor<'_>) -> bool {
        match self.tensors.is_empty() {
            true => tensor.name.starts_with("blk.") && !tensor.vector,
            false => self.tensors.iter().any(|pattern| matches(pattern, &tensor.name)),
        }
    }

    /// How much each weight of `tensor` matters, `(rows, cols)`: `|w|`, `|w g|`, or a random number.
    pub(super) fn scores(
        &self,
        tensor: &Tensor<'_>,
        mut weights: Vec<f32>,
    ) -> Result<Vec<f32>, ConvertError> {
        match self.method {
            PruneMethod::L1 | PruneMethod::L2 => weights.iter_mut().for_each(|w| *w = w.abs()),
            PruneMethod::Random { seed } => {
                let mut random = Pcg32::new(seed ^ hash(&tensor.name));
                weights.iter_mut().for_each(|w| *w = random.next_u32() as f32);
            }
            PruneMethod::Taylor => {
                let gradients = self.gradients.get(&tensor.name).filter(|g| g.len() == weights.len());
                let gradients = gradients
                    .ok_or_else(|| ConvertError::tensor(&tensor.name, "has no gradient of its size"))?;
                weights.iter_mut().zip(gradients).for_each(|(w, g)| *w = (*w * g).abs());
            }
        }
        Ok(weights)
    }

    /// How much several weights matter together.
    pub(super) fn score_of(&self, weights: impl Iterator<Item = (f32, f32)>, random: &mut Pcg32) -> f64 {
        let each = weights.map(|(w, g)| (f64::from(w), f64::from(g)));
        match self.method {
            PruneMethod::L1 => each.map(|(w, _)| w.abs()).sum(),
            PruneMethod::L2 => each.map(|(w, _)| w * w).sum(),
            PruneMethod::Random { .. } => random.next_f64(),
            PruneMethod::Taylor => each.map(|(w, g)| w * g).sum::<f64>().abs(),
        }
    }

    /// The gradient of a tensor, or zeros where the method needs none.
    pub(super) fn gradient(&self, tensor: &Tensor<'_>) -> Result<Vec<f32>, ConvertError> {
        if self.method != PruneMethod::Taylor {
            return Ok(vec![0.0; tensor.rows * tensor.cols]);
        }
        let found = self.gradients.get(&tensor.name).filter(|g| g.len() == tensor.rows * tensor.cols);
        found.cloned().ok_or_else(|| ConvertError::tensor(&tensor.name, "has no gradient of its size"))
    }
}

/// Whether `name`, or `name` without `.weight`, matches a pattern.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    let short = name.strip_suffix(".weight").unwrap_or(name);
    [name, short].into_iter().any(|name| wildmatch::WildMatch::new(pattern).matches(name))
}

/// How many of `len` are pruned.
pub(super) fn count(sparsity: f64, len: usize) -> usize {
    (sparsity * len as f64).round_ties_even() as usize
}

/// The `count` smallest of `scores`, of equal ones the first.
pub(super) fn smallest<S: PartialOrd>(scores: &[S], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    let by_score = |a: &usize, b: &usize| {
        scores[*a].partial_cmp(&scores[*b]).unwrap_or(std::cmp::Ordering::Equal).then(a.cmp(b))
    };
    if count > 0 && count < order.len() {
        order.select_nth_unstable_by(count - 1, by_score);
    }
    order.truncate(count);
    order
}

impl PruneOptions {
    /// Random numbers for what has this name.
    pub(super) fn random(&self, name: &str) -> Pcg32 {
        match self.method {
            PruneMethod::Random { seed } => Pcg32::new(seed ^ hash(name)),
            _ => Pcg32::new(0),
        }
    }
}
