//! A model's weights on the CPU: matrices, possibly repacked in place, and vectors as f32.
#![forbid(unsafe_code)]

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::isa::Isa;
use super::matmul::Lookups;
use super::repack::{Layout, PANEL_ROWS, PackedMatrix, repack, repacked_format};
use crate::error::Result;
use crate::model::program::{TensorId, TensorRole};
use crate::model::weights::{ModelBytes, StoredTensor};
use crate::model::{BonsaiModel, LoraAdapter, Program};
use crate::pool::Pool;
use crate::quant::{Format, Matrix};

/// Rows of a matrix of weights, wherever they are.
#[derive(Clone, Copy)]
pub(super) struct Operand {
    pub(super) id: TensorId,
    pub(super) first: usize,
    pub(super) rows: usize,
}

impl Operand {
    /// All rows.
    pub(super) fn whole(program: &Program, id: TensorId) -> Operand {
        Operand { id, first: 0, rows: program.tensor(id).rows }
    }
}

/// A tensor as the kernels read it.
#[derive(Clone, Debug)]
enum Packed {
    /// A matrix of this format, in this layout.
    Matrix(Format, Layout),
    /// `(cols)`
    Vector(Box<[f32]>),
}

/// A model whose weights the CPU's kernels can read.
#[derive(Debug)]
pub struct CpuWeights<B> {
    model: BonsaiModel<B>,
    /// Indexed by [`TensorId`].
    packed: Vec<Packed>,
}

impl<B: ModelBytes> CpuWeights<B> {
    /// Leaves the weights in the layout of the file.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] if there is no memory for the vectors.
    pub fn new(model: BonsaiModel<B>) -> Result<Self> {
        let packed = pack(&model, |tensor| (tensor.format, Layout::RowMajor))?;
        Ok(CpuWeights { model, packed })
    }

    /// Repacks every matrix in place for which the kernels of `isa` are then faster, spread over `pool`.
    /// Read-only bytes stay as they are. Results do not change.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] if there is no memory for 16 rows.
    pub fn repack(mut model: BonsaiModel<B>, isa: Isa, pool: &dyn Pool) -> Result<Self> {
        let mut layouts: Vec<(Format, Layout)> = Vec::new();
        let tensors: Vec<StoredTensor> = model.weights().tensors().to_vec();
        let specs: Vec<_> =
            model.program().tensors.iter().map(|spec| (spec.role, spec.rows_each())).collect();
        for (tensor, (role, rows_each)) in tensors.iter().zip(specs) {
            let better = repacked(isa, role, rows_each, tensor);
            let data = better.and_then(|_| model.weights_mut().data_mut(tensor));
            layouts.push(match (data, better) {
                (Some(data), Some((format, layout))) => {
                    repack(tensor.format, layout, tensor.rows, tensor.cols, data, pool)?;
                    (format, layout)
                }
                _ => (tensor.format, Layout::RowMajor),
            });
        }
        let mut layouts = layouts.into_iter();
        let packed = pack(&model, |tensor| layouts.next().unwrap_or((tensor.format, Layout::RowMajor)))?;
        Ok(CpuWeights { model, packed })
    }

    /// Wraps a model whose bytes are those of [`Weights::parts`](crate::model::weights::Weights::parts) after
    /// [`CpuWeights::repack`] for `isa`, such as a file that was written from them.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] if there is no memory for the vectors.
    pub fn repacked(model: BonsaiModel<B>, isa: Isa) -> Result<Self> {
        let mut specs = model.program().tensors.iter();
        let packed = pack(&model, |tensor| {
            let spec = specs.next();
            spec.and_then(|spec| repacked(isa, spec.role, spec.rows_each(), tensor))
                .unwrap_or((tensor.format, Layout::RowMajor))
        })?;
        Ok(CpuWeights { model, packed })
    }

