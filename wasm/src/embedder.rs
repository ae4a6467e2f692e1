//! Embeddings of texts.

use crate::device::{Device, DeviceError};
use crate::error::{JsResult, js};
use crate::loaded::Loaded;
use crate::options::pooling_named;
use shohin_core::device::{Output, Readout, Wants};
use shohin_core::model::Embedding;
use shohin_core::{Device as _, Error, Session};
use std::rc::Rc;
use wasm_bindgen::prelude::*;

/// A text on its way to becoming a vector, in a cache of its own.
#[wasm_bindgen]
pub struct Embedder {
    device: Device,
    session: Session<Device>,
    embedding: Embedding,
    tokens: Vec<u32>,
    batch: usize,
}

#[wasm_bindgen]
impl Embedder {
    /// The embedding; with `normalize` of length 1.
    pub fn result(&self, normalize: bool) -> Vec<f32> {
        self.embedding.finish(normalize)
    }
}

impl Embedder {
    pub(crate) async fn open(loaded: &Rc<Loaded>, text: &str, pooling: Option<&str>) -> JsResult<Embedder> {
        let pooling = match pooling {
            Some(name) => pooling_named(name)?,
            None => loaded.file.pooling.map_err(js)?,
        };
        let tokens = loaded.tokenizer.encode_whole(text);
        let config = loaded.weights.config();
        let capacity = config.longest_sequence();
        let wrong = match tokens.len() {
            0 => Some(Error::Length { what: "tokens (at least 1)", expected: 1, found: 0 }),
            len if len > capacity => {
                Some(Error::ContextFull { position: 0, adding: len as u64, capacity: capacity as u64 })
            }
            _ => None,
        };
        if let Some(wrong) = wrong {
            return Err(js(wrong));
        }
        let context = Embedding::context(tokens.len(), capacity);
        let (device, session) = loaded.session(context).await.map_err(js)?;
        let embedding = Embedding::new(device.config().hidden_size, pooling);
        let batch = loaded.weights.batch(&device);
        Ok(Embedder { device, session, embedding, tokens, batch })
    }

    /// Does the next bounded piece of work; true when all is done.
    pub(crate) async fn advance(&mut self) -> Result<bool, DeviceError> {
        let Embedder { device, session, embedding, tokens, batch } = self;
        let start = session.position();
        let end = tokens.len().min(start + *batch);
        if end > start {
            let mut push = |_: usize, _: usize, output: Output<'_>| {
                if let Output::Hidden(hidden) = output {
                    embedding.push(hidden);
                }
            };
            session.run(device, &tokens[start..end], Wants::Each(Readout::Hidden), &mut push).await?;
        }
        Ok(end == tokens.len())
    }
}
