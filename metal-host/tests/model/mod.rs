//! Whole models against core on the CPU.

use crate::tested::{Order, Tested, tested};
use shohin_core::cpu::op::argmax;
use shohin_core::device::{BlockingDevice, Output, Readout, ScratchOptions, SessionOptions, Wants};
use shohin_core::session::{Feed, run_batch};
use shohin_core::tokenizer::{Special, Tokenizer};
use shohin_core::{Activations, BonsaiModel, Cpu, Format, Gguf, KvFormat, Session};
use shohin_metal::{Error, MetalDevice, MetalModel};
use shohin_tests::adapted::check_adapted;
use shohin_tests::device::{
    Golden, On, check_experts, check_unread_experts, check_variants, error, on_cpu, tokens,
};
use shohin_tests::model::{Model, Shape, Stored};
use shohin_tests::random_models::{Refused, check_random_models};

fn load(file: &[u8]) -> BonsaiModel<&[u8]> {
    BonsaiModel::from_gguf(&Gguf::parse(file).unwrap()).unwrap()
}

fn kv(kv: KvFormat) -> SessionOptions {
    SessionOptions { kv, ..SessionOptions::default() }
}

fn metal(file: &[u8], activations: Activations, format: KvFormat, order: Order) -> On<MetalDevice<Tested>> {
    let model = MetalModel::new(tested(order), &load(file)).unwrap();
    let options = ScratchOptions { activations, batch: 16, ..ScratchOptions::default() };
    On::new(model.device(&options).unwrap(), &kv(format))
}

#[test]
fn adapted_models_agree() {
    check_adapted(|model, activations| {
        let model = MetalModel::new(tested(Order::Shuffled), model).unwrap();
        let options = ScratchOptions { activations, ..ScratchOptions::default() };
        On::new(model.device(&options).unwrap(), &kv(KvFormat::F32))
    });
}

#[test]
fn other_architectures_agree() {
    check_variants(|file, activations| metal(file, activations, KvFormat::F32, Order::Shuffled));
}

#[test]
fn mixtures_of_depths_are_refused_by_name() {
    let shape = Shape { depth_routers: true, ..Shape::tiny() };
    let file = Model::new(shape, Stored::new(Format::Q1_0), 1).to_vec().unwrap();
    let text = MetalModel::new(tested(Order::Forward), &load(&file)).err().unwrap().to_string();
    assert!(text.contains("blk.N.depth_router.weight") && text.contains("the CPU"), "{text}");
}

#[test]
fn alibi_is_refused_by_name() {
    let shape = Shape { max_alibi_bias: 8.0, ..Shape::tiny() };
    let file = Model::new(shape, Stored::new(Format::Q1_0), 1).to_vec().unwrap();
    let refused = MetalModel::new(tested(Order::Forward), &load(&file)).err().unwrap();
    assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
    let text = refused.to_string();
    assert!(
        text.contains("attention.max_alibi_bias, or the option alibi") && text.contains("the CPU"),
        "{text}"
    );
}

/// At once and one by one. With floats only the order of additions differs; integers are rounded alike.
#[test]
fn models_of_common_formats_agree() {
    for format in [Format::Q1_0, Format::Pq2_0, Format::Q4_0, Format::F16] {
        let file = Model::tiny(format);
        let tokens = tokens(9, 320);
        for (activations, cache, bound) in
            [(Activations::F32, KvFormat::F32, 1e-5), (Activations::Int8, KvFormat::F16, 2e-2)]
        {
            let want = on_cpu(&file, activations, &kv(cache)).logits(&tokens, true);
            let mut on = metal(&file, activations, cache, Order::Forward);
            for at_once in [true, false] {
                on.session.truncate(0).unwrap();
                let error = error(&on.logits(&tokens, at_once), &want);
                println!("{format:?} {activations:?} at once {at_once}: {error:.1e}");
                assert!(error < bound, "{format:?}, {activations:?}, at once {at_once}: {error}");
            }
        }
    }
}

