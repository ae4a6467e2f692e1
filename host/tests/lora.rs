//! Adapters (LoRA) of loaded models: what they are kept apart from, where they run, and PEFT's folders
//! (`tests/oracle/lora.py`).
#![cfg(feature = "convert")]

use serde_json::{Value, json};
use shohin::convert::{ConvertOptions, convert, convert_adapter};
use shohin::{Activations, Builder, Error, KvFormat, Model, Split, WeightCache};
use shohin_core::cpu::Isa;
use shohin_core::cpu::repack::repacks;
use shohin_core::model::ModelBytes;
use shohin_core::{Format, Gguf};
use shohin_tests::lora::Adapter;
use shohin_tests::model;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn builder() -> Builder {
    Model::builder().cpu().threads(2)
}

/// A folder with a model and an adapter for it.
fn files() -> (TempDir, PathBuf, PathBuf) {
    let dir = TempDir::new().unwrap();
    let [path, lora] = ["model.gguf", "lora.gguf"].map(|name| dir.path().join(name));
    let bytes = model::Model::tiny(Format::Q1_0);
    fs::write(&lora, Adapter::random(&Gguf::parse(&bytes).unwrap(), &["blk."], 4, 0.1, 3).to_vec()).unwrap();
    fs::write(&path, bytes).unwrap();
    (dir, path, lora)
}

fn logits(model: &Model) -> Vec<f32> {
    let tokens: Vec<u32> = (0..20).map(|i| i * 7 % 300).collect();
    model.sequence(64).unwrap().feed(&tokens).unwrap().to_vec()
}

#[test]
fn the_weight_cache_keeps_the_model_without_its_adapters() {
    let (dir, path, lora) = files();
    let expected = [None, Some(1.0), Some(-0.5)].map(|scale| {
        let builder = builder();
        let builder = if let Some(scale) = scale { builder.adapter(&lora, scale) } else { builder };
        (builder.clone(), logits(&builder.load(&path).unwrap()))
    });
    assert!(
        expected[0].1 != expected[1].1 && expected[1].1 != expected[2].1 && expected[0].1 != expected[2].1
    );
    for order in [[0, 1, 2, 0], [1, 2, 0, 1]] {
        let cache = dir.path().join(format!("cache-{order:?}"));
        for (i, which) in order.into_iter().enumerate() {
            let (builder, expected) = &expected[which];
            let builder = builder.clone().weight_cache(WeightCache::in_dir(&cache).smallest(0));
            let model = builder.load(&path).unwrap();
            model.finish_caching().unwrap();
            assert_eq!(model.is_cached(), i > 0 && repacks(Isa::detect()), "{order:?} {i}");
            assert!(logits(&model) == *expected, "{order:?} {i}");
        }
        let kept = fs::read_dir(&cache).map_or(0, Iterator::count);
        assert_eq!(kept, usize::from(repacks(Isa::detect())));
    }
}

#[test]
fn conversations_do_not_go_on_with_other_adapters() {
    let (dir, path, lora) = files();
    let other = dir.path().join("other.gguf");
    let base = fs::read(&path).unwrap();
    fs::write(&other, Adapter::random(&Gguf::parse(&base).unwrap(), &["blk."], 4, 0.1, 4).to_vec()).unwrap();
    let load = |adapters: &[(&Path, f32)]| {
        let with = |builder: Builder, (path, scale): &(&Path, f32)| builder.adapter(*path, *scale);
        adapters.iter().fold(builder(), with).load(&path).unwrap()
    };
    let all = [
        load(&[]),
        load(&[(&lora, 1.0)]),
        load(&[(&lora, 0.5)]),
        load(&[(&other, 1.0)]),
        load(&[(&lora, 1.0), (&other, 1.0)]),
    ];
    let snapshots: Vec<_> = all.iter().map(|model| model.chat().unwrap().snapshot().unwrap()).collect();
    for (i, model) in all.iter().enumerate() {
        for (j, snapshot) in snapshots.iter().enumerate() {
            let restored = model.chat().unwrap().restore(snapshot);
            let code = restored.as_ref().map_or_else(Error::code, |()| "restored");
            assert_eq!(code, if i == j { "restored" } else { "snapshot_foreign" }, "{i} {j}");
        }
    }
    let without_effect = load(&[(&lora, 0.0)]);
    assert!(logits(&without_effect) == logits(&all[0]));
    without_effect.chat().unwrap().restore(&snapshots[0]).unwrap();
}

