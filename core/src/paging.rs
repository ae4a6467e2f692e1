//! Models in storage that is not memory, such as an SD card or serial flash: a callback reads pieces of the file.
//!
//! [`HeaderBytes`](crate::gguf::HeaderBytes) reads the header, which stays in memory with the vocabulary. Matrices stay in
//! storage: the CPU device reads their rows into a window of fixed size, which is part of its scratch memory, and multiplies
//! them there. A tensor that is larger than half of the window is read in pieces. While one piece is multiplied, the next one
//! can be read, also that of the next tensor. A prompt reads each weight once per batch, not once per token, but the output
//! matrix once for every [`logit_rows`](crate::CpuOptions::logit_rows) tokens whose logits are asked for. Results are the same, to
//! the bit, as with the model in memory.
//!
//! ```
//! use shohin_core::gguf::{HeaderBytes, ReadOptions};
//! use shohin_core::paging::{ModelReader, PagedFile, ReadError};
//! use shohin_core::{BonsaiModel, Cpu, CpuOptions, ModelConfig, Serial, Tokenizer};
//!
//! struct Card(Vec<u8>);
//!
//! impl ModelReader for Card {
//!     fn len(&self) -> u64 {
//!         self.0.len() as u64
//!     }
//!
//!     fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
//!         buffer.copy_from_slice(&self.0[offset as usize..][..buffer.len()]);
//!         Ok(())
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let card = Card(std::fs::read("../models/sprout.gguf")?);
//! let bytes = HeaderBytes::read(&card, &ReadOptions::default())?;
//! let header = bytes.header()?;
//! let tokenizer = Tokenizer::from_metadata(header.metadata())?;
//! let config = ModelConfig::from_header(&header)?;
//! let model = BonsaiModel::from_header(&header, PagedFile::new(card, 32 << 10), config)?;
//! let cpu = Cpu::new(model, &CpuOptions::default(), Serial)?;
//! # let _ = (cpu, tokenizer);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

use crate::error::{Error, Name, Result};

/// Reads a model file that is not in memory. The file must not change while the model is in use.
///
/// Methods take `&self`, as several devices can share a model; a driver with state keeps it in a `RefCell`, or in a lock if
/// devices are on several threads.
#[allow(clippy::len_without_is_empty, reason = "an empty file is no model")]
pub trait ModelReader {
    /// Bytes of the file.
    fn len(&self) -> u64;

    /// Fills `buffer` with the bytes of the file from `offset` on. They are inside the file, but neither `offset` nor the
    /// length is a number of whole sectors. `buffer` begins at a multiple of 64 bytes if it is in the window, and anywhere
    /// for the header and vectors, which are read while loading.
    ///
    /// # Errors
    /// If not all bytes could be read. The call that needed them fails, and can be repeated.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), ReadError>;

    /// As [`ModelReader::read`], and calls `work`, which computes with bytes that were read before. A driver with DMA starts
    /// the transfer to `buffer`, calls `work`, and waits until the transfer has ended; a blocking driver needs no code of
    /// its own.
    ///
    /// # Errors
    /// As there.
    fn read_ahead(&self, offset: u64, buffer: &mut [u8], work: &mut dyn FnMut()) -> Result<(), ReadError> {
        work();
        self.read(offset, buffer)
    }
}

impl<R: ModelReader + ?Sized> ModelReader for &R {
    fn len(&self) -> u64 {
        (**self).len()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
        (**self).read(offset, buffer)
    }

    fn read_ahead(&self, offset: u64, buffer: &mut [u8], work: &mut dyn FnMut()) -> Result<(), ReadError> {
        (**self).read_ahead(offset, buffer, work)
    }
}

/// Why a [`ModelReader`] could not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadError {
    /// What happened, as in `wrong checksum`.
    pub problem: &'static str,
    /// The driver's number of the error, or 0.
    pub code: i32,
}

/// A model file that is read through a window; see [`paging`](self).
#[derive(Clone, Copy, Debug)]
pub struct PagedFile<R> {
    reader: R,
    window: usize,
}

impl<R: ModelReader> PagedFile<R> {
    /// A file whose weights pass through a window of `window` bytes, which each device has for itself. Two rows of
    /// the widest matrix must fit; reads are of about half of it.
    pub const fn new(reader: R, window: usize) -> Self {
        PagedFile { reader, window }
    }

    /// How its weights are read.
    pub(crate) fn paging(&self) -> Paging<'_> {
        Paging { reader: &self.reader, window: self.window }
    }
}

/// How the weights of a model are read that are not in memory.
#[derive(Clone, Copy)]
pub struct Paging<'r> {
    /// Reads the file.
    pub reader: &'r dyn ModelReader,
    /// Bytes of the window.
    pub window: usize,
}

impl core::fmt::Debug for Paging<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Paging").field("window", &self.window).finish_non_exhaustive()
    }
}

/// Fills `buffer` from `offset` on with bytes of `what`, the header or a tensor. Calls `work` meanwhile, once.
pub(crate) fn read(
    reader: &dyn ModelReader,
    what: &str,
    offset: u64,
    buffer: &mut [u8],
    work: Option<&mut dyn FnMut()>,
) -> Result<()> {
    let len = buffer.len() as u64;
    let read = match work {
        None => reader.read(offset, buffer),
        Some(work) => {
            // Whatever the reader does, the work is done once.
            let mut left = Some(work);
            let read = reader.read_ahead(offset, buffer, &mut || {
                if let Some(work) = left.take() {
                    work();
                }
            });
            if let Some(work) = left {
                work();
            }
            read
        }
    };
    read.map_err(|ReadError { problem, code }| {
        error!(Read { what: Name::new(what), at: offset, len, problem, code })
    })
}
