//! JSON files of a folder: bounded, with errors that name the key.

use crate::error::{ConvertError, Result};
use serde_json::Value;
use shohin_files::{Error, IS_POINTER, POINTER, failed};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A file and what it contains.
pub(crate) struct Json {
    pub(crate) path: PathBuf,
    pub(crate) root: Value,
}

/// The text of a file of at most `most` bytes; `None` if there is no such file.
pub(crate) fn text(path: &Path, most: u64) -> Result<Option<String>> {
    let failed = failed("read", path);
    let refused = |error: ConvertError| error.at(path);
    let meta = match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        meta => meta.map_err(failed)?,
    };
    if !meta.is_file() {
        return Err(Error::NotAFile { path: path.into(), problem: "is not a regular file" }.into());
    }
    if meta.len() > most {
        return Err(refused(ConvertError::Large { found: meta.len(), most }));
    }
    let mut bytes = Vec::new();
    File::open(path).map_err(failed)?.take(most).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.starts_with(POINTER) {
        return Err(Error::NotAFile { path: path.into(), problem: IS_POINTER }.into());
    }
    let text = String::from_utf8(bytes);
    Ok(Some(text.map_err(|_| refused(ConvertError::Json { problem: "not UTF-8".into() }))?))
}

impl Json {
    /// `None` if there is no such file.
    pub(crate) fn open(path: PathBuf, most: u64) -> Result<Option<Json>> {
        let Some(text) = text(&path, most)? else { return Ok(None) };
        match serde_json::from_str(&text) {
            Ok(root) => Ok(Some(Json { path, root })),
            Err(error) => Err(ConvertError::Json { problem: error.to_string() }.at(&path)),
        }
    }

    /// Adds the file to an error.
    pub(crate) fn at<T>(&self, result: Result<T, ConvertError>) -> Result<T> {
        result.map_err(|error| error.at(&self.path))
    }
}

/// A value of an object that is present and not null.
pub(crate) fn present<'v>(object: &'v Value, key: &str) -> Option<&'v Value> {
    object.get(key).filter(|value| !value.is_null())
}

/// The error for `found` at `key`.
pub(crate) fn wrong(key: &str, found: Option<&Value>, expected: &'static str) -> ConvertError {
    let found = found.map_or("missing".into(), |value| {
        let text = value.to_string();
        match text.char_indices().nth(80) {
            Some((end, _)) => format!("{}...", &text[..end]),
            None => text,
        }
    });
    ConvertError::Value { key: key.into(), found, expected }
}

/// A whole number of at most 32 bits.
pub(crate) fn whole(object: &Value, key: &str) -> Result<Option<u32>, ConvertError> {
    let Some(value) = present(object, key) else { return Ok(None) };
    let number = value.as_u64().and_then(|n| u32::try_from(n).ok());
    number.map(Some).ok_or_else(|| wrong(key, Some(value), "a whole number of 32 bits"))
}

/// [`whole`], or an error if there is none.
pub(crate) fn need_whole(object: &Value, key: &str) -> Result<u32, ConvertError> {
    whole(object, key)?.ok_or_else(|| wrong(key, None, "a whole number of 32 bits"))
}

/// A number.
pub(crate) fn number(object: &Value, key: &str) -> Result<Option<f32>, ConvertError> {
    let Some(value) = present(object, key) else { return Ok(None) };
    value.as_f64().map(|n| Some(n as f32)).ok_or_else(|| wrong(key, Some(value), "a number"))
}

/// A text.
pub(crate) fn string<'v>(object: &'v Value, key: &str) -> Result<Option<&'v str>, ConvertError> {
    let Some(value) = present(object, key) else { return Ok(None) };
    value.as_str().map(Some).ok_or_else(|| wrong(key, Some(value), "a text"))
}

/// JSON as it is published: over lines, and one at the end.
pub(crate) fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}
