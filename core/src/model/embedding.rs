//! A text as one vector: its pooled final hidden states.
#![forbid(unsafe_code)]

use crate::error::{Error, Name, Result};
use crate::gguf::Metadata;
use alloc::vec::Vec;

/// How the hidden states of a text are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Pooling {
    /// Their mean.
    #[default]
    Mean,
    /// The state of the last token, the only one that has seen the whole text.
    Last,
}

impl Pooling {
    /// The pooling that a file asks for (`<architecture>.pooling_type`), or the mean if it asks for none.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for that of another kind of model, with the state of the first token (`cls`) or a score
    /// (`rank`).
    pub fn from_metadata(metadata: &Metadata<'_>) -> Result<Pooling> {
        let architecture = metadata.str("general.architecture")?.unwrap_or_default();
        let key = [architecture, ".pooling_type"].concat();
        let found = match metadata.u32(&key)? {
            None | Some(0 | 1) => return Ok(Pooling::Mean),
            Some(3) => return Ok(Pooling::Last),
            Some(2) => "cls",
            Some(4) => "rank",
            Some(_) => "a number that is not known",
        };
        Err(error!(Unsupported { key: Name::new(&key), found: Name::new(found), expected: "mean or last" }))
    }
}

/// An embedding being computed: tokens may be added in any number of steps.
#[derive(Clone, Debug)]
pub struct Embedding {
    pooling: Pooling,
    /// Sum or last state, `(hidden)`.
    state: Vec<f64>,
    tokens: usize,
}

impl Embedding {
    /// An embedding for a model of width `hidden`.
    pub fn new(hidden: usize, pooling: Pooling) -> Self {
        Embedding { pooling, state: alloc::vec![0.0; hidden], tokens: 0 }
    }

    /// The context of a sequence for texts of at most `tokens`, if the model has `most`: rounded up to a power of two, as a
    /// GPU compiles its shaders for a context.
    pub fn context(tokens: usize, most: usize) -> usize {
        const LEAST: usize = 64;
        tokens.max(LEAST).checked_next_power_of_two().unwrap_or(most).min(most)
    }

    /// Takes the final hidden state `(hidden)` of the next token, from
    /// [`Readout::Hidden`](crate::device::Readout::Hidden).
    pub fn push(&mut self, hidden: &[f32]) {
        for (state, &x) in self.state.iter_mut().zip(hidden) {
            *state = f64::from(x) + if self.pooling == Pooling::Mean { *state } else { 0.0 };
        }
        self.tokens += 1;
    }

    /// The embedding `(hidden)`; with `normalize` scaled to length 1, unless it is all zeros.
    pub fn finish(&self, normalize: bool) -> Vec<f32> {
        let n = if self.pooling == Pooling::Mean { self.tokens.max(1) as f64 } else { 1.0 };
        let square: f64 = self.state.iter().map(|x| x * x).sum();
        let divisor = if normalize && square > 0.0 { libm::sqrt(square) } else { n };
        self.state.iter().map(|x| (x / divisor) as f32).collect()
    }
}
