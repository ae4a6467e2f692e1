//! A model file on a card, for which a file of the host stands in: one transfer at a time, of any bytes.

use core::ffi::CStr;

use semihosting::fs::File;
use semihosting::io::{self, Read, Seek, SeekFrom};
use shohin_core::paging::{ModelReader, ReadError};

/// An open file.
pub(crate) struct SdCard {
    file: File,
    len: u64,
}

impl SdCard {
    /// Opens the file.
    pub(crate) fn open(path: &CStr) -> io::Result<SdCard> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        Ok(SdCard { file, len })
    }
}

impl ModelReader for SdCard {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
        let mut file = &self.file;
        let read = file.seek(SeekFrom::Start(offset)).and_then(|_| file.read_exact(buffer));
        read.map_err(|e| ReadError {
            problem: "no answer from the card",
            code: e.raw_os_error().unwrap_or(0),
        })
    }
}