    /// The same weights with `adapters`, each at its scale, as [`BonsaiModel::adapt`]: the parts of the model are shared if their
    /// clones share bytes.
    ///
    /// # Errors
    /// Those of [`BonsaiModel::adapt`].
    pub fn adapt(&self, adapters: &[(&LoraAdapter<'_>, f32)], hold: impl FnOnce(Vec<u8>) -> B) -> Result<Self>
    where
        B: Clone,
    {
        let model = self.model.clone().adapt(adapters, hold)?;
        let mut packed = self.packed.clone();
        let factors = &model.weights().tensors()[packed.len()..];
        packed.extend(factors.iter().map(|tensor| Packed::Matrix(tensor.format, Layout::RowMajor)));
        Ok(CpuWeights { model, packed })
    }

    /// Whether any matrix is repacked.
    pub fn is_repacked(&self) -> bool {
        self.packed
            .iter()
            .any(|packed| !matches!(packed, Packed::Matrix(_, Layout::RowMajor) | Packed::Vector(_)))
    }

    /// The model.
    pub fn model(&self) -> &BonsaiModel<B> {
        &self.model
    }

    /// Its forward pass.
    pub(super) fn program(&self) -> &Program {
        self.model.program()
    }

    /// A matrix as the kernels read it.
    pub(super) fn matrix(&self, id: TensorId) -> Result<PackedMatrix<'_>> {
        let tensor = &self.model.weights().tensors()[id.index()];
        let (format, layout) = match &self.packed[id.index()] {
            Packed::Matrix(format, layout) => (*format, *layout),
            Packed::Vector(_) => (tensor.format, Layout::RowMajor),
        };
        let data = self.model.weights().data(tensor);
        PackedMatrix::new(Matrix::new(format, tensor.rows, tensor.cols, data)?, layout)
    }

    /// Rows of a matrix as the kernels read them.
    pub(super) fn rows(&self, Operand { id, first, rows }: Operand) -> Result<PackedMatrix<'_>> {
        let matrix = self.matrix(id)?;
        if rows == matrix.rows() { Ok(matrix) } else { matrix.row_range(first, rows) }
    }

    /// A vector `(cols)`; empty for a matrix.
    pub(super) fn vector(&self, id: TensorId) -> &[f32] {
        match &self.packed[id.index()] {
            Packed::Matrix(..) => &[],
            Packed::Vector(vector) => vector,
        }
    }

    /// The products that use lookup tables.
    pub(super) fn lookups(&self, isa: Isa) -> Lookups {
        let of = |packed: &Packed| match packed {
            Packed::Matrix(format, layout) => Lookups::of(isa, *layout, *format),
            Packed::Vector(_) => Lookups::Never,
        };
        self.packed.iter().map(of).max().unwrap_or(Lookups::Never)
    }

    /// As [`CpuWeights::lookups`], if the weights were repacked for `isa`, and expanded unless `compact`.
    pub(super) fn repacked_lookups(&self, isa: Isa, compact: bool) -> Lookups {
        let of = |(packed, tensor): (&Packed, &StoredTensor)| {
            let expanded = tensor.format.expanded().filter(|_| !compact);
            let format = repacked_format(expanded.unwrap_or(tensor.format))?;
            let lookups = Lookups::of(isa, Layout::preferred(isa, format), format);
            matches!(packed, Packed::Matrix(..)).then_some(lookups)
        };
        self.packed.iter().zip(self.model.weights().tensors()).filter_map(of).max().unwrap_or(Lookups::Never)
    }

    /// Packed bytes read per decoded token: every matrix once, of a stack those that a token uses, and a row of
    /// the embedding.
    pub fn bytes_per_token(&self) -> usize {
        let weights = self.model.weights();
        let read = |id: TensorId| {
            let spec = self.program().tensor(id);
            weights.len(id) / spec.matrices.max(1) * spec.read
        };
        let products: usize = self.program().matrices().map(read).sum();
        let row = |id: TensorId| weights.len(id) / self.program().tensor(id).rows.max(1);
        products + self.program().embedding().map_or(0, row)
    }
}

/// The format and layout of a tensor once it is repacked for `isa`; `None` if it stays as it is.
fn repacked(isa: Isa, role: TensorRole, rows_each: usize, tensor: &StoredTensor) -> Option<(Format, Layout)> {
    // A panel must not hold rows of two matrices of a stack.
    if role != TensorRole::Matrix || (tensor.rows > rows_each && !rows_each.is_multiple_of(PANEL_ROWS)) {
        return None;
    }
    let format = repacked_format(tensor.format)?;
    Some((format, Layout::preferred(isa, format))).filter(|(_, layout)| *layout != Layout::RowMajor)
}

fn pack<B: ModelBytes>(
    model: &BonsaiModel<B>,
    mut layout: impl FnMut(&StoredTensor) -> (Format, Layout),
) -> Result<Vec<Packed>> {
    let program = model.program();
    let tensors = program.tensors.iter().zip(model.weights().tensors()).zip(program.tensor_ids());
    let packed = tensors.map(|((spec, tensor), id)| {
        let (format, layout) = layout(tensor);
        Ok(match spec.role {
            TensorRole::Matrix => Packed::Matrix(format, layout),
            TensorRole::Vector => Packed::Vector(model.weights().vector(id, &spec.name)?.into_boxed_slice()),
        })
    });
    packed.collect()
}
