//! Adapters (LoRA) against models whose weights were merged with them in f64 (`oracle/lora.py`, and by the formula here).

use std::fs;
use std::path::Path;

use shohin_core::cpu::{Cpu, CpuOptions, Isa};
use shohin_core::gguf::{Gguf, GgufWriter};
use shohin_core::model::program::Op;
use shohin_core::model::{LoraAdapter, Split, lora};
use shohin_core::{Activations, BonsaiModel, Error, Format, KvFormat, Result, Serial};
use shohin_tests::Random;
use shohin_tests::cpu::{all_logits, exact, in_format};
use shohin_tests::lora::Adapter;
use shohin_tests::model::{Model, Shape, Stored};

fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)).unwrap()
}

fn tokens() -> Vec<u32> {
    (0..24).map(|i| (7 * i * i + 3 * i + 1) % 96).collect()
}

/// The model with adapters, each at its scale.
fn adapted(model: &[u8], adapters: &[(&[u8], f32)]) -> Result<BonsaiModel<Vec<u8>>> {
    shohin_tests::lora::adapted(model, adapters, 1)
}

fn logits(model: BonsaiModel<Vec<u8>>, tokens: &[u32], options: &CpuOptions, kv: KvFormat) -> Vec<f32> {
    all_logits(&mut Cpu::repacked(model, options, Serial).unwrap(), tokens, &in_format(kv)).unwrap()
}

fn worst(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, |m, d| if d <= m { m } else { d })
}

#[test]
fn the_formula_agrees() {
    let (model, every, some) =
        (fixture("qwen3-untied.gguf"), fixture("lora/all.gguf"), fixture("lora/some.gguf"));
    let cases = [
        ("lora/all.logits", vec![(&every[..], 1.0)]),
        ("lora/both.logits", vec![(&every, 0.5), (&some, -2.0)]),
    ];
    for (want, adapters) in cases {
        let want: Vec<f32> = fixture(want).as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
        for isa in Isa::available() {
            for batch in [1, 5, 24] {
                let options = CpuOptions { batch, isa, ..exact() };
                let model = adapted(&model, &adapters).unwrap();
                let worst = worst(&logits(model, &tokens(), &options, KvFormat::F32), &want);
                println!("{isa:?} batch {batch}: {worst}");
                assert!(worst < 1e-4, "{isa:?} batch {batch}: {worst}");
            }
        }
    }
}

/// The adapter's own products stay floats where those of the model are computed in integers.
#[test]
fn packed_weights_are_adapted_as_if_they_were_merged() {
    let shape = Shape { vocab: 320, ..Shape::tiny() };
    for (format, scale) in [(Format::Q1_0, 1.0), (Format::Pq2_0, -0.75)] {
        let file = Model::new(shape.clone(), Stored::new(format), 5).to_vec().unwrap();
        let gguf = Gguf::parse(&file).unwrap();
        let adapter = Adapter::random(&gguf, &["blk."], 5, 0.05, 1);
        assert_eq!(adapter.pairs.len(), 14);
        let tokens: Vec<u32> = (0..20u32).map(|i| (i * i + 7 * i) % 320).collect();
        let run = |model: BonsaiModel<Vec<u8>>, activations| {
            let options = CpuOptions { activations, ..CpuOptions::default() };
            logits(model, &tokens, &options, KvFormat::F32)
        };
        let lora = adapter.to_vec();
        let with = |scale| adapted(&file, &[(&lora, scale)]).unwrap();
        let plain = |activations| run(BonsaiModel::load(file.clone()).unwrap(), activations);
        let merged = BonsaiModel::load(adapter.merged(&gguf, f64::from(scale))).unwrap();
        let want = run(merged, Activations::F32);
        let (exact, int8) = (plain(Activations::F32), plain(Activations::Int8));
        let (effect, rounding) = (worst(&want, &exact), worst(&int8, &exact));
        let [float, integers] = [Activations::F32, Activations::Int8]
            .map(|activations| worst(&run(with(scale), activations), &want));
        println!("{format:?} {scale}: effect {effect}, f32 {float}, int8 {integers} (without {rounding})");
        assert!(effect > 0.3 && float < 1e-4 * effect && integers < 3.0 * rounding, "{format:?} {scale}");
        assert!(run(with(0.0), Activations::Int8) == int8, "{format:?}");
    }
}

