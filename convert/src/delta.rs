//! What adapters (LoRA) add to the matrices of a model, row by row: `s (alpha / r) B A`, in f64.

use crate::config::Config;
use crate::error::{ConvertError, Result};
use crate::names::is_router;
use crate::report::Merge;
use shohin_core::gguf::Gguf;
use shohin_core::model::LoraAdapter;
use shohin_core::model::lora::LoraPair;
use std::path::Path;

/// The factors of all adapters.
#[derive(Default)]
pub(crate) struct Deltas<'f>(Vec<Delta<'f>>);

/// The factors of one matrix in one adapter.
#[derive(Clone, Copy)]
pub(crate) struct Delta<'f> {
    pair: LoraPair<'f>,
    /// What `B A` is multiplied by.
    factor: f64,
    /// The adapter's file.
    file: &'f Path,
}

impl<'f> Deltas<'f> {
    /// Adds the adapter in `gguf`, for a model like `base`.
    pub(crate) fn add(&mut self, file: &'f Path, gguf: &Gguf<'f>, scale: f32, base: &Config) -> Result<()> {
        let of_file = |error: ConvertError| error.at(file);
        let adapter = LoraAdapter::from_gguf(gguf).map_err(|error| of_file(error.into()))?;
        let (found, expected) = (adapter.config().architecture, base.architecture.name);
        if found != expected {
            let key = "general.architecture".into();
            return Err(of_file(ConvertError::Value { key, found: format!("{found:?}"), expected }));
        }
        // Without an effect, tensors keep their bytes.
        for pair in adapter.pairs().iter().filter(|_| scale != 0.0) {
            let factor = f64::from(scale) * adapter.config().factor(pair.rank());
            self.0.push(Delta { pair: *pair, factor, file });
        }
        Ok(())
    }

    /// What is added to the tensor `name`.
    pub(crate) fn of(&self, name: &str) -> Vec<Delta<'f>> {
        self.0.iter().filter(|delta| delta.pair.name == name).copied().collect()
    }

    /// Refuses factors of what `known` says is no matrix of the model.
    pub(crate) fn check(&self, known: impl Fn(&str) -> bool) -> Result<(), ConvertError> {
        match self.0.iter().find(|delta| !known(delta.pair.name)) {
            None => Ok(()),
            Some(Delta { pair, file, .. }) => Err(ConvertError::tensor(
                pair.name,
                format!(
                    "of the adapter {} is not one of the model's, expected one of attention or of a feed-forward block",
                    file.display()
                ),
            )),
        }
    }
}

impl Delta<'_> {
    /// Refuses factors that do not fit the matrix `name` of `rows` and `cols`.
    pub(crate) fn fits(&self, count: usize, rows: usize, cols: usize) -> Result<(), ConvertError> {
        let (a, b) = (&self.pair.a, &self.pair.b);
        let name = self.pair.name;
        if !name.starts_with("blk.") || name.ends_with("norm.weight") || is_router(name) || count != 1 {
            let problem = format!(
                "of the adapter {} cannot be adapted, expected one of attention or of a feed-forward block",
                self.file.display()
            );
            return Err(ConvertError::tensor(name, problem));
        }
        if [b.rows(), a.cols()] != [rows, cols] {
            let problem = format!(
                "of the adapter {} has the shape {:?}, expected {:?}",
                self.file.display(),
                [b.rows(), a.cols()],
                [rows, cols]
            );
            return Err(ConvertError::tensor(name, problem));
        }
        Ok(())
    }
}

/// Reads the rows of what is added to a matrix.
pub(crate) struct DeltaRows<'d, 'f> {
    /// With the numbers of `A`.
    deltas: Vec<(&'d Delta<'f>, Vec<f32>)>,
    b: Vec<f32>,
    product: Vec<f64>,
    sum: Vec<f64>,
}

impl<'d, 'f> DeltaRows<'d, 'f> {
    pub(crate) fn new(deltas: &'d [Delta<'f>], cols: usize) -> Result<Self, ConvertError> {
        let numbers = |delta: &'d Delta<'f>| {
            let a = &delta.pair.a;
            let mut numbers = vec![0.0; a.rows() * cols];
            for (row, numbers) in numbers.chunks_exact_mut(cols.max(1)).enumerate() {
                a.unpack_row(row, numbers)?;
            }
            Ok((delta, numbers))
        };
        let deltas = deltas.iter().map(numbers).collect::<Result<_, ConvertError>>()?;
        Ok(DeltaRows { deltas, b: Vec::new(), product: vec![0.0; cols], sum: vec![0.0; cols] })
    }

    pub(crate) fn read(&mut self, row: usize) -> Result<&[f64], ConvertError> {
        self.sum.fill(0.0);
        for (delta, a) in &self.deltas {
            self.b.resize(delta.pair.rank(), 0.0);
            delta.pair.b.unpack_row(row, &mut self.b)?;
            self.product.fill(0.0);
            for (a, &b) in a.chunks_exact(self.product.len().max(1)).zip(&self.b) {
                let products = self.product.iter_mut().zip(a);
                products.for_each(|(product, &a)| *product += f64::from(b) * f64::from(a));
            }
            let sums = self.sum.iter_mut().zip(&self.product);
            sums.for_each(|(sum, product)| *sum += delta.factor * product);
        }
        Ok(&self.sum)
    }
}

/// Sums over weights that were written.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    /// Of the squares of the errors.
    pub(crate) error: f64,
    /// Of the squares of the weights.
    pub(crate) weights: f64,
    /// Of the squares of what was to be added.
    delta: f64,
    /// Of the squares of what the stored weights changed by.
    change: f64,
    /// Of the products of both.
    product: f64,
}

impl Sums {
    /// Counts weights that were `base` and should have become `base + delta`.
    pub(crate) fn merged(&mut self, base: &[f32], delta: &[f64], written: &[f32]) {
        for ((&base, &delta), &written) in base.iter().zip(delta).zip(written) {
            let change = f64::from(written) - f64::from(base);
            self.error += (delta - change).powi(2);
            self.weights += (f64::from(base) + delta).powi(2);
            self.delta += delta.powi(2);
            self.change += change.powi(2);
            self.product += delta * change;
        }
    }

    pub(crate) fn plus(self, other: Sums) -> Sums {
        Sums {
            error: self.error + other.error,
            weights: self.weights + other.weights,
            delta: self.delta + other.delta,
            change: self.change + other.change,
            product: self.product + other.product,
        }
    }

    /// What they say of a merge.
    pub(crate) fn merge(&self) -> Merge {
        let Sums { error, weights, delta, change, product } = *self;
        Merge {
            error: error.sqrt(),
            sum: weights.sqrt(),
            delta: delta.sqrt(),
            change: change.sqrt(),
            product,
        }
    }
}
