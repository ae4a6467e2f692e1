//! A loaded model: its configuration, its forward pass and its weights.
#![forbid(unsafe_code)]

use alloc::vec::Vec;

use super::config::ModelConfig;
use super::lora::{self, Adapted, LoraAdapter};
use super::program::Program;
use super::registry::ModelVariant;
use super::split::{Piece, Split, SplitProgram};
use super::weights::{ModelBytes, StoredTensor, Weights, stored, stored_in_file};
use crate::error::{Error, Name, Result};
use crate::gguf::{Gguf, Header, PartError, ReadOptions};

/// A loaded model: configuration, program and packed weights in bytes of type `B`. Named after the main model
/// family; every [`Architecture`](super::Architecture) is supported.
#[derive(Clone, Debug)]
pub struct BonsaiModel<B> {
    config: ModelConfig,
    program: Program,
    weights: Weights<B>,
}

impl<'a> BonsaiModel<&'a [u8]> {
    /// Validates configuration and tensors of `gguf`. Weights stay packed, in its bytes.
    ///
    /// # Errors
    /// If the file is malformed or not supported.
    pub fn from_gguf(gguf: &Gguf<'a>) -> Result<Self> {
        Self::with_config(gguf, ModelConfig::from_gguf(gguf)?)
    }

    /// As [`BonsaiModel::from_gguf`], with values of the configuration overridden (RoPE scaling, for
    /// example).
    ///
    /// # Errors
    /// As [`BonsaiModel::from_gguf`], and for an invalid configuration.
    pub fn with_config(gguf: &Gguf<'a>, config: ModelConfig) -> Result<Self> {
        config.check()?;
        let program = config.program();
        let weights = Weights::new(&program, gguf, gguf.part_bytes())?;
        Self::new(config, program, weights)
    }
}

impl<B: ModelBytes> BonsaiModel<B> {
    /// Reads the model in `bytes`, a whole file, and owns them.
    ///
    /// # Errors
    /// If the file is malformed or not supported.
    pub fn load(bytes: B) -> Result<Self> {
        Self::load_with(bytes, &ReadOptions::default())
    }

    /// [`BonsaiModel::load`] with options for reading the file.
    ///
    /// # Errors
    /// As [`BonsaiModel::load`].
    pub fn load_with(bytes: B, options: &ReadOptions) -> Result<Self> {
        let loaded = Self::load_parts(Vec::from([bytes]), options, |config| config);
        loaded.map_err(|wrong| wrong.error)
    }

    /// A model in one file, of which only the header is known: for weights that are not in memory, see
    /// [`paging`](crate::paging). `config` is [`ModelConfig::from_header`], or the same with values overridden.
    ///
    /// # Errors
    /// If a tensor is missing or not supported, or `bytes` are too few; [`Error::Read`].
    pub fn from_header(header: &Header<'_>, bytes: B, config: ModelConfig) -> Result<Self> {
        config.check()?;
        let program = config.program();
        let weights = Weights::hold(stored_in_file(&program, header)?, Vec::from([bytes]))?;
        Self::new(config, program, weights)
    }

    /// Reads the model in `parts`, all files of a model in order, and owns them. `configure` may override
    /// values of the configuration (RoPE scaling, for example).
    ///
    /// # Errors
    /// If a part is malformed or not supported; the error names the part.
    pub fn load_parts(
        parts: Vec<B>,
        options: &ReadOptions,
        configure: impl FnOnce(ModelConfig) -> ModelConfig,
    ) -> Result<Self, PartError> {
        let whole = |error| PartError { part: 0, error };
        let (config, tensors, program) = read(&parts, options, configure)?;
        let weights = Weights::hold(tensors, parts).map_err(whole)?;
        Self::new(config, program, weights).map_err(whole)
    }

    /// As [`BonsaiModel::load_parts`], of one rank of `split`. The matrices that it multiplies by are copied out of
    /// `parts`, and `hold` owns the copy; the rest is read where it is.
    ///
    /// # Errors
    /// As [`BonsaiModel::load_parts`] and [`Program::split`]; [`Error::Unsupported`] if a boundary between ranks is not one
    /// between blocks of a format, [`Error::Memory`].
    pub fn load_split(
        mut parts: Vec<B>,
        options: &ReadOptions,
        configure: impl FnOnce(ModelConfig) -> ModelConfig,
        (split, rank): (Split, usize),
        hold: impl FnOnce(Vec<u8>) -> B,
    ) -> Result<Self, PartError> {
        let whole = |error| PartError { part: 0, error };
        let (config, tensors, program) = read(&parts, options, configure)?;
        let SplitProgram { program, pieces } = program.split(split, rank).map_err(whole)?;
        let multiplied = |id| {
            program.matrices().any(|matrix| {
                matrix == id && (id != program.output || rank == 0 || program.divided_vocab.is_some())
            })
        };
        let copied: Vec<bool> = program.tensor_ids().map(multiplied).collect();
        let (mut mine, mut copy) = (Vec::with_capacity(pieces.len()), Vec::new());
        for (piece, copied) in pieces.iter().zip(copied) {
            let tensor = &tensors[piece.tensor.index()];
            if !copied {
                mine.push(tensor.clone());
                continue;
            }
            let bytes = parts.get(tensor.part).map_or(&[][..], B::bytes);
            let part = parts.len();
            mine.push(copy_piece(tensor, bytes, piece, part, &mut copy).map_err(whole)?);
        }
        parts.push(hold(copy));
        let weights = Weights::hold(mine, parts).map_err(whole)?;
        Self::new(config, program, weights).map_err(whole)
    }

