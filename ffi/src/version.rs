//! The library's version.

use core::ffi::{CStr, c_char};

/// The version with a NUL at its end.
const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => c"",
};

/// The library's version.
#[unsafe(no_mangle)]
pub extern "C" fn shohin_version() -> *const c_char {
    VERSION.as_ptr()
}