#[test]
fn bits_do_not_depend_on_kernels_nor_on_how_many_tokens_are_computed_at_once() {
    let file = Model::new(Shape { depth_routers: true, ..Shape::tiny() }, Stored::new(Format::Pq2_0), 5);
    let file = file.to_vec().unwrap();
    let lora =
        Adapter::random(&Gguf::parse(&file).unwrap(), &["attn_q.", "attn_v", "ffn_"], 3, 0.05, 9).to_vec();
    let tokens: Vec<u32> = (0..30u32).map(|i| (i * i + 7 * i) % 320).collect();
    let bits = |isa, batch| {
        let options = CpuOptions { isa, batch, ..CpuOptions::default() };
        logits(adapted(&file, &[(&lora, 1.0)]).unwrap(), &tokens, &options, KvFormat::F16)
    };
    let want = bits(Isa::detect(), 1);
    assert!(want.iter().all(|x| x.is_finite()));
    assert!(bits(Isa::SCALAR, 30) == want && bits(Isa::detect(), 7) == want);
}

#[test]
fn ranks_may_be_filled_up() {
    let (model, every, some) =
        (fixture("qwen3-untied.gguf"), fixture("lora/all.gguf"), fixture("lora/some.gguf"));
    let adapters = [(&every[..], 0.5), (&some[..], -2.0)];
    let [plain, padded] =
        [1, lora::UNIT].map(|multiple| shohin_tests::lora::adapted(&model, &adapters, multiple).unwrap());
    let factors = |model: &BonsaiModel<Vec<u8>>| {
        let all = model.program().tensors.iter().filter(|tensor| tensor.name.contains(".lora_"));
        all.map(|tensor| (tensor.rows, tensor.cols)).collect::<Vec<_>>()
    };
    let [before, after] = [&plain, &padded].map(factors);
    assert!(before.len() == after.len() && before.chunks(2).any(|pair| pair[0].0 < lora::UNIT));
    assert!(after.chunks(2).all(|pair| [pair[0].0, pair[1].1] == [lora::UNIT; 2]));
    let [want, got] = [plain, padded].map(|model| logits(model, &tokens(), &exact(), KvFormat::F32));
    let worst = worst(&got, &want);
    assert!(worst < 1e-5, "{worst}");
}

/// Matrices without an adapter are computed as before, and products that share their input still do.
#[test]
fn only_adapted_matrices_take_operations() {
    let file = Model::tiny(Format::Q1_0);
    let plain = BonsaiModel::load(file.clone()).unwrap();
    let with = |names: &[&str]| {
        let lora = Adapter::random(&Gguf::parse(&file).unwrap(), names, 2, 0.1, 1).to_vec();
        adapted(&file, &[(&lora, 1.0)]).unwrap().program().clone()
    };
    let base = plain.program();
    let all = with(&["attn_q.", "attn_k.", "attn_v."]);
    assert_eq!(all.body.len(), base.body.len() + 2 * 4);
    assert_eq!(all.tensors.len(), base.tensors.len() + 2 * 3 * 2);
    for (block, before) in all.blocks.iter().zip(&base.blocks) {
        assert_eq!(all.body[*block], base.body[*before]);
    }
    let swiglu = |op: &&Op| matches!(op, Op::Gated { .. });
    assert_eq!(all.body.iter().filter(swiglu).count(), 0);
    assert_eq!(with(&["blk.1.ffn_up"]).body.iter().filter(swiglu).count(), 1);
    let error = with(&["blk."]).split(Split::Tensor(2), 0).unwrap_err();
    assert_eq!(error.code(), "unsupported");
}

