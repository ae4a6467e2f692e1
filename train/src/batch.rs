//! What a step learns from.
#![forbid(unsafe_code)]

use shohin_core::{Error, Result};

use crate::gemm::Weight;

/// Rows of tokens, sequence after sequence, without padding.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'b> {
    /// The tokens, `(rows)`.
    pub tokens: &'b [u32],
    /// Tokens of each sequence. A token looks at those before it in its sequence alone.
    pub lengths: &'b [usize],
    /// What follows each token, `(rows)`.
    pub targets: &'b [u32],
    /// How much each row's loss counts, `(rows)`; empty for 1.
    pub weights: &'b [f32],
    /// A model with the same vocabulary to learn from.
    pub teacher: Option<Teacher<'b>>,
    /// What [`Steps::prefix`](crate::run::Steps::prefix) gave for it, if that is not to be computed again.
    pub prefix: Option<&'b [f32]>,
}

/// What a teacher says of a batch. Its logits are computed for a few rows at once, as the student's are.
#[derive(Clone, Copy, Debug)]
pub struct Teacher<'b> {
    /// Its final hidden states, `(rows, cols)`.
    pub hidden: &'b [f32],
    /// Its output matrix, `(vocabulary, cols)`.
    pub output: Weight<'b>,
}

impl Batch<'_> {
    /// How much the loss of row `row` counts.
    pub fn weight(&self, row: usize) -> f32 {
        if self.weights.is_empty() { 1.0 } else { self.weights[row] }
    }

    /// The sum of the rows' weights.
    pub fn total(&self) -> f64 {
        (0..self.tokens.len()).map(|row| f64::from(self.weight(row))).sum()
    }

    /// # Errors
    /// [`Error::Length`] if the parts do not fit each other or `rows`, [`Error::Limit`] for a token that is not one of `vocab`.
    pub(crate) fn check(&self, rows: usize, vocab: usize) -> Result<()> {
        let n = self.tokens.len();
        let length = |what, expected: usize, found: usize| {
            let (expected, found) = (expected as u64, found as u64);
            if expected == found { Ok(()) } else { Err(Error::Length { what, expected, found }) }
        };
        if n > rows {
            return Err(Error::Limit { what: "rows of a batch", found: n as u64, max: rows as u64 });
        }
        length("tokens of the sequences of a batch", n, self.lengths.iter().sum())?;
        length("targets of a batch", n, self.targets.len())?;
        if !self.weights.is_empty() {
            length("weights of a batch", n, self.weights.len())?;
        }
        if let Some(Teacher { hidden, output }) = self.teacher {
            length("vocabulary of the teacher", vocab, output.rows())?;
            length("hidden states of the teacher", n * output.cols(), hidden.len())?;
        }
        for token in self.tokens.iter().chain(self.targets) {
            if *token as usize >= vocab {
                return Err(Error::Limit {
                    what: "token of a batch",
                    found: u64::from(*token),
                    max: vocab as u64 - 1,
                });
            }
        }
        Ok(())
    }
}
