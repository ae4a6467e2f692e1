//! The whole model on the GPU against core on the CPU.
//!
//! `SHOHIN_GPU` selects the adapter by part of its name; without it the first one is used, also in software.

use shohin_core::cpu::op::argmax;
use shohin_core::device::{Device, Output, Readout, ScratchOptions, SessionOptions, Wants};
use shohin_core::session::{Feed, run_batch};
use shohin_core::tokenizer::{Special, Tokenizer};
use shohin_core::{Activations, Cpu, Error as CoreError, Format, Gguf, KvFormat, Session};
use shohin_gpu::{Counters, Error, Gpu, GpuDevice, GpuDeviceOptions, GpuFailure, GpuModel, GpuOptions};
use shohin_tests::adapted::check_adapted;
use shohin_tests::device::{Golden, On, check_variants, error, on_cpu, tokens};
use shohin_tests::model::{Model, Shape, Stored};
use shohin_tests::random_models::{Refused, check_random_models};
use std::sync::Arc;

/// A GPU with all of its features, or with the minimum.
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

fn kv(kv: KvFormat) -> SessionOptions {
    SessionOptions { kv, ..SessionOptions::default() }
}

fn cpu<'f>(file: &'f [u8], activations: Activations, format: KvFormat) -> On<Cpu<'f, &'f [u8]>> {
    on_cpu(file, activations, &kv(format))
}

fn device(gpu: &Arc<Gpu>, file: &[u8], options: &GpuDeviceOptions) -> GpuDevice {
    pollster::block_on(async {
        let model = GpuModel::from_gguf(Arc::clone(gpu), &Gguf::parse(file).unwrap()).await.unwrap();
        model.device(options).await.unwrap_or_else(|e| panic!("{e}: {:?}", gpu.report()))
    })
}

fn on_gpu(gpu: &Arc<Gpu>, file: &[u8], activations: Activations, kv: KvFormat) -> On<GpuDevice> {
    on_gpu_with(gpu, file, &GpuDeviceOptions { activations, batch: 64, ..Default::default() }, kv)
}

fn on_gpu_with(gpu: &Arc<Gpu>, file: &[u8], options: &GpuDeviceOptions, format: KvFormat) -> On<GpuDevice> {
    On::new(device(gpu, file, options), &kv(format))
}

/// At once and one by one, with 32-bit activations: only the order of additions differs. The kernels' own
/// test covers every format.
#[test]
fn exact_activations_agree() {
    // The format does not affect the features.
    let most = [Format::Q1_0, Format::Tq1_0, Format::Q4_0, Format::Q8_0];
    for (extensions, formats) in [(true, &most[..]), (false, &[Format::Q2_0][..])] {
        let gpu = open(extensions);
        for &format in formats {
            let file = Model::tiny(format);
            let tokens = tokens(35, 320);
            let want = cpu(&file, Activations::F32, KvFormat::F32).logits(&tokens, true);
            let mut on = on_gpu(&gpu, &file, Activations::F32, KvFormat::F32);
            for at_once in [true, false] {
                on.session.truncate(0).unwrap();
                let error = error(&on.logits(&tokens, at_once), &want);
                println!("{format:?}, at once {at_once}: {error:.2e}");
                assert!(error < 1e-5, "{format:?}, at once {at_once}: {error}");
            }
        }
    }
}

