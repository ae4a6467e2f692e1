//! Models in storage that is not memory, such as an SD card.

use crate::argument::{self, Versioned};
use crate::calls::load_options;
use crate::code::{Failure, call, shohin_code, shohin_error};
use crate::handle::{self, Handle};
use crate::info::shohin_model;
use crate::model::{self, Loaded};
use crate::options::shohin_load_options;
use core::ffi::c_void;
use core::mem::size_of;
use core::ptr::null_mut;
use shohin_core::model::ModelBytes;
use shohin_core::paging::{ModelReader, PagedFile, Paging, ReadError};

/// A GGUF file in storage, and the calls that read it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct shohin_storage {
    /// The size of this struct.
    pub size: usize,
    /// Bytes of the file.
    pub len: u64,
    /// Passed to the calls.
    pub user_data: *mut c_void,
    /// Begins to read bytes of the file from an offset on into a buffer, or reads them.
    pub start: Option<
        unsafe extern "C" fn(user_data: *mut c_void, offset: u64, buffer: *mut c_void, len: usize) -> i32,
    >,
    /// Waits until they have been read.
    pub wait: Option<unsafe extern "C" fn(user_data: *mut c_void) -> i32>,
}

impl Default for shohin_storage {
    fn default() -> Self {
        let size = size_of::<shohin_storage>();
        shohin_storage { size, len: 0, user_data: null_mut(), start: None, wait: None }
    }
}

// SAFETY: `repr(C)` of numbers, pointers and functions, which C vouches for.
unsafe impl Versioned for shohin_storage {
    const NAME: &'static str = "storage";
    const FIRST: usize = size_of::<Self>();
}

impl shohin_storage {
    fn result(code: i32) -> Result<(), ReadError> {
        if code == 0 { Ok(()) } else { Err(ReadError { problem: "the storage failed", code }) }
    }

    fn start(&self, offset: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
        let Some(start) = self.start else { return Self::result(-1) };
        // SAFETY: the header demands that it writes no more than the buffer, and nothing after `wait` or, without one or
        // after an error, after it has returned; until then the buffer is borrowed by the caller of this.
        Self::result(unsafe { start(self.user_data, offset, buffer.as_mut_ptr().cast(), buffer.len()) })
    }

    fn wait(&self) -> Result<(), ReadError> {
        // SAFETY: the header demands that it can be called after `start`.
        self.wait.map_or(Ok(()), |wait| Self::result(unsafe { wait(self.user_data) }))
    }
}

impl ModelReader for shohin_storage {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
        self.start(offset, buffer)?;
        self.wait()
    }

    fn read_ahead(&self, offset: u64, buffer: &mut [u8], work: &mut dyn FnMut()) -> Result<(), ReadError> {
        self.start(offset, buffer)?;
        work();
        self.wait()
    }
}

/// The bytes of a model: in memory that can only be read, such as flash, or in storage.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bytes {
    InPlace(&'static [u8]),
    Stored(PagedFile<shohin_storage>),
}

impl ModelBytes for Bytes {
    fn bytes(&self) -> &[u8] {
        match self {
            Bytes::InPlace(bytes) => bytes,
            Bytes::Stored(_) => &[],
        }
    }

    fn paging(&self) -> Option<Paging<'_>> {
        match self {
            Bytes::InPlace(_) => None,
            Bytes::Stored(file) => file.paging(),
        }
    }
}

/// Loads a GGUF file in storage, whose weights pass through a window.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_model_load_storage(
    storage: *const shohin_storage,
    window: usize,
    options: *const shohin_load_options,
    model: *mut *mut shohin_model,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        call(error, || {
            model::may_load()?;
            let out = handle::place(model)?;
            let options = load_options(options)?;
            let storage = argument::read(storage)?;
            if storage.start.is_none() {
                return Err(Failure::new(shohin_code::SHOHIN_NULL, "the storage's `start` is NULL"));
            }
            let loaded: Loaded = model::stored(storage, window, &options)?;
            out.write_unaligned(Handle::give(loaded));
            Ok(shohin_code::SHOHIN_OK)
        })
    }
}
