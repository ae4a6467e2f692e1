//! Hugging Face folders with one file that can be anything.

use super::file;
use shohin::ModelFile;
use shohin::convert::initial;
use shohin_core::Tokenizer;
use shohin_core::gguf::{Gguf, ReadOptions};
use std::cell::OnceCell;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub(super) const CONFIG: &[&str] = &[
    "\"architectures\":",
    "\"Qwen3ForCausalLM\"",
    "\"LlamaForCausalLM\"",
    "\"Qwen3MoeForCausalLM\"",
    "\"hidden_size\":",
    "\"num_hidden_layers\":",
    "\"num_attention_heads\":",
    "\"num_key_value_heads\":",
    "\"head_dim\":",
    "\"intermediate_size\":",
    "\"vocab_size\":",
    "\"rope_theta\":",
    "\"rope_scaling\":",
    "\"rope_type\":",
    "\"yarn\"",
    "\"llama3\"",
    "\"factor\":",
    "\"tie_word_embeddings\":",
    "\"quantization\":",
    "\"bits\":",
    "\"group_size\":",
    "\"max_position_embeddings\":",
    "\"quantization_config\":",
    "\"rms_norm_eps\":",
    "\"sliding_window\":",
    "\"torch_dtype\":",
];

pub(super) const TOKENIZER: &[&str] = &[
    "\"model\":",
    "\"type\":",
    "\"BPE\"",
    "\"vocab\":",
    "\"merges\":",
    "\"added_tokens\":",
    "\"content\":",
    "\"special\":",
    "\"id\":",
    "\"pre_tokenizer\":",
    "\"pretokenizers\":",
    "\"ByteLevel\"",
    "\"Split\"",
    "\"Digits\"",
    "\"Regex\":",
    "\"normalizer\":",
    "\"NFC\"",
    "\"post_processor\":",
    "\"byte_fallback\":true",
    "\"Metaspace\"",
    "\"Prepend\"",
    "\"Replace\"",
    "\"split\":false",
    "\"prepend_scheme\":\"first\"",
    "\"decoder\":",
    "\u{2581}",
    "\"ignore_merges\":",
    "\"a b\"",
    "[\"a\",\"b\"]",
    "\"\u{120}\"",
];

pub(super) fn fixture(path: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/hf").join(path);
    fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A folder for this thread, in memory where the system has such a place.
pub(super) fn scratch() -> TempDir {
    let in_memory = Path::new("/dev/shm");
    let made = if in_memory.is_dir() { TempDir::new_in(in_memory) } else { TempDir::new() };
    made.expect("a folder for temporary files")
}

/// A copy of a fixture.
pub(super) fn folder(name: &str) -> TempDir {
    let to = scratch();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/hf").join(name);
    let copy = |from: &Path, to: &Path| {
        for entry in fs::read_dir(from).expect("a fixture").flatten().filter(|entry| entry.path().is_file()) {
            fs::copy(entry.path(), to.join(entry.file_name())).expect("room for it");
        }
    };
    copy(&from, to.path());
    if from.join("onnx").is_dir() {
        fs::create_dir(to.path().join("onnx")).expect("room for it");
        copy(&from.join("onnx"), &to.path().join("onnx"));
    }
    to
}

/// Writes `input` to `file` in a folder of this thread, opens `model` in it, and runs it.
fn with(cell: &OnceCell<TempDir>, fixture: &str, file: &str, model: &str, input: &[u8]) {
    let folder = cell.get_or_init(|| folder(fixture));
    let path: PathBuf = folder.path().join(file);
    // A new file: the old one may still be mapped.
    let _ = fs::remove_file(&path);
    fs::write(&path, input).expect("room for it");
    match ModelFile::open(folder.path().join(model)) {
        Ok(file) => file::run(&file.gguf(&ReadOptions::default()).expect("what was converted can be read")),
        Err(error) => {
            let text = error.to_string();
            assert!(!text.is_empty() && text.len() < 4096, "{text}");
        }
    }
}

pub(super) fn safetensors_seeds() -> Vec<Vec<u8>> {
    vec![fixture("qwen3/model.safetensors")]
}

pub(super) fn safetensors(input: &[u8]) {
    thread_local!(static FOLDER: OnceCell<TempDir> = const { OnceCell::new() });
    FOLDER.with(|cell| with(cell, "qwen3", "model.safetensors", "", input));
}

pub(super) fn config_seeds() -> Vec<Vec<u8>> {
    ["mlx-2bit", "qwen3", "llama3", "qwen3moe"].map(|name| fixture(&format!("{name}/config.json"))).into()
}

pub(super) fn config(input: &[u8]) {
    thread_local!(static FOLDER: OnceCell<TempDir> = const { OnceCell::new() });
    FOLDER.with(|cell| with(cell, "mlx-2bit", "config.json", "", input));
}

pub(super) fn tokenizer_seeds() -> Vec<Vec<u8>> {
    ["qwen3", "llama3", "sentencepiece"].map(|name| fixture(&format!("{name}/tokenizer.json"))).into()
}

pub(super) fn tokenizer_json(input: &[u8]) {
    thread_local!(static FOLDER: OnceCell<TempDir> = const { OnceCell::new() });
    thread_local!(static LARGER: OnceCell<TempDir> = const { OnceCell::new() });
    FOLDER.with(|cell| with(cell, "qwen3", "tokenizer.json", "", input));
    // The vocabulary of SentencePiece has more tokens than the model.
    LARGER.with(|cell| {
        let folder = cell.get_or_init(|| {
            let folder = folder("qwen3");
            let config = String::from_utf8(fixture("qwen3/config.json")).expect("JSON");
            let config = config.replace("\"vocab_size\": 272", "\"vocab_size\": 704");
            fs::write(folder.path().join("config.json"), config).expect("room for it");
            folder
        });
        let path = |name: &str| folder.path().join(name);
        fs::write(path("tokenizer.json"), input).expect("room for it");
        if let Ok(file) = initial(&path("config.json"), &path("tokenizer.json"), "a", 1) {
            // It may lack tokens of bytes.
            let gguf = Gguf::parse(&file).expect("what was written can be read");
            if let Ok(tokenizer) = Tokenizer::from_gguf(&gguf) {
                let ids = tokenizer.encode_whole("the <b>a</b> \n\n é");
                assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size()));
            }
        }
    });
}

pub(super) fn onnx_seeds() -> Vec<Vec<u8>> {
    vec![fixture("onnx-mixed/onnx/model.onnx"), fixture("onnx-ternary/onnx/model_q2.onnx")]
}

pub(super) fn onnx(input: &[u8]) {
    thread_local!(static FOLDER: OnceCell<TempDir> = const { OnceCell::new() });
    FOLDER.with(|cell| with(cell, "onnx-mixed", "onnx/model.onnx", "onnx/model.onnx", input));
}
