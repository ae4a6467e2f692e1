//! The reader for files that arrive in pieces: downloads, flash pages, pipes of known length.
#![forbid(unsafe_code)]

use alloc::vec::Vec;

use super::place::{self, Sniff};
use super::scan::Scanner;
use super::{Header, ReadOptions};
use crate::error::{Error, Result};

/// Bytes of a chunk processed at once while the header is incomplete, so that a chunk with a whole model is
/// not copied.
const HEAD_STEP: usize = 1 << 16;

/// An event of a [`GgufStream`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event<'e> {
    /// Metadata and tensor table are complete and validated. Occurs first, and once.
    Header(&'e Header<'e>),
    /// Tensors of type 42 turned out to be [`crate::Format::Tq2_0G128`], although the header only indicated
    /// [`crate::Format::Pq2_0`]. Occurs before any bytes of such a tensor, if at all.
    CodesFirst,
    /// The next bytes of tensor `index`, starting at byte `offset` of it. Tensors come in the order of the
    /// file, each without gaps.
    TensorData {
        /// Index into [`Header::tensors`].
        index: usize,
        /// Offset of these bytes in the tensor.
        offset: u64,
        /// At least one byte.
        bytes: &'e [u8],
    },
}

/// A tensor's range in the data section.
#[derive(Clone, Copy, Debug)]
struct Part {
    index: usize,
    start: u64,
    end: u64,
}

/// Reads a GGUF file that arrives in pieces, with the same result as [`super::Gguf::parse_with`] on the whole
/// file, however it is cut.
///
/// It buffers the bytes of the header, and holds back at most 70 kB of weights. The file's length must be
/// known from the start: otherwise a claimed length could not be checked before it exhausts memory.
#[derive(Clone, Debug)]
pub struct GgufStream {
    options: ReadOptions,
    file_len: u64,
    /// Bytes of the file consumed so far.
    at: u64,
    head: Vec<u8>,
    scanner: Scanner,
    /// Set with the header.
    data_start: Option<u64>,
    /// Sorted by start; `next` is the first incomplete one.
    parts: Vec<Part>,
    next: usize,
    sniff: Option<Sniff>,
    held: Vec<u8>,
    codes_first: bool,
    failed: Option<Error>,
}

impl GgufStream {
    /// Starts a file of `file_len` bytes.
    pub fn new(file_len: u64, options: ReadOptions) -> GgufStream {
        GgufStream {
            options,
            file_len,
            at: 0,
            head: Vec::new(),
            scanner: Scanner::new(options.limits, file_len),
            data_start: None,
            parts: Vec::new(),
            next: 0,
            sniff: None,
            held: Vec::new(),
            codes_first: false,
            failed: None,
        }
    }

    /// Bytes taken so far.
    pub const fn received(&self) -> u64 {
        self.at
    }

    /// Takes the next bytes of the file and reports the events they complete. An error, also one that `sink`
    /// returns, ends the stream: every later call returns it again.
    pub fn push(&mut self, chunk: &[u8], sink: &mut dyn FnMut(Event<'_>) -> Result<()>) -> Result<()> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let done = self.take(chunk, sink);
        self.failed = done.err();
        done
    }

    /// Checks that the file is complete.
    pub fn finish(&mut self) -> Result<()> {
        // An empty file has had no chunk that could fail.
        self.push(&[], &mut |_| Ok(()))?;
        let missing = self.file_len - self.at;
        if missing > 0 {
            return Err(error!(Truncated { what: "file", at: self.at, need: missing, have: 0 }));
        }
        Ok(())
    }

    /// The header, after [`Event::Header`]. It is built from the buffered bytes on each call, as a struct
    /// cannot borrow from itself.
    pub fn header(&self) -> Result<Option<Header<'_>>> {
        if self.data_start.is_none() {
            return Ok(None);
        }
        let (mut header, _) = Header::build(&self.head, &self.scanner, self.file_len, &self.options)?;
        if self.codes_first {
            header.set_codes_first();
        }
        Ok(Some(header))
    }

