//! The parts of a model on their way to becoming one stream.

use crate::error::{JsResult, js};
use crate::options::reading;
use js_sys::Reflect;
use shohin_core::gguf::{GgufJoin, PartError};
use wasm_bindgen::prelude::*;

/// Joins parts of these lengths, in which tensor type 42 means `id42`; see [`GgufJoin`]. Errors have a property `part`.
#[wasm_bindgen]
pub struct Joiner {
    join: GgufJoin,
}

fn blame(wrong: PartError) -> JsValue {
    let error = js(wrong.error);
    // Setting a property of a fresh, extensible object cannot fail.
    let _ = Reflect::set(&error, &JsValue::from_str("part"), &JsValue::from_f64(wrong.part as f64));
    error
}

#[wasm_bindgen]
impl Joiner {
    /// # Errors
    /// `memory`.
    #[wasm_bindgen(constructor)]
    pub fn new(lengths: &[f64], id42: &str) -> JsResult<Joiner> {
        let lengths: Vec<u64> = lengths.iter().map(|&len| len as u64).collect();
        Ok(Joiner { join: GgufJoin::new(&lengths, &reading(id42)?).map_err(js)? })
    }

    /// Takes the next bytes of a part, and says whether its header is complete.
    ///
    /// # Errors
    /// If the part is malformed or does not belong to the model.
    pub fn head(&mut self, part: usize, piece: &[u8]) -> JsResult<bool> {
        self.join.head(part, piece).map_err(blame)
    }

    /// The beginning of the whole, once all headers are complete.
    ///
    /// # Errors
    /// Parts that do not belong together.
    pub fn begin(&mut self) -> JsResult<Vec<u8>> {
        self.join.begin().map_err(blame)
    }

    /// Takes the next bytes of a part, one part after the other, and gives back what follows in the whole.
    ///
    /// # Errors
    /// If the part is malformed or does not belong to the model.
    pub fn push(&mut self, part: usize, piece: &[u8]) -> JsResult<Vec<u8>> {
        let mut out = Vec::with_capacity(piece.len());
        self.join.push(part, piece, &mut |bytes| out.extend_from_slice(bytes)).map_err(blame)?;
        Ok(out)
    }

    /// Ends a part.
    ///
    /// # Errors
    /// `truncated` if it is not complete.
    pub fn finish(&mut self, part: usize) -> JsResult<()> {
        self.join.finish(part).map_err(blame)
    }

    /// Bytes of the whole, once it has begun.
    #[wasm_bindgen(getter)]
    pub fn length(&self) -> f64 {
        self.join.len() as f64
    }
}
