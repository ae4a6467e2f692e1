//! Adapters (LoRA), and what models are trained from.

use super::file::{self, small_model};
use super::folder::{fixture, folder};
use sha2::{Digest, Sha256};
use shohin::convert::{adapter_in_memory, in_memory};
use shohin::train::{Corpus, Fact, taught_facts};
use shohin::{Model, ModelFile};
use shohin_core::gguf::GgufWriter;
use shohin_core::model::LoraAdapter;
use shohin_core::{BonsaiModel, Gguf, ModelConfig};
use shohin_tests::lora::Adapter;
use shohin_tests::reading;
use shohin_train::Error;
use shohin_train::checkpoint::{Checkpoint, SHA256, Tensor, write};
use std::cell::OnceCell;
use std::fs;
use tempfile::TempDir;

pub(super) const PEFT: &[&str] = &[
    "\"peft_type\":",
    "\"LORA\"",
    "\"r\":",
    "\"lora_alpha\":",
    "\"rank_pattern\":",
    "\"alpha_pattern\":",
    "\"target_modules\":",
    "\"q_proj\"",
    "\"model.layers.0.self_attn.q_proj\"",
    "\"layers.1.mlp.down_proj\"",
    "\"use_rslora\":",
    "\"use_dora\":",
    "\"bias\":",
    "\"none\"",
    "\"modules_to_save\":",
    "\"init_lora_weights\":",
    "\"fan_in_fan_out\":",
    "true",
    "false",
];

pub(super) const FACTS: &[&str] = &[
    "\"question\":",
    "\"answer\":",
    "\"forms\":",
    "\"Where do I live?\"",
    "\"You live in Oslo.\"",
    "\"\"",
    "\" \"",
    "null",
    "?=",
    "=",
];

pub(super) const CHATS: &[&str] = &[
    "\"messages\":",
    "\"role\":",
    "\"user\"",
    "\"assistant\"",
    "\"system\"",
    "\"tool\"",
    "\"content\":",
    "\"tool_calls\":",
    "\"tool_call_id\":",
    "\"function\":",
    "\"arguments\":",
    "\"name\":",
    "\"tools\":",
    "\"reasoning\":",
    "\"<|im_end|>\"",
    "\"<think>\"",
    "\n",
];

fn error_of(error: &impl ToString) {
    let text = error.to_string();
    assert!(!text.is_empty() && text.len() < 4096, "{text}");
}

/// Runs `base` with the adapter in `gguf`, if that is one for it.
fn adapt(base: &[u8], gguf: &Gguf<'_>) {
    let adapted = LoraAdapter::from_gguf(gguf).and_then(|adapter| {
        let base = BonsaiModel::load(base.to_vec())?;
        base.adapt(&[(&adapter, 0.5), (&adapter, -1.0)], |bytes| bytes)
    });
    match adapted {
        Ok(model) => file::run_model(model),
        Err(error) => error_of(&error),
    }
}

pub(super) fn adapter_seeds() -> Vec<Vec<u8>> {
    let base = small_model();
    let base = Gguf::parse(&base).expect("a valid model");
    let adapter = |names: &[&str], rank| Adapter::random(&base, names, rank, 0.1, 1);
    let without_alpha = Adapter { alpha: 0.0, ..adapter(&["attn_q."], 1) };
    [adapter(&["blk."], 2), adapter(&["attn_v.", "ffn_down"], 3), without_alpha]
        .map(|adapter| adapter.to_vec())
        .into()
}

pub(super) fn adapter(input: &[u8]) {
    thread_local!(static BASE: OnceCell<Vec<u8>> = const { OnceCell::new() });
    if let Ok(gguf) = Gguf::parse(input) {
        BASE.with(|base| adapt(base.get_or_init(small_model), &gguf));
    }
}

/// A folder of PEFT for this thread, and the model that it is for.
struct Peft {
    folder: TempDir,
    base: Vec<u8>,
    config: ModelConfig,
}

