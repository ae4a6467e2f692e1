//! SentencePiece's BPE against ids from llama.cpp and sentencepiece (`tests/oracle/sentencepiece_fixture.py`).
#![cfg(feature = "sentencepiece")]

use std::fs;
use std::path::Path;

use serde_json::Value;
use shohin_core::gguf::GgufWriter;
use shohin_core::tokenizer::{Decoder, EncodeBuffers, EncodeOptions, Special, TokenKind};
use shohin_core::{Gguf, Tokenizer};

fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)).unwrap()
}

fn ids(t: &Tokenizer, text: &str, special: Special) -> Vec<u32> {
    let mut out = Vec::new();
    t.encode(text, special, &mut out);
    out
}

fn bytes(t: &Tokenizer, ids: &[u32]) -> Vec<u8> {
    ids.iter().flat_map(|id| t.token_bytes(*id).expect("a known id")).collect()
}

fn numbers(v: &Value) -> Vec<u32> {
    v.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// A vocabulary in parts, so that tests can change each of them.
#[derive(Clone)]
struct Built {
    tokens: Vec<String>,
    scores: Option<Vec<f32>>,
    types: Option<Vec<i32>>,
    prefix: Option<bool>,
    bos: Option<u32>,
}

impl Built {
    /// `<unk>`, `<s>`, `</s>`, the bytes from id 3 on, the space, and `more` with their scores.
    fn new(more: &[(&str, f32)]) -> Built {
        let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).into();
        tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
        tokens.push("\u{2581}".into());
        let mut scores = vec![0.0; tokens.len()];
        let mut types = vec![2, 3, 3];
        types.resize(259, 6);
        types.push(1);
        for (text, score) in more {
            tokens.push((*text).into());
            scores.push(*score);
            types.push(1);
        }
        Built { tokens, scores: Some(scores), types: Some(types), prefix: Some(false), bos: Some(1) }
    }

    fn file(&self) -> Vec<u8> {
        let mut w = GgufWriter::new();
        w.set("tokenizer.ggml.model", "llama").unwrap();
        w.set_strings("tokenizer.ggml.tokens", &self.tokens).unwrap();
        if let Some(scores) = &self.scores {
            w.set_array("tokenizer.ggml.scores", scores).unwrap();
        }
        if let Some(types) = &self.types {
            w.set_array("tokenizer.ggml.token_type", types).unwrap();
        }
        if let Some(prefix) = self.prefix {
            w.set("tokenizer.ggml.add_space_prefix", prefix).unwrap();
        }
        if let Some(bos) = self.bos {
            w.set("tokenizer.ggml.bos_token_id", bos).unwrap();
        }
        w.header().unwrap()
    }

    fn load(&self) -> shohin_core::Result<Tokenizer<'static>> {
        let file = self.file();
        Tokenizer::from_gguf(&Gguf::parse(&file).unwrap()).map(Tokenizer::into_owned)
    }

    fn error(&self) -> String {
        self.load().expect_err("a broken vocabulary").to_string()
    }
}

#[test]
fn texts_have_the_ids_of_llama_cpp() {
    let file = fixture("sentencepiece.gguf");
    let gguf = Gguf::parse(&file).unwrap();
    let t = Tokenizer::from_gguf(&gguf).unwrap();
    let metadata = gguf.metadata();
    let texts = metadata.strings("tokenizer.ggml.tokens").unwrap().unwrap();
    let mut prefixed = Built {
        tokens: texts.into_iter().map(|text| String::from_utf8(text.to_vec()).unwrap()).collect(),
        scores: Some(metadata.f32s("tokenizer.ggml.scores").unwrap().unwrap().collect()),
        types: Some(metadata.i32s("tokenizer.ggml.token_type").unwrap().unwrap().collect()),
        prefix: Some(true),
        bos: None,
    };
    let with_space = prefixed.load().unwrap();
    prefixed.prefix = None;
    let by_default = prefixed.load().unwrap();
    assert_eq!((t.adds_space(), with_space.adds_space(), by_default.adds_space()), (false, true, true));
    assert_eq!((t.vocab_size(), t.pre(), t.leading_bos(), t.eos()), (700, None, Some(1), Some(2)));
    assert!(t.memory() < 30_000, "{}", t.memory());

    let cases: Value = serde_json::from_slice(&fixture("sentencepiece.json")).unwrap();
    let cases = cases.as_array().unwrap();
    assert!(cases.len() > 150);
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let expected = numbers(&case["ids"]);
        for special in [Special::Text, Special::UserDefined] {
            let found = ids(&t, text, special);
            assert_eq!(found, expected, "{text:?}");
            assert!(found.iter().all(|id| t.kind(*id) != TokenKind::Control), "{text:?}");
        }
        let parse = if case["parse"].is_null() { expected.clone() } else { numbers(&case["parse"]) };
        assert_eq!(ids(&t, text, Special::Parse), parse, "{text:?}");
        // Of all characters only one is lost, the one that stands for spaces.
        let shown = text.replace('\u{2581}', " ");
        assert_eq!(String::from_utf8(bytes(&t, &expected)).unwrap(), shown);
        assert_eq!(String::from_utf8(bytes(&t, &parse)).unwrap(), shown);
        if !case["prefixed"].is_null() {
            let expected = numbers(&case["prefixed"]);
            assert_eq!(ids(&with_space, text, Special::Text), expected, "{text:?}");
            assert_eq!(ids(&by_default, text, Special::UserDefined), expected, "{text:?}");
        }
    }
}

