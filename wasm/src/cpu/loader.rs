//! Takes a model's file into memory.

use crate::chat::Chat;
use crate::checksum::FileHash;
use crate::device::{Weights, wait};
use crate::error::{JsResult, js};
use crate::info::FileInfo;
use crate::loaded::Loaded;
use crate::model::Model;
use crate::options::{activations_named, reading, session_options, whole};
use crate::threads::pool;
use js_sys::Uint8Array;
use shohin_core::cpu::{self, CpuWeights, Expansion, Isa};
use shohin_core::gguf::{Event, GgufStream, ReadOptions};
use shohin_core::model::{BonsaiModel, Qwen3Config};
use shohin_core::tokenizer::Tokenizer;
use shohin_core::{Activations, CpuOptions, Error, Gguf, Result, SessionOptions};
use std::sync::Arc;
use wasm_bindgen::prelude::*;

/// A context shorter than this is of no use: rather fail.
const MIN_CONTEXT: usize = 512;

/// Longer than any file.
const UNKNOWN_LENGTH: u64 = 1 << 60;

/// Growth of a file whose size is not known.
const UNKNOWN_GROWTH: usize = 16 << 20;

/// Receives a file piece by piece; the engine then reads it where it is.
#[wasm_bindgen]
pub struct Loader {
    bytes: Vec<u8>,
    read: ReadOptions,
    /// Parses the header as it arrives; `None` once it is complete.
    head: Option<Head>,
}

struct Head {
    stream: GgufStream,
    complete: bool,
}

impl Head {
    /// Takes the next bytes.
    ///
    /// # Errors
    /// If the part of the header that has arrived is malformed.
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
            // The announced length may be wrong, and with it where the file ends.
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
impl Loader {
    /// Takes memory for `expected` bytes at once, so that a file of that size is never moved. 0: unknown. `id42` is the
    /// meaning of tensor type 42.
    ///
    /// # Errors
    /// `memory` if there is not that much; `unsupported` for another meaning.
    #[wasm_bindgen(constructor)]
    pub fn new(expected: f64, id42: &str) -> JsResult<Loader> {
        let read = reading(id42)?;
        let length = if expected > 0.0 { expected as u64 } else { UNKNOWN_LENGTH };
        let stream = GgufStream::new(length, read);
        let mut loader = Loader { bytes: Vec::new(), read, head: Some(Head { stream, complete: false }) };
        if expected > 0.0 {
            if expected > isize::MAX as f64 {
                return Err(js(Error::Memory { need: expected as u64, have: isize::MAX as u64 }));
            }
            loader.reserve(expected as usize)?;
        }
        Ok(loader)
    }

    /// Appends a piece, copying it once.
    ///
    /// # Errors
    /// `memory` if it does not fit; the error of a malformed header as soon as it is known, so that nobody waits for the
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
        copy(piece, &mut self.bytes);
        if let Some(head) = &mut self.head {
            let read = head.take(&self.bytes[at..]);
            if read.is_err() || head.complete {
                self.head = None;
            }
            read.map_err(js)?;
        }
        Ok(())
    }

    /// The model, once all of the file is there, and the memory for a first conversation of `context` tokens (0: the
    /// model's own limit, at most 4096, less where memory is short).
    ///
    /// # Errors
    /// If the file is malformed or not supported, for an unknown option, or `memory`.
    pub fn finish(mut self, context: f64, kv: &str, attention: &str, activations: &str) -> JsResult<Model> {
        let session = session_options(kv, attention)?;
        let activations = activations_named(activations)?;
        let asked = whole("context", context)?;
        let mut options = CpuOptions { activations, ..CpuOptions::default() };
        if asked > 0 {
            options.context = asked;
        }
        // Memory that was announced and not used serves the conversations.
        self.bytes.shrink_to_fit();
        wait(async { load(self.bytes, &self.read, options, session, asked == 0).await.map_err(js) })
    }
}

impl Loader {
    fn reserve(&mut self, more: usize) -> JsResult<()> {
        let have = self.bytes.capacity() as u64;
        self.bytes
            .try_reserve_exact(more)
            .map_err(|_| js(Error::Memory { need: self.bytes.len() as u64 + more as u64, have }))
    }
}

/// Appends a piece to bytes that have room for it.
pub(crate) fn copy(piece: &Uint8Array, bytes: &mut Vec<u8>) {
    let (at, len) = (bytes.len(), piece.length() as usize);
    piece.copy_to_uninit(&mut bytes.spare_capacity_mut()[..len]);
    // SAFETY: the capacity is there and the line above has just written bytes at..at + len.
    unsafe { bytes.set_len(at + len) };
}

async fn load(
    mut bytes: Vec<u8>,
    read: &ReadOptions,
    options: CpuOptions,
    session: SessionOptions,
    shrink: bool,
) -> Result<Model> {
    let mut fingerprint = FileHash::default();
    fingerprint.push(&bytes);
    // The file is read before its weights are rearranged.
    let gguf = Gguf::parse_with(&bytes, read)?;
    let tokenizer = Tokenizer::from_gguf(&gguf)?.into_owned();
    let file = FileInfo::new(gguf.header(), &tokenizer, bytes.len() as u64)?;
    let int8 = options.activations == Activations::Int8;
    if int8 {
        bytes = expanded(bytes, read, options.isa)?;
    }
    let frequencies = |config: Qwen3Config| config.for_context(options.context);
    let model =
        BonsaiModel::load_parts(vec![Arc::new(bytes)], read, frequencies).map_err(|part| part.error)?;
    // The copy is ours: the weights may lie as the kernels read them fastest.
    let weights =
        if int8 { CpuWeights::repack(model, options.isa, pool())? } else { CpuWeights::new(model)? };
    let weights = Weights { weights: Arc::new(weights), options };
    let loaded = Loaded::new(file, tokenizer, weights, session, fingerprint);
    let mut context = options.context;
    let first = loop {
        match Chat::open(&loaded, context).await {
            Err(Error::Memory { .. }) if shrink && context > MIN_CONTEXT => context /= 2,
            first => break first?,
        }
    };
    Ok(Model::new(loaded, first))
}

/// The file with base-3 digits expanded to 2-bit codes, which are several times as fast; unchanged if it has none,
/// or if there is no memory for them.
fn expanded(mut bytes: Vec<u8>, read: &ReadOptions, isa: Isa) -> Result<Vec<u8>> {
    let len = bytes.len();
    // Larger than the address space is as good as larger than memory.
    let Ok(Some(Expansion { room, .. })) = cpu::expansion(&Gguf::parse_with(&bytes, read)?, len) else {
        return Ok(bytes);
    };
    if bytes.try_reserve_exact(room - len).is_err() {
        return Ok(bytes);
    }
    bytes.resize(room, 0);
    bytes.copy_within(..len, room - len);
    let len = cpu::expand_file(&mut bytes, len, read, isa, pool())?;
    bytes.truncate(len);
    Ok(bytes)
}
