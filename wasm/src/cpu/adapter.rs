//! Adapters (LoRA), each of which joins a loaded model and shares its weights.

use crate::chat::Chat;
use crate::device::Weights;
use crate::error::{JsResult, js};
use crate::loaded::Loaded;
use crate::loader::copy;
use crate::model::Model;
use js_sys::Uint8Array;
use sha2::{Digest, Sha256};
use shohin_core::model::LoraAdapter;
use shohin_core::{Error, Gguf, Result};
use std::rc::Rc;
use std::sync::Arc;
use wasm_bindgen::prelude::*;

/// An adapter's file, which arrives piece by piece.
#[wasm_bindgen]
#[derive(Default)]
pub struct Adapter {
    bytes: Vec<u8>,
    hash: Sha256,
}

#[wasm_bindgen]
impl Adapter {
    /// Without bytes yet.
    #[wasm_bindgen(constructor)]
    pub fn new() -> Adapter {
        Adapter::default()
    }

    /// Appends a piece.
    ///
    /// # Errors
    /// `memory` if it does not fit.
    pub fn append(&mut self, piece: &Uint8Array) -> JsResult<()> {
        let need = u64::from(piece.length());
        self.bytes.try_reserve(piece.length() as usize).map_err(|_| js(Error::Memory { need, have: 0 }))?;
        let at = self.bytes.len();
        copy(piece, &mut self.bytes);
        self.hash.update(&self.bytes[at..]);
        Ok(())
    }

    /// Reads the file, once all of it is there.
    ///
    /// # Errors
    /// If it is malformed, or no adapter.
    pub fn check(&mut self) -> JsResult<()> {
        self.bytes.shrink_to_fit();
        self.with(|_| Ok(())).map_err(js)
    }
}

impl Adapter {
    /// Calls `work` with the adapter as it is read.
    fn with<T>(&self, work: impl FnOnce(&LoraAdapter<'_>) -> Result<T>) -> Result<T> {
        work(&LoraAdapter::from_gguf(&Gguf::parse(&self.bytes)?)?)
    }
}

#[wasm_bindgen]
impl Model {
    /// The same model with one adapter more, at a scale. Both share the weights, the threads and the tokenizer; it takes the memory of
    /// the factors.
    ///
    /// # Errors
    /// `unsupported` and `tensor_shape` for an adapter of another model, `option` for a scale that is not finite, `memory`.
    pub fn adapted(&self, adapter: &Adapter, scale: f32) -> JsResult<Model> {
        let Loaded { tokenizer, weights, session, origin, file, vocabulary } = &*self.loaded;
        let adapted =
            adapter.with(|factors| weights.weights.adapt(&[(factors, scale)], Arc::new)).map_err(js)?;
        let mut origin = origin.clone();
        // As the host library hashes it.
        if scale != 0.0 {
            origin.update(b"adapter");
            origin.update(adapter.hash.clone().finalize());
            origin.update(scale.to_le_bytes());
        }
        let loaded = Loaded {
            tokenizer: Rc::clone(tokenizer),
            weights: Weights { weights: Arc::new(adapted), options: weights.options },
            session: *session,
            origin,
            file: Rc::clone(file),
            vocabulary: Rc::clone(vocabulary),
        };
        Ok(Model { first: None, loaded: Rc::new(loaded), context: self.context })
    }
}

#[wasm_bindgen]
impl Chat {
    /// Goes on with `model`, which is its model with other adapters. Unless it has the same ones, the turn ends and the cache is empty.
    ///
    /// # Errors
    /// `memory` if there is none for the work space of a forward pass; all is as it was then but for the cache.
    pub fn change_to(&mut self, model: &Model) -> JsResult<()> {
        self.change(&model.loaded).map_err(js)
    }
}
