//! Adapters (LoRA) with random weights, and models whose weights were merged with them by the formula in f64.

use shohin_core::gguf::{Gguf, GgufWriter};
use shohin_core::model::LoraAdapter;
use shohin_core::{BonsaiModel, Format, Result, quant};

use crate::Random;

/// The factors of one matrix.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The name of the matrix.
    pub name: String,
    /// `(r, inputs)`
    pub a: Vec<f32>,
    /// `(outputs, r)`
    pub b: Vec<f32>,
    /// `r`
    pub rank: usize,
}

/// An adapter.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// `general.architecture`
    pub architecture: String,
    /// `adapter.lora.alpha`
    pub alpha: f32,
    /// The factors.
    pub pairs: Vec<Pair>,
}

impl Adapter {
    /// Factors of rank `rank` of every matrix of `model` whose name contains one of `names`, between -1 and 1 times
    /// `size`.
    pub fn random(model: &Gguf<'_>, names: &[&str], rank: usize, size: f32, seed: u64) -> Adapter {
        let mut random = Random::new(seed);
        let mut numbers = |n: usize| (0..n).map(|_| size * (2.0 * random.unit() - 1.0)).collect::<Vec<f32>>();
        let matrices = model.tensors().iter().filter(|t| names.iter().any(|name| t.name().contains(name)));
        let matrices = matrices.filter(|tensor| tensor.dims().len() == 2);
        let pairs = matrices.map(|tensor| {
            let [cols, rows] = [tensor.dims()[0], tensor.dims()[1]].map(|dim| dim as usize);
            Pair { name: tensor.name().into(), a: numbers(rank * cols), b: numbers(rows * rank), rank }
        });
        let architecture = model.metadata().str("general.architecture").unwrap().unwrap().into();
        Adapter { architecture, alpha: 2.0 * rank as f32, pairs: pairs.collect() }
    }

    /// The file, in F32.
    pub fn to_vec(&self) -> Vec<u8> {
        self.to_vec_in(Format::F32)
    }

    /// The file, in F32 or F16, to which it rounds.
    pub fn to_vec_in(&self, format: Format) -> Vec<u8> {
        let mut w = GgufWriter::new();
        w.set("general.type", "adapter").unwrap();
        w.set("general.architecture", self.architecture.as_str()).unwrap();
        w.set("adapter.type", "lora").unwrap();
        w.set("adapter.lora.alpha", self.alpha).unwrap();
        let mut data = Vec::new();
        for pair in &self.pairs {
            let rank = pair.rank as u64;
            let [inputs, outputs] = [&pair.a, &pair.b].map(|x| x.len() as u64 / rank);
            for (suffix, dims, x) in [("a", [inputs, rank], &pair.a), ("b", [rank, outputs], &pair.b)] {
                w.tensor(&format!("{}.lora_{suffix}", pair.name), &dims, format).unwrap();
                data.push(match format {
                    Format::F16 => x.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect(),
                    _ => x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>(),
                });
            }
        }
        w.to_vec(data).unwrap()
    }

    /// `model` with `W + scale (alpha / r) B A` in F32 for each adapted `W`.
    pub fn merged(&self, model: &Gguf<'_>, scale: f64) -> Vec<u8> {
        let mut w = GgufWriter::new();
        for (key, value) in model.metadata().iter() {
            w.set(key, value).unwrap();
        }
        let mut data = Vec::new();
        for tensor in model.tensors() {
            let Some(pair) = self.pairs.iter().find(|pair| pair.name == tensor.name()) else {
                w.tensor(tensor.name(), tensor.dims(), tensor.format().unwrap()).unwrap();
                data.push(model.data(tensor).to_vec());
                continue;
            };
            w.tensor(tensor.name(), tensor.dims(), Format::F32).unwrap();
            let mut weights = vec![0.0; tensor.elements() as usize];
            quant::unpack(tensor.format().unwrap(), model.data(tensor), &mut weights).unwrap();
            let (rank, factor) = (pair.rank, scale * f64::from(self.alpha) / pair.rank as f64);
            let cols = pair.a.len() / rank;
            for (row, b) in weights.chunks_exact_mut(cols).zip(pair.b.chunks_exact(rank)) {
                for (col, weight) in row.iter_mut().enumerate() {
                    let product: f64 =
                        (0..rank).map(|i| f64::from(b[i]) * f64::from(pair.a[i * cols + col])).sum();
                    *weight = (f64::from(*weight) + factor * product) as f32;
                }
            }
            data.push(weights.iter().flat_map(|x| x.to_le_bytes()).collect());
        }
        w.to_vec(data).unwrap()
    }
}

/// The model with adapters, each at its scale, and ranks filled up to a multiple of `multiple`.
///
/// # Errors
/// Those of [`BonsaiModel::adapt_padded`].
pub fn adapted(model: &[u8], adapters: &[(&[u8], f32)], multiple: usize) -> Result<BonsaiModel<Vec<u8>>> {
    let files = adapters.iter().map(|(file, scale)| Ok((Gguf::parse(file)?, *scale)));
    let files = files.collect::<Result<Vec<_>>>()?;
    let read = files.iter().map(|(file, scale)| Ok((LoraAdapter::from_gguf(file)?, *scale)));
    let read = read.collect::<Result<Vec<_>>>()?;
    let all: Vec<_> = read.iter().map(|(adapter, scale)| (adapter, *scale)).collect();
    BonsaiModel::load(model.to_vec())?.adapt_padded(&all, multiple, |bytes| bytes)
}
