//! Maple: what files say of its layers and experts. Its results are compared in `convert/tests/folder.rs`.

use shohin_core::gguf::Gguf;
use shohin_core::model::RopeScaling;
use shohin_core::{Format, KvFormat, ModelConfig};
use shohin_tests::cpu::{all_logits, device, exact, in_format};
use shohin_tests::model::{Kind, Model, Shape, Stored};
use shohin_tests::raw::{RawFile, RawValue};

fn model() -> RawFile {
    let shape =
        Shape { kind: Kind::Maple(5), layers: 5, rotated: Some(32), yarn: None, ..Shape::tiny_experts() };
    RawFile::of(&Model::new(shape, Stored::new(Format::F32), 3).to_vec().unwrap())
}

fn flags(flags: &[bool]) -> RawValue {
    let bytes: Vec<u8> = flags.iter().map(|flag| u8::from(*flag)).collect();
    RawValue::array(7, flags.len() as u64, &bytes)
}

fn numbers(kind: u32, numbers: &[[u8; 4]]) -> RawValue {
    RawValue::array(kind, numbers.len() as u64, numbers.as_flattened())
}

fn logits(file: &RawFile) -> Vec<f32> {
    let file = file.build();
    let tokens: Vec<u32> = (0..20).map(|i| (7 * i * i + 3 * i + 1) % 300).collect();
    all_logits(&mut device(&file, &exact()).unwrap(), &tokens, &in_format(KvFormat::F32)).unwrap()
}

fn refused(file: &RawFile) -> String {
    let file = file.build();
    ModelConfig::from_gguf(&Gguf::parse(&file).unwrap()).unwrap_err().to_string()
}

/// Writers of such files differ.
#[test]
fn several_spellings_are_the_same_model() {
    let right = logits(&model());
    let ones = [1u32, 1, 1, 0, 1].map(u32::to_le_bytes);
    for other in [
        model().set("maple.attention.sliding_window_pattern", numbers(4, &ones)),
        model().set("maple.swiglu_clamp_exp", numbers(6, &[7.0f32.to_le_bytes(); 5])),
        model().without("maple.swiglu_clamp_exp"),
        model()
            .set("maple.rope.dimension_count", RawValue::u32(0))
            .set("maple.rope.dimension_count_swa", RawValue::u32(32)),
    ] {
        assert!(logits(&other) == right);
    }
    for other in [
        model().set("maple.attention.sliding_window_pattern", flags(&[true; 5])),
        model().set("maple.attention.sliding_window", RawValue::u32(6)),
        model().set("maple.swiglu_clamp_exp", RawValue::f32(0.5)),
        model().set("maple.rope.dimension_count", RawValue::u32(16)),
    ] {
        assert!(logits(&other) != right);
    }
}

#[test]
fn invalid_values_are_refused_by_name() {
    let clamp = |values: &[f32]| {
        let values: Vec<[u8; 4]> = values.iter().map(|value| value.to_le_bytes()).collect();
        numbers(6, &values)
    };
    for (key, value, want) in [
        ("attention.sliding_window", RawValue::u32(0), "expected at least 1"),
        ("attention.sliding_window_pattern", flags(&[true; 4]), "is 4, expected one element for each layer"),
        ("attention.sliding_window_pattern", numbers(4, &[[0; 4]; 6]), "expected one element for each layer"),
        ("attention.sliding_window_pattern", RawValue::u32(4), "expected array"),
        ("swiglu_clamp_exp", clamp(&[7.0; 4]), "is 4, expected one element for each layer"),
        ("swiglu_clamp_exp", clamp(&[7.0, 7.0, 6.0, 7.0, 7.0]), "is 6, expected the same in every layer"),
        ("swiglu_clamp_exp", RawValue::f32(0.0), "expected a positive number"),
        ("swiglu_clamp_exp", RawValue::f32(f32::NAN), "expected a positive number"),
        ("swiglu_clamp_exp", RawValue::u32(7), "expected f32"),
        ("rope.dimension_count", RawValue::u32(0), "maple.rope.dimension_count_swa"),
        ("expert_count", RawValue::u32(0), "expected 1 to 4096"),
    ] {
        let found = refused(&model().set(&format!("maple.{key}"), value));
        assert!(found.contains("maple.") && found.contains(want), "{key}: {found}");
    }
    for key in ["attention.sliding_window", "attention.sliding_window_pattern"] {
        let found = refused(&model().without(&format!("maple.{key}")));
        assert!(found.contains(key), "{found}");
    }
}

#[test]
fn layers_are_as_the_file_says() {
    let file = model().build();
    let config = ModelConfig::from_gguf(&Gguf::parse(&file).unwrap()).unwrap();
    assert_eq!((config.layers.windowed, config.layers.unrotated), (vec![0, 1, 2, 4], vec![3]));
    assert_eq!((config.rotated, config.experts.unwrap().clamp), (Some(32), Some(7.0)));
    assert_eq!(config.positions.frequencies().scaling, RopeScaling::None);
}
