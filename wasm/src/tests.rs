//! The module as the browser and Node run it; the same suite in both.

#[allow(unreachable_pub, reason = "of a crate that this one does not use")]
#[path = "../../tests/src/long_rope.rs"]
mod long_rope;

use crate::{Adapter, Chat, Loader, Model, Step};
use js_sys::{Array, JSON, Reflect, Uint8Array, Uint32Array};
use long_rope::long_rope;
use shohin_core::chat::TurnOptions;
use shohin_core::cpu::Isa;
use shohin_core::gguf::GgufWriter;
use shohin_core::{
    Activations, BonsaiModel, Cpu, CpuOptions, Format, Gguf, KvFormat, SamplerConfig, Serial, Session,
    SessionOptions, quant,
};
use wasm_bindgen::JsValue;
use wasm_bindgen_test::wasm_bindgen_test;

#[cfg(tested_in_browsers)]
wasm_bindgen_test::wasm_bindgen_test_configure!(run_in_browser);

const SPROUT: &[u8] = include_bytes!("../../models/sprout.gguf");

/// One for `SPROUT`, and one for another model.
const ADAPTER: &[u8] = include_bytes!("../../tests/fixtures/lora/sprout.gguf");
const ALIEN: &[u8] = include_bytes!("../../tests/fixtures/lora/all.gguf");

/// A random Qwen3 of two layers, and its logits by an f64 forward in numpy.
const MICRO: &[u8] = include_bytes!("../../tests/fixtures/golden_model/synth-micro-q1_0.gguf");
const MICRO_LOGITS: &[u8] = include_bytes!("../../tests/fixtures/golden_model/micro-f32_q1.numpy_f64.logits");
const MICRO_TOKENS: &str = include_str!("../../tests/fixtures/golden_model/tokens.txt");

fn load(bytes: &[u8], piece: usize, announced: f64, precision: &str) -> Result<Model, JsValue> {
    let mut file = Loader::new(announced, "auto")?;
    for piece in bytes.chunks(piece) {
        file.append(&Uint8Array::from(piece))?;
    }
    let kv = if precision == "f32" { "f32" } else { "f16" };
    file.finish(0.0, kv, "full", precision)
}

fn code(error: &JsValue) -> String {
    Reflect::get(error, &"code".into()).ok().and_then(|code| code.as_string()).unwrap_or_default()
}

fn message(error: &JsValue) -> String {
    Reflect::get(error, &"message".into()).ok().and_then(|text| text.as_string()).unwrap_or_default()
}

fn get(object: &JsValue, key: &str) -> JsValue {
    Reflect::get(object, &key.into()).unwrap()
}

/// A JavaScript value.
fn value(json: &str) -> JsValue {
    JSON::parse(json).unwrap()
}

fn greedy(max_tokens: usize) -> TurnOptions {
    let (sampler, max_tokens) = (SamplerConfig::greedy(), Some(max_tokens));
    TurnOptions { sampler, max_tokens, ..TurnOptions::default() }
}

/// Runs a turn to its end; returns its text and how it ended.
fn run(chat: &mut Chat) -> (String, JsValue) {
    let mut text = String::new();
    let mut take = |chat: &mut Chat| text += &get(&chat.take_chunk(), "text").as_string().unwrap();
    while chat.step().unwrap() != Step::Done {
        take(chat);
    }
    take(chat);
    let finish = chat.finish();
    assert_eq!(get(&finish, "text").as_string().unwrap(), text);
    (text, finish)
}

/// The text after a prompt, and how many of its tokens were in the cache.
fn reply(chat: &mut Chat, prompt: &[u32], max_tokens: usize) -> (String, usize) {
    chat.continue_tokens(prompt.to_vec(), greedy(max_tokens)).unwrap();
    let (text, finish) = run(chat);
    (text, get(&get(&finish, "usage"), "cachedTokens").as_f64().unwrap() as usize)
}

#[wasm_bindgen_test]
fn the_module_has_simd() {
    assert!(["simd128", "relaxed", "relaxeddot"].contains(&Isa::detect().name()));
    assert_eq!(usize::BITS, 32);
}

