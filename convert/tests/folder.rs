//! Hugging Face folders, converted to GGUF: against transformers and tokenizers (`tests/oracle/hf_folder.py`).

use shohin_convert::{
    ConvertError, ConvertOptions, Error, FileError, Int8, Mix, TensorRule, convert, convert_to_folder,
    in_memory,
};
use shohin_core::gguf::{Gguf, Id42};
use shohin_core::model::RopeScaling;
use shohin_core::tokenizer::Special;
use shohin_core::{BonsaiModel, Cpu, Format, KvFormat, ModelConfig, Serial, Tokenizer};
use shohin_tests::cpu::{all_logits, device, exact, in_format};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const FOLDERS: [(&str, Format); 15] = [
    ("qwen3", Format::Bf16),
    ("qwen3moe", Format::Bf16),
    ("llama3", Format::Bf16),
    ("llama", Format::F16),
    ("qwen2", Format::Bf16),
    ("smollm3", Format::Bf16),
    ("granite", Format::Bf16),
    ("gemma3", Format::Bf16),
    ("bitnet", Format::Bf16),
    ("lfm2", Format::Bf16),
    ("qwen35", Format::Bf16),
    ("maple", Format::Bf16),
    ("mlx-1bit", Format::Q1_0),
    ("mlx-2bit", Format::Pq2_0),
    ("mlx-4bit", Format::Q4_1),
];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/hf").join(name)
}

fn converted(folder: &Path, options: &ConvertOptions) -> Result<Vec<u8>, Error> {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("out.gguf");
    let (mut last, mut whole) = (0, 0);
    let done = convert(folder, &out, options, |written, of| {
        assert!(written > last && written <= of);
        (last, whole) = (written, of);
    });
    let files: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|f| f.unwrap().file_name()).collect();
    let done = match done {
        Err(error) => {
            assert!(files.is_empty(), "{files:?} after {error}");
            return Err(error);
        }
        Ok(done) => done,
    };
    assert_eq!(files, ["out.gguf"]);
    let bytes = fs::read(&out).unwrap();
    assert_eq!((done.bytes, last, whole), (bytes.len() as u64, done.bytes, done.bytes));
    Ok(bytes)
}

/// Checks that texts have the tokens that transformers gave them.
fn assert_tokens(tokenizer: &Tokenizer<'_>, folder: &Path) {
    for (text, ids) in texts(folder) {
        let mut found = Vec::new();
        tokenizer.encode(&text, Special::Parse, &mut found);
        assert_eq!(found, ids, "{folder:?} {text:?}");
    }
}

fn texts(folder: &Path) -> Vec<(String, Vec<u32>)> {
    serde_json::from_slice(&fs::read(folder.join("texts.json")).unwrap()).unwrap()
}

/// The largest difference to transformers' logits.
fn difference(folder: &Path, file: &[u8]) -> f32 {
    let want = fs::read(folder.join("logits.f32")).unwrap();
    let want: Vec<f32> =
        want.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
    let (_, ids) = &texts(folder)[0];
    let got = all_logits(&mut device(file, &exact()).unwrap(), ids, &in_format(KvFormat::F32)).unwrap();
    assert_eq!(got.len(), want.len());
    got.iter().zip(&want).map(|(got, want)| (got - want).abs()).fold(0.0, f32::max)
}

#[test]
fn a_folder_says_what_transformers_says() {
    for (name, format) in FOLDERS {
        let folder = fixture(name);
        let file = converted(&folder, &ConvertOptions::new()).unwrap();
        let gguf = Gguf::parse(&file).unwrap();
        assert_eq!(gguf.header().layer_format(), Some(format), "{name}");
        let difference = difference(&folder, &file);
        assert!(difference < 1e-4, "{name}: {difference}");

        let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
        assert_tokens(&tokenizer, &folder);
        let metadata = gguf.metadata();
        let template = metadata.str("tokenizer.chat_template").unwrap();
        assert_eq!(template, Some(&*fs::read_to_string(folder.join("chat_template.jinja")).unwrap()));
        assert_eq!(metadata.u32("tokenizer.ggml.eos_token_id").unwrap(), Some(266));
    }
}

/// As transformers does with a sequence as long as the context (`tests/oracle/rope_scaling.py`).
#[test]
fn frequencies_are_scaled_for_the_context() {
    let long: Vec<f64> = (0..8).map(|i| 1.0 + 0.37 * f64::from(i)).collect();
    let short: Vec<f64> = (0..8).map(|i| 1.0 + 0.05 * f64::from(i % 3)).collect();
    let longrope = serde_json::json!({
        "rope_type": "longrope", "rope_theta": 1e6, "long_factor": long, "short_factor": short,
        "original_max_position_embeddings": 4,
    });
    let dynamic = serde_json::json!({ "rope_type": "dynamic", "rope_theta": 1e6, "factor": 8.0 });
    for (name, rope, positions, longest) in [("longrope", longrope, 64, 64), ("dynamic", dynamic, 4, 32)] {
        let folder = changed("qwen3", "config.json", |bytes| {
            let mut config: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
            config["rope_parameters"] = rope;
            config["max_position_embeddings"] = positions.into();
            Some(config.to_string().into_bytes())
        });
        let file = converted(folder.path(), &ConvertOptions::new()).unwrap();
        let gguf = Gguf::parse(&file).unwrap();
        let config = ModelConfig::from_gguf(&gguf).unwrap();
        assert_eq!(config.max_context_length, longest);
        let (_, ids) = &texts(folder.path())[0];
        assert!(ids.len() > 4 && ids.len() <= longest);
        let model = BonsaiModel::with_config(&gguf, config.for_context(ids.len())).unwrap();
        let mut cpu = Cpu::new(model, &exact(), Serial).unwrap();
        let got = all_logits(&mut cpu, ids, &in_format(KvFormat::F32)).unwrap();
        let want = fs::read(fixture("qwen3").join(format!("logits.{name}"))).unwrap();
        let want: Vec<f32> = want.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
        assert_eq!(got.len(), want.len());
        let worst = got.iter().zip(&want).map(|(got, want)| (got - want).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-4, "{name}: {worst}");
    }
}

/// Layouts of published files, against onnxruntime (`tests/oracle/onnx_model.py`).
#[test]
fn an_onnx_file_says_what_onnxruntime_says() {
    for (name, file, formats) in [
        ("onnx-ternary", "model_q2.onnx", [Format::Pq2_0; 9]),
        (
            "onnx-mixed",
            "model.onnx",
            [
                Format::Q4_0,
                Format::Q4_0,
                Format::Q8_0,
                // Differences to the zero point are at most 15.
                Format::Q8_0,
                Format::Q1_0,
                // Zero points that are not in the middle.
                Format::F32,
                Format::Q2_0,
                // Rows of 80 weights.
                Format::F32,
                Format::F32,
            ],
        ),
    ] {
        let folder = fixture(name);
        let file = converted(&folder.join("onnx").join(file), &ConvertOptions::new()).unwrap();
        let gguf = Gguf::parse(&file).unwrap();
        let matrices = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
        let matrices = matrices.map(|matrix| format!("blk.0.{matrix}.weight"));
        let head = String::from("output.weight");
        let names = [&["token_embd.weight".into()][..], &matrices, &[head]].concat();
        for (name, format) in names.iter().zip(formats) {
            match gguf.matrix(name) {
                Ok(matrix) => assert_eq!(matrix.format(), format, "{name}"),
                Err(_) => assert_eq!((name.as_str(), file.len() < 100_000), ("output.weight", true)),
            }
        }
        let difference = difference(&folder, &file);
        assert!(difference < 1e-4, "{name}: {difference}");
        let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
        assert_tokens(&tokenizer, &folder);
    }
}

/// The folder of an ONNX fixture with the model changed.
fn changed_onnx(change: impl FnOnce(&mut Vec<u8>)) -> (TempDir, PathBuf) {
    let dir = changed("onnx-ternary", "config.json", Some);
    fs::create_dir(dir.path().join("onnx")).unwrap();
    let file = |name: &str| Path::new("onnx").join(name);
    let from = |name: &str| fixture("onnx-ternary").join(file(name));
    fs::copy(from("model_q2.onnx_data"), dir.path().join(file("model_q2.onnx_data"))).unwrap();
    let mut bytes = fs::read(from("model_q2.onnx")).unwrap();
    change(&mut bytes);
    let path = dir.path().join(file("model_q2.onnx"));
    fs::write(&path, bytes).unwrap();
    (dir, path)
}

