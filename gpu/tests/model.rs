//! The whole model on the GPU against core on the CPU.
//!
//! `SHOHIN_GPU` chooses the adapter by a part of its name; without it the first one serves, in software too.

use shohin_core::cpu::op::argmax;
use shohin_core::generate::Backend;
use shohin_core::model::BonsaiModel;
use shohin_core::{
    Activations, Cpu, CpuOptions, Error as CoreError, Format, Gguf, KvFormat, Serial, Session, SessionOptions,
};
use shohin_gpu::{Error, Gpu, GpuBackend, GpuModel, GpuOptions, GpuSession, GpuSessionOptions, Kv, Want};
use shohin_tests::model::{Model, Shape, Stored};
use std::sync::Arc;

/// A GPU with everything it has, or with nothing beyond the least.
fn open(extensions: bool) -> Arc<Gpu> {
    open_with(GpuOptions {
        subgroups: extensions,
        f16: extensions,
        packed_dot: extensions,
        ..GpuOptions::default()
    })
}

fn open_with(options: GpuOptions) -> Arc<Gpu> {
    let options = GpuOptions { name: std::env::var("SHOHIN_GPU").ok(), software: true, ..options };
    let gpu = pollster::block_on(Gpu::open(&options)).expect("a GPU, if only in software");
    println!("{}: {:?}", gpu.name(), gpu.extensions());
    Arc::new(gpu)
}

