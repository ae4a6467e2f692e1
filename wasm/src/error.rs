//! Errors as JavaScript sees them.

use wasm_bindgen::prelude::*;

/// A plain `Error` object that carries the engine's code; the TypeScript side makes its own class of it.
pub(crate) fn js(error: shohin_core::Error) -> JsValue {
    with_code(error.code(), &error.to_string())
}

/// The same for a reason of this host's own.
pub(crate) fn with_code(code: &str, message: &str) -> JsValue {
    let error = js_sys::Error::new(message);
    // Setting a property of a fresh, extensible object cannot fail.
    let _ = js_sys::Reflect::set(&error, &JsValue::from_str("code"), &JsValue::from_str(code));
    error.into()
}