#[test]
fn memory_includes_adapters() {
    let (_dir, path, lora) = files();
    let (base, adapted) = (builder(), builder().adapter(&lora, 2.0));
    let sizes = |builder: &Builder| {
        let model = builder.load(&path).unwrap();
        let plan = model.memory_plan(64).unwrap();
        (model.weight_bytes(), plan.total, model.weights().bytes_per_token())
    };
    let (before, after) = (sizes(&base), sizes(&adapted));
    let factors: usize = {
        let bytes = fs::read(&lora).unwrap();
        Gguf::parse(&bytes).unwrap().tensors().iter().map(|tensor| tensor.len() as usize).sum()
    };
    assert_eq!(after.2 - before.2, factors);
    // Aligned.
    assert!((factors..factors + 28 * 64).contains(&(after.0 - before.0)));
    assert!(after.1 > before.1);
    assert_eq!(sizes(&adapted.clone().inspect_only()), after);
    let model = adapted.load(&path).unwrap();
    assert_eq!(
        model.adapters().map(|(file, scale)| (file.name().into(), scale)).collect::<Vec<_>>(),
        [(lora.display().to_string(), 2.0)]
    );
}

/// Adapters that join a loaded model do what those do that it is loaded with, and share its weights.
#[test]
fn models_share_their_weights_with_others_that_are_adapted() {
    let (dir, path, lora) = files();
    let cache = WeightCache::in_dir(dir.path().join("cache")).smallest(0);
    for builder in [builder(), builder().repack(false), builder().weight_cache(cache)] {
        let base = builder.load(&path).unwrap();
        base.finish_caching().unwrap();
        let adapter = shohin::Adapter::open(&lora, &base).unwrap();
        let plain = logits(&base);
        let adapted: Vec<Model> = [1.0, -0.5]
            .into_iter()
            .map(|scale| base.adapted(&[adapter.clone().at(scale)]).unwrap())
            .collect();
        for (model, scale) in adapted.iter().zip([1.0, -0.5]) {
            let expected = builder.clone().adapter(&lora, scale).load(&path).unwrap();
            assert!(logits(model) == logits(&expected), "{scale}");
            assert_eq!(model.weight_bytes(), expected.weight_bytes());
            let snapshot = model.chat().unwrap().snapshot().unwrap();
            expected.chat().unwrap().restore(&snapshot).unwrap();
            assert!(base.chat().unwrap().restore(&snapshot).is_err());
            let bytes = |model: &Model| model.weights().model().weights().parts()[0].bytes().as_ptr();
            assert_eq!(bytes(model), bytes(&base));
        }
        let both = base.adapted(&[adapter.clone(), adapter.at(-0.5)]).unwrap();
        let again = adapted[0].adapted(&[shohin::Adapter::open(&lora, &base).unwrap().at(-0.5)]).unwrap();
        assert!(logits(&both) == logits(&again));
        assert!(logits(&base) == plain);
        // It stays when the model it was made from has gone.
        drop(base);
        assert!(logits(&adapted[0]) != plain);
    }
    let base = builder().load(&path).unwrap();
    let wrong = shohin::Adapter::from_bytes("wrong.gguf", &fs::read(&path).unwrap()).unwrap();
    let found = base.adapted(&[wrong]).unwrap_err().to_string();
    assert_eq!(found, "wrong.gguf: metadata key general.type is missing");
    let windowed = builder().weights_window(1 << 20).load(&path).unwrap();
    let refused = windowed.adapted(&[shohin::Adapter::open(&lora, &base).unwrap()]).unwrap_err();
    assert_eq!(refused.code(), "device");
}

#[test]
fn adapters_are_for_whole_models_in_memory() {
    let (_dir, path, lora) = files();
    let with = || builder().adapter(&lora, 1.0);
    let option = |builder: Builder| match builder.load(&path).unwrap_err() {
        Error::Option { name, found, expected } => {
            assert!(expected.contains("with an adapter"), "{expected}");
            format!("{name} {found}")
        }
        other => panic!("{other}"),
    };
    assert_eq!(option(with().split(Split::Tensor(2))), "split tensor:2");
    assert_eq!(option(with().cuda(0).split(Split::Tensor(2))), "split tensor:2");
    assert_eq!(option(with().weights_window(1 << 20)), "weights-window 1048576");
}