/// Formats that differ from matrix to matrix, a separate head, everything split over several bindings:
/// ternary, 1-bit, quantized and float weights that share an input, then K-quants and the other integers. The
/// kernels' own test covers every format.
#[test]
fn formats_may_mix_and_large_matrices_are_split() {
    use Format::{Bf16, F16, F32, Ptq1_0, Q1_0, Q2_0, Q4_0, Q8_0, Tq1_0, Tq2_0};
    use Format::{Iq4Nl, Iq4Xs, Mxfp4, Nvfp4, Q2K, Q3K, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8K};
    let gpu = open_with(GpuOptions { split_rows: 128, ..GpuOptions::default() });
    // Embedding; q, k, v, o, gate, up, down of two layers; head.
    let first =
        [Q4_0, F16, Q8_0, Bf16, F32, Q8_0, Q1_0, Tq2_0, Q8_0, Ptq1_0, Q2_0, Tq1_0, F16, F32, Q8_0, Bf16];
    let second = [Q4K, Iq4Xs, Mxfp4, Q6K, Q4K, Q5_0, Iq4Nl, Q5_1, Nvfp4, Q2K, Q3K, Q8K, Q3K, Q1_0, Q5K, Q6K];
    for formats in [first, second] {
        let model = Model {
            formats: formats.iter().copied().map(Stored::new).collect(),
            // With factors of the rotary frequencies.
            ..Model::new(
                Shape { tied: false, yarn: None, rope_factors: true, ..Shape::tiny() },
                Stored::new(Q1_0),
                5,
            )
        };
        let file = model.to_vec().unwrap();
        let tokens = tokens(9, 320);
        let want = cpu(&file, Activations::F32, KvFormat::F32).logits(&tokens, true);
        for (activations, bound) in [(Activations::F32, 1e-5), (Activations::Int8, 0.05)] {
            let mut on = on_gpu(&gpu, &file, activations, KvFormat::F32);
            for at_once in [true, false] {
                on.session.truncate(0).unwrap();
                let error = error(&on.logits(&tokens, at_once), &want);
                println!("{activations:?}, at once {at_once}: {error:.2e}");
                assert!(error < bound, "{activations:?}, at once {at_once}: {error}");
            }
        }
    }
}

/// Floats are multiplied by floats, whatever the activations of quantized weights are.
#[test]
fn float_weights_are_not_multiplied_by_integers() {
    let gpu = open(true);
    for format in [Format::F32, Format::F16, Format::Bf16] {
        let file = Model::tiny(format);
        let tokens = tokens(9, 320);
        let want = cpu(&file, Activations::Int8, KvFormat::F32).logits(&tokens, true);
        let mut on = on_gpu(&gpu, &file, Activations::Int8, KvFormat::F32);
        for at_once in [true, false] {
            on.session.truncate(0).unwrap();
            let error = error(&on.logits(&tokens, at_once), &want);
            assert!(error < 1e-5, "{format:?}, at once {at_once}: {error}");
        }
    }
}

#[test]
fn adapted_models_agree() {
    let (gpus, mut turn) = ([open(true), open(false)], 0);
    check_adapted(|model, activations| {
        turn += 1;
        let gpu = Arc::clone(&gpus[turn / 2 % 2]);
        let options = GpuDeviceOptions { activations, batch: 64, ..Default::default() };
        let device = pollster::block_on(async {
            GpuModel::from_model(gpu, model).await.unwrap().device(&options).await.unwrap()
        });
        On::new(device, &kv(KvFormat::F32))
    });
}

#[test]
fn other_architectures_agree() {
    let (gpus, mut turn) = ([open(true), open(false)], 0);
    check_variants(|file, activations| {
        turn += 1;
        on_gpu(&gpus[turn / 2 % 2], file, activations, KvFormat::F32)
    });
}

#[test]
fn random_models_agree() {
    let (gpus, mut turn) = ([open(true), open(false)], 0);
    let refused = Refused {
        experts: Some("a mixture of experts"),
        floats_beside_integers: "the number of kinds of weights in the gate and up matrices",
    };
    check_random_models("gpu", 12, &refused, |file, options, session| {
        turn += 1;
        let gpu = &gpus[turn % 2];
        let ScratchOptions { activations, batch, logit_rows, .. } = *options;
        let options = GpuDeviceOptions { activations, batch, logit_rows, ..Default::default() };
        let device = pollster::block_on(async {
            let model = GpuModel::from_gguf(Arc::clone(gpu), &Gguf::parse(file)?).await?;
            model.device(&options).await
        });
        device.map(|device| On::new(device, session))
    });
}

/// The model that is built into the crate `shohin`.
fn sprout() -> Vec<u8> {
    std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../models/sprout.gguf")).unwrap()
}

