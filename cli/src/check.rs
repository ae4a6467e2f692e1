//! `shohin check`: whether this engine runs a model as it should.

use crate::error::{CliError, Result};
use crate::model::{AdapterArgs, BareArgs, DeviceArgs, EngineArgs, FileArgs, ModelArgs};
use crate::progress::progress;
use crate::terminal::{self, Colours, remark};
use clap::Args;
use serde_json::Value;
use sha2::{Digest, Sha256};
use shohin::core::cpu::Isa;
use shohin::core::generate::Reason;
use shohin::{Activations, Builder, KvFormat, Model, ModelFile, SamplerConfig, TurnOptions};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Check that a model is intact and runs here as it should
///
/// Compares a download from the Hub with its SHA-256, the greedy continuation of a published Bonsai model with the
/// published one, and all instruction sets of this processor, to the bit, with the scalar reference. With --gpu or
/// --device also the GPU, within 2 % of the range of the logits. Takes a minute with a 1.7B model.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  shohin check bonsai-1.7b
  shohin check ternary-bonsai-1.7b --gpu

Exit codes: 0 everything is right, 1 something is not.")]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) bare: BareArgs,
    #[command(flatten)]
    pub(crate) file: FileArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}

impl CheckArgs {
    /// The model without adapters: its published results are those of models without.
    fn model(&self) -> ModelArgs {
        let CheckArgs { file, engine, device, .. } = self.clone();
        ModelArgs { file, engine, device, adapters: AdapterArgs::default() }
    }
}

/// Continuations of the published files.
const PUBLISHED: &str = include_str!("published_ids.json");

const TEXT: &str = "The capital of France is Paris. The capital of Japan is";

/// Tokens whose logits are compared: the scalar reference is slow.
const TOKENS: usize = 8;

/// The largest difference of a GPU's logits, as a part of their range.
const TOLERANCE: f32 = 0.02;

/// The result of a check; `None` if it does not apply.
type Outcome = (String, Option<bool>, String);

pub(crate) fn check(args: &CheckArgs) -> Result {
    let model_args = &args.model();
    let path = args.file.located()?;
    let mut outcomes = Vec::new();
    if let Some(path) = &path {
        outcomes.push(checksum(path)?);
    }
    let file = args.file.open_located(path.as_deref())?;
    let header = file.gguf(&args.file.read_options())?;
    outcomes.push((
        "file".into(),
        Some(true),
        format!("{} tensors, all within the file", header.tensors().len()),
    ));
    let builder = || model_args.builder().weight_cache(None);
    let cpu = || builder().cpu();
    outcomes.push(continuation(&cpu().activations(Activations::F32).kv(KvFormat::F32).load_file(&file)?)?);
    let (tokens, reference) = {
        let scalar = cpu().isa(Isa::SCALAR.name()).load_file(&file)?;
        let mut tokens = scalar.tokenize(TEXT);
        tokens.truncate(TOKENS);
        let bar = progress("computing the reference", "tokens", tokens.len());
        let logits = logits(&scalar, &tokens, &mut || bar.inc(1))?;
        bar.finish_and_clear();
        (tokens, logits)
    };
    let finite = reference.iter().all(|logit| logit.is_finite());
    let said =
        if finite { "all logits are finite" } else { "some logits are not finite: are the weights damaged?" };
    outcomes.push((Isa::SCALAR.name().into(), Some(finite), said.into()));
    for isa in Isa::available().filter(|isa| *isa != Isa::SCALAR) {
        let found = logits(&cpu().isa(isa.name()).load_file(&file)?, &tokens, &mut || ())?;
        let differ = found.iter().zip(&reference).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        let said = match differ {
            0 => format!("the same {} logits as the scalar reference", reference.len()),
            _ => format!("{differ} of {} logits differ from the scalar reference", reference.len()),
        };
        outcomes.push((isa.name().into(), Some(differ == 0), said));
    }
    outcomes.extend(gpu(model_args, &file, &tokens, &reference, &builder)?);
    report(&file, &outcomes)
}

fn report(file: &ModelFile, outcomes: &[Outcome]) -> Result {
    let mut out = io::stdout().lock();
    let Colours { bold, off, .. } = Colours::stdout();
    writeln!(out, "{}", file.name())?;
    let word = |passed| match passed {
        Some(true) => "yes",
        Some(false) => "NO",
        None => "-",
    };
    let row = |(what, passed, said): &Outcome| vec![what.clone(), word(*passed).into(), said.clone()];
    terminal::table(&mut out, &outcomes.iter().map(row).collect::<Vec<_>>(), &[false, false, false])?;
    let right = outcomes.iter().all(|(_, passed, _)| *passed != Some(false));
    writeln!(
        out,
        "{bold}This engine runs this model as it should: {}{off}",
        if right { "yes" } else { "no" }
    )?;
    if right { Ok(()) } else { Err(CliError::new("the model did not pass")) }
}