/// A folder without safetensors is its ONNX file, if it has one.
#[test]
fn a_folder_with_an_onnx_file_is_read() {
    let (dir, path) = changed_onnx(|_| {});
    let options = ConvertOptions::new();
    assert!(converted(dir.path(), &options).unwrap() == converted(&path, &options).unwrap());
    fs::copy(&path, dir.path().join("model.onnx")).unwrap();
    let error = converted(dir.path(), &options).unwrap_err().to_string();
    assert!(error.contains("several ONNX files (model.onnx, onnx/model_q2.onnx)"), "{error}");
}

/// Where `text` is.
fn position(bytes: &[u8], text: &[u8]) -> usize {
    bytes.windows(text.len()).position(|window| window == text).unwrap()
}

#[test]
fn damaged_onnx_files_are_refused() {
    let whole =
        converted(&fixture("onnx-ternary").join("onnx/model_q2.onnx"), &ConvertOptions::new()).unwrap();
    // The bytes have 2 bits a weight whatever an embedding says for the sake of other runtimes.
    let (_dir, path) = changed_onnx(|bytes| {
        let bits = position(bytes, b"\x0a\x04bits\x18\x02");
        bytes[bits + 7] = 4;
    });
    let changed = converted(&path, &ConvertOptions::new()).unwrap();
    // All but the name.
    let weights = |file: &[u8]| file[file.len() - 35_000..].to_vec();
    assert!(weights(&changed) == weights(&whole));

    type Change = fn(&mut Vec<u8>);
    let cases: [(Change, &str); 8] = [
        (Vec::clear, "it has no graph"),
        (|bytes| *bytes = vec![0x3a, 0xff, 0xff, 0xff, 0xff, 0x0f], "a model is cut off"),
        (|bytes| bytes.truncate(9000), "a model is cut off"),
        (
            |bytes| {
                *bytes = [0x3a, 0xff, 0x7f].into_iter().chain([0x2a, 0x00].repeat(8191)).chain([0]).collect()
            },
            "damaged",
        ),
        (
            |bytes| {
                let name = position(bytes, b"model_q2.onnx_data");
                bytes[name..name + 18].copy_from_slice(b"../../etc/password");
            },
            "is in the file \"../../etc/password\", expected one beside the model",
        ),
        (
            |bytes| {
                let name = position(bytes, b"model_q2.onnx_data");
                bytes[name] = b'n';
            },
            "cannot open",
        ),
        (
            |bytes| {
                let name = position(bytes, b"MatMulNBits");
                bytes[name] = b'm';
            },
            "is missing",
        ),
        (
            |bytes| {
                let name = position(bytes, b"\x0a\x0ablock_size\x18\x80\x01");
                bytes[name + 13..name + 15].copy_from_slice(&[0x81, 0x01]);
            },
            "has blocks of 129",
        ),
    ];
    for (change, message) in cases {
        let (_dir, path) = changed_onnx(change);
        let error = converted(&path, &ConvertOptions::new()).unwrap_err();
        assert!(error.to_string().contains(message), "{error}, expected {message}");
    }
    // Any byte may be wrong: an error or a model, but no panic.
    let (dir, path) = changed_onnx(|_| ());
    let bytes = fs::read(&path).unwrap();
    for i in (0..bytes.len()).step_by(41) {
        let mut bytes = bytes.clone();
        bytes[i] ^= 1 << (i % 8);
        fs::write(&path, &bytes).unwrap();
        let out = dir.path().join("out.gguf");
        let _ = convert(&path, &out, &ConvertOptions::new().replace(true), |_, _| ());
    }
    // Without its folder.
    let lonely = TempDir::new().unwrap();
    let path = lonely.path().join("model.onnx");
    fs::write(&path, &bytes).unwrap();
    let error = converted(&path, &ConvertOptions::new()).unwrap_err();
    assert!(error.to_string().contains("has no config.json beside it"), "{error}");
}

/// To GGUF, to a folder and to GGUF again.
#[test]
fn a_folder_written_from_gguf_is_the_same_model() {
    for (name, format) in FOLDERS {
        let dir = TempDir::new().unwrap();
        // Another name than that of the first folder, which became the model's.
        let (first, folder, second) =
            (dir.path().join("first.gguf"), dir.path().join("folder"), dir.path().join("second.gguf"));
        convert(fixture(name), &first, &ConvertOptions::new(), |_, _| ()).unwrap();
        let (mut last, mut whole) = (0, 0);
        let done = convert_to_folder(&first, &folder, &ConvertOptions::new(), |written, of| {
            assert!(written > last && written <= of);
            (last, whole) = (written, of);
        });
        let done = done.unwrap();
        assert_eq!((last, done.tensors.iter().map(|tensor| tensor.error).sum::<f64>()), (whole, 0.0));
        let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|f| f.unwrap().file_name()).collect();
        files.sort();
        let expected = [
            "chat_template.jinja",
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
        ];
        assert_eq!(files, expected);

        // The scales of 1-bit and ternary weights are found again, others were F32.
        let exact = format != Format::Q4_1;
        let options = if exact { ConvertOptions::new().file_type(format) } else { ConvertOptions::new() };
        convert(&folder, &second, &options, |_, _| ()).unwrap();
        let (first, second) = (fs::read(first).unwrap(), fs::read(second).unwrap());
        let (a, b) = (Gguf::parse(&first).unwrap(), Gguf::parse(&second).unwrap());
        for (key, value) in a.metadata().iter() {
            if exact || key != "general.file_type" {
                assert_eq!(
                    format!("{:?}", b.metadata().get(key)),
                    format!("{:?}", Some(value)),
                    "{name}: {key}"
                );
            }
        }
        assert!(first == second || !exact, "{name}");
        let difference = difference(&fixture(name), &second);
        assert!(difference < 1e-4, "{name}: {difference}");

        let refused =
            convert_to_folder(fixture(name), &folder, &ConvertOptions::new(), |_, _| ()).unwrap_err();
        assert!(refused.to_string().contains("it exists already"), "{refused}");
        // A model in parts is replaced with all that readers would take for it.
        let index = "{\"weight_map\": {\"a\": \"model-00001-of-00001.safetensors\", \"b\": \"notes.txt\"}}";
        let of_it =
            ["model.safetensors.index.json", "model-00001-of-00001.safetensors", "generation_config.json"];
        for file in of_it.into_iter().chain(["notes.txt"]) {
            fs::write(folder.join(file), index).unwrap();
        }
        let again = ConvertOptions::new().replace(true).file_type(Format::F32);
        convert_to_folder(fixture(name), &folder, &again, |_, _| ()).unwrap();
        assert!(of_it.iter().all(|file| !folder.join(file).exists()) && folder.join("notes.txt").exists());
        converted(&folder, &ConvertOptions::new()).unwrap();
    }
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("out");
    let options = ConvertOptions::new().file_type(Mix::Q4KM);
    let refused = convert_to_folder(fixture("qwen3"), &out, &options, |_, _| ()).unwrap_err();
    assert!(refused.to_string().contains("expected f32, f16 or bf16"), "{refused}");
    let depths = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/qwen3-depths.gguf");
    let refused = convert_to_folder(depths, &out, &ConvertOptions::new(), |_, _| ()).unwrap_err();
    assert!(refused.to_string().contains("depth_router.weight"), "{refused}");
    assert!(!out.exists());
}

/// Llama 3 says so only in the template of its tokenizer.
#[test]
fn a_text_begins_with_a_token_if_the_folder_says_so() {
    let added = |folder: &Path| {
        let file = converted(folder, &ConvertOptions::new()).unwrap();
        Gguf::parse(&file).unwrap().metadata().get("tokenizer.ggml.add_bos_token").map(|v| format!("{v:?}"))
    };
    assert_eq!(added(&fixture("llama")).as_deref(), Some("Bool(false)"));
    let template = replaced(
        "\"single\": [",
        "\"single\": [{\"SpecialToken\": {\"id\": \"<|endoftext|>\", \"type_id\": 0}},",
    );
    let folder = changed("llama", "tokenizer.json", template);
    assert_eq!(added(folder.path()).as_deref(), Some("Bool(true)"));
    let folder = changed("llama", "tokenizer_config.json", replaced("{", "{\"add_bos_token\": true,"));
    assert_eq!(added(folder.path()).as_deref(), Some("Bool(true)"));
    // Readers of GGUF add one to texts of Llama 3 without a key, `tokenizers` does not.
    assert_eq!(added(&fixture("llama3")).as_deref(), Some("Bool(false)"));
    let without_template = |name: &str| {
        changed(name, "tokenizer.json", |bytes| {
            let mut root: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
            root["post_processor"] = serde_json::json!({ "type": "ByteLevel", "trim_offsets": false });
            Some(root.to_string().into_bytes())
        })
    };
    assert_eq!(added(without_template("llama3").path()).as_deref(), Some("Bool(false)"));
    assert_eq!(added(without_template("qwen3").path()), None);
}