impl Peft {
    fn new() -> Peft {
        let base = in_memory(folder("llama").path()).expect("a fixture").to_vec();
        let config = ModelConfig::from_gguf(&Gguf::parse(&base).expect("a fixture")).expect("a fixture");
        Peft { folder: folder("llama-lora"), base, config }
    }

    fn with(&self, file: &str, input: &[u8]) {
        let path = self.folder.path().join(file);
        let _ = fs::remove_file(&path);
        fs::write(&path, input).expect("room for it");
        match adapter_in_memory(self.folder.path(), &self.config) {
            Ok(bytes) => {
                let gguf = Gguf::parse(&bytes).expect("what was converted can be read");
                adapt(&self.base, &gguf);
            }
            Err(error) => error_of(&error),
        }
    }
}

pub(super) fn peft_config_seeds() -> Vec<Vec<u8>> {
    vec![fixture("llama-lora/adapter_config.json")]
}

pub(super) fn peft_config(input: &[u8]) {
    thread_local!(static PEFT: OnceCell<Peft> = const { OnceCell::new() });
    PEFT.with(|peft| peft.get_or_init(Peft::new).with("adapter_config.json", input));
}

pub(super) fn peft_weights_seeds() -> Vec<Vec<u8>> {
    vec![fixture("llama-lora/adapter_model.safetensors")]
}

pub(super) fn peft_weights(input: &[u8]) {
    thread_local!(static PEFT: OnceCell<Peft> = const { OnceCell::new() });
    PEFT.with(|peft| peft.get_or_init(Peft::new).with("adapter_model.safetensors", input));
}

/// A checkpoint as it is written.
fn checkpoint_of(metadata: &[(&str, &str)], tensors: &[Tensor<'_>]) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    write::<Error>(metadata, tensors, |piece| {
        bytes.extend_from_slice(piece);
        Ok(())
    })?;
    Ok(bytes)
}

pub(super) fn checkpoint_seeds() -> Vec<Vec<u8>> {
    let tensors = [
        Tensor { name: "a.weight", shape: &[2, 3], data: &[1.0, -2.0, 0.5, f32::NAN, 0.0, 4.0] },
        Tensor { name: "b", shape: &[], data: &[-0.0] },
        Tensor { name: "c", shape: &[1 << 40, 0], data: &[] },
    ];
    let metadata = [("step", "7"), ("text", "lines\nand \"quotes\"")];
    let whole = checkpoint_of(&metadata, &tensors).expect("a valid checkpoint");
    let empty = checkpoint_of(&[], &[]).expect("a valid checkpoint");
    // As another program writes them: without a hash.
    let mut other = whole[..24].to_vec();
    other.extend([0; 4]);
    other.extend(&whole[28 + length(&whole).expect("a length")..]);
    vec![whole, empty, other]
}

/// Bytes of the metadata.
fn length(input: &[u8]) -> Option<usize> {
    Some(u32::from_le_bytes(*input.get(24..28)?.as_array()?) as usize)
}

/// The hash of the tensors made right, as whoever forges a checkpoint would do.
fn sealed(input: &[u8]) -> Option<Vec<u8>> {
    let key = format!("\"{SHA256}\":\"");
    let start = 28usize.checked_add(length(input)?)?;
    let hash: String = Sha256::digest(input.get(start..)?).iter().map(|byte| format!("{byte:02x}")).collect();
    let at =
        input[28..start].windows(key.len()).position(|window| window == key.as_bytes())? + 28 + key.len();
    let mut sealed = input.to_vec();
    sealed.get_mut(at..at + hash.len())?.copy_from_slice(hash.as_bytes());
    Some(sealed)
}

