//! Adapters (LoRA) that are trained: what they begin with, and the file that comes out.
//!
//! A training of an adapter is one of a model that was loaded with it; see [`shohin_train::adapter`].

use super::Training;
use crate::convert::ConvertOptions;
use crate::error::{Error, Result};
use crate::model::Model;
use shohin_core::gguf::{Gguf, ReadOptions};
use shohin_core::model::LoraAdapter;
use shohin_core::model::lora::B;
use shohin_files::failed;
use shohin_train::adapter::{self, AdapterOptions, MAX_RANK, TARGETS};
use std::io::Write;
use std::path::Path;

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
    if !(1..=MAX_RANK).contains(&options.rank) {
        return refused("rank", options.rank.to_string(), format!("1 to {MAX_RANK}"));
    }
    let layers = model.config().num_layers;
    if let Some(range) = options.layers.as_ref().filter(|range| range.is_empty() || *range.end() >= layers) {
        let found = format!("{}-{}", range.start(), range.end());
        return refused("layers", found, format!("FIRST-LAST of 0 to {}", layers - 1));
    }
    let program = model.weights().model().program();
    let architecture = model.config().architecture.name;
    adapter::new_adapter(program, architecture, model.name(), options).map_err(|_| Error::Option {
        name: "targets",
        found: options.targets.join(","),
        expected: "matrices that the model has".into(),
    })
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
            out.write_all(&self.adapter_file(&gguf)?).map_err(failed)?;
            out.finish().map_err(failed)?;
        }
        Ok(())
    }

    /// Writes the adapter as it is now to the folder `path`, as PEFT reads it.
    pub(super) fn save_adapter_folder(&self, path: &Path, replace: bool) -> Result<()> {
        let options = ConvertOptions::new().replace(replace);
        for (file, _) in self.base.model.adapters() {
            let adapter = self.adapter_file(&file.gguf(&ReadOptions::default())?)?;
            let model = &self.base.model;
            crate::convert::adapter_to_folder(&adapter, model.config(), model.name(), path, &options)?;
        }
        Ok(())
    }

    /// The file of the adapter `gguf` with the factors as they are now.
    fn adapter_file(&self, gguf: &Gguf<'_>) -> Result<Vec<u8>> {
        let (program, factors) = (self.base.program(), self.factors()?);
        let factor = |name: &str| {
            let id = program.tensor_ids().find(|id| program.tensor(*id).name == name);
            let master = id.and_then(|id| self.trainer.master(id)).unwrap_or(&[]);
            // The program has `B` times the factor.
            (master, factors.iter().find(|(other, _)| other == name).map_or(1.0, |(_, factor)| *factor))
        };
        Ok(adapter::with_factors(gguf, factor, &[])?)
    }
}