/// Published files of Llama 3 have no key, and their texts begin with the token.
#[test]
fn a_folder_says_that_texts_of_llama_3_begin_with_a_token() {
    let dir = TempDir::new().unwrap();
    let (first, back) = (dir.path().join("first.gguf"), dir.path().join("back"));
    convert(fixture("llama3"), &first, &ConvertOptions::new(), |_, _| ()).unwrap();
    let mut bytes = fs::read(&first).unwrap();
    let key = position(&bytes, b"add_bos_token");
    bytes[key..key + 13].copy_from_slice(b"add_nothing__");
    fs::write(&first, bytes).unwrap();
    convert_to_folder(&first, &back, &ConvertOptions::new(), |_, _| ()).unwrap();
    let root: serde_json::Value =
        serde_json::from_slice(&fs::read(back.join("tokenizer.json")).unwrap()).unwrap();
    assert_eq!(root["post_processor"]["single"][0]["SpecialToken"]["id"], "<|endoftext|>");
    let file = converted(&back, &ConvertOptions::new()).unwrap();
    let tokenizer = Tokenizer::from_gguf(&Gguf::parse(&file).unwrap()).unwrap().into_owned();
    assert_eq!(tokenizer.leading_bos(), tokenizer.added_id("<|endoftext|>"));
}

/// `tokenizers` ignores the ids of added tokens: those that the vocabulary lacks get the next ones.
#[test]
fn a_folder_has_its_added_tokens_in_the_vocabulary() {
    let original = fixture("qwen3");
    // Added tokens at both ends, and ids without a token between them and the others.
    let turned = |id: &serde_json::Value| serde_json::Value::from((id.as_u64().unwrap() + 7) % 272);
    let moved = with_tokenizer(|root| {
        for id in root["model"]["vocab"].as_object_mut().unwrap().values_mut() {
            *id = turned(id);
        }
        for token in root["added_tokens"].as_array_mut().unwrap() {
            token["id"] = turned(&token["id"]);
        }
    });
    for (folder, ids) in [(original.as_path(), [264, 265, 266, 267]), (moved.path(), [271, 0, 1, 2])] {
        let dir = TempDir::new().unwrap();
        let (file, out) = (dir.path().join("model.gguf"), dir.path().join("folder"));
        convert(folder, &file, &ConvertOptions::new(), |_, _| ()).unwrap();
        convert_to_folder(&file, &out, &ConvertOptions::new(), |_, _| ()).unwrap();
        let read = |folder: &Path| -> serde_json::Value {
            serde_json::from_slice(&fs::read(folder.join("tokenizer.json")).unwrap()).unwrap()
        };
        let (before, after) = (read(folder), read(&out));
        let mut vocab = before["model"]["vocab"].as_object().unwrap().clone();
        for (name, id) in ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>"].into_iter().zip(ids) {
            vocab.insert(name.into(), id.into());
        }
        assert_eq!(after["model"]["vocab"].as_object().unwrap(), &vocab);
        let added = |root: &serde_json::Value| {
            let added = root["added_tokens"].as_array().unwrap().iter();
            let mut added: Vec<_> =
                added.map(|token| (token["id"].as_u64().unwrap(), token["content"].to_string())).collect();
            added.sort();
            added
        };
        assert_eq!(added(&after), added(&before));
        assert!(fs::read(&file).unwrap() == converted(&out, &ConvertOptions::new()).unwrap());
    }
}

#[test]
fn weights_are_stored_as_asked() {
    let folder = fixture("mlx-2bit");
    for (format, bound) in [
        (Format::F32, 1e-4),
        (Format::F16, 1e-4),
        (Format::Q8_0, 0.1),
        (Format::Q4_0, 1.5),
        (Format::Pq2_0, 1e-4),
    ] {
        let file = converted(&folder, &ConvertOptions::new().file_type(format)).unwrap();
        let gguf = Gguf::parse(&file).unwrap();
        assert_eq!(gguf.matrix("blk.0.ffn_down.weight").unwrap().format(), format);
        assert_eq!(gguf.matrix("output_norm.weight").unwrap().format(), Format::F32);
        let difference = difference(&folder, &file);
        assert!(difference < bound, "{}: {difference}", format.name());
    }
    // 32 columns are not a block of 128.
    let refused = converted(&fixture("qwen3"), &ConvertOptions::new().file_type(Format::Q1_0)).unwrap_err();
    let refused = refused.to_string();
    assert!(
        refused.contains("has rows of 32 weights, but Q1_0 has blocks of 128, expected one of f32,"),
        "{refused}"
    );
    assert!(refused.contains(", q8_0") && !refused.contains("q4_k"), "{refused}");
}

/// The fixture `qwen3` with the first BF16 weight of a tensor replaced.
fn with_weight(tensor: &str, weight: f32) -> TempDir {
    with_weight_at(tensor, 0, weight)
}

fn with_weight_at(tensor: &str, index: usize, weight: f32) -> TempDir {
    changed("qwen3", "model.safetensors", |mut bytes| {
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        assert_eq!(header[tensor]["dtype"], "BF16");
        let at = 8 + length + header[tensor]["data_offsets"][0].as_u64().unwrap() as usize + 2 * index;
        bytes[at..at + 2].copy_from_slice(&half::bf16::from_f32(weight).to_le_bytes());
        Some(bytes)
    })
}

/// A file with such weights answers nothing but errors.
#[test]
fn weights_that_are_not_finite_are_refused() {
    let (embedding, name) = ("model.embed_tokens.weight", "token_embd.weight");
    for (weight, found) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        let folder = with_weight(embedding, weight);
        for options in [
            ConvertOptions::new(),
            ConvertOptions::new().file_type(Format::F16),
            ConvertOptions::new().file_type(Format::F32),
            ConvertOptions::new().rules(vec!["token_embd=q8_0".parse().unwrap()]),
        ] {
            let error = converted(folder.path(), &options).unwrap_err().to_string();
            let expected = format!("tensor {name} has the weight {found} in row 0, expected finite numbers");
            assert!(error.contains(&expected), "{error}");
        }
        assert!(in_memory(folder.path()).is_err());
    }
    let norm = with_weight("model.norm.weight", f32::NAN);
    let error = converted(norm.path(), &ConvertOptions::new()).unwrap_err().to_string();
    assert!(error.contains("tensor output_norm.weight has the weight NaN"), "{error}");

    // Finite, but not in F16, nor with a scale in F16.
    for (weight, format) in
        [(1e6, Format::F16), (1e9, Format::Q8_0), (1e9, Format::Q4_0), (1e12, Format::Q6K)]
    {
        let folder = with_weight(embedding, weight);
        let gguf = folder.path().join("model.gguf");
        convert(folder.path(), &gguf, &ConvertOptions::new(), |_, _| ()).unwrap();
        let rule = format!("token_embd={}", format.name()).parse().unwrap();
        let error = converted(&gguf, &ConvertOptions::new().rules(vec![rule])).unwrap_err().to_string();
        assert!(error.contains("tensor token_embd.weight has weights up to "), "{error}");
        assert!(error.contains("in row 0, too large for"), "{error}");
    }
    // One scale for all rows: the one with the largest weight is named.
    let folder = with_weight_at(embedding, 32 * 5 + 1, 1e9);
    let rules = vec!["blk.*.ffn_down=f32".parse().unwrap()];
    let options = ConvertOptions::new().file_type(Int8::PerTensor).rules(rules);
    let error = converted(folder.path(), &options).unwrap_err().to_string();
    assert!(error.contains("e8 in row 5, too large for Q8_0"), "{error}");
    let folder = with_weight_at(embedding, 32 * 5 + 1, f32::INFINITY);
    let error = converted(folder.path(), &options).unwrap_err().to_string();
    assert!(error.contains("has the weight inf in row 5, expected finite numbers"), "{error}");

    let folder = with_weight(embedding, 1e6);
    let out = TempDir::new().unwrap();
    let options = ConvertOptions::new().file_type(Format::F16);
    let gguf = folder.path().join("model.gguf");
    convert(folder.path(), &gguf, &ConvertOptions::new(), |_, _| ()).unwrap();
    let back = out.path().join("folder");
    let error = convert_to_folder(&gguf, &back, &options, |_, _| ()).unwrap_err().to_string();
    assert!(error.contains("too large for F16"), "{error}");
    assert!(!back.exists());
}

