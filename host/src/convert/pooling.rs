//! How a model of embeddings combines the states of a text: the settings of sentence-transformers as GGUF metadata, and back.

use super::ConvertError;
use super::export::pretty;
use super::folder::Folder;
use super::json::{present, string, wrong};
use crate::error::Result;
use serde_json::{Value, json};
use shohin_core::ModelConfig;
use shohin_core::gguf::{GgufWriter, Metadata};

/// Lists the steps from a text to its embedding.
const MODULES: &str = "modules.json";
/// The module of pooling, and its settings, at the usual place.
const MODULE: &str = "1_Pooling";
const SETTINGS: &str = "1_Pooling/config.json";

/// Settings of which one is true, and the numbers of llama.cpp's `pooling_type`.
const MODES: [(&str, u32); 3] =
    [("pooling_mode_mean_tokens", 1), ("pooling_mode_cls_token", 2), ("pooling_mode_lasttoken", 3)];

/// Sets the key of pooling, if the folder says how.
pub(super) fn write(folder: &Folder, architecture: &str, w: &mut GgufWriter) -> Result<()> {
    let Some(modules) = folder.json(MODULES)? else { return Ok(()) };
    let is_pooling = |module: &&Value| {
        let kind = present(module, "type").and_then(Value::as_str);
        kind.is_some_and(|kind| kind.ends_with(".Pooling"))
    };
    let Some(module) = modules.root.as_array().and_then(|all| all.iter().find(is_pooling)) else {
        return Ok(());
    };
    let path = modules.at(string(module, "path"))?;
    if path != Some(MODULE) {
        return modules.at(Err(wrong("path of the module of pooling", module.get("path"), MODULE)));
    }
    let settings = folder.need_json(SETTINGS)?;
    let root = &settings.root;
    let is_set = |key: &str| present(root, key) == Some(&Value::Bool(true));
    let names = root.as_object().into_iter().flatten().map(|(key, _)| key.as_str());
    let set: Vec<&str> = names.filter(|key| key.starts_with("pooling_mode_") && is_set(key)).collect();
    let mode = match &set[..] {
        [one] => MODES.iter().find(|(key, _)| key == one),
        _ => None,
    };
    let Some((_, id)) = mode else {
        let (key, found) = (String::from("pooling_mode"), format!("{set:?}"));
        return settings.at(Err(ConvertError::Value {
            key,
            found,
            expected: "one of pooling_mode_mean_tokens, pooling_mode_cls_token and pooling_mode_lasttoken",
        }));
    };
    folder.at(w.set(&format!("{architecture}.pooling_type"), *id).map_err(ConvertError::from))
}

/// The files of a folder with the pooling of a GGUF file, if that has one.
pub(super) fn files(
    config: &ModelConfig,
    metadata: &Metadata<'_>,
) -> Result<Vec<(&'static str, String)>, ConvertError> {
    let id = metadata.u32(&format!("{}.pooling_type", config.architecture.name))?;
    let Some((name, _)) = MODES.iter().find(|(_, found)| Some(*found) == id) else { return Ok(Vec::new()) };
    let mut settings = json!({ "word_embedding_dimension": config.hidden_size });
    for (key, _) in MODES {
        settings[key] = (key == *name).into();
    }
    let kind = |name: &str| format!("sentence_transformers.models.{name}");
    let modules = json!([
        { "idx": 0, "name": "0", "path": "", "type": kind("Transformer") },
        { "idx": 1, "name": "1", "path": MODULE, "type": kind("Pooling") },
    ]);
    Ok(vec![(SETTINGS, pretty(&settings)), (MODULES, pretty(&modules))])
}
