//! What was written.

use shohin_core::Format;

/// What was written.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Converted {
    /// The tensors, in the order of the file.
    pub tensors: Vec<ConvertedTensor>,
    /// Bytes of the file.
    pub bytes: u64,
}

/// A tensor that was written.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ConvertedTensor {
    /// Its name in the file.
    pub name: String,
    /// Rows and columns; before them the number of experts whose matrices it has.
    pub shape: Vec<usize>,
    /// Its format in the source; `None` for packed codes and floats of 8 bits.
    pub from: Option<Format>,
    /// Its format in the file.
    pub to: Format,
    /// Bytes in the file.
    pub bytes: u64,
    /// The root of the mean squared error, relative to that of the weights; 0 if no bit changed.
    pub error: f64,
    /// What adapters were merged into it with.
    pub merge: Option<Merge>,
}

/// How exactly adapters were merged into a tensor, or into several. Norms are roots of sums of squares.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Merge {
    /// The norm of the differences between what was stored and the sum of weights and deltas.
    pub error: f64,
    /// That of the sum.
    pub sum: f64,
    /// That of the deltas.
    pub delta: f64,
    /// That of what changed: the stored weights less those of the source.
    pub change: f64,
    /// The scalar product of the deltas and what changed.
    pub product: f64,
}

impl Merge {
    /// The error relative to the sum.
    pub fn relative_error(&self) -> f64 {
        ratio(self.error, self.sum)
    }

    /// The norm of what changed, relative to that of the deltas. Rounding changes weights, too: see [`Merge::kept`].
    pub fn change(&self) -> f64 {
        ratio(self.change, self.delta)
    }

    /// The part of the deltas that is in what changed: 1 if all is, 0 if all was rounded away.
    pub fn kept(&self) -> f64 {
        ratio(self.product, self.delta * self.delta)
    }

    /// Those of several tensors together.
    pub fn total<'m>(all: impl IntoIterator<Item = &'m Merge>) -> Merge {
        all.into_iter().fold(Merge::default(), |a, b| Merge {
            error: a.error.hypot(b.error),
            sum: a.sum.hypot(b.sum),
            delta: a.delta.hypot(b.delta),
            change: a.change.hypot(b.change),
            product: a.product + b.product,
        })
    }
}

fn ratio(part: f64, whole: f64) -> f64 {
    if part == 0.0 { 0.0 } else { part / whole }
}
