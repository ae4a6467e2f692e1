//! Weights in a rotated basis (`prism.hadamard.*`): files of `oracle/hadamard.py` say what transformers computed of the models that
//! they were made of, and what cannot be computed is refused by name.

use std::fs;
use std::path::Path;

use shohin_core::cpu::Isa;
use shohin_core::gguf::Gguf;
use shohin_core::model::{LoraAdapter, Split};
use shohin_core::tokenizer::Special;
use shohin_core::{BonsaiModel, CpuOptions, KvFormat, ModelConfig, Session, Tokenizer};
use shohin_tests::cpu::{all_logits, device, exact, in_format};
use shohin_tests::raw::{RawFile, RawValue};

/// The file, the logits of the model that it was made of, and the tokens.
fn models() -> [(Vec<u8>, Vec<f32>, Vec<u32>); 2] {
    let texts: Vec<(String, Vec<u32>)> = serde_json::from_slice(&fixture("hf/qwen35/texts.json")).unwrap();
    [
        (fixture("qwen35-rotated.gguf"), floats("hf/qwen35/logits.f32"), texts[0].1.clone()),
        (fixture("qwen3-rotated.gguf"), floats("qwen3-rotated.logits"), tokens()),
    ]
}

fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)).unwrap()
}

fn floats(name: &str) -> Vec<f32> {
    fixture(name).as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

/// The text that `oracle/qwen3_logits.py` read.
fn tokens() -> Vec<u32> {
    let file = fixture("qwen3-rotated.gguf");
    let tokenizer = Tokenizer::from_gguf(&Gguf::parse(&file).unwrap()).unwrap();
    let mut tokens = Vec::new();
    tokenizer.encode("The fox ran home, all alone.", Special::Parse, &mut tokens);
    tokens
}

fn worst(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, |m, d| if d <= m { m } else { d })
}

#[test]
fn transformers_agrees() {
    for (file, want, tokens) in models() {
        let mut first: Option<Vec<f32>> = None;
        for isa in Isa::available() {
            for (batch, logit_rows) in [(1, 1), (5, 2), (24, 24)] {
                let options = CpuOptions { batch, logit_rows, isa, ..exact() };
                let mut device = device(&file, &options).unwrap();
                let found = all_logits(&mut device, &tokens, &in_format(KvFormat::F32)).unwrap();
                assert!(worst(&found, &want) < 1e-4, "{isa:?} {batch}: {}", worst(&found, &want));
                assert!(*first.get_or_insert_with(|| found.clone()) == found, "{isa:?} {batch}");
            }
        }
    }
}

#[test]
fn hidden_states_and_best_tokens_are_those_of_the_plain_model() {
    let file = fixture("qwen3-rotated.gguf");
    let mut device = device(&file, &CpuOptions { batch: 7, ..exact() }).unwrap();
    let mut session = Session::new(&mut device, &in_format(KvFormat::F32)).unwrap();
    let mut rows = Vec::new();
    session.forward_hidden(&mut device, &tokens(), &mut |_, row| rows.extend_from_slice(row)).unwrap();
    let difference = worst(&rows, &floats("qwen3-bytes.hidden"));
    assert!(difference < 1e-4, "{difference}");

    let logits = floats("qwen3-rotated.logits");
    let mut session = Session::new(&mut device, &in_format(KvFormat::F32)).unwrap();
    let mut best = vec![0; tokens().len()];
    session.forward_prefill_verify(&mut device, &tokens(), &mut best).unwrap();
    let want: Vec<u32> = logits
        .chunks_exact(logits.len() / best.len())
        .map(|row| shohin_core::cpu::op::argmax(row).unwrap())
        .collect();
    assert_eq!(best, want);
}

fn refused(file: &RawFile) -> String {
    let bytes = file.build();
    ModelConfig::from_gguf(&Gguf::parse(&bytes).unwrap()).unwrap_err().to_string()
}

