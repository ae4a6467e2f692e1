//! Plain JavaScript objects: their fields read and written.

use js_sys::{Array, Object, Reflect};
use wasm_bindgen::prelude::*;

/// A field; undefined if there is none.
pub(crate) fn get(object: &JsValue, name: &str) -> JsValue {
    Reflect::get(object, &JsValue::from_str(name)).unwrap_or_default()
}

/// A field that is a string.
pub(crate) fn string(object: &JsValue, name: &str) -> Option<String> {
    get(object, name).as_string()
}

/// The elements of a field that is an array; none if it is not.
pub(crate) fn elements(object: &JsValue, name: &str) -> Array {
    get(object, name).dyn_into().unwrap_or_default()
}

/// Sets a field.
pub(crate) fn set(object: &Object, name: &str, value: impl Into<JsValue>) {
    // Setting a property of a fresh, extensible object cannot fail.
    let _ = Reflect::set(object, &JsValue::from_str(name), &value.into());
}

/// An object with these fields.
pub(crate) fn object<const N: usize>(fields: [(&str, JsValue); N]) -> Object {
    let object = Object::new();
    for (name, value) in fields {
        set(&object, name, value);
    }
    object
}

/// A count as a number.
pub(crate) fn count(n: usize) -> JsValue {
    JsValue::from_f64(n as f64)
}
