//! Which files of a repository are a model.

use crate::error::HubError;
use crate::hub_name::HubModel;
use shohin_files::shard_names;

/// The files of a model.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Selection {
    /// All of them, in the order in which they are fetched.
    pub(crate) files: Vec<String>,
    /// The file that is opened; that of a folder is its `config.json`.
    pub(crate) first: String,
}

const CONFIG: &str = "config.json";

/// What a folder may have beside its configuration and weights.
const BESIDE: [&str; 13] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "modules.json",
    "1_Pooling/config.json",
    "model.safetensors.index.json",
];

impl Selection {
    pub(crate) fn is_folder(&self) -> bool {
        self.first == CONFIG
    }

    /// What is opened, in the folder that has the files.
    pub(crate) fn path(&self, folder: &std::path::Path) -> std::path::PathBuf {
        if self.is_folder() { folder.to_path_buf() } else { folder.join(&self.first) }
    }
}

/// The files of a model among those of its repository; without these, if it names one.
pub(crate) fn select(model: &HubModel, all: &[String]) -> Result<Selection, HubError> {
    if let Some(file) = &model.file {
        return Ok(of_file(file.clone()));
    }
    let is_first = |file: &&String| {
        shard_names(file).is_none_or(|parts| parts.first().is_some_and(|first| first == *file))
    };
    let ggufs = || all.iter().filter(|file| file.ends_with(".gguf")).filter(is_first);
    let mut found: Vec<String> = match &model.tag {
        Some(tag) => ggufs().filter(|file| has_tag(file, tag)).cloned().collect(),
        None => ggufs().cloned().collect(),
    };
    match (found.len(), &model.tag) {
        (1, _) => Ok(of_file(found.remove(0))),
        (0, Some(tag)) => {
            let tag = tag.clone();
            Err(HubError::NoSuchFormat { tag, files: ggufs().cloned().collect() })
        }
        (0, None) => folder(all),
        _ => Err(HubError::Ambiguous { files: found }),
    }
}

/// Whether a file's name has a format: `Q4_K_M` is in `model-Q4_K_M.gguf`, but not in `model-Q4_K_M_L.gguf`. What belongs to a
/// model of another kind (the projector of images, a matrix of importance) has none.
pub(crate) fn has_tag(file: &str, tag: &str) -> bool {
    let (file, tag) = (file.to_ascii_uppercase(), tag.to_ascii_uppercase());
    let name = file.rsplit('/').next().unwrap_or(&file);
    let is_model = !name.starts_with("MMPROJ") && !name.contains("IMATRIX");
    let is_edge = |c: Option<char>| c.is_none_or(|c| !c.is_ascii_alphanumeric() && c != '_');
    let stands_alone = |(at, _): (usize, &str)| {
        is_edge(file[..at].chars().next_back()) && is_edge(file[at + tag.len()..].chars().next())
    };
    is_model && file.match_indices(tag.as_str()).any(stands_alone)
}

/// Whether a file holds weights.
pub(crate) fn is_weights(file: &str) -> bool {
    file.ends_with(".gguf") || file.ends_with(".safetensors")
}

fn of_file(first: String) -> Selection {
    let files = shard_names(&first).unwrap_or_else(|| vec![first.clone()]);
    Selection { files, first }
}

/// The folder of safetensors that a repository is. Weights come last: where they are, everything is.
fn folder(all: &[String]) -> Result<Selection, HubError> {
    let has = |name: &str| all.iter().any(|file| file == name);
    let weights = |is: &dyn Fn(&str) -> bool| -> Vec<String> {
        let mut files: Vec<String> = all
            .iter()
            .filter(|file| file.ends_with(".safetensors") && !file.contains('/') && is(file))
            .cloned()
            .collect();
        files.sort();
        files
    };
    // Beside those of the model, there can be others of the same weights.
    let own = weights(&|file| file == "model.safetensors" || file.starts_with("model-"));
    if !has(CONFIG) || own.is_empty() {
        let pickled =
            all.iter().find(|file| file.ends_with(".bin") && file.contains("pytorch_model")).cloned();
        return Err(HubError::NoModel { pickled });
    }
    let beside = BESIDE.iter().filter(|name| has(name)).map(|name| (*name).to_owned());
    let files = [CONFIG.to_owned()].into_iter().chain(beside).chain(own).collect();
    Ok(Selection { files, first: CONFIG.into() })
}

#[cfg(test)]
mod tests {
    use super::has_tag;

    #[test]
    fn a_format_stands_alone_in_the_name() {
        for (file, tag, has) in [
            ("Model-Q4_K_M.gguf", "q4_k_m", true),
            ("model.Q4_K_M.gguf", "Q4_K_M", true),
            ("Q4_K_M/model-Q4_K_M-00001-of-00002.gguf", "Q4_K_M", true),
            ("model-UD-Q4_K_XL.gguf", "UD-Q4_K_XL", true),
            ("model-Q4_K_M_L.gguf", "Q4_K_M", false),
            ("model-IQ4_K_M.gguf", "Q4_K_M", false),
            ("model-Q4_K_M.gguf", "Q4_K", false),
            ("mmproj-model-f16.gguf", "F16", false),
        ] {
            assert_eq!(has_tag(file, tag), has, "{file} {tag}");
        }
    }
}