#[test]
fn invalid_keys_are_refused_by_name() {
    let signed = RawFile::of(&fixture("qwen35-rotated.gguf"));
    let tied = RawFile::of(&fixture("qwen3-rotated.gguf"));
    let (number, text) = (RawValue::u32, RawValue::str);
    let flag = |on| RawValue { kind: 7, bytes: vec![u8::from(on)] };
    let ints = |values: &[i32]| {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        RawValue::array(5, values.len() as u64, &bytes)
    };
    let ones = |n: usize| vec![1; n];
    let names = |names: &[&str]| RawValue::strings(names);
    for (name, value, want) in [
        ("scale", number(1), "a file without this key"),
        ("version", number(0), "is 0, expected 1 or 2"),
        ("version", number(2), "tied_output is 0, expected true in version 2"),
        ("tied_output", flag(true), "tied_output is 1, expected true in version 2 and absent in version 1"),
        ("block_size", number(0), "is 0, expected a power of two"),
        ("block_size", number(8), "is 8, expected a power of two"),
        ("block_size", number(24), "is 24, expected a power of two"),
        ("block_size", number(1 << 16), "is 65536, expected a power of two"),
        ("block_size", number(32), "expected matrices whose width is a multiple of block_size"),
        ("block_size", text("16"), "expected an unsigned integer"),
        ("transform", text("walsh"), "expected normalized-sylvester-walsh-hadamard"),
        ("axis", text("output"), "expected input-last-dimension"),
        ("sign_mode", text("random"), "expected identity or explicit"),
        ("sign_mode", text("identity"), "sign_widths is 2, expected no signs with the mode identity"),
        ("sign_widths", ints(&[32]), "sign_values is 80, expected as many as sign_widths together"),
        ("sign_widths", ints(&[32, 64]), "sign_values is 80, expected as many as sign_widths together"),
        ("sign_widths", ints(&[32, 32]), "sign_widths is 32, expected each width once"),
        ("sign_widths", ints(&[-1]), "sign_widths is 0, expected at least 1 each"),
        ("sign_widths", ints(&[i32::MAX]), "expected at least 1 each"),
        ("sign_widths", ints(&[32, 16, 32]), "expected each width once"),
        ("sign_widths", ints(&[16, 64]), "expected matrices of a width in sign_widths"),
        ("sign_values", ints(&[ones(79), vec![0]].concat()), "sign_values is 0, expected 1 or -1"),
        ("sign_values", ints(&[ones(79), vec![2]].concat()), "sign_values is 2, expected 1 or -1"),
        ("sign_values", ints(&ones(81)), "sign_values is 81, expected as many"),
        ("sign_values", names(&["1"; 80]), "sign_values is 0, expected 1 or -1"),
        ("sign_values", number(1), "expected array"),
        ("weight_names", names(&["blk.0.attn_q.weight"]), "\"blk.0.attn_q.weight\""),
        ("weight_names", names(&["token_embd.weight"]), "expected a matrix of attention"),
        ("weight_names", names(&["output_norm.weight"]), "expected a matrix of attention"),
        ("weight_names", names(&["output.weight"; 2]), "expected each name once"),
        (
            "weight_names",
            names(&["blk.0.ffn_up.weight"]),
            "expected ffn_gate and ffn_up of a block, or neither",
        ),
        ("weight_names", number(3), "expected array"),
        ("inverse_weight_names", names(&["output.weight"]), "expected token_embd.weight"),
        ("gdn_v_grouped", number(1), "expected bool"),
    ] {
        let key = format!("prism.hadamard.{name}");
        let found = refused(&signed.clone().set(&key, value));
        assert!(found.contains("prism.hadamard.") && found.contains(want), "{key}: {found}");
    }
    for name in [
        "version",
        "block_size",
        "transform",
        "axis",
        "sign_mode",
        "sign_widths",
        "sign_values",
        "weight_names",
    ] {
        let key = format!("prism.hadamard.{name}");
        let found = refused(&signed.clone().without(&key));
        assert!(found.contains(&key), "{key}: {found}");
    }
    for (name, value, want) in [
        ("gdn_v_grouped", flag(true), "expected false in a model without linear attention"),
        (
            "inverse_weight_names",
            names(&[]),
            "tied_output is 1, expected false in a model with output.weight",
        ),
        ("weight_names", names(&["output.weight"]), "expected a matrix of attention"),
    ] {
        let found = refused(&tied.clone().set(&format!("prism.hadamard.{name}"), value));
        assert!(found.contains(want), "{name}: {found}");
    }
    let old = tied.clone().set("prism.hadamard.version", number(1)).without("prism.hadamard.tied_output");
    let found = refused(&old);
    assert!(found.contains("version is 1, expected 2, with tied_output"), "{found}");
}

/// With no key of the group the same weights are another model: the keys are read.
#[test]
fn rotations_matter() {
    for (file, want, tokens) in models() {
        let mut plain = RawFile::of(&file);
        plain.entries.retain(|(key, _)| !key.starts_with(b"prism.hadamard."));
        let plain = plain.build();
        let found = all_logits(&mut device(&plain, &exact()).unwrap(), &tokens, &in_format(KvFormat::F32));
        assert!(worst(&found.unwrap(), &want) > 0.1);
    }
}

#[test]
fn adapters_and_ranks_are_refused() {
    let (file, lora) = (fixture("qwen3-rotated.gguf"), fixture("lora/some.gguf"));
    let model = BonsaiModel::load(&file[..]).unwrap();
    let parsed = Gguf::parse(&lora).unwrap();
    let adapter = LoraAdapter::from_gguf(&parsed).unwrap();
    let found = model.adapt(&[(&adapter, 1.0)], |_| unreachable!()).unwrap_err().to_string();
    assert!(found.contains("weights are not rotated (prism.hadamard.*)"), "{found}");
    for split in [Split::Pipeline(2), Split::Tensor(2)] {
        let program = ModelConfig::from_gguf(&Gguf::parse(&file).unwrap()).unwrap().program();
        let found = program.split(split, 0).unwrap_err().to_string();
        assert!(found.contains("a rotated basis"), "{found}");
    }
}
