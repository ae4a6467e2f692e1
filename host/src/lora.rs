//! Adapters (LoRA) for a model, which are applied while it runs; see [`shohin_core::model::lora`].

use crate::error::{FileError, Result};
use crate::file::ModelFile;
use crate::shard::ShardBytes;
use sha2::{Digest, Sha256};
use shohin_core::gguf::ReadOptions;
use shohin_core::model::{LoraAdapter, ModelBytes};
use shohin_core::{BonsaiModel, ModelConfig};
use std::path::PathBuf;

/// An adapter's file, and the scale at which it is applied.
#[derive(Clone, Debug)]
pub(crate) struct Adapter {
    pub(crate) file: ModelFile,
    pub(crate) scale: f32,
}

/// Opens the adapters at these paths, for a model with this configuration.
pub(crate) fn open(paths: &[(PathBuf, f32)], config: &ModelConfig) -> Result<Vec<Adapter>> {
    // Not used in builds that convert nothing.
    let _ = config;
    let open = |(path, scale): &(PathBuf, f32)| {
        #[cfg(feature = "convert")]
        if shohin_convert::is_adapter_folder(path) {
            let bytes = shohin_convert::adapter_in_memory(path, config)?;
            return Ok(Adapter {
                file: ModelFile::from_bytes(path.display().to_string(), &bytes)?,
                scale: *scale,
            });
        }
        Ok(Adapter { file: ModelFile::open(path)?, scale: *scale })
    };
    paths.iter().map(open).collect()
}

/// Applies `adapters` to `model`.
pub(crate) fn adapt(model: BonsaiModel<ShardBytes>, adapters: &[Adapter]) -> Result<BonsaiModel<ShardBytes>> {
    let mut model = model;
    // One after another, as errors name the file.
    for Adapter { file, scale } in adapters {
        let named = |source| FileError::Model { name: file.name().into(), source };
        let gguf = file.gguf(&ReadOptions::default())?;
        let adapter = LoraAdapter::from_gguf(&gguf).map_err(named)?;
        model = model.adapt(&[(&adapter, *scale)], ShardBytes::owned).map_err(named)?;
    }
    Ok(model)
}

/// Bytes of the factors of `model`, which is in `files` files.
pub(crate) fn bytes(model: &BonsaiModel<ShardBytes>, files: usize) -> usize {
    model.weights().parts().iter().skip(files).map(|part| part.bytes().len()).sum()
}

/// Adds what results depend on to `hash`: nothing without adapters that have an effect.
pub(crate) fn hash(adapters: &[Adapter], hash: &mut Sha256) {
    for Adapter { file, scale } in adapters.iter().filter(|adapter| adapter.scale != 0.0) {
        let mut content = Sha256::new();
        file.bytes().for_each(|part| content.update(part));
        hash.update(b"adapter");
        hash.update(content.finalize());
        hash.update(scale.to_le_bytes());
    }
}