#[test]
fn the_space_before_a_text_is_taken_off_a_whole_one() {
    let mut built = Built::new(&[("a", -1.0), ("\u{2581}a", 0.0)]);
    built.prefix = None;
    let t = built.load().unwrap();
    let decode = |ids: &[u32], whole: bool| {
        let mut decoder = Decoder::new(&t);
        if whole {
            decoder = decoder.whole();
        }
        let mut text: String = ids.iter().map(|id| decoder.push(*id).to_owned()).collect();
        text.push_str(decoder.finish());
        text
    };
    assert_eq!(ids(&t, "a a", Special::Text), [261, 261]);
    assert_eq!((decode(&[1, 261, 261], true), decode(&[261, 261], false)), ("a a".into(), " a a".into()));
    for text in ["", " ", "  a", "é", "a\n", "\0"] {
        assert_eq!(decode(&ids(&t, text, Special::Text), true), text);
    }
    // Only the space that comes first.
    assert_eq!(decode(&[260, 261], true), "a a");
}

/// The definition: the adjacent pair whose joined text is the token of the highest score, the leftmost one, until there is none.
fn naive(built: &Built, text: &str) -> Vec<u32> {
    let scores = built.scores.as_ref().unwrap();
    let find = |text: &str| built.tokens.iter().skip(259).position(|token| token == text).map(|i| i + 259);
    let mut parts: Vec<String> = text.replace(' ', "\u{2581}").chars().map(String::from).collect();
    loop {
        let mut best: Option<(f32, usize)> = None;
        for i in 1..parts.len() {
            if let Some(id) = find(&format!("{}{}", parts[i - 1], parts[i]))
                && best.is_none_or(|(score, _)| scores[id] > score)
            {
                best = Some((scores[id], i));
            }
        }
        let Some((_, i)) = best else { break };
        let right = parts.remove(i);
        parts[i - 1].push_str(&right);
    }
    let ids = parts.iter().flat_map(|part| match find(part) {
        Some(id) => vec![id as u32],
        None => part.bytes().map(|byte| 3 + u32::from(byte)).collect(),
    });
    ids.collect()
}

#[test]
fn merging_is_that_of_the_definition() {
    let mut state = 5u64;
    let mut below = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    for _ in 0..200 {
        let mut built = Built::new(&[]);
        // The last letter is no token.
        let letters = ['a', 'b', 'é', '\u{2581}', 'z'];
        let mut more: Vec<String> = letters[..3].iter().copied().map(String::from).collect();
        for _ in 0..12 {
            more.push((0..2 + below(4)).map(|_| letters[below(4)]).collect());
        }
        for token in more {
            if !built.tokens.contains(&token) {
                built.tokens.push(token);
                // Many have the same score.
                built.scores.as_mut().unwrap().push([-1.0, -2.5, 0.0, -0.0, 3.0][below(5)]);
                built.types.as_mut().unwrap().push(1);
            }
        }
        let t = built.load().unwrap();
        for _ in 0..20 {
            let text: String =
                (0..below(24)).map(|_| ['a', 'b', 'é', ' ', 'z', '\u{2581}'][below(6)]).collect();
            assert_eq!(
                ids(&t, &text, Special::Text),
                naive(&built, &text),
                "{text:?} with {:?}",
                &built.tokens[259..]
            );
        }
    }
}

