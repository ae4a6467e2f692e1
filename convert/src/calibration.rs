//! Statistics of what the matrices of a model are multiplied with, and the ranges that follow from them.

mod file;
mod imatrix;
mod range;

pub use range::{Range, RangeMethod};

use crate::error::ConvertError;
use std::collections::BTreeMap;

/// Bins of the histogram of absolute values: [`PER_OCTAVE`] for each power of two.
pub(crate) const BINS: usize = OCTAVES * PER_OCTAVE;
const OCTAVES: usize = 40;
const PER_OCTAVE: usize = 16;
/// The smallest power of two that has bins of its own; smaller values are in the first.
const FIRST: i32 = -24;

/// Statistics of the inputs of a model's matrices over some texts.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Calibration {
    /// SHA-256 of the model's file, in hexadecimal digits.
    pub model: String,
    /// The texts, in the order in which they were read.
    pub texts: Vec<CalibrationText>,
    /// The statistics of each matrix, by its name in GGUF.
    pub inputs: BTreeMap<String, InputStatistics>,
}

/// A text of a calibration.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CalibrationText {
    /// Its name.
    pub name: String,
    /// Windows that were read.
    pub windows: usize,
    /// Tokens of a window.
    pub window: usize,
}

impl CalibrationText {
    /// `windows` of `window` tokens each of the text `name`.
    pub fn new(name: impl Into<String>, windows: usize, window: usize) -> Self {
        CalibrationText { name: name.into(), windows, window }
    }
}

/// Statistics of the inputs of a matrix, or of the stacked matrices of experts.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct InputStatistics {
    /// Columns of a matrix.
    pub cols: usize,
    /// Inputs of each of its matrices, `(matrices)`.
    pub counts: Vec<u64>,
    /// The smallest value of each channel, `(matrices, cols)`; infinite where there was none.
    pub min: Vec<f32>,
    /// The largest, `(matrices, cols)`.
    pub max: Vec<f32>,
    /// The sum of the absolute values, `(matrices, cols)`.
    pub sum_abs: Vec<f64>,
    /// The sum of the squares, `(matrices, cols)`.
    pub sum_squares: Vec<f64>,
    /// How many absolute values, of all channels, are in each bin; see [`InputStatistics::bin`].
    pub histogram: Vec<u64>,
}

impl InputStatistics {
    /// Of no input yet, for `matrices` of `cols` columns.
    pub fn new(matrices: usize, cols: usize) -> Self {
        let len = matrices * cols;
        InputStatistics {
            cols,
            counts: vec![0; matrices],
            min: vec![f32::INFINITY; len],
            max: vec![f32::NEG_INFINITY; len],
            sum_abs: vec![0.0; len],
            sum_squares: vec![0.0; len],
            histogram: vec![0; BINS],
        }
    }

    /// Counts `x (n, cols)`, inputs of matrix number `matrix`.
    pub fn add(&mut self, matrix: usize, x: &[f32]) {
        let (cols, first) = (self.cols, matrix * self.cols);
        for row in x.chunks_exact(cols.max(1)) {
            self.counts[matrix] += 1;
            for (channel, &x) in row.iter().enumerate() {
                let at = first + channel;
                self.min[at] = self.min[at].min(x);
                self.max[at] = self.max[at].max(x);
                self.sum_abs[at] += f64::from(x.abs());
                self.sum_squares[at] += f64::from(x) * f64::from(x);
                self.histogram[Self::bin(x)] += 1;
            }
        }
    }

    /// The bin of `x`: bins have equal widths between two powers of two. The first has all smaller values, the last all larger.
    pub fn bin(x: f32) -> usize {
        // The exponent and the first bits of the fraction, as one number.
        let place = x.abs().to_bits() >> (f32::MANTISSA_DIGITS - 1 - PER_OCTAVE.ilog2());
        (place as usize).saturating_sub(Self::first_place()).min(BINS - 1)
    }

    /// Where bin `bin` begins; it ends where the next one begins.
    pub fn bin_start(bin: usize) -> f32 {
        match bin {
            0 => 0.0,
            bin => {
                let place = (bin + Self::first_place()) as u32;
                f32::from_bits(place << (f32::MANTISSA_DIGITS - 1 - PER_OCTAVE.ilog2()))
            }
        }
    }

