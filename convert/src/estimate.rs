//! What a file would be, without writing it.

use crate::combine::Opened;
use crate::error::Result;
use crate::options::ConvertOptions;
use crate::plan::Plan;
use crate::prune::{self, PruneOptions};
use shohin_core::Format;
use std::path::Path;

/// A GGUF file that has not been written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Estimate {
    /// The tensors, in the order of the file.
    pub tensors: Vec<EstimatedTensor>,
    /// Bytes of the file.
    pub bytes: u64,
}

/// A tensor of an [`Estimate`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EstimatedTensor {
    /// Its name in the file.
    pub name: String,
    /// Rows and columns; before them the number of experts whose matrices it has.
    pub shape: Vec<usize>,
    /// Its format in the file.
    pub to: Format,
    /// Bytes in the file.
    pub bytes: u64,
}

/// The GGUF file that [`convert`](crate::convert) would write, or [`prune`](crate::prune()) with `how`. Every number is exact. Weights are
/// read only where `how` has to compare them.
///
/// # Errors
/// As for these.
pub fn estimate(
    source: impl AsRef<Path>,
    how: Option<&PruneOptions>,
    options: &ConvertOptions,
) -> Result<Estimate> {
    with_plan(source.as_ref(), how, options, |plan| {
        let tensor = |(tensor, format): &(crate::tensor::Tensor<'_>, Format)| EstimatedTensor {
            name: tensor.name.clone(),
            shape: tensor.shape(),
            to: *format,
            bytes: (tensor.rows * tensor.row_bytes(*format)) as u64,
        };
        Ok(Estimate { tensors: plan.formats().iter().map(tensor).collect(), bytes: plan.len() })
    })
}

/// What `then` returns for the file to be.
pub(crate) fn with_plan<T>(
    source: &Path,
    how: Option<&PruneOptions>,
    options: &ConvertOptions,
    then: impl FnOnce(&Plan<'_>) -> Result<T>,
) -> Result<T> {
    match how {
        Some(how) => Ok(prune::with_plan(source, how, options, then)?.0),
        None => {
            let opened = Opened::open(source)?;
            then(&opened.plan(opened.gguf(options)?.as_ref(), options)?)
        }
    }
}
