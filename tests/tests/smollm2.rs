//! SmolLM2-135M-Instruct, a trained model, against llama.cpp and Hugging Face (`oracle/smollm2.py`). Skipped
//! where its file is absent.
#![cfg(not(target_family = "wasm"))]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use shohin_core::chat::{self, ChatOptions, Message, Role, Template};
use shohin_core::tokenizer::Special;
use shohin_core::{Gguf, Tokenizer};
use shohin_tests::smollm2;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/smollm2").join(name)
}

fn json(name: &str) -> Value {
    serde_json::from_slice(&fs::read(fixture(name)).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn texts_become_the_ids_of_hugging_face_and_llama_cpp() {
    let Some(file) = smollm2() else { return };
    let t = Tokenizer::from_gguf(&Gguf::parse(&file).unwrap()).unwrap();
    let (exact, llama) = (json("exact.json"), json("llama.json"));
    let texts = exact["texts"].as_array().unwrap();
    assert!(texts.len() > 250);
    // Control characters and bytes of unassigned planes that the vocabulary has no tokens for.
    let lacks = |c: char| {
        matches!(c, '\x04' | '\x06' | '\x13' | '\x14' | '\x16' | '\x1d' | '\u{40000}'..='\u{bffff}')
    };
    for (case, theirs) in texts.iter().zip(llama["texts"].as_array().unwrap()) {
        let text = case["text"].as_str().unwrap();
        for (special, kind) in [(Special::Text, "plain"), (Special::Parse, "parse")] {
            let mut got = Vec::new();
            t.encode(text, special, &mut got);
            assert_eq!(got, ids(&case[kind]), "{kind} {text:?}");
            // llama.cpp differs where a byte without a token kept its neighbours from merging.
            assert!(theirs.get(kind).is_none() || text.contains(lacks), "{kind} {text:?}");
            if !text.contains(lacks) {
                let bytes: Vec<u8> = got.iter().flat_map(|id| t.token_bytes(*id).unwrap()).collect();
                assert_eq!(String::from_utf8(bytes).as_deref(), Ok(text));
            }
        }
    }
    let mut passage = Vec::new();
    t.encode(exact["passage"].as_str().unwrap(), Special::Text, &mut passage);
    assert_eq!(passage, ids(&exact["ids"]));
}

#[test]
fn conversations_become_the_ids_of_transformers() {
    let Some(file) = smollm2() else { return };
    let gguf = Gguf::parse(&file).unwrap();
    let t = Tokenizer::from_gguf(&gguf).unwrap();
    assert_eq!(t.leading_bos(), None);
    assert_eq!(t.eos(), t.added_id("<|im_end|>"));
    assert!(!t.is_end(t.bos().unwrap()));
    let template = Template::from_metadata(gguf.metadata(), &t).unwrap();
    assert_eq!(template, Template::SMOLLM2);
    for chat in json("exact.json")["chats"].as_array().unwrap() {
        let options = ChatOptions { template, ..ChatOptions::default() };
        assert_eq!(chat::encode(&t, &messages(chat), &options).unwrap(), ids(&chat["prompt"]));
    }
}

/// The messages of a chat of `exact.json`, in which the user and the model take turns.
fn messages(chat: &Value) -> Vec<Message<'_>> {
    let roles = [Role::User, Role::Assistant].into_iter().cycle();
    let contents = chat["messages"].as_array().unwrap();
    roles.zip(contents).map(|(role, content)| Message::new(role, content.as_str().unwrap())).collect()
}
