//! A model as a Hugging Face folder: `config.json`, the tokenizer's files and `model.safetensors`.

use crate::config::{
    FULL_ATTENTION, LINEAR_ATTENTION, LOCAL_BASE, ROPE_FACTORS, WINDOWED, fixed_json, folder_of, rope_factors,
};
use crate::error::{ConvertError, Result};
use crate::file_type::FileType;
use crate::folder::{NAME, WEIGHTS, parts_of_model};
use crate::json::pretty;
use crate::names::is_convolution;
use crate::options::ConvertOptions;
use crate::plan::Plan;
use crate::report::{Converted, ConvertedTensor};
use crate::source::Source;
use crate::tensor::{self, Tensor};
use crate::{pooling, to_gguf, tokenizer};
use safetensors::tensor::{Dtype, View, serialize_to_file};
use serde_json::{Map, Value, json};
use shohin_core::gguf::Gguf;
use shohin_core::model::hugging_face::{FixedValue, HuggingFace, Setting, SettingValue};
use shohin_core::model::{ModelConfig, RopeScaling};
use shohin_core::quant::WeightClass;
use shohin_core::{Format, Tokenizer};
use shohin_files::failed;
use shohin_files::new_file::NewFile;
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;

/// The file that says what the others of a folder are, and is written last.
const CONFIG: &str = "config.json";

/// Converts `source`, a GGUF file or what [`convert`](crate::convert) reads, to the Hugging Face folder `out`, which
/// transformers loads. `progress` is called with the bytes of weights written so far and all of them.
///
/// Weights are F32, F16 or BF16 as [`ConvertOptions::file_type`] says, or else the smallest of these that keeps every
/// bit. The memory of one tensor is needed.
///
/// ```no_run
/// use shohin_convert::{ConvertOptions, convert_to_folder};
///
/// convert_to_folder("bonsai-1.7b.gguf", "Bonsai-1.7B-unpacked", &ConvertOptions::new(), |_, _| ())?;
/// # Ok::<(), shohin_convert::Error>(())
/// ```
///
/// # Errors
/// As for [`convert`](crate::convert), and [`ConvertError::Exists`] if the folder has a model. Files are complete or
/// not there; `config.json` is written last. Safetensors in parts and files of a tokenizer that are replaced are removed; an
/// ONNX file stays.
pub fn convert_to_folder(
    source: impl AsRef<Path>,
    out: impl AsRef<Path>,
    options: &ConvertOptions,
    mut progress: impl FnMut(u64, u64),
) -> Result<Converted> {
    let (source, out) = (source.as_ref(), out.as_ref());
    if !options.replace && [WEIGHTS, CONFIG].iter().any(|file| out.join(file).exists()) {
        return Err(ConvertError::Exists.at(out));
    }
    let file = Source::open(source)?;
    let gguf = file.gguf(&options.read_options())?;
    let plan = Folder::plan(&gguf, options).map_err(|error| error.at(source))?;
    let created = !out.exists();
    fs::create_dir_all(out).map_err(failed("write", out))?;
    let done = plan.save(source, out, &mut progress);
    if done.is_err() && created {
        // Refused if something is in it.
        let _ = fs::remove_dir(out);
    }
    done
}

