//! Weights of a file to write that are computed from those of the source.

use crate::error::ConvertError;
use crate::tensor::Tensor;
use shohin_core::Format;

/// What computes weights, a tensor at a time.
pub(crate) trait Edit: Sync {
    /// Whether it changes the weights of this tensor.
    fn changes(&self, tensor: &Tensor<'_>) -> bool;

    /// Refuses formats that the new weights would be lost in. It is called before anything is written.
    fn check(&self, tensor: &Tensor<'_>, format: Format) -> Result<(), ConvertError>;

    /// The new weights, `(rows, cols)` in the order that is written.
    fn weights(&self, tensor: &Tensor<'_>) -> Result<Vec<f32>, ConvertError>;
}
