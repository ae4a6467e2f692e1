//! Scaled rotary frequencies against Hugging Face transformers (`oracle/rope_scaling.py`).

use std::fs;
use std::path::Path;

use shohin_core::cpu::Cpu;
use shohin_core::gguf::GgufWriter;
use shohin_core::model::{ModelConfigBuilder, Rope, RopeScaling, Rotary};
use shohin_core::{BonsaiModel, Format, Gguf, KvFormat, ModelConfig, Serial};
use shohin_tests::cpu::{all_logits, exact, in_format};

fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)).unwrap()
}

/// The scaling of a Qwen3 file with these numbers under keys of `qwen3.rope`, this `scaling.type`, and F32 tensors that each
/// hold half a head.
fn scaling_of(
    numbers: &[(&str, f32)],
    kind: Option<&str>,
    tensors: &[&str],
) -> shohin_core::Result<RopeScaling> {
    let file = fixture("qwen3-untied.gguf");
    let gguf = Gguf::parse(&file).unwrap();
    let mut w = GgufWriter::new();
    for (key, value) in gguf.metadata().iter().filter(|(key, _)| !key.contains("rope.scaling")) {
        w.set(key, value).unwrap();
    }
    numbers.iter().for_each(|(key, value)| w.set(&format!("qwen3.rope.{key}"), *value).unwrap());
    if let Some(kind) = kind {
        w.set("qwen3.rope.scaling.type", kind).unwrap();
        w.set("qwen3.rope.scaling.original_context_length", 16u32).unwrap();
    }
    for tensor in gguf.tensors() {
        w.tensor(tensor.name(), tensor.dims(), tensor.format().unwrap()).unwrap();
    }
    let half = ModelConfig::from_gguf(&gguf).unwrap().head_dim / 2;
    let extra = vec![0; 4 * half];
    tensors.iter().for_each(|name| w.tensor(name, &[half as u64], Format::F32).unwrap());
    let data = gguf.tensors().iter().map(|tensor| gguf.data(tensor));
    let file = w.to_vec(data.chain(tensors.iter().map(|_| &extra[..]))).unwrap();
    ModelConfig::from_gguf(&Gguf::parse(&file).unwrap()).map(|config| config.positions.frequencies().scaling)
}

/// As llama.cpp reads it: a factor without a type is a linear one.
#[test]
fn a_factor_without_a_type_is_linear() {
    let read = |numbers: &[(&str, f32)]| scaling_of(numbers, None, &[]);
    let linear = Ok(RopeScaling::Linear { factor: 4.0 });
    assert_eq!(read(&[("scaling.factor", 4.0)]), linear);
    assert_eq!(read(&[("scale_linear", 4.0)]), linear);
    assert_eq!(read(&[("scaling.factor", 4.0), ("scale_linear", 2.0)]), linear);
    assert_eq!(read(&[]), Ok(RopeScaling::None));
    for none in [0.0, 1.0] {
        let found = scaling_of(&[("scaling.factor", none)], None, &["rope_freqs.weight"]);
        assert_eq!(found, Ok(RopeScaling::None));
    }
}

/// llama.cpp applies both; to apply one of them would be fluent nonsense.
#[test]
fn factors_of_a_file_beside_another_scaling_are_refused() {
    let read = |kind, tensors: &[&str]| scaling_of(&[("scaling.factor", 4.0)], kind, tensors);
    let llama3 = ["rope_freqs.weight"];
    let long = ["rope_factors_short.weight", "rope_factors_long.weight"];
    for (kind, tensors, expected) in [
        (None, &llama3[..], "1 in a file with rope_freqs"),
        (Some("linear"), &llama3, "none in a file with rope_freqs"),
        (Some("yarn"), &llama3, "none in a file with rope_freqs"),
        (Some("dynamic"), &llama3, "none in a file with rope_freqs"),
        (Some("linear"), &long, "longrope in a file with rope_factors_short"),
        (Some("yarn"), &long, "longrope in a file with rope_factors_short"),
        (Some("dynamic"), &long[1..], "longrope in a file with rope_factors_short"),
    ] {
        let error = read(kind, tensors).unwrap_err().to_string();
        let named = kind.map_or("qwen3.rope.scaling.factor", |_| "qwen3.rope.scaling.type");
        assert!(error.contains(named) && error.contains(kind.unwrap_or("4")), "{error}");
        assert!(error.contains(expected), "{error}");
    }
    let all = [llama3[0], long[0], long[1]];
    for kind in [None, Some("none"), Some("longrope")] {
        let error = read(kind, &all).unwrap_err().to_string();
        assert!(error.contains("rope_freqs.weight"), "{error}");
    }
    assert_eq!(read(Some("none"), &llama3), Ok(RopeScaling::None));
}

/// llama.cpp's converter writes the `attention_factor` of transformers there, which `ROPE_INIT_FUNCTIONS["yarn"]` returns as
/// it is, or the `attn_factor` that vLLM multiplies with.
#[test]
fn yarn_attn_factor_is_the_whole_magnitude_unless_it_is_less_than_1() {
    let magnitude = |numbers: &[(&str, f32)]| {
        let numbers = [&[("scaling.factor", 4.0)], numbers].concat();
        Rope::new(64, 1e6, scaling_of(&numbers, Some("yarn"), &[]).unwrap()).magnitude()
    };
    let usual = 0.1 * 4f32.ln() + 1.0;
    assert_eq!(magnitude(&[]), usual);
    assert_eq!(magnitude(&[("scaling.yarn_attn_factor", usual)]), usual);
    assert_eq!(magnitude(&[("scaling.yarn_attn_factor", 1.0)]), 1.0);
    // Of DeepSeek-R1-0528-Qwen3-8B.
    assert!((magnitude(&[("scaling.yarn_attn_factor", 0.878_248_9)]) - 1.0).abs() < 1e-6);
    assert_eq!(magnitude(&[("scaling.attn_factor", 0.5)]), 0.5 * usual);
    assert_eq!(magnitude(&[("scaling.attn_factor", 0.5), ("scaling.yarn_attn_factor", 3.0)]), 1.5);
}

