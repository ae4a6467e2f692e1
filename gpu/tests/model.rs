//! The whole model on the GPU against core on the CPU.
//!
//! `SHOHIN_GPU` chooses the adapter by a part of its name; without it the first one serves, in software too.

use shohin_core::model::{Activations, BonsaiModel, Session, SessionOptions};
use shohin_core::{Format, Gguf, KvFormat, Serial};
use shohin_gpu::{Gpu, GpuModel, GpuOptions, GpuSession, GpuSessionOptions, Kv, Want};
use shohin_tests::model::{Model, Shape, Stored};
use std::sync::Arc;

/// A GPU with everything it has, or with nothing beyond the least.
fn open(extensions: bool) -> Arc<Gpu> {
    let options = GpuOptions {
        name: std::env::var("SHOHIN_GPU").ok(),
        software: true,
        subgroups: extensions,
        f16: extensions,
        packed_dot: extensions,
    };
    let gpu = pollster::block_on(Gpu::open(&options)).expect("a GPU, if only in software");
    println!("{}: {:?}", gpu.name(), gpu.extensions());
    Arc::new(gpu)
}

fn logits_on_cpu(file: &[u8], tokens: &[u32], activations: Activations, kv: KvFormat) -> Vec<f32> {
    let model = BonsaiModel::from_gguf(&Gguf::parse(file).unwrap()).unwrap();
    let options = SessionOptions { activations, kv, ..SessionOptions::default() };
    let mut session = Session::new(&model, &options).unwrap();
    let mut all = Vec::new();
    session.forward_logits(tokens, &Serial, &mut |_, row| all.extend_from_slice(row)).unwrap();
    all
}

fn session(gpu: &Arc<Gpu>, file: &[u8], options: &GpuSessionOptions) -> GpuSession {
    pollster::block_on(async {
        let model = GpuModel::from_gguf(Arc::clone(gpu), &Gguf::parse(file).unwrap()).await.unwrap();
        GpuSession::new(&model, options).await.unwrap_or_else(|e| panic!("{e}: {:?}", gpu.report()))
    })
}

/// Logits at every position: all tokens at once, or one by one.
fn logits_on_gpu(session: &mut GpuSession, tokens: &[u32], at_once: bool) -> Vec<f32> {
    let mut all = Vec::new();
    pollster::block_on(async {
        if at_once {
            session.forward_logits(tokens, &mut |_, row| all.extend_from_slice(row)).await.unwrap();
        } else {
            for &token in tokens {
                session.forward(&[token], Want::Logits).await.unwrap();
                all.extend_from_slice(session.logits());
            }
        }
    });
    all
}

fn rms(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let sum: f64 = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    (sum / a.len() as f64).sqrt()
}

/// Relative to the logits' own spread.
fn error(got: &[f32], want: &[f32]) -> f64 {
    let mean = want.iter().map(|&x| f64::from(x)).sum::<f64>() / want.len() as f64;
    let spread = want.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / want.len() as f64;
    rms(got, want) / spread.sqrt()
}

fn tokens(count: usize, vocab: usize) -> Vec<u32> {
    (0..count).map(|i| ((i * i * 31 + i * 7 + 3) % vocab) as u32).collect()
}

/// Every format, at once and one by one, with 32-bit activations: only the order of additions differs.
#[test]
fn exact_activations_agree() {
    for extensions in [true, false] {
        let gpu = open(extensions);
        for format in [
            Format::Q1_0,
            Format::Q2_0,
            Format::Pq2_0,
            Format::Tq2_0G128,
            Format::Ptq1_0,
            Format::Tq1_0,
            Format::Tq2_0,
        ] {
            let file = Model::tiny(format);
            let tokens = tokens(35, 320);
            let want = logits_on_cpu(&file, &tokens, Activations::F32, KvFormat::F32);
            let options = GpuSessionOptions {
                activations: Activations::F32,
                kv: Kv::F32,
                batch: 64,
                ..GpuSessionOptions::default()
            };
            let mut session = session(&gpu, &file, &options);
            for at_once in [true, false] {
                session.truncate(0).unwrap();
                let got = logits_on_gpu(&mut session, &tokens, at_once);
                let error = error(&got, &want);
                println!("{format:?}, at once {at_once}: {error:.2e}");
                assert!(error < 1e-5, "{format:?}, at once {at_once}: {error}");
            }
        }
    }
}

#[test]
fn formats_may_mix() {
    let gpu = open(true);
    let formats = [Format::Q1_0, Format::Tq2_0, Format::Q2_0, Format::Ptq1_0, Format::Tq1_0];
    let model = Model {
        formats: formats.map(Stored::new).to_vec(),
        ..Model::new(Shape { tied: false, ..Shape::tiny() }, Stored::new(Format::Q1_0), 5)
    };
    let file = model.to_vec().unwrap();
    let tokens = tokens(9, 320);
    let want = logits_on_cpu(&file, &tokens, Activations::F32, KvFormat::F32);
    let options =
        GpuSessionOptions { activations: Activations::F32, kv: Kv::F32, ..GpuSessionOptions::default() };
    let got = logits_on_gpu(&mut session(&gpu, &file, &options), &tokens, true);
    let error = error(&got, &want);
    assert!(error < 1e-5, "{error}");
}