#[wasm_bindgen_test]
fn golden_logits_on_every_isa() {
    let tokens: Vec<u32> = MICRO_TOKENS.split_whitespace().map(|token| token.parse().unwrap()).collect();
    let want: Vec<f32> =
        MICRO_LOGITS.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
    let model = BonsaiModel::from_gguf(&Gguf::parse(MICRO).unwrap()).unwrap();
    for isa in Isa::available() {
        let options = CpuOptions { isa, activations: Activations::F32, ..CpuOptions::default() };
        let mut device = Cpu::new(model.clone(), &options, Serial).unwrap();
        let kv = KvFormat::F32;
        let mut session = Session::new(&mut device, &SessionOptions { kv, ..Default::default() }).unwrap();
        let mut worst = 0.0f32;
        session
            .forward_logits(&mut device, &tokens, &mut |i, row| {
                for (got, want) in row.iter().zip(&want[i * row.len()..]) {
                    worst = worst.max((got - want).abs());
                }
            })
            .unwrap();
        assert!(worst < 1e-3, "{}: {worst}", isa.name());
    }
}

#[wasm_bindgen_test]
fn says_what_the_trainer_says() {
    // `models/train` computed these with its own forward pass.
    let expected = value(include_str!("../../models/sprout.expected.json"));
    let chats = Array::from(&get(&get(&get(&expected, "models"), "sprout.gguf"), "chats"));
    assert!(chats.length() > 0);
    let mut model = load(SPROUT, SPROUT.len(), SPROUT.len() as f64, "f32").unwrap();
    let mut chat = model.chat(0.0).unwrap();
    for expected in chats.iter() {
        let messages = Array::from(&get(&expected, "messages"));
        let prompt = model.encode_chat(&messages, &JsValue::UNDEFINED).unwrap();
        assert_eq!(prompt, Uint32Array::from(get(&expected, "prompt_ids")).to_vec());
        let length = Array::from(&get(&expected, "continuation_ids")).length() + 1;
        let options = value(&format!(r#"{{"preset": "greedy", "maxTokens": {length}}}"#));
        chat.respond(&messages, &options).unwrap();
        let (text, finish) = run(&mut chat);
        assert_eq!(text, get(&expected, "text").as_string().unwrap());
        assert_eq!(get(&finish, "reason").as_string().unwrap(), "stop");
    }
}

#[wasm_bindgen_test]
fn the_conversation_stays_in_the_cache() {
    let mut model = load(SPROUT, SPROUT.len(), SPROUT.len() as f64, "int8").unwrap();
    let mut chat = model.chat(0.0).unwrap();
    let options = value(r#"{"preset": "greedy", "maxTokens": 40}"#);
    let mut ask = |messages: &Array| {
        chat.respond(messages, &options).unwrap();
        let (text, finish) = run(&mut chat);
        let usage = |name| get(&get(&finish, "usage"), name).as_f64().unwrap();
        (text, usage("cachedTokens"), usage("promptTokens"), get(&finish, "message"))
    };
    let messages = Array::from(&value(r#"[{"role": "user", "content": "Hello!"}]"#));
    let (text, cached, first, message) = ask(&messages);
    assert_eq!(cached, 0.0);

    // The same again: all but the last prompt token is there, and the answer is the same.
    let again = ask(&messages);
    assert_eq!((again.0, again.1), (text, first - 1.0));

    messages.push(&message);
    messages.push(&value(r#"{"role": "user", "content": "What is the opposite of big?"}"#));
    let (_, cached, second, _) = ask(&messages);
    assert!(cached > first, "{cached} of {second}");
}

#[wasm_bindgen_test]
fn requests_are_answered_in_the_form_of_openai() {
    let mut model = load(SPROUT, SPROUT.len(), SPROUT.len() as f64, "int8").unwrap();
    let mut chat = model.chat(0.0).unwrap();
    let request = |more: &str| {
        format!(
            r#"{{"messages": [{{"role": "user", "content": "Hello!"}}], "temperature": 0, "max_tokens": 4{more}}}"#
        )
    };
    let mut answer = |request: &str| {
        model.check_request(request).unwrap();
        chat.answer(request).unwrap();
        let mut answers = Vec::new();
        while chat.step().unwrap() != Step::Done {
            answers.extend(chat.take_chunk().as_string());
        }
        answers.extend(chat.take_chunk().as_string());
        let finish = chat.finish();
        answers.extend(Array::from(&get(&finish, "answers")).iter().map(|text| text.as_string().unwrap()));
        assert_eq!(Array::from(&get(&finish, "messages")).length(), 2);
        answers
    };
    let whole = answer(&request(""));
    assert_eq!(whole.len(), 1);
    let choice = |answer: &str| get(&get(&value(answer), "choices"), "0");
    let content = get(&get(&choice(&whole[0]), "message"), "content").as_string().unwrap();
    let chunks = answer(&request(r#", "stream": true, "logprobs": true"#));
    let deltas = chunks.iter().filter_map(|chunk| get(&get(&choice(chunk), "delta"), "content").as_string());
    assert_eq!(deltas.collect::<String>(), content);
    let last = choice(chunks.last().unwrap());
    assert_eq!(get(&last, "finish_reason").as_string().unwrap(), "length");
    for wrong in [&request(r#", "top_k": 4"#)[..], "[]", "{"] {
        assert!(!code(&model.check_request(wrong).err().unwrap()).is_empty());
    }
}

#[wasm_bindgen_test]
fn pieces_of_a_file_make_the_file() {
    let mut whole = load(SPROUT, SPROUT.len(), SPROUT.len() as f64, "int8").unwrap();
    let prompt = whole.tokenize("Once upon a time", false);
    let want = reply(&mut whole.chat(0.0).unwrap(), &prompt, 8);
    // In odd pieces, with too small, too large and no size announced.
    for (piece, announced) in [(4099, 1000.0), (100_003, SPROUT.len() as f64 * 2.0), (1 << 20, 0.0)] {
        let mut model = load(SPROUT, piece, announced, "int8").unwrap();
        assert_eq!(reply(&mut model.chat(0.0).unwrap(), &prompt, 8), want);
    }
}

/// `SPROUT` with base-3 digits instead of 2-bit codes: the same weights.
fn base_3() -> Vec<u8> {
    let gguf = Gguf::parse(SPROUT).unwrap();
    let mut writer = GgufWriter::new();
    for (key, value) in gguf.metadata().iter() {
        writer.set(key, value).unwrap();
    }
    let mut data = Vec::new();
    for tensor in gguf.tensors() {
        let (format, bytes) = (tensor.format().unwrap(), gguf.data(tensor));
        if format != Format::Pq2_0 {
            writer.tensor(tensor.name(), tensor.dims(), format).unwrap();
            data.push(bytes.to_vec());
            continue;
        }
        let mut weights = vec![0.0; tensor.elements() as usize];
        quant::unpack(format, bytes, &mut weights).unwrap();
        writer.tensor(tensor.name(), tensor.dims(), Format::Ptq1_0).unwrap();
        let mut packed = vec![0; Format::Ptq1_0.row_bytes(weights.len()).unwrap()];
        quant::pack(Format::Ptq1_0, &weights, &mut packed).unwrap();
        data.push(packed);
    }
    writer.to_vec(&data).unwrap()
}

#[wasm_bindgen_test]
fn base_3_weights_are_expanded() {
    let mut model = load(SPROUT, SPROUT.len(), SPROUT.len() as f64, "int8").unwrap();
    let bytes = base_3();
    let mut other = load(&bytes, bytes.len(), bytes.len() as f64, "int8").unwrap();
    let prompt = model.tokenize("Once upon a time", false);
    let [mut first, mut second] = [&mut model, &mut other].map(|model| model.chat(0.0).unwrap());
    assert_eq!(reply(&mut second, &prompt, 40), reply(&mut first, &prompt, 40));
    let info = other.info();
    // The file is described as it was, the memory as it is.
    let (file, memory) = (get(&info, "model"), get(&info, "memory"));
    assert_eq!(Array::from(&get(&file, "formats")).get(0).as_string().unwrap(), "PTQ1_0");
    assert_eq!(get(&file, "fileBytes").as_f64().unwrap(), bytes.len() as f64);
    assert!(get(&memory, "weights").as_f64().unwrap() > bytes.len() as f64 * 1.1);
}

fn adapter(bytes: &[u8]) -> Result<Adapter, JsValue> {
    let mut adapter = Adapter::new();
    for piece in bytes.chunks(10_007) {
        adapter.append(&Uint8Array::from(piece))?;
    }
    adapter.check()?;
    Ok(adapter)
}

#[wasm_bindgen_test]
fn adapters_join_a_loaded_model() {
    let mut base = load(SPROUT, SPROUT.len(), SPROUT.len() as f64, "int8").unwrap();
    let prompt = base.tokenize("Once upon a time", false);
    let pirate = adapter(ADAPTER).unwrap();
    let scales = [1.0, 0.5, -1.0];
    let pages = core::arch::wasm32::memory_size(0);
    let mut models = scales.map(|scale| base.adapted(&pirate, scale).unwrap());
    // They share the weights.
    let grown = (core::arch::wasm32::memory_size(0) - pages) * 65536;
    assert!(grown < SPROUT.len(), "{grown} bytes");
    let mut both = models[1].adapted(&pirate, -1.0).unwrap();
    let gguf = Gguf::parse(ADAPTER).unwrap();
    let factors = shohin_core::model::LoraAdapter::from_gguf(&gguf).unwrap();
    let sets: [&[f32]; 5] = [&[], &[1.0], &[0.5], &[-1.0], &[0.5, -1.0]];
    // As core says in this module without anything shared, and as other builds say.
    let want = sets.map(|scales| {
        let adapters: Vec<_> = scales.iter().map(|&scale| (&factors, scale)).collect();
        let model = BonsaiModel::load(SPROUT.to_vec()).unwrap().adapt(&adapters, |bytes| bytes).unwrap();
        let mut device = Cpu::repacked(model, &CpuOptions::default(), Serial).unwrap();
        let mut session = Session::new(&mut device, &SessionOptions::default()).unwrap();
        let (mut tokens, mut said) = (prompt.clone(), Vec::new());
        for _ in 0..24 {
            let logits = session.forward_prefill(&mut device, &tokens).unwrap();
            let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
            said.push(best as u32);
            tokens = vec![best as u32];
        }
        base.detokenize(&said).unwrap()
    });
    assert!(want[1].starts_with(", there was a shy little girl. Her mother."), "{}", want[1]);
    let [one, half, minus] = &mut models;
    let mut chats = [&mut base, one, half, minus, &mut both].map(|model| model.chat(0.0).unwrap());
    // A step of each in turn.
    chats.iter_mut().for_each(|chat| chat.continue_tokens(prompt.clone(), greedy(24)).unwrap());
    while chats.each_mut().map(|chat| chat.step().unwrap()) != [Step::Done; 5] {}
    let said = chats.each_mut().map(|chat| get(&chat.finish(), "text").as_string().unwrap());
    assert_eq!(said, want);

    // Snapshots are of one set: also of one that was made again, in which those at 0 are not.
    let snapshots = chats.each_mut().map(|chat| chat.snapshot(&Array::new()).unwrap());
    let again = base.adapted(&pirate, 0.0).unwrap().adapted(&pirate, 1.0).unwrap();
    let mut chat = base.chat(0.0).unwrap();
    let models = [&base, &again, &models[1], &models[2], &both];
    for (i, model) in models.into_iter().enumerate() {
        chat.change_to(model).unwrap();
        assert_eq!(reply(&mut chat, &prompt, 24), (want[i].clone(), 0));
        for (j, snapshot) in snapshots.iter().enumerate() {
            match chat.restore(snapshot) {
                Ok(_) => assert_eq!(i, j),
                Err(error) => assert!(i != j && code(&error) == "snapshot_foreign", "{i} {j}"),
            }
        }
        assert_eq!(reply(&mut chat, &prompt, 24).0, want[i]);
        // The same adapters: what is in the cache stays.
        chat.change_to(model).unwrap();
        assert_eq!(reply(&mut chat, &prompt, 24), (want[i].clone(), prompt.len() - 1));
    }
}

#[wasm_bindgen_test]
fn adapters_that_do_not_fit_are_refused() {
    let base = load(SPROUT, SPROUT.len(), SPROUT.len() as f64, "int8").unwrap();
    for (bytes, want) in [(&b""[..], "truncated"), (&ADAPTER[..20_000], "truncated"), (SPROUT, "unsupported")]
    {
        assert_eq!(code(&adapter(bytes).err().unwrap()), want);
    }
    let alien = base.adapted(&adapter(ALIEN).unwrap(), 1.0).err().unwrap();
    assert_eq!(code(&alien), "tensor_shape", "{}", message(&alien));
    for scale in [f32::NAN, f32::INFINITY] {
        assert_eq!(code(&base.adapted(&adapter(ADAPTER).unwrap(), scale).err().unwrap()), "option");
    }
}

#[wasm_bindgen_test]
fn dropping_adapted_models_gives_their_memory_back() {
    let mut base = load(SPROUT, SPROUT.len(), SPROUT.len() as f64, "int8").unwrap();
    let mut chat = base.chat(0.0).unwrap();
    let round = |chat: &mut Chat| {
        let pirate = adapter(ADAPTER).unwrap();
        for model in [0.5, 1.0].map(|scale| base.adapted(&pirate, scale).unwrap()) {
            chat.change_to(&model).unwrap();
        }
        chat.change_to(&base).unwrap();
    };
    round(&mut chat);
    let before = core::arch::wasm32::memory_size(0);
    (0..100).for_each(|_| round(&mut chat));
    let after = core::arch::wasm32::memory_size(0);
    // A leak of the files alone would be 74 pages.
    assert!(after <= before + 2, "{before} -> {after} pages");
}

#[wasm_bindgen_test]
fn the_context_of_loading_chooses_the_frequencies() {
    let load = |original, context| {
        let mut file = Loader::new(0.0, "auto").unwrap();
        file.append(&Uint8Array::from(&long_rope(SPROUT, original, 1024).unwrap()[..])).unwrap();
        file.finish(context, "f16", "full", "int8").unwrap()
    };
    let said = |model: &mut Model| {
        let prompt = model.tokenize("Once upon a time", false);
        reply(&mut model.chat(0.0).unwrap(), &prompt, 20)
    };
    let [mut always, mut short, mut long] =
        [(1024, 1024.0), (64, 64.0), (64, 65.0)].map(|(original, context)| load(original, context));
    let want = said(&mut always);
    assert_eq!(said(&mut short), want);
    assert_ne!(said(&mut long), want);
    // Another conversation has the same frequencies, or none.
    assert!(short.chat(64.0).is_ok() && long.chat(1024.0).is_ok());
    let refused = short.chat(65.0).err().unwrap();
    assert_eq!(code(&refused), "option");
    assert!(message(&refused).contains("context is 65, expected at most that of loading"));
    assert!(short.embedder("Once upon a time", None).is_ok());
    assert_eq!(code(&short.embedder(&"Once upon a time. ".repeat(40), None).err().unwrap()), "context_full");
    // Their keys are others.
    let mut chat = short.chat(0.0).unwrap();
    chat.continue_tokens(vec![1, 2, 3], greedy(4)).unwrap();
    run(&mut chat);
    let snapshot = chat.snapshot(&Array::new()).unwrap();
    assert!(load(64, 64.0).chat(0.0).unwrap().restore(&snapshot).is_ok());
    let foreign = load(64, 65.0).chat(0.0).unwrap().restore(&snapshot).err().unwrap();
    assert_eq!(code(&foreign), "snapshot_foreign");
}

#[wasm_bindgen_test]
fn errors_carry_their_code() {
    let cases: [(&[u8], &str); 3] = [
        (b"", "truncated"),
        (b"GGUF\x03\0\0\0", "truncated"),
        (b"<!doctype html><title>not a model</title>", "malformed"),
    ];
    for (bytes, want) in cases {
        let error = load(bytes, 7, 0.0, "int8").err().unwrap();
        assert_eq!(code(&error), want, "{}", message(&error));
        assert!(!message(&error).is_empty());
    }
    // Known before the whole of it is there.
    let mut page = Loader::new(1e6, "auto").unwrap();
    page.append(&Uint8Array::from(&b"<!d"[..])).unwrap();
    let more = &b"octype html><title>not a model</title>"[..];
    assert_eq!(code(&page.append(&Uint8Array::from(more)).err().unwrap()), "malformed");
    assert_eq!(code(&Loader::new(1e15, "auto").err().unwrap()), "memory");
    let mut model = load(SPROUT, SPROUT.len(), 0.0, "int8").unwrap();
    let mut chat = model.chat(0.0).unwrap();
    let messages = Array::from(&value(r#"[{"role": "user", "content": "What is 2 plus 2?"}]"#));
    for (options, want) in [
        (r#"{"preset": "sharp"}"#, "unsupported"),
        (r#"{"topK": -1}"#, "option"),
        (r#"{"topK": 0.5}"#, "option"),
        (r#"{"topK": 1e300}"#, "option"),
        (r#"{"temperature": -1}"#, "option"),
        // The embedded model's template has no tools.
        (r#"{"tools": [{"type": "function", "function": {"name": "add"}}]}"#, "unsupported"),
        (
            r#"{"responseFormat": {"type": "json_schema", "schema": {"not": {"type": "string"}}}}"#,
            "unsupported",
        ),
    ] {
        assert_eq!(code(&chat.respond(&messages, &value(options)).err().unwrap()), want, "{options}");
    }
    assert_eq!(code(&chat.complete("", &JsValue::UNDEFINED).err().unwrap()), "length");
    assert_eq!(code(&model.detokenize(&[u32::MAX]).err().unwrap()), "token");
    let unknown = chat.continue_tokens(vec![u32::MAX, 1], greedy(4));
    assert!(unknown.is_err() || code(&chat.step().err().unwrap()) == "token");
    // A failure must not spoil what follows.
    chat.end();
    let prompt = model.tokenize("Once", false);
    reply(&mut chat, &prompt, 4);
}

#[wasm_bindgen_test]
fn damaged_files_are_refused_or_run() {
    // Whole families of damage are tested in the core; here it matters that none of them traps the module.
    let mut random = 1u32;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        random as usize
    };
    for round in 0..40 {
        let mut bytes = SPROUT[..if round % 2 == 0 { SPROUT.len() } else { next() % SPROUT.len() }].to_vec();
        for _ in 0..1 + round % 5 {
            let at = next() % bytes.len().clamp(1, 1 << 15);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = next() as u8;
            }
        }
        match load(&bytes, 1 << 20, bytes.len() as f64, "int8") {
            Err(error) => assert!(!code(&error).is_empty(), "round {round}"),
            Ok(mut model) => {
                let prompt = model.tokenize("Hello", false);
                let mut chat = model.chat(0.0).unwrap();
                let _ = chat.continue_tokens(prompt, greedy(4));
                let _ = chat.step();
            }
        }
    }
}

#[wasm_bindgen_test]
fn dropping_a_model_gives_its_memory_back() {
    let pages = || core::arch::wasm32::memory_size(0);
    drop(load(SPROUT, SPROUT.len(), SPROUT.len() as f64, "int8").unwrap());
    let before = pages();
    for _ in 0..20 {
        drop(load(SPROUT, SPROUT.len(), SPROUT.len() as f64, "int8").unwrap());
    }
    // A leak of the file alone would be 20 times its size.
    assert!(pages() <= before + SPROUT.len() / 65536 + 1, "{before} -> {} pages", pages());
}