#[test]
fn errors_name_the_file() {
    let (dir, path, lora) = files();
    let says = |builder: Builder, path: &Path| builder.load(path).unwrap_err().to_string();
    let found = says(builder(), &lora);
    assert_eq!(
        found,
        format!(
            "{}: general.type is \"adapter\", which is not supported; expected a model, to which adapters are \
             applied (--lora)",
            lora.display()
        )
    );
    let found = says(builder().adapter(&path, 1.0), &path);
    assert_eq!(found, format!("{}: metadata key general.type is missing", path.display()));
    let found = says(builder().adapter(&lora, f32::INFINITY), &path);
    assert!(found.starts_with(&format!("{}: scale of an adapter is inf", lora.display())), "{found}");
    let missing = dir.path().join("missing.gguf");
    assert_eq!(builder().adapter(missing, 1.0).load(&path).unwrap_err().code(), "io");
    let found = Model::builder().cpu().adapter(&lora, 1.0).load_built_in().unwrap_err().to_string();
    let expected = "tensor blk.0.attn_q.weight.lora_b is 4 x 768, expected 4 x 256";
    assert_eq!(found, format!("{}: {expected}", lora.display()));
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/hf").join(name)
}

/// The largest difference to the logits of the model whose weights were merged.
fn difference(model: &Model) -> f32 {
    let texts: Vec<(String, Vec<u32>)> =
        serde_json::from_slice(&fs::read(fixture("llama").join("texts.json")).unwrap()).unwrap();
    let want = fs::read(fixture("llama-lora").join("logits.f32")).unwrap();
    let want: Vec<f32> = want.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
    let mut got = Vec::new();
    model.logits(&texts[0].1, &mut |_, row| got.extend_from_slice(row)).unwrap();
    assert_eq!(got.len(), want.len());
    got.iter().zip(&want).map(|(got, want)| (got - want).abs()).fold(0.0, f32::max)
}

/// rsLoRA, and ranks and alphas of single modules, in a model whose queries and keys have another order of rows in GGUF.
#[test]
fn a_peft_folder_says_what_the_merged_model_says() {
    let (base, folder) = (fixture("llama"), fixture("llama-lora"));
    let exact = || builder().activations(Activations::F32).kv(KvFormat::F32);
    let difference_with = |lora: &Path| difference(&exact().adapter(lora, 1.0).load(&base).unwrap());
    let direct = difference_with(&folder);
    assert!(direct < 1e-4, "{direct}");
    assert!(difference(&exact().load(&base).unwrap()) > 0.3);

    let dir = TempDir::new().unwrap();
    let [gguf, of_folder, of_gguf] = ["base.gguf", "a.gguf", "b.gguf"].map(|name| dir.path().join(name));
    convert(&base, &gguf, &ConvertOptions::new(), |_, _| ()).unwrap();
    let done = convert_adapter(&folder, &base, &of_folder, &ConvertOptions::new()).unwrap();
    convert_adapter(&folder, &gguf, &of_gguf, &ConvertOptions::new()).unwrap();
    let bytes = fs::read(&of_folder).unwrap();
    assert_eq!((done.tensors.len(), done.bytes), (28, bytes.len() as u64));
    assert!(bytes == fs::read(&of_gguf).unwrap());
    assert_eq!(difference_with(&of_folder), direct);
    let file = Gguf::parse(&bytes).unwrap();
    let text = |key| file.metadata().str(key).unwrap().unwrap();
    assert_eq!([text("general.architecture"), text("general.name")], ["llama", "llama-lora"]);
    // lora_alpha sqrt(r)
    assert_eq!(file.metadata().f32("adapter.lora.alpha"), Ok(Some(16.0)));
    let error = convert_adapter(&folder, &gguf, &of_gguf, &ConvertOptions::new()).unwrap_err();
    assert!(error.to_string().contains("it exists already"), "{error}");
}

/// The adapter with other settings.
fn with_settings(change: impl FnOnce(&mut Value)) -> TempDir {
    let dir = TempDir::new().unwrap();
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::copy(fixture("llama-lora").join(name), dir.path().join(name)).unwrap();
    }
    let path = dir.path().join("adapter_config.json");
    let mut settings = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut settings);
    fs::write(path, settings.to_string()).unwrap();
    dir
}

