//! The options of a training.

use crate::error::{Error, Result};
use crate::model::Model;
use shohin_core::attention::AttentionPattern;
use shohin_core::model::lora::{A, B};
use shohin_core::model::program::{Program, TensorId, TensorRole};
use shohin_train::data::{BatchSize, Order};
use shohin_train::loss::Loss;
use shohin_train::optimizer::Optimizer;
use shohin_train::plan::Checkpoints;
use shohin_train::quantize::Fake;
use shohin_train::schedule::Schedule;
use shohin_train::trainer::Recipe;
use std::fmt::Write;

/// Which weights are trained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Method {
    /// All of them.
    #[default]
    Full,
    /// Those of the norms, without biases.
    Norms,
    /// The factors of an adapter (LoRA) that the model was loaded with, see [`new_adapter`](super::new_adapter). The model's own
    /// weights stay packed.
    Lora,
}

/// What matrices are while they are trained, and in the file that comes out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WeightKind {
    /// Floats.
    #[default]
    F32,
    /// -1, 0 or +1 times a scale for each 128 weights. What is packed is what was multiplied.
    Ternary,
    /// -1 or +1 times a scale for each 128 weights.
    OneBit,
}

impl WeightKind {
    pub(super) fn fake(self) -> Option<Fake> {
        match self {
            WeightKind::F32 => None,
            WeightKind::Ternary => Some(Fake::Ternary),
            WeightKind::OneBit => Some(Fake::OneBit),
        }
    }

    fn name(self) -> &'static str {
        match self {
            WeightKind::F32 => "f32",
            WeightKind::Ternary => "ternary",
            WeightKind::OneBit => "1bit",
        }
    }
}

/// How a model is trained.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainOptions {
    /// Which weights are trained.
    pub method: Method,
    /// What matrices are multiplied as.
    pub weights: WeightKind,
    /// Rows of a step.
    pub rows: usize,
    /// Tokens of a row.
    pub row_tokens: usize,
    /// Steps of the whole training.
    pub steps: u64,
    /// Micro-batches that the rows of a step are divided into: memory is that of one, and ranks share them.
    pub accumulate: usize,
    /// The order of rows.
    pub order: Order,
    /// What the order follows from.
    pub seed: u64,
    /// What turns gradients into changes.
    pub optimizer: Optimizer,
    /// The highest learning rate.
    pub learning_rate: f64,
    /// How it changes.
    pub schedule: Schedule,
    /// The largest norm of all gradients together.
    pub clip_norm: Option<f64>,
    /// The largest magnitude of a gradient.
    pub clip_value: Option<f32>,
    /// What is minimized.
    pub loss: Loss,
    /// Probability that an element of the input of an adapter is 0 in a step, as in PEFT: the others are divided by what is left
    /// of 1. For [`Method::Lora`]; losses of [`Training::evaluate`](super::Training::evaluate) have none.
    pub dropout: f64,
    /// Which activations are kept.
    pub checkpoints: Checkpoints,
    /// The earlier tokens that a token looks at.
    pub attention: AttentionPattern,
}

impl Default for TrainOptions {
    fn default() -> Self {
        TrainOptions {
            method: Method::Full,
            weights: WeightKind::F32,
            rows: 8,
            row_tokens: 256,
            steps: 100,
            accumulate: 1,
            order: Order::Shuffled,
            seed: 0,
            optimizer: Optimizer::default(),
            learning_rate: 1e-3,
            schedule: Schedule::default(),
            clip_norm: Some(1.0),
            clip_value: None,
            loss: Loss::default(),
            dropout: 0.0,
            checkpoints: Checkpoints::None,
            attention: AttentionPattern::Full,
        }
    }
}

impl TrainOptions {
    /// Eight rows of 256 tokens, AdamW, a constant learning rate of 0.001 and gradients clipped to a norm of 1.
    pub fn new() -> Self {
        Self::default()
    }

    pub(super) fn recipe(&self) -> Recipe {
        Recipe {
            size: BatchSize { rows: self.rows, row_tokens: self.row_tokens },
            accumulate: self.accumulate,
            order: self.order,
            seed: self.seed,
            steps: self.steps,
            optimizer: self.optimizer,
            learning_rate: self.learning_rate,
            schedule: self.schedule,
            clip_norm: self.clip_norm,
            clip_value: self.clip_value,
            loss: self.loss,
            fake: self.weights.fake(),
            dropout: self.dropout,
            checkpoints: self.checkpoints,
            pattern: self.attention,
        }
    }

