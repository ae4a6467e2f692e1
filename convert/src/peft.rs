//! Adapters (LoRA) as PEFT saves them (`adapter_config.json` and `adapter_model.safetensors`) as GGUF files, under the names that
//! llama.cpp reads.

use crate::config::Config;
use crate::error::{ConvertError, Result};
use crate::json::{Json, need_whole, number, present, string, wrong};
use crate::kind::{ADAPTER_SETTINGS, ADAPTER_WEIGHTS, is_folder};
use crate::names::{InGguf, is_router, module_to_gguf};
use crate::options::ConvertOptions;
use crate::order::{Direction, Order, orders};
use crate::output::new_file;
use crate::report::{Converted, ConvertedTensor};
use crate::stored::{self, float, stored};
use serde_json::Value;
use shohin_core::gguf::{Gguf, GgufWriter};
use shohin_core::model::LoraAdapter;
use shohin_core::model::lora::ADAPTER;
use shohin_core::{Format, ModelConfig, quant};
use shohin_files::{Error, MappedModel, failed, open_mapped};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

/// The longest settings: they may name every module.
const MAX_JSON: u64 = 16 << 20;

/// Settings that would change the result if they were ignored, and the value that changes nothing, besides none.
const REFUSED: [(&str, &str); 10] = [
    ("use_dora", "false"),
    ("use_qalora", "false"),
    ("fan_in_fan_out", "false"),
    ("lora_bias", "false"),
    ("bias", "\"none\""),
    ("modules_to_save", "[]"),
    ("target_parameters", "[]"),
    ("trainable_token_indices", "[]"),
    ("layer_replication", "[]"),
    ("alora_invocation_tokens", "[]"),
];

/// Ways to start a training that change the weights of the base model.
const CHANGED_BASE: [&str; 4] = ["pissa", "olora", "corda", "loftq"];

/// The GGUF file of the adapter in the folder `source`, for models like `base`.
///
/// # Errors
/// As for [`convert_adapter`].
pub fn adapter_in_memory(source: &Path, base: &ModelConfig) -> Result<Vec<u8>> {
    let base = Config::of_model(base).map_err(|error| error.at(source))?;
    Ok(read(source, &base)?.0)
}

/// Converts `source`, a folder that PEFT has saved an adapter (LoRA) in, to the GGUF file `out`. `base` is the model that it is
/// for, a GGUF file or a Hugging Face folder: only its configuration is read.
///
/// ```no_run
/// use shohin_convert::{ConvertOptions, convert_adapter};
///
/// convert_adapter("my-lora", "qwen3-0.6b.gguf", "my-lora.gguf", &ConvertOptions::new())?;
/// # Ok::<(), shohin_convert::Error>(())
/// ```
///
/// # Errors
/// [`Error::Convert`](crate::Error::Convert) if the adapter is of another kind or has settings that are not supported, or does
/// not fit `base`; [`Error::Model`] if `base` is not a model; [`Error::Io`].
pub fn convert_adapter(
    source: impl AsRef<Path>,
    base: impl AsRef<Path>,
    out: impl AsRef<Path>,
    options: &ConvertOptions,
) -> Result<Converted> {
    let (source, base, out) = (source.as_ref(), base.as_ref(), out.as_ref());
    let base = config_of(base, options)?;
    let (bytes, tensors) = read(source, &base)?;
    let failed = failed("write", out);
    let mut file = new_file(out, options.replace)?;
    file.write_all(&bytes).map_err(failed)?;
    file.finish().map_err(failed)?;
    Ok(Converted { tensors, bytes: bytes.len() as u64 })
}

/// What adapters depend on of `base`, a GGUF file or a Hugging Face folder.
pub(crate) fn config_of(base: &Path, options: &ConvertOptions) -> Result<Config> {
    if is_folder(base) {
        let config = if base.is_dir() { base } else { base.parent().unwrap_or(base) }.join("config.json");
        let Some(config) = Json::open(config, MAX_JSON)? else {
            let problem = "is a folder without config.json, expected a GGUF file or a Hugging Face folder";
            return Err(Error::NotAFile { path: base.into(), problem }.into());
        };
        config.at(Config::read(&config.root, &mut GgufWriter::new()))
    } else {
        let file = MappedModel::open(base)?;
        let named = |source| Error::Model { name: file.name.clone(), source };
        let config = ModelConfig::from_gguf(&file.gguf(&options.read_options())?).map_err(named)?;
        Config::of_model(&config).map_err(|error| error.at(base))
    }
}

/// What `adapter_config.json` says.
struct Settings<'v> {
    root: &'v Value,
    rank: u32,
    alpha: f32,
    /// Whether factors are scaled by `alpha / sqrt(r)` (rsLoRA, arXiv:2312.03732), not by `alpha / r`.
    by_root: bool,
}

