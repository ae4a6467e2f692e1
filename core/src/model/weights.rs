//! A model's tensors where they lie: in the bytes of its file, which the model owns.
#![forbid(unsafe_code)]

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use super::program::{Program, TensorId};
use crate::error::{Error, Result};
use crate::gguf::Gguf;
use crate::quant::{Format, Matrix};

/// The bytes of a model file, or of one of several: in memory, in flash, or mapped.
pub trait ModelBytes {
    /// All of them, the same at every call.
    fn bytes(&self) -> &[u8];

    /// The same, if they can be written to: a device may then rearrange weights in place.
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

/// Where a tensor lies, and how.
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
    /// By [`TensorId`].
    tensors: Vec<StoredTensor>,
}

impl<B: ModelBytes> Weights<B> {
    /// Finds the tensors of `program` in `gguf`, the bytes of which are `parts`.
    pub(super) fn new(program: &Program, gguf: &Gguf<'_>, parts: Vec<B>) -> Result<Self> {
        let tensors = stored(program, gguf)?;
        Self::hold(tensors, parts)
    }

    /// `tensors` must have been found in bytes equal to those of `parts`.
    pub(super) fn hold(tensors: Vec<StoredTensor>, parts: Vec<B>) -> Result<Self> {
        // Nothing promises that `ModelBytes` gives the bytes that were parsed; this makes all reads in range.
        for tensor in &tensors {
            let len = parts.get(tensor.part).map_or(0, |part| part.bytes().len());
            if tensor.range.end > len {
                let (expected, found) = (tensor.range.end as u64, len as u64);
                return Err(Error::Length { what: "bytes of the model", expected, found });
            }
        }
        Ok(Weights { parts, tensors })
    }

    /// A tensor as the file has it.
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

    /// The bytes of a tensor, if they can be written to.
    pub(crate) fn data_mut(&mut self, tensor: &StoredTensor) -> Option<&mut [u8]> {
        self.parts.get_mut(tensor.part)?.bytes_mut()?.get_mut(tensor.range.clone())
    }

    /// The bytes that hold the weights, part by part.
    pub fn parts(&self) -> &[B] {
        &self.parts
    }
}

/// Where the tensors of `program` lie in the files of `gguf`.
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
