//! The file to write.

use crate::error::{ConvertError, Result};
use shohin_files::failed;
use shohin_files::new_file::NewFile;
use std::fs;
use std::path::Path;

/// Begins the file `out`. One that is there is replaced only if `replace` says so.
///
/// # Errors
/// [`ConvertError::Exists`]; [`ConvertError::NotRegular`] for a folder, a pipe or a device; [`Error::File`](crate::Error::File).
#[doc(hidden)]
pub fn new_file(out: &Path, replace: bool) -> Result<NewFile> {
    match fs::metadata(out) {
        Ok(found) if !found.is_file() => Err(ConvertError::NotRegular.at(out)),
        Ok(_) if !replace => Err(ConvertError::Exists.at(out)),
        _ => Ok(NewFile::create(out).map_err(failed("write", out))?),
    }
}