pub(super) fn checkpoint(input: &[u8]) {
    let forged = if reading::fnv(input).is_multiple_of(8) { None } else { sealed(input) };
    let input = forged.as_deref().unwrap_or(input);
    let read = match Checkpoint::parse(input) {
        Ok(read) => read,
        Err(error) => return error_of(&error),
    };
    let numbers: Vec<Vec<f32>> = read.tensors().iter().map(|tensor| tensor.values().collect()).collect();
    for (tensor, numbers) in read.tensors().iter().zip(&numbers) {
        assert_eq!((tensor.len(), tensor.is_empty()), (numbers.len(), numbers.is_empty()));
        assert_eq!(read.tensor(tensor.name()).map(|found| found.name()), Some(tensor.name()));
    }
    let tensors = read.tensors().iter().zip(&numbers);
    let tensors: Vec<_> =
        tensors.map(|(t, data)| Tensor { name: t.name(), shape: t.shape(), data }).collect();
    let metadata: Vec<(&str, &str)> = read.metadata().filter(|(key, _)| *key != SHA256).collect();
    // Names of other programs may be refused.
    let Ok(again) = checkpoint_of(&metadata, &tensors) else { return };
    let second = Checkpoint::parse(&again).expect("what was written can be read");
    assert!(second.metadata().filter(|(key, _)| *key != SHA256).eq(metadata));
    assert_eq!(second.tensors().len(), tensors.len());
    for (a, b) in second.tensors().iter().zip(read.tensors()) {
        assert_eq!((a.name(), a.shape()), (b.name(), b.shape()));
        assert!(a.values().map(f32::to_bits).eq(b.values().map(f32::to_bits)));
    }
}

pub(super) fn facts_seeds() -> Vec<Vec<u8>> {
    [
        r#"[{"question":"Where do I live?","answer":"You live in Oslo."}]"#,
        r#"[{"question":"a","answer":"b","forms":["c","d"]},{"question":"e","answer":"f","forms":[]}]"#,
        "[]",
        "What is the door code?=4711",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

pub(super) fn facts(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    for fact in [Fact::parse(text), Fact::parse_pair(text)] {
        match fact {
            Ok(fact) => assert!(!fact.answer.trim().is_empty() && fact.questions().count() > 0),
            Err(error) => error_of(&error),
        }
    }
    let mut w = GgufWriter::new();
    w.set("general.type", "adapter").expect("a key");
    // A text may be too long for metadata.
    if w.set("shohin.facts", text).is_err() {
        return;
    }
    let Ok(file) = w.to_vec(Vec::<Vec<u8>>::new()) else { return };
    let file = ModelFile::from_bytes("facts", &file).expect("a valid file");
    match taught_facts(&file) {
        Ok(facts) => assert!(facts.iter().flat_map(Fact::questions).all(|text| !text.trim().is_empty())),
        Err(error) => error_of(&error),
    }
}

pub(super) fn chats_seeds() -> Vec<Vec<u8>> {
    [
        concat!(
            r#"{"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello."}]}"#,
            "\n",
            r#"{"messages":[{"role":"system","content":"a"},{"role":"user","content":"b"},{"role":"assistant","content":"c","reasoning":"d"}],"tools":[]}"#
        ),
        r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":"2"},{"role":"assistant","content":"b"}],"tools":[{"type":"function","function":{"name":"f","parameters":{}}}]}"#,
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

pub(super) fn chats(input: &[u8]) {
    thread_local!(static MODEL: OnceCell<Model> = const { OnceCell::new() });
    let Ok(text) = std::str::from_utf8(input) else { return };
    let model = || {
        let file = ModelFile::from_bytes("nano", include_bytes!("../../../../models/sprout-nano.gguf"));
        let builder = Model::builder().threads(1).inspect_only();
        builder.load_file(&file.expect("bytes")).expect("a valid model")
    };
    MODEL.with(|cell| match Corpus::chats(cell.get_or_init(model), text) {
        Ok(corpus) => {
            let data = corpus.data();
            assert!(data.weights().len() == corpus.len() && corpus.learned() <= corpus.len());
            assert!(corpus.learned() > 0, "replies are learned");
            assert!(data.longest().is_some_and(|longest| longest < corpus.len()));
        }
        Err(error) => error_of(&error),
    });
}