/// A trained model of another architecture, with weights that have minima. Skipped if its file is absent.
#[test]
fn smollm2_agrees() {
    let Some(file) = shohin_tests::smollm2() else { return };
    let tokenizer = Tokenizer::from_gguf(&Gguf::parse(&file).unwrap()).unwrap();
    let mut tokens = Vec::new();
    let text = "The old lighthouse keeper climbed the stairs every evening to light the lamp.";
    tokenizer.encode(text, Special::Text, &mut tokens);
    let gpu = open(true);
    for (activations, kv, bound) in [
        (Activations::F32, KvFormat::F32, 1e-4),
        // Both round activations and keys, each in its own order of operations.
        (Activations::Int8, KvFormat::Q8, 0.1),
    ] {
        let want = cpu(&file, activations, kv).logits(&tokens, true);
        let got = on_gpu(&gpu, &file, activations, kv).logits(&tokens, true);
        let error = error(&got, &want);
        println!("{activations:?}: {error:.2e}");
        assert!(error < bound, "{activations:?}: {error}");
    }
}

#[test]
fn golden_logits() {
    for extensions in [true, false] {
        let gpu = open(extensions);
        for golden in [Golden::one_bit(), Golden::ternary()] {
            for at_once in [true, false] {
                golden.check(|activations| {
                    on_gpu(&gpu, &golden.file, activations, KvFormat::F32).logits(&golden.tokens, at_once)
                });
            }
        }
    }
}

/// More positions than a part of flash decoding holds, in every cache format, with three query heads per
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
            let want = cpu(&file, Activations::F32, KvFormat::F32).logits(&tokens, true);
            let last = &want[want.len() - 320..];
            // Floats of 8 bits differ from the others only in how numbers are stored.
            let is_needed = |kv: &KvFormat| heads == 6 || !kv.name().starts_with("fp8");
            for kv in KvFormat::ALL.into_iter().filter(is_needed) {
                let bound = match kv {
                    KvFormat::F32 => 1e-5,
                    KvFormat::F16 => 1e-3,
                    KvFormat::Q8 => 2e-2,
                    KvFormat::Q4 => 0.4,
                    KvFormat::Fp8E4M3 => 0.2,
                    KvFormat::Fp8E5M2 => 0.4,
                };
                let On { mut device, mut session } = on_gpu(&gpu, &file, Activations::F32, kv);
                let prefilled = error(session.forward_prefill(&mut device, &tokens).unwrap(), last);
                // The last token again, alone: position 149 is in the second part.
                session.truncate(149).unwrap();
                let decoded = error(session.forward(&mut device, tokens[149]).unwrap(), last);
                println!("{heads} heads on {kv_heads}, {kv:?}: {prefilled:.1e} {decoded:.1e}");
                assert!(prefilled < bound && decoded < bound, "{kv:?}: {prefilled} {decoded}");
                assert!(kv == KvFormat::F32 || prefilled > 1e-6, "{kv:?} must round");
            }
        }
    }
}

/// Every pattern, on the GPU as on the CPU: rows in one go, and one row whose positions are in several parts, of which
/// some are skipped.
#[test]
fn patterns_agree() {
    let gpu = open(true);
    let shape = Shape { heads: 6, kv_heads: 2, context: 512, ..Shape::tiny() };
    let file = Model::new(shape, Stored::new(Format::Q1_0), 3).to_vec().unwrap();
    let tokens = tokens(300, 320);
    let kv = KvFormat::F32;
    let full = cpu(&file, Activations::F32, kv).logits(&tokens, true);
    for text in ["window:40", "window:130:3", "window:1:200", "dilated:3:2", "strided:1:3", "bigbird:1:1:2"] {
        let options = SessionOptions { kv, attention: text.parse().unwrap(), ..SessionOptions::default() };
        let On { device: mut on_cpu, .. } = cpu(&file, Activations::F32, kv);
        let mut session = Session::new(&mut on_cpu, &options).unwrap();
        let want = session.forward_prefill(&mut on_cpu, &tokens).unwrap().to_vec();
        let On { mut device, .. } = on_gpu(&gpu, &file, Activations::F32, kv);
        let mut session = Session::new(&mut device, &options).unwrap();
        let prefilled = error(session.forward_prefill(&mut device, &tokens).unwrap(), &want);
        session.truncate(299).unwrap();
        let decoded = error(session.forward(&mut device, tokens[299]).unwrap(), &want);
        println!("{text}: {prefilled:.1e} {decoded:.1e}");
        assert!(prefilled < 1e-4 && decoded < 1e-4, "{text}: {prefilled} {decoded}");
        let masked = error(&want, &full[full.len() - 320..]);
        assert!(masked > 1e-3, "{text} must mask: {masked}");
    }
}