/// The weights of sprout in another format, mixed by rules.
#[test]
fn a_gguf_file_is_quantized_tensor_by_tensor() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/sprout.gguf");
    let before = fs::read(&source).unwrap();
    let before = Gguf::parse(&before).unwrap();
    // Norms stay as they are, though the first matches them.
    let rules = ["*=q6_k", "blk.*.attn_v=q8_0", "token_embd.weight=iq4_nl"];
    let rules: Vec<TensorRule> = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("out.gguf");
    let options = ConvertOptions::new().file_type(Format::Q4K).rules(rules);
    let done = convert(&source, &out, &options, |_, _| ()).unwrap();

    let bytes = fs::read(&out).unwrap();
    let after = Gguf::parse(&bytes).unwrap();
    assert_eq!(done.tensors.len(), before.tensors().len());
    for (tensor, info) in done.tensors.iter().zip(after.tensors()) {
        let (a, b) = (before.matrix(&tensor.name).unwrap(), after.matrix(&tensor.name).unwrap());
        let format = match &*tensor.name {
            "token_embd.weight" => Format::Iq4Nl,
            name if name.contains("norm") => Format::F32,
            name if name.contains("attn_v") => Format::Q8_0,
            _ => Format::Q6K,
        };
        assert_eq!((tensor.to, b.format(), &*tensor.name), (format, format, info.name()));
        assert_eq!((tensor.from, tensor.bytes), (Some(a.format()), info.len()));
        // The reported error, from the two files.
        let (mut x, mut y) = (vec![0.0; a.cols()], vec![0.0; b.cols()]);
        let (mut errors, mut weights) = (0.0, 0.0);
        for row in 0..a.rows() {
            a.unpack_row(row, &mut x).unwrap();
            b.unpack_row(row, &mut y).unwrap();
            errors += x.iter().zip(&y).map(|(x, y)| f64::from(x - y).powi(2)).sum::<f64>();
            weights += x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        }
        let error = (errors / weights).sqrt();
        assert!((tensor.error - error).abs() < 1e-9, "{}: {} {error}", tensor.name, tensor.error);
        assert!(tensor.error < 0.08, "{}: {error}", tensor.name);
    }
    for (key, value) in before.metadata().iter().filter(|(key, _)| *key != "general.file_type") {
        assert_eq!(format!("{:?}", after.metadata().get(key)), format!("{:?}", Some(value)), "{key}");
    }

    // Without a type or rules, also that one stays; where all tensors have one format, it is written once.
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models");
    for source in [out, models.join("sprout-q1.gguf"), models.join("sprout.gguf")] {
        let before = fs::read(&source).unwrap();
        let before = Gguf::parse(&before).unwrap();
        let copy = converted(&source, &ConvertOptions::new()).unwrap();
        let copy = Gguf::parse(&copy).unwrap();
        assert!(before.metadata().get("general.file_type").is_some(), "{}", source.display());
        for (key, value) in before.metadata().iter() {
            assert_eq!(format!("{:?}", copy.metadata().get(key)), format!("{:?}", Some(value)), "{key}");
        }
    }
}

/// The experts of a layer are one tensor, and their router keeps its bits.
#[test]
fn experts_are_quantized_but_not_their_router() {
    let dir = TempDir::new().unwrap();
    let (source, out) = (dir.path().join("source.gguf"), dir.path().join("out.gguf"));
    convert(fixture("qwen3moe"), &source, &ConvertOptions::new(), |_, _| ()).unwrap();
    let done = convert(&source, &out, &ConvertOptions::new().file_type(Mix::Q4KM), |_, _| ()).unwrap();
    let tensor = |name: &str| {
        let name = format!("blk.1.{name}.weight");
        let tensor = done.tensors.iter().find(|tensor| tensor.name == name).unwrap();
        (tensor.shape.clone(), tensor.to)
    };
    // Rows of 32 and 40 weights.
    assert_eq!(tensor("ffn_up_exps"), (vec![4, 40, 32], Format::Q5_0));
    assert_eq!(tensor("ffn_down_exps"), (vec![4, 32, 40], Format::F16));
    assert_eq!(tensor("ffn_gate_inp"), (vec![4, 32], Format::F32));
    assert!(done.tensors.iter().all(|tensor| tensor.error < 0.08), "{:?}", done.tensors);
    // Another choice of experts gives quite other logits.
    assert!(difference(&fixture("qwen3moe"), &fs::read(&out).unwrap()).is_finite());
}

/// Against the formula in f64: `q = round(w / d)` with `d = max |w| / 127` of a row or a matrix, in f16.
#[test]
fn int8_weights_share_a_scale() {
    let folder = fixture("mlx-4bit");
    let exact = converted(&folder, &ConvertOptions::new().file_type(Format::F32)).unwrap();
    let exact = Gguf::parse(&exact).unwrap();
    for int8 in [Int8::PerChannel, Int8::PerTensor] {
        let file = converted(&folder, &ConvertOptions::new().file_type(int8)).unwrap();
        let gguf = Gguf::parse(&file).unwrap();
        let (a, b) =
            (exact.matrix("blk.0.attn_q.weight").unwrap(), gguf.matrix("blk.0.attn_q.weight").unwrap());
        assert_eq!(b.format(), Format::Q8_0);
        let row = |matrix: &shohin_core::Matrix<'_>, row| {
            let mut values = vec![0.0; matrix.cols()];
            matrix.unpack_row(row, &mut values).unwrap();
            values
        };
        let most = |values: &[f32]| values.iter().fold(0.0f64, |most, w| most.max(f64::from(w.abs())));
        let all: Vec<f32> = (0..a.rows()).flat_map(|i| row(&a, i)).collect();
        for i in 0..a.rows() {
            let (values, found) = (row(&a, i), row(&b, i));
            let most = if int8 == Int8::PerChannel { most(&values) } else { most(&all) };
            let d = half::f16::from_f64(most / 127.0).to_f64();
            for (w, found) in values.iter().zip(found) {
                assert_eq!(f64::from(found), (f64::from(*w) / d).round().clamp(-127.0, 127.0) * d);
            }
        }
        let difference = difference(&folder, &file);
        assert!(difference < 0.4, "{}: {difference}", int8.name());
    }
}

/// A rule for Q8_0 asks for blocks with scales of their own.
#[test]
fn a_rule_for_q8_0_shares_no_scale() {
    let folder = fixture("qwen3");
    let file = |file_type: Option<Int8>, rules: &[&str]| {
        let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        let mut options = ConvertOptions::new().rules(rules);
        options.file_type = file_type.map(Into::into);
        converted(&folder, &options).unwrap()
    };
    let data = |file: &[u8], name: &str| {
        let gguf = Gguf::parse(file).unwrap();
        let info = gguf.tensors().iter().find(|info| info.name() == name).unwrap();
        assert_eq!(info.format(), Some(Format::Q8_0), "{name}");
        gguf.data(info).to_vec()
    };
    let (embedding, query) = ("token_embd.weight", "blk.0.attn_q.weight");
    // Rows of 48 weights have no blocks of 32.
    let rest = "*.ffn_down=f16";
    let plain = file(None, &["*=q8_0", rest]);
    for int8 in Int8::ALL {
        let shared = file(Some(int8), &[rest]);
        let kept = file(Some(int8), &[rest, "token_embd=q8_0"]);
        assert!(data(&shared, embedding) != data(&plain, embedding));
        assert!(data(&kept, embedding) == data(&plain, embedding), "{}", int8.name());
        assert!(data(&kept, query) == data(&shared, query));
        // And a rule shares one where the others do not.
        let one = file(None, &["*=q8_0", rest, &format!("token_embd={}", int8.name())]);
        assert!(data(&one, embedding) == data(&shared, embedding), "{}", int8.name());
        assert!(data(&one, query) == data(&plain, query));
    }
}