/// Formats that differ from matrix to matrix, with a separate head and factors of the rotary frequencies: ternary and 1-bit,
/// then quantized and float weights that share an input, K-quants as llama.cpp mixes them, and all other integers.
#[test]
fn formats_may_mix() {
    use Format::{Bf16, F16, F32, Ptq1_0, Q1_0, Q2_0, Q4_0, Q8_0, Tq1_0, Tq2_0};
    use Format::{Iq4Nl, Iq4Xs, Mxfp4, Nvfp4, Q2K, Q3K, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8K};
    let ternary = [Q1_0, Tq2_0, Q2_0, Ptq1_0, Tq1_0];
    // Embedding; q, k, v, o, gate, up, down of two layers; head.
    let all = [Q4_0, F16, Q8_0, Bf16, F32, Q8_0, Q1_0, F16, Q8_0, Q4_0, Q2_0, Q4_0, F16, F32, Q8_0, Bf16];
    let k_quants = [Q4K, Q4K, Q4K, Q6K, Q4K, Q4K, Q4K, Q6K, Q2K, Q2K, Q3K, Q2K, Q3K, Q5K, Q5K, Q6K];
    let others =
        [Q8K, Iq4Xs, Mxfp4, Iq4Nl, Nvfp4, Q5_0, Iq4Nl, Q5_1, Nvfp4, Q4K, Q8_0, Iq4Xs, Mxfp4, Q1_0, Q6K, Q5_0];
    let cases = [&ternary[..], &all[..], &k_quants[..], &others[..]];
    for (formats, order) in cases.into_iter().zip(Order::ALL.into_iter().cycle()) {
        let shape = Shape { tied: false, yarn: None, rope_factors: true, ..Shape::tiny() };
        let model = Model {
            formats: formats.iter().copied().map(Stored::new).collect(),
            ..Model::new(shape, Stored::new(Q1_0), 5)
        };
        let file = model.to_vec().unwrap();
        let tokens = tokens(5, 320);
        let want = on_cpu(&file, Activations::F32, &kv(KvFormat::F32)).logits(&tokens, true);
        for (activations, bound) in [(Activations::F32, 1e-5), (Activations::Int8, 0.05)] {
            let mut on = metal(&file, activations, KvFormat::F32, order);
            for at_once in [true, false] {
                on.session.truncate(0).unwrap();
                let error = error(&on.logits(&tokens, at_once), &want);
                println!("{activations:?}, at once {at_once}: {error:.2e}");
                assert!(error < bound, "{activations:?}, at once {at_once}: {error}");
            }
        }
    }
}

#[test]
fn random_models_agree() {
    let mut orders = Order::ALL.into_iter().cycle();
    let floats_beside_integers = "gate and up matrices of floats and of";
    let refused = Refused { experts: None, floats_beside_integers };
    check_random_models("metal", 50, &refused, |file, options, session| {
        let model = MetalModel::new(tested(orders.next().unwrap_or(Order::Forward)), &load(file))?;
        model.device(options).map(|device| On::new(device, session))
    });
}

#[test]
fn golden_logits() {
    for golden in [Golden::one_bit(), Golden::ternary()] {
        golden.check(|activations| {
            metal(&golden.file, activations, KvFormat::F32, Order::Reverse).logits(&golden.tokens, true)
        });
    }
}

/// A trained model's greedy text, chosen on the device, is that of the CPU.
#[test]
fn sprout_goes_on_alike() {
    let file = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../models/sprout-nano.gguf")).unwrap();
    let tokenizer = Tokenizer::from_gguf(&Gguf::parse(&file).unwrap()).unwrap();
    let mut prompt = Vec::new();
    tokenizer.encode("What does a cow say?", Special::Text, &mut prompt);
    let mut cpu = on_cpu(&file, Activations::Int8, &kv(KvFormat::F16));
    let mut metal = metal(&file, Activations::Int8, KvFormat::F16, Order::Shuffled);
    let mut ids = prompt.clone();
    let mut feed = prompt;
    for _ in 0..8 {
        let [want, got] = [cpu.best(&feed).unwrap().0, metal.best(&feed).unwrap().0];
        assert_eq!(got, want, "after {ids:?}");
        ids.push(got);
        feed = vec![got];
    }
}

/// More positions than a part of flash decoding holds, in every cache format, with several query heads per key-value head.
#[test]
fn caches_agree() {
    let shape = Shape { heads: 6, kv_heads: 2, context: 512, layers: 1, ..Shape::tiny() };
    let file = Model::new(shape, Stored::new(Format::Q1_0), 3).to_vec().unwrap();
    let tokens = tokens(150, 320);
    let want = on_cpu(&file, Activations::F32, &kv(KvFormat::F32)).logits(&tokens, true);
    let last = &want[want.len() - 320..];
    for format in KvFormat::ALL {
        let bound = match format {
            KvFormat::F32 => 1e-5,
            KvFormat::F16 => 1e-3,
            KvFormat::Q8 => 2e-2,
            KvFormat::Q4 => 0.4,
            KvFormat::Fp8E4M3 => 0.1,
            KvFormat::Fp8E5M2 => 0.2,
        };
        let On { mut device, mut session } = metal(&file, Activations::F32, format, Order::Forward);
        let prefilled = error(session.forward_prefill(&mut device, &tokens).unwrap(), last);
        // The last token again, alone: position 149 is in the second part.
        session.truncate(149).unwrap();
        let decoded = error(session.forward(&mut device, tokens[149]).unwrap(), last);
        println!("{format:?}: {prefilled:.1e} {decoded:.1e}");
        assert!(prefilled < bound && decoded < bound, "{format:?}: {prefilled} {decoded}");
        assert!(format == KvFormat::F32 || prefilled > 1e-6, "{format:?} must round");
        // Exported keys and values continue in a session of another capacity, to the bit.
        let mut bytes = Vec::new();
        MetalDevice::<Tested>::wait(session.export(&mut device, &mut bytes)).unwrap();
        let options = SessionOptions { context: 170, ..kv(format) };
        let mut other = Session::new(&mut device, &options).unwrap();
        other.import(&mut device, session.position(), &bytes).unwrap();
        let want = session.forward(&mut device, 7).unwrap().to_vec();
        assert_eq!(other.forward(&mut device, 7).unwrap(), want);
    }
}

