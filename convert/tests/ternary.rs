//! Ternary matrices with one scale: packed folders of BitNet and GGUF files of type 36 (I2_S), against transformers
//! (`tests/oracle/bitnet.py`).

use shohin_convert::{ConvertOptions, Error, Id36, convert, convert_to_folder};
use shohin_core::gguf::Gguf;
use shohin_core::model::{LoraAdapter, ModelBytes, Split};
use shohin_core::{BonsaiModel, CpuOptions, Format, KvFormat};
use shohin_tests::cpu::{all_logits, device, exact, in_format};
use shohin_tests::raw::{RawFile, RawValue};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const I2_S: u32 = 36;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

fn converted(source: &Path, options: &ConvertOptions) -> Result<Vec<u8>, Error> {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("out.gguf");
    convert(source, &out, options, |_, _| ())?;
    Ok(fs::read(&out).unwrap())
}

/// The largest difference to transformers' logits.
fn difference(file: &[u8], options: &CpuOptions) -> f32 {
    let folder = fixture("hf/bitnet-packed");
    let want = fs::read(folder.join("logits.f32")).unwrap();
    let texts: Vec<(String, Vec<u32>)> =
        serde_json::from_slice(&fs::read(folder.join("texts.json")).unwrap()).unwrap();
    let mut device = device(file, options).unwrap();
    let got = all_logits(&mut device, &texts[0].1, &in_format(KvFormat::F32)).unwrap();
    assert_eq!(got.len(), want.len() / 4);
    let want = want.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
    got.iter().zip(want).map(|(got, want)| (got - want).abs()).fold(0.0, f32::max)
}

/// Both stay packed, with a factor beside each matrix whose scale f16 does not have.
#[test]
fn packed_weights_say_what_transformers_says() {
    for source in ["hf/bitnet-packed", "bitnet-i2s.gguf"] {
        let file = converted(&fixture(source), &ConvertOptions::new()).unwrap();
        let gguf = Gguf::parse(&file).unwrap();
        assert_eq!(gguf.header().layer_format(), Some(Format::Pq2_0), "{source}");
        let factors = gguf.tensors().iter().filter(|tensor| tensor.name().ends_with(".scale"));
        assert_eq!(factors.count(), 13, "{source}");
        assert!(gguf.header().tensor("blk.0.ffn_up.scale").is_some());
        assert!(gguf.header().tensor("blk.1.ffn_up.scale").is_none());
        let difference = difference(&file, &exact());
        assert!(difference < 1e-4, "{source}: {difference}");
    }
}

/// As of a build for ARM: blocks of 64 weights.
fn in_blocks_of_64(file: &[u8]) -> Vec<u8> {
    let mut out = file.to_vec();
    let gguf = Gguf::parse(file).unwrap();
    for tensor in gguf.tensors().iter().filter(|tensor| tensor.type_id() == I2_S) {
        let (codes, _) = gguf.data(tensor).split_at(tensor.elements() as usize / 4);
        let start = codes.as_ptr() as usize - file.as_ptr() as usize;
        for (block, out) in codes.chunks_exact(32).zip(out[start..].chunks_exact_mut(32)) {
            let weight = |j: usize| (block[j % 32] >> (6 - 2 * (j / 32))) & 3;
            for (at, byte) in out.iter_mut().enumerate() {
                let (half, at) = (at / 16 * 64, at % 16);
                *byte = (0..4).fold(0, |byte, i| byte | weight(half + i * 16 + at) << (6 - 2 * i));
            }
        }
    }
    out
}

#[test]
fn blocks_of_64_are_read_if_they_are_asked_for() {
    let (dir, file) = (TempDir::new().unwrap(), fs::read(fixture("bitnet-i2s.gguf")).unwrap());
    let path = dir.path().join("arm.gguf");
    fs::write(&path, in_blocks_of_64(&file)).unwrap();
    let right = converted(&fixture("bitnet-i2s.gguf"), &ConvertOptions::new()).unwrap();
    let told = |id36| converted(&path, &ConvertOptions::new().id36(id36)).unwrap();
    assert!(told(Id36::Block64) == right);
    assert!(told(Id36::Auto) != right && told(Id36::Auto) == told(Id36::Block128));
}

fn refused(file: &[u8]) -> String {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("model.gguf");
    fs::write(&path, file).unwrap();
    converted(&path, &ConvertOptions::new()).unwrap_err().to_string()
}

