//! Activations whose channels have similar ranges: factors that move from inputs to weights (SmoothQuant).

mod groups;

use crate::calibration::{Calibration, InputStatistics};
use crate::combine::Opened;
use crate::edit::Edit;
use crate::error::{ConvertError, Result};
use crate::options::ConvertOptions;
use crate::plan::{Plan, holds_deltas};
use crate::report::Converted;
use crate::tensor::Tensor;
use crate::{to_folder, to_gguf};
use groups::{From, Group, groups};
use shohin_core::model::program::{Program, TensorId};
use shohin_core::{Format, ModelConfig, quant};
use std::collections::BTreeMap;
use std::path::Path;

/// The smallest factor, and the inverse of the largest.
const MIN: f64 = 1e-5;
/// Activations that share a scale of 8 bits.
const SHARED: usize = 32;
/// Rows of each matrix that the search looks at.
const SAMPLE: usize = 128;

/// How activations are smoothed.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct SmoothOptions {
    /// How much of the range moves to the weights, 0 to 1: the factor of channel `j` is `max |x_j|^alpha / max |w_j|^(1 - alpha)`.
    pub alpha: f64,
    /// Chooses alpha for each group of matrices, for weights of this format and activations of 8 bits: of 0, 0.1, ... 1 and of
    /// no factors, the one of the smallest estimated error of the products.
    pub search: Option<Format>,
}

impl SmoothOptions {
    /// The same `alpha` everywhere.
    pub fn new(alpha: f64) -> Self {
        SmoothOptions { alpha, search: None }
    }

    /// Sets [`SmoothOptions::search`](#structfield.search).
    pub fn search(mut self, format: Format) -> Self {
        self.search = Some(format);
        self
    }
}

/// What was smoothed.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Smoothed {
    /// The file.
    pub converted: Converted,
    /// In the order of the layers.
    pub groups: Vec<SmoothedGroup>,
}

/// Matrices that share an input.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SmoothedGroup {
    /// The tensor that is divided by the factors: weights of a norm, or rows of a matrix.
    pub from: String,
    /// The matrices whose columns are multiplied by them.
    pub to: Vec<String>,
    /// The alpha of the factors; `None` if the search found that none are better.
    pub alpha: Option<f64>,
    /// The largest channel of the input, relative to the mean of all channels' largest values, before and after.
    pub outlier: [f64; 2],
}

/// Writes `source`, a GGUF file or what [`convert`](crate::convert) reads, with the ranges of its activations moved into its weights
/// (Xiao et al. 2022, arXiv:2211.10438), so that both are easier to store in few bits. Results are the same, but for rounding. `out`
/// is a GGUF file by its extension, and else a Hugging Face folder.
///
/// A factor for each channel, from the weights and `calibration`, divides what computes an input (the weights of a norm, the rows of values
/// and of the second half of gated products) and multiplies the columns of the matrices that read it. Query heads that share
/// a head of values share its factors: the largest ranges count. Where something else reads an input, it stays as it is.
///
/// ```no_run
/// use shohin_convert::{Calibration, ConvertOptions, SmoothOptions, smooth};
///
/// let statistics = Calibration::read("wiki.stats".as_ref())?;
/// smooth("qwen3-f16.gguf", "smooth.gguf", &statistics, &SmoothOptions::new(0.5), &ConvertOptions::new(), |_, _| ())?;
/// # Ok::<(), shohin_convert::Error>(())
/// ```
///
/// # Errors
/// As for [`convert`](crate::convert); for an alpha out of range; if `calibration` lacks a matrix, or has it in another shape; if nothing of
/// the architecture can be smoothed; if a matrix would be 1-bit or ternary.
pub fn smooth(
    source: impl AsRef<Path>,
    out: impl AsRef<Path>,
    calibration: &Calibration,
    how: &SmoothOptions,
    options: &ConvertOptions,
    mut progress: impl FnMut(u64, u64),
) -> Result<Smoothed> {
    let (source, out) = (source.as_ref(), out.as_ref());
    if !(0.0..=1.0).contains(&how.alpha) {
        let (key, found) = ("alpha".into(), how.alpha.to_string());
        return Err(ConvertError::Value { key, found, expected: "0 to 1" }.at(source));
    }
    let opened = Opened::open(source)?;
    let gguf = opened.gguf(options)?;
    let plan = opened.plan(gguf.as_ref(), options)?;
    let factors = Factors::new(&plan, calibration, how).map_err(|error| error.at(source))?;
    let plan = plan.edited(&factors)?;
    let converted = match to_gguf::is_file(out) {
        true => to_gguf::save_new(&plan, out, options, &mut progress)?,
        false => to_folder::of_plan(&plan, out, options, &mut progress)?,
    };
    Ok(Smoothed { converted, groups: factors.groups })
}

