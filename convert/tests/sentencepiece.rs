//! Vocabularies of SentencePiece in Hugging Face folders, against tokenizers (`tests/oracle/sentencepiece_fixture.py`).

use serde_json::{Value, json};
use shohin_convert::{ConvertOptions, Error, convert_to_folder, initial};
use shohin_core::gguf::Gguf;
use shohin_core::tokenizer::{Special, TokenKind};
use shohin_core::{BonsaiModel, Tokenizer};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/hf").join(name)
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The model of a folder with this `tokenizer.json`.
fn model(tokenizer: &Value, rows: u32) -> Result<Vec<u8>, Error> {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut config = read(&fixture("llama/config.json"));
    config["vocab_size"] = rows.into();
    config["eos_token_id"] = 2.into();
    fs::write(path("config.json"), config.to_string()).unwrap();
    fs::write(path("tokenizer.json"), tokenizer.to_string()).unwrap();
    let settings = json!({ "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>" });
    fs::write(path("tokenizer_config.json"), settings.to_string()).unwrap();
    initial(&path("config.json"), &path("tokenizer.json"), "a", 1)
}

fn changed(change: impl FnOnce(&mut Value)) -> Value {
    let mut root = read(&fixture("sentencepiece/tokenizer.json"));
    change(&mut root);
    root
}

const REPLACE: &str = r#"{ "type": "Replace", "pattern": { "String": " " }, "content": "▁" }"#;

/// The forms in which folders say that a space goes before texts.
fn prefixed() -> Vec<Value> {
    let replace: Value = serde_json::from_str(REPLACE).unwrap();
    let prepend = json!({ "type": "Prepend", "prepend": "▁" });
    let metaspace = |key: &str, value: Value| {
        let mut step = json!({ "type": "Metaspace", "replacement": "▁", "split": false });
        step[key] = value;
        step
    };
    let mut all = vec![changed(|root| {
        root["normalizer"] = json!({ "type": "Sequence", "normalizers": [prepend, replace] });
        root["pre_tokenizer"] = Value::Null;
    })];
    for step in [
        metaspace("prepend_scheme", "first".into()),
        metaspace("prepend_scheme", "always".into()),
        metaspace("add_prefix_space", true.into()),
    ] {
        all.push(changed(|root| {
            root["normalizer"] = Value::Null;
            root["pre_tokenizer"] = step;
        }));
    }
    all
}

#[test]
fn folders_have_the_tokens_of_hugging_face() {
    let texts = read(&fixture("sentencepiece/texts.json"));
    let texts = texts.as_array().unwrap();
    assert!(texts.len() > 50);
    let never = changed(|root| {
        root["normalizer"] = json!({ "type": "Sequence", "normalizers": [] });
        root["pre_tokenizer"] =
            json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": false });
    });
    let plain = [changed(|_| ()), never];
    for (column, folders) in [(1, plain.to_vec()), (2, prefixed())] {
        for folder in folders {
            let file = model(&folder, 704).unwrap();
            let gguf = Gguf::parse(&file).unwrap();
            let t = Tokenizer::from_gguf(&gguf).unwrap();
            assert_eq!((t.vocab_size(), t.adds_space()), (704, column == 2));
            assert_eq!((t.leading_bos(), t.eos()), (Some(1), Some(2)));
            let types: Vec<i32> =
                gguf.metadata().i32s("tokenizer.ggml.token_type").unwrap().unwrap().collect();
            assert_eq!((types[0], types[1], types[3], types[703]), (2, 3, 3, 5));
            for row in texts {
                let text = row[0].as_str().unwrap();
                let mut found = Vec::new();
                t.encode(text, Special::Parse, &mut found);
                assert_eq!(json!(found), row[column], "{text:?}");
            }
        }
    }
}

#[test]
fn a_folder_and_back_is_the_same_vocabulary() {
    let dir = TempDir::new().unwrap();
    for (i, folder) in [changed(|_| ()), prefixed().remove(0)].into_iter().enumerate() {
        let file = model(&folder, 704).unwrap();
        let (path, back) = (dir.path().join(format!("{i}.gguf")), dir.path().join(format!("{i}")));
        fs::write(&path, &file).unwrap();
        convert_to_folder(&path, &back, &ConvertOptions::new(), |_, _| ()).unwrap();
        let again = model(&read(&back.join("tokenizer.json")), 704).unwrap();
        let gguf = [&file, &again].map(|file| Gguf::parse(file).unwrap());
        let metadata = [0, 1].map(|i| {
            let all = gguf[i].metadata().iter();
            let all = all.filter(|(key, _)| key.starts_with("tokenizer."));
            all.map(|(key, value)| (key.to_owned(), format!("{value:?}"))).collect::<Vec<_>>()
        });
        assert_eq!(metadata[0], metadata[1]);
        assert!(BonsaiModel::from_gguf(&gguf[1]).is_ok());
    }
}

