//! A Hugging Face folder: its JSON files and its mapped weights.

use crate::config::Config;
use crate::error::{ConvertError, Result};
use crate::json::{self, Json, present};
use crate::kind::{is_adapter_folder, is_onnx};
use crate::onnx::Onnx;
use crate::stored::stored;
use crate::tensor::{self, Module};
use serde_json::Value;
use shohin_files::{Error, Mmap, open_mapped};
use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

/// The longest JSON file: tokenizers of 260,000 tokens have 34 MB.
const MAX_JSON: u64 = 256 << 20;

/// A folder whose files are mapped.
pub(crate) struct Folder {
    /// The folder, or the ONNX file in it.
    source: PathBuf,
    path: PathBuf,
    config: Json,
    weights: Files,
}

/// The files with weights.
enum Files {
    SafeTensors(Vec<(PathBuf, Mmap)>),
    Onnx(Onnx),
}

impl Folder {
    /// Opens `config.json` and maps the weights: safetensors, or of an ONNX file `path` in the folder or in a folder
    /// `onnx` of it.
    pub(crate) fn open(path: &Path) -> Result<Folder> {
        if is_onnx(path) {
            let beside = path.parent().unwrap_or(Path::new(""));
            let above = || match beside.parent() {
                Some(above) => above.to_path_buf(),
                None => PathBuf::from(".."),
            };
            let folder = if beside.join("config.json").exists() { beside.to_path_buf() } else { above() };
            let Some(config) = Json::open(folder.join("config.json"), MAX_JSON)? else {
                let problem =
                    "has no config.json beside it or in the folder above, expected a Hugging Face folder";
                return Err(Error::NotAFile { path: path.into(), problem }.into());
            };
            let weights = Files::Onnx(Onnx::open(path)?);
            return Ok(Folder { source: path.into(), path: folder, config, weights });
        }
        if !path.is_dir() {
            return Err(Error::NotAFile {
                path: path.into(),
                problem: "is not a folder, expected a Hugging Face folder",
            }
            .into());
        }
        let Some(config) = Json::open(path.join("config.json"), MAX_JSON)? else {
            if is_adapter_folder(path) {
                let problem =
                    "is a folder with an adapter, expected a model, to which adapters are applied (--lora)";
                return Err(Error::NotAFile { path: path.into(), problem }.into());
            }
            let problem = "is a folder without config.json, expected a GGUF file or a Hugging Face folder";
            return Err(Error::NotAFile { path: path.into(), problem }.into());
        };
        // As transformers does: an index beside it is from before the parts were joined.
        let index = match path.join(WEIGHTS).exists() {
            true => None,
            false => Json::open(path.join(INDEX), MAX_JSON)?,
        };
        let onnx = if index.is_none() { only_onnx(path)? } else { None };
        if index.is_none() && onnx.is_none() && !path.join(WEIGHTS).exists() {
            return Err(Error::NotAFile { path: path.into(), problem: without_weights(path) }.into());
        }
        let names = match index {
            Some(index) => index.at(shard_names(&index.root))?,
            None => BTreeSet::from([String::from(WEIGHTS)]),
        };
        let shard = |name| {
            let path = path.join(name);
            let map = open_mapped(&path)?;
            Ok((path, map))
        };
        let weights = match onnx {
            Some(file) => Files::Onnx(Onnx::open(&file)?),
            None => Files::SafeTensors(names.into_iter().map(shard).collect::<Result<_>>()?),
        };
        Ok(Folder { source: path.into(), path: path.into(), config, weights })
    }

    /// The folder of a tokenizer, with the configuration of a model that has no weights yet.
    pub(crate) fn without_weights(path: PathBuf, config: Json) -> Folder {
        Folder { source: path.clone(), path, config, weights: Files::SafeTensors(Vec::new()) }
    }

    /// What was asked for, as errors name it.
    pub(crate) fn source(&self) -> &Path {
        &self.source
    }

    /// The model's name: that of the GGUF file that the folder was made from, or else the folder's.
    pub(crate) fn name(&self) -> String {
        if let Some(name) = present(&self.config.root, NAME).and_then(Value::as_str) {
            return name.into();
        }
        shohin_files::folder_name(&self.path).unwrap_or_else(|| "model".into())
    }

