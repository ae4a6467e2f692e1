//! Adapters (LoRA) in GGUF files as PEFT saves them: the other way of [`peft`](crate::peft).

use crate::config::Config;
use crate::error::{ConvertError, Result};
use crate::json::pretty;
use crate::kind::{ADAPTER_SETTINGS, ADAPTER_WEIGHTS, is_folder};
use crate::names::{self, module_to_gguf};
use crate::options::ConvertOptions;
use crate::order::{Direction, Order, orders};
use crate::peft::config_of;
use crate::report::{Converted, ConvertedTensor};
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::{Map, Value, json};
use shohin_core::Format;
use shohin_core::gguf::{Gguf, ReadOptions};
use shohin_core::model::lora::LoraPair;
use shohin_core::model::{LoraAdapter, ModelConfig};
use shohin_core::quant::Matrix;
use shohin_files::new_file::NewFile;
use shohin_files::{MappedModel, failed};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io::Write;
use std::path::Path;

/// Converts `source`, the GGUF file of an adapter (LoRA), to the folder `out`, which PEFT loads: `adapter_config.json` and
/// `adapter_model.safetensors`, with factors in F32. `base` is the model that it is for, a GGUF file or a Hugging Face folder:
/// only its configuration and its name are read.
///
/// ```no_run
/// use shohin_convert::{ConvertOptions, convert_adapter_to_folder};
///
/// convert_adapter_to_folder("my-lora.gguf", "Qwen3-0.6B", "my-lora", &ConvertOptions::new())?;
/// # Ok::<(), shohin_convert::Error>(())
/// ```
///
/// # Errors
/// [`Error::Convert`](crate::Error::Convert) if the adapter does not fit `base`, or the folder has an adapter;
/// [`Error::File`](crate::Error::File).
pub fn convert_adapter_to_folder(
    source: impl AsRef<Path>,
    base: impl AsRef<Path>,
    out: impl AsRef<Path>,
    options: &ConvertOptions,
) -> Result<Converted> {
    let (source, base, out) = (source.as_ref(), base.as_ref(), out.as_ref());
    let config = config_of(base, options)?;
    let name = base_name(base, options)?;
    let file = MappedModel::open(source)?;
    let gguf = file.gguf(&ReadOptions::default())?;
    let folder = Folder::of(&gguf, &config, &name).map_err(|error| error.at(source))?;
    folder.save(out, options.replace)
}

/// Writes the adapter in the bytes of a GGUF file to the folder `out`, for models like `base`, called `base_name`.
///
/// # Errors
/// As for [`convert_adapter_to_folder`].
pub fn adapter_to_folder(
    adapter: &[u8],
    base: &ModelConfig,
    base_name: &str,
    out: &Path,
    options: &ConvertOptions,
) -> Result<Converted> {
    let folder = Config::of_model(base).and_then(|base| Folder::of(&Gguf::parse(adapter)?, &base, base_name));
    folder.map_err(|error| error.at(out))?.save(out, options.replace)
}

/// Where PEFT finds the model: a folder, or else the name that a file has for it.
fn base_name(base: &Path, options: &ConvertOptions) -> Result<String> {
    let path = || base.display().to_string();
    if is_folder(base) {
        return Ok(path());
    }
    let file = MappedModel::open(base)?;
    let gguf = file.gguf(&options.read_options())?;
    let name = gguf.metadata().str("general.name").ok().flatten().filter(|name| !name.is_empty());
    Ok(name.map_or_else(path, String::from))
}

/// A folder to be.
struct Folder {
    settings: Value,
    /// Names, shapes, bytes of F32, and the format in the source.
    tensors: Vec<(String, [usize; 2], Vec<u8>, Format)>,
}

impl Folder {
    fn of(gguf: &Gguf<'_>, base: &Config, base_name: &str) -> Result<Self, ConvertError> {
        let adapter = LoraAdapter::from_gguf(gguf)?;
        let (found, expected) = (adapter.config().architecture, base.architecture.name);
        if found != expected {
            let key = "general.architecture".into();
            return Err(ConvertError::Value { key, found: format!("{found:?}"), expected });
        }
        let (mut tensors, mut ranks) = (Vec::new(), BTreeMap::new());
        for pair in adapter.pairs() {
            let (module, order) = module(pair, base)?;
            for (suffix, matrix, order) in [("A", &pair.a, Order::Same), ("B", &pair.b, order)] {
                let name = format!("base_model.model.{module}.lora_{suffix}.weight");
                tensors.push((name, [matrix.rows(), matrix.cols()], rows(matrix, order)?, matrix.format()));
            }
            ranks.insert(module, pair.rank());
        }
        Ok(Folder { settings: settings(adapter.config().alpha, &ranks, base, base_name), tensors })
    }

