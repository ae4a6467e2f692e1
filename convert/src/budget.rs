//! Formats of single tensors for a file of a given size: those whose errors are smallest for their bytes.

use crate::error::{ConvertError, Error, Result};
use crate::estimate::with_plan;
use crate::file_type::{FileType, Layers};
use crate::names::is_router;
use crate::options::ConvertOptions;
use crate::plan::Plan;
use crate::prune::PruneOptions;
use crate::rules::{TensorRule, choose};
use crate::tensor::Tensor;
use shohin_core::Format;
use std::path::Path;

/// Where tensors begin in a file: at multiples of this.
const ALIGNMENT: u64 = 32;
/// Bytes of the entry `general.file_type`, with the alignment that it may move.
const FILE_TYPE: u64 = 64;

/// Errors of a model's matrices in several formats.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FormatTrials {
    /// The matrices whose formats can be chosen, in the order of the file.
    pub tensors: Vec<FormatTrial>,
    /// Bytes of everything else.
    rest: u64,
}

/// A matrix in several formats.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FormatTrial {
    /// Its name in GGUF.
    pub name: String,
    /// The smallest first. Each next one reduces the error, for every byte that it adds, by less than the one before; others are left out.
    pub formats: Vec<TriedFormat>,
}

/// A format of a matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct TriedFormat {
    /// The format.
    pub format: Format,
    /// Bytes of the matrix.
    pub bytes: u64,
    /// The mean squared error, relative to the mean square of the weights.
    pub error: f64,
}

/// A format for each matrix.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FormatChoice {
    /// One for each matrix, for [`ConvertOptions::rules`].
    pub rules: Vec<TensorRule>,
    /// Upper bound of the bytes of the file, less than 100 over the exact number of [`estimate`](crate::estimate()).
    pub bytes: u64,
    /// The sum of the matrices' [errors](TriedFormat::error).
    pub error: f64,
}

/// The bytes of the smallest and the largest file whose matrices have `formats`, as [`try_formats`] chooses them. `how` says what is pruned
/// before.
///
/// # Errors
/// As for [`estimate`](crate::estimate()); if a matrix can have none of the formats.
pub fn size_range(
    source: impl AsRef<Path>,
    how: Option<&PruneOptions>,
    formats: &[Format],
    options: &ConvertOptions,
) -> Result<[u64; 2]> {
    with_plan(source.as_ref(), how, options, |plan| {
        let free = Free::of(plan, formats, options)?;
        let [mut least, mut most] = [free.rest; 2];
        for (tensor, formats) in &free.tensors {
            let sizes = formats.iter().map(|format| padded(bytes(tensor, *format)));
            least += sizes.clone().min().unwrap_or(0);
            most += sizes.max().unwrap_or(0);
        }
        Ok([least, most])
    })
}

/// Measures the error of every matrix of `source`, a GGUF file or what [`convert`](crate::convert) reads, in each of `formats`, and in what
/// stands for one where its rows are not whole blocks. Matrices that a rule of `options` is for keep the format of that rule. A few
/// rows are in memory at a time. `progress` is called with the weights packed so far and all of them.
///
/// ```no_run
/// use shohin_convert::{ConvertOptions, convert, try_formats};
/// use shohin_core::Format;
///
/// let formats = [Format::Q3K, Format::Q4K, Format::Q6K, Format::Q8_0];
/// let trials = try_formats("qwen3-f16.gguf", &formats, &ConvertOptions::new(), |_, _| ())?;
/// if let Some(choice) = trials.choose(400_000_000) {
///     convert("qwen3-f16.gguf", "qwen3-400mb.gguf", &ConvertOptions::new().rules(choice.rules), |_, _| ())?;
/// }
/// # Ok::<(), shohin_convert::Error>(())
/// ```
///
/// # Errors
/// As for [`convert`](crate::convert); if a matrix can have none of the formats.
pub fn try_formats(
    source: impl AsRef<Path>,
    formats: &[Format],
    options: &ConvertOptions,
    mut progress: impl FnMut(u64, u64),
) -> Result<FormatTrials> {
    with_plan(source.as_ref(), None, options, |plan| {
        let free = Free::of(plan, formats, options)?;
        let weights = |tensor: &Tensor<'_>| (tensor.rows * tensor.cols) as u64;
        let whole = free.tensors.iter().map(|(tensor, formats)| weights(tensor) * formats.len() as u64).sum();
        let mut done = 0;
        let mut tensors = Vec::new();
        for (tensor, formats) in &free.tensors {
            let (mut tried, mut last) = (Vec::new(), None);
            for &format in formats {
                match error(tensor, format) {
                    Ok(error) => tried.push(TriedFormat { format, bytes: bytes(tensor, format), error }),
                    // As weights that are too large for F16: another format may have them.
                    Err(error) => last = Some(error),
                }
                done += weights(tensor);
                progress(done, whole);
            }
            if let Some(error) = last.filter(|_| tried.is_empty()) {
                return Err(error.at(plan.source()));
            }
            tensors.push(FormatTrial { name: tensor.name.clone(), formats: hull(tried) });
        }
        Ok(FormatTrials { tensors, rest: free.rest })
    })
}

