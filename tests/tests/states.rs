//! States of a session besides its logits: final hidden states, and exported and imported keys and values.

use std::fs;
use std::path::Path;

use shohin_core::cpu::{Cpu, CpuOptions};
use shohin_core::device::BlockingDevice;
use shohin_core::model::{Embedding, Pooling};
use shohin_core::{KvFormat, Session, SessionOptions};
use shohin_tests::cpu::{device, exact, in_format};

fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)).unwrap()
}

fn floats(name: &str) -> Vec<f32> {
    fixture(name).as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

/// The prompt of the states computed by Hugging Face transformers.
fn tokens() -> Vec<u32> {
    (0..24).map(|i| (7 * i * i + 3 * i + 1) % 96).collect()
}

#[test]
fn transformers_has_the_same_hidden_states() {
    for name in ["qwen3-tied-yarn", "qwen3-untied"] {
        let bytes = fixture(&format!("{name}.gguf"));
        let mut device = device(&bytes, &CpuOptions { batch: 7, ..exact() }).unwrap();
        let h = device.model().config().hidden_size;
        let mut session = Session::new(&mut device, &in_format(KvFormat::F32)).unwrap();
        let mut rows: Vec<Vec<f32>> = Vec::new();
        session
            .forward_hidden(&mut device, &tokens(), &mut |i, row| {
                assert_eq!(i, rows.len());
                rows.push(row.to_vec());
            })
            .unwrap();
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
                session.forward_hidden(&mut device, part, &mut |_, row| embedding.push(row)).unwrap();
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
    let mut device = device(&bytes, &exact()).unwrap();
    let tokens = tokens();
    for kv in KvFormat::ALL {
        let options = SessionOptions { kv, context: 24, ..SessionOptions::default() };
        for held in [0, 1, 15, 16, 17, 23] {
            let mut first = Session::new(&mut device, &options).unwrap();
            if held > 0 {
                first.forward_prefill(&mut device, &tokens[..held]).unwrap();
            }
            // Appended to the existing content.
            let mut out = vec![7];
            Cpu::<&[u8]>::wait(first.export(&mut device, &mut out)).unwrap();
            assert_eq!((out.remove(0), out.len()), (7, first.export_len(&device)));
            // Nothing of the forgotten tokens is exported.
            for others in [5, 6] {
                first.forward_prefill(&mut device, &[others]).unwrap();
                first.truncate(held).unwrap();
                let mut again = Vec::new();
                Cpu::<&[u8]>::wait(first.export(&mut device, &mut again)).unwrap();
                assert!(again == out, "{kv:?} {held}");
            }
            let want = first.forward_prefill(&mut device, &tokens[held..]).unwrap().to_vec();

            let mut other =
                Session::new(&mut device, &SessionOptions { context: 40, kv, ..SessionOptions::default() })
                    .unwrap();
            other.forward_prefill(&mut device, &[1, 2, 3]).unwrap();
            other.import(&mut device, held, &out).unwrap();
            assert_eq!(other.position(), held);
            assert_eq!(other.forward_prefill(&mut device, &tokens[held..]).unwrap(), want, "{kv:?} {held}");

            out.push(0);
            assert_eq!(other.import(&mut device, held, &out).map_err(|e| e.code()), Err("length"));
            assert_eq!(other.import(&mut device, 41, &out).map_err(|e| e.code()), Err("context_full"));
            assert_eq!(other.position(), 0);
        }
    }
}
