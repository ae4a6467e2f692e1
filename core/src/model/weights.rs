//! A model's tensors in the bytes of its file, which the model owns.
#![forbid(unsafe_code)]

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use super::program::{Program, TensorId};
use crate::error::{Error, Name, Result};
use crate::gguf::{Gguf, Header};
use crate::paging::{ModelReader, PagedFile, Paging, read};
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

    /// How weights are read if they are not in memory; [`ModelBytes::bytes`] has none then.
    #[inline(always)]
    fn paging(&self) -> Option<Paging<'_>> {
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

/// Bytes that several models share; they are writable while one alone has them.
impl<B: ModelBytes> ModelBytes for Arc<B> {
    fn bytes(&self) -> &[u8] {
        (**self).bytes()
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        Arc::get_mut(self)?.bytes_mut()
    }

    fn paging(&self) -> Option<Paging<'_>> {
        (**self).paging()
    }
}

impl<R: ModelReader> ModelBytes for PagedFile<R> {
    fn bytes(&self) -> &[u8] {
        &[]
    }

    fn paging(&self) -> Option<Paging<'_>> {
        Some(self.paging())
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
        let weights = Weights { parts, tensors };
        weights.check(&weights.tensors)?;
        Ok(weights)
    }

    /// Adds `tensors`, which are in `part`, the next one.
    pub(super) fn append(&mut self, tensors: Vec<StoredTensor>, part: B) -> Result<()> {
        if self.paging().is_some() {
            let problem = "weights that are not in memory cannot be adapted";
            return Err(error!(Device { problem }));
        }
        self.parts.push(part);
        self.check(&tensors)?;
        self.tensors.extend(tensors);
        Ok(())
    }

    fn check(&self, tensors: &[StoredTensor]) -> Result<()> {
        // Nothing guarantees that `ModelBytes` returns the bytes that were parsed; this check keeps all reads
        // in range.
        for tensor in tensors {
            let len_of = |part: &B| match part.paging() {
                None => part.bytes().len() as u64,
                Some(paging) => paging.reader.len(),
            };
            let (expected, found) = (tensor.range.end as u64, self.parts.get(tensor.part).map_or(0, len_of));
            if expected > found {
                return Err(error!(Length { what: "bytes of the model", expected, found }));
            }
        }
        Ok(())
    }

    /// A tensor as stored in the file.
    ///
    /// # Errors
    /// If the weights are not in memory.
    pub fn matrix(&self, id: TensorId) -> Result<Matrix<'_>> {
        if self.paging().is_some() {
            let problem = "the weights are not in memory: only the CPU device reads them through a window";
            return Err(error!(Device { problem }));
        }
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

    /// The numbers of a tensor of one row, in memory.
    pub(crate) fn vector(&self, id: TensorId, name: &str) -> Result<Vec<f32>> {
        let tensor = &self.tensors[id.index()];
        let rows = if cfg!(feature = "variants") { tensor.rows } else { 1 };
        let mut vector = vec![0.0; rows * tensor.cols];
        let copy;
        let data = match self.paging() {
            None => self.data(tensor),
            Some(paging) => {
                let mut bytes = vec![0; tensor.range.len()];
                read(paging.reader, name, tensor.range.start as u64, &mut bytes, None)?;
                copy = bytes;
                &copy
            }
        };
        let matrix = Matrix::new(tensor.format, tensor.rows, tensor.cols, data)?;
        for (row, values) in vector.chunks_exact_mut(tensor.cols.max(1)).enumerate() {
            matrix.unpack_row(row, values)?;
        }
        Ok(vector)
    }

    /// How the weights are read, if they are not in memory.
    #[inline(always)]
    pub fn paging(&self) -> Option<Paging<'_>> {
        self.parts.first()?.paging()
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

/// The locations of the tensors of `program` in the only file of `header`.
pub(super) fn stored_in_file(program: &Program, header: &Header<'_>) -> Result<Vec<StoredTensor>> {
    let bound = program.bind(header)?;
    let mut tensors = Vec::with_capacity(bound.len());
    for (spec, index) in program.tensors.iter().zip(bound) {
        let info = &header.tensors()[index];
        let name = Name::new(&spec.name);
        let expected = "a loadable tensor type";
        let format = info.format().ok_or(error!(TensorType { name, found: info.type_id(), expected }))?;
        // The header's placement has checked that the sums fit.
        let start = header.data_start().saturating_add(info.offset());
        let end = start.saturating_add(info.len());
        let too_large = error!(Limit { what: "offset of a tensor", found: end, max: usize::MAX as u64 });
        let at = |byte| usize::try_from(byte).map_err(|_| too_large);
        let range = at(start)?..at(end)?;
        let expected = format.row_bytes(spec.cols).and_then(|row| row.checked_mul(spec.rows));
        if expected != Some(range.len()) || info.part() != 0 {
            let (expected, found) = (expected.map_or(u64::MAX, |len| len as u64), info.len());
            return Err(error!(Length { what: "weight matrix bytes", expected, found }));
        }
        tensors.push(StoredTensor { part: 0, range, format, rows: spec.rows, cols: spec.cols });
    }
    Ok(tensors)
}