/// A file of these entries, and of tensors in F32 by name and dimensions.
fn file(entries: &[(&str, &str)], alpha: f32, tensors: &[(&str, [u64; 2])]) -> Vec<u8> {
    let mut w = GgufWriter::new();
    for (key, value) in entries {
        w.set(key, *value).unwrap();
    }
    w.set("adapter.lora.alpha", alpha).unwrap();
    let data = tensors.iter().map(|(name, dims)| {
        w.tensor(name, dims, Format::F32).unwrap();
        vec![0; 4 * (dims[0] * dims[1]) as usize]
    });
    let data: Vec<_> = data.collect();
    w.to_vec(data).unwrap()
}

const ENTRIES: [(&str, &str); 3] =
    [("general.type", "adapter"), ("general.architecture", "qwen3"), ("adapter.type", "lora")];

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let model = Model::tiny(Format::Q1_0);
    let says = |lora: &[u8], scale: f32| adapted(&model, &[(lora, scale)]).unwrap_err().to_string();
    let (a, b) = ("blk.1.attn_k.weight.lora_a", "blk.1.attn_k.weight.lora_b");
    let fitting = [(a, [256, 3]), (b, [3, 256])];
    adapted(&model, &[(&file(&ENTRIES, 1.0, &fitting), 1.0)]).unwrap();
    // Without alpha, as llama.cpp does.
    adapted(&model, &[(&file(&ENTRIES, 0.0, &fitting), 1.0)]).unwrap();

    for (left_out, expected) in [
        ("general.type", "metadata key general.type is missing"),
        ("general.architecture", "metadata key general.architecture is missing"),
        ("adapter.type", "metadata key adapter.type is missing"),
    ] {
        let entries: Vec<_> = ENTRIES.into_iter().filter(|(key, _)| *key != left_out).collect();
        assert_eq!(says(&file(&entries, 1.0, &fitting), 1.0), expected);
    }
    for (key, value, expected) in [
        ("general.type", "model", "general.type is \"model\", which is not supported; expected adapter"),
        ("adapter.type", "ia3", "adapter.type is \"ia3\", which is not supported; expected lora"),
        (
            "general.architecture",
            "llama",
            "general.architecture is \"llama\", which is not supported; expected qwen3",
        ),
    ] {
        let entries = ENTRIES.map(|(known, other)| (known, if known == key { value } else { other }));
        assert_eq!(says(&file(&entries, 1.0, &fitting), 1.0), expected);
        // Also where it has no effect.
        assert_eq!(says(&file(&entries, 1.0, &fitting), 0.0), expected);
    }
    let invocation = [("adapter.alora.invocation_string", "x")];
    let found = says(&file(&[&ENTRIES[..], &invocation].concat(), 1.0, &fitting), 1.0);
    assert!(found.starts_with("adapter.alora.invocation_string is"), "{found}");
    let found = says(&file(&ENTRIES, f32::INFINITY, &fitting), 1.0);
    assert_eq!(found, "metadata key adapter.lora.alpha is inf, expected a finite number");
    let found = says(&file(&ENTRIES, 1.0, &fitting), f32::NAN);
    assert_eq!(found, "scale of an adapter is NaN, expected a finite number");
    assert_eq!(says(&file(&ENTRIES, 1.0, &[]), 1.0), "tensors of the adapter: there are none");

    let matrix = |name: &str, inputs, outputs| {
        let [a, b] = ["a", "b"].map(|suffix| format!("{name}.lora_{suffix}"));
        says(&file(&ENTRIES, 1.0, &[(&a, [inputs, 3]), (&b, [3, outputs])]), 1.0)
    };
    let of_attention = "which is not supported; expected one of attention or of a feed-forward block, not";
    // An adapter of an adapter.
    let factor = file(&ENTRIES, 1.0, &[(&format!("{a}.lora_a"), [256, 2]), (&format!("{a}.lora_b"), [2, 3])]);
    let first = adapted(&model, &[(&file(&ENTRIES, 1.0, &fitting), 1.0)]).unwrap();
    let gguf = Gguf::parse(&factor).unwrap();
    let second = first.adapt(&[(&LoraAdapter::from_gguf(&gguf).unwrap(), 1.0)], |bytes| bytes);
    let of_model = "which is not supported; expected one of the model";
    assert_eq!(second.unwrap_err().to_string(), format!("matrix that is adapted is {a:?}, {of_model}"));
    for (name, expected) in [
        ("blk.9.attn_k.weight", of_model.into()),
        ("blk.1.attn_k", of_model.into()),
        ("token_embd.weight", format!("{of_attention} the embedding or the output")),
        ("blk.0.attn_norm.weight", format!("{of_attention} a vector")),
    ] {
        assert_eq!(matrix(name, 256, 256), format!("matrix that is adapted is {name:?}, {expected}"));
    }
    for (tensors, expected) in [
        (&[(a, [256, 3])][..], format!("tensor {b} is missing")),
        (&[(b, [3, 256])], format!("tensor {a} is missing")),
        (&[(a, [256, 3]), (b, [2, 256])], format!("tensor {b} is 2 x 256, expected 3 x 256")),
        (&[(a, [255, 3]), (b, [3, 256])], format!("tensor {a} is 255 x 3, expected 256 x 3")),
        (&[(a, [256, 3]), (b, [3, 255])], format!("tensor {b} is 3 x 255, expected 3 x 256")),
        (
            &[(a, [256, 3]), (b, [3, 256]), ("blk.0.attn_norm.weight", [256, 1])],
            "tensor of the adapter is \"blk.0.attn_norm.weight\", which is not supported; expected only names \
             that end in .lora_a or .lora_b"
                .into(),
        ),
    ] {
        assert_eq!(says(&file(&ENTRIES, 1.0, tensors), 1.0), expected);
    }
    let experts = Model::new(Shape::tiny_experts(), Stored::new(Format::Q1_0), 2).to_vec().unwrap();
    let moe = ENTRIES.map(|(key, value)| (key, if value == "qwen3" { "qwen3moe" } else { value }));
    let attention = adapted(&experts, &[(&file(&moe, 1.0, &fitting), 1.0)]).unwrap();
    assert_eq!(attention.program().tensors.last().unwrap().name, b);
    for (name, outputs) in [("blk.0.ffn_gate_inp.weight", 6), ("blk.0.ffn_gate_exps.weight", 6 * 256)] {
        let [a, b] = ["a", "b"].map(|suffix| format!("{name}.lora_{suffix}"));
        let lora = file(&moe, 1.0, &[(&a, [256, 3]), (&b, [3, outputs])]);
        let found = adapted(&experts, &[(&lora, 1.0)]).unwrap_err().to_string();
        assert_eq!(
            found,
            format!("matrix that is adapted is {name:?}, {of_attention} of a mixture of experts")
        );
    }
}

#[test]
fn damaged_adapters_are_errors() {
    let (model, lora) = (fixture("qwen3-untied.gguf"), fixture("lora/some.gguf"));
    let mut random = Random::new(3);
    let mut outcomes = [0; 2];
    for _ in 0..2000 {
        let mut bytes = lora.clone();
        for _ in 0..1 + random.below(3) {
            // The header, mostly.
            let at = random.below(600);
            bytes[at] = random.next() as u8;
        }
        bytes.truncate(if random.below(4) == 0 { random.below(bytes.len()) } else { bytes.len() });
        let done: Result<_, Error> = adapted(&model, &[(&bytes, 1.0)]);
        outcomes[usize::from(done.is_ok())] += 1;
    }
    println!("{outcomes:?}");
    assert!(outcomes[0] > 500 && outcomes[1] > 0);
}
