//! `tokenizer.json` and the files beside it as GGUF metadata, under the keys that llama.cpp's converter writes, and back.

use super::ConvertError;
use super::export::pretty;
use super::folder::Folder;
use super::json::{Json, present, string, wrong};
use crate::error::Result;
use serde_json::{Map, Value, json};
use shohin_core::gguf::{GgufWriter, Metadata};

/// Token types of GGUF.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

/// How Qwen2 and Qwen3 split text before merging, and Llama 3, which differs in the digits of a number.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Special tokens: their names in a folder and in GGUF.
const SPECIAL: [(&str, &str); 4] = [("eos", "eos"), ("bos", "bos"), ("pad", "padding"), ("unk", "unknown")];

/// Most rows of an embedding: the config claims them before the embedding is read.
const MAX_ROWS: u32 = 1 << 21;

/// Sets the keys of the tokenizer for an embedding of `rows` tokens.
pub(super) fn write(folder: &Folder, rows: u32, w: &mut GgufWriter) -> Result<()> {
    if rows > MAX_ROWS {
        let (key, found) = (String::from("vocab_size"), rows.to_string());
        return folder.at(Err(ConvertError::Value { key, found, expected: "at most 2097152" }));
    }
    let file = folder.need_json("tokenizer.json")?;
    let settings = folder.json("tokenizer_config.json")?;
    let ids = file.at(vocabulary(&file.root, rows, w))?;
    let flag = settings.as_ref().map_or(Ok(None), |settings| settings.at(add_bos(&settings.root)))?;
    if let Some(add) = flag.or_else(|| begins_with_a_token(&file.root)) {
        folder.at(w.set("tokenizer.ggml.add_bos_token", add).map_err(ConvertError::from))?;
    }
    special(folder, settings.as_ref(), &ids, w)?;
    if let Some(template) = template(folder, settings.as_ref())? {
        folder.at(w.set("tokenizer.chat_template", template.as_str()).map_err(ConvertError::from))?;
    }
    Ok(())
}

/// The tokens by id, in the bytes of the file.
fn vocabulary<'v>(
    root: &'v Value,
    rows: u32,
    w: &mut GgufWriter,
) -> Result<Vec<Option<&'v str>>, ConvertError> {
    let model = present(root, "model").ok_or_else(|| wrong("model", None, "a BPE model"))?;
    match string(model, "type")? {
        Some("BPE") => {}
        _ => return Err(wrong("model.type", model.get("type"), "BPE")),
    }
    for key in ["byte_fallback", "fuse_unk", "ignore_merges"] {
        // llama-bpe has whole words among its tokens, which its GGUF files do without this flag.
        let harmless =
            key == "ignore_merges" || matches!(present(model, key), None | Some(Value::Bool(false)));
        if !harmless {
            return Err(wrong(&format!("model.{key}"), model.get(key), "false"));
        }
    }
    let pre = pre_tokenizer(root.get("pre_tokenizer")).ok_or_else(|| {
        wrong("pre_tokenizer", root.get("pre_tokenizer"), "that of Qwen2, Llama 3 or SmolLM")
    })?;
    let vocab = model.get("vocab").and_then(Value::as_object);
    let vocab = vocab.ok_or_else(|| wrong("model.vocab", model.get("vocab"), "an object"))?;
    let mut texts: Vec<Option<&str>> = vec![None; rows as usize];
    let mut types = vec![UNUSED; rows as usize];
    let mut put = |text: &'v str, id: Option<u64>, kind: i32, key: &str| {
        let id = id.and_then(|id| usize::try_from(id).ok()).filter(|id| *id < texts.len());
        let id = id.ok_or_else(|| ConvertError::Value {
            key: format!("{key} of {text:?}"),
            found: "not a row of the embedding".into(),
            expected: "an id below vocab_size",
        })?;
        if texts[id].is_some_and(|before| before != text) {
            return Err(ConvertError::Value {
                key: format!("{key} of {text:?}"),
                found: format!("{id}, which is another token's"),
                expected: "an id of its own",
            });
        }
        (texts[id], types[id]) = (Some(text), kind);
        Ok(())
    };
    for (text, id) in vocab {
        put(text, id.as_u64(), NORMAL, "the id")?;
    }
    for token in present(root, "added_tokens").and_then(Value::as_array).into_iter().flatten() {
        let text =
            string(token, "content")?.ok_or_else(|| wrong("added_tokens", Some(token), "a content"))?;
        let special = token.get("special").and_then(Value::as_bool).unwrap_or(false);
        put(
            text,
            token.get("id").and_then(Value::as_u64),
            if special { CONTROL } else { USER_DEFINED },
            "the id",
        )?;
    }
    let names: Vec<String> =
        (0..rows as usize).map(|id| texts[id].map_or_else(|| format!("[PAD{id}]"), String::from)).collect();
    w.set("tokenizer.ggml.model", "gpt2")?;
    w.set("tokenizer.ggml.pre", pre)?;
    w.set_strings("tokenizer.ggml.tokens", &names)?;
    w.set_array("tokenizer.ggml.token_type", &types)?;
    w.set_strings("tokenizer.ggml.merges", &merges(model)?)?;
    Ok(texts)
}

