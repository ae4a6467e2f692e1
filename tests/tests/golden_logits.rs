//! The forward pass against other engines.
//!
//! `golden_model/`: a random Qwen3 by llama.cpp (its low-bit kernels) and by an f64 numpy forward pass of the
//! same dequantized weights. `qwen3-*`: random Qwen3 models by Hugging Face transformers
//! (`oracle/qwen3_logits.py`).

use std::fs;
use std::path::{Path, PathBuf};

use std::sync::Arc;

use shohin_core::cpu::repack::repacks;
use shohin_core::cpu::{Cpu, CpuWeights, Isa};
use shohin_core::{Activations, BonsaiModel, CpuOptions, KvFormat, Serial, Session, SessionOptions};
use shohin_tests::cpu::{all_logits, device, exact, in_format};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

/// The full set of golden files, in the folder that the environment variable `SHOHIN_DATA` names.
fn all_golden() -> Option<PathBuf> {
    std::env::var_os("SHOHIN_DATA").map(|folder| Path::new(&folder).join("golden_model"))
}

fn floats(path: PathBuf) -> Vec<f32> {
    let bytes = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn golden_tokens() -> Vec<u32> {
    let text = fs::read_to_string(fixtures().join("golden_model/tokens.txt")).unwrap();
    text.split_whitespace().map(|t| t.parse().unwrap()).collect()
}

/// Logits at every position, `(tokens, vocab)`: the same bits whether the rows are row-major or repacked, for
/// these kernels or for others.
fn logits(file: &Path, tokens: &[u32], options: &CpuOptions, kv: KvFormat) -> Vec<f32> {
    let bytes = fs::read(file).unwrap();
    let expected = all_logits(&mut device(&bytes, options).unwrap(), tokens, &in_format(kv)).unwrap();
    let isa = if repacks(options.isa) { options.isa } else { Isa::detect() };
    let weights = CpuWeights::repack(BonsaiModel::load(bytes).unwrap(), isa, &Serial).unwrap();
    let mut repacked = Cpu::with_weights(Arc::new(weights), options, Serial).unwrap();
    assert_eq!(all_logits(&mut repacked, tokens, &in_format(kv)).unwrap(), expected);
    expected
}

fn worst(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, |m, d| if d <= m { m } else { d })
}

fn rms(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let sum: f64 = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    (sum / a.len() as f64).sqrt()
}

#[test]
fn transformers_agrees() {
    let vocab = 96;
    let tokens: Vec<u32> = (0..24).map(|i| (7 * i * i + 3 * i + 1) % vocab).collect();
    for name in ["qwen3-tied-yarn", "qwen3-untied", "qwen3moe", "qwen3moe-plain"] {
        let want = floats(fixtures().join(format!("{name}.logits")));
        for isa in Isa::available() {
            for (batch, logit_rows) in [(1, 1), (5, 2), (24, 24)] {
                let options = CpuOptions { batch, logit_rows, isa, ..exact() };
                let file = fixtures().join(format!("{name}.gguf"));
                let got = logits(&file, &tokens, &options, KvFormat::F32);
                let worst = worst(&got, &want);
                assert!(worst < 1e-4, "{name} {isa:?} batch {batch}: {worst}");
            }
        }
    }
}

#[test]
fn transformers_agrees_on_windows() {
    let tokens: Vec<u32> = (0..24).map(|i| (7 * i * i + 3 * i + 1) % 96).collect();
    for name in ["qwen3-tied-yarn", "qwen3-untied"] {
        let bytes = fs::read(fixtures().join(format!("{name}.gguf"))).unwrap();
        for (kind, pattern) in [("window", "window:5"), ("sinks", "window:5:2")] {
            let want = floats(fixtures().join(format!("{name}.{kind}")));
            for isa in Isa::available() {
                let options = CpuOptions { isa, batch: 7, ..exact() };
                let attention = pattern.parse().unwrap();
                let in_session = SessionOptions { attention, ..in_format(KvFormat::F32) };
                let got = all_logits(&mut device(&bytes, &options).unwrap(), &tokens, &in_session).unwrap();
                let worst = worst(&got, &want);
                assert!(worst < 1e-4, "{name} {pattern} {isa:?}: {worst}");
            }
        }
    }
}

