//! What a model is loaded from: its file, configuration and adapters.

use crate::error::{Error, FileError, Result};
use crate::file::ModelFile;
use crate::lora::{self, Adapter};
use crate::shard::{Cached, ShardBytes};
use shohin_core::cpu::{CpuWeights, Isa};
use shohin_core::gguf::ReadOptions;
use shohin_core::model::lora::refuse_adapter;
use shohin_core::model::{ModelBytes, Split};
use shohin_core::{BonsaiModel, Gguf, ModelConfig, Pool, Tokenizer};
use std::path::PathBuf;

/// A model's file as it is read.
pub(crate) struct Source<'f> {
    pub(crate) file: &'f ModelFile,
    pub(crate) read: ReadOptions,
    pub(crate) gguf: Gguf<'f>,
    /// With the overrides of the options.
    pub(crate) config: ModelConfig,
    pub(crate) adapters: Vec<Adapter>,
}

impl<'f> Source<'f> {
    /// Reads everything but the weights; `configured` applies the overrides of the options.
    pub(crate) fn read(
        file: &'f ModelFile,
        read: ReadOptions,
        configured: impl FnOnce(ModelConfig) -> Result<ModelConfig>,
        adapters: &[(PathBuf, f32)],
    ) -> Result<Source<'f>> {
        let named = |source| FileError::Model { name: file.name().into(), source };
        let gguf = file.gguf(&read)?;
        refuse_adapter(&gguf).map_err(named)?;
        let config = configured(ModelConfig::from_gguf(&gguf).map_err(named)?)?;
        let adapters = lora::open(adapters, &config)?;
        Ok(Source { file, read, gguf, config, adapters })
    }

    /// An error of the file as a whole.
    pub(crate) fn named(&self, source: shohin_core::Error) -> Error {
        FileError::Model { name: self.file.name().into(), source }.into()
    }

    pub(crate) fn tokenizer(&self) -> shohin_core::Result<Tokenizer<'static>> {
        Tokenizer::from_gguf(&self.gguf).map(Tokenizer::into_owned)
    }

    /// The model over the bytes of its parts, with the adapters, whose ranks are filled up to a multiple of `multiple`.
    fn adapted(
        &self,
        parts: Vec<ShardBytes>,
        read: &ReadOptions,
        multiple: usize,
    ) -> Result<BonsaiModel<ShardBytes>> {
        let model = BonsaiModel::load_parts(parts, read, |_| self.config.clone());
        let model = model.map_err(|wrong| self.file.error(wrong.part, wrong.error))?;
        lora::adapt(model, &self.adapters, multiple)
    }

    /// The model over the bytes of its parts, with the adapters.
    fn model(&self, parts: Vec<ShardBytes>, read: &ReadOptions) -> Result<BonsaiModel<ShardBytes>> {
        self.adapted(parts, read, 1)
    }

    /// The model in the layout of the files, which stay mapped, with the adapters in the layout that GPUs need.
    #[cfg(any(feature = "gpu", feature = "cuda", all(feature = "metal", target_os = "macos")))]
    pub(crate) fn for_gpu(&self) -> Result<BonsaiModel<ShardBytes>> {
        self.adapted(self.file.mapped(), &self.read, shohin_core::model::lora::UNIT)
    }

    /// The weights in the layout of the files, which stay mapped.
    pub(crate) fn mapped(&self) -> Result<CpuWeights<ShardBytes>> {
        let model = self.model(self.file.mapped(), &self.read)?;
        CpuWeights::new(model).map_err(|error| self.file.error(0, error))
    }

    /// The weights in the layout of the file, read through a window of `window` bytes.
    pub(crate) fn paged(&self, window: usize) -> Result<CpuWeights<ShardBytes>> {
        let bytes = self.file.paged(window)?;
        let model = BonsaiModel::from_header(self.gguf.header(), bytes, self.config.clone());
        model.and_then(CpuWeights::new).map_err(|error| self.file.error(0, error))
    }

    /// The weights in a copy in memory, repacked into the layouts preferred by `isa`; the files are not changed.
    /// Base-3 formats are expanded to 2-bit codes unless `compact`. A file for which there is no memory stays
    /// mapped.
    pub(crate) fn repacked(
        &self,
        compact: bool,
        isa: Isa,
        pool: &dyn Pool,
    ) -> Result<CpuWeights<ShardBytes>> {
        let read = self.file.shard_options(&self.read)?;
        let model = self.model(self.file.copied(&read, compact, isa, pool)?, &read)?;
        CpuWeights::repack(model, isa, pool).map_err(|error| self.file.error(0, error))
    }

    /// The weights in `files`, which [`Source::repacked`] made for the same `isa`.
    pub(crate) fn cached(&self, files: Vec<Cached>, isa: Isa) -> Result<CpuWeights<ShardBytes>> {
        let parts: Vec<ShardBytes> = files.into_iter().map(ShardBytes::cached).collect();
        let whole = matches!(&parts[..], [one] if one.bytes().len() == self.file.file_len());
        let read = if whole { self.read } else { self.file.shard_options(&self.read)? };
        CpuWeights::repacked(self.model(parts, &read)?, isa).map_err(|error| self.file.error(0, error))
    }

    /// One rank's part of the model, copied out of the files.
    pub(crate) fn part(&self, rank: (Split, usize)) -> Result<BonsaiModel<ShardBytes>> {
        let config = self.config.clone();
        let parts = self.file.mapped();
        let model = BonsaiModel::load_split(parts, &self.read, |_| config, rank, ShardBytes::owned);
        model.map_err(|wrong| self.file.error(wrong.part, wrong.error))
    }
}
