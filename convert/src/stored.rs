//! The tensors of safetensors files.

use crate::error::{ConvertError, Result};
use crate::names::is_convolution;
use safetensors::tensor::{Dtype, SafeTensors};
use serde_json::Value;
use shohin_core::Format;
use shohin_files::Mmap;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A tensor as stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored<'f> {
    pub(crate) dtype: Dtype,
    /// Rows and columns; one row for a vector, unless it is a convolution.
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) vector: bool,
    pub(crate) data: &'f [u8],
}

/// What is missing of a file that is not whole.
fn missing(bytes: &[u8]) -> Option<String> {
    let header = usize::try_from(u64::from_le_bytes(*bytes.first_chunk()?)).ok()?.checked_add(8)?;
    let needs = match bytes.get(8..header) {
        // Larger ones are no headers.
        None if header <= MAX_HEADER => header,
        None => return None,
        Some(header_bytes) => {
            let tensors: Value = serde_json::from_slice(header_bytes).ok()?;
            let ends =
                tensors.as_object()?.values().filter_map(|one| one.get("data_offsets")?.get(1)?.as_u64());
            header.checked_add(usize::try_from(ends.max()?).ok()?)?
        }
    };
    let have = bytes.len();
    (have < needs)
        .then(|| format!("the file is incomplete: it has {have} bytes, at least {needs} are needed"))
}

/// Maximum number of bytes of a header, that of the library.
const MAX_HEADER: usize = 100_000_000;

/// All tensors by name.
pub(crate) fn stored(shards: &[(PathBuf, Mmap)]) -> Result<BTreeMap<String, Stored<'_>>> {
    let mut all = BTreeMap::new();
    for (path, map) in shards {
        let refused = |error: ConvertError| error.at(path);
        let file = SafeTensors::deserialize(map).map_err(|error| {
            let problem = missing(map).unwrap_or_else(|| error.to_string());
            refused(ConvertError::SafeTensors { problem })
        })?;
        for (name, view) in file.iter() {
            let (rows, cols) = match *view.shape() {
                [] => (1, 1),
                [cols] => (1, cols),
                [rows, cols] => (rows, cols),
                // A convolution of each channel by itself.
                [rows, 1, cols] if is_convolution(name) => (rows, cols),
                _ => {
                    let problem =
                        format!("has the shape {:?}, expected at most two dimensions", view.shape());
                    return Err(refused(ConvertError::tensor(name, problem)));
                }
            };
            let vector = view.shape().len() < 2 || is_convolution(name);
            let stored = Stored { dtype: view.dtype(), rows, cols, vector, data: view.data() };
            if all.insert(name.to_string(), stored).is_some() {
                return Err(refused(ConvertError::tensor(name, "is in two files")));
            }
        }
    }
    Ok(all)
}

/// The format of floats of 16 or 32 bits.
pub(crate) fn float(name: &str, dtype: Dtype) -> Result<Format, ConvertError> {
    match dtype {
        Dtype::F32 => Ok(Format::F32),
        Dtype::F16 => Ok(Format::F16),
        Dtype::BF16 => Ok(Format::Bf16),
        other => Err(ConvertError::tensor(
            name,
            format!("has type {other:?}, expected a float of 32, 16 or 8 bits"),
        )),
    }
}
