//! The module as the browser and Node run it; the same suite in both.

use crate::{Conversation, FileBuffer, Model, Sampling, Step, Timeline, tool_calls};
use js_sys::{Reflect, Uint8Array, Uint32Array};
use shohin_core::cpu::Isa;
use shohin_core::gguf::GgufWriter;
use shohin_core::{
    Activations, BonsaiModel, Cpu, CpuOptions, Format, Gguf, KvFormat, Serial, Session, SessionOptions, quant,
};
use wasm_bindgen::JsValue;
use wasm_bindgen_test::wasm_bindgen_test;

pub(crate) const SPROUT: &[u8] = include_bytes!("../../models/sprout.gguf");

/// A random Qwen3 of two layers, and its logits by an f64 forward in numpy.
const MICRO: &[u8] = include_bytes!("../../tests/fixtures/golden_model/synth-micro-q1_0.gguf");
const MICRO_LOGITS: &[u8] = include_bytes!("../../tests/fixtures/golden_model/micro-f32_q1.numpy_f64.logits");
const MICRO_TOKENS: &str = include_str!("../../tests/fixtures/golden_model/tokens.txt");

pub(crate) fn load(bytes: &[u8], piece: usize, announced: f64, precision: &str) -> Result<Model, JsValue> {
    let mut file = FileBuffer::new(announced)?;
    for piece in bytes.chunks(piece) {
        file.append(&Uint8Array::from(piece))?;
    }
    assert_eq!(file.length(), bytes.len() as f64);
    let kv = if precision == "f32" { "f32" } else { "f16" };
    Model::load(file, 0.0, kv, precision)
}

pub(crate) fn code(error: &JsValue) -> String {
    Reflect::get(error, &"code".into()).ok().and_then(|code| code.as_string()).unwrap_or_default()
}

fn message(error: &JsValue) -> String {
    Reflect::get(error, &"message".into()).ok().and_then(|text| text.as_string()).unwrap_or_default()
}

pub(crate) fn reply(timeline: &mut Timeline, prompt: &[u32], max_tokens: f64) -> (String, usize) {
    let mut sampling = Sampling::preset("greedy").unwrap();
    sampling.set("maxTokens", max_tokens).unwrap();
    let cached = timeline.begin(prompt, sampling).unwrap();
    let mut text = String::new();
    while timeline.step().unwrap() != Step::Done {
        text += &timeline.take_text();
    }
    text += &timeline.take_text();
    timeline.end();
    (text, cached)
}

#[wasm_bindgen_test]
fn the_module_has_simd() {
    assert_eq!(Isa::detect().name(), "simd128");
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
    let get = |object: &JsValue, key: &str| Reflect::get(object, &key.into()).unwrap();
    let expected = js_sys::JSON::parse(include_str!("../../models/sprout.expected.json")).unwrap();
    let chats = js_sys::Array::from(&get(&get(&get(&expected, "models"), "sprout.gguf"), "chats"));
    assert!(chats.length() > 0);
    let mut model = load(SPROUT, SPROUT.len(), SPROUT.len() as f64, "f32").unwrap();
    let mut timeline = model.timeline(0.0).unwrap();
    for chat in chats.iter() {
        let mut conversation = Conversation::new();
        for message in js_sys::Array::from(&get(&chat, "messages")).iter() {
            let role = get(&message, "role").as_string().unwrap();
            conversation.push(&role, get(&message, "content").as_string().unwrap(), None).unwrap();
        }
        let prompt = model.encode_chat(&conversation, false).unwrap();
        assert_eq!(prompt, Uint32Array::from(get(&chat, "prompt_ids")).to_vec());
        let want = get(&chat, "text").as_string().unwrap();
        let length = js_sys::Array::from(&get(&chat, "continuation_ids")).length();
        let (text, _) = reply(&mut timeline, &prompt, f64::from(length + 1));
        assert_eq!(text, want);
        assert_eq!(timeline.reason(), "stop");
    }
}

#[wasm_bindgen_test]
fn the_conversation_stays_in_the_cache() {
    let mut model = load(SPROUT, SPROUT.len(), SPROUT.len() as f64, "int8").unwrap();
    let mut timeline = model.timeline(0.0).unwrap();
    let mut conversation = Conversation::new();
    conversation.push("user", "Hello!".into(), None).unwrap();
    let first = model.encode_chat(&conversation, false).unwrap();
    let (text, cached) = reply(&mut timeline, &first, 40.0);
    assert_eq!(cached, 0);

    // The same again: all but the last prompt token is there, and the answer is the same.
    assert_eq!(reply(&mut timeline, &first, 40.0), (text.clone(), first.len() - 1));

    conversation.push("assistant", text, None).unwrap();
    conversation.push("user", "What is the opposite of big?".into(), None).unwrap();
    let second = model.encode_chat(&conversation, false).unwrap();
    let (_, cached) = reply(&mut timeline, &second, 1.0);
    assert!(cached > first.len(), "{cached} of {}", second.len());
    assert_eq!(timeline.reason(), "length");
}