    /// Whether a tensor is trained.
    pub(super) fn trains(&self, program: &Program, id: TensorId) -> bool {
        let spec = program.tensor(id);
        match (spec.role, self.method) {
            (_, Method::Lora) => [A, B].iter().any(|end| spec.name.ends_with(end)),
            (TensorRole::Matrix, method) => method == Method::Full,
            // Factors of the rotary frequencies are no weights.
            (TensorRole::Vector, method) => {
                spec.name.contains("norm") || method == Method::Full && spec.name.ends_with(".bias")
            }
        }
    }

    pub(super) fn check(&self, model: &Model) -> Result<()> {
        let refused = |name, found: String, expected: String| Err(Error::Option { name, found, expected });
        let longest = model.config().max_context_length;
        let numbers = [("rows", self.rows), ("row-tokens", self.row_tokens), ("accumulate", self.accumulate)];
        if let Some((name, found)) = numbers.into_iter().find(|(_, n)| !(1..1 << 24).contains(n)) {
            return refused(name, found.to_string(), "1 to 16777215".into());
        }
        if self.row_tokens > longest {
            let expected = format!("at most {longest}, the model's longest context");
            return refused("row-tokens", self.row_tokens.to_string(), expected);
        }
        if !self.rows.is_multiple_of(self.accumulate) {
            let expected = format!("a divisor of the {} rows", self.rows);
            return refused("accumulate", self.accumulate.to_string(), expected);
        }
        if !(self.learning_rate > 0.0 && self.learning_rate.is_finite()) {
            return refused("lr", self.learning_rate.to_string(), "a number over 0".into());
        }
        if self.clip_norm.is_some_and(|norm| norm.is_nan() || norm <= 0.0) {
            return refused("clip", format!("{:?}", self.clip_norm), "a number over 0".into());
        }
        match (self.method, model.adapters().count()) {
            (Method::Lora, 1) | (Method::Full | Method::Norms, 0) => {}
            (Method::Lora, found) => {
                return refused("lora", found.to_string(), "a model with one adapter to train".into());
            }
            (_, found) => return refused("lora", found.to_string(), "a model without adapters".into()),
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return refused("dropout", self.dropout.to_string(), "a number from 0, less than 1".into());
        }
        if self.dropout != 0.0 && self.method != Method::Lora {
            return refused(
                "dropout",
                self.dropout.to_string(),
                "0: only inputs of adapters are dropped".into(),
            );
        }
        let adam = matches!(self.optimizer, Optimizer::Adam { .. } | Optimizer::AdamW { .. });
        if self.method == Method::Lora && !adam {
            return refused("optimizer", self.optimizer.to_string(), "adam or adamw for an adapter".into());
        }
        if self.weights != WeightKind::F32 && self.method != Method::Full {
            let expected = "f32: the matrices stay as they are with this method".into();
            return refused("weights", self.weights.name().into(), expected);
        }
        Ok(())
    }

    /// What has to be equal for a training to go on with the same bits, one a line.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let method = match self.method {
            Method::Full => "full",
            Method::Norms => "norms",
            Method::Lora => "lora",
        };
        let lines: [(&str, String); 15] = [
            ("method", method.into()),
            ("weights", self.weights.name().into()),
            ("rows", self.rows.to_string()),
            ("row-tokens", self.row_tokens.to_string()),
            ("accumulate", self.accumulate.to_string()),
            ("order", self.order.to_string()),
            ("seed", self.seed.to_string()),
            ("optimizer", self.optimizer.to_string()),
            ("lr", self.learning_rate.to_string()),
            ("schedule", self.schedule.to_string()),
            ("clip", format!("{:?}", self.clip_norm)),
            ("clip-value", format!("{:?}", self.clip_value)),
            ("loss", self.loss.to_string()),
            ("attention", self.attention.to_string()),
            ("dropout", self.dropout.to_string()),
        ];
        for (name, value) in lines {
            // It cannot fail.
            let _ = writeln!(text, "{name} {value}");
        }
        text
    }
}
