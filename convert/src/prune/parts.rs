//! Heads, neurons and layers that leave a file.

use super::options::{PruneOptions, Structure, count, smallest};
use crate::error::ConvertError;
use crate::plan::Plan;
use crate::tensor::Tensor;
use shohin_core::ModelConfig;
use shohin_core::model::LayerKinds;
use std::collections::BTreeMap;
use std::ops::Range;

/// The tensors that stay, and the metadata that change with them.
pub(super) type Parts<'f> = (Vec<Tensor<'f>>, Vec<(String, u32)>);

/// `plan` without what matters least.
pub(super) fn removed<'f>(plan: &Plan<'f>, how: &PruneOptions) -> Result<Parts<'f>, ConvertError> {
    let config = plan.header(|header| Ok(ModelConfig::from_header(header)?))?;
    let refused = |problem: &str| {
        let found = format!("{}, {problem}", config.architecture.name);
        let expected = "one whose layers are alike";
        Err(ConvertError::Value { key: "general.architecture".into(), found, expected })
    };
    let alike = config.layers == LayerKinds::default() && config.recurrence.is_none();
    if !alike || !config.depth_routers.is_empty() {
        return refused("whose layers differ");
    }
    match how.structure {
        Structure::Layers => layers(plan, how, &config),
        Structure::Heads => heads(plan, how, &config),
        _ if config.experts.is_some() => refused("a mixture of experts"),
        _ => neurons(plan, how, &config),
    }
}

/// The number of a layer's tensor, and its name in the layer.
fn of_layer(name: &str) -> Option<(usize, &str)> {
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((layer.parse().ok()?, rest))
}

/// Which parts stay if `scores` say how much each matters.
fn kept(scores: &[f64], removed: usize) -> Vec<usize> {
    let mut stays = vec![true; scores.len()];
    smallest(scores, removed).into_iter().for_each(|at| stays[at] = false);
    (0..scores.len()).filter(|at| stays[*at]).collect()
}

fn key(config: &ModelConfig, name: &str) -> String {
    format!("{}.{name}", config.architecture.name)
}

/// Nothing may be left without a part.
fn some_left(what: &str, removed: usize, of: usize) -> Result<(), ConvertError> {
    match removed < of {
        true => Ok(()),
        false => {
            let (key, found) = (format!("the number of {what} to remove"), format!("{removed} of {of}"));
            Err(ConvertError::Value { key, found, expected: "less than all" })
        }
    }
}

fn layers<'f>(plan: &Plan<'f>, how: &PruneOptions, config: &ModelConfig) -> Result<Parts<'f>, ConvertError> {
    let len = config.num_layers;
    let mut scores = vec![0.0; len];
    for tensor in plan.tensors().filter(|tensor| !tensor.vector) {
        let Some((layer, _)) = of_layer(&tensor.name).filter(|(layer, _)| *layer < len) else { continue };
        let (numbers, gradient) = (tensor.numbers()?, how.gradient(tensor)?);
        let pairs = numbers.into_iter().zip(gradient);
        scores[layer] += how.score_of(pairs, &mut how.random(&tensor.name));
    }
    let removed = count(how.sparsity, len);
    some_left("layers", removed, len)?;
    let kept = kept(&scores, removed);
    let mut tensors = Vec::new();
    for tensor in plan.tensors() {
        let mut tensor = tensor.clone();
        let new = of_layer(&tensor.name).map(|(layer, rest)| {
            let new = kept.iter().position(|kept| *kept == layer)?;
            Some(format!("blk.{new}.{rest}"))
        });
        match new {
            Some(None) => continue,
            Some(Some(name)) => tensor.name = name,
            None => {}
        }
        tensors.push(tensor);
    }
    Ok((tensors, vec![(key(config, "block_count"), kept.len() as u32)]))
}

