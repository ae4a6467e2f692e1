//! A model that has learned nothing: a configuration, a tokenizer and random weights.

use crate::config::Config;
use crate::error::{ConvertError, Result};
use crate::folder::Folder;
use crate::json::Json;
use crate::tokenizer;
use shohin_core::gguf::{Gguf, GgufStream, GgufWriter, ReadOptions};
use shohin_core::model::program::{Program, TensorRole, TensorSpec};
use shohin_core::sample::Pcg32;
use shohin_core::{Format, ModelConfig};
use shohin_files::{Error as FileError, MappedModel};
use std::path::Path;

/// The longest `config.json`.
const MAX_CONFIG: u64 = 1 << 20;

/// The end of the names of biases.
const BIAS: &str = ".bias";

/// Standard deviation of embeddings.
const EMBEDDING: f64 = 0.05;

/// The bytes of a GGUF file of a new model called `name`: the sizes of `config`, a `config.json` as Hugging Face's libraries read
/// it, the tokenizer and chat template of `tokenizer`, a GGUF file or a `tokenizer.json`, and weights in F32 that follow from
/// `seed`.
///
/// A matrix with `n` inputs is normal with the standard deviation `1 / sqrt(n)`, one whose product is added to the residual
/// stream of `L` blocks `1 / sqrt(2 L n)`, embeddings 0.05 (GPT-2; Radford et al. 2019). Norms are 1, biases 0.
///
/// # Errors
/// If a file cannot be read, or is no configuration of an architecture that this library runs, or no tokenizer.
pub fn initial(config: &Path, tokenizer: &Path, name: &str, seed: u64) -> Result<Vec<u8>> {
    let problem = "is missing, expected a config.json";
    let missing = || FileError::NotAFile { path: config.into(), problem };
    let json = Json::open(config.to_path_buf(), MAX_CONFIG)?.ok_or_else(missing)?;
    let mut w = GgufWriter::new();
    let read = json.at(Config::read(&json.root, &mut w))?;
    let is_json = tokenizer.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
    if is_json {
        if tokenizer.file_name().is_some_and(|name| name != "tokenizer.json") {
            let problem = "has another name, expected a tokenizer.json or a GGUF file";
            return Err(FileError::NotAFile { path: tokenizer.into(), problem }.into());
        }
        let folder = tokenizer.parent().unwrap_or(Path::new("")).to_path_buf();
        tokenizer::write(&Folder::without_weights(folder, json), read.vocab, &mut w)?;
    } else {
        let file = MappedModel::open(tokenizer)?;
        copy_tokenizer(&file.gguf(&ReadOptions::default())?, read.vocab, &mut w)
            .map_err(|error| error.at(tokenizer))?;
    }
    build(&read, w, name, seed).map_err(|error| error.at(config))
}

fn copy_tokenizer(gguf: &Gguf<'_>, vocab: u32, w: &mut GgufWriter) -> Result<(), ConvertError> {
    let tokens = gguf.metadata().strings("tokenizer.ggml.tokens")?.map_or(0, |tokens| tokens.len());
    if tokens > vocab as usize {
        let (key, found) = (String::from("vocab_size"), vocab.to_string());
        return Err(ConvertError::Value {
            key,
            found,
            expected: "as many as the tokenizer has tokens, or more",
        });
    }
    for (key, value) in gguf.metadata().iter().filter(|(key, _)| key.starts_with("tokenizer.")) {
        w.set(key, value)?;
    }
    Ok(())
}

/// The file whose metadata are those of `w`.
fn build(config: &Config, mut w: GgufWriter, name: &str, seed: u64) -> Result<Vec<u8>, ConvertError> {
    w.set("general.name", name)?;
    w.set("general.file_type", 0u32)?;
    w.set("general.quantization_version", 2u32)?;
    let program = program(config, w.clone())?;
    for spec in &program.tensors {
        let dims: &[usize] = match (spec.role, spec.matrices) {
            (TensorRole::Vector, _) => &[spec.cols],
            (TensorRole::Matrix, 1) => &[spec.cols, spec.rows],
            (TensorRole::Matrix, _) => &[spec.cols, spec.rows_each(), spec.matrices],
        };
        let dims: Vec<u64> = dims.iter().map(|dim| *dim as u64).collect();
        w.tensor(&spec.name, &dims, Format::F32)?;
    }
    let mut random = Pcg32::new(seed);
    let data = program.tensors.iter().map(|spec| {
        let factors = config.rope_factors.iter().find(|(name, _)| *name == spec.name);
        let values =
            factors.map_or_else(|| weights(spec, &program, &mut random), |(_, factors)| factors.clone());
        values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>()
    });
    Ok(w.to_vec(data)?)
}

/// The forward pass: its tensors are those of the file.
fn program(config: &Config, mut w: GgufWriter) -> Result<Program, ConvertError> {
    let (hidden, vocab) = (u64::from(config.hidden), u64::from(config.vocab));
    w.tensor("token_embd.weight", &[hidden, vocab], Format::F32)?;
    if !config.tied {
        w.tensor("output.weight", &[hidden, vocab], Format::F32)?;
    }
    for (name, factors) in &config.rope_factors {
        w.tensor(name, &[factors.len() as u64], Format::F32)?;
    }
    // Those of the first layer say that a model has biases.
    for name in config.folder.tensors.iter().flat_map(|names| names.iter()) {
        if name.gguf.ends_with(BIAS) {
            let heads = if name.gguf.ends_with("attn_q.bias") { config.heads } else { config.kv_heads };
            let len = u64::from(heads) * u64::from(config.head_dim);
            w.tensor(&name.gguf.replace('*', "0"), &[len], Format::F32)?;
        }
    }
    let (header, body) = (w.header()?, w.body());
    let mut stream = GgufStream::new(header.len() as u64 + body.len(), ReadOptions::default());
    stream.push(&header, &mut |_| Ok(()))?;
    let (expected, found) = (body.len(), header.len() as u64);
    let incomplete = shohin_core::Error::Length { what: "header", expected, found };
    let header = stream.header()?.ok_or(incomplete)?;
    Ok(ModelConfig::from_header(&header)?.program())
}

/// Random weights of a tensor.
fn weights(spec: &TensorSpec, program: &Program, random: &mut Pcg32) -> Vec<f32> {
    if spec.role == TensorRole::Vector {
        return vec![if spec.name.ends_with(BIAS) { 0.0 } else { 1.0 }; spec.cols];
    }
    let fan = 1.0 / (spec.cols as f64).sqrt();
    let adds = ["attn_output.weight", "ffn_down.weight", "ffn_down_exps.weight"];
    let deviation = if spec.name == "token_embd.weight" {
        EMBEDDING
    } else if adds.iter().any(|end| spec.name.ends_with(end)) {
        fan / (2.0 * program.layers as f64).sqrt()
    } else {
        fan
    };
    // Box and Muller 1958: two normal numbers from two uniform ones.
    let mut pair = || {
        let (u, v) = (1.0 - random.next_f64(), random.next_f64());
        let (radius, angle) = ((-2.0 * u.ln()).sqrt() * deviation, 2.0 * std::f64::consts::PI * v);
        [radius * angle.cos(), radius * angle.sin()].map(|x| x as f32)
    };
    let mut values = Vec::with_capacity(spec.rows * spec.cols);
    while values.len() < spec.rows * spec.cols {
        values.extend(pair());
    }
    values.truncate(spec.rows * spec.cols);
    values
}