/// The merges as `left right`.
fn merges(model: &Value) -> Result<Vec<String>, ConvertError> {
    let expected = "pairs of tokens";
    let all = model.get("merges").and_then(Value::as_array);
    let all = all.ok_or_else(|| wrong("model.merges", model.get("merges"), expected))?;
    let merge = |merge: &Value| match merge {
        Value::String(text) => Ok(text.clone()),
        Value::Array(pair) => match &pair[..] {
            [Value::String(left), Value::String(right)] => Ok(format!("{left} {right}")),
            _ => Err(wrong("model.merges", Some(merge), expected)),
        },
        _ => Err(wrong("model.merges", Some(merge), expected)),
    };
    all.iter().map(merge).collect()
}

/// The name of a pre-tokenizer, if it is a known one.
fn pre_tokenizer(value: Option<&Value>) -> Option<&'static str> {
    let parts = value?.get("pretokenizers")?.as_array()?;
    let [first, second] = &parts[..] else { return None };
    let kind = |part: &Value, kind| part.get("type").and_then(Value::as_str) == Some(kind);
    let flag = |part: &Value, key, default| part.get(key).map_or(Some(default), Value::as_bool);
    if !kind(second, "ByteLevel") || flag(second, "add_prefix_space", true)? {
        return None;
    }
    if kind(first, "Digits") {
        let whole = flag(first, "individual_digits", false)? && flag(second, "use_regex", true)?;
        return whole.then_some("smollm");
    }
    let isolated = first.get("behavior").and_then(Value::as_str) == Some("Isolated");
    if !kind(first, "Split") || !isolated || flag(first, "invert", false)? || flag(second, "use_regex", true)?
    {
        return None;
    }
    match first.get("pattern")?.get("Regex")?.as_str()? {
        QWEN2 => Some("qwen2"),
        LLAMA3 => Some("llama-bpe"),
        _ => None,
    }
}

/// Whether a text gets the token of its begin, if the settings say.
fn add_bos(settings: &Value) -> Result<Option<bool>, ConvertError> {
    match present(settings, "add_bos_token") {
        None => Ok(None),
        Some(Value::Bool(add)) => Ok(Some(*add)),
        found => Err(wrong("add_bos_token", found, "true or false")),
    }
}

/// The same by the template of a single text: Llama 3 has no other setting for it.
fn begins_with_a_token(root: &Value) -> Option<bool> {
    let template =
        |processor: &Value| Some(processor.get("single")?.as_array()?.first()?.get("SpecialToken").is_some());
    let processor = present(root, "post_processor")?;
    match processor.get("processors").and_then(Value::as_array) {
        Some(all) => all.iter().find_map(template),
        None => template(processor),
    }
}

/// The ids of special tokens: those of `generation_config.json` or `config.json`, or by name.
fn special(
    folder: &Folder,
    settings: Option<&Json>,
    texts: &[Option<&str>],
    w: &mut GgufWriter,
) -> Result<()> {
    let generation = folder.json("generation_config.json")?;
    for (name, key) in SPECIAL {
        let by_name = settings.and_then(|settings| {
            let token = present(&settings.root, &format!("{name}_token"))?;
            let text = token.as_str().or_else(|| token.get("content")?.as_str())?;
            texts.iter().position(|token| *token == Some(text))
        });
        let by_id = |file: &Json| {
            let id = present(&file.root, &format!("{name}_token_id"))?;
            // Several ends: the first is the one of a turn.
            let id = id.as_u64().or_else(|| id.as_array()?.first()?.as_u64())?;
            usize::try_from(id).ok().filter(|id| texts.get(*id).is_some_and(Option::is_some))
        };
        let id = by_name.or_else(|| by_id(folder.config())).or_else(|| by_id(generation.as_ref()?));
        if let Some(id) = id {
            let set = w.set(&format!("tokenizer.ggml.{key}_token_id"), id as u32);
            folder.at(set.map_err(ConvertError::from))?;
        }
    }
    Ok(())
}

/// The chat template: a file of its own, or in the tokenizer's settings.
fn template(folder: &Folder, settings: Option<&Json>) -> Result<Option<String>> {
    if let Some(text) = folder.text("chat_template.jinja")? {
        return Ok(Some(text));
    }
    let Some(settings) = settings else { return Ok(None) };
    Ok(match present(&settings.root, "chat_template") {
        Some(Value::String(text)) => Some(text.clone()),
        // Several by name.
        Some(Value::Array(all)) => all.iter().find_map(|one| {
            let default = one.get("name")?.as_str()? == "default";
            default.then(|| one.get("template")?.as_str().map(String::from))?
        }),
        _ => None,
    })
}

