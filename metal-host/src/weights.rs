//! A model's weights in shared memory, packed once.
#![forbid(unsafe_code)]

use crate::driver::Driver;
use crate::error::{Error, Result};
use shohin_accelerator::{Head, Supported, check, head, layouts, repack};
use shohin_core::model::program::{TensorId, TensorSpec};
use shohin_core::model::{ModelBytes, ModelConfig, Program};
use shohin_core::quant::packed::PackedFormat;
use shohin_core::{BonsaiModel, Matrix as FileMatrix};
use std::sync::Arc;

/// A packed matrix `(rows, cols)`, or one of each expert.
pub(crate) struct Matrix<B> {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) packed: PackedFormat,
    pub(crate) codes: B,
    /// The codes again for floats, which have no scales.
    pub(crate) scales: B,
}

/// A tensor of the program.
enum Tensor<B> {
    Matrix(Matrix<B>),
    /// As 32-bit floats.
    Vector(B),
}

/// A model whose weights are in memory shared with the GPU; any number of devices share it.
pub struct MetalModel<D: Driver> {
    driver: D,
    config: ModelConfig,
    program: Program,
    /// Indexed by tensor.
    tensors: Vec<Tensor<D::Buffer>>,
    bytes: u64,
}

impl<D: Driver> core::fmt::Debug for MetalModel<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("MetalModel").field("device", &self.driver.name()).field("bytes", &self.bytes).finish()
    }
}

impl<D: Driver> MetalModel<D> {
    /// Packs the weights of `model` into the memory of `driver`'s device; the model is not needed any more then.
    ///
    /// # Errors
    /// For an operation, a shape or a format without kernels; [`Error::OutOfMemory`].
    pub fn new<B: ModelBytes>(driver: D, model: &BonsaiModel<B>) -> Result<Arc<MetalModel<D>>> {
        let program = model.program();
        check(program, Supported { experts: true, ranks: false })?;
        let layouts = layouts(program, |id| model.weights().format(id))?;
        let of_head = head(program)?;
        let (mut tensors, mut bytes) = (Vec::new(), 0);
        for (id, packed) in program.tensor_ids().zip(layouts) {
            let (matrix, spec) = (model.weights().matrix(id)?, program.tensor(id));
            tensors.push(match packed {
                Some(packed) => {
                    check_size(spec)?;
                    bytes += packed.bytes(spec.rows, spec.cols);
                    Tensor::Matrix(Matrix { rows: spec.rows_each(), ..pack(&driver, matrix, packed)? })
                }
                None => {
                    let mut weights = vec![0.0f32; matrix.cols()];
                    matrix.unpack_row(0, &mut weights)?;
                    if let Some(Head { factor, .. }) = of_head.filter(|head| head.weight == id) {
                        weights.iter_mut().for_each(|weight| *weight *= factor);
                    }
                    bytes += 4 * weights.len() as u64;
                    Tensor::Vector(filled(&driver, bytemuck::cast_slice(&weights))?)
                }
            });
        }
        let (config, program) = (model.config().clone(), program.clone());
        Ok(Arc::new(MetalModel { driver, config, program, tensors, bytes }))
    }

    /// The device.
    pub fn driver(&self) -> &D {
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

    /// Bytes of weights.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn matrix(&self, id: TensorId) -> Result<&Matrix<D::Buffer>> {
        match &self.tensors[id.index()] {
            Tensor::Matrix(matrix) => Ok(matrix),
            Tensor::Vector(_) => {
                Err(Error::Operation { found: "a product with a vector", expected: "one with a matrix" })
            }
        }
    }

    pub(crate) fn vector(&self, id: TensorId) -> Result<&D::Buffer> {
        match &self.tensors[id.index()] {
            Tensor::Vector(vector) => Ok(vector),
            Tensor::Matrix(_) => {
                Err(Error::Operation { found: "a norm with a matrix", expected: "one with a vector" })
            }
        }
    }
}

/// A buffer with this content.
pub(crate) fn filled<D: Driver>(driver: &D, bytes: &[u8]) -> Result<D::Buffer> {
    let buffer = driver.buffer(bytes.len() as u64)?;
    driver.write(&buffer, 0, bytes)?;
    Ok(buffer)
}

/// Indices of the kernels have 32 bits; a unit of floats has 8 of them.
fn check_size(spec: &TensorSpec) -> Result<()> {
    let units = (spec.rows as u64).checked_mul(spec.cols as u64 / 4);
    if units.is_some_and(|units| u32::try_from(units).is_ok()) {
        return Ok(());
    }
    let (what, found) = ("a matrix's number of columns", spec.cols as u64);
    Err(Error::Unsupported { what, found, expected: "a multiple of 32, with fewer than 2^34 weights" })
}

fn pack<D: Driver>(driver: &D, matrix: FileMatrix<'_>, packed: PackedFormat) -> Result<Matrix<D::Buffer>> {
    let (rows, cols) = (matrix.rows(), matrix.cols());
    let [code_bytes, scale_bytes] =
        [packed.code_words(cols), packed.scale_words(cols)].map(|words| 4 * words);
    let codes = driver.buffer((rows * code_bytes) as u64)?;
    let scales = match scale_bytes {
        0 => codes.clone(),
        _ => driver.buffer((rows * scale_bytes) as u64)?,
    };
    let mut at = [0, 0];
    repack(packed, matrix, 1, |code_words, scale_words| {
        for ((words, buffer), at) in [(code_words, &codes), (scale_words, &scales)].into_iter().zip(&mut at) {
            if !words.is_empty() {
                driver.write(buffer, *at, bytemuck::cast_slice(words))?;
                *at += 4 * words.len() as u64;
            }
        }
        Ok(())
    })?;
    Ok(Matrix { rows, cols, packed, codes, scales })
}
