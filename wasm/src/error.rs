//! Errors as JavaScript sees them.

use core::fmt::Display;
use wasm_bindgen::prelude::*;

/// Result of calls from JavaScript.
pub(crate) type JsResult<T> = core::result::Result<T, JsValue>;

/// An error with a stable code.
pub(crate) trait Coded: Display {
    /// The code, the same in every host language.
    fn code(&self) -> &'static str;
}

impl Coded for shohin_core::Error {
    fn code(&self) -> &'static str {
        shohin_core::Error::code(self)
    }
}

#[cfg(feature = "gpu")]
impl Coded for shohin_gpu::Error {
    fn code(&self) -> &'static str {
        use shohin_gpu::{Error, GpuFailure};
        match self {
            Error::Core(error) => error.code(),
            Error::OutOfMemory { .. } => "gpu_memory",
            Error::Own(GpuFailure::NoAdapter { .. }) => "gpu_absent",
            Error::Own(GpuFailure::Lost) => "gpu_lost",
            Error::Own(GpuFailure::Device { .. }) => "gpu_device",
            Error::Unsupported { .. } | Error::Operation { .. } => "gpu_unsupported",
        }
    }
}

/// A plain `Error` object that carries the engine's code; the TypeScript side makes its own class of it.
pub(crate) fn js(error: impl Coded) -> JsValue {
    named(&error.to_string(), error.code())
}

/// An `Error` object with this message and code.
pub(crate) fn named(message: &str, code: &str) -> JsValue {
    let object = js_sys::Error::new(message);
    // Setting a property of a fresh, extensible object cannot fail.
    let _ = js_sys::Reflect::set(&object, &JsValue::from_str("code"), &JsValue::from_str(code));
    object.into()
}