/// The special tokens of a GGUF file by their names in a folder.
pub(super) fn special_ids(metadata: &Metadata<'_>) -> Result<Vec<(&'static str, u32)>, ConvertError> {
    let mut ids = Vec::new();
    for (name, key) in SPECIAL {
        if let Some(id) = metadata.u32(&format!("tokenizer.ggml.{key}_token_id"))? {
            ids.push((name, id));
        }
    }
    Ok(ids)
}

/// An array of texts.
fn texts<'a>(metadata: &Metadata<'a>, key: &str) -> Result<Vec<&'a str>, ConvertError> {
    let invalid = || ConvertError::Value { key: key.into(), found: "not UTF-8".into(), expected: "texts" };
    let all = metadata.strings(key)?;
    let texts = all.iter().flat_map(|all| all.iter());
    texts.map(|text| std::str::from_utf8(text).map_err(|_| invalid())).collect()
}

/// The files of a folder with the tokenizer and the chat template of a GGUF file.
pub(super) fn files(metadata: &Metadata<'_>) -> Result<Vec<(&'static str, String)>, ConvertError> {
    let tokens = texts(metadata, "tokenizer.ggml.tokens")?;
    let types: Vec<i32> = match metadata.i32s("tokenizer.ggml.token_type")? {
        Some(types) => types.collect(),
        None => vec![NORMAL; tokens.len()],
    };
    let pre = metadata.str("tokenizer.ggml.pre")?.unwrap_or_default();
    let bytes = |use_regex: bool| json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex });
    let split = |pattern: &str| json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false });
    let (first, second) = match pre {
        "qwen2" => (split(QWEN2), bytes(false)),
        "llama-bpe" | "llama3" | "llama-v3" => (split(LLAMA3), bytes(false)),
        "smollm" => (json!({ "type": "Digits", "individual_digits": true }), bytes(true)),
        other => {
            return Err(ConvertError::Value {
                key: "tokenizer.ggml.pre".into(),
                found: other.into(),
                expected: "qwen2, llama-bpe or smollm",
            });
        }
    };
    let (mut vocab, mut added) = (Map::new(), Vec::new());
    for (id, (text, kind)) in tokens.iter().zip(&types).enumerate() {
        match *kind {
            UNUSED => {}
            CONTROL | USER_DEFINED => added.push(json!({
                "id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": *kind == CONTROL,
            })),
            _ => {
                vocab.insert((*text).into(), id.into());
            }
        }
    }
    // The tokens of a pair have no space: it is a letter of its own.
    let merges = texts(metadata, "tokenizer.ggml.merges")?;
    let merges: Vec<_> = merges.iter().filter_map(|merge| merge.split_once(' ')).collect();
    let special = special_ids(metadata)?;
    let token = |id: u32| tokens.get(id as usize).copied();
    let bos = special.iter().find(|(name, _)| *name == "bos").and_then(|(_, id)| Some((token(*id)?, *id)));
    let add_bos = metadata.bool("tokenizer.ggml.add_bos_token")?;
    let bytes_last =
        json!({ "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true });
    let post_processor = match bos.filter(|_| add_bos == Some(true)) {
        None => bytes(false),
        Some((text, id)) => {
            let (start, a) = (
                json!({ "SpecialToken": { "id": text, "type_id": 0 } }),
                json!({ "Sequence": { "id": "A", "type_id": 0 } }),
            );
            let b = json!([{ "SpecialToken": { "id": text, "type_id": 1 } }, { "Sequence": { "id": "B", "type_id": 1 } }]);
            json!({
                "type": "TemplateProcessing",
                "single": [start, a],
                "pair": [start, a, b[0], b[1]],
                "special_tokens": { text: { "id": text, "ids": [id], "tokens": [text] } },
            })
        }
    };
    let root = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": if pre == "qwen2" { json!({ "type": "NFC" }) } else { Value::Null },
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": [first, second] },
        "post_processor": post_processor,
        "decoder": bytes_last,
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            // llama-bpe has whole words among its tokens.
            "ignore_merges": pre.starts_with("llama"),
            "vocab": vocab,
            "merges": merges,
        },
    });
    let mut settings = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": false,
    });
    if let Some(add) = add_bos {
        settings["add_bos_token"] = add.into();
    }
    for (name, id) in special {
        if let Some(text) = token(id) {
            settings[format!("{name}_token")] = text.into();
        }
    }
    let mut files = vec![("tokenizer.json", pretty(&root)), ("tokenizer_config.json", pretty(&settings))];
    if let Some(template) = metadata.str("tokenizer.chat_template")? {
        files.push(("chat_template.jinja", template.into()));
    }
    Ok(files)
}