/// (weights file, f64 reference, llama.cpp's own logits of that file)
const GOLDEN: [(&str, &str, &str); 7] = [
    ("synth-micro-q1_0.gguf", "micro-f32_q1.numpy_f64.logits", "micro-q1_0.logits"),
    ("synth-micro-q2_0_g64.gguf", "micro-f32.numpy_f64.logits", "micro-q2_0_g64.logits"),
    ("synth-micro-q2_0_g128_legacy.gguf", "micro-f32.numpy_f64.logits", "micro-q2_0_g64.logits"),
    ("synth-micro-pq2_0.gguf", "micro-f32.numpy_f64.logits", "micro-q2_0_g64.logits"),
    ("synth-micro-ptq1_0.gguf", "micro-f32.numpy_f64.logits", "micro-q2_0_g64.logits"),
    ("synth-micro-tq1_0.gguf", "micro-f32.numpy_f64.logits", "micro-tq2_0.logits"),
    ("synth-micro-tq2_0.gguf", "micro-f32.numpy_f64.logits", "micro-tq2_0.logits"),
];

fn golden_files() -> Vec<(PathBuf, Vec<f32>, Vec<f32>)> {
    let own = fixtures().join("golden_model");
    let dir = all_golden().unwrap_or_else(|| {
        eprintln!("only the committed golden models: SHOHIN_DATA is not set");
        own.clone()
    });
    let files = GOLDEN.into_iter().filter(|(model, ..)| dir.join(model).is_file());
    files
        .map(|(model, f64s, llama)| (dir.join(model), floats(dir.join(f64s)), floats(dir.join(llama))))
        .collect()
}

#[test]
fn golden_logits_with_f32_activations() {
    let files = golden_files();
    assert!(files.len() >= 2);
    for (file, want, _) in files {
        for isa in Isa::available() {
            let got = logits(&file, &golden_tokens(), &CpuOptions { isa, ..exact() }, KvFormat::F32);
            let worst = worst(&got, &want);
            assert!(worst < 1e-3, "{} {isa:?}: {worst}", file.display());
        }
    }
}

#[test]
fn int8_activations_are_no_noisier_than_llama_cpp() {
    for (file, want, llama) in golden_files() {
        let allowed = rms(&llama, &want);
        for isa in Isa::available() {
            let options = CpuOptions { isa, ..CpuOptions::default() };
            let ours = rms(&logits(&file, &golden_tokens(), &options, KvFormat::F32), &want);
            println!("{} {isa:?}: rms {ours:.5}, llama.cpp {allowed:.5}", file.display());
            assert!(ours <= allowed, "{} {isa:?}: rms {ours}, llama.cpp's is {allowed}", file.display());
        }
    }
}

#[test]
fn f16_cache_stays_close() {
    let (file, want, _) = golden_files().swap_remove(0);
    let error = rms(&logits(&file, &golden_tokens(), &exact(), KvFormat::F16), &want);
    assert!(error > 0.0 && error < 2e-3, "{error}");
}

#[test]
fn a_cache_of_bytes_adds_less_noise_than_int8_activations() {
    let (file, want, _) = golden_files().swap_remove(0);
    let noise = |activations, kv| {
        let options = CpuOptions { activations, ..CpuOptions::default() };
        rms(&logits(&file, &golden_tokens(), &options, kv), &want)
    };
    let cache = noise(Activations::F32, KvFormat::Q8);
    let activations = noise(Activations::Int8, KvFormat::F32);
    println!("rms: q8 cache {cache:.5}, int8 activations {activations:.5}");
    assert!(cache > 1e-5 && cache < 0.8 * activations, "{cache} {activations}");
    // Its steps are 18 times as large.
    let halves = noise(Activations::F32, KvFormat::Q4);
    println!("rms: q4 cache {halves:.5}");
    assert!(halves > cache && halves < 20.0 * cache, "{halves} {cache}");
}