/// Tokens that look like parts of a conversation are control tokens, as in files of llama.cpp's converter.
#[test]
fn added_tokens_have_the_types_of_llama_cpps_converter() {
    let tokens = [("<unused7>", 3), ("<|x|>", 3), ("<mask>", 3), ("<i>", 4), ("▁▁▁▁▁", 4)];
    let root = changed(|root| {
        for (i, (text, _)) in tokens.iter().enumerate() {
            root["added_tokens"]
                .as_array_mut()
                .unwrap()
                .push(json!({ "id": 700 + i, "content": text, "special": false }));
        }
    });
    let file = model(&root, 705).unwrap();
    let gguf = Gguf::parse(&file).unwrap();
    let types: Vec<i32> = gguf.metadata().i32s("tokenizer.ggml.token_type").unwrap().unwrap().collect();
    assert_eq!(types[700..], tokens.map(|(_, kind)| kind));
    let t = Tokenizer::from_gguf(&gguf).unwrap();
    assert_eq!((t.kind(700), t.kind(703)), (TokenKind::Control, TokenKind::UserDefined));
    assert_eq!(t.token_text(704), Some(&b"     "[..]));
}

#[test]
fn what_would_give_other_tokens_is_refused_by_name() {
    let metaspace = |split: Value| json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": split });
    let merges =
        |change: fn(&mut Vec<Value>)| changed(|root| change(root["model"]["merges"].as_array_mut().unwrap()));
    for (root, expected) in [
        (changed(|root| root["normalizer"] = Value::Null), "pre_tokenizer is {"),
        (changed(|root| root["normalizer"] = json!({ "type": "NFKC" })), "normalizer is {\"type\":\"NFKC\"}"),
        (
            changed(|root| {
                root["normalizer"] = Value::Null;
                root["pre_tokenizer"] = Value::Null;
            }),
            "normalizer is missing, expected U+2581 for spaces",
        ),
        (changed(|root| root["normalizer"]["content"] = "_".into()), "normalizer is {"),
        (changed(|root| root["pre_tokenizer"] = json!({ "type": "Whitespace" })), "pre_tokenizer is {"),
        (changed(|root| root["pre_tokenizer"] = metaspace(true.into())), "pre_tokenizer is {"),
        (changed(|root| root["pre_tokenizer"] = metaspace(Value::Null)), "pre_tokenizer is {"),
        (
            changed(|root| root["decoder"] = json!({ "type": "WordPiece" })),
            "decoder is {\"type\":\"WordPiece\"}",
        ),
        (changed(|root| root["model"]["ignore_merges"] = true.into()), "model.ignore_merges is true"),
        (changed(|root| root["model"]["dropout"] = 0.5.into()), "model.dropout is 0.5"),
        (merges(|all| drop(all.pop())), "model.merges is without \""),
        (merges(|all| all.push(json!(["no", "such"]))), "expected two tokens that make a third"),
        (merges(|all| all.push(json!(["<0x41>", "a"]))), "expected two tokens that make a third"),
        (
            merges(|all| {
                let last = all.pop().unwrap();
                all.insert(0, last);
            }),
            "expected all pairs of a token one after another",
        ),
    ] {
        let error = model(&root, 704).map(drop).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}, expected {expected}");
    }
    let lacks = changed(|root| drop(root["model"]["vocab"].as_object_mut().unwrap().remove("<0x0B>")));
    let file = model(&lacks, 704).unwrap();
    let error = Tokenizer::from_gguf(&Gguf::parse(&file).unwrap()).unwrap_err().to_string();
    assert!(error.contains("\"<0x0B>\", which is not supported; expected a token for every byte"), "{error}");
    // A merge that is there twice is there.
    let twice = merges(|all| all.insert(1, all[0].clone()));
    assert!(model(&twice, 704).is_ok());
}
