//! Adapters (LoRA) for a model, which are applied while it runs; see [`shohin_core::model::lora`].

use crate::error::{FileError, Result};
use crate::file::ModelFile;
use crate::shard::ShardBytes;
use sha2::{Digest, Sha256};
use shohin_core::gguf::ReadOptions;
use shohin_core::model::{LoraAdapter, ModelBytes};
use shohin_core::{BonsaiModel, ModelConfig};
use std::path::{Path, PathBuf};

/// An adapter (LoRA), and the scale at which it is applied. Clones share its bytes.
///
/// ```no_run
/// # fn main() -> shohin::Result<()> {
/// let model = shohin::Model::builder().load("model.gguf")?;
/// let poet = shohin::Adapter::open("poet.gguf", &model)?;
/// // Both share the weights of the model, and run side by side.
/// let poet = model.adapted(&[poet.at(0.8)])?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Adapter {
    pub(crate) file: ModelFile,
    pub(crate) scale: f32,
}

impl Adapter {
    pub(crate) fn for_config(path: &Path, config: &ModelConfig) -> Result<Adapter> {
        // Not used in builds that convert nothing.
        let _ = config;
        #[cfg(feature = "convert")]
        if shohin_convert::is_adapter_folder(path) {
            let bytes = shohin_convert::adapter_in_memory(path, config)?;
            return Adapter::from_bytes(path.display().to_string(), &bytes);
        }
        Ok(Adapter { file: ModelFile::open(path)?, scale: 1.0 })
    }

    /// The adapter in the bytes of a GGUF file, called `name` in errors, at scale 1.
    ///
    /// # Errors
    /// [`Error::File`](crate::Error::File).
    pub fn from_bytes(name: impl Into<String>, bytes: &[u8]) -> Result<Adapter> {
        Ok(Adapter { file: ModelFile::from_bytes(name.into(), bytes)?, scale: 1.0 })
    }

    /// The same at another scale; at 0 it has no effect.
    #[must_use]
    pub fn at(self, scale: f32) -> Adapter {
        Adapter { scale, ..self }
    }

    /// The file.
    pub fn file(&self) -> &ModelFile {
        &self.file
    }

    /// The scale.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// Calls `apply` with the adapter as it is read.
    pub(crate) fn with<T>(
        &self,
        apply: impl FnOnce(&LoraAdapter<'_>) -> shohin_core::Result<T>,
    ) -> Result<T> {
        let gguf = self.file.gguf(&ReadOptions::default())?;
        let done = LoraAdapter::from_gguf(&gguf).and_then(|adapter| apply(&adapter));
        done.map_err(|source| FileError::Model { name: self.file.name().into(), source }.into())
    }
}

/// Opens the adapters at these paths, for a model with this configuration.
pub(crate) fn open(paths: &[(PathBuf, f32)], config: &ModelConfig) -> Result<Vec<Adapter>> {
    paths.iter().map(|(path, scale)| Ok(Adapter::for_config(path, config)?.at(*scale))).collect()
}

/// Applies `adapters` to `model`, with ranks that are filled up to a multiple of `multiple`.
pub(crate) fn adapt(
    model: BonsaiModel<ShardBytes>,
    adapters: &[Adapter],
    multiple: usize,
) -> Result<BonsaiModel<ShardBytes>> {
    let mut model = model;
    // One after another, as errors name the file.
    for adapter in adapters {
        model = adapter
            .with(|factors| model.adapt_padded(&[(factors, adapter.scale)], multiple, ShardBytes::owned))?;
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
