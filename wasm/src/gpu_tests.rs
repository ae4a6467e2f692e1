//! The GPU engine in a browser, whose adapter may be one in software, against the engine on the CPU.

use crate::tests::{SPROUT, code, load, reply};
use crate::{GpuLoader, GpuModel, GpuTimeline, Sampling, Step};
use js_sys::Uint8Array;
use wasm_bindgen::JsValue;
use wasm_bindgen_test::{wasm_bindgen_test, wasm_bindgen_test_configure};

wasm_bindgen_test_configure!(run_in_dedicated_worker);

async fn open(file: &[u8], extensions: bool, precision: &str) -> Result<GpuModel, JsValue> {
    let mut loader = GpuLoader::open(file.len() as f64, true, extensions).await?;
    web_log(&loader.name());
    for piece in file.chunks(100_003) {
        loader.append(Uint8Array::from(piece)).await?;
    }
    loader.finish(0.0, if precision == "f32" { "f32" } else { "f16" }, precision).await
}

fn web_log(text: &str) {
    wasm_bindgen_test::console_log!("{text}");
}

async fn reply_on_gpu(timeline: &mut GpuTimeline, prompt: &[u32], max_tokens: f64) -> String {
    let mut sampling = Sampling::preset("greedy").unwrap();
    sampling.set("maxTokens", max_tokens).unwrap();
    timeline.begin(prompt, sampling).unwrap();
    let mut text = String::new();
    while timeline.step().await.unwrap() != Step::Done {
        text += &timeline.take_text();
    }
    text += &timeline.take_text();
    timeline.end();
    text
}

#[wasm_bindgen_test]
async fn says_what_the_cpu_says() {
    let mut cpu = load(SPROUT, SPROUT.len(), SPROUT.len() as f64, "f32").unwrap();
    let mut timeline = cpu.timeline(0.0).unwrap();
    for extensions in [true, false] {
        let mut gpu = open(SPROUT, extensions, "f32").await.unwrap();
        let mut on_gpu = gpu.timeline(0.0).await.unwrap();
        for prompt in ["Once upon a time", "The cow said"] {
            let prompt = cpu.tokenize(prompt, false);
            assert_eq!(gpu.detokenize(&prompt).unwrap(), cpu.detokenize(&prompt).unwrap());
            let want = reply(&mut timeline, &prompt, 8.0).0;
            assert_eq!(reply_on_gpu(&mut on_gpu, &prompt, 8.0).await, want);
        }
    }
}

/// The log-probabilities of the most likely tokens behind `prompt`.
async fn likely_on_gpu(timeline: &mut GpuTimeline, prompt: &[u32]) -> Vec<(u32, f32)> {
    timeline.begin(prompt, likely()).unwrap();
    while timeline.step().await.unwrap() == Step::Prefill {}
    timeline.top_tokens().into_iter().zip(timeline.top_logprobs()).collect()
}

fn likely() -> Sampling {
    let mut sampling = Sampling::preset("greedy").unwrap();
    sampling.set("maxTokens", 1.0).unwrap();
    sampling.set("logprobs", 8.0).unwrap();
    sampling
}

#[wasm_bindgen_test]
async fn integers_find_likely_what_the_cpu_does() {
    let mut cpu = load(SPROUT, SPROUT.len(), SPROUT.len() as f64, "int8").unwrap();
    let mut on_cpu = cpu.timeline(0.0).unwrap();
    let mut model = open(SPROUT, true, "int8").await.unwrap();
    let mut gpu = model.timeline(0.0).await.unwrap();
    // One batch, and one and a half.
    let text = "Once upon a time there was a cat that had a red ball. ".repeat(14);
    let long = model.tokenize(&text, false);
    for length in [12, 190] {
        let prompt = &long[..length];
        on_cpu.begin(prompt, likely()).unwrap();
        while on_cpu.step().unwrap() == Step::Prefill {}
        let found = likely_on_gpu(&mut gpu, prompt).await;
        // Only those that noise cannot push out.
        for (token, want) in on_cpu.top_tokens().into_iter().zip(on_cpu.top_logprobs()).take(2) {
            let at = found.iter().find(|(id, _)| *id == token);
            assert!(
                at.is_some_and(|(_, got)| (got - want).abs() < 0.5),
                "{length}: {token} {want} in {found:?}"
            );
        }
    }

    let mut sampling = Sampling::preset("bonsai").unwrap();
    sampling.set("maxTokens", 6.0).unwrap();
    sampling.set("seed", 7.0).unwrap();
    gpu.begin(&long[..5], sampling).unwrap();
    let mut tokens = 0;
    while gpu.step().await.unwrap() != Step::Done {
        tokens += 1;
    }
    assert!(tokens >= 6 && gpu.take_text().len() > 5);
}

/// What was forgotten leaves nothing: the reply goes on as one that never saw it.
#[wasm_bindgen_test]
async fn what_is_left_is_read_again() {
    let mut cpu = load(SPROUT, SPROUT.len(), SPROUT.len() as f64, "f32").unwrap();
    let mut model = open(SPROUT, true, "f32").await.unwrap();
    let mut gpu = model.timeline(64.0).await.unwrap();
    let text = "Once upon a time there was a cat that had a red ball. ".repeat(14);
    let prompt = &cpu.tokenize(&text, false)[..60];
    let mut sampling = Sampling::preset("greedy").unwrap();
    sampling.set("maxTokens", 10.0).unwrap();
    sampling.set("keep", 4.0).unwrap();
    gpu.begin(prompt, sampling).unwrap();
    let (mut ids, mut seen, mut forgotten) = (prompt.to_vec(), 0, 0);
    while gpu.step().await.unwrap() != Step::Done && gpu.reason().is_empty() {
        if gpu.forgotten() > forgotten {
            forgotten = gpu.forgotten();
            seen = ids.len();
        }
        let text = gpu.take_text();
        if !text.is_empty() {
            ids.push(gpu.last_token());
        }
    }
    assert!(forgotten > 0 && seen > 60, "{forgotten} {seen}");
    let left = [&ids[..4], &ids[4 + forgotten..seen]].concat();
    let rest = ids.len() - seen;
    assert!(rest > 1);
    let mut on_cpu = cpu.timeline(0.0).unwrap();
    let want = reply(&mut on_cpu, &left, rest as f64).0;
    assert_eq!(cpu.detokenize(&ids[seen..]).unwrap(), want);
}

#[wasm_bindgen_test]
async fn errors_are_typed() {
    for (file, want) in [(&SPROUT[..SPROUT.len() - 1000], "truncated"), (b"<!doctype html>", "malformed")] {
        assert_eq!(code(&open(file, true, "int8").await.err().unwrap()), want);
    }
    let mut model = open(SPROUT, true, "int8").await.unwrap();
    let mut gpu = model.timeline(0.0).await.unwrap();
    let prompt = model.tokenize("Once", false);
    gpu.begin(&prompt, Sampling::preset("greedy").unwrap()).unwrap();
    model.destroy();
    assert_eq!(code(&gpu.step().await.err().unwrap()), "gpu_lost");
    // The CPU takes over in the same module.
    let mut cpu = load(SPROUT, SPROUT.len(), SPROUT.len() as f64, "int8").unwrap();
    assert!(!reply(&mut cpu.timeline(0.0).unwrap(), &prompt, 4.0).0.is_empty());
}
