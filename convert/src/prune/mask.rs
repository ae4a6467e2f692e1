//! Weights that become 0.

use super::options::{PruneOptions, Structure, count, smallest};
use crate::edit::Edit;
use crate::error::{ConvertError, Result};
use crate::plan::Plan;
use crate::tensor::Tensor;
use shohin_core::Format;
use shohin_core::quant::WeightClass;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The largest score that is pruned when all matrices are compared, and how many weights of this score are.
fn threshold(plan: &Plan<'_>, how: &PruneOptions) -> Result<(f32, usize), ConvertError> {
    let mut scores = Vec::new();
    for tensor in plan.tensors().filter(|tensor| how.is_pruned(tensor)) {
        scores.extend(how.scores(tensor, tensor.numbers()?)?);
    }
    let count = count(how.sparsity, scores.len());
    if count == 0 {
        return Ok((-1.0, 0));
    }
    let (_, most, _) = scores.select_nth_unstable_by(count - 1, f32::total_cmp);
    let most = *most;
    let below = scores.iter().filter(|score| **score < most).count();
    Ok((most, count - below))
}

/// Weights that become 0.
pub(super) struct Mask<'h> {
    how: &'h PruneOptions,
    /// The largest score that is pruned if all matrices are compared.
    threshold: Option<f32>,
    /// How many weights of that score are still to be pruned.
    equal: Mutex<usize>,
    zeros: Mutex<BTreeMap<String, [u64; 2]>>,
}

impl Edit for Mask<'_> {
    fn changes(&self, tensor: &Tensor<'_>) -> bool {
        self.how.is_pruned(tensor)
    }

    fn check(&self, tensor: &Tensor<'_>, format: Format) -> Result<(), ConvertError> {
        if format.class() == WeightClass::OneBit {
            let problem = format!("would be {}, which has no 0, expected another format", format.name());
            return Err(ConvertError::tensor(&tensor.name, problem));
        }
        if let Structure::Pattern { of, .. } = self.how.structure
            && !tensor.cols.is_multiple_of(of)
        {
            let problem = format!("has rows of {} weights, expected a multiple of {of}", tensor.cols);
            return Err(ConvertError::tensor(&tensor.name, problem));
        }
        Ok(())
    }

    fn weights(&self, tensor: &Tensor<'_>) -> Result<Vec<f32>, ConvertError> {
        let mut weights = tensor.numbers()?;
        self.prune(tensor, &mut weights)?;
        let zeros = weights.iter().filter(|w| **w == 0.0).count() as u64;
        let mut all = self.zeros.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(tensor.name.clone(), [zeros, weights.len() as u64]);
        Ok(weights)
    }
}

impl<'h> Mask<'h> {
    /// What `how` prunes of `plan`.
    pub(super) fn new(plan: &Plan<'_>, how: &'h PruneOptions) -> Result<Mask<'h>, ConvertError> {
        let threshold = if how.global { Some(threshold(plan, how)?) } else { None };
        let (threshold, equal) = (threshold.map(|(most, _)| most), threshold.map_or(0, |(_, equal)| equal));
        Ok(Mask { how, threshold, equal: equal.into(), zeros: Mutex::default() })
    }

    /// For each tensor that was written, how many of how many weights are 0.
    pub(super) fn zeros(self) -> BTreeMap<String, [u64; 2]> {
        self.zeros.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn prune(&self, tensor: &Tensor<'_>, weights: &mut [f32]) -> Result<(), ConvertError> {
        let (how, cols) = (self.how, tensor.cols);
        match how.structure {
            Structure::Weights => {
                let scores = how.scores(tensor, weights.to_vec())?;
                match self.threshold {
                    None => {
                        for at in smallest(&scores, count(how.sparsity, scores.len())) {
                            weights[at] = 0.0;
                        }
                    }
                    Some(most) => {
                        let mut equal = self.equal.lock().unwrap_or_else(PoisonError::into_inner);
                        for (w, score) in weights.iter_mut().zip(scores) {
                            if score < most || (score == most && *equal > 0) {
                                *equal -= usize::from(score == most);
                                *w = 0.0;
                            }
                        }
                    }
                }
            }
            Structure::Pattern { keep, of } => {
                let scores = how.scores(tensor, weights.to_vec())?;
                for (weights, scores) in weights.chunks_mut(of).zip(scores.chunks(of)) {
                    for at in smallest(scores, of - keep) {
                        weights[at] = 0.0;
                    }
                }
            }
            Structure::Rows | Structure::Columns => {
                let gradient = how.gradient(tensor)?;
                let pairs = |i: usize| (weights[i], gradient[i]);
                let by_rows = how.structure == Structure::Rows;
                let mut random = how.random(&tensor.name);
                let mut score = |at: usize| match by_rows {
                    true => how.score_of((at * cols..(at + 1) * cols).map(pairs), &mut random),
                    false => how.score_of((0..tensor.rows).map(|row| pairs(row * cols + at)), &mut random),
                };
                let len = if by_rows { tensor.rows } else { cols };
                let scores: Vec<f64> = (0..len).map(&mut score).collect();
                for at in smallest(&scores, count(how.sparsity, len)) {
                    match by_rows {
                        true => weights[at * cols..][..cols].fill(0.0),
                        false => weights.iter_mut().skip(at).step_by(cols).for_each(|w| *w = 0.0),
                    }
                }
            }
            Structure::Heads | Structure::Neurons | Structure::Layers => {}
        }
        Ok(())
    }
}
