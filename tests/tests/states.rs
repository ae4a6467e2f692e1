//! States of a session beside its logits: final hidden states, and keys and values taken out and put back.
#![cfg(not(all(target_arch = "wasm32", target_os = "unknown")))]

use std::fs;
use std::path::Path;

use shohin_core::model::{Activations, BonsaiModel, Embedding, Pooling, Session, SessionOptions};
use shohin_core::{Gguf, KvFormat, Serial};

fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)).unwrap()
}

fn floats(name: &str) -> Vec<f32> {
    fixture(name).as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

fn exact() -> SessionOptions {
    SessionOptions { activations: Activations::F32, kv: KvFormat::F32, ..SessionOptions::default() }
}

/// The prompt behind the states by Hugging Face transformers.
fn tokens() -> Vec<u32> {
    (0..24).map(|i| (7 * i * i + 3 * i + 1) % 96).collect()
}

#[test]
fn transformers_has_the_same_hidden_states() {
    for name in ["qwen3-tied-yarn", "qwen3-untied"] {
        let bytes = fixture(&format!("{name}.gguf"));
        let model = BonsaiModel::from_gguf(&Gguf::parse(&bytes).unwrap()).unwrap();
        let h = model.config().hidden_size;
        let mut session = Session::new(&model, &SessionOptions { batch: 7, ..exact() }).unwrap();
        let mut rows: Vec<Vec<f32>> = Vec::new();
        session.forward_hidden(&tokens(), &Serial, &mut |_, row| rows.push(row.to_vec())).unwrap();
        assert_eq!(rows.len(), tokens().len());

        let want = floats(&format!("{name}.hidden"));
        assert_eq!(want.len(), rows.len() * h);
        for (got, want) in rows.iter().flatten().zip(want) {
            assert!((got - want).abs() < 1e-4, "{name}: {got} for {want}");
        }

        // Pooled, in steps of any size.
        let mean: Vec<f64> = (0..h)
            .map(|i| rows.iter().map(|row| f64::from(row[i])).sum::<f64>() / rows.len() as f64)
            .collect();
        let length = mean.iter().map(|x| x * x).sum::<f64>().sqrt();
        for (pooling, normalize) in [(Pooling::Mean, false), (Pooling::Mean, true), (Pooling::Last, false)] {
            session.truncate(0).unwrap();
            let mut embedding = Embedding::new(h, pooling);
            for part in tokens().chunks(5) {
                embedding.feed(&mut session, part, &Serial).unwrap();
            }
            for (i, got) in embedding.finish(normalize).into_iter().enumerate() {
                let want = match (pooling, normalize) {
                    (Pooling::Mean, true) => mean[i] / length,
                    (Pooling::Mean, false) => mean[i],
                    (Pooling::Last, _) => f64::from(rows[rows.len() - 1][i]),
                };
                assert!((f64::from(got) - want).abs() < 1e-5, "{name} {pooling:?}: {got} for {want}");
            }
        }
    }
}

#[test]
fn an_exported_cache_goes_on_in_another_session() {
    let bytes = fixture("qwen3-untied.gguf");
    let model = BonsaiModel::from_gguf(&Gguf::parse(&bytes).unwrap()).unwrap();
    let tokens = tokens();
    for kv in KvFormat::ALL {
        let options = SessionOptions { kv, context: 24, ..exact() };
        for held in [0, 1, 15, 16, 17, 23] {
            let mut first = Session::new(&model, &options).unwrap();
            if held > 0 {
                first.forward_prefill(&tokens[..held], &Serial).unwrap();
            }
            let mut out = vec![0; first.export_len()];
            first.export(&mut out).unwrap();
            // Nothing of what was forgotten goes with it.
            let mut again = vec![1; out.len()];
            for others in [5, 6] {
                first.forward_prefill(&[others], &Serial).unwrap();
                first.truncate(held).unwrap();
                first.export(&mut again).unwrap();
                assert!(again == out, "{kv:?} {held}");
            }
            assert_eq!(first.export(&mut vec![0; out.len() + 1]).map_err(|e| e.code()), Err("length"));
            let want = first.forward_prefill(&tokens[held..], &Serial).unwrap().to_vec();

            let mut other = Session::new(&model, &SessionOptions { context: 40, ..options }).unwrap();
            other.forward_prefill(&[1, 2, 3], &Serial).unwrap();
            other.import(held, &out).unwrap();
            assert_eq!(other.position(), held);
            assert_eq!(other.forward_prefill(&tokens[held..], &Serial).unwrap(), want, "{kv:?} {held}");

            out.push(0);
            assert_eq!(other.import(held, &out).map_err(|e| e.code()), Err("length"));
            assert_eq!(other.import(41, &out).map_err(|e| e.code()), Err("context_full"));
            assert_eq!(other.position(), 0);
        }
    }
}