    fn take(&mut self, chunk: &[u8], sink: &mut dyn FnMut(Event<'_>) -> Result<()>) -> Result<()> {
        if chunk.len() as u64 > self.file_len - self.at {
            let found = self.at.saturating_add(chunk.len() as u64);
            return Err(error!(Length { what: "file", expected: self.file_len, found }));
        }
        let mut rest = chunk;
        while self.data_start.is_none() {
            let (piece, behind) = rest.split_at(rest.len().min(HEAD_STEP));
            rest = behind;
            let need = (self.head.len() + piece.len()) as u64;
            self.head.try_reserve(piece.len()).map_err(|_| error!(Memory { need, have: 0 }))?;
            self.head.extend_from_slice(piece);
            if self.scanner.run(&self.head, &mut |_| Ok(()))? {
                let data = self.head.split_off(self.scanner.position());
                self.head.shrink_to_fit();
                self.at = self.head.len() as u64;
                self.begin_data(sink)?;
                self.data(&data, sink)?;
            } else {
                self.at += piece.len() as u64;
                if rest.is_empty() {
                    return Ok(());
                }
            }
        }
        self.data(rest, sink)
    }

    fn begin_data(&mut self, sink: &mut dyn FnMut(Event<'_>) -> Result<()>) -> Result<()> {
        let (header, sniff) = Header::build(&self.head, &self.scanner, self.file_len, &self.options)?;
        self.data_start = Some(header.data_start());
        self.sniff = sniff;
        let tensors = header.tensors();
        let need = (tensors.len() * size_of::<Part>()) as u64;
        self.parts.try_reserve_exact(tensors.len()).map_err(|_| error!(Memory { need, have: 0 }))?;
        self.parts.extend(tensors.iter().enumerate().map(|(index, t)| {
            // The placement has checked that the sum fits the file.
            Part { index, start: t.offset(), end: t.offset().saturating_add(t.len()) }
        }));
        self.parts.sort_unstable_by_key(|p| p.start);
        sink(Event::Header(&header))
    }

    fn data(&mut self, bytes: &[u8], sink: &mut dyn FnMut(Event<'_>) -> Result<()>) -> Result<()> {
        let data_start = self.data_start.unwrap_or(0);
        let mut rest = bytes;
        while !rest.is_empty() {
            let part = self.parts.get(self.next).copied();
            let here = self.at.checked_sub(data_start);
            let count = match (part, here) {
                // Padding after the header.
                (_, None) => data_start - self.at,
                // Padding or unused bytes after the last tensor.
                (None, Some(_)) => rest.len() as u64,
                // A gap, or the rest of the tensor.
                (Some(part), Some(here)) if here < part.start => part.start - here,
                (Some(part), Some(here)) => part.end - here,
            };
            let count = usize::try_from(count).unwrap_or(usize::MAX).min(rest.len());
            let (now, behind) = rest.split_at(count);
            rest = behind;
            self.at += count as u64;
            if let (Some(part), Some(here)) = (part, here)
                && here >= part.start
            {
                self.tensor(part, here - part.start, now, sink)?;
                if here + count as u64 == part.end {
                    self.next += 1;
                }
            }
        }
        Ok(())
    }

    /// Passes on bytes of a tensor, or holds them back while they may still decide the meaning of id 42.
    fn tensor(
        &mut self,
        part: Part,
        offset: u64,
        bytes: &[u8],
        sink: &mut dyn FnMut(Event<'_>) -> Result<()>,
    ) -> Result<()> {
        let index = part.index;
        let Some(sniff) = self.sniff.filter(|s| s.offset == part.start) else {
            return sink(Event::TensorData { index, offset, bytes });
        };
        // The window is at the front of one tensor and within it.
        let missing = sniff.len.saturating_sub(self.held.len() as u64);
        let (now, behind) = bytes.split_at(bytes.len().min(missing as usize));
        self.held.extend_from_slice(now);
        if now.len() as u64 == missing {
            let held = core::mem::take(&mut self.held);
            self.sniff = None;
            if place::reads_codes_first(&held) {
                self.codes_first = true;
                sink(Event::CodesFirst)?;
            }
            sink(Event::TensorData { index, offset: 0, bytes: &held })?;
            if !behind.is_empty() {
                sink(Event::TensorData { index, offset: held.len() as u64, bytes: behind })?;
            }
        }
        Ok(())
    }
}