/// Exported keys and values continue in a session of another capacity, to the bit.
#[test]
fn exported_caches_go_on_elsewhere() {
    let gpu = open(true);
    let file = Model::new(Shape { context: 512, ..Shape::tiny() }, Stored::new(Format::Q1_0), 3);
    let file = file.to_vec().unwrap();
    let tokens = tokens(150, 320);
    let mut device = device(&gpu, &file, &GpuDeviceOptions::default());
    for kv in KvFormat::ALL {
        let mut open = |context| {
            Session::new(&mut device, &SessionOptions { context, kv, ..SessionOptions::default() }).unwrap()
        };
        let (mut first, mut other) = (open(160), open(300));
        let mut feed = |session: &mut Session<GpuDevice>, tokens: &[u32]| {
            session.forward_prefill(&mut device, tokens).unwrap().to_vec()
        };
        feed(&mut first, &tokens[..149]);
        feed(&mut other, &[1, 2, 3]);
        let mut kept = Vec::new();
        pollster::block_on(first.export(&mut device, &mut kept)).unwrap();
        assert_eq!(kept.len(), first.export_len(&device));
        // Nothing of the forgotten tokens is exported.
        for others in [5, 6] {
            first.forward_prefill(&mut device, &[others, 7]).unwrap();
            first.truncate(149).unwrap();
            let mut again = Vec::new();
            pollster::block_on(first.export(&mut device, &mut again)).unwrap();
            assert!(again == kept, "{kv:?} {others}");
        }
        let want = first.forward(&mut device, tokens[149]).unwrap().to_vec();
        // Back and forth, several times.
        for _ in 0..5 {
            other.import(&mut device, 149, &kept).unwrap();
            assert_eq!(other.position(), 149);
            let got = other.forward(&mut device, tokens[149]).unwrap();
            assert!(got == want, "{kv:?}");
            other.truncate(149).unwrap();
            kept.clear();
            pollster::block_on(other.export(&mut device, &mut kept)).unwrap();
        }
        kept.push(0);
        let wrong = other.import(&mut device, 149, &kept);
        assert!(matches!(wrong, Err(Error::Core(CoreError::Length { .. }))));
        let wrong = other.import(&mut device, 301, &kept);
        assert!(matches!(wrong, Err(Error::Core(CoreError::ContextFull { .. }))));
        assert_eq!(other.position(), 0);
    }
}

/// The kernels of a cache use the buffers of the device that made it.
#[test]
fn caches_of_other_devices_are_refused() {
    let gpu = open(true);
    let file = Model::tiny(Format::Q1_0);
    let options = GpuDeviceOptions::default();
    let (mut one, mut other) = (device(&gpu, &file, &options), device(&gpu, &file, &options));
    let mut session = Session::new(&mut one, &SessionOptions::default()).unwrap();
    session.forward_prefill(&mut one, &[1, 2]).unwrap();
    assert_eq!(one.logits().len(), 320);
    let error = session.forward_prefill(&mut other, &[3]).unwrap_err();
    assert!(error.to_string().contains("the cache was made by another one"), "{error}");
    assert_eq!(session.position(), 2);
    session.forward_hidden(&mut one, &[3], &mut |_, _| ()).unwrap();
    assert!(one.logits().is_empty(), "another row was read out since");
}

