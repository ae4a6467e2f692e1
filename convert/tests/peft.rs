//! Adapters from GGUF files to PEFT's folders and back; `tests/oracle/peft_folder.py` loads such folders with PEFT.

use serde_json::{Value, json};
use shohin_convert::{
    ConvertOptions, adapter_to_folder, convert, convert_adapter, convert_adapter_to_folder,
};
use shohin_core::gguf::Gguf;
use shohin_core::model::LoraAdapter;
use shohin_core::{Format, ModelConfig};
use shohin_tests::lora::Adapter;
use shohin_tests::model::Model;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/hf").join(name)
}

/// The factors of `B A` of each matrix, and the bytes of both.
fn factors(file: &[u8]) -> Vec<(String, f64, Vec<u8>, Vec<u8>)> {
    let gguf = Gguf::parse(file).unwrap();
    let adapter = LoraAdapter::from_gguf(&gguf).unwrap();
    let pairs = adapter.pairs().iter().map(|pair| {
        let bytes = [&pair.a, &pair.b].map(|matrix| matrix.data().to_vec());
        let [a, b] = bytes;
        (pair.name.to_string(), adapter.config().factor(pair.rank()), a, b)
    });
    let mut pairs: Vec<_> = pairs.collect();
    pairs.sort_by(|a, b| a.0.cmp(&b.0));
    pairs
}

fn settings(folder: &Path) -> Value {
    serde_json::from_slice(&fs::read(folder.join("adapter_config.json")).unwrap()).unwrap()
}

/// Of Llama, whose queries and keys have their rows in another order in GGUF.
#[test]
fn a_folder_survives_the_way_through_gguf() {
    let dir = TempDir::new().unwrap();
    let [base, first, folder, second, again] =
        ["base.gguf", "1.gguf", "folder", "2.gguf", "again"].map(|name| dir.path().join(name));
    let options = ConvertOptions::new();
    convert(fixture("llama"), &base, &options, |_, _| ()).unwrap();
    convert_adapter(fixture("llama-lora"), &base, &first, &options).unwrap();
    let done = convert_adapter_to_folder(&first, &base, &folder, &options).unwrap();
    let written =
        ["adapter_config.json", "adapter_model.safetensors"].map(|name| fs::read(folder.join(name)).unwrap());
    assert_eq!((done.tensors.len(), done.bytes), (28, written.iter().map(|file| file.len() as u64).sum()));
    convert_adapter(&folder, &base, &second, &options).unwrap();
    let [first_bytes, second_bytes] = [&first, &second].map(|path| fs::read(path).unwrap());
    assert_eq!(factors(&first_bytes).len(), 14);
    assert!(factors(&first_bytes) == factors(&second_bytes));
    // From the folder of the model, only its name differs.
    convert_adapter_to_folder(&second, fixture("llama"), &again, &options).unwrap();
    assert!(fs::read(again.join("adapter_model.safetensors")).unwrap() == written[1]);
    let (mut of_file, of_folder) = (settings(&folder), settings(&again));
    assert_eq!(of_folder["base_model_name_or_path"], json!(fixture("llama").display().to_string()));
    of_file["base_model_name_or_path"] = of_folder["base_model_name_or_path"].clone();
    assert_eq!(of_file, of_folder);
    // lora_alpha sqrt(r) of the folder that it began with.
    assert_eq!((&of_file["r"], &of_file["lora_alpha"]), (&json!(4), &json!(16)));
    assert_eq!(of_file["rank_pattern"], json!({ "model.layers.1.self_attn.q_proj": 6 }));
    assert_eq!(of_file["alpha_pattern"], json!({}));
    let names = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"];
    assert_eq!(of_file["target_modules"], json!(names));
    let error = convert_adapter_to_folder(&first, &base, &folder, &options).unwrap_err().to_string();
    assert!(error.contains("it exists already"), "{error}");
    convert_adapter_to_folder(&first, &base, &folder, &options.replace(true)).unwrap();
}