#[test]
fn texts_form_no_control_bytes_or_unused_tokens() {
    let letters = ["<", "0", "x", "4", "1", ">", "s", "/", "P"];
    let mut more: Vec<(&str, f32)> = letters.map(|text| (text, -9.0)).into();
    // All parts of the names, so that merges would reach them.
    more.extend(
        ["<0", "<0x", "<0x4", "<0x41", "<s", "</", "</s", "<P", "s>", "1>", "<start_of_turn>"]
            .map(|text| (text, -1.0)),
    );
    let mut built = Built::new(&more);
    built.tokens.push("<P>".into());
    built.scores.as_mut().unwrap().push(5.0);
    built.types.as_mut().unwrap().push(5);
    let check = |t: &Tokenizer| {
        for text in ["<0x41>", "<s>", "</s>", "<unk>", "<P>", "<start_of_turn>"] {
            let found = ids(t, text, Special::UserDefined);
            assert!(found.len() > 1 && found.iter().all(|id| t.kind(*id) == TokenKind::Normal), "{text}");
            assert_eq!(bytes(t, &found), text.as_bytes());
        }
        assert_eq!(ids(t, "<s></s>", Special::Parse), [1, 2]);
        assert_eq!(bytes(t, &[3 + 0x41, 3 + 0xC3, 3 + 0xA9]), "Aé".as_bytes());
        assert_eq!((t.id_of(b"s"), t.id_of(b"A"), t.id_of(b" ")), (Some(266), Some(3 + 0x41), Some(259)));
    };
    check(&built.load().unwrap());
    // Without types the special ids of the file are control tokens, and the names of bytes are bytes.
    built.types = None;
    let t = built.load().unwrap();
    assert_eq!((t.kind(1), t.kind(2)), (TokenKind::Control, TokenKind::Normal));
    assert_eq!(bytes(&t, &[3 + 0x41]), b"A");
    assert!(!ids(&t, "<0x41>", Special::Text).contains(&(3 + 0x41)));
}

#[test]
fn user_defined_tokens_are_cut_out_first() {
    let mut built =
        Built::new(&[("a", -2.0), ("b", -2.0), ("ab", -1.0), ("\n\n", 0.0), ("b\n", 0.0), ("  ", 0.0)]);
    for i in [263, 265] {
        built.types.as_mut().unwrap()[i] = 4;
    }
    let t = built.load().unwrap();
    assert_eq!(ids(&t, "ab\n\nab  b\n", Special::Text), [262, 263, 262, 265, 261, 3 + 10]);
    assert_eq!(bytes(&t, &[263, 265]), b"\n\n  ");
    // The space goes before each text between them, as in llama.cpp.
    built.prefix = Some(true);
    assert_eq!(ids(&built.load().unwrap(), "a\n\nb", Special::Text), [259, 260, 263, 259, 261]);
}

#[test]
fn broken_vocabularies_are_refused_by_name() {
    let good = || Built::new(&[("a", -1.0)]);
    assert!(good().load().is_ok());

    let mut b = good();
    b.scores = None;
    assert_eq!(b.error(), "metadata key tokenizer.ggml.scores is missing");
    let mut b = good();
    b.scores.as_mut().unwrap().pop();
    assert_eq!(b.error(), "tokenizer.ggml.scores has 260 elements, expected 261");
    let mut b = good();
    b.types.as_mut().unwrap().pop();
    assert_eq!(b.error(), "tokenizer.ggml.token_type has 260 elements, expected 261");
    let mut b = good();
    b.scores.as_mut().unwrap()[260] = f32::NAN;
    assert_eq!(b.error(), "tokenizer.ggml.scores is \"NaN\", which is not supported; expected numbers");
    let mut b = good();
    b.tokens[259] = "_".into();
    assert!(b.error().contains("without U+2581"), "{}", b.error());
    let mut b = good();
    b.tokens.push("a".into());
    b.scores.as_mut().unwrap().push(0.0);
    b.types.as_mut().unwrap().push(1);
    assert_eq!(b.error(), "token \"a\" occurs twice");
    for (byte, may_lack) in
        [(0x00, true), (0xC0, true), (0xF5, true), (0x0A, false), (0x61, true), (0x62, false), (0xE2, false)]
    {
        let mut b = good();
        b.tokens[3 + byte] = "<0xG0>".into();
        assert_eq!(b.load().is_ok(), may_lack, "{byte:x}");
        b.types.as_mut().unwrap()[3 + byte] = 3;
        b.tokens[3 + byte] = format!("<0x{byte:02X}>");
        assert_eq!(b.load().is_ok(), may_lack, "{byte:x}");
        if !may_lack {
            assert!(b.error().contains(&format!("<0x{byte:02X}>")), "{}", b.error());
        }
    }
    let mut b = good();
    b.bos = Some(261);
    assert!(b.load().is_err());
    let mut infinite = good();
    infinite.scores.as_mut().unwrap()[260] = f32::NEG_INFINITY;
    assert!(infinite.load().is_ok());

    let mut w = GgufWriter::new();
    w.set("tokenizer.ggml.model", "bert").unwrap();
    let file = w.header().unwrap();
    let error = Tokenizer::from_gguf(&Gguf::parse(&file).unwrap()).unwrap_err().to_string();
    assert!(error.contains("\"bert\"") && error.contains("llama, which is SentencePiece's"), "{error}");
}