/// Sequences of one batch are computed as each would be alone, whatever their lengths, positions and
/// readouts.
#[test]
fn sequences_of_a_batch_do_not_mix() {
    let gpu = open(true);
    let shape = Shape { context: 512, ..Shape::tiny() };
    let file = Model::new(shape, Stored::new(Format::Q2_0), 3).to_vec().unwrap();
    let tokens = tokens(200, 320);
    let before = [0, 150, 7];
    let feeds = [&tokens[..70], &tokens[150..151], &tokens[7..20]];
    let options = GpuDeviceOptions { activations: Activations::F32, batch: 50, ..Default::default() };
    let mut device = device(&gpu, &file, &options);
    let mut open = |len: usize| {
        let options = SessionOptions { kv: KvFormat::F32, ..Default::default() };
        let mut session = Session::new(&mut device, &options).unwrap();
        if len > 0 {
            session.forward_prefill(&mut device, &tokens[..len]).unwrap();
        }
        session
    };
    let mut sessions = before.map(&mut open);
    let mut alone = before.map(&mut open);
    let wants = [Wants::Last(Readout::Logits), Wants::Last(Readout::Logits), Wants::Each(Readout::Logits)];
    let mut want = Vec::new();
    for ((session, tokens), wants) in alone.iter_mut().zip(feeds).zip(wants) {
        let sink = &mut |_, row, output: Output<'_>| {
            if let Output::Logits(logits) = output {
                want.push((row, logits.to_vec()));
            }
        };
        pollster::block_on(session.run(&mut device, tokens, wants, sink)).unwrap();
    }
    let mut got = Vec::new();
    let mut batch: Vec<_> = sessions
        .iter_mut()
        .zip(feeds)
        .zip(wants)
        .map(|((session, tokens), wants)| Feed { session, tokens, wants })
        .collect();
    let sink = &mut |sequence, row, output: Output<'_>| {
        if let Output::Logits(logits) = output {
            got.push((sequence, row, logits.to_vec()));
        }
    };
    pollster::block_on(run_batch(&mut device, &mut batch, sink)).unwrap();
    assert_eq!(got.len(), want.len());
    for ((sequence, row, got), (want_row, want)) in got.iter().zip(&want) {
        assert_eq!(row, want_row);
        assert!(error(got, want) < 1e-5, "sequence {sequence}, row {row}: {}", error(got, want));
    }
    assert_eq!(sessions.map(|session| session.position()), [70, 151, 20]);
}

/// Verification runs the head once for as many rows as fit, and agrees with the logits.
#[test]
fn verified_tokens_are_those_of_the_logits() {
    let gpu = open(true);
    let file = Model::tiny(Format::Q1_0);
    let tokens = tokens(20, 320);
    let On { mut device, mut session } = on_gpu(&gpu, &file, Activations::Int8, KvFormat::F16);
    let mut want = Vec::new();
    let sink = &mut |_, row: &[f32]| want.push(argmax(row).unwrap());
    session.forward_logits(&mut device, &tokens, sink).unwrap();
    session.truncate(0).unwrap();
    let before = device.backend().counters();
    let mut got = vec![0; tokens.len()];
    session.forward_prefill_verify(&mut device, &tokens, &mut got).unwrap();
    assert_eq!(got, want);
    let after = device.backend().counters();
    // Eight rows at a time; eight bytes for each.
    assert_eq!(after.submissions - before.submissions, 3);
    assert_eq!(after.read_bytes - before.read_bytes, 8 * 20);
    let norms = 4 * (2 * (2 * 256 + 2 * 128) + 256);
    let matrices = device.backend().model().bytes() - norms;
    assert_eq!(after.weight_bytes - before.weight_bytes, matrices + 2 * head_bytes());
}

/// The final hidden states are those of the engine on the CPU, in batches of any size.
#[test]
fn hidden_states_agree() {
    let gpu = open(true);
    let file = Model::tiny(Format::Pq2_0);
    let tokens = tokens(23, 320);
    let (mut want, mut got) = (Vec::new(), Vec::new());
    let On { mut device, mut session } = cpu(&file, Activations::F32, KvFormat::F32);
    let sink = &mut |_, row: &[f32]| want.extend_from_slice(row);
    session.forward_hidden(&mut device, &tokens, sink).unwrap();
    let options = GpuDeviceOptions { activations: Activations::F32, batch: 8, ..Default::default() };
    let On { mut device, mut session } = on_gpu_with(&gpu, &file, &options, KvFormat::F32);
    let mut sink = |i: usize, row: &[f32]| {
        assert_eq!(got.len(), i * row.len());
        got.extend_from_slice(row);
    };
    session.forward_hidden(&mut device, &tokens, &mut sink).unwrap();
    assert_eq!(session.position(), tokens.len());
    assert_eq!(got.len(), want.len());
    let error = error(&got, &want);
    assert!(error < 1e-5, "{error}");
}

