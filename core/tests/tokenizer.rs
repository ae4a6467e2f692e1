//! The tokenizer against ids from llama.cpp and Hugging Face `tokenizers`.
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use shohin_core::gguf::GgufWriter;
use shohin_core::tokenizer::{Decoder, EncodeOptions, Special, TokenKind, Vocabulary};
use shohin_core::{Gguf, Tokenizer};

/// A file of the folder that the environment variable `SHOHIN_DATA` names; `None`, with a message, if it is not set.
fn more_data(name: &str) -> Option<PathBuf> {
    let Some(folder) = std::env::var_os("SHOHIN_DATA") else {
        println!("SKIPPED: SHOHIN_DATA is not set");
        return None;
    };
    Some(Path::new(&folder).join(name))
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

fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)).unwrap()
}

fn numbers(v: &Value) -> Vec<u32> {
    v.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Tokens and merges in GGUF's layout.
struct Packed {
    tokens: Vec<u8>,
    token_count: usize,
    merges: Vec<u8>,
    merge_count: usize,
}

impl Packed {
    fn new(tokens: &[Vec<u8>], merges: &[Vec<u8>]) -> Packed {
        let packed = |texts: &[Vec<u8>]| -> Vec<u8> {
            texts
                .iter()
                .flat_map(|text| [&(text.len() as u64).to_le_bytes(), text.as_slice()].concat())
                .collect()
        };
        let (token_count, merge_count) = (tokens.len(), merges.len());
        Packed { tokens: packed(tokens), token_count, merges: packed(merges), merge_count }
    }

    fn load<'p>(&'p self, pre: &'p str) -> Tokenizer<'p> {
        Tokenizer::new(&Vocabulary {
            pre,
            tokens: &self.tokens,
            token_count: self.token_count,
            merges: &self.merges,
            merge_count: self.merge_count,
            scores: None,
            types: None,
            bos: None,
            eos: None,
            eot: None,
            eom: None,
            add_bos: false,
            add_eos: false,
            add_space_prefix: false,
        })
        .unwrap()
    }
}

#[test]
fn small_vocabulary_encodes_as_hugging_face_does() {
    let file = fixture("bpe2k.gguf");
    let gguf = Gguf::parse(&file).unwrap();
    let t = Tokenizer::from_gguf(&gguf).unwrap();
    assert_eq!(t.vocab_size(), 2048);
    assert!(t.memory() < 30_000, "{}", t.memory());
    assert_eq!(t.eos().map(|id| t.is_end(id)), Some(true));
    assert_eq!(t.leading_bos(), None);

    // The same vocabulary with other pre-tokenizers: for smollm without tokens for three bytes, for llama-bpe
    // without every third merge.
    let texts = |key: &str| -> Vec<Vec<u8>> {
        gguf.metadata().strings(key).unwrap().unwrap().into_iter().map(<[u8]>::to_vec).collect()
    };
    let (tokens, merges) = (texts("tokenizer.ggml.tokens"), texts("tokenizer.ggml.merges"));
    let qwen35 = Packed::new(&tokens, &merges);
    let qwen35 = qwen35.load("qwen35");
    let lacked = ["\u{100}", "\u{11b}", "\u{121}"].map(str::as_bytes);
    let fewer: Vec<Vec<u8>> = tokens
        .iter()
        .map(|token| if lacked.contains(&token.as_slice()) { vec![] } else { token.clone() })
        .collect();
    let smollm = Packed::new(&fewer, &merges);
    let smollm = smollm.load("smollm");
    let fewer: Vec<Vec<u8>> =
        merges.iter().enumerate().filter(|(i, _)| i % 3 != 0).map(|(_, merge)| merge.clone()).collect();
    let llama = Packed::new(&tokens, &fewer);
    let llama = llama.load("llama-bpe");
    assert!(llama.memory() > smollm.memory());

    let cases: Value = serde_json::from_slice(&fixture("tokenizer.json")).unwrap();
    let encode = cases["encode"].as_array().unwrap();
    assert!(encode.len() > 200);
    for case in encode {
        let text = case["text"].as_str().unwrap();
        assert_eq!(ids(&t, text, Special::Text), numbers(&case["plain"]), "{text:?}");
        assert_eq!(ids(&t, text, Special::Parse), numbers(&case["parse"]), "{text:?}");
        for (t, name) in [(&qwen35, "qwen35"), (&smollm, "smollm"), (&llama, "llama-bpe")] {
            assert_eq!(ids(t, text, Special::Text), numbers(&case[name]), "{name} {text:?}");
        }
        let mut normalized = Vec::new();
        t.encode_with(text, &EncodeOptions::new(Special::Parse).with_nfc(true), &mut normalized);
        assert_eq!(normalized, numbers(&case["nfc"]), "{text:?}");
        assert_eq!(decode(&t, &numbers(&case["parse"])), text);
        for id in ids(&t, text, Special::UserDefined) {
            assert_ne!(t.kind(id), TokenKind::Control, "{text:?}");
        }
        for id in ids(&t, text, Special::Text) {
            assert_eq!(t.kind(id), TokenKind::Normal, "{text:?}");
        }
    }
}

#[test]
fn other_pre_tokenizers_split_as_hugging_face_does() {
    let file = fixture("bpe2k.gguf");
    let gguf = Gguf::parse(&file).unwrap();
    let texts = |key: &str| -> Vec<Vec<u8>> {
        gguf.metadata().strings(key).unwrap().unwrap().into_iter().map(<[u8]>::to_vec).collect()
    };
    let merges = texts("tokenizer.ggml.merges").into_iter().enumerate();
    let merges: Vec<Vec<u8>> = merges.filter(|(i, _)| i % 3 != 0).map(|(_, merge)| merge).collect();
    let packed = Packed::new(&texts("tokenizer.ggml.tokens"), &merges);
    let cases: Value = serde_json::from_slice(&fixture("pre_tokenizers.json")).unwrap();
    let cases = cases.as_array().unwrap();
    assert!(cases.len() > 50);
    for (key, names) in [
        ("gpt-2", ["gpt-2", "phi-2", "olmo", "granite-docling"].as_slice()),
        ("smaug-bpe", ["smaug-bpe", "dbrx"].as_slice()),
    ] {
        for name in names {
            let t = packed.load(name);
            assert_eq!(t.leading_bos(), None);
            for case in cases {
                let text = case["text"].as_str().unwrap();
                assert_eq!(ids(&t, text, Special::Text), numbers(&case[key]), "{name} {text:?}");
            }
        }
    }
}

#[test]
fn small_vocabulary_decodes_as_hugging_face_does() {
    let file = fixture("bpe2k.gguf");
    let t = load(&file);
    let cases: Value = serde_json::from_slice(&fixture("tokenizer.json")).unwrap();
    for case in cases["decode"].as_array().unwrap() {
        for (key, show) in [("hidden", false), ("shown", true)] {
            let mut decoder = Decoder::new(&t).show_control(show);
            let mut text = String::new();
            for id in numbers(&case["ids"]) {
                text.push_str(decoder.push(id));
            }
            text.push_str(decoder.finish());
            assert_eq!(text, case[key].as_str().unwrap(), "{}", case["ids"]);
        }
    }
}

#[test]
fn texts_start_with_a_token_if_the_file_or_the_pre_tokenizer_says_so() {
    let file = fixture("bpe2k.gguf");
    let metadata = Gguf::parse(&file).unwrap();
    let metadata = metadata.metadata();
    let bos = metadata.u32("tokenizer.ggml.bos_token_id").unwrap();
    for (pre, add, expected) in [
        ("qwen2", None, None),
        ("qwen2", Some(true), bos),
        ("smollm", None, None),
        ("llama-bpe", None, bos),
        ("llama3", None, bos),
        ("lfm2", None, bos),
        ("smaug-bpe", None, None),
        ("gpt-2", None, None),
        ("llama-bpe", Some(false), None),
    ] {
        let mut w = GgufWriter::new();
        for key in ["tokenizer.ggml.tokens", "tokenizer.ggml.merges"] {
            w.set_strings(key, metadata.strings(key).unwrap().unwrap()).unwrap();
        }
        w.set("tokenizer.ggml.model", "gpt2").unwrap();
        w.set("tokenizer.ggml.pre", pre).unwrap();
        w.set("tokenizer.ggml.bos_token_id", bos.unwrap()).unwrap();
        if let Some(add) = add {
            w.set("tokenizer.ggml.add_bos_token", add).unwrap();
        }
        let header = w.header().unwrap();
        let gguf = Gguf::parse(&header).unwrap();
        assert_eq!(Tokenizer::from_gguf(&gguf).unwrap().leading_bos(), expected, "{pre} {add:?}");
    }
}

/// All keys that GGUF has for ends, and names that need none.
#[test]
fn a_reply_has_several_ends_and_a_whole_text_one() {
    let file = fixture("bpe2k.gguf");
    let gguf = Gguf::parse(&file).unwrap();
    let metadata = gguf.metadata();
    let count = metadata.strings("tokenizer.ggml.tokens").unwrap().unwrap().len();
    let names =
        ["<|eom_id|>", "<|end_of_text|>", "<end_of_turn>", "<|eot_id|>", "<|im_end|>", "<|endoftext|>"];
    let read = |keys: &[(&str, u32)], add_eos: bool, name: Option<&str>| {
        let mut w = GgufWriter::new();
        w.set_strings("tokenizer.ggml.merges", metadata.strings("tokenizer.ggml.merges").unwrap().unwrap())
            .unwrap();
        // The file's own ends have other names here.
        let tokens = metadata.strings("tokenizer.ggml.tokens").unwrap().unwrap().iter().enumerate();
        let tokens: Vec<Vec<u8>> = tokens
            .map(|(id, token)| match name {
                Some(name) if id + 1 == count => name.as_bytes().to_vec(),
                _ if names.iter().any(|name| name.as_bytes() == token) => format!("<|{id}|>").into_bytes(),
                _ => token.to_vec(),
            })
            .collect();
        let tokens: Vec<&str> = tokens.iter().map(|token| std::str::from_utf8(token).unwrap()).collect();
        w.set_strings("tokenizer.ggml.tokens", &tokens).unwrap();
        let types: Vec<i32> = metadata.i32s("tokenizer.ggml.token_type").unwrap().unwrap().collect();
        w.set_array("tokenizer.ggml.token_type", &types).unwrap();
        w.set("tokenizer.ggml.model", "gpt2").unwrap();
        w.set("tokenizer.ggml.pre", "qwen2").unwrap();
        keys.iter().for_each(|(key, id)| w.set(&format!("tokenizer.ggml.{key}_token_id"), *id).unwrap());
        if add_eos {
            w.set("tokenizer.ggml.add_eos_token", true).unwrap();
        }
        let header = w.header().unwrap();
        let t = Tokenizer::from_gguf(&Gguf::parse(&header).unwrap()).map(Tokenizer::into_owned);
        t.map(|t| (t.ends().to_vec(), t.trailing_eos()))
    };
    assert_eq!(read(&[], false, None), Ok((vec![], None)));
    let keys = [("eos", 7), ("eot", 8), ("eom", 9)];
    assert_eq!(read(&keys, false, None), Ok((vec![7, 8, 9], None)));
    assert_eq!(read(&keys, true, None), Ok((vec![7, 8, 9], Some(7))));
    assert_eq!(read(&[], true, None), Ok((vec![], None)));
    // Outside the vocabulary, where no text ends with it.
    assert_eq!(read(&[("eom", count as u32)], false, None), Ok((vec![], None)));
    assert!(read(&[("eos", count as u32)], true, None).is_err());
    for name in names {
        assert_eq!(read(&[], false, Some(name)), Ok((vec![count as u32 - 1], None)), "{name}");
    }
}

#[test]
fn damaged_vocabularies_never_panic() {
    let good = fixture("bpe2k.gguf");
    let mut state = 1u64;
    let mut random = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    let (mut refused, mut loaded) = (0, 0);
    for _ in 0..2000 {
        let mut file = good.clone();
        for _ in 0..1 + random(3) {
            let at = random(file.len());
            file[at] = [random(256) as u8, file[at] ^ 1 << random(8), b' ', 0][random(4)];
        }
        let Ok(gguf) = Gguf::parse(&file) else { continue };
        match Tokenizer::from_gguf(&gguf) {
            Err(_) => refused += 1,
            Ok(t) => {
                loaded += 1;
                let text = "the <|im_start|> <think>é 🦙\n\n 12 'll";
                for special in [Special::Text, Special::UserDefined, Special::Parse] {
                    let ids = ids(&t, text, special);
                    assert!(ids.iter().all(|id| (*id as usize) < t.vocab_size()));
                    let mut decoder = Decoder::new(&t).show_control(true);
                    for id in ids {
                        decoder.push(id);
                    }
                }
                let text = ids(&t, "<|im_start|><|im_end|><|endoftext|>", Special::Text);
                assert!(text.iter().all(|id| t.kind(*id) == TokenKind::Normal));
            }
        }
    }
    println!("{loaded} loaded, {refused} refused");
    assert!(refused > 100 && loaded > 100);
}

#[test]
fn every_token_is_found_again() {
    let file = fixture("bpe2k.gguf");
    let t = load(&file);
    for id in 0..2048 {
        let bytes: Vec<u8> = t.token_bytes(id).unwrap().collect();
        assert_eq!(t.id_of(&bytes), Some(id), "{bytes:?}");
    }
}

#[test]
fn qwen3_vectors_of_llama_cpp_and_hugging_face() {
    let Some(vocab) = more_data("vocab/ggml-vocab-qwen2.gguf") else { return };
    let Some(vectors) = more_data("tokenizer/qwen3_vectors.json") else { return };
    let file = fs::read(vocab).unwrap();
    let start = std::time::Instant::now();
    let t = load(&file);
    println!("loaded in {:?}, {} bytes of heap", start.elapsed(), t.memory());
    let vectors: Value = serde_json::from_slice(&fs::read(vectors).unwrap()).unwrap();
    let vectors = vectors.as_array().unwrap();
    assert_eq!(vectors.len(), 137);
    for v in vectors {
        let text = v["text"].as_str().unwrap();
        let expected = |key: &str| numbers(&v[key]);
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
    let Some(vocab) = more_data("vocab/ggml-vocab-qwen2.gguf") else { return };
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
