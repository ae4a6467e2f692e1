//! Errors as JavaScript sees them.

use wasm_bindgen::prelude::*;

/// What calls from JavaScript return.
pub(crate) type JsResult<T> = core::result::Result<T, JsValue>;

/// A plain `Error` object that carries the engine's code; the TypeScript side makes its own class of it.
pub(crate) fn js(error: shohin_core::Error) -> JsValue {
    named(&error.to_string(), error.code())
}

/// An `Error` object with this message and code.
pub(crate) fn named(message: &str, code: &str) -> JsValue {
    let object = js_sys::Error::new(message);
    // Setting a property of a fresh, extensible object cannot fail.
    let _ = js_sys::Reflect::set(&object, &JsValue::from_str("code"), &JsValue::from_str(code));
    object.into()
}
