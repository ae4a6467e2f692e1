//! Adapters (LoRA) that are trained: what they begin with, and the file that comes out.
//!
//! A training of an adapter is one of a model that was loaded with it: the [pass](shohin_core::model::lora) that applies adapters
//! makes their factors tensors of the program, and these alone learn. The model's own weights stay packed.

use super::Training;
use super::factors::{A, B};
use crate::error::{Error, Result};
use crate::model::Model;
use shohin_core::Format;
use shohin_core::gguf::{Gguf, GgufWriter, ReadOptions};
use shohin_core::model::LoraAdapter;
use shohin_core::model::program::{TensorRole, TensorSpec};
use shohin_core::sample::Pcg32;
use shohin_files::failed;
use std::io::Write;
use std::ops::RangeInclusive;
use std::path::Path;

/// Matrices that adapters can be for: how options call them, and their names in files.
const TARGETS: [(&str, &str); 7] = [
    ("q", "attn_q"),
    ("k", "attn_k"),
    ("v", "attn_v"),
    ("o", "attn_output"),
    ("gate", "ffn_gate"),
    ("up", "ffn_up"),
    ("down", "ffn_down"),
];

/// The shape of a new adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterOptions {
    /// Columns of `B` and rows of `A`.
    pub rank: usize,
    /// `B A x` is multiplied by `alpha / rank`; the rank unless set.
    pub alpha: Option<f32>,
    /// Which matrices of a layer: `q`, `k`, `v`, `o`, `gate`, `up`, `down`; empty for all.
    pub targets: Vec<String>,
    /// Which layers; all unless set.
    pub layers: Option<RangeInclusive<usize>>,
    /// What the random factors follow from.
    pub seed: u64,
}

impl Default for AdapterOptions {
    fn default() -> Self {
        AdapterOptions { rank: 16, alpha: None, targets: Vec::new(), layers: None, seed: 0 }
    }
}

/// The GGUF file of an adapter for `model` that changes nothing yet: `A` is uniform between -1 and 1 over the root of its inputs, as
/// in PEFT, and `B` is 0.
///
/// # Errors
/// [`Error::Option`] for unknown targets, or if no matrix is left.
pub fn new_adapter(model: &Model, options: &AdapterOptions) -> Result<Vec<u8>> {
    let refused = |name, found: String, expected: String| Err(Error::Option { name, found, expected });
    let known: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    if let Some(other) = options.targets.iter().find(|name| !known.contains(&name.as_str())) {
        return refused("targets", other.clone(), known.join(", "));
    }
    if !(1..=1 << 12).contains(&options.rank) {
        return refused("rank", options.rank.to_string(), "1 to 4096".into());
    }
    let layers = model.config().num_layers;
    if let Some(range) = options.layers.as_ref().filter(|range| range.is_empty() || *range.end() >= layers) {
        let found = format!("{}-{}", range.start(), range.end());
        return refused("layers", found, format!("FIRST-LAST of 0 to {}", layers - 1));
    }
    let program = model.weights().model().program();
    let adapted: Vec<&TensorSpec> = program.tensors.iter().filter(|spec| is_adapted(spec, options)).collect();
    if adapted.is_empty() {
        return refused("targets", options.targets.join(","), "matrices that the model has".into());
    }
    let mut w = GgufWriter::new();
    w.set("general.type", "adapter")?;
    w.set("general.architecture", model.config().architecture.name)?;
    w.set("general.name", model.name())?;
    w.set("adapter.type", "lora")?;
    w.set("adapter.lora.alpha", options.alpha.unwrap_or(options.rank as f32))?;
    let rank = options.rank;
    let mut random = Pcg32::new(options.seed);
    let mut data: Vec<Vec<u8>> = Vec::new();
    for spec in adapted {
        w.tensor(&[&spec.name, A].concat(), &[spec.cols as u64, rank as u64], Format::F32)?;
        w.tensor(&[&spec.name, B].concat(), &[rank as u64, spec.rows as u64], Format::F32)?;
        let bound = 1.0 / (spec.cols as f64).sqrt();
        let uniform = |_| ((2.0 * random.next_f64() - 1.0) * bound) as f32;
        data.push((0..rank * spec.cols).map(uniform).flat_map(f32::to_le_bytes).collect());
        data.push(vec![0; spec.rows * rank * size_of::<f32>()]);
    }
    Ok(w.to_vec(data)?)
}

