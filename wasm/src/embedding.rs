//! A text on its way to becoming a vector.

use crate::error::{JsResult, js};
use crate::model::{Loaded, unknown};
use crate::timeline::CpuDevice;
use shohin_core::model::{Embedding, ModelConfig, Pooling};
use shohin_core::{Error, Result, Session};
use std::rc::Rc;
use wasm_bindgen::prelude::*;

/// # Errors
/// `unsupported` for another word.
pub(crate) fn pooling_named(name: &str) -> JsResult<Pooling> {
    match name {
        "mean" => Ok(Pooling::Mean),
        "last" => Ok(Pooling::Last),
        _ => Err(unknown("pooling", name, "mean or last")),
    }
}

/// Whether the model can see all of a text at once.
pub(crate) fn check(tokens: &[u32], config: &ModelConfig) -> Result<()> {
    let capacity = config.max_context_length;
    match tokens.len() {
        0 => Err(Error::Length { what: "tokens (at least 1)", expected: 1, found: 0 }),
        len if len > capacity => {
            Err(Error::ContextFull { position: 0, adding: len as u64, capacity: capacity as u64 })
        }
        _ => Ok(()),
    }
}

/// An embedding under way, in a cache of its own.
#[wasm_bindgen]
pub struct Embedder {
    device: CpuDevice,
    session: Session<CpuDevice>,
    loaded: Rc<Loaded>,
    embedding: Embedding,
    tokens: Vec<u32>,
    fed: usize,
}

#[wasm_bindgen]
impl Embedder {
    /// Does the next bounded piece of work; true when all is done.
    ///
    /// # Errors
    /// `token` for an id that is not in the vocabulary.
    pub fn step(&mut self) -> JsResult<bool> {
        let end = self.tokens.len().min(self.fed + self.loaded.batch());
        if end > self.fed {
            let mut push = |_, hidden: &[f32]| self.embedding.push(hidden);
            let tokens = &self.tokens[self.fed..end];
            self.session.forward_hidden(&mut self.device, tokens, &mut push).map_err(js)?;
            self.fed = end;
        }
        Ok(end == self.tokens.len())
    }

    /// The embedding; with `normalize` of length 1.
    pub fn result(&self, normalize: bool) -> Vec<f32> {
        self.embedding.finish(normalize)
    }
}

impl Embedder {
    pub(crate) fn new(loaded: Rc<Loaded>, tokens: Vec<u32>, pooling: Pooling) -> Result<Embedder> {
        check(&tokens, loaded.config())?;
        let (device, session) = loaded.session(tokens.len())?;
        let embedding = Embedding::new(loaded.config().hidden_size, pooling);
        Ok(Embedder { device, session, loaded, embedding, tokens, fed: 0 })
    }
}