/// Choices on the GPU equal those from all logits, also among equals and at the ends of the vocabulary.
#[test]
fn choices_are_those_of_the_logits() {
    let gpu = open(true);
    // 2500 logits: three workgroups sort, and a second round merges.
    let shape = Shape { vocab: 2500, ..Shape::tiny() };
    let file = Model::new(shape, Stored::new(Format::Pq2_0), 9).to_vec().unwrap();
    let options = GpuDeviceOptions { top: 100, ..Default::default() };
    let On { mut device, mut session } = on_gpu_with(&gpu, &file, &options, KvFormat::F16);
    for token in [0, 5, 2499] {
        let mut step = |readout| {
            session.truncate(0).unwrap();
            let (mut logits, mut top) = (Vec::new(), Vec::new());
            let sink = &mut |_, _, output: Output<'_>| match output {
                Output::Logits(read) => logits = read.to_vec(),
                Output::Top(read) => top = read.to_vec(),
                Output::Hidden(_) => panic!("no hidden state was asked for"),
            };
            pollster::block_on(session.run(&mut device, &[token], Wants::Last(readout), sink)).unwrap();
            (logits, top)
        };
        let (logits, _) = step(Readout::Logits);
        let mut order: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
        order.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        assert_eq!(step(Readout::Best).1, order[..1]);
        assert_eq!(order[0].0, argmax(&logits).unwrap());
        for k in [1, 20, 100] {
            assert_eq!(step(Readout::Top(k)).1, order[..k]);
        }
        // More than the device keeps: all logits instead.
        assert_eq!(step(Readout::Top(101)).0, logits);
    }
}

/// The built-in model generates the same tokens on both, each chosen where it was computed.
#[test]
fn sprout_says_the_same() {
    let gpu = open(true);
    let file = sprout();
    let mut cpu = cpu(&file, Activations::F32, KvFormat::F32);
    let mut gpu = on_gpu(&gpu, &file, Activations::F32, KvFormat::F32);
    let mut fed = vec![401, 17, 33, 9, 120];
    for _ in 0..40 {
        let want = argmax(cpu.session.forward_prefill(&mut cpu.device, &fed).unwrap()).unwrap();
        let got = gpu.best(&fed).unwrap().0;
        assert_eq!(got, want);
        fed = vec![got];
    }
}

/// The budget per token: one submission, at most ten dispatches per layer, every weight once, eight bytes
/// back.
#[test]
fn a_token_stays_within_its_budget() {
    let gpu = open(true);
    let shape = Shape { context: 512, layers: 3, ..Shape::tiny() };
    let file = Model::new(shape, Stored::new(Format::Q1_0), 3).to_vec().unwrap();
    for activations in [Activations::Int8, Activations::F32] {
        let options = GpuDeviceOptions { activations, ..Default::default() };
        let On { mut device, mut session } = on_gpu_with(&gpu, &file, &options, KvFormat::F16);
        let norms = 4 * (3 * (2 * 256 + 2 * 128) + 256);
        let matrices = device.backend().model().bytes() - norms;
        let mut feed = |session: &mut Session<GpuDevice>, tokens: &[u32], wants| {
            let before = device.backend().counters();
            pollster::block_on(session.run(&mut device, tokens, wants, &mut |_, _, _| ())).unwrap();
            let after = device.backend().counters();
            Counters {
                submissions: after.submissions - before.submissions,
                dispatches: after.dispatches - before.dispatches,
                weight_bytes: after.weight_bytes - before.weight_bytes,
                read_bytes: after.read_bytes - before.read_bytes,
            }
        };
        for position in [0, 200] {
            if position > 0 {
                let more = position - session.position();
                feed(&mut session, &tokens(more, 320), Wants::Nothing);
            }
            let cost = feed(&mut session, &[1], Wants::Last(Readout::Best));
            // Besides the layers: the embedding, the last norm, the head, and the two steps of argmax.
            let layer = match (activations, position) {
                (Activations::Int8, 0) => 9,
                (Activations::Int8, _) => 10,
                (Activations::F32, 0) => 8,
                (Activations::F32, _) => 9,
            };
            let dispatches = 5 + 3 * layer;
            assert_eq!(cost, Counters { submissions: 1, dispatches, weight_bytes: matrices, read_bytes: 8 });
        }
        // A prompt: one submission per batch.
        session.truncate(0).unwrap();
        let cost = feed(&mut session, &tokens(300, 320), Wants::Last(Readout::Best));
        assert_eq!(cost.submissions, 3);
        assert_eq!(cost.weight_bytes, 3 * matrices - 2 * head_bytes());
    }
}