/// Sequences of different lengths and one token in a batch, with different outputs.
#[test]
fn sequences_share_a_batch() {
    let file = Model::tiny(Format::Q4_0);
    let prompts = [tokens(5, 320), tokens(3, 320), vec![11]];
    let mut want: Vec<Vec<f32>> = Vec::new();
    for prompt in &prompts {
        want.push(metal(&file, Activations::Int8, KvFormat::F16, Order::Forward).logits(prompt, true));
    }
    let On { mut device, session: first } = metal(&file, Activations::Int8, KvFormat::F16, Order::Forward);
    let mut sessions = vec![first];
    for _ in 1..3 {
        sessions.push(Session::new(&mut device, &SessionOptions::default()).unwrap());
    }
    let wants = [Wants::Each(Readout::Logits), Wants::Last(Readout::Best), Wants::Last(Readout::Hidden)];
    let mut feeds: Vec<Feed<'_, MetalDevice<Tested>>> = Vec::new();
    for ((session, tokens), wants) in sessions.iter_mut().zip(&prompts).zip(wants) {
        feeds.push(Feed { session, tokens, wants });
    }
    let mut found = [0; 3];
    let sink = &mut |sequence: usize, row: usize, output: Output<'_>| {
        let want = &want[sequence][row * 320..][..320];
        match output {
            Output::Logits(logits) => assert!(error(logits, want) < 1e-5),
            Output::Top(top) => assert_eq!(top[0].0, argmax(want).unwrap()),
            Output::Hidden(hidden) => assert!(hidden.len() == 256 && hidden.iter().all(|x| x.is_finite())),
        }
        found[sequence] += 1;
    };
    MetalDevice::<Tested>::wait(run_batch(&mut device, &mut feeds, sink)).unwrap();
    assert_eq!(found, [5, 1, 1]);
}

/// Every pattern, as on the CPU: a prompt, then its last token again, in parts of the positions.
#[test]
fn patterns_agree() {
    let shape = Shape { heads: 2, kv_heads: 1, context: 1024, layers: 1, ..Shape::tiny() };
    let file = Model::new(shape, Stored::new(Format::Q1_0), 3).to_vec().unwrap();
    let tokens = tokens(200, 320);
    let prefill =
        |on: &mut On<Cpu<'_, _>>| on.session.forward_prefill(&mut on.device, &tokens).unwrap().to_vec();
    let full = prefill(&mut on_cpu(&file, Activations::F32, &kv(KvFormat::F32)));
    for text in ["window:40", "window:30:3", "dilated:2:2", "strided:1:2", "bigbird:1:1:1"] {
        let options = SessionOptions { attention: text.parse().unwrap(), ..kv(KvFormat::F32) };
        let want = prefill(&mut on_cpu(&file, Activations::F32, &options));
        let On { mut device, .. } = metal(&file, Activations::F32, KvFormat::F32, Order::Forward);
        let mut session = Session::new(&mut device, &options).unwrap();
        let prefilled = error(session.forward_prefill(&mut device, &tokens).unwrap(), &want);
        session.truncate(199).unwrap();
        let decoded = error(session.forward(&mut device, tokens[199]).unwrap(), &want);
        assert!(prefilled < 1e-4 && decoded < 1e-4, "{text}: {prefilled} {decoded}");
        assert!(error(&want, &full) > 1e-3, "{text} must mask");
    }
}

#[test]
fn experts_agree() {
    let mut orders = Order::ALL.into_iter().cycle();
    check_experts(|file, activations| {
        metal(file, activations, KvFormat::F32, orders.next().unwrap_or(Order::Forward))
    });
}

#[test]
fn experts_that_are_not_chosen_are_not_read() {
    check_unread_experts(|file| metal(file, Activations::F32, KvFormat::F32, Order::Forward));
}
