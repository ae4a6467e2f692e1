//! How a model of embeddings combines the states of a text: the settings of sentence-transformers as GGUF metadata, and back.

use crate::error::{ConvertError, Result};
use crate::folder::Folder;
use crate::json::{present, pretty, string, wrong};
use serde_json::{Value, json};
use shohin_core::ModelConfig;
use shohin_core::gguf::{GgufWriter, Metadata};

/// Lists the steps from a text to its embedding.
const MODULES: &str = "modules.json";
/// The module of pooling, and its settings, at the usual place.
const MODULE: &str = "1_Pooling";
const SETTINGS: &str = "1_Pooling/config.json";

/// Modes: their names since sentence-transformers 5.4, those of the settings before, of which one is true, and the numbers of
/// llama.cpp's `pooling_type`.
const MODES: [(&str, &str, u32); 3] = [
    ("mean", "pooling_mode_mean_tokens", 1),
    ("cls", "pooling_mode_cls_token", 2),
    ("lasttoken", "pooling_mode_lasttoken", 3),
];

/// Sets the key of pooling, if the folder says how.
pub(crate) fn write(folder: &Folder, architecture: &str, w: &mut GgufWriter) -> Result<()> {
    let Some(modules) = folder.json(MODULES)? else { return Ok(()) };
    let Some(module) = modules.at(pooling_module(&modules.root))? else { return Ok(()) };
    let path = modules.at(string(module, "path"))?;
    if path != Some(MODULE) {
        return modules.at(Err(wrong("path of the module of pooling", module.get("path"), MODULE)));
    }
    let settings = folder.need_json(SETTINGS)?;
    let id = settings.at(mode(&settings.root))?;
    folder.at(w.set(&format!("{architecture}.pooling_type"), id).map_err(ConvertError::from))
}

/// The module that pools, if there is one. Other modules than those that are read would change the embedding.
fn pooling_module(modules: &Value) -> Result<Option<&Value>, ConvertError> {
    let mut pooling = None;
    for module in modules.as_array().into_iter().flatten() {
        // Before 5.4 `sentence_transformers.models.Pooling`, since then `sentence_transformers.….modules.pooling.Pooling`.
        let kind = string(module, "type")?.and_then(|kind| kind.strip_prefix("sentence_transformers."));
        match kind.and_then(|kind| kind.rsplit('.').next()) {
            Some("Pooling") if pooling.is_none() => pooling = Some(module),
            // Embeddings have length 1 unless their reader asks for others.
            Some("Transformer" | "Normalize") => {}
            _ => {
                let expected = "Transformer, one Pooling and Normalize of sentence_transformers: others are not supported";
                return Err(wrong("type of a module", module.get("type"), expected));
            }
        }
    }
    Ok(pooling)
}

/// The number of the mode that the settings of pooling name.
fn mode(settings: &Value) -> Result<u32, ConvertError> {
    let expected = "one of mean, cls and lasttoken";
    if let Some(found) = present(settings, "pooling_mode") {
        // A list of one mode is that mode; more are concatenated.
        let name = match found.as_array().map(Vec::as_slice) {
            Some([one]) => one.as_str(),
            Some(_) => None,
            None => found.as_str(),
        };
        let mode = MODES.iter().find(|(mode, _, _)| Some(*mode) == name);
        return mode.map(|(_, _, id)| *id).ok_or_else(|| wrong("pooling_mode", Some(found), expected));
    }
    let is_set = |key: &str| present(settings, key) == Some(&Value::Bool(true));
    let names = settings.as_object().into_iter().flatten().map(|(key, _)| key.as_str());
    let set: Vec<&str> = names.filter(|key| key.starts_with("pooling_mode_") && is_set(key)).collect();
    let mode = match &set[..] {
        // As sentence-transformers does.
        [] => Some(&MODES[0]),
        [one] => MODES.iter().find(|(_, key, _)| key == one),
        _ => None,
    };
    mode.map(|(_, _, id)| *id).ok_or_else(|| ConvertError::Value {
        key: "pooling_mode".into(),
        found: format!("{set:?}"),
        expected: "one of pooling_mode_mean_tokens, pooling_mode_cls_token and pooling_mode_lasttoken",
    })
}

/// The files of a folder with the pooling of a GGUF file, if that has one.
pub(crate) fn files(
    config: &ModelConfig,
    metadata: &Metadata<'_>,
) -> Result<Vec<(&'static str, String)>, ConvertError> {
    let id = metadata.u32(&format!("{}.pooling_type", config.architecture.name))?;
    let mode = MODES.iter().find(|(_, _, found)| Some(*found) == id);
    let Some((_, name, _)) = mode else { return Ok(Vec::new()) };
    // As before 5.4, which later versions read, too.
    let mut settings = json!({ "word_embedding_dimension": config.hidden_size });
    for (_, key, _) in MODES {
        settings[key] = (key == *name).into();
    }
    let kind = |name: &str| format!("sentence_transformers.models.{name}");
    let modules = json!([
        { "idx": 0, "name": "0", "path": "", "type": kind("Transformer") },
        { "idx": 1, "name": "1", "path": MODULE, "type": kind("Pooling") },
    ]);
    Ok(vec![(SETTINGS, pretty(&settings)), (MODULES, pretty(&modules))])
}