/// The matrices whose formats can be chosen, with the formats.
struct Free<'p, 'f> {
    tensors: Vec<(&'p Tensor<'f>, Vec<Format>)>,
    /// Bytes of everything else.
    rest: u64,
}

impl<'p, 'f> Free<'p, 'f> {
    fn of(plan: &'p Plan<'f>, formats: &[Format], options: &ConvertOptions) -> Result<Self, Error> {
        let model = Layers::of(plan.tensors().map(|tensor| tensor.name.as_str()));
        let mut free = Free { tensors: Vec::new(), rest: plan.len() + FILE_TYPE };
        for (tensor, format) in plan.formats() {
            let is_fixed = options.rules.iter().any(|rule| rule.matches(&tensor.name));
            if tensor.vector || is_fixed || is_router(&tensor.name) {
                continue;
            }
            let chosen = |format: &Format| choose(tensor, Some(FileType::All(*format)), &[], &model);
            let mut fitting: Vec<Format> = Vec::new();
            for (format, _) in formats.iter().filter_map(|format| chosen(format).ok()) {
                if !fitting.contains(&format) {
                    fitting.push(format);
                }
            }
            if fitting.is_empty() {
                let names: Vec<_> = formats.iter().map(|format| format.name()).collect();
                let problem =
                    format!("has rows of {} weights, which fit none of: {}", tensor.cols, names.join(", "));
                return Err(ConvertError::tensor(&tensor.name, problem).at(plan.source()));
            }
            free.rest = free.rest.saturating_sub(padded(bytes(tensor, *format)));
            free.tensors.push((tensor, fitting));
        }
        Ok(free)
    }
}

fn bytes(tensor: &Tensor<'_>, format: Format) -> u64 {
    (tensor.rows * tensor.row_bytes(format)) as u64
}

fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGNMENT)
}

/// The mean squared error of `tensor` in `format`, relative to the mean square.
fn error(tensor: &Tensor<'_>, format: Format) -> Result<f64, ConvertError> {
    let row_bytes = tensor.row_bytes(format);
    let (mut error, mut weights) = (0.0, 0.0);
    let mut piece = Vec::new();
    let most = tensor.share();
    for first in (0..tensor.rows).step_by(most) {
        piece.resize(most.min(tensor.rows - first) * row_bytes, 0);
        let sums = tensor.write(first, format, &mut piece)?;
        error += sums.error;
        weights += sums.weights;
    }
    Ok(if error == 0.0 { 0.0 } else { error / weights })
}

/// Those of which no mixture of two others would have a smaller error for its bytes.
fn hull(mut tried: Vec<TriedFormat>) -> Vec<TriedFormat> {
    tried.sort_by(|a, b| a.bytes.cmp(&b.bytes).then(a.error.total_cmp(&b.error)));
    let mut hull: Vec<TriedFormat> = Vec::new();
    for next in tried {
        if hull.last().is_some_and(|last| next.error >= last.error) {
            continue;
        }
        while let [.., before, last] = hull[..]
            && gain(&before, &last) <= gain(&last, &next)
        {
            hull.pop();
        }
        hull.push(next);
    }
    hull
}

