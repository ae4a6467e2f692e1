//! Adapters (LoRA) that are trained: what they begin with, and the file that comes out.
//!
//! A training of an adapter is one of a model that has it: the [pass](shohin_core::model::lora) that applies adapters makes their
//! factors tensors of the program, and these alone learn. The model's own weights stay packed.
#![forbid(unsafe_code)]

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

use shohin_core::gguf::{Gguf, GgufWriter, Value};
use shohin_core::model::lora::{A, B};
use shohin_core::model::program::{Program, TensorRole, TensorSpec};
use shohin_core::sample::Pcg32;
use shohin_core::{Error, Format, Result};

/// The highest rank of a new adapter.
pub const MAX_RANK: usize = 1 << 12;

/// Matrices that adapters can be for: how options call them, and their names in files.
pub const TARGETS: [(&str, &str); 7] = [
    ("q", "attn_q"),
    ("k", "attn_k"),
    ("v", "attn_v"),
    ("o", "attn_output"),
    ("gate", "ffn_gate"),
    ("up", "ffn_up"),
    ("down", "ffn_down"),
];

/// The shape of a new adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterOptions {
    /// Columns of `B` and rows of `A`.
    pub rank: usize,
    /// `B A x` is multiplied by `alpha / rank`; the rank unless set.
    pub alpha: Option<f32>,
    /// Which matrices of a layer: `q`, `k`, `v`, `o`, `gate`, `up`, `down`; empty for all.
    pub targets: Vec<String>,
    /// Which layers; all unless set.
    pub layers: Option<RangeInclusive<usize>>,
    /// What the random factors follow from.
    pub seed: u64,
}

impl Default for AdapterOptions {
    fn default() -> Self {
        AdapterOptions { rank: 16, alpha: None, targets: Vec::new(), layers: None, seed: 0 }
    }
}

impl AdapterOptions {
    fn adapts(&self, spec: &TensorSpec) -> bool {
        let name = spec.name.strip_prefix("blk.").and_then(|name| name.strip_suffix(".weight"));
        let Some((layer, matrix)) = name.and_then(|name| name.split_once('.')) else { return false };
        let asked = |target: &str| self.targets.is_empty() || self.targets.iter().any(|name| name == target);
        let of_target = TARGETS.iter().any(|(target, of)| *of == matrix && asked(target));
        let layer = layer.parse().ok();
        let of_layer =
            self.layers.as_ref().is_none_or(|range| layer.is_some_and(|layer| range.contains(&layer)));
        spec.role == TensorRole::Matrix && of_target && of_layer
    }
}

/// The GGUF file of an adapter, called `name`, for models of `architecture` with `program`, that changes nothing yet: `A` is
/// uniform between -1 and 1 over the root of its inputs, as in PEFT, and `B` is 0.
///
/// # Errors
/// [`Error::Length`] if it has no matrix, [`Error::Limit`] for a rank over 4096 or 0.
pub fn new_adapter(
    program: &Program,
    architecture: &str,
    name: &str,
    options: &AdapterOptions,
) -> Result<Vec<u8>> {
    if !(1..=MAX_RANK).contains(&options.rank) {
        let (what, found, max) = ("rank of the adapter", options.rank as u64, MAX_RANK as u64);
        return Err(Error::Limit { what, found, max });
    }
    let adapted: Vec<&TensorSpec> = program.tensors.iter().filter(|spec| options.adapts(spec)).collect();
    if adapted.is_empty() {
        return Err(Error::Length { what: "matrices of the adapter", expected: 1, found: 0 });
    }
    let mut w = GgufWriter::new();
    w.set("general.type", "adapter")?;
    w.set("general.architecture", architecture)?;
    w.set("general.name", name)?;
    w.set("adapter.type", "lora")?;
    w.set("adapter.lora.alpha", options.alpha.unwrap_or(options.rank as f32))?;
    let rank = options.rank;
    let mut random = Pcg32::new(options.seed);
    let mut data: Vec<Vec<u8>> = Vec::new();
    for spec in adapted {
        w.tensor(&[&spec.name, A].concat(), &[spec.cols as u64, rank as u64], Format::F32)?;
        w.tensor(&[&spec.name, B].concat(), &[rank as u64, spec.rows as u64], Format::F32)?;
        let bound = 1.0 / libm::sqrt(spec.cols as f64);
        let uniform = |_| ((2.0 * random.next_f64() - 1.0) * bound) as f32;
        data.push((0..rank * spec.cols).map(uniform).flat_map(f32::to_le_bytes).collect());
        data.push(vec![0; spec.rows * rank * size_of::<f32>()]);
    }
    w.to_vec(data)
}

/// The file of the adapter `gguf` with other factors: `factor` gives the numbers of a tensor by its name, and what they are
/// divided by. `metadata` is added.
///
/// # Errors
/// Those of writing a file.
pub fn with_factors<'t>(
    gguf: &Gguf<'_>,
    factor: impl Fn(&str) -> (&'t [f32], f64),
    metadata: &[(&str, &str)],
) -> Result<Vec<u8>> {
    let mut writer = GgufWriter::new();
    for (key, value) in gguf.metadata().iter().filter(|(key, _)| metadata.iter().all(|(new, _)| new != key)) {
        writer.set(key, value)?;
    }
    for (key, text) in metadata {
        writer.set(key, Value::from(*text))?;
    }
    let mut data: Vec<Vec<u8>> = Vec::new();
    for tensor in gguf.tensors() {
        writer.tensor(tensor.name(), tensor.dims(), Format::F32)?;
        let (numbers, by) = factor(tensor.name());
        data.push(numbers.iter().flat_map(|x| ((f64::from(*x) / by) as f32).to_le_bytes()).collect());
    }
    writer.to_vec(data)
}
