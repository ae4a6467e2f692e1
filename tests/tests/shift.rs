//! Contexts that drop their oldest tokens.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use shohin_core::cpu::{Cpu, Isa};
use shohin_core::generate::{Event, Generation, GenerationOptions, Overflow, Reason, drive};
use shohin_core::sample::log_sum_exp;
use shohin_core::session::Decoder;
use shohin_core::{
    CpuOptions, Format, Gguf, KvFormat, Sampler, SamplerConfig, Session, SessionOptions, Tokenizer,
};
use shohin_tests::cpu::{device, exact, in_format};
use shohin_tests::model::{Model, Shape, Stored};
use shohin_tests::rounds::is_thorough;

/// With one layer, keys and values depend only on the token and its position, so moving them must give the
/// same as computing them at their new positions.
#[test]
fn one_layer_cannot_tell_moved_from_new() {
    let shape = Shape { layers: 1, context: 512, ..Shape::tiny() };
    let file = Model::new(shape, Stored::new(Format::F32), 3).to_vec().unwrap();
    let tokens: Vec<u32> = (0..400u32).map(|i| (i * i + 7 * i) % 320).collect();
    for (kv, bound) in [(KvFormat::F32, 2e-5), (KvFormat::F16, 4e-3), (KvFormat::Q8, 5e-2)] {
        for isa in [Isa::SCALAR, Isa::detect()] {
            for (seen, keep, drop) in [(40, 4, 13), (17, 0, 1), (300, 20, 131), (399, 3, 198), (30, 10, 20)] {
                let mut device = device(&file, &CpuOptions { isa, ..exact() }).unwrap();
                let mut moved = Session::new(&mut device, &in_format(kv)).unwrap();
                moved.forward_prefill(&mut device, &tokens[..seen]).unwrap();
                moved.shift(&mut device, keep, drop).unwrap();
                assert_eq!(moved.position(), seen - drop);
                let got = moved.forward(&mut device, tokens[seen]).unwrap().to_vec();

                let left = [&tokens[..keep], &tokens[keep + drop..=seen]].concat();
                let mut new = Session::new(&mut device, &in_format(kv)).unwrap();
                let want = new.forward_prefill(&mut device, &left).unwrap();
                let size = want.iter().fold(0.0f32, |m, x| m.max(x.abs()));
                let error = got.iter().zip(want).fold(0.0f32, |m, (a, b)| m.max((a - b).abs()));
                assert!(error <= bound * size, "{kv:?} {seen} {keep} {drop}: {}", error / size);
            }
        }
    }
    let mut device = device(&file, &exact()).unwrap();
    let mut session = Session::new(&mut device, &in_format(KvFormat::F16)).unwrap();
    session.forward_prefill(&mut device, &tokens[..9]).unwrap();
    for (keep, drop) in [(0, 10), (9, 1), (usize::MAX, 2), (10, 0)] {
        assert_eq!(session.shift(&mut device, keep, drop).map_err(|e| e.code()), Err("option"));
    }
    assert_eq!(session.position(), 9);
}

fn read(path: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// Later layers still depend on the dropped tokens. The tokens are from `tests/oracle/qwen3_logits.py`.
#[test]
fn transformers_moves_its_cache_to_the_same_logits() {
    let tokens: Vec<u32> = (0..24).map(|i| (7 * i * i + 3 * i + 1) % 96).collect();
    for name in ["qwen3-tied-yarn", "qwen3-untied"] {
        let file = read(&format!("fixtures/{name}.gguf"));
        let want = read(&format!("fixtures/{name}.shifted"));
        let want: Vec<f32> =
            want.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        let mut device = device(&file, &exact()).unwrap();
        for (kv, bound) in [(KvFormat::F32, 1e-4), (KvFormat::F16, 1e-2), (KvFormat::Q8, 0.2)] {
            let mut session = Session::new(&mut device, &in_format(kv)).unwrap();
            session.forward_prefill(&mut device, &tokens[..20]).unwrap();
            session.shift(&mut device, 4, 7).unwrap();
            let mut error = 0.0f32;
            session
                .forward_logits(&mut device, &tokens[20..], &mut |i, row| {
                    for (got, want) in row.iter().zip(&want[i * 96..]) {
                        error = error.max((got - want).abs());
                    }
                })
                .unwrap();
            println!("{name} {kv:?}: {error}");
            assert!(error < bound, "{name} {kv:?}: {error}");
        }
    }
}

fn sprout() -> Vec<u8> {
    read("../models/sprout.gguf")
}

/// Makes room in a full session.
type MakeRoom<'f> = dyn Fn(&mut Cpu<'f, &'f [u8]>, &mut Session<Cpu<'f, &'f [u8]>>);

/// Mean loss of `tokens` from position `from` on, with a context of `capacity`.
fn streamed<'f>(
    device: &mut Cpu<'f, &'f [u8]>,
    tokens: &[u32],
    from: usize,
    options: &SessionOptions,
    make_room: &MakeRoom<'f>,
) -> f64 {
    let mut session = Session::new(device, options).unwrap();
    let mut sum = 0.0;
    for (i, pair) in tokens.windows(2).enumerate() {
        if session.position() == session.capacity() {
            make_room(device, &mut session);
        }
        let logits = session.forward(device, pair[0]).unwrap();
        assert!(logits.iter().all(|x| x.is_finite()));
        if i >= from {
            sum += log_sum_exp(logits) - f64::from(logits[pair[1] as usize]);
        }
    }
    sum / (tokens.len() - 1 - from) as f64
}