#[test]
fn damaged_files_are_refused_by_name() {
    let file = fs::read(fixture("bitnet-i2s.gguf")).unwrap();
    let gguf = Gguf::parse(&file).unwrap();
    let tensor = gguf.header().tensor("blk.0.attn_q.weight").unwrap();
    let data = gguf.data(tensor);
    assert_eq!(data.len(), 128 * 128 / 4 + 32);
    let start = data.as_ptr() as usize - file.as_ptr() as usize;
    let changed = |at: usize, bytes: &[u8]| {
        let mut file = file.clone();
        file[start + at..][..bytes.len()].copy_from_slice(bytes);
        refused(&file)
    };
    let found = changed(77, &[0b0111_0101]);
    assert!(found.contains("tensor blk.0.attn_q.weight has a code 3 in byte 77"), "{found}");
    for scale in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let found = changed(128 * 128 / 4, &scale.to_le_bytes());
        assert!(found.contains("blk.0.attn_q.weight has the scale") && found.contains("positive"), "{found}");
    }
    // Read as it is, the type is not one to compute with.
    let found = BonsaiModel::load(&file[..]).unwrap_err().to_string();
    assert!(found.contains("blk.0.attn_q.weight") && found.contains("shohin convert"), "{found}");
    // Its scale would be behind the end of the file.
    let mut raw = RawFile::of(&file);
    raw.data.truncate(raw.data.len() - 1);
    assert!(Gguf::parse(&raw.build()).is_err());
}

fn folder(change: impl FnOnce(&mut serde_json::Value)) -> TempDir {
    let dir = TempDir::new().unwrap();
    for file in fs::read_dir(fixture("hf/bitnet-packed")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), dir.path().join(file.file_name())).unwrap();
    }
    let path = dir.path().join("config.json");
    let mut config = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut config);
    fs::write(path, config.to_string()).unwrap();
    dir
}

#[test]
fn other_kinds_of_folders_are_refused_by_name() {
    for (key, value, want) in [
        ("linear_class", "linear", "linear_class is \"linear\", expected bitlinear or autobitlinear"),
        ("quantization_mode", "online", "quantization_mode is \"online\", expected offline"),
        (
            "quant_method",
            "gptq",
            "quant_method is \"gptq\", expected fp8, fbgemm_fp8, compressed-tensors of FP8, bitnet, or MLX's quantization",
        ),
    ] {
        let folder = folder(|config| config["quantization_config"][key] = value.into());
        let found = converted(folder.path(), &ConvertOptions::new()).unwrap_err().to_string();
        assert!(found.contains(want), "{found}");
    }
    let normed = folder(|config| config["quantization_config"]["use_rms_norm"] = true.into());
    let found = converted(normed.path(), &ConvertOptions::new()).unwrap_err().to_string();
    assert!(found.contains("use_rms_norm is true, expected false"), "{found}");
}

/// The class `bitlinear` divides by the same number.
#[test]
fn scales_divide_in_the_older_class() {
    let old = folder(|config| config["quantization_config"]["linear_class"] = "bitlinear".into());
    let file = |source: &Path| converted(source, &ConvertOptions::new()).unwrap();
    let (divided, multiplied) = (file(old.path()), file(&fixture("hf/bitnet-packed")));
    let factor = |file: &[u8]| {
        let gguf = Gguf::parse(file).unwrap();
        let tensor = *gguf.header().tensor("blk.1.attn_v.scale").unwrap();
        f32::from_le_bytes(gguf.data(&tensor).try_into().unwrap())
    };
    assert_eq!(factor(&divided), 1.0 / factor(&multiplied));
}

#[test]
fn what_does_not_know_factors_refuses_them() {
    let file = converted(&fixture("bitnet-i2s.gguf"), &ConvertOptions::new()).unwrap();
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("model.gguf");
    fs::write(&path, &file).unwrap();
    let found = convert_to_folder(&path, dir.path().join("out"), &ConvertOptions::new(), |_, _| ());
    let found = found.unwrap_err().to_string();
    assert!(found.contains(".scale"), "{found}");
    let model = BonsaiModel::load(file.bytes()).unwrap();
    // Pipelines compute each stage's own.
    assert!(model.program().split(Split::Pipeline(2), 1).unwrap().program.has_factors());
    let lora = RawFile::of(&fs::read(fixture("lora/some.gguf")).unwrap());
    let lora = lora.set("general.architecture", RawValue::str("bitnet-b1.58")).build();
    let gguf = Gguf::parse(&lora).unwrap();
    let adapter = LoraAdapter::from_gguf(&gguf).unwrap();
    let found = model.adapt(&[(&adapter, 1.0)], |_| unreachable!()).unwrap_err().to_string();
    assert!(found.contains("without factors of single matrices"), "{found}");
}