#[test]
fn factors_of_any_rank_and_without_alpha_are_written() {
    let dir = TempDir::new().unwrap();
    let bytes = Model::tiny(Format::F16);
    let gguf = Gguf::parse(&bytes).unwrap();
    let config = ModelConfig::from_gguf(&gguf).unwrap();
    let base = dir.path().join("base.gguf");
    fs::write(&base, &bytes).unwrap();
    for (i, alpha) in [0.0, 6.0, 2.5].into_iter().enumerate() {
        let mut adapter = Adapter::random(&gguf, &["blk.0.attn_q.", "blk.1.ffn_down"], 4, 0.1, 1);
        adapter.pairs.extend(Adapter::random(&gguf, &["blk.0.attn_v."], 3, 0.1, 2).pairs);
        adapter.alpha = alpha;
        let [folder, back] = ["folder", "back.gguf"].map(|name| dir.path().join(format!("{i}-{name}")));
        let options = ConvertOptions::new();
        let adapter = adapter.to_vec();
        adapter_to_folder(&adapter, &config, "a/base", &folder, &options).unwrap();
        let found = settings(&folder);
        let ranks = json!({ "model.layers.0.self_attn.v_proj": 3 });
        assert_eq!((&found["r"], &found["rank_pattern"]), (&json!(4), &ranks));
        assert_eq!(found["base_model_name_or_path"], "a/base");
        // Not in every layer.
        let modules = [
            "model.layers.0.self_attn.q_proj",
            "model.layers.0.self_attn.v_proj",
            "model.layers.1.mlp.down_proj",
        ];
        assert_eq!(found["target_modules"], json!(modules));
        let alphas = if alpha == 0.0 { ranks } else { json!({}) };
        assert_eq!(
            (found["lora_alpha"].as_f64(), &found["alpha_pattern"]),
            (Some(if alpha == 0.0 { 4.0 } else { f64::from(alpha) }), &alphas)
        );
        convert_adapter(&folder, &base, &back, &options).unwrap();
        let (before, after) = (factors(&adapter), factors(&fs::read(&back).unwrap()));
        if alpha != 0.0 {
            assert!(before == after, "{alpha}");
        }
        for ((name, factor, a, b), (_, after_factor, after_a, after_b)) in before.iter().zip(&after) {
            assert_eq!(a, after_a, "{name}");
            for (b, after) in b.as_chunks::<4>().0.iter().zip(after_b.as_chunks::<4>().0) {
                let [b, after] = [b, after].map(|x| f64::from(f32::from_le_bytes(*x)));
                assert!((b * factor - after * after_factor).abs() < 1e-7, "{name}");
            }
        }
    }
}

#[test]
fn an_adapter_for_another_model_is_no_folder() {
    let dir = TempDir::new().unwrap();
    let bytes = Model::tiny(Format::F16);
    let gguf = Gguf::parse(&bytes).unwrap();
    let [base, lora, out] = ["base.gguf", "lora.gguf", "out"].map(|name| dir.path().join(name));
    fs::write(&base, &bytes).unwrap();
    let adapter = Adapter::random(&gguf, &["attn_q."], 4, 0.1, 1);
    let says = |change: &dyn Fn(&mut Adapter)| {
        let mut adapter = adapter.clone();
        change(&mut adapter);
        fs::write(&lora, adapter.to_vec()).unwrap();
        let error = convert_adapter_to_folder(&lora, &base, &out, &ConvertOptions::new()).unwrap_err();
        assert!(!out.exists());
        error.to_string()
    };
    let found = says(&|adapter| adapter.architecture = "llama".into());
    assert!(found.contains("lora.gguf: general.architecture is \"llama\", expected qwen3"), "{found}");
    for name in ["blk.99.attn_q.weight", "blk.0.attn_x.weight"] {
        let found = says(&|adapter| adapter.pairs[0].name = name.into());
        assert!(found.contains("is not part of this architecture"), "{found}");
    }
    fs::write(&lora, &bytes).unwrap();
    let error = convert_adapter_to_folder(&lora, &base, &out, &ConvertOptions::new()).unwrap_err();
    assert!(error.to_string().contains("general.type"), "{error}");
}
