//! A file on its way into the module's memory.

use crate::error::{JsResult, js};
use js_sys::Uint8Array;
use sha2::{Digest, Sha256};
use shohin_core::gguf::{Event, GgufStream, ReadOptions};
use shohin_core::model::Qwen3Config;
use shohin_core::{Error, Result};
use wasm_bindgen::prelude::*;

/// Longer than any file.
const UNKNOWN_LENGTH: u64 = 1 << 60;

/// Growth of a file whose size nobody told.
const UNKNOWN_GROWTH: usize = 16 << 20;

/// Receives a file piece by piece; the engine then reads it where it lies.
#[wasm_bindgen]
#[derive(Default)]
pub struct FileBuffer {
    bytes: Vec<u8>,
    /// Reads the header as it comes; gone when that is done.
    head: Option<Head>,
}

struct Head {
    stream: GgufStream,
    complete: bool,
}

impl Head {
    /// What is wrong with the header, as far as it is there.
    fn take(&mut self, piece: &[u8]) -> Result<()> {
        let complete = &mut self.complete;
        let read = self.stream.push(piece, &mut |event| match event {
            Event::Header(header) => {
                *complete = true;
                Qwen3Config::from_header(header).map(drop)
            }
            _ => Ok(()),
        });
        match read {
            // What was announced may be wrong, and with it where the file ends.
            Err(
                Error::Truncated { .. }
                | Error::Incomplete { .. }
                | Error::TensorRange { .. }
                | Error::Length { .. },
            ) => {
                self.complete = true;
                Ok(())
            }
            read => read,
        }
    }
}

#[wasm_bindgen]
impl FileBuffer {
    /// Takes memory for `expected` bytes at once, so that a file of that size is never moved. 0: unknown.
    ///
    /// # Errors
    /// `memory` if there is not that much.
    #[wasm_bindgen(constructor)]
    pub fn new(expected: f64) -> JsResult<FileBuffer> {
        let length = if expected > 0.0 { expected as u64 } else { UNKNOWN_LENGTH };
        let stream = GgufStream::new(length, ReadOptions::default());
        let mut buffer = FileBuffer { bytes: Vec::new(), head: Some(Head { stream, complete: false }) };
        if expected > 0.0 {
            if expected > isize::MAX as f64 {
                return Err(js(Error::Memory { need: expected as u64, have: isize::MAX as u64 }));
            }
            buffer.reserve(expected as usize)?;
        }
        Ok(buffer)
    }

    /// Appends a piece, copying it once.
    ///
    /// # Errors
    /// `memory` if it does not fit; what is wrong with the header as soon as that is clear, so that nobody waits for the
    /// download of a sign-in page or of a model of another kind.
    pub fn append(&mut self, piece: &Uint8Array) -> JsResult<()> {
        let len = piece.length() as usize;
        if self.bytes.capacity() - self.bytes.len() < len {
            // More than was announced: grow by a half, so that the whole is moved only a few times.
            let want = len.max(self.bytes.len() / 2).max(UNKNOWN_GROWTH);
            if self.reserve(want).is_err() {
                self.reserve(len)?;
            }
        }
        let at = self.bytes.len();
        piece.copy_to_uninit(&mut self.bytes.spare_capacity_mut()[..len]);
        // SAFETY: the capacity is there and the line above has just written bytes at..at + len.
        unsafe { self.bytes.set_len(at + len) };
        if let Some(head) = &mut self.head {
            let read = head.take(&self.bytes[at..]);
            if read.is_err() || head.complete {
                self.head = None;
            }
            read.map_err(js)?;
        }
        Ok(())
    }

    /// Bytes so far.
    #[wasm_bindgen(getter)]
    pub fn length(&self) -> f64 {
        self.bytes.len() as f64
    }
}

impl FileBuffer {
    fn reserve(&mut self, more: usize) -> JsResult<()> {
        let have = self.bytes.capacity() as u64;
        self.bytes
            .try_reserve_exact(more)
            .map_err(|_| js(Error::Memory { need: self.bytes.len() as u64 + more as u64, have }))
    }

    /// The whole file.
    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        // What was announced and did not come serves the session.
        self.bytes.shrink_to_fit();
        self.bytes
    }
}

/// A SHA-256 in the making.
#[wasm_bindgen]
#[derive(Default)]
pub struct Checksum(Sha256);

#[wasm_bindgen]
impl Checksum {
    /// Of nothing yet.
    #[wasm_bindgen(constructor)]
    pub fn new() -> Checksum {
        Checksum::default()
    }

    /// Takes the next bytes.
    pub fn push(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    /// In hexadecimal digits, of all so far.
    pub fn digits(&self) -> String {
        self.0.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
