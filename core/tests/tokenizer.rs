//! The tokenizer against ids that llama.cpp and Hugging Face `tokenizers` gave.
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use shohin_core::tokenizer::{EncodeOptions, Special};
use shohin_core::{Gguf, Tokenizer};

/// A file of the shared test data, or `None`, said clearly, where this machine has none.
fn shared(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data").join(name);
    if path.exists() {
        return Some(path);
    }
    println!("SKIPPED: no {}", path.display());
    None
}

fn load(file: &[u8]) -> Tokenizer<'_> {
    Tokenizer::from_gguf(&Gguf::parse(file).expect("a valid file")).expect("a valid vocabulary")
}

fn ids(t: &Tokenizer, text: &str, special: Special) -> Vec<u32> {
    let mut out = Vec::new();
    t.encode(text, special, &mut out);
    out
}

fn decode(t: &Tokenizer, ids: &[u32]) -> String {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| t.token_bytes(*id).expect("a known id")).collect();
    String::from_utf8(bytes).expect("UTF-8")
}

#[test]
fn qwen3_vectors_of_llama_cpp_and_hugging_face() {
    let Some(vocab) = shared("vocab/ggml-vocab-qwen2.gguf") else { return };
    let Some(vectors) = shared("tokenizer/qwen3_vectors.json") else { return };
    let file = fs::read(vocab).unwrap();
    let start = std::time::Instant::now();
    let t = load(&file);
    println!("loaded in {:?}, {} bytes of heap", start.elapsed(), t.memory());
    let vectors: Value = serde_json::from_slice(&fs::read(vectors).unwrap()).unwrap();
    let vectors = vectors.as_array().unwrap();
    assert_eq!(vectors.len(), 137);
    for v in vectors {
        let text = v["text"].as_str().unwrap();
        let expected = |key: &str| -> Vec<u32> {
            v[key].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
        };
        assert_eq!(ids(&t, text, Special::Parse), expected("llama_cpp_ids"), "{text:?}");
        let plain = expected("llama_cpp_ids_parse_special_false");
        assert_eq!(ids(&t, text, Special::Text), plain, "{text:?}");
        assert_eq!(ids(&t, text, Special::UserDefined), plain, "{text:?}");
        assert_eq!(decode(&t, &plain), text);
        let mut normalized = Vec::new();
        t.encode_with(text, &EncodeOptions::new(Special::Parse).with_nfc(true), &mut normalized);
        assert_eq!(normalized, expected("hf_ids"), "{text:?}");
    }
}

#[test]
fn llama_cpp_vocabulary_test() {
    let Some(vocab) = shared("vocab/ggml-vocab-qwen2.gguf") else { return };
    let file = fs::read(&vocab).unwrap();
    let t = load(&file);
    let input = fs::read_to_string(vocab.with_extension("gguf.inp")).unwrap();
    let output = fs::read_to_string(vocab.with_extension("gguf.out")).unwrap();
    let texts: Vec<&str> = input.split("\n__ggml_vocab_test__\n").collect();
    let lines: Vec<&str> = output.lines().collect();
    assert!(lines.len() > 40 && texts.len() >= lines.len());
    for (text, line) in texts.iter().zip(&lines) {
        let expected: Vec<u32> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
        assert_eq!(ids(&t, text, Special::Text), expected, "{text:?}");
        assert_eq!(decode(&t, &expected), *text);
    }
}
