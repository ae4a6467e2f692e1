//! The header of a file that is not in memory.
#![forbid(unsafe_code)]

use alloc::vec;
use alloc::vec::Vec;

use super::place;
use super::scan::Scanner;
use super::{Header, ReadOptions};
use crate::error::{Error, Result};
use crate::paging::{ModelReader, read};

/// The header of a GGUF file, read through a [`ModelReader`]: metadata, with the vocabulary, and the tensor table.
#[derive(Clone, Debug)]
pub struct HeaderBytes {
    options: ReadOptions,
    file_len: u64,
    bytes: Vec<u8>,
    scanner: Scanner,
    codes_first: bool,
}

impl HeaderBytes {
    /// Reads and validates the header, in steps of at most 4096 bytes. If type 42 is in the file and only weights can tell what it
    /// means, up to 70 kB of these are read, too; [`ReadOptions::id42`] avoids that.
    ///
    /// # Errors
    /// [`Error::Read`] if the file cannot be read; if it is malformed or not supported; [`Error::Memory`].
    pub fn read(reader: &dyn ModelReader, options: &ReadOptions) -> Result<HeaderBytes> {
        HeaderBytes::read_into(Vec::new(), reader, options)
    }

    /// As [`HeaderBytes::read`], in the memory of `buffer`. It grows if it has too little, which takes up to three times as
    /// much for a moment.
    ///
    /// # Errors
    /// As there.
    pub fn read_into(
        buffer: Vec<u8>,
        reader: &dyn ModelReader,
        options: &ReadOptions,
    ) -> Result<HeaderBytes> {
        const STEP: u64 = 4096;
        let file_len = reader.len();
        let mut scanner = Scanner::new(options.limits, file_len);
        let mut bytes = buffer;
        bytes.clear();
        while !scanner.run(&bytes, &mut |_| Ok(()))? {
            // Not complete, so the file has more.
            let (at, left) = (bytes.len(), file_len - bytes.len() as u64);
            let more = left.min(STEP) as usize;
            grow(&mut bytes, more)?;
            bytes.resize(at + more, 0);
            read(reader, "header", at as u64, &mut bytes[at..], None)?;
        }
        bytes.truncate(scanner.position());
        let mut header = HeaderBytes { options: *options, file_len, bytes, scanner, codes_first: false };
        let (built, sniff) = header.build()?;
        if let Some(sniff) = sniff {
            let offset = built.data_start().saturating_add(sniff.offset);
            let mut weights = vec![0; sniff.len as usize];
            read(reader, "weights of type 42", offset, &mut weights, None)?;
            header.codes_first = place::reads_codes_first(&weights);
        }
        Ok(header)
    }

    /// The header, built on each call.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn header(&self) -> Result<Header<'_>> {
        let (mut header, _) = self.build()?;
        if self.codes_first {
            header.set_codes_first();
        }
        Ok(header)
    }

    /// Its bytes in memory.
    #[allow(clippy::len_without_is_empty, reason = "no header is empty")]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    fn build(&self) -> Result<(Header<'_>, Option<place::Sniff>)> {
        Header::build(&self.bytes, &self.scanner, self.file_len, &self.options)
    }
}

/// Makes room for `more` bytes: exactly while there are few, as memory may be small.
fn grow(bytes: &mut Vec<u8>, more: usize) -> Result<()> {
    if bytes.capacity() - bytes.len() >= more {
        return Ok(());
    }
    let room = more.max(bytes.len() / 4);
    let need = (bytes.len() + more) as u64;
    let grown = bytes.try_reserve_exact(room).or_else(|_| bytes.try_reserve_exact(more));
    grown.map_err(|_| error!(Memory { need, have: 0 }))
}