/// What takes long in a naive implementation: long words of the vocabulary, and long texts without a boundary.
#[test]
fn hostile_vocabularies_and_texts_take_bounded_time() {
    let powers: Vec<String> = (1..=64).map(|n| "a".repeat(n)).collect();
    let more: Vec<(&str, f32)> = powers.iter().map(|text| (text.as_str(), -(text.len() as f32))).collect();
    let t = Built::new(&more).load().unwrap();
    let text = "a".repeat(300_000);
    assert_eq!(ids(&t, &text, Special::Text).len(), 300_000 / 64 + 1);
    // The longest first, and by one letter at a time.
    let more: Vec<(&str, f32)> = powers.iter().map(|text| (text.as_str(), text.len() as f32)).collect();
    let t = Built::new(&more).load().unwrap();
    assert_eq!(bytes(&t, &ids(&t, &text, Special::Text)).len(), text.len());
    let text = " ".repeat(300_000) + &"\u{10FFFF}".repeat(100_000);
    assert_eq!(ids(&t, &text, Special::Text).len(), 700_000);

    // Too many parts of tokens.
    let powers: Vec<String> = (1..=4000).map(|n| "a".repeat(n)).collect();
    let more: Vec<(&str, f32)> = powers.iter().map(|text| (text.as_str(), 0.0)).collect();
    let error = Built::new(&more).error();
    assert!(error.contains("number of long tokens"), "{error}");
}

#[test]
fn damaged_vocabularies_never_panic() {
    let good = fixture("sentencepiece.gguf");
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
            file[at] = [random(256) as u8, file[at] ^ 1 << random(8), b' ', 0xFF][random(4)];
        }
        let Ok(gguf) = Gguf::parse(&file) else { continue };
        let Ok(t) = Tokenizer::from_gguf(&gguf) else {
            refused += 1;
            continue;
        };
        loaded += 1;
        let text = "the <start_of_turn> <b>é 🦙\n\n 12 \u{2581}</s>\0";
        for special in [Special::Text, Special::UserDefined, Special::Parse] {
            let ids = ids(&t, text, special);
            assert!(ids.iter().all(|id| (*id as usize) < t.vocab_size()));
            assert!(special == Special::Parse || ids.iter().all(|id| t.kind(*id) != TokenKind::Control));
            let mut decoder = Decoder::new(&t).show_control(true).whole();
            for id in ids {
                decoder.push(id);
            }
        }
    }
    println!("{loaded} loaded, {refused} refused");
    assert!(refused > 50 && loaded > 100);
}

#[test]
fn encoding_in_buffers_is_the_same() {
    let file = fixture("sentencepiece.gguf");
    let t = Tokenizer::from_gguf(&Gguf::parse(&file).unwrap()).unwrap();
    let mut buffers = EncodeBuffers::with_capacity(64);
    for text in ["the\n\nmodel", "", "<b>the</b>", "▁▁ é字"] {
        let mut out = Vec::new();
        t.encode_in(text, &EncodeOptions::new(Special::Text), &mut buffers, &mut out);
        assert_eq!(out, ids(&t, text, Special::Text));
    }
}
