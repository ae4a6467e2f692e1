//! A model's weights in shared memory, packed once.
#![forbid(unsafe_code)]

use crate::driver::Driver;
use crate::error::{Error, Result, unsupported};
use shohin_core::model::program::{Experts, Op, TensorId, TensorRole};
use shohin_core::model::{ModelBytes, ModelConfig, Program, alibi, depths, lora};
use shohin_core::quant::packed::PackedFormat;
use shohin_core::{BonsaiModel, Error as CoreError, Matrix as FileMatrix, Name};
use std::sync::Arc;

/// Bytes packed before they are copied.
const STAGING: usize = 1 << 20;

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
        check(program)?;
        let layouts = layouts(model)?;
        let (mut tensors, mut bytes) = (Vec::new(), 0);
        for (id, packed) in program.tensor_ids().zip(layouts) {
            let matrix = model.weights().matrix(id)?;
            tensors.push(match program.tensor(id).role {
                TensorRole::Matrix => {
                    let rows = program.tensor(id).rows_each();
                    Tensor::Matrix(Matrix { rows, ..pack(&driver, &matrix, packed, &mut bytes)? })
                }
                TensorRole::Vector => {
                    let mut weights = vec![0.0f32; matrix.cols()];
                    matrix.unpack_row(0, &mut weights)?;
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
            Tensor::Vector(_) => Err(unsupported("a product with a vector", "one with a matrix")),
        }
    }

    pub(crate) fn vector(&self, id: TensorId) -> Result<&D::Buffer> {
        match &self.tensors[id.index()] {
            Tensor::Vector(vector) => Ok(vector),
            Tensor::Matrix(_) => Err(unsupported("a norm with a matrix", "one with a vector")),
        }
    }
}

/// A buffer with this content.
pub(crate) fn filled<D: Driver>(driver: &D, bytes: &[u8]) -> Result<D::Buffer> {
    let buffer = driver.buffer(bytes.len() as u64)?;
    driver.write(&buffer, 0, bytes)?;
    Ok(buffer)
}

/// Refuses programs that the kernels cannot compute.
fn check(program: &Program) -> Result<()> {
    let d = program.heads.dim;
    if !d.is_multiple_of(32) || d > 256 {
        let what = "the number of dimensions of a head";
        return Err(Error::Unsupported { what, found: d as u64, expected: "a multiple of 32, at most 256" });
    }
    if !program.alibi_slopes.is_empty() {
        let (what, found) = (alibi::REFUSED, program.alibi_slopes.len() as u64);
        return Err(Error::Unsupported { what, found, expected: "0; the CPU computes them" });
    }
    if !program.routed_layers.is_empty() {
        let (what, found) = (depths::REFUSED, program.routed_layers.len() as u64);
        return Err(Error::Unsupported { what, found, expected: "0; the CPU computes them" });
    }
    for op in program.body.iter().chain(&program.head) {
        match op {
            Op::Exchange(_) => {
                return Err(unsupported("a program that is split among devices", "a whole one"));
            }
            Op::Swiglu { .. } => return Err(unsupported(lora::REFUSED, "none; the CPU computes them")),
            Op::RmsNorm { weight, .. } if !program.tensor(*weight).cols.is_multiple_of(32) => {
                let (what, found) = ("the width of the residual stream", program.tensor(*weight).cols as u64);
                return Err(Error::Unsupported { what, found, expected: "a multiple of 32" });
            }
            Op::RmsNorm { .. }
            | Op::Embed { .. }
            | Op::Linear { .. }
            | Op::LinearAdd { .. }
            | Op::LinearSwiglu { .. }
            | Op::Experts(_)
            | Op::RopeStore { .. }
            | Op::Select { .. }
            | Op::Merge { .. }
            | Op::Attention { .. } => {}
        }
    }
    match program.head[..] {
        [Op::RmsNorm { x, out, .. }] if x == program.residual && out == program.hidden => Ok(()),
        _ => Err(unsupported("the operations after the last block", "one RMSNorm")),
    }
}

/// The layout of each tensor. Gate and up matrices are multiplied by one kernel, in a layout that holds both exactly.
fn layouts<B: ModelBytes>(model: &BonsaiModel<B>) -> Result<Vec<PackedFormat>> {
    let program = model.program();
    let mut layouts = Vec::new();
    for id in program.tensor_ids() {
        let spec = program.tensor(id);
        let format = model.weights().format(id);
        let usable =
            PackedFormat::of(format).filter(|_| spec.role == TensorRole::Matrix || format.is_float());
        layouts.push(usable.ok_or(CoreError::Unsupported {
            key: Name::new(&spec.name),
            found: Name::new(format.name()),
            expected: "a tensor type that Metal computes with",
        })?);
        // Indices of the kernels have 32 bits; a unit of floats has 8 of them.
        let fits =
            (spec.rows as u64).checked_mul(spec.cols as u64 / 4).is_some_and(|n| n <= u64::from(u32::MAX));
        if spec.role == TensorRole::Matrix && !(spec.cols.is_multiple_of(32) && fits) {
            return Err(Error::Unsupported {
                what: "a matrix's number of columns",
                found: spec.cols as u64,
                expected: "a multiple of 32, with fewer than 2^34 weights",
            });
        }
    }
    for op in &program.body {
        if let Op::LinearSwiglu { gate, up, .. } | Op::Experts(Experts { gate, up, .. }) = op {
            let joined = layouts[gate.index()].with(layouts[up.index()]).ok_or(unsupported(
                "gate and up matrices of floats and of integers",
                "both floats or both integers",
            ))?;
            layouts[gate.index()] = joined;
            layouts[up.index()] = joined;
        }
    }
    Ok(layouts)
}

fn pack<D: Driver>(
    driver: &D,
    matrix: &FileMatrix<'_>,
    packed: PackedFormat,
    total: &mut u64,
) -> Result<Matrix<D::Buffer>> {
    let (rows, cols) = (matrix.rows(), matrix.cols());
    let (code_bytes, scale_bytes) = (4 * packed.code_words(cols), 4 * packed.scale_words(cols));
    let codes = driver.buffer((rows * code_bytes) as u64)?;
    let scales = match scale_bytes {
        0 => codes.clone(),
        _ => driver.buffer((rows * scale_bytes) as u64)?,
    };
    let staged = (STAGING / code_bytes.max(1)).max(1);
    let (mut code_words, mut scale_words) = (Vec::new(), Vec::new());
    for (part, bytes) in matrix.data().chunks(staged * matrix.row_bytes()).enumerate() {
        code_words.clear();
        scale_words.clear();
        for row in bytes.chunks_exact(matrix.row_bytes()) {
            packed.repack(matrix.format(), row, &mut code_words, &mut scale_words);
        }
        let first = part * staged;
        driver.write(&codes, (first * code_bytes) as u64, bytemuck::cast_slice(&code_words))?;
        if scale_bytes > 0 {
            driver.write(&scales, (first * scale_bytes) as u64, bytemuck::cast_slice(&scale_words))?;
        }
    }
    *total += packed.bytes(rows, cols);
    Ok(Matrix { rows, cols, packed, codes, scales })
}