/// Writes the model that `plan` describes as the folder `out`.
pub(crate) fn of_plan(
    plan: &Plan<'_>,
    out: &Path,
    options: &ConvertOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Converted> {
    if !options.replace && [WEIGHTS, CONFIG].iter().any(|file| out.join(file).exists()) {
        return Err(ConvertError::Exists.at(out));
    }
    // Beside the folder, where there is room for it; it has no name that stays.
    let failed = failed("write", out);
    let mut file = NewFile::create(&out.with_extension("gguf")).map_err(failed)?;
    let done = to_gguf::fill(plan, out, &mut file, progress)?;
    file.flush().map_err(failed)?;
    let plain = ConvertOptions::new().replace(options.replace);
    let folder = convert_to_folder(file.unfinished(), out, &plain, |_, _| ())?;
    Ok(Converted { bytes: folder.bytes, ..done })
}

/// A folder to be.
struct Folder<'f> {
    /// Names and contents of the files beside the weights.
    files: Vec<(&'static str, String)>,
    tensors: Vec<(String, Tensor<'f>, Format)>,
}

impl<'f> Folder<'f> {
    fn plan(gguf: &Gguf<'f>, options: &ConvertOptions) -> Result<Self, ConvertError> {
        let float = |asked: FileType| {
            asked.float().ok_or_else(|| ConvertError::Value {
                key: "the type of weights in safetensors".into(),
                found: asked.to_string(),
                expected: "f32, f16 or bf16",
            })
        };
        let asked = options.file_type.map(float).transpose()?;
        let config = ModelConfig::from_header(gguf.header())?;
        if config.basis.is_some() {
            return Err(ConvertError::Value {
                key: "prism.hadamard.weight_names".into(),
                found: "rotated weights".into(),
                expected: "weights that are not rotated: folders cannot say that they are",
            });
        }
        // What folders mean without saying it.
        if let Some(clamp) = config.experts.and_then(|experts| experts.clamp).filter(|clamp| *clamp != 7.0) {
            return Err(ConvertError::Value {
                key: "swiglu_clamp_exp".into(),
                found: clamp.to_string(),
                expected: "7: folders cannot say another limit",
            });
        }
        // Before its tensors of factors are found to be no part of a folder.
        if matches!(config.positions.frequencies().scaling, RopeScaling::LongRope { .. }) {
            return Err(without_scaling("longrope"));
        }
        let bos = Tokenizer::from_gguf(gguf)?.leading_bos();
        config.program().bind(gguf.header())?;
        let tensors: Vec<_> = tensor::to_folder(gguf, &config)?
            .into_iter()
            .map(|(name, tensor)| {
                let format = match asked {
                    Some(format) if !tensor.vector => format,
                    _ => exact(tensor.exact()?),
                };
                Ok((name, tensor, format))
            })
            .collect::<Result<_, ConvertError>>()?;
        let most = tensors.iter().filter(|(_, tensor, _)| !tensor.vector).map(|(_, _, format)| *format);
        // The widest, which loses nothing.
        let dtype = most.max_by_key(|format| format.block_bytes()).unwrap_or(Format::F32);
        let mut files = tokenizer::files(gguf.metadata(), bos)?;
        files.extend(pooling::files(&config, gguf.metadata())?);
        files.push((CONFIG, pretty(&config_json(&config, gguf, dtype)?)));
        Ok(Folder { files, tensors })
    }

    fn save(&self, source: &Path, out: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
        let weights = out.join(WEIGHTS);
        let whole = self
            .tensors
            .iter()
            .map(|(_, tensor, format)| (tensor.rows * tensor.row_bytes(*format)) as u64)
            .sum();
        let state = RefCell::new(State { written: 0, whole, progress, report: Vec::new(), error: None });
        let views = self.tensors.iter().map(|(name, tensor, format)| {
            let shape = match tensor.vector {
                true if is_convolution(name) => vec![tensor.rows, 1, tensor.cols],
                true => vec![tensor.cols],
                false => vec![tensor.rows, tensor.cols],
            };
            (name, TensorView { name, tensor, shape, format: *format, state: &state })
        });
        let file = NewFile::create(&weights).map_err(failed("write", &weights))?;
        let metadata = HashMap::from([(String::from("format"), String::from("pt"))]);
        let saved = serialize_to_file(views, Some(metadata), file.unfinished());
        let State { report, error, .. } = state.into_inner();
        if let Some(error) = error {
            return Err(error.at(source));
        }
        saved.map_err(|error| match error {
            safetensors::SafeTensorError::IoError(error) => failed("write", &weights)(error).into(),
            error => ConvertError::SafeTensors { problem: error.to_string() }.at(&weights),
        })?;
        let mut bytes = fs::metadata(file.unfinished()).map_err(failed("write", &weights))?.len();
        let had_model = out.join(CONFIG).exists();
        let replaced = if had_model { parts_of_model(out) } else { Vec::new() };
        file.finish().map_err(failed("write", &weights))?;
        for path in replaced.iter().filter(|path| **path != weights) {
            match fs::remove_file(path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(failed("write", path)(error).into());
                }
                _ => {}
            }
        }
        for (name, text) in &self.files {
            let path = out.join(name);
            fs::create_dir_all(path.parent().unwrap_or(out)).map_err(failed("write", &path))?;
            let mut file = NewFile::create(&path).map_err(failed("write", &path))?;
            file.write_all(text.as_bytes()).map_err(failed("write", &path))?;
            file.finish().map_err(failed("write", &path))?;
            bytes += text.len() as u64;
        }
        Ok(Converted { tensors: report, bytes })
    }
}

/// The float format that keeps every bit of `format`.
fn exact(format: Format) -> Format {
    match format.class() {
        WeightClass::Float => format,
        // Scales are f16, and -2 to 2 times one is, too.
        WeightClass::OneBit | WeightClass::Ternary => Format::F16,
        WeightClass::Integer => Format::F32,
    }
}

/// What the weights of all tensors share while they are written.
struct State<'p> {
    written: u64,
    whole: u64,
    progress: &'p mut dyn FnMut(u64, u64),
    report: Vec<ConvertedTensor>,
    error: Option<ConvertError>,
}