#[test]
fn settings_of_peft_that_change_results_are_refused_by_name() {
    let base = fixture("llama");
    let says = |folder: &TempDir| {
        let out = folder.path().join("out.gguf");
        let error = convert_adapter(folder.path(), &base, &out, &ConvertOptions::new()).unwrap_err();
        assert!(!out.exists());
        error.to_string()
    };
    for (key, value, expected) in [
        ("peft_type", json!("IA3"), "peft_type is \"IA3\", expected \"LORA\""),
        ("peft_type", Value::Null, "peft_type is null, expected \"LORA\""),
        ("use_dora", json!(true), "use_dora is true, expected false"),
        ("bias", json!("lora_only"), "bias is \"lora_only\", expected \"none\""),
        ("modules_to_save", json!(["lm_head"]), "modules_to_save is [\"lm_head\"], expected []"),
        ("fan_in_fan_out", json!(true), "fan_in_fan_out is true, expected false"),
        ("lora_bias", json!(true), "lora_bias is true, expected false"),
        (
            "init_lora_weights",
            json!("pissa_niter_4"),
            "init_lora_weights is \"pissa_niter_4\", expected one that",
        ),
        ("lora_alpha", json!(0), "lora_alpha is 0, expected a number other than 0"),
        ("r", json!(0), "r is 0, expected a whole number over 0"),
        ("r", json!(5), "layers.0.mlp.down_proj.lora_A.weight has 4 rows, expected the rank 5"),
        (
            "rank_pattern",
            json!({}),
            "layers.1.self_attn.q_proj.lora_A.weight has 6 rows, expected the rank 4",
        ),
        ("rank_pattern", json!({ "q_.*": 6 }), "rank_pattern.q_.* is 6, expected a name without regular"),
        (
            "alpha_pattern",
            json!({ "k_proj": 3, "self_attn.k_proj": 4 }),
            "alpha_pattern is {\"k_proj\":3,\"self_attn.k_proj\":4}, expected one number for each module",
        ),
        ("alpha_pattern", json!({ "k_proj": "x" }), "alpha_pattern is \"x\", expected a number"),
        ("target_modules", json!(["q_proj"]), "is of a module that target_modules does not name"),
        ("use_rslora", json!(1), "use_rslora is 1, expected true or false"),
    ] {
        let folder = with_settings(|settings| settings[key] = value);
        let found = says(&folder);
        assert!(found.contains(expected), "{key}: {found}");
    }
    let dir = with_settings(|_| ());
    let weights = dir.path().join("adapter_model.safetensors");
    let bytes = fs::read(&weights).unwrap();
    // Names of the same length.
    for (from, to, expected) in [
        (
            "layers.0.self_attn.q_proj.lora_A",
            "layers.0.self_attn.q_proj.lora_C",
            "layers.0.self_attn.q_proj.lora_A.weight is missing",
        ),
        (
            "layers.0.self_attn.q_proj.lora_B",
            "layers.7.self_attn.q_proj.lora_B",
            "layers.0.self_attn.q_proj.lora_B.weight is missing",
        ),
        ("layers.0.mlp.up_proj.", "layers.7.mlp.up_proj.", "is not part of this architecture"),
        (
            "base_model.model.model.layers.0.mlp.up",
            "base_model.mode_.model.layers.0.mlp.up",
            "is not supported, expected only",
        ),
    ] {
        let mut changed = bytes.clone();
        let found = bytes.windows(from.len()).enumerate().filter(|(_, window)| *window == from.as_bytes());
        found.for_each(|(at, _)| changed[at..at + to.len()].copy_from_slice(to.as_bytes()));
        fs::write(&weights, changed).unwrap();
        let found = says(&dir);
        assert!(found.contains(expected), "{to}: {found}");
    }
    fs::write(&weights, &bytes[..bytes.len() - 1]).unwrap();
    assert!(says(&dir).contains("not a valid safetensors file"));
    fs::remove_file(&weights).unwrap();
    assert!(says(&dir).contains("adapter_model.safetensors is missing"));
    // Another architecture has modules of the same names, but other shapes.
    let error = builder().adapter(fixture("llama-lora"), 1.0).load_built_in().unwrap_err().to_string();
    assert!(error.contains("tensor blk.0.ffn_down.weight.lora_a is 80 x 4, expected "), "{error}");
}
