//! Uploads a model's weights as its file arrives.

use crate::chat::Chat;
use crate::checksum::FileHash;
use crate::device::Weights;
use crate::error::{JsResult, js};
use crate::info::FileInfo;
use crate::loaded::Loaded;
use crate::model::Model;
use crate::options::{activations_named, exact, reading, session_options, whole};
use js_sys::Uint8Array;
use shohin_core::gguf::{Event, GgufStream};
use shohin_core::tokenizer::Tokenizer;
use shohin_core::{Activations, Error, SessionOptions};
use shohin_gpu::{Gpu, GpuOptions, Result, Upload};
use std::sync::Arc;
use wasm_bindgen::prelude::*;

/// Tokens held unless another number is asked for.
const CONTEXT: usize = 4096;

/// A part of a tensor that came with the end of the header.
struct Part {
    index: usize,
    offset: u64,
    bytes: Vec<u8>,
}

/// Takes a file piece by piece and uploads its weights. No more than a few pieces are in this memory.
#[wasm_bindgen]
pub struct Loader {
    gpu: Arc<Gpu>,
    stream: GgufStream,
    fingerprint: FileHash,
    upload: Option<Upload>,
    file_len: u64,
}

#[wasm_bindgen]
impl Loader {
    /// Opens a GPU for a file of `length` bytes; a software adapter only if `software` is set.
    ///
    /// # Errors
    /// `gpu_absent`
    pub async fn open(length: f64, software: bool, id42: &str) -> JsResult<Loader> {
        let read = reading(id42)?;
        let file_len = exact("length", length)?;
        let options = GpuOptions { software, ..GpuOptions::default() };
        #[allow(clippy::arc_with_non_send_sync, reason = "in browsers a device belongs to one thread")]
        let gpu = Arc::new(Gpu::open(&options).await.map_err(js)?);
        let stream = GgufStream::new(file_len, read);
        Ok(Loader { gpu, stream, fingerprint: FileHash::default(), upload: None, file_len })
    }

    /// Takes the next bytes of the file.
    ///
    /// # Errors
    /// If the file is malformed; `gpu_unsupported` for a model without kernels on the GPU, `gpu_memory`, `gpu_lost`.
    pub async fn append(&mut self, piece: Uint8Array) -> JsResult<()> {
        self.take(&piece.to_vec()).await.map_err(js)
    }

    /// The model, once all of the file has been taken, and memory for a first conversation of `context` tokens (0: at most
    /// 4096).
    ///
    /// # Errors
    /// `truncated`, an unknown option, or what the GPU says.
    pub async fn finish(self, context: f64, kv: &str, attention: &str, activations: &str) -> JsResult<Model> {
        let asked = whole("context", context)?;
        let context = if asked > 0 { asked } else { CONTEXT };
        let (session, activations) = (session_options(kv, attention)?, activations_named(activations)?);
        self.complete(SessionOptions { context, ..session }, activations).await.map_err(js)
    }
}

impl Loader {
    async fn take(&mut self, piece: &[u8]) -> Result<()> {
        self.fingerprint.push(piece);
        let mut parts = Vec::new();
        let mut codes_first = false;
        let mut failed = None;
        let upload = &mut self.upload;
        let pushed = self.stream.push(piece, &mut |event| {
            match (&mut *upload, event) {
                (Some(upload), event) => upload.event(&event).map_err(|error| {
                    failed = Some(error);
                    error.into()
                }),
                // Memory can be asked for only after this.
                (None, Event::TensorData { index, offset, bytes }) => {
                    parts.push(Part { index, offset, bytes: bytes.to_vec() });
                    Ok(())
                }
                (None, Event::CodesFirst) => {
                    codes_first = true;
                    Ok(())
                }
                (None, Event::Header(_)) => Ok(()),
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        pushed?;
        if self.upload.is_none()
            && let Some(header) = self.stream.header()?
        {
            let mut upload = Upload::new(Arc::clone(&self.gpu), &header).await?;
            if codes_first {
                upload.event(&Event::CodesFirst)?;
            }
            for Part { index, offset, bytes } in parts {
                upload.push(index, offset, &bytes)?;
            }
            self.upload = Some(upload);
        }
        Ok(())
    }

    async fn complete(mut self, session: SessionOptions, activations: Activations) -> Result<Model> {
        self.stream.finish()?;
        let missing = Error::Truncated { what: "header", at: 0, need: 1, have: 0 };
        let model = self.upload.ok_or(missing)?.finish_for(session.context)?;
        let header = self.stream.header()?.ok_or(missing)?;
        let tokenizer = Tokenizer::from_metadata(header.metadata())?.into_owned();
        let file = FileInfo::new(&header, &tokenizer, self.file_len)?;
        let weights = Weights { model, activations };
        let loaded = Loaded::new(file, tokenizer, weights, session, self.fingerprint);
        let first = Chat::open(&loaded, session.context).await?;
        Ok(Model::new(loaded, first))
    }
}