fn logits_on_cpu(file: &[u8], tokens: &[u32], activations: Activations, kv: KvFormat) -> Vec<f32> {
    let model = BonsaiModel::from_gguf(&Gguf::parse(file).unwrap()).unwrap();
    let mut cpu = Cpu::new(model, &CpuOptions { activations, ..Default::default() }, Serial).unwrap();
    let mut session = Session::new(&mut cpu, &SessionOptions { kv, ..Default::default() }).unwrap();
    let mut all = Vec::new();
    session.forward_logits(&mut cpu, tokens, &mut |_, row| all.extend_from_slice(row)).unwrap();
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
    let all = [
        Format::Q1_0,
        Format::Q2_0,
        Format::Pq2_0,
        Format::Tq2_0G128,
        Format::Ptq1_0,
        Format::Tq1_0,
        Format::Tq2_0,
    ];
    // The format makes no difference to what the extensions change.
    for (extensions, formats) in [(true, &all[..]), (false, &all[..2])] {
        let gpu = open(extensions);
        for &format in formats {
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

/// Every format in one file, the head of its own, embedding and head split over three bindings each.
#[test]
fn formats_may_mix_and_large_matrices_are_split() {
    let gpu = open_with(GpuOptions { split_rows: 128, ..GpuOptions::default() });
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

/// The file that `cargo run -p shohin` has built in.
fn sprout() -> Vec<u8> {
    std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../models/sprout.gguf")).unwrap()
}

fn golden(name: &str) -> Vec<u8> {
    let path = format!("{}/../tests/fixtures/golden_model/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// Against an f64 forward in numpy: 32-bit activations to 1e-3 at every logit, integers with no more noise than
/// llama.cpp's own.
#[test]
fn golden_logits() {
    let text = String::from_utf8(golden("tokens.txt")).unwrap();
    let tokens: Vec<u32> = text.split_whitespace().map(|t| t.parse().unwrap()).collect();
    for extensions in [true, false] {
        let gpu = open(extensions);
        for (file, exact, llama) in [
            ("synth-micro-q1_0.gguf", "micro-f32_q1.numpy_f64.logits", "micro-q1_0.logits"),
            ("synth-micro-q2_0_g64.gguf", "micro-f32.numpy_f64.logits", "micro-q2_0_g64.logits"),
        ] {
            let (file, exact, llama) = (golden(file), floats(&golden(exact)), floats(&golden(llama)));
            let allowed = rms(&llama, &exact);
            for at_once in [true, false] {
                let got = |activations| {
                    let options = GpuSessionOptions { activations, kv: Kv::F32, ..Default::default() };
                    logits_on_gpu(&mut session(&gpu, &file, &options), &tokens, at_once)
                };
                let worst =
                    got(Activations::F32).iter().zip(&exact).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(worst < 1e-3, "{worst}");
                let noise = rms(&got(Activations::Int8), &exact);
                println!("at once {at_once}: worst {worst:.1e}; int8 rms {noise:.5}, llama.cpp {allowed:.5}");
                assert!(noise <= allowed, "rms {noise}, llama.cpp's is {allowed}");
            }
        }
    }
}

/// More positions than a part of flash decoding holds, in every precision of the cache, with three query heads a
/// key-value head, and the same with one, and with more than a tile of rows.
#[test]
fn caches_agree() {
    let shapes = [(6, 2), (2, 2), (12, 1)];
    for (extensions, shapes) in [(true, &shapes[..]), (false, &shapes[..1])] {
        let gpu = open(extensions);
        for &(heads, kv_heads) in shapes {
            let shape = Shape { heads, kv_heads, context: 512, ..Shape::tiny() };
            let file = Model::new(shape, Stored::new(Format::Q1_0), 3).to_vec().unwrap();
            let tokens = tokens(150, 320);
            let want = logits_on_cpu(&file, &tokens, Activations::F32, KvFormat::F32);
            let last = &want[want.len() - 320..];
            for (kv, bound) in [(Kv::F32, 1e-5), (Kv::F16, 1e-3), (Kv::Q8, 2e-2)] {
                let options =
                    GpuSessionOptions { activations: Activations::F32, kv, batch: 64, ..Default::default() };
                let mut session = session(&gpu, &file, &options);
                pollster::block_on(session.forward(&tokens, Want::Logits)).unwrap();
                let prefilled = error(session.logits(), last);
                // The last token again, by itself: position 149 is in the second part.
                session.truncate(149).unwrap();
                pollster::block_on(session.forward(&tokens[149..], Want::Logits)).unwrap();
                let decoded = error(session.logits(), last);
                println!("{heads} heads on {kv_heads}, {kv:?}: {prefilled:.1e} {decoded:.1e}");
                assert!(prefilled < bound && decoded < bound, "{kv:?}: {prefilled} {decoded}");
                assert!(kv == Kv::F32 || prefilled > 1e-6, "{kv:?} must round");
            }
        }
    }
}

/// What a session holds goes on in another one of another capacity, to the bit.
#[test]
fn exported_caches_go_on_elsewhere() {
    let gpu = open(true);
    let file = Model::new(Shape { context: 512, ..Shape::tiny() }, Stored::new(Format::Q1_0), 3);
    let file = file.to_vec().unwrap();
    let tokens = tokens(150, 320);
    for kv in [Kv::F32, Kv::F16, Kv::Q8] {
        let open = |context| session(&gpu, &file, &GpuSessionOptions { kv, context, ..Default::default() });
        let (mut first, mut other) = (open(160), open(300));
        pollster::block_on(first.forward(&tokens[..149], Want::Nothing)).unwrap();
        let mut kept = Vec::new();
        pollster::block_on(first.export(&mut kept)).unwrap();
        assert_eq!(kept.len(), first.export_len());
        // Nothing of what was forgotten goes with it.
        for others in [5, 6] {
            pollster::block_on(first.forward(&[others, 7], Want::Nothing)).unwrap();
            first.truncate(149).unwrap();
            let mut again = Vec::new();
            pollster::block_on(first.export(&mut again)).unwrap();
            assert!(again == kept, "{kv:?} {others}");
        }
        pollster::block_on(first.forward(&tokens[149..], Want::Logits)).unwrap();

        pollster::block_on(other.forward(&[1, 2, 3], Want::Nothing)).unwrap();
        other.import(149, &kept).unwrap();
        assert_eq!(other.position(), 149);
        pollster::block_on(other.forward(&tokens[149..], Want::Logits)).unwrap();
        assert_eq!(other.logits(), first.logits(), "{kv:?}");

        kept.push(0);
        assert!(matches!(other.import(149, &kept), Err(Error::Core(CoreError::Length { .. }))));
        assert!(matches!(other.import(301, &kept), Err(Error::Core(CoreError::ContextFull { .. }))));
        assert_eq!(other.position(), 0);
    }
}

/// The final hidden states are those of the engine on the CPU, in batches of any size.
#[test]
fn hidden_states_agree() {
    let gpu = open(true);
    let file = Model::tiny(Format::Pq2_0);
    let tokens = tokens(23, 320);
    let model = BonsaiModel::from_gguf(&Gguf::parse(&file).unwrap()).unwrap();
    let exact = CpuOptions { activations: Activations::F32, ..Default::default() };
    let (mut want, mut got) = (Vec::new(), Vec::new());
    let mut device = Cpu::new(model, &exact, Serial).unwrap();
    let options = SessionOptions { kv: KvFormat::F32, ..Default::default() };
    let mut cpu = Session::new(&mut device, &options).unwrap();
    cpu.forward_hidden(&mut device, &tokens, &mut |_, row| want.extend_from_slice(row)).unwrap();
    let options =
        GpuSessionOptions { activations: Activations::F32, kv: Kv::F32, batch: 8, ..Default::default() };
    let mut session = session(&gpu, &file, &options);
    let mut sink = |i: usize, row: &[f32]| {
        assert_eq!(got.len(), i * row.len());
        got.extend_from_slice(row);
    };
    pollster::block_on(session.forward_hidden(&tokens, &mut sink)).unwrap();
    assert_eq!(session.position(), tokens.len());
    assert_eq!(got.len(), want.len());
    let error = error(&got, &want);
    assert!(error < 1e-5, "{error}");
}

/// What is chosen on the GPU is what would be chosen from all logits, also among equals and at the ends of the
/// vocabulary.
#[test]
fn choices_are_those_of_the_logits() {
    let gpu = open(true);
    // 2500 logits: three workgroups sort, and a second round joins.
    let shape = Shape { vocab: 2500, ..Shape::tiny() };
    let file = Model::new(shape, Stored::new(Format::Pq2_0), 9).to_vec().unwrap();
    let mut session = session(&gpu, &file, &GpuSessionOptions { top: 100, ..Default::default() });
    for token in [0, 5, 2499] {
        let mut step = |want| {
            session.truncate(0).unwrap();
            pollster::block_on(session.forward(&[token], want)).unwrap();
            (session.logits().to_vec(), session.top().to_vec())
        };
        let (logits, _) = step(Want::Logits);
        let mut order: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
        order.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        assert_eq!(step(Want::Best).1, order[..1]);
        assert_eq!(order[0].0, argmax(&logits).unwrap());
        for k in [1, 20, 100] {
            assert_eq!(step(Want::Top(k)).1, order[..k]);
        }
    }
    let Err(Error::Core(CoreError::Option { .. })) =
        pollster::block_on(session.forward(&[0], Want::Top(101)))
    else {
        panic!("more than the session can keep")
    };
}

/// The built-in model says the same on both, token by token, each chosen where it was computed.
#[test]
fn sprout_says_the_same() {
    let gpu = open(true);
    let file = sprout();
    let model = BonsaiModel::from_gguf(&Gguf::parse(&file).unwrap()).unwrap();
    let exact = CpuOptions { activations: Activations::F32, ..Default::default() };
    let mut device = Cpu::new(model, &exact, Serial).unwrap();
    let options = SessionOptions { kv: KvFormat::F32, ..Default::default() };
    let mut cpu = Session::new(&mut device, &options).unwrap();
    let options = GpuSessionOptions { activations: Activations::F32, kv: Kv::F32, ..Default::default() };
    let mut gpu = GpuBackend::new(session(&gpu, &file, &options));
    gpu.want(Want::Best);
    let mut fed = vec![401, 17, 33, 9, 120];
    for _ in 0..40 {
        let want = argmax(cpu.forward_prefill(&mut device, &fed).unwrap()).unwrap();
        let got = argmax(gpu.feed(&fed).unwrap()).unwrap();
        assert_eq!(got, want);
        fed = vec![got];
    }
}

/// The budget of a token: one submission, ten dispatches a layer, every weight once, eight bytes back.
#[test]
fn a_token_stays_within_its_budget() {
    let gpu = open(true);
    let shape = Shape { context: 512, layers: 3, ..Shape::tiny() };
    let file = Model::new(shape, Stored::new(Format::Q1_0), 3).to_vec().unwrap();
    for activations in [Activations::Int8, Activations::F32] {
        let options = GpuSessionOptions { activations, ..Default::default() };
        let mut session = session(&gpu, &file, &options);
        let norms = 4 * (3 * (2 * 256 + 2 * 128) + 256);
        let matrices = session.model().bytes() - norms;
        for position in [0, 200] {
            if position > 0 {
                pollster::block_on(
                    session.forward(&tokens(position - session.position(), 320), Want::Nothing),
                )
                .unwrap();
            }
            let before = session.counters();
            pollster::block_on(session.forward(&[1], Want::Best)).unwrap();
            let after = session.counters();
            assert_eq!(after.submissions - before.submissions, 1);
            assert_eq!(after.weight_bytes - before.weight_bytes, matrices);
            assert_eq!(after.read_bytes - before.read_bytes, 8);
            // Beside the layers: the embedding, the last norm, the head, and the two steps of argmax.
            let dispatches = after.dispatches - before.dispatches;
            let layer = match (activations, position) {
                (Activations::Int8, 0) => 9,
                (Activations::Int8, _) => 10,
                (_, 0) => 8,
                _ => 9,
            };
            assert_eq!(dispatches, 5 + 3 * layer);
        }
        // A prompt: one submission a batch.
        session.truncate(0).unwrap();
        let before = session.counters();
        pollster::block_on(session.forward(&tokens(300, 320), Want::Best)).unwrap();
        let after = session.counters();
        assert_eq!(after.submissions - before.submissions, 3);
        assert_eq!(after.weight_bytes - before.weight_bytes, 3 * matrices - 2 * head_bytes());
    }
}

/// The head of the tiny model, which runs for the last batch only: 320 rows of 256 bits and two scales.
fn head_bytes() -> u64 {
    320 * (256 / 8 + 4)
}

/// A device that is taken away is named, for good, and does not bring the program down.
#[test]
fn a_lost_device_is_an_error() {
    let gpu = open(true);
    let file = Model::tiny(Format::Q1_0);
    let mut session = session(&gpu, &file, &GpuSessionOptions::default());
    pollster::block_on(session.forward(&[1, 2, 3], Want::Best)).unwrap();
    gpu.destroy();
    for _ in 0..2 {
        assert_eq!(pollster::block_on(session.forward(&[4], Want::Best)), Err(Error::Lost));
        assert_eq!(session.position(), 3);
    }
    let mut backend = GpuBackend::new(session);
    assert!(matches!(backend.feed(&[4]), Err(CoreError::Device { .. })));
    assert_eq!(backend.failure(), Some(Error::Lost));
}

#[test]
fn wrong_tokens_and_full_sessions_are_errors() {
    let gpu = open(true);
    let file = Model::tiny(Format::Q1_0);
    let mut session = session(&gpu, &file, &GpuSessionOptions { context: 4, ..Default::default() });
    let mut forward = |tokens: &[u32]| pollster::block_on(session.forward(tokens, Want::Best));
    assert_eq!(forward(&[320]), Err(CoreError::Token { id: 320, vocab: 320 }.into()));
    assert!(matches!(forward(&[]), Err(Error::Core(CoreError::Length { .. }))));
    forward(&[1, 2, 3]).unwrap();
    assert!(matches!(forward(&[1, 2]), Err(Error::Core(CoreError::ContextFull { .. }))));
    assert!(session.truncate(4).is_err());
    assert_eq!(session.position(), 3);
}

#[test]
fn what_the_gpu_cannot_do_is_an_error() {
    let gpu = open(true);
    let file = Model::tiny(Format::Q8_0);
    let load = pollster::block_on(GpuModel::from_gguf(Arc::clone(&gpu), &Gguf::parse(&file).unwrap()));
    assert!(matches!(load, Err(Error::Unsupported { .. })));
    let none = GpuOptions { name: Some("no such GPU".into()), ..GpuOptions::default() };
    assert!(matches!(pollster::block_on(Gpu::open(&none)), Err(Error::NoAdapter { .. })));
    // A cache over the guaranteed binding.
    let shape = Shape { context: 1 << 20, ..Shape::tiny() };
    let file = Model::new(shape, Stored::new(Format::Q1_0), 3).to_vec().unwrap();
    let model = pollster::block_on(GpuModel::from_gguf(gpu, &Gguf::parse(&file).unwrap())).unwrap();
    let options = GpuSessionOptions { context: 1 << 20, ..Default::default() };
    assert!(matches!(pollster::block_on(GpuSession::new(&model, &options)), Err(Error::Unsupported { .. })));
}
