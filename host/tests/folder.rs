//! Models of Hugging Face folders, loaded, and of the files that they become.
#![cfg(feature = "convert")]

use serde_json::{Value, json};
use shohin::Model;
use shohin::convert::{ConvertOptions, convert, convert_to_folder};
use shohin_core::Gguf;
use shohin_core::model::Pooling;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/hf").join(name)
}

#[test]
fn a_converted_model_chats() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("model.gguf");
    convert(fixture("qwen3"), &out, &ConvertOptions::new(), |_, _| ()).unwrap();
    let reply = |model: &Path| {
        let model = Model::builder().cpu().load(model).unwrap();
        let mut chat = model.chat().unwrap();
        chat.send("the hen").unwrap().take(4).collect::<Result<Vec<_>, _>>().unwrap()
    };
    let from_file = reply(&out);
    assert!(!from_file.is_empty());
    // Folders load without a file.
    assert_eq!(format!("{:?}", reply(&fixture("qwen3"))), format!("{from_file:?}"));
}

/// The folder of a model of embeddings, whose texts end with a token that replies do not end with.
fn embedding_folder(mode: &str) -> TempDir {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, value: &Value| fs::write(folder.path().join(name), value.to_string()).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(fixture("qwen3").join(name), folder.path().join(name)).unwrap();
    }
    let tokenizer = fs::read(fixture("qwen3").join("tokenizer.json")).unwrap();
    let mut root: Value = serde_json::from_slice(&tokenizer).unwrap();
    let end = json!({ "SpecialToken": { "id": "<|endoftext|>", "type_id": 0 } });
    root["post_processor"]["single"].as_array_mut().unwrap().push(end);
    let bytes_only = json!({ "type": "ByteLevel", "trim_offsets": false });
    root["post_processor"] =
        json!({ "type": "Sequence", "processors": [bytes_only, root["post_processor"]] });
    write("tokenizer.json", &root);
    let modules = json!([
        { "idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer" },
        { "idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling" },
    ]);
    let settings = json!({ "pooling_mode_mean_tokens": false, mode: true, "include_prompt": true });
    write("modules.json", &modules);
    fs::create_dir(folder.path().join("1_Pooling")).unwrap();
    write("1_Pooling/config.json", &settings);
    folder
}

#[test]
fn a_model_of_embeddings_keeps_its_pooling_and_the_end_of_texts() {
    let folder = embedding_folder("pooling_mode_lasttoken");
    let dir = TempDir::new().unwrap();
    let (first, back, second) =
        (dir.path().join("first.gguf"), dir.path().join("back"), dir.path().join("second.gguf"));
    convert(folder.path(), &first, &ConvertOptions::new(), |_, _| ()).unwrap();
    convert_to_folder(&first, &back, &ConvertOptions::new(), |_, _| ()).unwrap();
    convert(&back, &second, &ConvertOptions::new(), |_, _| ()).unwrap();
    for path in [first, second] {
        // As llama.cpp's converter does: the appended token is eos, the end of a turn another key.
        let file = fs::read(&path).unwrap();
        let gguf = Gguf::parse(&file).unwrap();
        let id = |key: &str| gguf.metadata().u32(&format!("tokenizer.ggml.{key}_token_id")).unwrap();
        assert_eq!(["eos", "eot", "eom"].map(id), [Some(264), Some(266), None]);
        let model = Model::builder().cpu().load(&path).unwrap();
        assert_eq!(model.pooling().unwrap(), Pooling::Last);
        let tokens = model.tokenize_whole("the hen");
        assert_eq!(tokens, [model.tokenize("the hen"), vec![264]].concat());
        let mut want = model.token_embeddings(vec![tokens], Pooling::Last, true).unwrap();
        assert_eq!(model.embed("the hen").unwrap(), want.next().unwrap().unwrap());
    }
    let mean = Model::builder().cpu().load(embedding_folder("pooling_mode_mean_tokens").path()).unwrap();
    assert_eq!(mean.pooling().unwrap(), Pooling::Mean);
    let first_token = Model::builder().cpu().load(embedding_folder("pooling_mode_cls_token").path()).unwrap();
    let refused = first_token.embed("the hen").unwrap_err().to_string();
    assert!(
        refused.contains("qwen3.pooling_type is \"cls\", which is not supported; expected mean or last"),
        "{refused}"
    );
    let folder = embedding_folder("pooling_mode_max_tokens");
    let refused = Model::builder().cpu().load(folder.path()).map(drop).unwrap_err().to_string();
    assert!(refused.contains("pooling_mode is [\"pooling_mode_max_tokens\"]"), "{refused}");
}