/// The head of the tiny model, which runs for the last batch only: 320 rows of 256 bits and two scales.
fn head_bytes() -> u64 {
    320 * (256 / 8 + 4)
}

/// A lost device is reported as such, permanently, and does not crash the program.
#[test]
fn a_lost_device_is_an_error() {
    let gpu = open(true);
    let file = Model::tiny(Format::Q1_0);
    let mut on = on_gpu(&gpu, &file, Activations::Int8, KvFormat::F16);
    on.best(&[1, 2, 3]).unwrap();
    gpu.destroy();
    for _ in 0..2 {
        assert_eq!(on.best(&[4]), Err(Error::Own(GpuFailure::Lost)));
        assert_eq!(on.session.position(), 3);
    }
    assert_eq!(on.device.backend().failure(), Some(Error::Own(GpuFailure::Lost)));
    assert!(matches!(CoreError::from(Error::from(GpuFailure::Lost)), CoreError::Device { .. }));
}

#[test]
fn wrong_tokens_and_full_sessions_are_errors() {
    let gpu = open(true);
    let file = Model::tiny(Format::Q1_0);
    let options = GpuDeviceOptions { context: 4, ..Default::default() };
    let mut on = on_gpu_with(&gpu, &file, &options, KvFormat::F16);
    assert_eq!(on.best(&[320]), Err(CoreError::Token { id: 320, vocab: 320 }.into()));
    assert!(matches!(on.best(&[]), Err(Error::Core(CoreError::Length { .. }))));
    on.best(&[1, 2, 3]).unwrap();
    assert!(matches!(on.best(&[1, 2]), Err(Error::Core(CoreError::ContextFull { .. }))));
    assert!(on.session.truncate(4).is_err());
    assert_eq!(on.session.position(), 3);
}

#[test]
fn what_the_gpu_cannot_do_is_an_error() {
    let gpu = open(true);
    let shape = Shape { head_dim: 48, ..Shape::tiny() };
    let file = Model::new(shape, Stored::new(Format::Q8_0), 3).to_vec().unwrap();
    let load = pollster::block_on(GpuModel::from_gguf(Arc::clone(&gpu), &Gguf::parse(&file).unwrap()));
    assert!(matches!(load, Err(Error::Unsupported { .. })));
    let file = Model::new(Shape::tiny_experts(), Stored::new(Format::Q8_0), 3).to_vec().unwrap();
    let load = pollster::block_on(GpuModel::from_gguf(Arc::clone(&gpu), &Gguf::parse(&file).unwrap()));
    // By this code, hosts know that the CPU can run the model.
    assert!(matches!(load, Err(Error::Operation { .. } | Error::Unsupported { .. })));
    // Weights of gate and up that are multiplied by different activations.
    let formats = [Format::Q8_0, Format::Q8_0, Format::Q8_0, Format::Q8_0, Format::Q8_0, Format::F16];
    let formats = formats.map(Stored::new).to_vec();
    let model = Model { formats, ..Model::new(Shape::tiny(), Stored::new(Format::Q8_0), 3) };
    let file = model.to_vec().unwrap();
    let load = pollster::block_on(GpuModel::from_gguf(Arc::clone(&gpu), &Gguf::parse(&file).unwrap()));
    assert!(matches!(load, Err(Error::Unsupported { .. })));
    let none = GpuOptions { name: Some("no such GPU".into()), ..GpuOptions::default() };
    assert!(matches!(pollster::block_on(Gpu::open(&none)), Err(Error::Own(GpuFailure::NoAdapter { .. }))));
    // A cache over the guaranteed binding.
    let shape = Shape { context: 1 << 20, ..Shape::tiny() };
    let file = Model::new(shape, Stored::new(Format::Q1_0), 3).to_vec().unwrap();
    let model = pollster::block_on(GpuModel::from_gguf(gpu, &Gguf::parse(&file).unwrap())).unwrap();
    let options = GpuDeviceOptions { context: 1 << 20, ..Default::default() };
    let mut device = pollster::block_on(model.device(&options)).unwrap();
    let session = Session::new(&mut device, &SessionOptions { context: 1 << 20, ..Default::default() });
    assert!(matches!(session, Err(Error::Unsupported { .. })));
}
