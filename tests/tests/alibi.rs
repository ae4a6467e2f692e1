//! ALiBi against Hugging Face transformers (`oracle/alibi.py`).

use std::fs;
use std::path::Path;

use shohin_core::cpu::{Cpu, CpuOptions, Isa};
use shohin_core::model::{ModelConfigBuilder, Split, alibi};
use shohin_core::{BonsaiModel, Gguf, KvFormat, ModelConfig, Serial};
use shohin_tests::cpu::{all_logits, exact, in_format};
use shohin_tests::raw::{RawFile, RawValue};

fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)).unwrap()
}

#[test]
fn transformers_has_the_same_slopes() {
    for line in String::from_utf8(fixture("alibi_slopes.txt")).unwrap().lines() {
        let numbers: Vec<f64> = line.split(' ').map(|n| n.parse().unwrap()).collect();
        let slopes = alibi::slopes(numbers[0] as usize, numbers[1] as f32);
        assert_eq!(slopes.len(), numbers.len() - 2);
        for (got, want) in slopes.iter().zip(&numbers[2..]) {
            // Powers of a rounded base there.
            assert!((f64::from(*got) / want - 1.0).abs() < 2e-5, "{line}: {got} {want}");
        }
    }
}

fn logits(file: &[u8], options: &CpuOptions, configure: impl FnOnce(ModelConfig) -> ModelConfig) -> Vec<f32> {
    let gguf = Gguf::parse(file).unwrap();
    let config = configure(ModelConfig::from_gguf(&gguf).unwrap());
    let model = BonsaiModel::with_config(&gguf, config).unwrap();
    let tokens: Vec<u32> = b"The fox ran home".iter().copied().map(u32::from).collect();
    all_logits(&mut Cpu::new(model, options, Serial).unwrap(), &tokens, &in_format(KvFormat::F32)).unwrap()
}

fn close(got: &[f32], want: &str) {
    let want: Vec<f32> = fixture(want).as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
    assert_eq!(got.len(), want.len());
    let worst = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-4, "{worst}");
}

fn with(config: ModelConfig, max_bias: f32) -> ModelConfig {
    ModelConfigBuilder::from(config).alibi(max_bias).build().unwrap()
}

#[test]
fn transformers_agrees() {
    let file = fixture("qwen3-alibi.gguf");
    for isa in Isa::available() {
        for batch in [1, 5, 16] {
            let options = CpuOptions { isa, batch, ..exact() };
            close(&logits(&file, &options, |config| config), "qwen3-alibi.logits");
        }
    }
    // By the option, of a file that does not say it, and the other way round.
    close(&logits(&file, &exact(), |config| with(config, 0.0)), "qwen3-alibi.rope");
    let plain = RawFile::of(&file).without("qwen3.attention.max_alibi_bias").build();
    close(&logits(&plain, &exact(), |config| config), "qwen3-alibi.rope");
    close(&logits(&plain, &exact(), |config| with(config, 8.0)), "qwen3-alibi.logits");
}

#[test]
fn the_file_says_what_is_rotated() {
    let file = || RawFile::of(&fixture("qwen3-alibi.gguf"));
    let key = "qwen3.rope.dimension_count";
    close(&logits(&file().set(key, RawValue::u32(16)).build(), &exact(), |c| c), "qwen3-alibi.both");
    close(&logits(&file().set(key, RawValue::u32(0)).build(), &exact(), |c| c), "qwen3-alibi.logits");
    let error = |file: RawFile| {
        let file = file.build();
        let gguf = Gguf::parse(&file).unwrap();
        ModelConfig::from_gguf(&gguf).unwrap_err().to_string()
    };
    let some = error(file().set(key, RawValue::u32(8)));
    assert!(some.contains("qwen3.rope.dimension_count") && some.contains('8'), "{some}");
    let bias = "qwen3.attention.max_alibi_bias";
    for wrong in [-1.0, f32::NAN, f32::INFINITY] {
        let found = error(file().set(bias, RawValue::f32(wrong)));
        assert!(found.contains(bias) && found.contains("0 to 1024"), "{found}");
    }
    let neither = error(file().without(bias).set(key, RawValue::u32(0)));
    assert!(neither.contains("the same as key_length"), "{neither}");
}

#[test]
fn ranks_have_the_slopes_of_their_heads() {
    let file = fixture("qwen3-alibi.gguf");
    let config = ModelConfig::from_gguf(&Gguf::parse(&file).unwrap()).unwrap();
    let (program, slopes) = (config.program(), alibi::slopes(6, 8.0));
    for rank in 0..2 {
        let part = program.split(Split::Tensor(2), rank).unwrap().program;
        assert_eq!(part.alibi_slopes, slopes[3 * rank..3 * rank + 3]);
    }
}
