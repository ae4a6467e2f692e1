//! Reads a model file whose weights stay in it.

use shohin_core::paging::{ModelReader, ReadError};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// A thread for less would take longer than the reading.
const WORTH_A_THREAD: usize = 256 << 10;

/// An open file.
#[derive(Clone, Debug)]
pub(crate) struct FileReader {
    pub(crate) file: Arc<Mutex<File>>,
    pub(crate) len: u64,
}

impl ModelReader for FileReader {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let read = file.seek(SeekFrom::Start(offset)).and_then(|_| file.read_exact(buffer));
        read.map_err(|error| {
            let problem = match error.kind() {
                io::ErrorKind::UnexpectedEof => "the file is shorter than it was",
                _ => "the system refused",
            };
            ReadError { problem, code: error.raw_os_error().unwrap_or(0) }
        })
    }

    /// Reads on another thread.
    fn read_ahead(&self, offset: u64, buffer: &mut [u8], work: &mut dyn FnMut()) -> Result<(), ReadError> {
        if buffer.len() < WORTH_A_THREAD {
            work();
            return self.read(offset, buffer);
        }
        let read = thread::scope(|scope| {
            let reading = thread::Builder::new().spawn_scoped(scope, || self.read(offset, buffer));
            work();
            reading.ok().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
        });
        // The system may refuse threads.
        read.unwrap_or_else(|| self.read(offset, buffer))
    }
}