    fn save(&self, out: &Path, replace: bool) -> Result<Converted> {
        let (settings, weights) = (out.join(ADAPTER_SETTINGS), out.join(ADAPTER_WEIGHTS));
        if !replace && (settings.exists() || weights.exists()) {
            return Err(ConvertError::Exists.at(out));
        }
        let invalid =
            |error: safetensors::SafeTensorError| ConvertError::SafeTensors { problem: error.to_string() };
        let mut views = Vec::new();
        for (name, shape, bytes, _) in &self.tensors {
            let view = TensorView::new(Dtype::F32, shape.to_vec(), bytes);
            views.push((name, view.map_err(|error| invalid(error).at(&weights))?));
        }
        let metadata = HashMap::from([(String::from("format"), String::from("pt"))]);
        let bytes = serialize(views, Some(metadata)).map_err(|error| invalid(error).at(&weights))?;
        let created = !out.exists();
        fs::create_dir_all(out).map_err(failed("write", out))?;
        let text = pretty(&self.settings);
        // The settings say what the folder is, and are written last.
        let done = write(&weights, &bytes).and_then(|()| write(&settings, text.as_bytes()));
        if done.is_err() && created {
            // Refused if something is in it.
            let _ = fs::remove_dir(out);
        }
        done?;
        let tensors = self.tensors.iter().map(|(name, shape, bytes, from)| ConvertedTensor {
            name: name.clone(),
            shape: shape.to_vec(),
            from: Some(*from),
            to: Format::F32,
            bytes: bytes.len() as u64,
            error: 0.0,
            merge: None,
        });
        Ok(Converted { tensors: tensors.collect(), bytes: (bytes.len() + text.len()) as u64 })
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let failed = failed("write", path);
    let mut file = NewFile::create(path).map_err(failed)?;
    file.write_all(bytes).map_err(failed)?;
    Ok(file.finish().map_err(failed)?)
}

/// The path of the module that `pair` adapts, and the order of its rows in a folder.
fn module(pair: &LoraPair<'_>, base: &Config) -> Result<(String, Order), ConvertError> {
    let (folder, row) = names::to_folder(base.folder, pair.name, 1)?;
    let module = folder.first().and_then(|name| name.strip_suffix(".weight"));
    let known = module.map(|module| module_to_gguf(module, base)).transpose()?.flatten();
    let (Some(module), Some(_)) = (module, known.filter(|known| known.expert.is_none())) else {
        return Err(ConvertError::tensor(pair.name, "is of a module that cannot be adapted"));
    };
    let shape = [pair.b.rows(), pair.a.cols()];
    let direction = Direction::ToFolder;
    let (order, columns) = orders(row.order, pair.name, shape, &base.head_counts(), direction)?;
    if columns != Order::Same {
        return Err(ConvertError::tensor(pair.name, "is of a module that cannot be adapted"));
    }
    Ok((module.into(), order))
}

/// The rows in the order of a folder, in F32.
fn rows(matrix: &Matrix<'_>, order: Order) -> Result<Vec<u8>, ConvertError> {
    let mut numbers = vec![0.0; matrix.cols()];
    let mut bytes = Vec::with_capacity(size_of::<f32>() * matrix.rows() * matrix.cols());
    for row in 0..matrix.rows() {
        matrix.unpack_row(order.source(row), &mut numbers)?;
        bytes.extend(numbers.iter().flat_map(|x| x.to_le_bytes()));
    }
    Ok(bytes)
}

/// `adapter_config.json`, for modules with these ranks.
fn settings(alpha: f32, ranks: &BTreeMap<String, usize>, base: &Config, base_name: &str) -> Value {
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    ranks.values().for_each(|rank| *counts.entry(*rank).or_default() += 1);
    let rank = counts.iter().max_by_key(|(_, count)| **count).map_or(1, |(rank, _)| *rank);
    let others = || ranks.iter().filter(|(_, other)| **other != rank);
    let ranks_of: Map<String, Value> = others().map(|(module, rank)| (module.clone(), json!(rank))).collect();
    // Without alpha, nothing is multiplied: it is the rank of each.
    let alphas = if alpha == 0.0 { ranks_of.clone() } else { Map::new() };
    json!({
        "alpha_pattern": alphas,
        "base_model_name_or_path": base_name,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
        "lora_alpha": if alpha == 0.0 { json!(rank) } else { number(alpha) },
        "lora_dropout": 0.0,
        "modules_to_save": null,
        "peft_type": "LORA",
        "r": rank,
        "rank_pattern": ranks_of,
        "target_modules": targets(ranks, base),
        "task_type": "CAUSAL_LM",
        "use_dora": false,
        "use_rslora": false,
    })
}

/// A whole number without a point.
fn number(x: f32) -> Value {
    if x.fract() == 0.0 && x.abs() < 1e9 { json!(x as i64) } else { json!(f64::from(x)) }
}

/// The last names of the modules, or whole ones where not every layer has them.
fn targets(ranks: &BTreeMap<String, usize>, base: &Config) -> Vec<String> {
    let last = |module: &str| module.rsplit('.').next().unwrap_or(module).to_string();
    let names: BTreeSet<String> = ranks.keys().map(|module| last(module)).collect();
    let of = |name: &str| ranks.keys().filter(|module| last(module) == *name).count();
    if names.iter().all(|name| of(name) == base.layers as usize) {
        return names.into_iter().collect();
    }
    ranks.keys().cloned().collect()
}