/// What tensors are multiplied by.
#[derive(Default)]
struct Factors {
    /// For each row.
    rows: BTreeMap<String, Vec<f64>>,
    /// For each column.
    cols: BTreeMap<String, Vec<f64>>,
    groups: Vec<SmoothedGroup>,
}

impl Edit for Factors {
    fn changes(&self, tensor: &Tensor<'_>) -> bool {
        self.rows.contains_key(&tensor.name) || self.cols.contains_key(&tensor.name)
    }

    fn check(&self, tensor: &Tensor<'_>, format: Format) -> Result<(), ConvertError> {
        if tensor.vector { Ok(()) } else { holds_deltas(&tensor.name, format) }
    }

    fn weights(&self, tensor: &Tensor<'_>) -> Result<Vec<f32>, ConvertError> {
        let mut weights = tensor.numbers()?;
        let (rows, cols) = (self.rows.get(&tensor.name), self.cols.get(&tensor.name));
        for (row, weights) in weights.chunks_exact_mut(tensor.cols.max(1)).enumerate() {
            let of_row = rows.map_or(1.0, |rows| rows[row]);
            for (col, w) in weights.iter_mut().enumerate() {
                *w = (f64::from(*w) * of_row * cols.map_or(1.0, |cols| cols[col])) as f32;
            }
        }
        Ok(weights)
    }
}

/// What is known of the channels of an input.
struct Channels {
    /// The largest absolute value of each channel.
    input: Vec<f64>,
    /// The mean square.
    squares: Vec<f64>,
    /// The largest absolute weight of each column.
    weight: Vec<f64>,
    /// Some rows of all matrices, `(rows, channels)`, for the search.
    sample: Vec<f32>,
}

impl Factors {
    fn new(plan: &Plan<'_>, calibration: &Calibration, how: &SmoothOptions) -> Result<Self, ConvertError> {
        let config = plan.header(|header| Ok(ModelConfig::from_header(header)?))?;
        let program = config.program();
        let tensors: BTreeMap<&str, &Tensor<'_>> =
            plan.tensors().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        let mut factors = Factors::default();
        for group in groups(&program) {
            let names: Vec<&str> = group.to.iter().map(|id| program.tensor(*id).name.as_str()).collect();
            let to = names.iter().filter_map(|name| tensors.get(name).copied()).collect::<Vec<_>>();
            let Some(inputs) = names.iter().find_map(|name| calibration.inputs.get(*name)) else {
                let problem = "is not in the calibration";
                return Err(ConvertError::tensor(names.first().copied().unwrap_or(""), problem));
            };
            let channels = Channels::new(inputs, &to, how.search.is_some())?;
            let shared = shared_by(&program, &group);
            let (alpha, scales) = match how.search {
                None => (Some(how.alpha), channels.factors(how.alpha, shared)),
                Some(format) => channels.best(format, shared)?,
            };
            factors.add(&program, &group, shared, &scales);
            let outlier = [channels.outlier(&vec![1.0; scales.len()]), channels.outlier(&scales)];
            let from = program.tensor(group.from.tensor()).name.clone();
            let to = names.into_iter().map(String::from).collect();
            factors.groups.push(SmoothedGroup { from, to, alpha, outlier });
        }
        if factors.groups.is_empty() {
            let (key, found) = ("general.architecture".into(), config.architecture.name.into());
            let expected = "one with norms or values that only matrices read";
            return Err(ConvertError::Value { key, found, expected });
        }
        Ok(factors)
    }