/// The trainer's own text.
fn text() -> Vec<u32> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/sprout.expected.json");
    let expected: serde_json::Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let ids = expected["models"]["sprout.gguf"]["ids"].as_array().unwrap();
    ids.iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn a_window_of_64_reads_480_tokens_nearly_as_well_as_all_of_them_together() {
    let file = sprout();
    let device = &mut device(&file, &CpuOptions::default()).unwrap();
    let (tokens, wide) = (text(), SessionOptions::default());
    let from = 64;
    assert!(tokens.len() > 400);
    let whole = streamed(device, &tokens, from, &wide, &|_, _| unreachable!());
    for kv in KvFormat::ALL {
        let narrow = SessionOptions { context: 64, kv, ..SessionOptions::default() };
        let moved = streamed(device, &tokens, from, &narrow, &|device, s| s.shift(device, 4, 30).unwrap());
        println!("{kv:?}: all {whole:.4}, shifted {moved:.4}");
        assert!(moved < whole + 0.1, "{kv:?}: {moved} for {whole}");
        // What is lost does not depend on how the rest is kept.
        if kv == KvFormat::F32 || is_thorough() {
            let lost = streamed(device, &tokens, from, &narrow, &|_, s| s.truncate(4).unwrap());
            println!("{kv:?}: begun anew {lost:.4}");
            assert!(lost > whole + 0.3, "the window does not matter: {lost} for {whole}");
        }
    }
}

#[test]
fn a_reply_goes_on_beyond_the_context() {
    let file = sprout();
    let gguf = Gguf::parse(&file).unwrap();
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    let mut device = device(&file, &CpuOptions::default()).unwrap();
    let (prompt, options) = (&text()[..100], SessionOptions { context: 64, ..SessionOptions::default() });
    let mut session = Session::new(&mut device, &options).unwrap();
    let generation = GenerationOptions {
        max_tokens: 300,
        ignore_end: true,
        overflow: Overflow::Shift { keep: 4 },
        ..GenerationOptions::default()
    };
    let sampler = Sampler::new(&SamplerConfig::greedy(), device.model().config().vocab_size).unwrap();
    let mut generation = Generation::new(prompt, 0, 64, sampler, generation).unwrap();
    let mut backend = Decoder { device: &mut device, session: &mut session };
    let go_on = &mut |_: Event<'_>| ControlFlow::Continue(());
    assert_eq!(drive(&mut generation, &mut backend, &tokenizer, go_on), Ok(Reason::Length));
    assert_eq!(generation.held().len(), session.position());

    // The same by hand.
    let mut session = Session::new(&mut device, &options).unwrap();
    let mut reply: Vec<u32> = Vec::new();
    for i in 0..prompt.len() + 299 {
        if session.position() == 64 {
            session.shift(&mut device, 4, 30).unwrap();
        }
        let token = prompt.get(i).copied().unwrap_or_else(|| reply[i - prompt.len()]);
        let logits = session.forward(&mut device, token).unwrap();
        if i + 1 >= prompt.len() {
            reply.push((0..logits.len()).fold(0, |m, i| if logits[i] > logits[m] { i } else { m }) as u32);
        }
    }
    assert_eq!(generation.reply(), reply);
}
