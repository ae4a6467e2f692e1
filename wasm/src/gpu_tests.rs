//! The module for WebGPU in a browser, whose adapter may be one in software, against the CPU.

use crate::{Chat, Loader, Model, Step};
use js_sys::{Array, Reflect, Uint8Array};
use shohin_core::chat::{OverflowPolicy, TurnOptions};
use shohin_core::{
    Activations, BonsaiModel, Cpu, CpuOptions, KvFormat, SamplerConfig, Serial, Session, SessionOptions,
};
use wasm_bindgen::JsValue;
use wasm_bindgen_test::{wasm_bindgen_test, wasm_bindgen_test_configure};

wasm_bindgen_test_configure!(run_in_dedicated_worker);

const SPROUT: &[u8] = include_bytes!("../../models/sprout.gguf");

const LONG: &str = "Once upon a time there was a cat that had a red ball. ";

async fn open(file: &[u8], extensions: bool, precision: &str) -> Result<Model, JsValue> {
    let mut loader = Loader::open(file.len() as f64, true, extensions).await?;
    for piece in file.chunks(100_003) {
        loader.append(Uint8Array::from(piece)).await?;
    }
    loader.finish(0.0, if precision == "f32" { "f32" } else { "f16" }, precision).await
}

fn get(object: &JsValue, key: &str) -> JsValue {
    Reflect::get(object, &key.into()).unwrap()
}

fn code(error: &JsValue) -> String {
    get(error, "code").as_string().unwrap_or_default()
}

fn greedy(max_tokens: usize) -> TurnOptions {
    let (sampler, max_tokens) = (SamplerConfig::greedy(), Some(max_tokens));
    TurnOptions { sampler, max_tokens, ..TurnOptions::default() }
}

/// Runs a turn to its end; returns its text.
async fn run(chat: &mut Chat) -> String {
    while chat.step().await.unwrap() != Step::Done {}
    get(&chat.finish(), "text").as_string().unwrap()
}

/// The `count` most likely tokens after `prompt`, one by one, and the logits of the first, on the CPU.
fn on_cpu(activations: Activations, prompt: &[u32], count: usize) -> (Vec<u32>, Vec<f32>) {
    let model = BonsaiModel::load(SPROUT.to_vec()).unwrap();
    let options = CpuOptions { activations, ..CpuOptions::default() };
    let mut device = Cpu::new(model, &options, Serial).unwrap();
    let kv = if activations == Activations::F32 { KvFormat::F32 } else { KvFormat::F16 };
    let mut session = Session::new(&mut device, &SessionOptions { kv, ..Default::default() }).unwrap();
    let first = session.forward_prefill(&mut device, prompt).unwrap().to_vec();
    let (mut logits, mut tokens) = (first.clone(), Vec::new());
    while tokens.len() < count {
        let best = (0..logits.len()).reduce(|a, b| if logits[b] > logits[a] { b } else { a }).unwrap() as u32;
        tokens.push(best);
        logits = session.forward(&mut device, best).unwrap().to_vec();
    }
    (tokens, first)
}

#[wasm_bindgen_test]
async fn says_what_the_cpu_says() {
    for extensions in [true, false] {
        let mut model = open(SPROUT, extensions, "f32").await.unwrap();
        let mut chat = model.chat(0.0).await.unwrap();
        for prompt in ["Once upon a time", "The cow said"] {
            let prompt = model.tokenize(prompt, false);
            let (mut tokens, _) = on_cpu(Activations::F32, &prompt, 8);
            let end = tokens.iter().position(|&token| model.loaded.tokenizer.is_end(token));
            tokens.truncate(end.unwrap_or(8));
            chat.continue_tokens(prompt, greedy(8)).unwrap();
            assert_eq!(run(&mut chat).await, model.detokenize(&tokens).unwrap());
        }
    }
}

#[wasm_bindgen_test]
async fn integers_find_likely_what_the_cpu_does() {
    let mut model = open(SPROUT, true, "int8").await.unwrap();
    let mut chat = model.chat(0.0).await.unwrap();
    // One batch, and one and a half.
    let long = model.tokenize(&LONG.repeat(14), false);
    for length in [12, 190] {
        let prompt = &long[..length];
        let (_, logits) = on_cpu(Activations::Int8, prompt, 0);
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum = most + logits.iter().map(|x| (x - most).exp()).sum::<f32>().ln();
        chat.continue_tokens(prompt.to_vec(), TurnOptions { logprobs: Some(8), ..greedy(1) }).unwrap();
        while chat.step().await.unwrap() == Step::Prompt {}
        let logprobs = Array::from(&get(&chat.take_chunk(), "logprobs"));
        let top = Array::from(&get(&logprobs.get(0), "top"));
        assert_eq!(top.length(), 8);
        // Only those that noise cannot push out.
        for found in top.iter().take(2) {
            let [token, found] = ["token", "logprob"].map(|name| get(&found, name).as_f64().unwrap());
            let want = logits[token as usize] - sum;
            assert!((found as f32 - want).abs() < 0.5, "{length}: {token} {found} {want}");
        }
    }

    let sampler = SamplerConfig { seed: 7, ..SamplerConfig::bonsai() };
    chat.continue_tokens(long[..5].to_vec(), TurnOptions { sampler, ..greedy(6) }).unwrap();
    assert!(run(&mut chat).await.len() > 5);
}

/// Dropped tokens leave no trace: the reply goes on as one that never saw them.
#[wasm_bindgen_test]
async fn tokens_that_are_left_are_computed_again() {
    let mut model = open(SPROUT, true, "f32").await.unwrap();
    let mut chat = model.chat(64.0).await.unwrap();
    let prompt = &model.tokenize(&LONG.repeat(14), false)[..60];
    let overflow = OverflowPolicy::Shift { keep: Some(4) };
    chat.continue_tokens(prompt.to_vec(), TurnOptions { overflow, ..greedy(10) }).unwrap();
    let (mut ids, mut seen, mut dropped) = (prompt.to_vec(), 0, 0);
    while chat.step().await.unwrap() != Step::Done {
        let now = chat.conversation.usage().dropped_tokens;
        if now > dropped {
            (dropped, seen) = (now, ids.len());
        }
        ids = [prompt, chat.conversation.reply_tokens()].concat();
    }
    assert!(dropped > 0 && seen > 60, "{dropped} {seen}");
    let left = [&ids[..4], &ids[4 + dropped..seen]].concat();
    let rest = ids.len() - seen;
    assert!(rest > 1);
    assert_eq!(ids[seen..], on_cpu(Activations::F32, &left, rest).0);
}

#[wasm_bindgen_test]
async fn errors_are_typed() {
    for (file, want) in [(&SPROUT[..SPROUT.len() - 1000], "truncated"), (b"<!doctype html>", "malformed")] {
        assert_eq!(code(&open(file, true, "int8").await.err().unwrap()), want);
    }
    let mut model = open(SPROUT, true, "int8").await.unwrap();
    let mut chat = model.chat(0.0).await.unwrap();
    chat.continue_tokens(model.tokenize("Once", false), greedy(4)).unwrap();
    model.loaded.weights.model.gpu().destroy();
    assert_eq!(code(&chat.step().await.err().unwrap()), "gpu_lost");
}