    /// Adds the factors of a group, `scales` for its channels.
    fn add(&mut self, program: &Program, group: &Group, shared: Option<[usize; 2]>, scales: &[f64]) {
        let name = |id: &TensorId| program.tensor(*id).name.clone();
        // Of channels that share a value, the first has the factor of all.
        let own: Vec<f64> = match shared {
            Some([each, dim]) => {
                let heads = scales.chunks_exact(each * dim);
                heads.flat_map(|head| head[..dim].iter().map(|s| 1.0 / s)).collect()
            }
            None => scales.iter().map(|s| 1.0 / s).collect(),
        };
        for bias in &group.biases {
            self.cols.insert(name(bias), own.clone());
        }
        match group.from {
            From::Norm(id) => drop(self.cols.insert(name(&id), own)),
            From::Up(id) | From::Values(id) => drop(self.rows.insert(name(&id), own)),
        }
        for id in &group.to {
            self.cols.insert(name(id), scales.to_vec());
        }
    }
}

/// Query heads that share a head of values, and the elements of a head, where values are what is smoothed.
fn shared_by(program: &Program, group: &Group) -> Option<[usize; 2]> {
    let heads = program.heads;
    matches!(group.from, From::Values(_)).then(|| [heads.query / heads.kv.max(1), heads.dim])
}