#[test]
fn a_mix_has_several_formats_and_its_number() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/sprout-nano.gguf");
    let file = converted(&source, &ConvertOptions::new().file_type(Mix::Q4KM)).unwrap();
    let gguf = Gguf::parse(&file).unwrap();
    assert_eq!(format!("{:?}", gguf.metadata().get("general.file_type")), "Some(U32(15))");
    let format = |name: &str| gguf.matrix(name).unwrap().format();
    assert_eq!(format("token_embd.weight"), Format::Q6K);
    assert_eq!((format("blk.2.attn_v.weight"), format("blk.1.attn_v.weight")), (Format::Q6K, Format::Q4K));
}

/// As llama.cpp does for rows that are not blocks of 256.
#[test]
fn short_rows_get_a_format_with_smaller_blocks() {
    let folder = fixture("qwen3");
    for (format, columns_32, columns_48) in [
        (Format::Q3K, Format::Q4_0, Format::F16),
        (Format::Q4K, Format::Q5_0, Format::F16),
        (Format::Q5K, Format::Q5_1, Format::F16),
        (Format::Q6K, Format::Q8_0, Format::F16),
        (Format::Iq4Xs, Format::Iq4Nl, Format::F16),
        (Format::Tq2_0, Format::Q4_0, Format::F16),
    ] {
        let file = converted(&folder, &ConvertOptions::new().file_type(format)).unwrap();
        let gguf = Gguf::parse(&file).unwrap();
        assert_eq!(gguf.matrix("blk.0.ffn_up.weight").unwrap().format(), columns_32);
        assert_eq!(gguf.matrix("blk.0.ffn_down.weight").unwrap().format(), columns_48);
    }
}

#[test]
fn an_existing_file_is_kept() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("model.gguf");
    fs::write(&out, "mine").unwrap();
    let refused = convert(fixture("qwen3"), &out, &ConvertOptions::new(), |_, _| ()).unwrap_err();
    assert!(matches!(refused, Error::Convert { source, .. } if *source == ConvertError::Exists));
    assert_eq!(fs::read(&out).unwrap(), b"mine");
    convert(fixture("qwen3"), &out, &ConvertOptions::new().replace(true), |_, _| ()).unwrap();
    assert!(Gguf::parse(&fs::read(&out).unwrap()).is_ok());
}

/// A file that takes the name of another would replace what is no file.
#[test]
fn only_regular_files_are_replaced() {
    let dir = TempDir::new().unwrap();
    let options = ConvertOptions::new().replace(true);
    let refused = |path: &Path| {
        for options in [&options, &ConvertOptions::new()] {
            let refused = convert(fixture("qwen3"), path, options, |_, _| ()).unwrap_err();
            let Error::Convert { source, .. } = &refused else { panic!("{refused}") };
            assert_eq!(**source, ConvertError::NotRegular);
        }
    };
    fs::create_dir(dir.path().join("folder")).unwrap();
    refused(&dir.path().join("folder"));
    #[cfg(unix)]
    {
        use std::os::unix::fs::{FileTypeExt, symlink};
        let socket = dir.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        refused(&socket);
        assert!(fs::symlink_metadata(&socket).unwrap().file_type().is_socket());

        // Through symbolic links, also one that leads to nothing.
        fs::create_dir(dir.path().join("there")).unwrap();
        let (target, link) = (dir.path().join("there/model.gguf"), dir.path().join("link.gguf"));
        symlink("there/second", &link).unwrap();
        symlink("model.gguf", dir.path().join("there/second")).unwrap();
        convert(fixture("qwen3"), &link, &ConvertOptions::new(), |_, _| ()).unwrap();
        assert!(Gguf::parse(&fs::read(&target).unwrap()).is_ok());
        fs::write(&target, "mine").unwrap();
        assert!(convert(fixture("qwen3"), &link, &ConvertOptions::new(), |_, _| ()).is_err());
        assert_eq!(fs::read(&target).unwrap(), b"mine");
        convert(fixture("qwen3"), &link, &options, |_, _| ()).unwrap();
        assert!(Gguf::parse(&fs::read(&target).unwrap()).is_ok());
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(dir.path().join("there")).unwrap().count(), 2);

        let circle = dir.path().join("circle");
        symlink(&circle, &circle).unwrap();
        let refused = convert(fixture("qwen3"), &circle, &options, |_, _| ()).unwrap_err();
        assert!(matches!(refused, Error::File(FileError::Io { .. })));
    }
}

/// Readers would look for the others.
#[test]
fn a_file_is_not_named_like_a_part_of_a_model() {
    let dir = TempDir::new().unwrap();
    for name in ["model-00001-of-00003.gguf", "model-00001-of-00001.gguf"] {
        let out = dir.path().join(name);
        let refused = convert(fixture("qwen3"), &out, &ConvertOptions::new(), |_, _| ()).unwrap_err();
        assert!(matches!(&refused, Error::Convert { source, .. } if **source == ConvertError::NameOfPart));
        assert!(refused.to_string().contains(name) && !out.exists(), "{refused}");
    }
    let out = dir.path().join("model-00004-of-00003.gguf");
    convert(fixture("qwen3"), &out, &ConvertOptions::new(), |_, _| ()).unwrap();
}

#[test]
fn a_pattern_that_matches_no_tensor_is_refused() {
    let rules = ["*=q8_0", "blk.*.attn_w=q6_k"].map(|rule| rule.parse().unwrap()).to_vec();
    let refused = converted(&fixture("qwen3"), &ConvertOptions::new().rules(rules)).unwrap_err();
    assert!(refused.to_string().contains("no tensor matches \"blk.*.attn_w\""), "{refused}");
    // Norms are matched, though they stay as they are.
    let rules = vec!["output_norm=q8_0".parse().unwrap()];
    converted(&fixture("qwen3"), &ConvertOptions::new().rules(rules)).unwrap();
}

#[test]
fn the_layout_of_type_42_can_be_told() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/fixtures/golden_model/synth-micro-q2_0_g64.gguf");
    let f32s = ConvertOptions::new().file_type(Format::F32);
    let told = |id42| converted(&source, &f32s.clone().id42(id42)).unwrap();
    let right = converted(&source, &f32s).unwrap();
    assert!(told(Id42::Group64) == right && told(Id42::CodesFirst) != right);
    let weights = |id42| {
        let dir = TempDir::new().unwrap();
        let out = dir.path().join("folder");
        convert_to_folder(&source, &out, &ConvertOptions::new().id42(id42), |_, _| ()).unwrap();
        fs::read(out.join("model.safetensors")).unwrap()
    };
    assert!(weights(Id42::Group64) == weights(Id42::Auto));
    assert!(weights(Id42::CodesFirst) != weights(Id42::Auto));
}

/// One mark for a whole file tells Q2_0 and TQ2_0_G128 apart.
#[test]
fn two_formats_of_one_id_are_refused_in_a_file() {
    let sprout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/sprout.gguf");
    let dir = TempDir::new().unwrap();
    let in_q2 = dir.path().join("q2.gguf");
    let q2 = || ConvertOptions::new().file_type(Format::Q2_0);
    let rule = |rule: &str| vec![rule.parse::<TensorRule>().unwrap()];
    convert(&sprout, &in_q2, &q2(), |_, _| ()).unwrap();
    let (embedding, query, key) = ("token_embd.weight", "blk.0.attn_q.weight", "blk.0.attn_k.weight");
    for (source, options, tensors) in [
        (&sprout, q2().rules(rule("token_embd=tq2_0_g128")), [embedding, key]),
        (&in_q2, ConvertOptions::new().rules(rule("blk.0.attn_q=tq2_0_g128")), [query, embedding]),
        (
            &in_q2,
            ConvertOptions::new().file_type(Format::Tq2_0G128).rules(rule("token_embd=q2_0")),
            [embedding, key],
        ),
    ] {
        let error = converted(source, &options).unwrap_err().to_string();
        for name in [&tensors[..], &["Q2_0", "TQ2_0_G128", "the same id 42 in GGUF"]].concat() {
            assert!(error.contains(name), "{error}, expected {name}");
        }
    }
    // PrismML's has an id of its own.
    let file = converted(&sprout, &q2().rules(rule("token_embd=pq2_0"))).unwrap();
    let gguf = Gguf::parse(&file).unwrap();
    assert_eq!(gguf.matrix(embedding).unwrap().format(), Format::Pq2_0);
    assert_eq!(gguf.matrix(query).unwrap().format(), Format::Q2_0);
}

