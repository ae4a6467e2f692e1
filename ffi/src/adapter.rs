//! Adapters beside the weights of a model.

use crate::argument;
use crate::code::{Failure, Result, call, shohin_code, shohin_error};
use crate::handle::{self, Handle};
use crate::info::shohin_model;
use crate::model::model;
use shohin::{Adapter, Model};
use std::ffi::c_char;

/// An adapter of an array.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct shohin_adapter {
    /// The path of a GGUF file, or NULL.
    pub path: *const c_char,
    /// Its length in bytes, or `SHOHIN_CSTR`.
    pub path_len: usize,
    /// A GGUF file in memory, if there is no path.
    pub bytes: *const u8,
    /// Their number.
    pub len: usize,
    /// 1 applies it as it was trained; 0 has no effect.
    pub scale: f32,
}

/// Opens the adapter with this number, from 1.
///
/// # Safety
/// As [`argument::text`] and [`argument::array`].
unsafe fn open(adapter: &shohin_adapter, number: usize, model: &Model) -> Result<Adapter> {
    let wrong = |code, found: &str| {
        let message = format!("adapter {number} has {found}, expected one of them");
        Err(Failure::new(code, message))
    };
    match (adapter.path.is_null(), adapter.bytes.is_null()) {
        (true, true) => return wrong(shohin_code::SHOHIN_NULL, "neither a path nor bytes"),
        (false, false) => return wrong(shohin_code::SHOHIN_ARGUMENT, "a path and bytes"),
        _ => {}
    }
    // SAFETY: the caller vouches for both.
    let opened = unsafe {
        match adapter.bytes.is_null() {
            true => {
                let path = argument::text(adapter.path, adapter.path_len, "path of an adapter")?;
                Adapter::open(path, model)?
            }
            false => {
                let bytes = argument::array(adapter.bytes, adapter.len, "bytes of an adapter")?;
                Adapter::from_bytes(format!("adapter {number} in memory"), bytes)?
            }
        }
    };
    Ok(opened.at(adapter.scale))
}

/// A model with adapters, which shares the weights of another.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_model_adapted(
    model: *const shohin_model,
    adapters: *const shohin_adapter,
    count: usize,
    adapted: *mut *mut shohin_model,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        call(error, || {
            let out = handle::place(adapted)?;
            let model = self::model(model)?;
            let adapters = match count {
                0 => &[],
                count => argument::array(adapters, count, "adapters")?,
            };
            let open = |(i, adapter)| open(adapter, i + 1, model);
            let opened = adapters.iter().enumerate().map(open).collect::<Result<Vec<Adapter>>>()?;
            out.write_unaligned(Handle::give(model.adapted(&opened)?));
            Ok(shohin_code::SHOHIN_OK)
        })
    }
}
