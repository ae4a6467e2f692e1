//! A Hugging Face folder: its JSON files and its mapped safetensors.

use super::ConvertError;
use super::json::{self, Json};
use crate::error::{Error, Result};
use memmap2::Mmap;
use safetensors::tensor::{Dtype, SafeTensors};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Component, Path, PathBuf};

/// The longest JSON file: tokenizers of 260,000 tokens have 34 MB.
const MAX_JSON: u64 = 256 << 20;

/// A folder whose files are mapped.
pub(super) struct Folder {
    path: PathBuf,
    config: Json,
    shards: Vec<(PathBuf, Mmap)>,
}

/// A tensor as stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored<'f> {
    pub(super) dtype: Dtype,
    /// Rows and columns; one row for a vector.
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) vector: bool,
    pub(super) data: &'f [u8],
}

impl Folder {
    /// Opens `config.json` and maps the safetensors.
    pub(super) fn open(path: &Path) -> Result<Folder> {
        if !path.is_dir() {
            return Err(Error::NotAFile {
                path: path.into(),
                problem: "is not a folder, expected a Hugging Face folder",
            });
        }
        let Some(config) = Json::open(path.join("config.json"), MAX_JSON)? else {
            let problem = "is a folder without config.json, expected a GGUF file or a Hugging Face folder";
            return Err(Error::NotAFile { path: path.into(), problem });
        };
        let mut folder = Folder { path: path.into(), config, shards: Vec::new() };
        let names = match folder.json("model.safetensors.index.json")? {
            Some(index) => index.at(shard_names(&index.root))?,
            None => BTreeSet::from([String::from("model.safetensors")]),
        };
        for name in names {
            let path = path.join(name);
            let map = map(&path)?;
            folder.shards.push((path, map));
        }
        Ok(folder)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn config(&self) -> &Json {
        &self.config
    }

    /// Adds the folder to an error.
    pub(super) fn at<T>(&self, result: Result<T, ConvertError>) -> Result<T> {
        result.map_err(|error| error.at(&self.path))
    }

    /// A JSON file, if it is there.
    pub(super) fn json(&self, name: &str) -> Result<Option<Json>> {
        Json::open(self.path.join(name), MAX_JSON)
    }

    /// A JSON file.
    pub(super) fn need_json(&self, name: &'static str) -> Result<Json> {
        let missing =
            || ConvertError::Value { key: name.into(), found: "missing".into(), expected: "a file" };
        self.json(name)?.ok_or_else(|| missing().at(&self.path))
    }

    /// A text file, if it is there.
    pub(super) fn text(&self, name: &str) -> Result<Option<String>> {
        json::text(&self.path.join(name), MAX_JSON)
    }

    /// All tensors by name.
    pub(super) fn tensors(&self) -> Result<BTreeMap<String, Stored<'_>>> {
        let mut all = BTreeMap::new();
        for (path, map) in &self.shards {
            let refused = |error: ConvertError| error.at(path);
            let file = SafeTensors::deserialize(map)
                .map_err(|error| refused(ConvertError::SafeTensors { problem: error.to_string() }))?;
            for (name, view) in file.iter() {
                let (rows, cols) = match *view.shape() {
                    [cols] => (1, cols),
                    [rows, cols] => (rows, cols),
                    _ => {
                        let problem =
                            format!("has the shape {:?}, expected one or two dimensions", view.shape());
                        return Err(refused(ConvertError::tensor(name, problem)));
                    }
                };
                let vector = view.shape().len() == 1;
                let stored = Stored { dtype: view.dtype(), rows, cols, vector, data: view.data() };
                if all.insert(name.to_string(), stored).is_some() {
                    return Err(refused(ConvertError::tensor(name, "is in two files")));
                }
            }
        }
        Ok(all)
    }
}

/// The files that the index of a model in parts names: files of the same folder.
fn shard_names(root: &Value) -> Result<BTreeSet<String>, ConvertError> {
    let expected = "names of files by tensor";
    let map = root.get("weight_map").and_then(Value::as_object);
    let map = map.ok_or_else(|| json::wrong("weight_map", root.get("weight_map"), expected))?;
    let name = |value: &Value| {
        let name = value.as_str().filter(|name| {
            let mut parts = Path::new(name).components();
            matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None))
        });
        name.map(String::from).ok_or_else(|| json::wrong("weight_map", Some(value), "a file of the folder"))
    };
    let names: BTreeSet<String> = map.values().map(name).collect::<Result<_, _>>()?;
    if names.is_empty() || names.len() > shohin_core::gguf::MAX_PARTS {
        return Err(json::wrong("weight_map", None, "1 to 1000 files"));
    }
    Ok(names)
}

#[allow(unsafe_code)]
fn map(path: &Path) -> Result<Mmap> {
    let failed = |source| Error::Io { action: "open", path: path.into(), source };
    // Before it is opened: opening a pipe waits for a writer.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(Error::NotAFile { path: path.into(), problem: "is not a regular file" });
    }
    let file = File::open(path).map_err(failed)?;
    // SAFETY: the mapping is read-only; as with a GGUF file, another program that truncates the file meanwhile
    // terminates this one.
    unsafe { Mmap::map(&file) }.map_err(failed)
}
