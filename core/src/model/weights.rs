//! A model's tensors in the bytes of its file, which the model owns.
#![forbid(unsafe_code)]

use alloc::vec::Vec;
use core::ops::Range;

use super::program::{Program, TensorId};
use crate::error::{Error, Result};
use crate::gguf::Gguf;
use crate::quant::{Format, Matrix};
use crate::sync::Arc;

/// The bytes of a model file, or of one of several: in memory, in flash, or memory-mapped.
pub trait ModelBytes {
    /// All bytes, the same on every call.
    fn bytes(&self) -> &[u8];

    /// The same bytes, if they are writable: a device may then repack weights in place.
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }
}

impl ModelBytes for &[u8] {
    fn bytes(&self) -> &[u8] {
        self
    }
}

impl ModelBytes for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        Some(self)
    }
}

impl ModelBytes for Arc<[u8]> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// Location, format and shape of a tensor.
#[derive(Clone, Debug)]
pub(crate) struct StoredTensor {
    pub(crate) part: usize,
    pub(crate) range: Range<usize>,
    pub(crate) format: Format,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

/// The tensors of a [`Program`] in the bytes that hold them.
#[derive(Clone, Debug)]
pub struct Weights<B> {
    parts: Vec<B>,
    /// Indexed by [`TensorId`].
    tensors: Vec<StoredTensor>,
}

impl<B: ModelBytes> Weights<B> {
    /// Finds the tensors of `program` in `gguf`, whose bytes are `parts`.
    pub(super) fn new(program: &Program, gguf: &Gguf<'_>, parts: Vec<B>) -> Result<Self> {
        let tensors = stored(program, gguf)?;
        Self::hold(tensors, parts)
    }

    /// `tensors` must have been found in the same bytes as `parts`.
    pub(super) fn hold(tensors: Vec<StoredTensor>, parts: Vec<B>) -> Result<Self> {
        // Nothing guarantees that `ModelBytes` returns the bytes that were parsed; this check keeps all reads
        // in range.
        for tensor in &tensors {
            let len = parts.get(tensor.part).map_or(0, |part| part.bytes().len());
            if tensor.range.end > len {
                let (expected, found) = (tensor.range.end as u64, len as u64);
                return Err(Error::Length { what: "bytes of the model", expected, found });
            }
        }
        Ok(Weights { parts, tensors })
    }

    /// A tensor as stored in the file.
    pub fn matrix(&self, id: TensorId) -> Result<Matrix<'_>> {
        let tensor = &self.tensors[id.index()];
        Matrix::new(tensor.format, tensor.rows, tensor.cols, self.data(tensor))
    }

    /// The format of a tensor in the file.
    pub fn format(&self, id: TensorId) -> Format {
        self.tensors[id.index()].format
    }

    /// Bytes of a tensor.
    pub fn len(&self, id: TensorId) -> usize {
        self.tensors[id.index()].range.len()
    }

    pub(crate) fn tensors(&self) -> &[StoredTensor] {
        &self.tensors
    }

    pub(crate) fn data(&self, tensor: &StoredTensor) -> &[u8] {
        let part = self.parts.get(tensor.part).map_or(&[][..], |part| part.bytes());
        part.get(tensor.range.clone()).unwrap_or(&[])
    }

    /// The bytes of a tensor, if they are writable.
    pub(crate) fn data_mut(&mut self, tensor: &StoredTensor) -> Option<&mut [u8]> {
        self.parts.get_mut(tensor.part)?.bytes_mut()?.get_mut(tensor.range.clone())
    }

    /// The bytes that hold the weights, part by part.
    pub fn parts(&self) -> &[B] {
        &self.parts
    }
}

/// The locations of the tensors of `program` in the files of `gguf`.
pub(super) fn stored(program: &Program, gguf: &Gguf<'_>) -> Result<Vec<StoredTensor>> {
    let bound = program.bind(gguf.header())?;
    let mut tensors = Vec::with_capacity(bound.len());
    for (spec, index) in program.tensors.iter().zip(bound) {
        // Checks the type, the shape and the number of bytes.
        let matrix = gguf.matrix(&spec.name)?;
        let (part, range) = gguf.place(&gguf.tensors()[index]);
        let (rows, cols) = (matrix.rows(), matrix.cols());
        tensors.push(StoredTensor { part, range, format: matrix.format(), rows, cols });
    }
    Ok(tensors)
}