    fn first_place() -> usize {
        (127 + FIRST) as usize * PER_OCTAVE
    }

    /// Numbers that were counted.
    pub fn numbers(&self) -> u64 {
        self.counts.iter().sum::<u64>() * self.cols as u64
    }

    /// The largest absolute value.
    pub fn largest(&self) -> f32 {
        self.min.iter().chain(&self.max).filter(|x| x.is_finite()).fold(0.0, |most, x| most.max(x.abs()))
    }

    /// The root of the mean square.
    pub fn root_mean_square(&self) -> f64 {
        (self.sum_squares.iter().sum::<f64>() / self.numbers().max(1) as f64).sqrt()
    }

    /// The mean of the absolute values.
    pub fn mean_abs(&self) -> f64 {
        self.sum_abs.iter().sum::<f64>() / self.numbers().max(1) as f64
    }

    fn merge(&mut self, other: &InputStatistics) {
        add(&mut self.counts, &other.counts, |a, b| a + b);
        add(&mut self.min, &other.min, f32::min);
        add(&mut self.max, &other.max, f32::max);
        add(&mut self.sum_abs, &other.sum_abs, |a, b| a + b);
        add(&mut self.sum_squares, &other.sum_squares, |a, b| a + b);
        add(&mut self.histogram, &other.histogram, |a, b| a + b);
    }
}

fn add<T: Copy>(to: &mut [T], other: &[T], sum: impl Fn(T, T) -> T) {
    to.iter_mut().zip(other).for_each(|(to, other)| *to = sum(*to, *other));
}

impl Calibration {
    /// Of no text yet, for the model whose file has this SHA-256, in hexadecimal digits.
    pub fn new(model: impl Into<String>) -> Self {
        Calibration { model: model.into(), ..Calibration::default() }
    }

    /// Adds another calibration of the same model.
    ///
    /// # Errors
    /// If it is of another model, or has matrices of other shapes.
    pub fn merge(&mut self, other: Calibration) -> Result<(), ConvertError> {
        if self.model != other.model {
            let (key, found) = ("the model of a calibration".into(), other.model);
            return Err(ConvertError::Value { key, found, expected: "that of the others" });
        }
        for (name, inputs) in &other.inputs {
            let of = |inputs: &InputStatistics| [inputs.counts.len(), inputs.cols];
            if let Some(known) = self.inputs.get(name).filter(|known| of(known) != of(inputs)) {
                let problem = format!("has inputs of the shape {:?}, expected {:?}", of(inputs), of(known));
                return Err(ConvertError::tensor(name, problem));
            }
        }
        for (name, inputs) in other.inputs {
            match self.inputs.get_mut(&name) {
                Some(known) => known.merge(&inputs),
                None => drop(self.inputs.insert(name, inputs)),
            }
        }
        self.texts.extend(other.texts);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_are_where_their_values_are() {
        for bin in 1..BINS {
            let start = InputStatistics::bin_start(bin);
            assert_eq!(InputStatistics::bin(start), bin);
            assert_eq!(InputStatistics::bin(-start), bin);
            assert_eq!(InputStatistics::bin(f32::from_bits(start.to_bits() - 1)), bin - 1);
        }
        assert_eq!(InputStatistics::bin(0.0), 0);
        assert_eq!(InputStatistics::bin(f32::MAX), BINS - 1);
        assert_eq!(InputStatistics::bin(1e-30), 0);
    }

    #[test]
    fn parts_merge_to_the_whole() {
        let rows: Vec<f32> = (0..60).map(|i| ((i * 37 % 23) as f32 - 11.0) / 8.0).collect();
        let (mut whole, mut a, mut b) =
            (InputStatistics::new(1, 6), InputStatistics::new(1, 6), InputStatistics::new(1, 6));
        whole.add(0, &rows);
        a.add(0, &rows[..24]);
        b.add(0, &rows[24..]);
        let mut one = Calibration::new("x");
        one.inputs.insert("t".into(), a);
        let mut other = Calibration::new("x");
        other.inputs.insert("t".into(), b);
        one.merge(other.clone()).unwrap();
        assert_eq!(one.inputs["t"], whole);
        other.model = "y".into();
        assert!(one.merge(other).unwrap_err().to_string().contains("the model of a calibration is y"));
    }
}