#[test]
fn prefill_decode_verify_and_rewind_agree() {
    let file = fixtures().join("golden_model/synth-micro-q1_0.gguf");
    let tokens = golden_tokens();
    let model = BonsaiModel::load(fs::read(&file).unwrap()).unwrap();
    let weights = Arc::new(CpuWeights::new(model).unwrap());
    for activations in [Activations::F32, Activations::Int8] {
        let options = CpuOptions { activations, batch: 16, ..CpuOptions::default() };
        let (kv, in_session) = (KvFormat::default(), SessionOptions::default());
        let all = logits(&file, &tokens, &options, kv);
        let vocab = weights.model().config().vocab_size;

        let plan = weights.memory_plan(&options, &in_session).unwrap();
        let (mut scratch, mut memory) = (vec![0xa5; plan.device], vec![0xa5; plan.session]);
        let mut device = Cpu::new_in(weights.clone(), &options, Serial, &mut scratch).unwrap();
        let mut session = device.session_in(&in_session, &mut memory).unwrap();
        for (i, &token) in tokens.iter().enumerate() {
            let row = session.forward(&mut device, token).unwrap();
            assert!(worst(row, &all[i * vocab..(i + 1) * vocab]) < 1e-4, "decode {i}");
        }
        session.truncate(7).unwrap();
        let last = session.forward_prefill(&mut device, &tokens[7..]).unwrap();
        assert!(worst(last, &all[(tokens.len() - 1) * vocab..]) < 1e-4);

        session.truncate(0).unwrap();
        let mut best = vec![0; tokens.len()];
        session.forward_prefill_verify(&mut device, &tokens, &mut best).unwrap();
        for (row, best) in all.chunks_exact(vocab).zip(best) {
            let max = row.iter().copied().fold(f32::MIN, f32::max);
            assert!(row[best as usize] > max - 1e-3);
        }

        session.truncate(7).unwrap();
        let next = session.forward(&mut device, tokens[7]).unwrap().to_vec();
        drop((session, device));
        let mut device = Cpu::new_in(weights.clone(), &options, Serial, &mut scratch).unwrap();
        let mut heir = device.session_in(&in_session, &mut memory).unwrap();
        heir.set_len(7).unwrap();
        assert_eq!(heir.forward(&mut device, tokens[7]).unwrap(), next);
    }
}

#[test]
fn misuse_is_a_typed_error_and_changes_nothing() {
    let bytes = fs::read(fixtures().join("golden_model/synth-micro-q1_0.gguf")).unwrap();
    let device = &mut device(&bytes, &CpuOptions::default()).unwrap();
    let options = SessionOptions { context: 8, ..SessionOptions::default() };
    let mut session = Session::new(device, &options).unwrap();
    session.forward_prefill(device, &[1, 2, 3]).unwrap();
    let code = |r: Result<&[f32], shohin_core::Error>| r.unwrap_err().code();
    assert_eq!(code(session.forward(device, 1024)), "token");
    assert_eq!(code(session.forward_prefill(device, &[])), "length");
    assert_eq!(code(session.forward_prefill(device, &[0; 6])), "context_full");
    assert_eq!(session.truncate(4).unwrap_err().code(), "option");
    assert_eq!(session.forward_prefill_verify(device, &[1], &mut []).unwrap_err().code(), "length");
    assert_eq!(session.set_len(9).unwrap_err().code(), "context_full");
    assert_eq!(session.position(), 3);
    session.forward_prefill(device, &[0; 5]).unwrap();
    assert_eq!(code(session.forward(device, 0)), "context_full");
    let none = SessionOptions { context: 0, ..options };
    assert_eq!(Session::new(device, &none).unwrap_err().code(), "option");
    assert_eq!(device.session_in(&none, vec![0; 1 << 20]).unwrap_err().code(), "option");
    assert_eq!(device.session_in(&options, vec![0; 100]).unwrap_err().code(), "memory");
    let scratch = Cpu::new_in(device.weights().clone(), device.options(), Serial, vec![0; 100]);
    assert_eq!(scratch.unwrap_err().code(), "memory");
}