impl<'v> Settings<'v> {
    fn read(root: &'v Value) -> Result<Self, ConvertError> {
        match string(root, "peft_type")? {
            Some("LORA") => {}
            _ => return Err(wrong("peft_type", root.get("peft_type"), "\"LORA\"")),
        }
        for (key, expected) in REFUSED {
            let same = serde_json::from_str::<Value>(expected).ok();
            let changes = |value: &&Value| Some(*value) != same.as_ref();
            if let Some(value) = present(root, key).filter(changes) {
                return Err(wrong(key, Some(value), expected));
            }
        }
        let key = "init_lora_weights";
        let changed = |value: &&Value| {
            value.as_str().is_some_and(|value| CHANGED_BASE.iter().any(|way| value.starts_with(way)))
        };
        if let Some(value) = present(root, key).filter(changed) {
            return Err(wrong(key, Some(value), "one that leaves the weights of the base model as they are"));
        }
        let alpha = number(root, "lora_alpha")?.filter(|alpha| alpha.is_finite() && *alpha != 0.0);
        let alpha =
            alpha.ok_or_else(|| wrong("lora_alpha", root.get("lora_alpha"), "a number other than 0"))?;
        let by_root = match present(root, "use_rslora") {
            None => false,
            Some(value) => {
                value.as_bool().ok_or_else(|| wrong("use_rslora", Some(value), "true or false"))?
            }
        };
        let rank = Some(need_whole(root, "r")?).filter(|rank| *rank > 0);
        let rank = rank.ok_or_else(|| wrong("r", root.get("r"), "a whole number over 0"))?;
        Ok(Settings { root, rank, alpha, by_root })
    }

    /// The entry of the object `key` for a module: the one whose name the module's ends with.
    fn of_pattern(&self, key: &str, module: &str) -> Result<Option<&'v Value>, ConvertError> {
        let Some(all) = present(self.root, key) else { return Ok(None) };
        let expected = "numbers by the end of a module's name";
        let all = all.as_object().ok_or_else(|| wrong(key, Some(all), expected))?;
        let is_name = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || "._".contains(c));
        if let Some((name, value)) = all.iter().find(|(name, _)| !is_name(name)) {
            return Err(wrong(&format!("{key}.{name}"), Some(value), "a name without regular expressions"));
        }
        let mut of_module = all.iter().filter(|(name, _)| ends_with(module, name)).map(|(_, value)| value);
        let first = of_module.next();
        match of_module.find(|value| Some(*value) != first) {
            // PEFT takes the one that was written first.
            Some(_) => Err(wrong(key, self.root.get(key), "one number for each module")),
            None => Ok(first),
        }
    }

    /// The rank of a module's factors, and what `B A x` is multiplied by.
    fn scaling(&self, module: &str) -> Result<(usize, f64), ConvertError> {
        let rank = match self.of_pattern("rank_pattern", module)? {
            None => u64::from(self.rank),
            Some(value) => value
                .as_u64()
                .filter(|rank| *rank > 0)
                .ok_or_else(|| wrong("rank_pattern", Some(value), "a whole number over 0"))?,
        };
        let alpha = match self.of_pattern("alpha_pattern", module)? {
            None => f64::from(self.alpha),
            Some(value) => value
                .as_f64()
                .filter(|alpha| alpha.is_finite())
                .ok_or_else(|| wrong("alpha_pattern", Some(value), "a number"))?,
        };
        Ok((rank as usize, alpha / self.divisor(rank as f64)))
    }

    fn divisor(&self, rank: f64) -> f64 {
        if self.by_root { rank.sqrt() } else { rank }
    }

    /// Whether the settings name a module. A text is a regular expression, or stands for all modules.
    fn targets(&self, module: &str) -> bool {
        let Some(Value::Array(names)) = present(self.root, "target_modules") else { return true };
        names.iter().any(|name| name.as_str().is_some_and(|name| ends_with(module, name)))
    }
}

/// Whether the path of a module is `end` or ends with it, in whole names.
fn ends_with(module: &str, end: &str) -> bool {
    module.strip_suffix(end).is_some_and(|start| start.is_empty() || start.ends_with('.'))
}

/// The adapter in the folder `source`, as a GGUF file, and the tensors that this has.
pub(crate) fn read(source: &Path, base: &Config) -> Result<(Vec<u8>, Vec<ConvertedTensor>)> {
    let missing = |key: &str| {
        ConvertError::Value { key: key.into(), found: "missing".into(), expected: "a file" }.at(source)
    };
    let json =
        Json::open(source.join(ADAPTER_SETTINGS), MAX_JSON)?.ok_or_else(|| missing(ADAPTER_SETTINGS))?;
    let settings = json.at(Settings::read(&json.root))?;
    let path = source.join(ADAPTER_WEIGHTS);
    if !path.exists() {
        return Err(missing(ADAPTER_WEIGHTS));
    }
    let shards = [(path.clone(), open_mapped(&path)?)];
    let found = write(&settings, base, &stored(&shards)?, source).map_err(|error| error.at(&path))?;
    Ok(found)
}

type Stored<'f> = BTreeMap<String, stored::Stored<'f>>;