#[test]
fn transformers_has_the_same_frequencies() {
    let text = String::from_utf8(fixture("rope_scaling.txt")).unwrap();
    for line in text.lines() {
        let (kind, numbers) = line.split_once(' ').unwrap();
        let numbers: Vec<f64> = numbers.split(' ').map(|n| n.parse().unwrap()).collect();
        let (head, rest) = numbers.split_first_chunk::<2>().unwrap();
        let [head_dim, base] = [head[0] as usize, head[1] as usize];
        let (scaling, rest) = match kind {
            "linear" => (format!("linear:{}", rest[0]), &rest[1..]),
            "dynamic" => (format!("dynamic:{}:{}", rest[1], rest[0]), &rest[3..]),
            _ => (format!("{kind}:{}:{}", rest[1], rest[0]), &rest[2..]),
        };
        let mut scaling: RopeScaling = scaling.parse().unwrap();
        if kind == "dynamic" {
            assert_eq!(scaling.context(), Some(8192));
            scaling = scaling.for_context(numbers[4] as usize);
        }
        let rope = Rope::new(head_dim, base as f32, scaling);
        assert_eq!(rope.speeds().len(), rest.len() - 1, "{line}");
        assert!((f64::from(rope.magnitude()) - rest[0]).abs() < 1e-6, "{line}");
        for (got, want) in rope.speeds().iter().zip(&rest[1..]) {
            // They are of 32 bits there, and so are logarithms and powers on the way.
            assert!((got / want - 1.0).abs() < 3e-6, "{kind} {head_dim} {scaling:?}: {got} {want}");
        }
    }
    for wrong in ["dynamic", "dynamic:4", "dynamic:0.5:8", "dynamic:4:0", "dynamic:4:8:9", "longrope:4:8"] {
        assert!(wrong.parse::<RopeScaling>().is_err(), "{wrong}");
    }
}

fn logits(file: &str, tokens: &[u32], configure: impl FnOnce(ModelConfig) -> ModelConfig) -> Vec<f32> {
    let bytes = fixture(file);
    let gguf = Gguf::parse(&bytes).unwrap();
    let config = configure(ModelConfig::from_gguf(&gguf).unwrap());
    let model = BonsaiModel::with_config(&gguf, config).unwrap();
    let mut device = Cpu::new(model, &exact(), Serial).unwrap();
    all_logits(&mut device, tokens, &in_format(KvFormat::F32)).unwrap()
}

fn scaled(config: ModelConfig, scaling: RopeScaling) -> ModelConfig {
    let rotary = config.positions.frequencies();
    let positions = config.positions.with_frequencies(Rotary { scaling, ..rotary });
    ModelConfig { positions, ..config }
}

fn close(got: &[f32], want: &str) {
    let want: Vec<f32> = fixture(want).as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
    assert_eq!(got.len(), want.len());
    let worst = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-4, "{worst}");
}

#[test]
fn the_context_chooses_the_frequencies() {
    let tokens: Vec<u32> = (0..24).map(|i| (7 * i * i + 3 * i + 1) % 96).collect();
    close(&logits("qwen3-longrope.gguf", &tokens, |config| config), "qwen3-longrope.long");
    close(&logits("qwen3-longrope.gguf", &tokens, |config| config.for_context(9)), "qwen3-longrope.long");
    close(
        &logits("qwen3-longrope.gguf", &tokens[..8], |config| config.for_context(8)),
        "qwen3-longrope.short",
    );
    let dynamic = |config: ModelConfig| {
        let builder = ModelConfigBuilder::from(config).rescale_rope("dynamic:4:8".parse().unwrap());
        builder.build().unwrap()
    };
    close(
        &logits("qwen3-untied.gguf", &tokens, |config| dynamic(config).for_context(24)),
        "qwen3-untied.dynamic",
    );
    // Another scaling in its place leaves the factors unused.
    let plain = |config: ModelConfig| scaled(config, RopeScaling::None);
    let none = logits("qwen3-longrope.gguf", &tokens[..1], plain);
    assert!(none.iter().all(|x| x.is_finite()));
}

#[test]
fn what_is_missing_is_said() {
    let bytes = fixture("qwen3-untied.gguf");
    let gguf = Gguf::parse(&bytes).unwrap();
    let config = ModelConfig::from_gguf(&gguf).unwrap();
    let code = |scaling| scaled(config.clone(), scaling).check().map_err(|error| error.code());
    let long = RopeScaling::LongRope { original_context: 8, attention_factor: 1.0, context: 64 };
    assert_eq!(code(long), Err("missing_tensor"));
    assert_eq!(code(RopeScaling::dynamic_ntk(4.0, 0)), Err("key_value"));
    assert_eq!(code(RopeScaling::dynamic_ntk(0.5, 8)), Err("key_value"));
    assert_eq!(code(RopeScaling::dynamic_ntk(4.0, 8)), Ok(()));
}
