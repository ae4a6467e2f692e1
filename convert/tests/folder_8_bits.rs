//! Weights of 8 bits in Hugging Face folders.

use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use serde_json::{Value, json};
use shohin_convert::{ConvertOptions, Error, convert};
use shohin_core::gguf::Gguf;
use shohin_core::{Format, KvFormat};
use shohin_tests::cpu::{all_logits, device, exact, in_format};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/hf").join(name)
}

/// A fixture with other tensors and other settings, converted.
fn converted(name: &str, set: impl FnOnce(&mut Value), change: impl FnOnce(&mut Tensors)) -> Vec<u8> {
    convert_changed(name, set, change).unwrap()
}

fn convert_changed(
    name: &str,
    set: impl FnOnce(&mut Value),
    change: impl FnOnce(&mut Tensors),
) -> Result<Vec<u8>, Error> {
    let dir = TempDir::new().unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json", "config.json"] {
        fs::copy(fixture(name).join(file), dir.path().join(file)).unwrap();
    }
    let path = dir.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    set(&mut config);
    fs::write(path, config.to_string()).unwrap();
    let bytes = fs::read(fixture(name).join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors: Tensors = file
        .iter()
        .map(|(name, view)| (name.into(), (view.dtype(), view.shape().to_vec(), view.data().to_vec())))
        .collect();
    change(&mut tensors);
    let views = tensors.iter().map(|(name, (dtype, shape, data))| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    fs::write(dir.path().join("model.safetensors"), serialize(views, None).unwrap()).unwrap();
    let out = dir.path().join("out.gguf");
    convert(dir.path(), &out, &ConvertOptions::new(), |_, _| ())?;
    Ok(fs::read(out).unwrap())
}

/// Sets MLX's bits to 8.
fn in_bytes(config: &mut Value) {
    config["quantization"]["bits"] = json!(8);
}

fn logits(file: &[u8]) -> Vec<f32> {
    let texts = fs::read(fixture("mlx-4bit/texts.json")).unwrap();
    let texts: Vec<(String, Vec<u32>)> = serde_json::from_slice(&texts).unwrap();
    all_logits(&mut device(file, &exact()).unwrap(), &texts[0].1, &in_format(KvFormat::F32)).unwrap()
}

/// Gives every 4-bit code a byte, plus `offset`.
fn widen(tensors: &mut Tensors, offset: u8) {
    for (_, shape, data) in tensors.values_mut().filter(|(dtype, ..)| *dtype == Dtype::U32) {
        shape[1] *= 2;
        *data = data.iter().flat_map(|byte| [(byte & 15) + offset, (byte >> 4) + offset]).collect();
    }
}

#[test]
fn eight_bit_codes_of_mlx_are_those_of_four_in_bytes() {
    let file = converted("mlx-4bit", in_bytes, |tensors| widen(tensors, 0));
    let format = Gguf::parse(&file).unwrap().header().layer_format();
    assert_eq!(format, Some(Format::Q4_1), "codes above 15 do not occur");
    let want = fs::read(fixture("mlx-4bit/logits.f32")).unwrap();
    let want = want.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
    let found = logits(&file);
    assert_eq!(found.len(), want.len());
    for (found, want) in found.iter().zip(want) {
        assert!((found - want).abs() < 1e-4, "{found} {want}");
    }
}

#[test]
fn centred_eight_bit_codes_of_mlx_are_q8_0() {
    let scale = half::f16::from_f32(0.0625);
    let file = converted("mlx-4bit", in_bytes, |tensors| {
        widen(tensors, 100);
        for (name, (_, _, data)) in tensors.iter_mut() {
            let value = match name {
                name if name.ends_with(".scales") => scale,
                name if name.ends_with(".biases") => half::f16::from_f32(-8.0),
                _ => continue,
            };
            data.chunks_exact_mut(2).for_each(|bytes| bytes.copy_from_slice(&value.to_le_bytes()));
        }
    });
    let gguf = Gguf::parse(&file).unwrap();
    let matrix = gguf.matrix("blk.0.ffn_down.weight").unwrap();
    assert_eq!(matrix.format(), Format::Q8_0);
    let stored = fs::read(fixture("mlx-4bit/model.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&stored).unwrap();
    let codes = stored.tensor("model.layers.0.mlp.down_proj.weight").unwrap().data().to_vec();
    let mut row = vec![0.0; matrix.cols()];
    for (r, codes) in codes.chunks_exact(matrix.cols() / 2).enumerate() {
        matrix.unpack_row(r, &mut row).unwrap();
        for (k, w) in row.iter().enumerate() {
            let code = codes[k / 2] >> (4 * (k % 2)) & 15;
            assert_eq!(*w, 0.0625 * (f32::from(code) - 28.0));
        }
    }
}

#[test]
fn floats_of_8_bits_become_f16() {
    for (dtype, values) in [(Dtype::F8_E4M3, "float8_e4m3fn"), (Dtype::F8_E5M2, "float8_e5m2")] {
        let values = fs::read(fixture(&format!("{values}.f32"))).unwrap();
        let value = |code: u8| {
            let at = usize::from(code) * 4;
            f32::from_le_bytes(values[at..at + 4].try_into().unwrap())
        };
        let with = |code: &dyn Fn(u8) -> u8| {
            let change = |tensors: &mut Tensors| {
                let (stored, shape, data) = tensors.get_mut("model.layers.1.mlp.down_proj.weight").unwrap();
                let len: usize = shape.iter().product();
                (*stored, *data) = (dtype, (0..len).map(|i| code((i % 256) as u8)).collect());
            };
            convert_changed("qwen3", |_| (), change)
        };
        let refused = with(&|code| code).unwrap_err().to_string();
        assert!(refused.contains("blk.1.ffn_down.weight") && refused.contains("finite"), "{refused}");

        let finite = |code| if value(code).is_finite() { code } else { 0 };
        let file = with(&finite).unwrap();
        let gguf = Gguf::parse(&file).unwrap();
        let matrix = gguf.matrix("blk.1.ffn_down.weight").unwrap();
        assert_eq!(matrix.format(), Format::F16);
        let mut row = vec![0.0; matrix.cols()];
        for r in 0..matrix.rows() {
            matrix.unpack_row(r, &mut row).unwrap();
            for (k, w) in row.iter().enumerate() {
                assert_eq!(*w, value(finite(((r * matrix.cols() + k) % 256) as u8)));
            }
        }
    }
}

/// As in the folders of Qwen: `w = value scale`, with a scale for each block of rows and columns.
#[test]
fn floats_of_8_bits_have_a_scale_for_each_block() {
    const NAME: &str = "model.layers.1.mlp.down_proj.weight";
    let (rows, cols) = (20, 28);
    let values = fs::read(fixture("float8_e4m3fn.f32")).unwrap();
    let blocks = |config: &mut Value| {
        config["quantization_config"] = json!({"quant_method": "fp8", "weight_block_size": [rows, cols]});
    };
    let scaled = |more: usize| {
        move |tensors: &mut Tensors| {
            let (dtype, shape, data) = tensors.get_mut(NAME).unwrap();
            // No NaN.
            *data = (0..shape.iter().product()).map(|i: usize| (i % 251 / 2) as u8).collect();
            *dtype = Dtype::F8_E4M3;
            let shape = vec![shape[0].div_ceil(rows), shape[1].div_ceil(cols) + more];
            let scales = (0..shape.iter().product()).flat_map(|i: usize| (1.1 + i as f32).to_le_bytes());
            let scales = (Dtype::F32, shape.clone(), scales.collect());
            tensors.insert(format!("{NAME}_scale_inv"), scales);
        }
    };
    let file = converted("qwen3", blocks, scaled(0));
    let gguf = Gguf::parse(&file).unwrap();
    let matrix = gguf.matrix("blk.1.ffn_down.weight").unwrap();
    assert_eq!(matrix.format(), Format::F32);
    let mut row = vec![0.0; matrix.cols()];
    let per_row = matrix.cols().div_ceil(cols);
    assert!(matrix.rows() > rows && per_row > 1 && !matrix.cols().is_multiple_of(cols));
    for r in 0..matrix.rows() {
        matrix.unpack_row(r, &mut row).unwrap();
        for (k, w) in row.iter().enumerate() {
            let at = (r * matrix.cols() + k) % 251 / 2 * 4;
            let value = f32::from_le_bytes(values[at..at + 4].try_into().unwrap());
            assert_eq!(*w, value * (1.1 + (r / rows * per_row + k / cols) as f32));
        }
    }
    let refused = |result: Result<Vec<u8>, Error>| result.unwrap_err().to_string();
    let error = refused(convert_changed("qwen3", blocks, scaled(1)));
    assert!(error.contains(NAME) && error.contains("scales, expected"), "{error}");
    let error = refused(convert_changed("qwen3", |_| (), scaled(0)));
    assert!(error.contains(NAME), "{error}");
    let gptq = |config: &mut Value| config["quantization_config"] = json!({"quant_method": "gptq"});
    let error = refused(convert_changed("qwen3", gptq, |_| ()));
    assert!(error.contains("quant_method is \"gptq\", expected fp8"), "{error}");
}

/// As other quantizers write them: a scale for the matrix, for each row, or for each block, in `weight_scale`.
#[test]
fn floats_of_8_bits_have_a_scale_for_the_matrix_or_for_each_row() {
    const NAME: &str = "model.layers.1.mlp.down_proj.weight";
    let values = fs::read(fixture("float8_e4m3fn.f32")).unwrap();
    let group = |weights: Value| {
        let groups = json!({"group_0": {"targets": ["Linear"], "weights": weights}});
        json!({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": groups})
    };
    let float8 = |strategy: &str| group(json!({"num_bits": 8, "type": "float", "strategy": strategy}));
    let block = json!({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [16, 24]});
    type Scales = fn([usize; 2]) -> Vec<usize>;
    let cases: [(Value, &str, Scales); 7] = [
        (json!({"quant_method": "fp8", "weight_block_size": null}), "_scale_inv", |_| vec![]),
        (json!({"quant_method": "fbgemm_fp8"}), "_scale", |[rows, _]| vec![rows, 1]),
        (float8("channel"), "_scale", |[rows, _]| vec![rows, 1]),
        (float8("channel"), "_scale", |[rows, _]| vec![rows]),
        (float8("tensor"), "_scale", |_| vec![1]),
        (float8("tensor"), "_scale", |_| vec![]),
        (group(block), "_scale", |[rows, cols]| vec![rows.div_ceil(16), cols.div_ceil(24)]),
    ];
    let scaled = |suffix: &str, of: Scales, more: usize| {
        let suffix = suffix.to_string();
        move |tensors: &mut Tensors| {
            let (dtype, shape, data) = tensors.get_mut(NAME).unwrap();
            *data = (0..shape.iter().product()).map(|i: usize| (i % 251 / 2) as u8).collect();
            *dtype = Dtype::F8_E4M3;
            let mut shape = of([shape[0], shape[1]]);
            if let Some(first) = shape.first_mut() {
                *first += more;
            }
            let scales = (0..shape.iter().product()).flat_map(|i: usize| (1.1 + i as f32).to_le_bytes());
            let scales = (Dtype::F32, shape.clone(), scales.collect());
            tensors.insert(format!("{NAME}{suffix}"), scales);
            // What activations are divided by elsewhere.
            let scale = (Dtype::F32, vec![1], 1f32.to_le_bytes().to_vec());
            tensors.insert(NAME.replace(".weight", ".input_scale"), scale);
        }
    };
    for (config, suffix, of) in cases {
        let set = |root: &mut Value| root["quantization_config"] = config.clone();
        let file = converted("qwen3", set, scaled(suffix, of, 0));
        let gguf = Gguf::parse(&file).unwrap();
        let matrix = gguf.matrix("blk.1.ffn_down.weight").unwrap();
        let shape = of([matrix.rows(), matrix.cols()]);
        let blocks = shape.iter().product::<usize>();
        let mut row = vec![0.0; matrix.cols()];
        for r in 0..matrix.rows() {
            matrix.unpack_row(r, &mut row).unwrap();
            for (k, w) in row.iter().enumerate() {
                let at = (r * matrix.cols() + k) % 251 / 2 * 4;
                let value = f32::from_le_bytes(values[at..at + 4].try_into().unwrap());
                let scale = match blocks {
                    1 => 0,
                    _ if blocks == matrix.rows() => r,
                    _ => r / 16 * shape[1] + k / 24,
                };
                assert_eq!(*w, value * (1.1 + scale as f32), "{config}");
            }
        }
        if blocks > 1 {
            let error = convert_changed("qwen3", set, scaled(suffix, of, 1)).unwrap_err().to_string();
            assert!(error.contains(NAME) && error.contains("scales, expected"), "{error}");
        }
        let other = convert_changed("qwen3", set, scaled("_zero", of, 0)).unwrap_err().to_string();
        assert!(other.contains(NAME), "{other}");
    }
    let integers = group(json!({"num_bits": 8, "type": "int", "strategy": "channel"}));
    let set = |root: &mut Value| root["quantization_config"] = integers.clone();
    let error = convert_changed("qwen3", set, |_| ()).unwrap_err().to_string();
    assert!(error.contains("config_groups") && error.contains("expected floats of 8 bits"), "{error}");
}

/// Powers of two, as in the folders of DeepSeek-V3.1, leave 4 bits of mantissa.
#[test]
fn floats_of_8_bits_with_scales_are_as_small_as_is_exact() {
    const NAME: &str = "model.layers.1.mlp.down_proj.weight";
    let blocks = |config: &mut Value| {
        config["quantization_config"] = json!({"quant_method": "fp8", "weight_block_size": [128, 128]});
    };
    let scaled = |dtype: Dtype, scale: f32| {
        move |tensors: &mut Tensors| {
            let (stored, shape, data) = tensors.get_mut(NAME).unwrap();
            // No NaN and no infinity.
            *data = (0..shape.iter().product()).map(|i: usize| (i % 120) as u8).collect();
            *stored = dtype;
            let scales = (Dtype::F32, vec![1, 1], scale.to_le_bytes().to_vec());
            tensors.insert(format!("{NAME}_scale_inv"), scales);
        }
    };
    for (dtype, values, scale, format) in [
        (Dtype::F8_E4M3, "float8_e4m3fn", 0.25, Format::F16),
        (Dtype::F8_E4M3, "float8_e4m3fn", -96.0, Format::F16),
        // Values from 2^-29 on.
        (Dtype::F8_E4M3, "float8_e4m3fn", 2f32.powi(-20), Format::Bf16),
        // Up to 448 2^10.
        (Dtype::F8_E4M3, "float8_e4m3fn", 1024.0, Format::Bf16),
        (Dtype::F8_E5M2, "float8_e5m2", 2.0, Format::Bf16),
        (Dtype::F8_E5M2, "float8_e5m2", 1.0, Format::F16),
        (Dtype::F8_E4M3, "float8_e4m3fn", 0.0, Format::F16),
        (Dtype::F8_E4M3, "float8_e4m3fn", 0.1, Format::F32),
    ] {
        let values = fs::read(fixture(&format!("{values}.f32"))).unwrap();
        let file = converted("qwen3", blocks, scaled(dtype, scale));
        let gguf = Gguf::parse(&file).unwrap();
        let matrix = gguf.matrix("blk.1.ffn_down.weight").unwrap();
        assert_eq!(matrix.format(), format, "{scale}");
        let mut row = vec![0.0; matrix.cols()];
        for r in 0..matrix.rows() {
            matrix.unpack_row(r, &mut row).unwrap();
            for (k, w) in row.iter().enumerate() {
                let at = (r * matrix.cols() + k) % 120 * 4;
                assert_eq!(*w, f32::from_le_bytes(values[at..at + 4].try_into().unwrap()) * scale);
            }
        }
    }
}

/// One format for all of them keeps the bits of each.
#[test]
fn experts_of_several_floats_are_f32() {
    let floats = |expert: u32| format!("model.layers.1.mlp.experts.{expert}.up_proj.weight");
    let plain = converted("qwen3moe", |_| (), |_| ());
    let mixed = converted(
        "qwen3moe",
        |_| (),
        |tensors| {
            let (dtype, _, data) = tensors.get_mut(&floats(2)).unwrap();
            let value = |bytes: &[u8]| half::bf16::from_le_bytes(bytes.try_into().unwrap()).to_f32();
            (*dtype, *data) = match *dtype {
                Dtype::BF16 => {
                    (Dtype::F32, data.chunks_exact(2).flat_map(|w| value(w).to_le_bytes()).collect())
                }
                other => panic!("{other:?}"),
            };
        },
    );
    let weights = |file: &[u8]| {
        let gguf = Gguf::parse(file).unwrap();
        let info = gguf.tensors().iter().find(|info| info.name() == "blk.1.ffn_up_exps.weight").unwrap();
        let mut values = vec![0.0; info.dims().iter().product::<u64>() as usize];
        shohin_core::quant::unpack(info.format().unwrap(), gguf.data(info), &mut values).unwrap();
        (info.format().unwrap(), values)
    };
    let ((format, mixed), (_, plain)) = (weights(&mixed), weights(&plain));
    assert_eq!(format, Format::F32);
    assert!(mixed == plain);
}

/// mlx-lm repeats its settings under a second name, and gives some modules their own.
#[test]
fn modules_have_settings_of_their_own() {
    let module = "model.layers.0.mlp.down_proj";
    let mixed = |config: &mut Value| {
        config["quantization"]["mode"] = json!("affine");
        config["quantization"][module] =
            json!({"group_size": config["quantization"]["group_size"], "bits": 8});
        config["quantization_config"] = config["quantization"].clone();
    };
    let file = converted("mlx-4bit", mixed, |tensors| {
        let (_, shape, data) = tensors.get_mut(&format!("{module}.weight")).unwrap();
        shape[1] *= 2;
        *data = data.iter().flat_map(|byte| [byte & 15, byte >> 4]).collect();
    });
    assert_eq!(logits(&file), logits(&converted("mlx-4bit", |_| (), |_| ())));
    let other = |config: &mut Value| config["quantization"]["mode"] = json!("mxfp4");
    let error = convert_changed("mlx-4bit", other, |_| ()).unwrap_err().to_string();
    assert!(error.contains("quantization.mode is \"mxfp4\", expected affine"), "{error}");
}