/// A tensor that is converted when it is written.
struct TensorView<'f, 'p> {
    name: &'f str,
    tensor: &'f Tensor<'f>,
    shape: Vec<usize>,
    format: Format,
    state: &'f RefCell<State<'p>>,
}

impl View for TensorView<'_, '_> {
    fn dtype(&self) -> Dtype {
        match self.format {
            Format::F16 => Dtype::F16,
            Format::Bf16 => Dtype::BF16,
            _ => Dtype::F32,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let mut bytes = vec![0; self.data_len()];
        let state = &mut *self.state.borrow_mut();
        match self.tensor.write(0, self.format, &mut bytes) {
            Ok(sums) => {
                let report = self.tensor.report(self.name, self.format, sums);
                state.written += report.bytes;
                state.report.push(report);
                (state.progress)(state.written, state.whole);
            }
            Err(error) => state.error = Some(error),
        }
        Cow::Owned(bytes)
    }

    fn data_len(&self) -> usize {
        self.tensor.rows * self.tensor.row_bytes(self.format)
    }
}

/// A number with the digits that an f32 has.
fn number(x: f32) -> Value {
    x.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

fn setting_value(setting: &Setting, config: &ModelConfig) -> Value {
    match setting.value {
        SettingValue::Whole(of) => of(config).into(),
        SettingValue::Number(of) => number(of(config)),
        SettingValue::Flag(of) => of(config).into(),
        SettingValue::KeyValueHeads => config.num_kv_heads.into(),
        SettingValue::AdjustedWidth => config.intermediate_size.into(),
        SettingValue::LinearLayers => {
            let kind =
                |layer| if config.layers.is_recurrent(layer) { LINEAR_ATTENTION } else { FULL_ATTENTION };
            (0..config.num_layers).map(kind).collect()
        }
        SettingValue::WindowedLayers => {
            let kind = |layer| if config.layers.window(layer).is_some() { WINDOWED } else { FULL_ATTENTION };
            (0..config.num_layers).map(kind).collect()
        }
        SettingValue::RotatedShare => config.rotated_len().into(),
    }
}

/// The value of the setting with this key in GGUF files.
fn value_of(folder: &HuggingFace, key: &str, config: &ModelConfig) -> Value {
    let mut settings = folder.settings.iter().copied().flatten();
    settings.find(|setting| setting.key == key).map_or(Value::Null, |setting| setting_value(setting, config))
}

fn config_json(config: &ModelConfig, gguf: &Gguf<'_>, dtype: Format) -> Result<Value, ConvertError> {
    let folder = folder_of(config)?;
    let mut root = json!({
        "architectures": folder.classes[..1],
        "model_type": folder.model_type,
        "attention_dropout": 0.0,
        "rope_theta": number(config.positions.frequencies().base),
        "tie_word_embeddings": config.tied_embeddings,
        "torch_dtype": match dtype { Format::F16 => "float16", Format::Bf16 => "bfloat16", _ => "float32" },
        "vocab_size": config.vocab_size,
    });
    for fixed in folder.fixed.iter().copied().flatten().filter(|fixed| fixed.written) {
        root[fixed.name] = match fixed.value {
            FixedValue::Same(key) => value_of(folder, key, config),
            value => fixed_json(value, config.num_layers),
        };
    }
    for setting in folder.settings.iter().copied().flatten() {
        let Some(name) = setting.names.first() else { continue };
        root[name] = setting_value(setting, config);
        match setting.value {
            SettingValue::KeyValueHeads => {
                let kind = |layer| if config.layers.is_recurrent(layer) { "conv" } else { FULL_ATTENTION };
                root["layer_types"] = (0..config.num_layers).map(kind).collect();
            }
            SettingValue::AdjustedWidth => root["block_auto_adjust_ff_dim"] = false.into(),
            _ => {}
        }
    }
    if let Some(windowed) = config.layers.rotary {
        root[LOCAL_BASE] = number(windowed.base);
    }
    let (rotary, max_bias) = (config.positions.frequencies(), config.positions.max_alibi_bias());
    if max_bias > 0.0 {
        return Err(ConvertError::Value {
            key: "attention.max_alibi_bias".into(),
            found: max_bias.to_string(),
            expected: "0: transformers has no model of this architecture with ALiBi",
        });
    }
    let scaling = match llama3(config, gguf)? {
        Some(scaling) => scaling,
        None => rotary.scaling,
    };
    let scaling = match scaling {
        RopeScaling::None => None,
        RopeScaling::Llama3 { factor, original_context, low_freq_factor, high_freq_factor } => Some(json!({
            "rope_type": "llama3",
            "factor": number(factor),
            "original_max_position_embeddings": original_context,
            "low_freq_factor": number(low_freq_factor),
            "high_freq_factor": number(high_freq_factor),
        })),
        RopeScaling::Linear { factor } => Some(json!({ "rope_type": "linear", "factor": number(factor) })),
        RopeScaling::Yarn { factor, original_context, attention_factor, beta_fast, beta_slow } => {
            let RopeScaling::Yarn { attention_factor: usual, .. } =
                RopeScaling::yarn(factor, original_context)
            else {
                unreachable!("it is YaRN")
            };
            let mut yarn = json!({
                "rope_type": "yarn",
                "factor": number(factor),
                "original_max_position_embeddings": original_context,
            });
            for (key, value, usual) in [
                ("beta_fast", beta_fast, 32.0),
                ("beta_slow", beta_slow, 1.0),
                ("attention_factor", attention_factor, usual),
            ] {
                if value != usual {
                    yarn[key] = number(value);
                }
            }
            Some(yarn)
        }
        // Transformers scales from the folder's context on.
        RopeScaling::DynamicNtk { factor, original_context, context }
            if context as usize == config.max_context_length =>
        {
            root["max_position_embeddings"] = original_context.into();
            Some(json!({ "rope_type": "dynamic", "factor": number(factor) }))
        }
        RopeScaling::DynamicNtk { .. } => {
            return Err(ConvertError::Value {
                key: "context_length".into(),
                found: config.max_context_length.to_string(),
                expected: "the context before dynamic NTK times its factor",
            });
        }
        _ => return Err(without_scaling("unknown")),
    };
    if let Some(mut scaling) = scaling {
        scaling["rope_theta"] = number(rotary.base);
        root["rope_scaling"] = scaling;
    }
    if let Some(rotated) = config.rotated {
        let mut settings = folder.settings.iter().copied().flatten();
        if !settings.any(|setting| matches!(setting.value, SettingValue::RotatedShare)) {
            return Err(ConvertError::Value {
                key: "rope.dimension_count".into(),
                found: rotated.to_string(),
                expected: "the same as key_length: folders of this architecture do not say it",
            });
        }
        let share = number(rotated as f32 / config.head_dim as f32);
        let base = number(rotary.base);
        root["rope_parameters"] =
            json!({ "rope_type": "default", "rope_theta": base, "partial_rotary_factor": share });
    }
    if let Some(windowed) = config.layers.rotary {
        let full = match root.as_object_mut().and_then(|root| root.remove("rope_scaling")) {
            Some(scaling) => scaling,
            None => json!({ "rope_type": "default", "rope_theta": number(rotary.base) }),
        };
        let windowed = json!({ "rope_type": "default", "rope_theta": number(windowed.base) });
        root["rope_parameters"] = json!({ FULL_ATTENTION: full, WINDOWED: windowed });
    }
    // The folder may have another.
    if let Some(name) = gguf.metadata().str("general.name")? {
        root[NAME] = name.into();
    }
    let special = tokenizer::special_ids(gguf.metadata())?;
    let ids: Map<String, Value> =
        special.into_iter().map(|(name, id)| (format!("{name}_token_id"), id.into())).collect();
    if let Some(root) = root.as_object_mut() {
        root.extend(ids);
    }
    Ok(root)
}

/// The error for a scaling of the rotary frequencies that folders are not written with.
fn without_scaling(found: &str) -> ConvertError {
    ConvertError::Value {
        key: "rope.scaling.type".into(),
        found: found.into(),
        expected: "none, linear, dynamic, yarn or the factors of Llama 3.1",
    }
}

/// The scaling behind the factors of a file, which has the constants of Llama 3.1 and later.
fn llama3(config: &ModelConfig, gguf: &Gguf<'_>) -> Result<Option<RopeScaling>, ConvertError> {
    if !config.positions.divides_rope() {
        return Ok(None);
    }
    let factors = gguf.matrix(ROPE_FACTORS)?;
    let mut found = vec![0.0; factors.cols()];
    factors.unpack_row(0, &mut found)?;
    let factor = found.iter().copied().fold(1.0, f32::max);
    // 8192 in the published models.
    let contexts = (4..20).map(|bits| 1 << bits);
    let same = |scaling: &RopeScaling| {
        let expected = rope_factors(config.head_dim, config.positions.frequencies().base, *scaling);
        found.iter().zip(&expected).all(|(found, expected)| (found - expected).abs() <= 1e-4 * expected)
    };
    let scaling = contexts.map(|context| RopeScaling::llama3(factor, context)).find(same);
    let other = || ConvertError::tensor(ROPE_FACTORS, "has other factors than those of Llama 3.1");
    scaling.ok_or_else(other).map(Some)
}