    pub(crate) fn config(&self) -> &Json {
        &self.config
    }

    /// Adds the source to an error.
    pub(crate) fn at<T>(&self, result: Result<T, ConvertError>) -> Result<T> {
        result.map_err(|error| error.at(&self.source))
    }

    /// A JSON file, if it is there.
    pub(crate) fn json(&self, name: &str) -> Result<Option<Json>> {
        Json::open(self.path.join(name), MAX_JSON)
    }

    /// A JSON file.
    pub(crate) fn need_json(&self, name: &'static str) -> Result<Json> {
        let missing =
            || ConvertError::Value { key: name.into(), found: "missing".into(), expected: "a file" };
        self.json(name)?.ok_or_else(|| missing().at(&self.source))
    }

    /// A text file, if it is there.
    pub(crate) fn text(&self, name: &str) -> Result<Option<String>> {
        json::text(&self.path.join(name), MAX_JSON)
    }

    /// The modules of the model. An ONNX file says itself whether the head is tied to the embedding.
    pub(crate) fn modules(&self, config: &mut Config) -> Result<Vec<Module<'_>>> {
        match &self.weights {
            Files::SafeTensors(shards) => self.at(tensor::modules(config, &stored(shards)?)),
            Files::Onnx(onnx) => self.at(onnx.modules(config)),
        }
    }
}

/// What is wrong with a folder that has no weights.
fn without_weights(path: &Path) -> &'static str {
    let is_pickled = |name: &str| name.starts_with("pytorch_model") && name.ends_with(".bin");
    let mut files = path.read_dir().into_iter().flatten().flatten();
    match files.any(|file| file.file_name().to_str().is_some_and(is_pickled)) {
        true => {
            "is a folder whose weights only PyTorch reads (pytorch_model.bin), expected model.safetensors, which \
             `save_pretrained` of transformers writes"
        }
        false => "is a folder without weights, expected model.safetensors",
    }
}

/// The ONNX file of a folder without safetensors, if there is one; it may be in `onnx/`.
fn only_onnx(folder: &Path) -> Result<Option<PathBuf>> {
    if folder.join(WEIGHTS).exists() {
        return Ok(None);
    }
    let inside = [folder.to_path_buf(), folder.join("onnx")].map(|place| place.read_dir());
    let mut files: Vec<PathBuf> =
        inside.into_iter().flatten().flatten().flatten().map(|file| file.path()).collect();
    files.retain(|file| is_onnx(file));
    files.sort();
    if files.len() > 1 {
        let names: Vec<_> =
            files.iter().map(|file| file.strip_prefix(folder).unwrap_or(file).to_string_lossy()).collect();
        let found = format!("missing, and there are several ONNX files ({})", names.join(", "));
        let key = WEIGHTS.into();
        return Err(ConvertError::Value { key, found, expected: "the path of one of them" }.at(folder));
    }
    Ok(files.pop())
}

/// Where `config.json` has the name of the GGUF file that a folder was made from.
pub(crate) const NAME: &str = "general.name";

/// The file of all weights of a model that is not in parts.
pub(crate) const WEIGHTS: &str = "model.safetensors";
/// Names the files of a model in parts.
const INDEX: &str = "model.safetensors.index.json";

/// Files beside `config.json` that readers of the folder would take for parts of its model: those of a model in parts, and those
/// that say more about its tokenizer and its replies.
pub(crate) fn parts_of_model(path: &Path) -> Vec<PathBuf> {
    let index = Json::open(path.join(INDEX), MAX_JSON).ok().flatten();
    let shards = index.and_then(|index| shard_names(&index.root).ok()).unwrap_or_default();
    let others = [
        INDEX,
        "added_tokens.json",
        "chat_template.jinja",
        "chat_template.json",
        "generation_config.json",
        "modules.json",
        "1_Pooling/config.json",
        "merges.txt",
        "special_tokens_map.json",
        "tokenizer.model",
        "vocab.json",
    ];
    // An index may name anything.
    let shards = shards.iter().map(String::as_str).filter(|name| name.ends_with(".safetensors"));
    shards.chain(others).map(|name| path.join(name)).collect()
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