/// A copy of a fixture with one file changed.
fn changed(name: &str, file: &str, change: impl FnOnce(Vec<u8>) -> Option<Vec<u8>>) -> TempDir {
    let dir = TempDir::new().unwrap();
    for entry in fs::read_dir(fixture(name)).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            continue;
        }
        fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
    }
    let path = dir.path().join(file);
    match change(fs::read(&path).unwrap_or_default()) {
        Some(bytes) => fs::write(path, bytes).unwrap(),
        None => fs::remove_file(path).unwrap(),
    }
    dir
}

fn replaced(from: &'static str, to: &str) -> impl FnOnce(Vec<u8>) -> Option<Vec<u8>> {
    move |bytes| {
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.contains(from), "{from}");
        Some(text.replacen(from, to, 1).into_bytes())
    }
}

/// transformers takes the one file, too.
#[test]
fn weights_in_one_file_count_more_than_an_index_of_others() {
    let index = |_| Some(b"{\"weight_map\": {\"a\": \"model-00001-of-00002.safetensors\"}}".to_vec());
    let folder = changed("qwen3", "model.safetensors.index.json", index);
    let found = difference(folder.path(), &converted(folder.path(), &ConvertOptions::new()).unwrap());
    assert!(found < 1e-4, "{found}");
}

/// The names of Qwen3-Embedding's weights.
#[test]
fn weights_without_a_head_may_lack_the_name_of_the_rest() {
    let folder = changed("qwen3", "model.safetensors", |bytes| {
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header = std::str::from_utf8(&bytes[8..8 + length]).unwrap().replace("\"model.", "\"");
        Some([&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes[8 + length..]].concat())
    });
    let found = difference(folder.path(), &converted(folder.path(), &ConvertOptions::new()).unwrap());
    assert!(found < 1e-4, "{found}");
}

/// `config.json` changed as JSON.
fn with_config(name: &str, change: impl FnOnce(&mut serde_json::Value)) -> TempDir {
    changed(name, "config.json", |bytes| {
        let mut config = serde_json::from_slice(&bytes).unwrap();
        change(&mut config);
        Some(config.to_string().into_bytes())
    })
}

/// As vLLM does: a scaling is often added without the context that it gives.
#[test]
fn yarn_extends_the_context() {
    for (positions, context) in [(16, 64), (32, 64), (64, 64), (100, 100)] {
        let folder = with_config("qwen3", |config| config["max_position_embeddings"] = positions.into());
        let file = converted(folder.path(), &ConvertOptions::new()).unwrap();
        let config = ModelConfig::from_gguf(&Gguf::parse(&file).unwrap()).unwrap();
        assert_eq!(config.max_context_length, context, "{positions}");
    }
    // Without a context before scaling, that is the one of the folder, as in transformers.
    let scaling = |without: bool| {
        let folder = with_config("qwen3", |config| {
            config["max_position_embeddings"] = 16.into();
            config["rope_parameters"]["original_max_position_embeddings"] = 16.into();
            if without {
                config["rope_parameters"].as_object_mut().unwrap().remove("original_max_position_embeddings");
            }
        });
        let file = converted(folder.path(), &ConvertOptions::new()).unwrap();
        let config = ModelConfig::from_gguf(&Gguf::parse(&file).unwrap()).unwrap();
        (config.max_context_length, format!("{:?}", config.positions.frequencies().scaling))
    };
    let explicit = scaling(false);
    assert!(explicit.1.contains("original_context: 16"), "{explicit:?}");
    assert_eq!(scaling(true), explicit);
    // So it is in a GGUF file, as in llama.cpp.
    let mut file = converted(&fixture("qwen3"), &ConvertOptions::new()).unwrap();
    let key = b"qwen3.rope.scaling.original_context_length";
    let at = file.windows(key.len()).position(|found| found == key).unwrap();
    file[at + key.len() - 1] = b'_';
    let config = ModelConfig::from_gguf(&Gguf::parse(&file).unwrap()).unwrap();
    let scaling = format!("{:?}", config.positions.frequencies().scaling);
    assert!(scaling.contains(&format!("original_context: {}", config.max_context_length)), "{scaling}");
    for (key, value, refused) in [
        ("truncate", serde_json::json!(false), true),
        ("truncate", serde_json::json!(true), false),
        ("partial_rotary_factor", serde_json::json!(0.5), true),
        ("partial_rotary_factor", serde_json::json!(1.0), false),
    ] {
        let shown = value.to_string();
        let folder = with_config("qwen3", |config| config["rope_parameters"][key] = value);
        let found = converted(folder.path(), &ConvertOptions::new()).map_err(|error| error.to_string());
        let message = format!("rope_parameters.{key} is {shown}");
        assert_eq!(found.is_err(), refused, "{message}");
        assert!(found.is_ok() || found.as_ref().is_err_and(|error| error.contains(&message)), "{found:?}");
    }
}

/// GGUF files have what the usual factor is multiplied by.
#[test]
fn a_factor_of_attention_is_kept() {
    let read = |file: &[u8]| {
        let config = ModelConfig::from_gguf(&Gguf::parse(file).unwrap()).unwrap();
        let RopeScaling::Yarn { attention_factor, .. } = config.positions.frequencies().scaling else {
            panic!("not YaRN")
        };
        attention_factor
    };
    for factor in [1.0, 1.5] {
        let folder = with_config("qwen3", |config| {
            config["rope_parameters"]["attention_factor"] = factor.into();
        });
        let dir = TempDir::new().unwrap();
        let (file, back) = (dir.path().join("model.gguf"), dir.path().join("back"));
        convert(folder.path(), &file, &ConvertOptions::new(), |_, _| ()).unwrap();
        convert_to_folder(&file, &back, &ConvertOptions::new(), |_, _| ()).unwrap();
        for file in [fs::read(&file).unwrap(), converted(&back, &ConvertOptions::new()).unwrap()] {
            assert!((read(&file) - factor).abs() < 1e-6, "{}", read(&file));
        }
    }
    let usual = read(&converted(&fixture("qwen3"), &ConvertOptions::new()).unwrap());
    assert_ne!(usual, 1.0);
    // That of DeepSeek-R1-0528-Qwen3-8B.
    let folder = with_config("qwen3", |config| config["rope_parameters"]["attn_factor"] = 0.5.into());
    assert_eq!(read(&converted(folder.path(), &ConvertOptions::new()).unwrap()), 0.5 * usual);
}

/// To GGUF, to a folder and to GGUF again.
#[test]
fn dynamic_ntk_comes_back_and_longrope_is_refused_by_name() {
    let folder = |rope: serde_json::Value| {
        with_config("qwen3", |config| {
            config["rope_parameters"] = rope;
            config["general.name"] = "scaled".into();
        })
    };
    let dir = TempDir::new().unwrap();
    let (file, back) = (dir.path().join("model.gguf"), dir.path().join("back"));
    let dynamic = folder(serde_json::json!({ "rope_type": "dynamic", "rope_theta": 1e6, "factor": 2.5 }));
    convert(dynamic.path(), &file, &ConvertOptions::new(), |_, _| ()).unwrap();
    convert_to_folder(&file, &back, &ConvertOptions::new(), |_, _| ()).unwrap();
    assert!(fs::read(&file).unwrap() == converted(&back, &ConvertOptions::new()).unwrap());

    let factors = vec![1.5; 8];
    let longrope = folder(serde_json::json!({
        "rope_type": "longrope", "rope_theta": 1e6, "long_factor": factors, "short_factor": factors,
        "original_max_position_embeddings": 4,
    }));
    convert(longrope.path(), &file, &ConvertOptions::new().replace(true), |_, _| ()).unwrap();
    let options = ConvertOptions::new().replace(true);
    let refused = convert_to_folder(&file, &back, &options, |_, _| ()).unwrap_err().to_string();
    assert!(refused.contains("rope.scaling.type is longrope, expected none, linear"), "{refused}");
}

/// Token ids under keys of the tokenizer.
fn token_ids(file: &[u8]) -> [Option<u32>; 3] {
    let gguf = Gguf::parse(file).unwrap();
    ["eos", "eot", "eom"].map(|key| gguf.metadata().u32(&format!("tokenizer.ggml.{key}_token_id")).unwrap())
}