impl Channels {
    fn new(inputs: &InputStatistics, to: &[&Tensor<'_>], sampled: bool) -> Result<Self, ConvertError> {
        let cols = inputs.cols;
        if let Some(tensor) = to.iter().find(|tensor| tensor.cols != cols) {
            let problem = format!("has {} columns, but {cols} in the calibration", tensor.cols);
            return Err(ConvertError::tensor(&tensor.name, problem));
        }
        if !inputs.max.iter().any(|max| max.is_finite()) {
            let name = to.first().map_or("", |tensor| &tensor.name);
            let problem = "has no ranges in the calibration, expected one that is no importance matrix";
            return Err(ConvertError::tensor(name, problem));
        }
        let mut channels = Channels {
            input: vec![0.0; cols],
            squares: vec![0.0; cols],
            weight: vec![0.0; cols],
            sample: Vec::new(),
        };
        let most = |min: f32, max: f32| {
            [min, max].into_iter().filter(|x| x.is_finite()).fold(0.0, |most: f32, x| most.max(x.abs()))
        };
        for (i, (&min, &max)) in inputs.min.iter().zip(&inputs.max).enumerate() {
            let input = &mut channels.input[i % cols.max(1)];
            *input = input.max(f64::from(most(min, max)));
        }
        let count = inputs.counts.iter().sum::<u64>().max(1) as f64;
        for (i, sum) in inputs.sum_squares.iter().enumerate() {
            channels.squares[i % cols.max(1)] += sum / count;
        }
        for tensor in to {
            let numbers = tensor.numbers()?;
            let step = if sampled { tensor.rows.div_ceil(SAMPLE).max(1) } else { usize::MAX };
            for (row, weights) in numbers.chunks_exact(cols.max(1)).enumerate() {
                let largest = channels.weight.iter_mut().zip(weights);
                largest.for_each(|(most, w)| *most = most.max(f64::from(w.abs())));
                if sampled && row % step == 0 {
                    channels.sample.extend(weights);
                }
            }
        }
        Ok(channels)
    }

    /// The factor of each channel; where a range is 0, it is 1. Channels that share a value have the one of their largest ranges.
    fn factors(&self, alpha: f64, shared: Option<[usize; 2]>) -> Vec<f64> {
        let factor = |input: f64, weight: f64| match input > 0.0 && weight > 0.0 {
            true => (input.powf(alpha) / weight.powf(1.0 - alpha)).clamp(MIN, 1.0 / MIN),
            false => 1.0,
        };
        let Some([each, dim]) = shared else {
            return self
                .input
                .iter()
                .zip(&self.weight)
                .map(|(input, weight)| factor(*input, *weight))
                .collect();
        };
        let largest = |of: &[f64], i: usize| {
            let first = i / (each * dim) * each * dim + i % dim;
            (0..each).map(|head| of[first + head * dim]).fold(0.0, f64::max)
        };
        (0..self.input.len()).map(|i| factor(largest(&self.input, i), largest(&self.weight, i))).collect()
    }

    /// The largest channel divided by `scales`, relative to the mean.
    fn outlier(&self, scales: &[f64]) -> f64 {
        let ranges = || self.input.iter().zip(scales).map(|(input, scale)| input / scale);
        let mean = ranges().sum::<f64>() / self.input.len().max(1) as f64;
        if mean == 0.0 { 1.0 } else { ranges().fold(0.0, f64::max) / mean }
    }

    /// The alpha of the smallest estimated error, and its factors.
    fn best(
        &self,
        format: Format,
        shared: Option<[usize; 2]>,
    ) -> Result<(Option<f64>, Vec<f64>), ConvertError> {
        let none = vec![1.0; self.input.len()];
        let (mut best, mut least) = ((None, none.clone()), self.error(format, &none)?);
        for tenth in 0..=10 {
            let alpha = f64::from(tenth) / 10.0;
            let scales = self.factors(alpha, shared);
            let error = self.error(format, &scales)?;
            if error < least {
                (best, least) = ((Some(alpha), scales), error);
            }
        }
        Ok(best)
    }

    /// An estimate of the squared error of the sampled products: that of the weights in `format`, and that of activations of 8 bits whose groups
    /// of 32 share the scale of their largest channel.
    ///
    /// ```text
    /// sum_ij E[x_j^2] / s_j^2 (w_ij s_j - Q(w_ij s_j))^2 + sum_ij (D_j / 127)^2 / 12 (w_ij s_j)^2,  D_j = max_{k in group of j} max |x_k| / s_k
    /// ```
    fn error(&self, format: Format, scales: &[f64]) -> Result<f64, ConvertError> {
        let cols = self.input.len();
        let fits = cols.is_multiple_of(format.block());
        let ranges: Vec<f64> = self.input.iter().zip(scales).map(|(input, scale)| input / scale).collect();
        let steps: Vec<f64> = ranges
            .chunks(SHARED)
            .flat_map(|group| {
                let step = group.iter().copied().fold(0.0, f64::max) / 127.0;
                std::iter::repeat_n(step * step / 12.0, group.len())
            })
            .collect();
        let mut packed = vec![0; if fits { format.row_bytes(cols).unwrap_or(0) } else { 0 }];
        let (mut row, mut stored) = (vec![0.0f32; cols], vec![0.0f32; cols]);
        let mut sum = 0.0;
        for weights in self.sample.chunks_exact(cols.max(1)) {
            row.iter_mut()
                .zip(weights.iter().zip(scales))
                .for_each(|(new, (w, s))| *new = (f64::from(*w) * s) as f32);
            match fits {
                true => {
                    quant::pack(format, &row, &mut packed)?;
                    quant::unpack(format, &packed, &mut stored)?;
                }
                false => stored.copy_from_slice(&row),
            }
            for j in 0..cols {
                let (w, stored) = (f64::from(row[j]), f64::from(stored[j]));
                sum += self.squares[j] / (scales[j] * scales[j]) * (w - stored).powi(2) + steps[j] * w * w;
            }
        }
        Ok(sum)
    }
}