/// For each layer, which of its `len` parts stay without the `removed` ones that matter least; `part` says which numbers of a
/// tensor, by its name in the layer, belong to a part.
fn kept_in_layers(
    plan: &Plan<'_>,
    how: &PruneOptions,
    (len, removed): (usize, usize),
    part: impl Fn(&Tensor<'_>, &str, usize) -> Option<Vec<usize>>,
) -> Result<BTreeMap<usize, Vec<usize>>, ConvertError> {
    let mut scores: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for tensor in plan.tensors().filter(|tensor| !tensor.vector) {
        let Some((layer, rest)) = of_layer(&tensor.name) else { continue };
        if part(tensor, rest, 0).is_none() {
            continue;
        }
        let (numbers, gradient) = (tensor.numbers()?, how.gradient(tensor)?);
        let mut random = how.random(&tensor.name);
        for (i, score) in scores.entry(layer).or_insert_with(|| vec![0.0; len]).iter_mut().enumerate() {
            let Some(at) = part(tensor, rest, i) else { continue };
            *score += how.score_of(at.into_iter().map(|at| (numbers[at], gradient[at])), &mut random);
        }
    }
    Ok(scores.into_iter().map(|(layer, scores)| (layer, kept(&scores, removed))).collect())
}

/// The numbers of some rows.
fn rows(tensor: &Tensor<'_>, rows: Range<usize>) -> Vec<usize> {
    (rows.start * tensor.cols..rows.end * tensor.cols).collect()
}

/// The numbers of some columns.
fn columns(tensor: &Tensor<'_>, cols: Range<usize>) -> Vec<usize> {
    (0..tensor.rows).flat_map(|row| cols.clone().map(move |col| row * tensor.cols + col)).collect()
}

fn heads<'f>(plan: &Plan<'f>, how: &PruneOptions, config: &ModelConfig) -> Result<Parts<'f>, ConvertError> {
    let (heads, kv, dim) = (config.num_attention_heads, config.num_kv_heads, config.head_dim);
    let each = heads / kv.max(1);
    let (q, k) = (each * dim, dim);
    let removed = count(how.sparsity, kv);
    some_left("key and value heads", removed, kv)?;
    for tensor in plan.tensors() {
        let found = [tensor.rows, tensor.cols];
        let expected = match of_layer(&tensor.name) {
            Some((_, "attn_q.weight")) => [heads * dim, tensor.cols],
            Some((_, "attn_k.weight" | "attn_v.weight")) => [kv * dim, tensor.cols],
            Some((_, "attn_output.weight")) => [tensor.rows, heads * dim],
            _ => continue,
        };
        if found != expected {
            let problem = format!("has the shape {found:?}, expected {expected:?} of separate heads");
            return Err(ConvertError::tensor(&tensor.name, problem));
        }
    }
    let kept = kept_in_layers(plan, how, (kv, removed), |tensor, name, i| match name {
        "attn_q.weight" => Some(rows(tensor, i * q..(i + 1) * q)),
        "attn_k.weight" | "attn_v.weight" => Some(rows(tensor, i * k..(i + 1) * k)),
        "attn_output.weight" => Some(columns(tensor, i * q..(i + 1) * q)),
        _ => None,
    })?;
    let each_of = |kept: &[usize], len: usize| -> Vec<usize> {
        kept.iter().flat_map(|head| head * len..(head + 1) * len).collect()
    };
    let pick = |tensor: &Tensor<'f>| {
        let stays = of_layer(&tensor.name).and_then(|(layer, name)| Some((kept.get(&layer)?, name)));
        match stays {
            Some((kept, "attn_q.weight")) => tensor.picked(Some(&each_of(kept, q)), None),
            Some((kept, "attn_k.weight" | "attn_v.weight")) => tensor.picked(Some(&each_of(kept, k)), None),
            Some((kept, "attn_k.bias" | "attn_v.bias")) => tensor.picked(None, Some(&each_of(kept, k))),
            Some((kept, "attn_q.bias" | "attn_output.weight" | "attn_sub_norm.weight")) => {
                tensor.picked(None, Some(&each_of(kept, q)))
            }
            _ => tensor.clone(),
        }
    };
    let left = (kv - removed) as u32;
    let values = [
        ("attention.head_count", left * each as u32),
        ("attention.head_count_kv", left),
        ("attention.key_length", dim as u32),
        ("attention.value_length", dim as u32),
    ];
    let values = values.map(|(name, value)| (key(config, name), value));
    Ok((plan.tensors().map(pick).collect(), values.into()))
}

fn neurons<'f>(plan: &Plan<'f>, how: &PruneOptions, config: &ModelConfig) -> Result<Parts<'f>, ConvertError> {
    let len = config.intermediate_size;
    // Rows of the matrix after them stay whole blocks.
    let down = plan.tensors().find(|tensor| tensor.name.ends_with(".ffn_down.weight"));
    let block = down.map(Tensor::exact).transpose()?.map_or(1, |format| format.block());
    let left = (len - count(how.sparsity, len)).next_multiple_of(block).min(len);
    some_left("neurons", len - left, len)?;
    let kept = kept_in_layers(plan, how, (len, len - left), |tensor, name, i| match name {
        "ffn_gate.weight" | "ffn_up.weight" => Some(rows(tensor, i..i + 1)),
        "ffn_down.weight" => Some(columns(tensor, i..i + 1)),
        _ => None,
    })?;
    let pick = |tensor: &Tensor<'f>| {
        let stays = of_layer(&tensor.name).and_then(|(layer, name)| Some((kept.get(&layer)?, name)));
        match stays {
            Some((kept, "ffn_gate.weight" | "ffn_up.weight")) => tensor.picked(Some(kept), None),
            Some((kept, "ffn_down.weight" | "ffn_sub_norm.weight")) => tensor.picked(None, Some(kept)),
            _ => tensor.clone(),
        }
    };
    let values = vec![(key(config, "feed_forward_length"), left as u32)];
    Ok((plan.tensors().map(pick).collect(), values))
}