#[test]
fn all_ends_of_a_reply_are_kept() {
    let ends = |ids: &[u32]| {
        let text = serde_json::json!({ "eos_token_id": ids }).to_string();
        changed("qwen3", "generation_config.json", |_| Some(text.into_bytes()))
    };
    let read = |folder: &Path| converted(folder, &ConvertOptions::new()).map(|file| token_ids(&file));
    // Its name says that 264 is one.
    assert_eq!(read(ends(&[266, 264]).path()).unwrap(), [Some(266), None, None]);
    assert_eq!(read(ends(&[266, 267, 264]).path()).unwrap(), [Some(266), Some(267), None]);
    assert_eq!(read(ends(&[266, 267, 265]).path()).unwrap(), [Some(266), Some(267), Some(265)]);
    assert_eq!(read(ends(&[266, 267, 265, 267, 266]).path()).unwrap(), [Some(266), Some(267), Some(265)]);
    let refused = read(ends(&[266, 267, 265, 3, 3]).path()).unwrap_err().to_string();
    assert!(refused.contains("eos_token_id is 3 such tokens, expected at most two beside eos"), "{refused}");
    // Llama 3 ends replies with three tokens whose names say so: a fourth fits.
    let llama = |ids: &[u32]| {
        let folder = ends(ids);
        let path = folder.path().join("tokenizer.json");
        let mut text = fs::read_to_string(&path).unwrap();
        let mut root: serde_json::Value = serde_json::from_str(&text).unwrap();
        for (id, name) in [(264, "<|eot_id|>"), (265, "<|eom_id|>"), (266, "<|end_of_text|>")] {
            let tokens = root["added_tokens"].as_array_mut().unwrap();
            let token = tokens.iter_mut().find(|token| token["id"] == id).unwrap();
            let old = std::mem::replace(&mut token["content"], name.into());
            text = root.to_string().replace(&old.to_string(), &format!("{name:?}"));
            root = serde_json::from_str(&text).unwrap();
        }
        fs::write(&path, text).unwrap();
        folder
    };
    assert_eq!(read(llama(&[266, 265, 264]).path()).unwrap(), [Some(266), Some(264), Some(265)]);
    assert_eq!(read(llama(&[266, 265, 264, 267]).path()).unwrap(), [Some(266), Some(264), Some(267)]);
    assert_eq!(read(llama(&[266, 265, 264, 267, 3]).path()).unwrap(), [Some(266), Some(267), Some(3)]);

    // To GGUF, to a folder and back.
    let dir = TempDir::new().unwrap();
    let (first, back) = (dir.path().join("first.gguf"), dir.path().join("back"));
    convert(ends(&[266, 267, 265]).path(), &first, &ConvertOptions::new(), |_, _| ()).unwrap();
    convert_to_folder(&first, &back, &ConvertOptions::new(), |_, _| ()).unwrap();
    assert_eq!(read(&back).unwrap(), [Some(266), Some(267), Some(265)]);
    let tokenizer = fs::read(&first).unwrap();
    let tokenizer = Tokenizer::from_gguf(&Gguf::parse(&tokenizer).unwrap()).unwrap().into_owned();
    assert!([264, 265, 266, 267].iter().all(|id| tokenizer.is_end(*id)));
}

/// Makes a folder one of sentence-transformers.
fn with_modules(folder: &TempDir, modules: &serde_json::Value, settings: &serde_json::Value) {
    fs::write(folder.path().join("modules.json"), modules.to_string()).unwrap();
    fs::create_dir_all(folder.path().join("1_Pooling")).unwrap();
    fs::write(folder.path().join("1_Pooling/config.json"), settings.to_string()).unwrap();
}

/// As sentence-transformers writes folders since 5.4, where transformers wrote the model without its head.
#[test]
fn the_pooling_of_sentence_transformers_5_4_is_read() {
    use serde_json::json;
    let folder = with_config("qwen3", |config| config["architectures"] = json!(["Qwen3Model"]));
    let kind = |name: &str| format!("sentence_transformers.{name}");
    let mut modules = json!([
        { "idx": 0, "name": "0", "path": "", "type": kind("base.modules.transformer.Transformer") },
        { "idx": 1, "name": "1", "path": "1_Pooling", "type": kind("sentence_transformer.modules.pooling.Pooling") },
        { "idx": 2, "name": "2", "path": "2_Normalize", "type": kind("sentence_transformer.modules.normalize.Normalize") },
    ]);
    let read = |modules: &serde_json::Value, mode: serde_json::Value| {
        with_modules(&folder, modules, &mode);
        let file = converted(folder.path(), &ConvertOptions::new()).map_err(|error| error.to_string())?;
        Ok(Gguf::parse(&file).unwrap().metadata().u32("qwen3.pooling_type").unwrap().unwrap())
    };
    for (mode, id) in [
        (json!({ "pooling_mode": "mean" }), 1),
        (json!({ "pooling_mode": "cls" }), 2),
        (json!({ "pooling_mode": "lasttoken", "include_prompt": true }), 3),
        (json!({ "pooling_mode": ["lasttoken"], "pooling_mode_mean_tokens": true }), 3),
        (json!({ "embedding_dimension": 32 }), 1),
    ] {
        assert_eq!(read(&modules, mode), Ok(id));
    }
    for (mode, found) in [(json!("max"), "\"max\""), (json!(["mean", "cls"]), "[\"mean\",\"cls\"]")] {
        let expected = format!("pooling_mode is {found}, expected one of mean, cls and lasttoken");
        let refused: String = read(&modules, json!({ "pooling_mode": mode })).unwrap_err();
        assert!(refused.contains("1_Pooling/config.json") && refused.contains(&expected), "{refused}");
    }
    // They would change the embedding.
    for other in [kind("models.Dense"), kind("base.modules.dense.Dense"), "custom.Transformer".into()] {
        modules[2]["type"] = other.clone().into();
        let refused = read(&modules, json!({ "pooling_mode": "mean" })).unwrap_err();
        let expected = format!("modules.json: type of a module is {other:?}, expected");
        assert!(refused.contains(&expected), "{refused}");
    }
}

#[test]
fn a_model_without_its_head_has_the_name_of_the_class_without_it() {
    for (name, class) in [("qwen3", "Qwen3Model"), ("qwen3moe", "Qwen3MoeModel"), ("llama3", "LlamaModel")] {
        let folder = with_config(name, |config| config["architectures"] = serde_json::json!([class]));
        let found = difference(folder.path(), &converted(folder.path(), &ConvertOptions::new()).unwrap());
        assert!(found < 1e-4, "{name}: {found}");
    }
}

/// A change of `tokenizer.json` as JSON.
fn with_tokenizer(change: impl FnOnce(&mut serde_json::Value)) -> TempDir {
    changed("qwen3", "tokenizer.json", |bytes| {
        let mut root = serde_json::from_slice(&bytes).unwrap();
        change(&mut root);
        Some(root.to_string().into_bytes())
    })
}

