//! What there is at a path.

use std::path::Path;

/// The settings of an adapter that PEFT has saved.
pub(crate) const ADAPTER_SETTINGS: &str = "adapter_config.json";

/// The factors beside them.
pub(crate) const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";

/// Whether `source` is read with the files of its folder, unlike a GGUF file.
pub fn is_folder(source: &Path) -> bool {
    source.is_dir() || is_onnx(source)
}

pub(crate) fn is_onnx(source: &Path) -> bool {
    source.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("onnx"))
}

/// Whether `path` is a folder that PEFT has saved.
pub fn is_adapter_folder(path: &Path) -> bool {
    path.join(ADAPTER_SETTINGS).is_file()
}
