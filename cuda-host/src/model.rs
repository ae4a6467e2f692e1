//! A model's weights on a GPU.

use crate::args::MatrixArgs;
use crate::driver::{Driver, Memory};
use crate::error::{Error, Result};
use crate::tiles::{self, TILE, Together};
use shohin_accelerator::{Head, KvShape, Supported, check, head, layouts, repack};
use shohin_core::device::SessionOptions;
use shohin_core::model::program::TensorId;
use shohin_core::model::{ModelBytes, ModelConfig, Program};
use shohin_core::quant::packed::{Codes, PackedFormat, Scales};
use shohin_core::quant::{self, Matrix};
use shohin_core::{BonsaiModel, Error as CoreError, Gguf, Name};
use std::sync::Arc;

/// Where the codes and scales of matrices are.
pub(crate) enum Storage<D: Driver> {
    /// Those of one.
    Rows { _codes: Memory<D>, _scales: Memory<D> },
    /// Those of one or more.
    Tiles(tiles::Storage<D>),
}

/// A tensor on the GPU.
pub(crate) enum Tensor<D: Driver> {
    Vector(Memory<D>),
    /// One matrix, or one of each expert, of which `args` has the rows.
    Matrix {
        args: MatrixArgs,
        packed: PackedFormat,
        storage: Arc<Storage<D>>,
    },
    /// Not uploaded.
    Unused,
}

/// A model whose weights are on a GPU, shared by any number of devices.
pub struct CudaModel<D: Driver> {
    pub(crate) driver: Arc<D>,
    config: ModelConfig,
    program: Program,
    tensors: Vec<Tensor<D>>,
    bytes: u64,
}

impl<D: Driver> core::fmt::Debug for CudaModel<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CudaModel").field("gpu", &self.driver.name()).field("bytes", &self.bytes).finish()
    }
}

/// The number of a kernel of `codes.cuh`.
pub(crate) const fn kind(codes: Codes) -> u32 {
    match codes {
        Codes::Bits1 => 0,
        Codes::Bits2 | Codes::Bits2Unsigned => 1,
        Codes::Bits4 | Codes::Bits4Unsigned => 2,
        Codes::Bits6 => 3,
        Codes::Bits8 => 4,
        Codes::Iq4 | Codes::Fp4 | Codes::Iq1 | Codes::Iq2 | Codes::Iq3Xxs | Codes::Iq3S => 5,
        Codes::F16 => 6,
        Codes::Bf16 => 7,
        Codes::F32 => 8,
    }
}

fn matrix_args(packed: PackedFormat, rows: usize, cols: usize, codes: u64, scales: u64) -> MatrixArgs {
    let facts = packed.codes.facts();
    let levels = facts.levels.map_or([0; 4], |levels| bytemuck::cast(*levels));
    let scale_kind = match packed.scales {
        Scales::F16 => 0,
        Scales::F32 => 1,
        Scales::Block => 2,
    };
    MatrixArgs {
        codes,
        scales,
        rows: rows as u32,
        units: (cols / 32) as u32,
        scale_words: packed.scale_words(cols) as u32,
        group: packed.group as u32,
        scale_kind,
        parts: packed.parts() as u32,
        block_words: packed.block_words() as u32,
        factor: facts.factor,
        offset: facts.offset,
        kind: kind(packed.codes),
        levels,
    }
}

impl<D: Driver> CudaModel<D> {
    /// Uploads a whole file.
    ///
    /// # Errors
    /// If the file is malformed or not supported; [`Error::OutOfMemory`].
    pub fn from_gguf(driver: Arc<D>, gguf: &Gguf<'_>) -> Result<Arc<CudaModel<D>>> {
        Self::with_config(driver, gguf, ModelConfig::from_gguf(gguf)?)
    }

    /// As [`CudaModel::from_gguf`], with values of the configuration overridden (RoPE scaling, for example).
    ///
    /// # Errors
    /// As [`CudaModel::from_gguf`], and for an invalid configuration.
    pub fn with_config(driver: Arc<D>, gguf: &Gguf<'_>, config: ModelConfig) -> Result<Arc<CudaModel<D>>> {
        Self::from_model(driver, &BonsaiModel::with_config(gguf, config)?)
    }

