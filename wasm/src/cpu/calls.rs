//! The calls that compute, on the CPU: they answer at once.

use crate::chat::{Chat, Step};
use crate::device::wait;
use crate::embedder::Embedder;
use crate::error::{JsResult, js};
use crate::message::messages;
use crate::model::Model;
use js_sys::Array;
use wasm_bindgen::prelude::*;

#[wasm_bindgen]
impl Model {
    /// A new, empty conversation for `context` tokens (0: as many as the first).
    ///
    /// # Errors
    /// `memory` if there is not enough for its cache.
    pub fn chat(&mut self, context: f64) -> JsResult<Chat> {
        wait(self.open_chat(context))
    }

    /// Begins to embed a text. `pooling`: `mean`, `last`, or that of the file.
    ///
    /// # Errors
    /// `length` if there are no tokens, `context_full` if there are more than the model can see, `unsupported` for the
    /// file's pooling, `memory`.
    pub fn embedder(&self, text: &str, pooling: Option<String>) -> JsResult<Embedder> {
        wait(self.open_embedder(text, pooling.as_deref()))
    }
}

#[wasm_bindgen]
impl Chat {
    /// Does the next bounded piece of work.
    ///
    /// # Errors
    /// `logits` if the model's output is unusable.
    pub fn step(&mut self) -> JsResult<Step> {
        wait(async { self.advance().await.map_err(js) })
    }

    /// The conversation as bytes, with its messages; ends a turn.
    ///
    /// # Errors
    /// `memory` if there is none for them.
    pub fn snapshot(&mut self, given: &Array) -> JsResult<Vec<u8>> {
        let messages = messages(given)?;
        wait(async { self.export(&messages).await.map_err(js) })
    }
}

#[wasm_bindgen]
impl Embedder {
    /// Does the next bounded piece of work; true when all is done.
    ///
    /// # Errors
    /// `token` for an id that is not in the vocabulary.
    pub fn step(&mut self) -> JsResult<bool> {
        wait(async { self.advance().await.map_err(js) })
    }
}