/// By how much the error falls for each byte that `b` has more than `a`.
fn gain(a: &TriedFormat, b: &TriedFormat) -> f64 {
    (a.error - b.error) / (b.bytes - a.bytes) as f64
}

impl FormatTrials {
    /// The formats whose errors are smallest in a file of at most `bytes`: from the smallest of each matrix, the step that reduces the error
    /// most for its bytes, again and again, as long as one fits. `None` if not even the smallest file fits.
    pub fn choose(&self, bytes: u64) -> Option<FormatChoice> {
        let tensors = &self.tensors;
        let mut size = self.rest;
        let mut steps = Vec::new();
        for (at, tensor) in tensors.iter().enumerate() {
            size += padded(tensor.formats.first()?.bytes);
            steps.extend(tensor.formats.array_windows().map(|[a, b]| (gain(a, b), at, [a, b])));
        }
        if size > bytes {
            return None;
        }
        steps.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut levels = vec![Some(0); tensors.len()];
        let mut chosen = vec![0; tensors.len()];
        for (_, at, [from, to]) in steps {
            let Some(level) = &mut levels[at] else { continue };
            let more = padded(to.bytes) - padded(from.bytes);
            if size + more > bytes {
                // Its next steps begin with this one.
                levels[at] = None;
                continue;
            }
            size += more;
            *level += 1;
            chosen[at] = *level;
        }
        let formats = || tensors.iter().zip(&chosen).map(|(tensor, at)| (tensor, &tensor.formats[*at]));
        let rules = formats().map(|(tensor, tried)| TensorRule::new(tensor.name.clone(), tried.format));
        let error = formats().map(|(_, tried)| tried.error).sum();
        Some(FormatChoice { rules: rules.collect(), bytes: size, error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(bytes: u64, error: f64) -> TriedFormat {
        TriedFormat { format: Format::F32, bytes, error }
    }

    #[test]
    fn formats_that_a_mixture_beats_are_left_out() {
        let hull = hull(vec![tried(60, 0.8), tried(40, 1.0), tried(80, 0.2), tried(70, 0.9), tried(90, 0.2)]);
        assert_eq!(hull, [tried(40, 1.0), tried(80, 0.2)]);
    }

    /// Beside all combinations of formats.
    #[test]
    fn the_choice_is_the_best_of_all() {
        let sizes = [[32, 64, 160], [32, 96, 128], [64, 128, 256]];
        let errors = [[0.9, 0.5, 0.1], [0.8, 0.3, 0.25], [0.7, 0.2, 0.01]];
        let of = |at: usize| (0..3).map(|i| tried(sizes[at][i], errors[at][i])).collect();
        let tensors =
            (0..3).map(|at| FormatTrial { name: format!("t{at}"), formats: hull(of(at)) }).collect();
        let trials = FormatTrials { tensors, rest: 100 };
        assert!(trials.choose(227).is_none());
        // Where steps fill the target; between, what is left over is filled with later ones.
        for target in [228, 260, 324, 388, 484, 516, 644] {
            let choice = trials.choose(target).unwrap();
            assert_eq!(choice.bytes, target);
            let combinations = (0..27).map(|code| {
                let at = [code % 3, code / 3 % 3, code / 9];
                let sum = |of: &dyn Fn(usize, usize) -> f64| -> f64 { (0..3).map(|i| of(i, at[i])).sum() };
                (sum(&|i, at| sizes[i][at] as f64), sum(&|i, at| errors[i][at]))
            });
            let fitting = combinations.filter(|(bytes, _)| bytes + 100.0 <= target as f64);
            let best = fitting.map(|(_, error)| error).fold(f64::INFINITY, f64::min);
            assert!((choice.error - best).abs() < 1e-12, "{target}: {} {best}", choice.error);
        }
        assert_eq!(trials.choose(450).unwrap().bytes, 388 + 32);
    }
}
