//! The forward pass against engines that are not ours.
//!
//! `golden_model/`: a random Qwen3 by llama.cpp (its low-bit kernels) and by an f64 numpy forward of the same
//! dequantized weights. `qwen3-*`: random Qwen3 models by Hugging Face transformers
//! (`oracle/qwen3_logits.py`).
#![cfg(not(all(target_arch = "wasm32", target_os = "unknown")))]

use std::fs;
use std::path::{Path, PathBuf};

use shohin_core::gguf::{Gguf, ReadOptions, interleave};
use shohin_core::kernel::Isa;
use shohin_core::quant::Layout;
use shohin_core::{Activations, BonsaiModel, KvFormat, Serial, Session, SessionOptions};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

/// The full set of golden files, where the checkout has it beside it.
fn shared() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/golden_model");
    path.is_dir().then_some(path)
}

fn floats(path: PathBuf) -> Vec<f32> {
    let bytes = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn golden_tokens() -> Vec<u32> {
    let text = fs::read_to_string(fixtures().join("golden_model/tokens.txt")).unwrap();
    text.split_whitespace().map(|t| t.parse().unwrap()).collect()
}

/// Logits at every position, `(tokens, vocab)`: the same bits whether the rows lie as in the file or
/// interleaved.
fn logits(file: &Path, tokens: &[u32], options: &SessionOptions) -> Vec<f32> {
    let mut bytes = fs::read(file).unwrap();
    let expected = logits_of(&bytes, tokens, options);
    let layout = |format| if options.isa.interleaves() { options.isa.layout(format) } else { Layout::Words };
    interleave(&mut bytes, &ReadOptions::default(), layout, &Serial).unwrap();
    assert_eq!(logits_of(&bytes, tokens, options), expected);
    expected
}

fn logits_of(bytes: &[u8], tokens: &[u32], options: &SessionOptions) -> Vec<f32> {
    let model = BonsaiModel::from_gguf(&Gguf::parse(bytes).unwrap()).unwrap();
    let mut session = Session::new(&model, options).unwrap();
    let mut all = Vec::new();
    session
        .forward_logits(tokens, &Serial, &mut |i, row| {
            assert_eq!(all.len(), i * row.len());
            all.extend_from_slice(row);
        })
        .unwrap();
    all
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

fn exact() -> SessionOptions {
    SessionOptions { activations: Activations::F32, kv: KvFormat::F32, ..SessionOptions::default() }
}

#[test]
fn transformers_agrees() {
    let vocab = 96;
    let tokens: Vec<u32> = (0..24).map(|i| (7 * i * i + 3 * i + 1) % vocab).collect();
    for name in ["qwen3-tied-yarn", "qwen3-untied"] {
        let want = floats(fixtures().join(format!("{name}.logits")));
        for isa in Isa::available() {
            for (batch, logit_rows) in [(1, 1), (5, 2), (24, 24)] {
                let options = SessionOptions { batch, logit_rows, isa, ..exact() };
                let got = logits(&fixtures().join(format!("{name}.gguf")), &tokens, &options);
                let worst = worst(&got, &want);
                assert!(worst < 1e-4, "{name} {isa:?} batch {batch}: {worst}");
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
    let dir = shared().unwrap_or_else(|| {
        eprintln!("only the committed golden models: the full set is not beside this checkout");
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
            let got = logits(&file, &golden_tokens(), &SessionOptions { isa, ..exact() });
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
            let options = SessionOptions { isa, kv: KvFormat::F32, ..SessionOptions::default() };
            let ours = rms(&logits(&file, &golden_tokens(), &options), &want);
            println!("{} {isa:?}: rms {ours:.5}, llama.cpp {allowed:.5}", file.display());
            assert!(ours <= allowed, "{} {isa:?}: rms {ours}, llama.cpp's is {allowed}", file.display());
        }
    }
}

#[test]
fn f16_cache_stays_close() {
    let (file, want, _) = golden_files().swap_remove(0);
    let options = SessionOptions { kv: KvFormat::F16, ..exact() };
    let error = rms(&logits(&file, &golden_tokens(), &options), &want);
    assert!(error > 0.0 && error < 2e-3, "{error}");
}

#[test]
fn a_cache_of_bytes_adds_less_noise_than_int8_activations() {
    let (file, want, _) = golden_files().swap_remove(0);
    let noise = |options: SessionOptions| rms(&logits(&file, &golden_tokens(), &options), &want);
    let cache = noise(SessionOptions { kv: KvFormat::Q8, ..exact() });
    let activations = noise(SessionOptions { activations: Activations::Int8, ..exact() });
    println!("rms: q8 cache {cache:.5}, int8 activations {activations:.5}");
    assert!(cache > 1e-5 && cache < 0.8 * activations, "{cache} {activations}");
}

#[test]
fn prefill_decode_verify_and_rewind_agree() {
    let file = fixtures().join("golden_model/synth-micro-q1_0.gguf");
    let tokens = golden_tokens();
    let bytes = fs::read(&file).unwrap();
    let model = BonsaiModel::from_gguf(&Gguf::parse(&bytes).unwrap()).unwrap();
    for activations in [Activations::F32, Activations::Int8] {
        let options = SessionOptions { activations, batch: 16, ..SessionOptions::default() };
        let all = logits(&file, &tokens, &options);
        let vocab = model.config().vocab_size;

        let mut memory = vec![0xa5; model.memory_plan(&options).unwrap().total];
        let mut session = Session::new_in(&model, &options, &mut memory).unwrap();
        for (i, &token) in tokens.iter().enumerate() {
            let row = session.forward(token, &Serial).unwrap();
            assert!(worst(row, &all[i * vocab..(i + 1) * vocab]) < 1e-4, "decode {i}");
        }
        session.truncate(7).unwrap();
        let last = session.forward_prefill(&tokens[7..], &Serial).unwrap();
        assert!(worst(last, &all[(tokens.len() - 1) * vocab..]) < 1e-4);

        session.truncate(0).unwrap();
        let mut best = vec![0; tokens.len()];
        session.forward_prefill_verify(&tokens, &Serial, &mut best).unwrap();
        for (row, best) in all.chunks_exact(vocab).zip(best) {
            let max = row.iter().copied().fold(f32::MIN, f32::max);
            assert!(row[best as usize] > max - 1e-3);
        }

        session.truncate(7).unwrap();
        let next = session.forward(tokens[7], &Serial).unwrap().to_vec();
        drop(session);
        let mut heir = Session::new_in(&model, &options, &mut memory).unwrap();
        heir.assume(7).unwrap();
        assert_eq!(heir.forward(tokens[7], &Serial).unwrap(), next);
    }
}

#[test]
fn misuse_is_a_typed_error_and_changes_nothing() {
    let bytes = fs::read(fixtures().join("golden_model/synth-micro-q1_0.gguf")).unwrap();
    let model = BonsaiModel::from_gguf(&Gguf::parse(&bytes).unwrap()).unwrap();
    let options = SessionOptions { context: 8, ..SessionOptions::default() };
    let mut session = Session::new(&model, &options).unwrap();
    session.forward_prefill(&[1, 2, 3], &Serial).unwrap();
    let code = |r: Result<&[f32], shohin_core::Error>| r.unwrap_err().code();
    assert_eq!(code(session.forward(1024, &Serial)), "token");
    assert_eq!(code(session.forward_prefill(&[], &Serial)), "length");
    assert_eq!(code(session.forward_prefill(&[0; 6], &Serial)), "context_full");
    assert_eq!(session.truncate(4).unwrap_err().code(), "option");
    assert_eq!(session.forward_prefill_verify(&[1], &Serial, &mut []).unwrap_err().code(), "length");
    assert_eq!(session.assume(9).unwrap_err().code(), "context_full");
    assert_eq!(session.position(), 3);
    session.forward_prefill(&[0; 5], &Serial).unwrap();
    assert_eq!(code(session.forward(0, &Serial)), "context_full");
    let none = SessionOptions { context: 0, ..options };
    assert_eq!(Session::new(&model, &none).unwrap_err().code(), "option");
    assert_eq!(Session::new_in(&model, &options, &mut [0; 100]).unwrap_err().code(), "memory");
}