    /// The model with `adapters`, each at its scale: their factors are copied, and `hold` owns the copy. Those at scale 0 are
    /// only checked. See [`lora`].
    ///
    /// # Errors
    /// [`Error::Unsupported`] if an adapter is for another architecture or for a matrix that the model lacks, or that
    /// cannot be adapted; [`Error::TensorShape`], [`Error::Option`] for a scale that is not finite, [`Error::Memory`].
    pub fn adapt(
        self,
        adapters: &[(&LoraAdapter<'_>, f32)],
        hold: impl FnOnce(Vec<u8>) -> B,
    ) -> Result<Self> {
        self.adapt_padded(adapters, 1, hold)
    }

    /// As [`BonsaiModel::adapt`], with ranks that are filled up with zeros to a multiple of `multiple`, which changes no
    /// result: GPUs need [`lora::UNIT`].
    ///
    /// # Errors
    /// As [`BonsaiModel::adapt`].
    pub fn adapt_padded(
        mut self,
        adapters: &[(&LoraAdapter<'_>, f32)],
        multiple: usize,
        hold: impl FnOnce(Vec<u8>) -> B,
    ) -> Result<Self> {
        let part = self.weights.parts().len();
        let architecture = self.config.architecture.name;
        let adapted = lora::adapt(&self.program, architecture, adapters, part, multiple)?;
        let Adapted { program, tensors, bytes } = adapted;
        if !tensors.is_empty() {
            self.weights.append(tensors, hold(bytes))?;
            self.program = program;
        }
        Ok(self)
    }

    fn new(config: ModelConfig, mut program: Program, weights: Weights<B>) -> Result<Self> {
        if let Some(id) = program.rope_factors.filter(|_| config.positions.divides_rope()) {
            let factors = weights.vector(id, &program.tensor(id).name)?;
            program.divide_rope(&factors)?;
        }
        Ok(BonsaiModel { config, program, weights })
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Its forward pass.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Its tensors.
    pub fn weights(&self) -> &Weights<B> {
        &self.weights
    }

    pub(crate) fn weights_mut(&mut self) -> &mut Weights<B> {
        &mut self.weights
    }

    /// Which published model it is.
    pub fn variant(&self) -> ModelVariant {
        let first = self.program.matrices().next();
        first.map_or(ModelVariant::Custom, |id| ModelVariant::detect(&self.config, self.weights.format(id)))
    }
}

/// What the headers of a model's files describe.
fn read<B: ModelBytes>(
    parts: &[B],
    options: &ReadOptions,
    configure: impl FnOnce(ModelConfig) -> ModelConfig,
) -> Result<(ModelConfig, Vec<StoredTensor>, Program), PartError> {
    let whole = |error| PartError { part: 0, error };
    let bytes: Vec<&[u8]> = parts.iter().map(B::bytes).collect();
    let gguf = Gguf::parse_parts(&bytes, options)?;
    let config = configure(ModelConfig::from_gguf(&gguf).map_err(whole)?);
    config.check().map_err(whole)?;
    let program = config.program();
    let tensors = stored(&program, &gguf).map_err(whole)?;
    Ok((config, tensors, program))
}

/// Appends a piece of a tensor of the file `bytes` to `copy`, which will be file `part`.
fn copy_piece(
    tensor: &StoredTensor,
    bytes: &[u8],
    piece: &Piece,
    part: usize,
    copy: &mut Vec<u8>,
) -> Result<StoredTensor> {
    /// Kernels read whole cache lines.
    const ALIGNMENT: usize = 64;
    let format = tensor.format;
    let expected = "boundaries between ranks that are boundaries of blocks of the format";
    let wrong =
        error!(Unsupported { key: Name::new("tensor type"), found: Name::new(format.name()), expected });
    let at = |col: usize| format.row_bytes(col).ok_or(wrong);
    let (row, cols) = (at(tensor.cols)?, at(piece.cols.start)?..at(piece.cols.end)?);
    let len = piece.rows.len() * cols.len();
    let need = error!(Memory { need: len as u64, have: 0 });
    copy.try_reserve(len + ALIGNMENT).map_err(|_| need)?;
    copy.resize(copy.len().next_multiple_of(ALIGNMENT), 0);
    let start = copy.len();
    let data = bytes.get(tensor.range.clone()).unwrap_or(&[]);
    for row in data.chunks_exact(row.max(1)).skip(piece.rows.start).take(piece.rows.len()) {
        copy.extend_from_slice(&row[cols.clone()]);
    }
    Ok(StoredTensor {
        part,
        range: start..copy.len(),
        format,
        rows: piece.rows.len(),
        cols: piece.cols.len(),
    })
}