#[test]
fn settings_of_a_tokenizer_that_change_tokens_are_refused() {
    use serde_json::json;
    let special = |id: &str| json!({ "SpecialToken": { "id": id, "type_id": 0 } });
    let text = json!({ "Sequence": { "id": "A", "type_id": 0 } });
    let template = |single: &[serde_json::Value]| json!({ "type": "TemplateProcessing", "single": single });
    let lower = json!({ "type": "Lowercase" });
    let nfc = json!({ "type": "NFC" });
    for (pointer, value, expected) in [
        ("/normalizer", lower.clone(), "normalizer is {\"type\":\"Lowercase\"}, expected NFC or none"),
        ("/normalizer", json!({ "type": "Sequence", "normalizers": [nfc, lower] }), "normalizer is {"),
        ("/model/dropout", json!(0.1), "model.dropout is 0.1, expected none"),
        ("/model/end_of_word_suffix", json!("</w>"), "model.end_of_word_suffix is \"</w>\""),
        ("/model/continuing_subword_prefix", json!("##"), "model.continuing_subword_prefix is \"##\""),
        ("/model/byte_fallback", json!(true), "pre_tokenizer is {"),
        ("/model/ignore_merges", json!(true), "pre_tokenizer is {"),
        ("/added_tokens/3/lstrip", json!(true), "lstrip of the added token \"<think>\" is true"),
        ("/added_tokens/3/rstrip", json!(true), "rstrip of the added token \"<think>\" is true"),
        ("/added_tokens/3/single_word", json!(true), "single_word of the added token \"<think>\" is true"),
        (
            "/post_processor",
            json!({ "type": "RobertaProcessing" }),
            "post_processor.type is \"RobertaProcessing\"",
        ),
        ("/post_processor", template(&[]), "post_processor.single is []"),
        (
            "/post_processor",
            template(&[special("<think>"), special("<|im_end|>"), text.clone()]),
            "post_processor.single is [",
        ),
        (
            "/post_processor",
            template(&[special("<think>"), text.clone()]),
            "post_processor.single is \"<think>\"",
        ),
        (
            "/post_processor",
            template(&[text.clone(), special("<nothing>")]),
            "post_processor.single is \"<nothing>\"",
        ),
    ] {
        let folder = with_tokenizer(|root| *root.pointer_mut(pointer).unwrap() = value);
        let error = converted(folder.path(), &ConvertOptions::new()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}, expected {expected}");
    }
    // As published files have them.
    for (pointer, value) in [
        ("/normalizer", nfc.clone()),
        ("/normalizer", json!({ "type": "Sequence", "normalizers": [nfc] })),
        ("/model/dropout", json!(null)),
        ("/model/end_of_word_suffix", json!("")),
        ("/model/continuing_subword_prefix", json!("")),
        ("/post_processor", json!(null)),
        ("/post_processor", json!({ "type": "ByteLevel", "trim_offsets": false })),
        ("/post_processor", template(&[special("<|endoftext|>"), text])),
    ] {
        let folder = with_tokenizer(|root| *root.pointer_mut(pointer).unwrap() = value);
        converted(folder.path(), &ConvertOptions::new()).unwrap();
    }
}

#[test]
fn damaged_folders_are_refused_by_name() {
    let header = |text: &str| {
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(text.as_bytes());
        Some(bytes)
    };
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    type Change = Box<dyn FnOnce(Vec<u8>) -> Option<Vec<u8>>>;
    let cases: Vec<(&str, &str, Change, &str)> = vec![
        ("qwen3", "config.json", Box::new(|_| None), "is a folder without config.json"),
        ("qwen3", "config.json", Box::new(|_| Some(b"{".to_vec())), "config.json: invalid JSON: EOF"),
        ("qwen3", "config.json", Box::new(|_| Some(vec![0xff])), "config.json: invalid JSON: not UTF-8"),
        ("qwen3", "config.json", Box::new(move |_| Some(deep.into_bytes())), "recursion limit exceeded"),
        (
            "qwen3",
            "config.json",
            Box::new(replaced("Qwen3For", "Gemma4For")),
            "architectures is \"Gemma4ForCausalLM\"",
        ),
        (
            "qwen3",
            "config.json",
            Box::new(replaced("\"attention_bias\": false", "\"attention_bias\": true")),
            "attention_bias is true",
        ),
        (
            "qwen3",
            "config.json",
            Box::new(replaced("\"hidden_size\": 32", "\"hidden_size\": -1")),
            "hidden_size is -1",
        ),
        (
            "qwen3",
            "config.json",
            Box::new(replaced("\"hidden_size\": 32", "\"hidden_size\": 64")),
            "model.embed_tokens.weight has the shape [272, 32]",
        ),
        (
            "qwen3",
            "config.json",
            Box::new(replaced("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 4000000000")),
            "block_count",
        ),
        (
            "qwen3",
            "config.json",
            Box::new(replaced("\"vocab_size\": 272", "\"vocab_size\": 100")),
            "not a row of the embedding",
        ),
        (
            "qwen3",
            "config.json",
            Box::new(replaced("\"vocab_size\": 272", "\"vocab_size\": 2000000000")),
            "vocab_size is 2000000000",
        ),
        (
            "qwen3",
            "config.json",
            Box::new(replaced("\"yarn\"", "\"proportional\"")),
            "rope_parameters.rope_type is \"proportional\"",
        ),
        (
            "qwen3",
            "config.json",
            Box::new(replaced("\"yarn\"", "\"longrope\"")),
            "rope_parameters.short_factor is missing",
        ),
        (
            "qwen3",
            "config.json",
            Box::new(replaced("\"yarn\"", "\"longrope\", \"short_factor\": [1, 1, 1]")),
            "rope_parameters.short_factor is [1,1,1]",
        ),
        (
            "qwen3moe",
            "config.json",
            Box::new(replaced("\"num_local_experts\": 4", "\"num_local_experts\": 5")),
            "has no expert 4, but num_experts is 5",
        ),
        (
            "qwen3moe",
            "config.json",
            Box::new(replaced("\"num_local_experts\": 4", "\"num_local_experts\": 3")),
            "mlp.experts.3.down_proj is not part of this architecture",
        ),
        (
            "qwen3moe",
            "config.json",
            Box::new(replaced("\"decoder_sparse_step\": 1", "\"decoder_sparse_step\": 2")),
            "decoder_sparse_step is 2",
        ),
        (
            "qwen3moe",
            "config.json",
            Box::new(replaced("\"norm_topk_prob\": true", "\"norm_topk_prob\": 1")),
            "norm_topk_prob is 1",
        ),
        ("qwen3", "tokenizer.json", Box::new(|_| None), "tokenizer.json is missing"),
        (
            "qwen3",
            "tokenizer.json",
            Box::new(replaced("\"~\":", "\"~~\":")),
            "model.vocab of tokenizer.json is without \"~\", expected a token for each byte",
        ),
        (
            "qwen3",
            "tokenizer.json",
            Box::new(replaced("\"BPE\"", "\"Unigram\"")),
            "model.type is \"Unigram\"",
        ),
        ("qwen3", "tokenizer.json", Box::new(replaced("\\\\p{N}| ?", "\\\\p{N}+| ?")), "pre_tokenizer is {"),
        (
            "qwen3",
            "tokenizer.json",
            Box::new(replaced("\"id\": 265", "\"id\": 264")),
            "264, which is another token's",
        ),
        (
            "qwen3",
            "tokenizer.json",
            Box::new(replaced("\"merges\": [", "\"merges\": [7,")),
            "model.merges is 7",
        ),
        ("qwen3", "model.safetensors", Box::new(|_| None), "is a folder without weights"),
        ("qwen3", "model.safetensors", Box::new(|_| Some(vec![])), "not a valid safetensors file"),
        (
            "qwen3",
            "model.safetensors",
            Box::new(|_| Some(u64::MAX.to_le_bytes().to_vec())),
            "not a valid safetensors file",
        ),
        (
            "qwen3",
            "model.safetensors",
            Box::new(|mut bytes| {
                bytes.pop();
                Some(bytes)
            }),
            "not a valid safetensors file",
        ),
        (
            "qwen3",
            "model.safetensors",
            Box::new(move |_| {
                header("{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}")
            }),
            "not a valid safetensors file",
        ),
        (
            "qwen3",
            "model.safetensors",
            Box::new(move |_| header("{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}")),
            "tensor a is not part of this architecture",
        ),
        ("qwen3", "model.safetensors", Box::new(move |_| header("{}")), "token_embd.weight"),
        (
            "llama",
            "model.safetensors.index.json",
            Box::new(replaced("model-00002", "model-00009")),
            "cannot open",
        ),
        (
            "llama",
            "model.safetensors.index.json",
            Box::new(replaced("model-00002", "../model-00002")),
            "weight_map is \"../model-00002",
        ),
        (
            "llama3",
            "config.json",
            Box::new(replaced("\"head_dim\": 16", "\"head_dim\": 4294967295")),
            "head_dim is 4294967295",
        ),
        (
            "llama",
            "model.safetensors.index.json",
            Box::new(|_| Some(b"{\"weight_map\":{}}".to_vec())),
            "weight_map is missing",
        ),
        (
            "mlx-2bit",
            "config.json",
            Box::new(replaced("\"bits\": 2", "\"bits\": 3")),
            "quantization.bits is 3",
        ),
        (
            "mlx-2bit",
            "config.json",
            Box::new(replaced("\"bits\": 2", "\"bits\": 4")),
            "which its scales and biases do not fit",
        ),
    ];
    for (name, file, change, message) in cases {
        let folder = changed(name, file, change);
        let error = converted(folder.path(), &ConvertOptions::new()).unwrap_err();
        assert!(error.to_string().contains(message), "{name}/{file}: {error}, expected {message}");
    }
}