/// Compares a file that the Hub's cache names by its SHA-256.
fn checksum(path: &Path) -> Result<Outcome> {
    let blob: Option<PathBuf> = path.read_link().ok();
    let expected = blob.as_deref().and_then(|blob| blob.file_name()?.to_str());
    let Some(expected) = expected.filter(|sum| sum.len() == 64) else {
        let said = "none is known for this file, so that changed weights can go unnoticed";
        return Ok(("SHA-256".into(), None, said.into()));
    };
    let failed = |error| crate::error::file_error("read", path, &error);
    let mut file = File::open(path).map_err(failed)?;
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        let n = file.read(&mut buffer).map_err(failed)?;
        if n == 0 {
            break;
        }
        hash.update(&buffer[..n]);
    }
    let found: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let said = match found == expected {
        true => "that of the Hub".into(),
        false => format!("expected {expected}, found {found}"),
    };
    Ok(("SHA-256".into(), Some(found == expected), said))
}

/// Compares the greedy continuation of a published model with the published one.
fn continuation(model: &Model) -> Result<Outcome> {
    let published: Value = serde_json::from_str(PUBLISHED).map_err(CliError::new)?;
    let published = &published["models"][model.variant().name()];
    if published.is_null() {
        return Ok(("published text".into(), None, "there is none for this model".into()));
    }
    let ids = |key: &str| -> Vec<u32> {
        let list = published[key].as_array();
        list.into_iter().flatten().filter_map(|id| Some(id.as_u64()? as u32)).collect()
    };
    let (prompt, expected) = (ids("prompt_ids"), ids("greedy_ids"));
    let tokens = model.tokenize(TEXT);
    if tokens != prompt {
        let said = format!("the prompt has tokens {tokens:?}, expected {prompt:?}");
        return Ok(("published text".into(), Some(false), said));
    }
    let sampler = SamplerConfig::greedy();
    let options = TurnOptions { sampler, max_tokens: Some(expected.len()), ..TurnOptions::default() };
    let mut found = Vec::new();
    for piece in model.generate(TEXT, options)? {
        let piece = piece?;
        found.extend(piece.token.filter(|_| piece.done != Some(Reason::Stop)));
    }
    let (passed, said) = agreement(&expected, &found);
    Ok(("published text".into(), Some(passed), said))
}

fn agreement(expected: &[u32], found: &[u32]) -> (bool, String) {
    let same = expected.iter().zip(found).take_while(|(a, b)| a == b).count();
    if same == expected.len() {
        return (true, format!("the same {same} tokens as published"));
    }
    let other = found.get(same).map_or("the end of the reply".into(), |id| format!("token {id}"));
    (false, format!("after {same} tokens: expected token {}, found {other}", expected[same]))
}

fn logits(model: &Model, tokens: &[u32], step: &mut dyn FnMut()) -> Result<Vec<f32>> {
    let mut all = Vec::with_capacity(tokens.len() * model.config().vocab_size);
    model.logits(tokens, &mut |_, row| {
        all.extend_from_slice(row);
        step();
    })?;
    Ok(all)
}

fn gpu(
    model_args: &ModelArgs,
    file: &ModelFile,
    tokens: &[u32],
    reference: &[f32],
    builder: &dyn Fn() -> Builder,
) -> Result<Option<Outcome>> {
    if !model_args.device.on_gpu() {
        if cfg!(any(feature = "gpu", feature = "cuda", feature = "metal")) {
            remark("(--gpu or --device checks the GPU, too)");
        }
        return Ok(None);
    }
    let model = builder().load_file(file)?;
    let found = logits(&model, tokens, &mut || ())?;
    let (least, most) = reference.iter().fold((f32::MAX, f32::MIN), |(l, m), x| (l.min(*x), m.max(*x)));
    let apart = found.iter().zip(reference).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
    let part = apart / (most - least);
    let said =
        format!("logits differ by at most {:.3} % of their range from the scalar reference", part * 100.0);
    Ok(Some((model.gpu().unwrap_or("GPU").into(), Some(part < TOLERANCE), said)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continuations_are_compared_token_by_token() {
        assert_eq!(agreement(&[1, 2, 3], &[1, 2, 3, 4]), (true, "the same 3 tokens as published".into()));
        let (passed, said) = agreement(&[1, 2, 3], &[1, 5, 3]);
        assert!(!passed && said == "after 1 tokens: expected token 2, found token 5", "{said}");
        let (passed, said) = agreement(&[1, 2, 3], &[1, 2]);
        assert!(!passed && said.ends_with("expected token 3, found the end of the reply"), "{said}");
    }

    #[test]
    fn every_published_text_is_there() {
        let published: Value = serde_json::from_str(PUBLISHED).unwrap();
        assert_eq!(published["prompt"], TEXT);
        for name in ["Bonsai-1.7B", "Bonsai-4B", "Bonsai-8B"] {
            assert_eq!(published["models"][name]["greedy_ids"].as_array().unwrap().len(), 32, "{name}");
        }
    }
}