fn is_adapted(spec: &TensorSpec, options: &AdapterOptions) -> bool {
    let name = spec.name.strip_prefix("blk.").and_then(|name| name.strip_suffix(".weight"));
    let Some((layer, matrix)) = name.and_then(|name| name.split_once('.')) else { return false };
    let asked =
        |target: &str| options.targets.is_empty() || options.targets.iter().any(|name| name == target);
    let of_target = TARGETS.iter().any(|(target, of)| *of == matrix && asked(target));
    let layer = layer.parse().ok();
    let of_layer =
        options.layers.as_ref().is_none_or(|range| layer.is_some_and(|layer| range.contains(&layer)));
    spec.role == TensorRole::Matrix && of_target && of_layer
}

impl Training<'_> {
    /// Factors `B` are trained as the program has them, times `alpha / rank`: with a rate that is as much higher, an optimizer that
    /// divides by the size of gradients changes them as if it trained `B`.
    pub(super) fn scale_rates(&mut self) -> Result<()> {
        let program = self.base.program();
        for (name, factor) in self.factors()? {
            if let Some(id) = program.tensor_ids().find(|id| program.tensor(*id).name == name) {
                self.trainer.scale_rate(id, factor);
            }
        }
        Ok(())
    }

    /// The names of the factors `B`, and what the program has them times.
    pub(super) fn factors(&self) -> Result<Vec<(String, f64)>> {
        let mut factors = Vec::new();
        for (file, scale) in self.base.model.adapters() {
            let gguf = file.gguf(&ReadOptions::default())?;
            let adapter = LoraAdapter::from_gguf(&gguf)?;
            let factor = |rank| f64::from(scale) * adapter.config().factor(rank);
            factors.extend(adapter.pairs().iter().map(|pair| ([pair.name, B].concat(), factor(pair.rank()))));
        }
        Ok(factors)
    }

    /// Writes the adapter as it is now to the GGUF file `path`, as llama.cpp reads it.
    pub(super) fn save_adapter(&self, path: &Path, replace: bool) -> Result<()> {
        let failed = failed("write", path);
        // There is exactly one: other models are refused for this method.
        for (file, _) in self.base.model.adapters() {
            let mut out = crate::convert::new_file(path, replace)?;
            let gguf = file.gguf(&ReadOptions::default())?;
            let (writer, data) = self.adapter_file(&gguf)?;
            out.write_all(&writer.to_vec(data)?).map_err(failed)?;
            out.finish().map_err(failed)?;
        }
        Ok(())
    }

    /// The file of the adapter `gguf` with the factors as they are now.
    fn adapter_file(&self, gguf: &Gguf<'_>) -> Result<(GgufWriter, Vec<Vec<u8>>)> {
        let mut writer = GgufWriter::new();
        for (key, value) in gguf.metadata().iter() {
            writer.set(key, value)?;
        }
        let (program, factors) = (self.base.program(), self.factors()?);
        let mut data = Vec::new();
        for tensor in gguf.tensors() {
            writer.tensor(tensor.name(), tensor.dims(), Format::F32)?;
            let id = program.tensor_ids().find(|id| program.tensor(*id).name == tensor.name());
            let master = id.and_then(|id| self.trainer.master(id)).unwrap_or(&[]);
            // The program has `B` times the factor.
            let factor = factors.iter().find(|(name, _)| name == tensor.name()).map_or(1.0, |(_, f)| *f);
            let number = |x: &f32| ((f64::from(*x) / factor) as f32).to_le_bytes();
            data.push(master.iter().flat_map(number).collect());
        }
        Ok((writer, data))
    }
}
