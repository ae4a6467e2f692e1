//! The models in `models/` against their trainer: PyTorch's forward pass of the same packed weights
//! (`models/sprout.expected.json`).

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use serde_json::Value;
use shohin_core::chat::{self, ChatOptions, Message, Role, Template};
use shohin_core::cpu::{Cpu, Isa};
use shohin_core::generate::{Event, Generation, GenerationOptions, drive};
use shohin_core::sample::log_sum_exp;
use shohin_core::session::Decoder;
use shohin_core::tokenizer::Special;
use shohin_core::{CpuOptions, Gguf, KvFormat, Sampler, SamplerConfig, Session, SessionOptions, Tokenizer};
use shohin_tests::cpu::{device, exact, in_format};

/// Calls `check(file name, file, expected values of the trainer)` for every model.
fn each_model(check: impl Fn(&str, &[u8], &Value)) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models");
    let text = fs::read_to_string(dir.join("sprout.expected.json")).unwrap();
    let expected: Value = serde_json::from_str(&text).unwrap();
    let models = expected["models"].as_object().unwrap();
    assert!(models.contains_key("sprout.gguf"));
    for (name, expected) in models {
        check(name, &fs::read(dir.join(name)).unwrap(), expected);
    }
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn mean_loss(file: &[u8], tokens: &[u32], options: &CpuOptions, session: &SessionOptions) -> f64 {
    let mut device = device(file, options).unwrap();
    let mut session = Session::new(&mut device, session).unwrap();
    let mut sum = 0.0;
    session
        .forward_logits(&mut device, tokens, &mut |i, logits| {
            if let Some(&next) = tokens.get(i + 1) {
                sum += log_sum_exp(logits) - f64::from(logits[next as usize]);
            }
        })
        .unwrap();
    sum / (tokens.len() - 1) as f64
}

#[test]
fn loss_is_the_trainers() {
    each_model(|name, file, expected| {
        let tokens = ids(&expected["ids"]);
        let want = expected["mean_next_token_loss"].as_f64().unwrap();
        let got = mean_loss(file, &tokens, &exact(), &in_format(KvFormat::F32));
        assert!((got - want).abs() < 1e-4, "{name}: {got}, trainer {want}");
        let int8 = mean_loss(file, &tokens, &CpuOptions::default(), &SessionOptions::default());
        assert!((int8 - want).abs() < 0.02 * want, "{name} with int8 activations: {int8}, trainer {want}");
    });
}

#[test]
fn texts_and_chats_become_the_trainers_tokens() {
    each_model(|name, file, expected| {
        let gguf = Gguf::parse(file).unwrap();
        let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
        let mut tokens = Vec::new();
        tokenizer.encode(expected["text"].as_str().unwrap(), Special::Parse, &mut tokens);
        assert_eq!(tokens, ids(&expected["ids"]), "{name}");

        let template = Template::from_metadata(gguf.metadata(), &tokenizer).unwrap();
        assert!(template.known, "{name}");
        for chat in expected["chats"].as_array().unwrap() {
            let messages: Vec<_> = chat["messages"].as_array().unwrap().iter().map(message).collect();
            let options = ChatOptions { template, ..ChatOptions::default() };
            assert_eq!(chat::encode(&tokenizer, &messages, &options).unwrap(), ids(&chat["prompt_ids"]));
        }
    });
}

fn message(value: &Value) -> Message<'_> {
    let role = match value["role"].as_str().unwrap() {
        "system" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        other => panic!("role {other}"),
    };
    Message::new(role, value["content"].as_str().unwrap())
}

/// Greedy reply to `prompt`: its tokens and text.
fn reply(
    device: &mut Cpu<'_, &[u8]>,
    tokenizer: &Tokenizer<'_>,
    prompt: &[u32],
    max_tokens: usize,
    options: &SessionOptions,
) -> (Vec<u32>, String) {
    let mut session = Session::new(device, options).unwrap();
    let sampler = Sampler::new(&SamplerConfig::greedy(), device.model().config().vocab_size).unwrap();
    let limits = GenerationOptions { max_tokens, ..GenerationOptions::default() };
    let mut generation = Generation::new(prompt, 0, session.capacity(), sampler, limits).unwrap();
    let mut text = String::new();
    drive(&mut generation, &mut Decoder { device, session: &mut session }, tokenizer, &mut |step| {
        if let Event::Token(event) = step {
            text += event.text;
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    (generation.reply().to_vec(), text)
}

#[test]
fn greedy_replies_are_the_trainers() {
    each_model(|name, file, expected| {
        let gguf = Gguf::parse(file).unwrap();
        let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
        let mut device = device(file, &exact()).unwrap();
        for chat in expected["chats"].as_array().unwrap() {
            let prompt = ids(&chat["prompt_ids"]);
            let (tokens, text) = reply(&mut device, &tokenizer, &prompt, 300, &in_format(KvFormat::F32));
            assert_eq!(text, chat["text"].as_str().unwrap(), "{name}");
            assert_eq!(tokens, ids(&chat["continuation_ids"]), "{name}");
        }
    });
}

#[test]
fn every_instruction_set_says_the_same() {
    each_model(|name, file, expected| {
        let gguf = Gguf::parse(file).unwrap();
        let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
        for chat in expected["chats"].as_array().unwrap() {
            let prompt = ids(&chat["prompt_ids"]);
            // Plain Rust is slow: part of a story is enough.
            let say = |isa| {
                let mut device = device(file, &CpuOptions { isa, ..CpuOptions::default() }).unwrap();
                reply(&mut device, &tokenizer, &prompt, 24, &SessionOptions::default())
            };
            let scalar = say(Isa::SCALAR);
            assert!(!scalar.1.is_empty());
            for isa in Isa::available().filter(|isa| *isa != Isa::SCALAR) {
                assert_eq!(say(isa), scalar, "{name} {isa:?}");
            }
        }
    });
}