fn write(
    settings: &Settings<'_>,
    base: &Config,
    stored: &Stored<'_>,
    source: &Path,
) -> Result<(Vec<u8>, Vec<ConvertedTensor>), ConvertError> {
    let mut w = GgufWriter::new();
    w.set("general.architecture", base.architecture.name)?;
    w.set("general.type", ADAPTER)?;
    w.set("adapter.type", "lora")?;
    let name =
        source.canonicalize().ok().and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    w.set("general.name", name.as_deref().unwrap_or("adapter"))?;
    // Readers divide it by the rank.
    let rank = f64::from(settings.rank);
    let alpha = (f64::from(settings.alpha) * rank / settings.divisor(rank)) as f32;
    w.set("adapter.lora.alpha", alpha)?;
    let (mut data, mut tensors) = (Vec::new(), Vec::new());
    for (name, a) in stored {
        let unknown =
            "is not supported, expected only base_model.model.MODULE.lora_A.weight and lora_B.weight";
        let Some(module) = name.strip_suffix(".lora_A.weight") else {
            let of = name.strip_suffix(".lora_B.weight").map(|module| format!("{module}.lora_A.weight"));
            match of {
                Some(a) if stored.contains_key(&a) => continue,
                Some(a) => return Err(ConvertError::tensor(&a, "is missing")),
                None => return Err(ConvertError::tensor(name, unknown)),
            }
        };
        let other = format!("{module}.lora_B.weight");
        let b = stored.get(&other).ok_or_else(|| ConvertError::tensor(&other, "is missing"))?;
        let path =
            module.strip_prefix("base_model.model.").ok_or_else(|| ConvertError::tensor(name, unknown))?;
        if !settings.targets(path) {
            return Err(ConvertError::tensor(name, "is of a module that target_modules does not name"));
        }
        let refused = || {
            let problem =
                "is of a module that cannot be adapted, expected one of attention or of a feed-forward block";
            ConvertError::tensor(name, problem)
        };
        let (gguf, order) = match module_to_gguf(path, base)? {
            Some(InGguf { name, expert: None, order, .. })
                if !name.ends_with("norm.weight") && name.starts_with("blk.") && !is_router(&name) =>
            {
                (name, order)
            }
            _ => return Err(refused()),
        };
        let (rank, scaling) = settings.scaling(path)?;
        for (name, found, what) in [(name, a.rows, "rows"), (&other, b.cols, "columns")] {
            if found != rank {
                return Err(ConvertError::tensor(
                    name,
                    format!("has {found} {what}, expected the rank {rank}"),
                ));
            }
        }
        // The rows of B are those of the matrix, the columns of A its columns.
        let shape = [b.rows, a.cols];
        let (order, columns) = orders(order, &gguf, shape, &base.head_counts(), Direction::ToGguf)?;
        if columns != Order::Same {
            return Err(refused());
        }
        let factor = scaling / (f64::from(alpha) / rank as f64);
        for (suffix, theirs, stored, order, factor) in
            [("a", name, a, Order::Same, 1.0), ("b", &other, b, order, factor)]
        {
            let from = float(theirs, stored.dtype)?;
            let (to, bytes) = rows(theirs, stored, from, order, factor)?;
            let name = format!("{gguf}.lora_{suffix}");
            w.tensor(&name, &[stored.cols as u64, stored.rows as u64], to)?;
            let shape = vec![stored.rows, stored.cols];
            let len = bytes.len() as u64;
            tensors.push(ConvertedTensor {
                name,
                shape,
                from: Some(from),
                to,
                bytes: len,
                error: 0.0,
                merge: None,
            });
            data.push(bytes);
        }
    }
    let bytes = w.to_vec(data)?;
    LoraAdapter::from_gguf(&Gguf::parse(&bytes)?)?;
    Ok((bytes, tensors))
}

/// The rows of a tensor in the order of a GGUF file, times `factor`: in the format that the source has, or in F32 if the
/// factor changes them.
fn rows(
    name: &str,
    stored: &stored::Stored<'_>,
    from: Format,
    order: Order,
    factor: f64,
) -> Result<(Format, Vec<u8>), ConvertError> {
    let row_bytes = stored.data.len() / stored.rows.max(1);
    let keeps = (factor - 1.0).abs() < 1e-7;
    let mut numbers = vec![0.0; stored.cols];
    let mut bytes = Vec::new();
    for row in 0..stored.rows {
        let row = &stored.data[order.source(row) * row_bytes..][..row_bytes];
        quant::unpack(from, row, &mut numbers)?;
        if let Some(x) = numbers.iter().find(|x| !x.is_finite()) {
            return Err(ConvertError::tensor(name, format!("has the weight {x}, expected finite numbers")));
        }
        if keeps {
            bytes.extend_from_slice(row);
        } else {
            let scaled = numbers.iter().map(|x| (f64::from(*x) * factor) as f32);
            bytes.extend(scaled.flat_map(f32::to_le_bytes));
        }
    }
    Ok((if keeps { from } else { Format::F32 }, bytes))
}
