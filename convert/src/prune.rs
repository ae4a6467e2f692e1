//! Models with fewer weights: zeros in place of some, or without whole parts.

mod mask;
mod options;
mod parts;

pub use options::{PruneMethod, PruneOptions, Structure};

use crate::combine::Opened;
use crate::error::{ConvertError, Result};
use crate::options::ConvertOptions;
use crate::plan::Plan;
use crate::report::Converted;
use crate::{to_folder, to_gguf};
use mask::Mask;
use options::matches;
use std::collections::BTreeMap;
use std::path::Path;

/// What was pruned.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Pruned {
    /// The file.
    pub converted: Converted,
    /// For each tensor whose weights became 0, how many of how many are.
    pub zeros: BTreeMap<String, [u64; 2]>,
}

/// Writes `source`, a GGUF file or what [`convert`](crate::convert) reads, with fewer weights. `out` is a GGUF file by its
/// extension, and else a Hugging Face folder. Formats stay, unless `options` have others.
///
/// How many are pruned, of each matrix by itself, is `round(sparsity n)`, halves to even numbers, as in PyTorch's `torch.nn.utils.prune`;
/// those that matter least are.
///
/// ```no_run
/// use shohin_convert::{ConvertOptions, PruneMethod, PruneOptions, Structure, prune};
///
/// let how = PruneOptions::new(PruneMethod::L1, Structure::Pattern { keep: 2, of: 4 }, 0.0);
/// prune("qwen3-f16.gguf", "qwen3-2-4.gguf", &how, &ConvertOptions::new(), |_, _| ())?;
/// # Ok::<(), shohin_convert::Error>(())
/// ```
///
/// # Errors
/// As for [`convert`](crate::convert); for a sparsity or pattern out of range, or one that matches no tensor; if a matrix would be
/// 1-bit, which has no 0; if the architecture has no such parts.
pub fn prune(
    source: impl AsRef<Path>,
    out: impl AsRef<Path>,
    how: &PruneOptions,
    options: &ConvertOptions,
    mut progress: impl FnMut(u64, u64),
) -> Result<Pruned> {
    let (source, out) = (source.as_ref(), out.as_ref());
    let (converted, zeros) = with_plan(source, how, options, |plan| match to_gguf::is_file(out) {
        true => to_gguf::save_new(plan, out, options, &mut progress),
        false => to_folder::of_plan(plan, out, options, &mut progress),
    })?;
    Ok(Pruned { converted, zeros })
}

/// What `then` returns for the file that `how` makes of `source`, and for each tensor whose weights became 0 while it was written, how many
/// of how many are.
pub(crate) fn with_plan<T>(
    source: &Path,
    how: &PruneOptions,
    options: &ConvertOptions,
    then: impl FnOnce(&Plan<'_>) -> Result<T>,
) -> Result<(T, BTreeMap<String, [u64; 2]>)> {
    how.check().map_err(|error| error.at(source))?;
    let opened = Opened::open(source)?;
    let gguf = opened.gguf(options)?;
    if how.removes() {
        let plan =
            opened.plan(gguf.as_ref(), &ConvertOptions::new().id42(options.id42).id36(options.id36))?;
        let (tensors, values) = parts::removed(&plan, how).map_err(|error| error.at(source))?;
        return Ok((then(&plan.reshaped(tensors, &values, options)?)?, BTreeMap::new()));
    }
    let plan = opened.plan(gguf.as_ref(), options)?;
    let unmatched = |pattern: &&String| !plan.tensors().any(|tensor| matches(pattern, &tensor.name));
    if let Some(pattern) = how.tensors.iter().find(unmatched) {
        return Err(ConvertError::Unmatched { pattern: pattern.clone() }.at(source));
    }
    let mask = Mask::new(&plan, how).map_err(|error| error.at(source))?;
    let done = then(&plan.edited(&mask)?)?;
    Ok((done, mask.zeros()))
}
