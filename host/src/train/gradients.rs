//! The gradients of a model over a text.

use super::{Base, Corpus, Optimizer, Order, TrainOptions, Training};
use crate::error::Result;
use shohin_core::model::program::TensorRole;
use std::collections::BTreeMap;

/// The gradients of the mean cross entropy of `corpus` by the weights of all matrices of `base`, `(rows, cols)`, under the names of
/// their tensors; of at most `steps` steps of one row of `row_tokens` tokens, in the order of the text.
///
/// # Errors
/// As [`Training::step`].
pub fn gradients(
    base: &Base,
    corpus: &Corpus,
    row_tokens: usize,
    steps: u64,
) -> Result<BTreeMap<String, Vec<f32>>> {
    let mut options = TrainOptions::new();
    (options.rows, options.row_tokens, options.order) = (1, row_tokens, Order::Sequential);
    options.optimizer = Optimizer::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    // So small that no weight changes.
    options.learning_rate = f64::MIN_POSITIVE;
    options.clip_norm = None;
    let steps = steps.min(corpus.steps(&options, 1.0)?).max(1);
    options.steps = steps;
    let mut training = Training::new(base, options)?;
    let program = base.program();
    let mut sums: BTreeMap<String, Vec<f32>> = BTreeMap::new();
    for _ in 0..steps {
        training.step(corpus)?;
        for id in program.tensor_ids().filter(|id| program.tensor(*id).role == TensorRole::Matrix) {
            let Some(gradient) = training.trainer.gradient(id) else { continue };
            let sum =
                sums.entry(program.tensor(id).name.clone()).or_insert_with(|| vec![0.0; gradient.len()]);
            sum.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g / steps as f32);
        }
    }
    Ok(sums)
}
