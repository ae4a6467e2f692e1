//! Models of the Hugging Face Hub.

use crate::argument::{self, copy_out};
use crate::code::{Result, call, shohin_code, shohin_error};
use std::ffi::{c_char, c_void};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Is told how far a download is; a result other than 0 ends it.
pub type shohin_on_download =
    Option<unsafe extern "C" fn(user_data: *mut c_void, file: *const c_char, have: u64, total: u64) -> i32>;

/// Is told the file, the bytes that are there, and how many there will be, or 0.
type OnDownload<'f> = dyn FnMut(&str, u64, u64) -> ControlFlow<()> + 'f;

/// The path of a model, which is downloaded if it is the name of one of the Hub and there is no such file.
#[cfg(feature = "hub")]
pub(crate) fn located(name: &str, on_download: &mut OnDownload<'_>) -> Result<PathBuf> {
    use shohin::hub::{Hub, HubModel};
    if Path::new(name).exists() || !HubModel::is_named_by(name) {
        return Ok(name.into());
    }
    let (hub, model) = (Hub::from_env()?, name.parse::<HubModel>()?);
    match hub.find(&model) {
        Some(path) => Ok(path),
        None => {
            Ok(hub.pull(&model, &mut |now| on_download(now.file, now.have, now.total.unwrap_or_default()))?)
        }
    }
}

#[cfg(not(feature = "hub"))]
pub(crate) fn located(name: &str, _: &mut OnDownload<'_>) -> Result<PathBuf> {
    use crate::code::Failure;
    if name.starts_with("hf:") && !Path::new(name).exists() {
        let message =
            format!("{name} is a model of the Hub, and this library was built without the feature `hub`");
        return Err(Failure::new(shohin_code::SHOHIN_UNSUPPORTED, message));
    }
    Ok(name.into())
}

/// The path of a model, which is downloaded if it is the name of one of the Hub.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_download(
    name: *const c_char,
    name_len: usize,
    on_download: shohin_on_download,
    user_data: *mut c_void,
    path: *mut c_char,
    capacity: usize,
    path_len: *mut usize,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        call(error, || {
            let name = argument::text(name, name_len, "name")?;
            let mut tell = |file: &str, have: u64, total: u64| {
                let Some(on_download) = on_download else { return ControlFlow::Continue(()) };
                let file: Vec<u8> = file.bytes().filter(|byte| *byte != 0).chain([0]).collect();
                match on_download(user_data, file.as_ptr().cast(), have, total) {
                    0 => ControlFlow::Continue(()),
                    _ => ControlFlow::Break(()),
                }
            };
            let found = located(name, &mut tell)?;
            copy_out(found.to_string_lossy().as_bytes(), path.cast(), capacity, path_len)
        })
    }
}
