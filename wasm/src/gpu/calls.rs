//! The calls that compute, on a GPU: they return promises.

use crate::chat::{Chat, Step};
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
    /// `gpu_memory` if there is not enough for its cache.
    pub async fn chat(&mut self, context: f64) -> JsResult<Chat> {
        self.open_chat(context).await
    }

    /// Begins to embed a text. `pooling`: `mean`, `last`, or that of the file.
    ///
    /// # Errors
    /// `length` if there are no tokens, `context_full` if there are more than the model can see, `unsupported` for the
    /// file's pooling, `gpu_memory`.
    pub async fn embedder(&self, text: &str, pooling: Option<String>) -> JsResult<Embedder> {
        self.open_embedder(text, pooling.as_deref()).await
    }
}

#[wasm_bindgen]
impl Chat {
    /// Does the next bounded piece of work.
    ///
    /// # Errors
    /// `gpu_lost` and the like, after which the model is of no use; `logits` if its output is unusable.
    pub async fn step(&mut self) -> JsResult<Step> {
        self.advance().await.map_err(js)
    }

    /// The conversation as bytes, with its messages, for a GPU to go on from: the CPU orders keys and values otherwise. Ends a turn.
    ///
    /// # Errors
    /// `memory`; what the GPU says.
    pub async fn snapshot(&mut self, given: Array) -> JsResult<Vec<u8>> {
        let messages = messages(&given)?;
        self.export(&messages).await.map_err(js)
    }
}

#[wasm_bindgen]
impl Embedder {
    /// Does the next bounded piece of work; true when all is done.
    ///
    /// # Errors
    /// `token` for an id that is not in the vocabulary; what the GPU says.
    pub async fn step(&mut self) -> JsResult<bool> {
        self.advance().await.map_err(js)
    }
}