#[wasm_bindgen_test]
fn calls_are_found() {
    let text = |text: &str| js_sys::JSON::stringify(&tool_calls(text)).unwrap().as_string().unwrap();
    let call = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    assert_eq!(text(call), r#"[{"name":"add","arguments":"{\"a\": 1}"}]"#);
    // Marks of thoughts are text within a call.
    let marked = call.replace('1', r#""<think> a </think> b""#);
    assert_eq!(text(&marked), r#"[{"name":"add","arguments":"{\"a\": \"<think> a </think> b\"}"}]"#);
    for other in ["Hello.", "<tool_call>\nnot JSON\n</tool_call>", "{\"name\": \"add\"}"] {
        assert_eq!(text(other), "[]");
    }
}

#[wasm_bindgen_test]
fn pieces_of_a_file_make_the_file() {
    let mut whole = load(SPROUT, SPROUT.len(), SPROUT.len() as f64, "int8").unwrap();
    let prompt = whole.tokenize("Once upon a time", false);
    let want = reply(&mut whole.timeline(0.0).unwrap(), &prompt, 8.0);
    // In odd pieces, with too small, too large and no size announced.
    for (piece, announced) in [(4099, 1000.0), (100_003, SPROUT.len() as f64 * 2.0), (1 << 20, 0.0)] {
        let mut model = load(SPROUT, piece, announced, "int8").unwrap();
        assert_eq!(reply(&mut model.timeline(0.0).unwrap(), &prompt, 8.0), want);
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
    let [mut first, mut second] = [&mut model, &mut other].map(|model| model.timeline(0.0).unwrap());
    assert_eq!(reply(&mut second, &prompt, 40.0), reply(&mut first, &prompt, 40.0));
    let get = |object: &JsValue, key: &str| Reflect::get(object, &key.into()).unwrap();
    let info = other.info();
    // The file is described as it was, the memory as it is.
    let (file, memory) = (get(&info, "model"), get(&info, "memory"));
    assert_eq!(js_sys::Array::from(&get(&file, "formats")).get(0).as_string().unwrap(), "PTQ1_0");
    assert_eq!(get(&file, "fileBytes").as_f64().unwrap(), bytes.len() as f64);
    assert!(get(&memory, "weights").as_f64().unwrap() > bytes.len() as f64 * 1.1);
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
    let mut page = FileBuffer::new(1e6).unwrap();
    page.append(&Uint8Array::from(&b"<!d"[..])).unwrap();
    let more = &b"octype html><title>not a model</title>"[..];
    assert_eq!(code(&page.append(&Uint8Array::from(more)).err().unwrap()), "malformed");
    assert_eq!(code(&FileBuffer::new(1e15).err().unwrap()), "memory");
    assert_eq!(code(&Sampling::preset("sharp").err().unwrap()), "unsupported");
    let mut sampling = Sampling::preset("greedy").unwrap();
    for wrong in [-1.0, 0.5, f64::NAN, f64::INFINITY, 1e300] {
        assert_eq!(code(&sampling.set("topK", wrong).err().unwrap()), "option");
    }
    let mut model = load(SPROUT, SPROUT.len(), 0.0, "int8").unwrap();
    let mut timeline = model.timeline(0.0).unwrap();
    assert_eq!(code(&timeline.begin(&[], Sampling::preset("greedy").unwrap()).err().unwrap()), "length");
    // The embedded model's template has no tools.
    let mut conversation = Conversation::new();
    conversation.push("user", "What is 2 plus 2?".into(), None).unwrap();
    conversation.push_tool(r#"{"type":"function","function":{"name":"add"}}"#.into());
    assert!(!code(&model.encode_chat(&conversation, false).err().unwrap()).is_empty());
    assert_eq!(code(&model.detokenize(&[u32::MAX]).err().unwrap()), "token");
    let unknown = timeline.begin(&[u32::MAX, 1], Sampling::preset("greedy").unwrap());
    assert!(unknown.is_err() || code(&timeline.step().err().unwrap()) == "token");
    // A failure must not spoil what follows.
    timeline.end();
    let prompt = model.tokenize("Once", false);
    reply(&mut timeline, &prompt, 4.0);
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
                let mut timeline = model.timeline(0.0).unwrap();
                let _ = timeline.begin(&prompt, Sampling::preset("greedy").unwrap());
                let _ = timeline.step();
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