    /// Uploads a model, or a rank's part of one, see [`BonsaiModel::load_split`]: the device then has to be in a group
    /// ([`CudaBackend::join_group`](crate::CudaBackend::join_group)).
    ///
    /// # Errors
    /// If the model is not supported; [`Error::OutOfMemory`].
    pub fn from_model<B: ModelBytes>(driver: Arc<D>, model: &BonsaiModel<B>) -> Result<Arc<CudaModel<D>>> {
        let (program, weights) = (model.program(), model.weights());
        check(program, Supported { experts: true, ranks: true })?;
        let layouts = layouts(program, |id| weights.format(id))?;
        let of_head = head(program)?;
        let mut tensors: Vec<Option<Tensor<D>>> = program.tensors.iter().map(|_| None).collect();
        let mut bytes = 0;
        for Together { tensors: ids, alternate } in tiles::together(program, &layouts) {
            let Some(packed) = layouts[ids[0].index()] else { continue };
            let cols = program.tensor(ids[0]).cols;
            let rows: Vec<usize> = ids.iter().map(|id| program.tensor(*id).rows).collect();
            let storage = tiles::Storage::new(&driver, packed, &rows, cols)?;
            bytes += storage.bytes();
            let storage = Arc::new(Storage::Tiles(storage));
            let mut first = 0;
            for (id, rows) in ids.iter().zip(rows) {
                let Storage::Tiles(tiles) = &*storage else { continue };
                let in_rows = matrix_args(packed, rows, cols, 0, 0);
                let args = tiles.args(packed, in_rows, first, if alternate { ids.len() } else { 1 });
                tiles::upload(&driver, packed, weights.matrix(*id)?, args, in_rows)?;
                first += if alternate { 1 } else { rows.div_ceil(TILE) };
                tensors[id.index()] = Some(Tensor::Matrix { args, packed, storage: Arc::clone(&storage) });
            }
        }
        for (((id, spec), layout), tensor) in
            program.tensor_ids().zip(&program.tensors).zip(layouts).zip(&mut tensors)
        {
            if tensor.is_some() {
                continue;
            }
            let matrix = weights.matrix(id)?;
            *tensor = Some(match layout {
                None => {
                    let mut weight = vec![0.0; spec.rows * spec.cols];
                    quant::unpack(matrix.format(), matrix.data(), &mut weight)?;
                    if let Some(Head { factor, .. }) = of_head.filter(|head| head.weight == id) {
                        weight.iter_mut().for_each(|weight| *weight *= factor);
                    }
                    let memory = Memory::new(&driver, 4 * weight.len())?;
                    driver.write(memory.address(), bytemuck::cast_slice(&weight))?;
                    bytes += memory.bytes() as u64;
                    Tensor::Vector(memory)
                }
                // Stages of a pipeline after the first know the size of the vocabulary by it.
                Some(_) if id == program.output && program.head.is_empty() => Tensor::Unused,
                Some(packed) => {
                    let words = [packed.code_words(spec.cols), packed.scale_words(spec.cols)];
                    let [codes, scales] = words.map(|words| Memory::new(&driver, 4 * words * spec.rows));
                    let (codes, scales) = (codes?, scales?);
                    upload(&*driver, packed, matrix, [codes.address(), scales.address()])?;
                    bytes += packed.bytes(spec.rows, spec.cols);
                    let args =
                        matrix_args(packed, spec.rows_each(), spec.cols, codes.address(), scales.address());
                    let storage = Storage::Rows { _codes: codes, _scales: scales };
                    Tensor::Matrix { args, packed, storage: Arc::new(storage) }
                }
            });
        }
        let tensors = tensors.into_iter().map(|tensor| tensor.unwrap_or(Tensor::Unused)).collect();
        let (config, program) = (model.config().clone(), program.clone());
        Ok(Arc::new(CudaModel { driver, config, program, tensors, bytes }))
    }

    /// The GPU.
    pub fn driver(&self) -> &Arc<D> {
        &self.driver
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Its forward pass.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Bytes of weights on the GPU.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of the keys and values of a sequence, or of this rank's part of them.
    pub fn kv_bytes(&self, session: &SessionOptions) -> u64 {
        let context = session.context.min(self.config.max_context_length);
        KvShape::new(&self.program, &SessionOptions { context, ..*session }).bytes()
    }

    fn misused(&self, id: TensorId) -> Error {
        let found = Name::new(&self.program.tensor(id).name);
        let expected = "a tensor used as what it is";
        CoreError::Unsupported { key: Name::new("tensor"), found, expected }.into()
    }

    pub(crate) fn matrix(&self, id: TensorId) -> Result<(MatrixArgs, PackedFormat)> {
        match &self.tensors[id.index()] {
            Tensor::Matrix { args, packed, .. } => Ok((*args, *packed)),
            Tensor::Vector(_) | Tensor::Unused => Err(self.misused(id)),
        }
    }

    /// Whether two matrices are stored together.
    pub(crate) fn together(&self, one: TensorId, other: TensorId) -> bool {
        match [one, other].map(|id| &self.tensors[id.index()]) {
            [Tensor::Matrix { storage: a, .. }, Tensor::Matrix { storage: b, .. }] => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    pub(crate) fn vector(&self, id: TensorId) -> Result<u64> {
        match &self.tensors[id.index()] {
            Tensor::Vector(memory) => Ok(memory.address()),
            Tensor::Matrix { .. } | Tensor::Unused => Err(self.misused(id)),
        }
    }
}

/// Writes the codes and scales of a matrix.
fn upload<D: Driver>(driver: &D, packed: PackedFormat, matrix: Matrix<'_>, to: [u64; 2]) -> Result<()> {
    let mut at = to;
    repack(packed, matrix, 1, |codes, scales| {
        for (words, at) in [codes, scales].into_iter().zip(&mut at) {
            if !words.is_empty() {
                driver.write(*at, bytemuck::cast_slice(words))?;
                *at += 4 * words.len() as u64;
            }
        }
        Ok(())
    })
}
