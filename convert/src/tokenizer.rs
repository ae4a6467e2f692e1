//! `tokenizer.json` and the files beside it as GGUF metadata, under the keys that llama.cpp's converter writes, and back.

use crate::error::{ConvertError, Result};
use crate::folder::Folder;
use crate::json::{Json, present, pretty, string, wrong};
use crate::sentencepiece;
use crate::vocabulary::{CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, merges};
use serde_json::{Map, Value, json};
use shohin_core::gguf::{GgufWriter, Metadata};
use shohin_core::tokenizer::{END_NAMES, Pre};

/// How Qwen2 and Qwen3 split text before merging, Qwen3.5 with combining marks in words, and Llama 3, which differs in the digits of
/// a number.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Special tokens: their names in a folder and in GGUF.
const SPECIAL: [(&str, &str); 4] = [("eos", "eos"), ("bos", "bos"), ("pad", "padding"), ("unk", "unknown")];
const EOS: usize = 0;
const BOS: usize = 1;
/// Ends of a turn and of a message, which a folder has among its tokens `eos`.
const EOT: &str = "tokenizer.ggml.eot_token_id";
const EOM: &str = "tokenizer.ggml.eom_token_id";

/// Maximum number of rows of an embedding: the config claims them before the embedding is read.
const MAX_ROWS: u32 = 1 << 21;

/// Sets the keys of the tokenizer for an embedding of `rows` tokens.
pub(crate) fn write(folder: &Folder, rows: u32, w: &mut GgufWriter) -> Result<()> {
    if rows > MAX_ROWS {
        let (key, found) = (String::from("vocab_size"), rows.to_string());
        return folder.at(Err(ConvertError::Value { key, found, expected: "at most 2097152" }));
    }
    let file = folder.need_json("tokenizer.json")?;
    let settings = folder.json("tokenizer_config.json")?;
    let (ids, adds_bos) = file.at(vocabulary(&file.root, rows, w))?;
    let around = file.at(around(&file.root))?;
    let flag = |key| settings.as_ref().map_or(Ok(None), |settings| settings.at(flag(&settings.root, key)));
    let add_bos = flag("add_bos_token")?.or(around.map(|[before, _]| before.is_some()));
    // Readers of GGUF add it to texts of some kinds unless told otherwise, and `tokenizers` only where a template has it.
    let add_bos = add_bos.or(adds_bos.then_some(false));
    let add_eos = flag("add_eos_token")?.unwrap_or(around.is_some_and(|[_, after]| after.is_some()));
    if let Some(add) = add_bos {
        folder.at(w.set("tokenizer.ggml.add_bos_token", add).map_err(ConvertError::from))?;
    }
    if add_eos {
        folder.at(w.set("tokenizer.ggml.add_eos_token", true).map_err(ConvertError::from))?;
    }
    let [before, after] = around.unwrap_or_default();
    let around = [before.filter(|_| add_bos == Some(true)), after.filter(|_| add_eos)];
    special(folder, settings.as_ref(), &ids, around, w)?;
    if let Some(template) = template(folder, settings.as_ref())? {
        folder.at(w.set("tokenizer.chat_template", template.as_str()).map_err(ConvertError::from))?;
    }
    Ok(())
}

/// Refuses settings that change tokens and are not read.
fn check(root: &Value, model: &Value, is_sentencepiece: bool) -> Result<(), ConvertError> {
    let is_nfc = |value: &Value| value.get("type").and_then(Value::as_str) == Some("NFC");
    if let Some(normalizer) = present(root, "normalizer").filter(|_| !is_sentencepiece) {
        let parts = normalizer.get("normalizers").and_then(Value::as_array);
        if !parts.map_or_else(|| is_nfc(normalizer), |parts| parts.iter().all(is_nfc)) {
            return Err(wrong("normalizer", Some(normalizer), "NFC or none"));
        }
    }
    let keys = ["byte_fallback", "fuse_unk", "dropout", "continuing_subword_prefix", "end_of_word_suffix"];
    // With tokens for all bytes nothing is unknown.
    for key in keys.into_iter().skip(if is_sentencepiece { 2 } else { 0 }) {
        let harmless = match present(model, key) {
            None | Some(Value::Bool(false)) => true,
            Some(Value::String(text)) => text.is_empty(),
            Some(value) => value.as_f64() == Some(0.0),
        };
        if !harmless {
            return Err(wrong(&format!("model.{key}"), model.get(key), "none"));
        }
    }
    Ok(())
}

/// Writes the tokens, and returns them by id, in the bytes of the file; and whether readers of GGUF add BOS to texts unless told
/// otherwise.
fn vocabulary<'v>(
    root: &'v Value,
    rows: u32,
    w: &mut GgufWriter,
) -> Result<(Vec<Option<&'v str>>, bool), ConvertError> {
    let model = present(root, "model").ok_or_else(|| wrong("model", None, "a BPE model"))?;
    match string(model, "type")? {
        Some("BPE") => {}
        _ => return Err(wrong("model.type", model.get("type"), "BPE")),
    }
    let is_sentencepiece = sentencepiece::is_model(model);
    check(root, model, is_sentencepiece)?;
    let (texts, types) = tokens(root, model, rows)?;
    if is_sentencepiece {
        sentencepiece::write(root, model, &texts, types, w)?;
        return Ok((texts, true));
    }
    let pre = pre_tokenizer(root.get("pre_tokenizer"), model).ok_or_else(|| {
        wrong("pre_tokenizer", root.get("pre_tokenizer"), "that of Qwen2, Qwen3.5, Llama 3, SmolLM or GPT-2")
    })?;
    let names: Vec<String> = texts
        .iter()
        .enumerate()
        .map(|(id, t)| t.map_or_else(|| format!("[PAD{id}]"), String::from))
        .collect();
    w.set("tokenizer.ggml.model", "gpt2")?;
    w.set("tokenizer.ggml.pre", pre)?;
    w.set_strings("tokenizer.ggml.tokens", &names)?;
    w.set_array("tokenizer.ggml.token_type", &types)?;
    w.set_strings("tokenizer.ggml.merges", &merges(model)?)?;
    Ok((texts, Pre::from_name(pre) == Some(Pre::LlamaBpe)))
}

/// The tokens by id, and their types.
fn tokens<'v>(
    root: &'v Value,
    model: &'v Value,
    rows: u32,
) -> Result<(Vec<Option<&'v str>>, Vec<i32>), ConvertError> {
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
        for key in ["lstrip", "rstrip", "single_word"] {
            if let Some(value) = present(token, key).filter(|value| **value != Value::Bool(false)) {
                return Err(wrong(&format!("{key} of the added token {text:?}"), Some(value), "false"));
            }
        }
        let special = token.get("special").and_then(Value::as_bool).unwrap_or(false);
        put(
            text,
            token.get("id").and_then(Value::as_u64),
            if special { CONTROL } else { USER_DEFINED },
            "the id",
        )?;
    }
    Ok((texts, types))
}

/// Names what a folder has in the place of a key of GGUF, which nobody can look for in it.
pub(crate) fn of_folder(error: ConvertError) -> ConvertError {
    match error {
        ConvertError::Gguf(shohin_core::Error::Unsupported { key, found, .. })
            if key.to_string() == "tokenizer.ggml.tokens" =>
        {
            ConvertError::Value {
                key: "model.vocab of tokenizer.json".into(),
                found: format!("without {found:?}"),
                expected: "a token for each byte of texts",
            }
        }
        error => error,
    }
}

/// The name of a pre-tokenizer in GGUF, if it is a known one.
fn pre_tokenizer(value: Option<&Value>, model: &Value) -> Option<&'static str> {
    let kind = |part: &Value, kind| part.get("type").and_then(Value::as_str) == Some(kind);
    let flag = |part: &Value, key, default| part.get(key).map_or(Some(default), Value::as_bool);
    let parts = match value?.get("pretokenizers") {
        Some(parts) => parts.as_array()?.as_slice(),
        None => std::slice::from_ref(value?),
    };
    let (first, second) = match parts {
        [only] => (None, only),
        [first, second] => (Some(first), second),
        _ => return None,
    };
    if !kind(second, "ByteLevel") || flag(second, "add_prefix_space", true)? {
        return None;
    }
    // Only one name says that whole words are tokens: that of Llama 3, whose first files do not have this key.
    let ignores_merges = present(model, "ignore_merges").map(|value| *value == Value::Bool(true));
    let unless_ignored = |name| (ignores_merges != Some(true)).then_some(name);
    let use_regex = flag(second, "use_regex", true)?;
    let Some(first) = first else { return unless_ignored("gpt-2").filter(|_| use_regex) };
    if kind(first, "Digits") {
        let whole = flag(first, "individual_digits", false)? && use_regex;
        return unless_ignored("smollm").filter(|_| whole);
    }
    let isolated = first.get("behavior").and_then(Value::as_str) == Some("Isolated");
    if !kind(first, "Split") || !isolated || flag(first, "invert", false)? || use_regex {
        return None;
    }
    match first.get("pattern")?.get("Regex")?.as_str()? {
        QWEN2 => unless_ignored("qwen2"),
        QWEN35 => unless_ignored("qwen35"),
        LLAMA3 if ignores_merges == Some(false) => Some("smaug-bpe"),
        LLAMA3 => Some("llama-bpe"),
        _ => None,
    }
}

/// A setting that may be missing.
fn flag(settings: &Value, key: &str) -> Result<Option<bool>, ConvertError> {
    match present(settings, key) {
        None => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        found => Err(wrong(key, found, "true or false")),
    }
}

/// The tokens before and after a single text, if a template says which: Llama 3 and Qwen3-Embedding have no other setting
/// for it.
fn around<'v>(root: &'v Value) -> Result<Option<[Option<&'v str>; 2]>, ConvertError> {
    let Some(processor) = present(root, "post_processor") else { return Ok(None) };
    let all = match processor.get("processors").and_then(Value::as_array) {
        Some(all) => all.as_slice(),
        None => std::slice::from_ref(processor),
    };
    let mut found = None;
    for processor in all {
        match string(processor, "type")? {
            // It changes offsets only.
            Some("ByteLevel") => {}
            Some("TemplateProcessing") if found.is_none() => {
                let single = present(processor, "single");
                let refused =
                    || wrong("post_processor.single", single, "a text, and a token before and after it");
                let token = |part: &Value| part.get("SpecialToken").is_some();
                let parts = single.and_then(Value::as_array).ok_or_else(refused)?;
                let (before, after) = match &parts[..] {
                    [_] => (None, None),
                    [first, _] if token(first) => (Some(first), None),
                    [_, last] => (None, Some(last)),
                    [first, _, last] => (Some(first), Some(last)),
                    _ => return Err(refused()),
                };
                if parts.iter().filter(|part| !token(part)).count() != 1 {
                    return Err(refused());
                }
                let name = |part: &'v Value| part.get("SpecialToken")?.get("id")?.as_str();
                if [before, after].into_iter().flatten().any(|part| name(part).is_none()) {
                    return Err(refused());
                }
                found = Some([before.and_then(name), after.and_then(name)]);
            }
            _ => {
                let expected = "ByteLevel, or one TemplateProcessing";
                return Err(wrong("post_processor.type", processor.get("type"), expected));
            }
        }
    }
    Ok(found)
}

/// Names of tokens that end a turn, and of the one that ends a message of several in a turn.
const END_OF_TURN: [&str; 3] = ["<|im_end|>", "<|eot_id|>", "<end_of_turn>"];
const END_OF_MESSAGE: &str = "<|eom_id|>";

/// The ids of special tokens: those of `generation_config.json` or `config.json`, or by name. `around` are the tokens that
/// are added before and after a text.
fn special(
    folder: &Folder,
    settings: Option<&Json>,
    texts: &[Option<&str>],
    around: [Option<&str>; 2],
    w: &mut GgufWriter,
) -> Result<()> {
    let generation = folder.json("generation_config.json")?;
    let named = |text: &str| texts.iter().position(|token| *token == Some(text));
    let known = |id: &Value| {
        let id = usize::try_from(id.as_u64()?).ok()?;
        texts.get(id).is_some_and(Option::is_some).then_some(id)
    };
    // One, or several.
    let ids = |file: &Json, name: &str| -> Vec<usize> {
        match present(&file.root, &format!("{name}_token_id")) {
            Some(Value::Array(ids)) => ids.iter().filter_map(known).collect(),
            Some(id) => known(id).into_iter().collect(),
            None => Vec::new(),
        }
    };
    let files = [Some(folder.config()), generation.as_ref()];
    let mut found: Vec<Option<usize>> = SPECIAL
        .iter()
        .map(|(name, _)| {
            let by_name = settings.and_then(|settings| {
                let token = present(&settings.root, &format!("{name}_token"))?;
                named(token.as_str().or_else(|| token.get("content")?.as_str())?)
            });
            // Of several ends, the first is the one of a turn.
            by_name.or_else(|| files.into_iter().flatten().find_map(|file| ids(file, name).first().copied()))
        })
        .collect();
    let mut ends: Vec<usize> = files.into_iter().flatten().flat_map(|file| ids(file, "eos")).collect();

    let [before, after] = around;
    let missing = |text: &str, expected| {
        let (key, found) = (String::from("post_processor.single"), format!("{text:?}"));
        folder.at(Err(ConvertError::Value { key, found, expected }))
    };
    if let Some(text) = before {
        match (named(text), found[BOS]) {
            (Some(id), None) => found[BOS] = Some(id),
            (Some(id), Some(bos)) if id == bos => {}
            _ => return missing(text, "the token of bos_token before a text"),
        }
    }
    if let Some(text) = after {
        // As llama.cpp's converter does: readers add the token eos, and the other end stays one.
        let Some(id) = named(text) else { return missing(text, "a token after a text") };
        ends.extend(found[EOS].replace(id));
    }
    for ((_, key), id) in SPECIAL.iter().zip(&found) {
        if let Some(id) = *id {
            let set = w.set(&format!("tokenizer.ggml.{key}_token_id"), id as u32);
            folder.at(set.map_err(ConvertError::from))?;
        }
    }
    ends.retain(|id| Some(*id) != found[EOS]);
    folder.at(further_ends(&ends, texts, w))
}

/// Sets the keys of ends of a reply beside `eos`, which are two. They are for those whose names say nothing: readers know
/// the others without a key.
fn further_ends(ends: &[usize], texts: &[Option<&str>], w: &mut GgufWriter) -> Result<(), ConvertError> {
    let text = |id: usize| texts[id].unwrap_or_default();
    let mut unnamed: Vec<usize> = Vec::new();
    for id in ends.iter().copied().filter(|id| !END_NAMES.contains(&text(*id))) {
        if !unnamed.contains(&id) {
            unnamed.push(id);
        }
    }
    if unnamed.len() > 2 {
        return Err(ConvertError::Value {
            key: "eos_token_id".into(),
            found: format!("{} such tokens", unnamed.len()),
            expected: "at most two beside eos whose names do not say that they end a reply",
        });
    }
    // Named ones are for the places that are left.
    let turn = ends.iter().copied().find(|id| END_OF_TURN.contains(&text(*id)));
    let message = ends.iter().copied().find(|id| text(*id) == END_OF_MESSAGE);
    let slots = match (&unnamed[..], turn) {
        ([], _) => [turn, message],
        ([one], Some(_)) => [turn, Some(*one)],
        ([one], None) => [Some(*one), message],
        ([first, second, ..], _) => [Some(*first), Some(*second)],
    };
    for (key, id) in [EOT, EOM].into_iter().zip(slots) {
        if let Some(id) = id {
            w.set(key, id as u32)?;
        }
    }
    Ok(())
}

/// The chat template: a file of its own, as text or JSON, or in the tokenizer's settings.
fn template(folder: &Folder, settings: Option<&Json>) -> Result<Option<String>> {
    if let Some(text) = folder.text("chat_template.jinja")? {
        return Ok(Some(text));
    }
    let file = folder.json("chat_template.json")?;
    let files = [file.as_ref(), settings].into_iter().flatten();
    let mut values = files.filter_map(|file| Some((file, present(&file.root, "chat_template")?)));
    let Some((file, value)) = values.next() else { return Ok(None) };
    let template = default_template(value).ok_or_else(|| {
        wrong("chat_template", Some(value), "a text, or several by name of which one is default")
    });
    file.at(template).map(Some)
}

/// The template that is used unless another one is named: of several the one called `default`, or the only one.
fn default_template(value: &Value) -> Option<String> {
    let text = |value: &Value| value.as_str().map(String::from);
    match value {
        Value::Array(all) => {
            let is_default = |one: &&Value| one.get("name").and_then(Value::as_str) == Some("default");
            let only = || all.first().filter(|_| all.len() == 1);
            text(all.iter().find(is_default).or_else(only)?.get("template")?)
        }
        Value::Object(all) => {
            let only = || all.values().next().filter(|_| all.len() == 1);
            text(all.get("default").or_else(only)?)
        }
        value => text(value),
    }
}

/// The special tokens of a GGUF file by their names in a folder.
pub(crate) fn special_ids(metadata: &Metadata<'_>) -> Result<Vec<(&'static str, u32)>, ConvertError> {
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

/// A step `ByteLevel` of `tokenizer.json`.
fn byte_level(add_prefix_space: bool, use_regex: bool) -> Value {
    json!({
        "type": "ByteLevel",
        "add_prefix_space": add_prefix_space,
        "trim_offsets": true,
        "use_regex": use_regex,
    })
}

/// The pre-tokenizer that has the name `pre` in GGUF.
fn pre_tokenizers(pre: &str) -> Result<(Pre, Value), ConvertError> {
    let split = |pattern: &str| {
        let split = json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false });
        json!({ "type": "Sequence", "pretokenizers": [split, byte_level(false, false)] })
    };
    let known = Pre::from_name(pre).ok_or_else(|| ConvertError::Value {
        key: "tokenizer.ggml.pre".into(),
        found: pre.into(),
        expected: "qwen2, qwen35, llama-bpe, smaug-bpe, smollm or gpt-2",
    })?;
    let digits = json!({ "type": "Digits", "individual_digits": true });
    let value = match known {
        Pre::Qwen2 => split(QWEN2),
        Pre::Qwen35 => split(QWEN35),
        Pre::LlamaBpe | Pre::SmaugBpe => split(LLAMA3),
        Pre::SmolLm => json!({ "type": "Sequence", "pretokenizers": [digits, byte_level(false, true)] }),
        Pre::Gpt2 => byte_level(false, true),
    };
    Ok((known, value))
}

/// The vocabulary of `tokenizer.json`, and its added tokens.
fn tokens_of_folder(tokens: &[&str], types: &[i32]) -> (Map<String, Value>, Vec<Value>) {
    let (mut vocab, mut added) = (Map::new(), Vec::new());
    for (id, (text, kind)) in tokens.iter().zip(types).enumerate() {
        if *kind == UNUSED {
            continue;
        }
        // Added tokens, too: `tokenizers` ignores their ids, and numbers those that the vocabulary lacks from its size on.
        vocab.insert((*text).into(), id.into());
        if matches!(*kind, CONTROL | USER_DEFINED | UNKNOWN) {
            added.push(json!({
                "id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": *kind != USER_DEFINED,
            }));
        }
    }
    (vocab, added)
}

/// The post-processor that adds a token before a text or one after it: their texts and ids.
fn post_processor([before, after]: [Option<(&str, u32)>; 2]) -> Option<Value> {
    before.or(after)?;
    let of = |text: &str, type_id: u32| {
        let token = |found: Option<(&str, u32)>| {
            found.map(|(id, _)| json!({ "SpecialToken": { "id": id, "type_id": type_id } }))
        };
        let sequence = json!({ "Sequence": { "id": text, "type_id": type_id } });
        token(before).into_iter().chain([sequence]).chain(token(after)).collect::<Vec<_>>()
    };
    let tokens = [before, after]
        .into_iter()
        .flatten()
        .map(|(text, id)| (text.into(), json!({ "id": text, "ids": [id], "tokens": [text] })));
    let pair = [of("A", 0), of("B", 1)].concat();
    Some(json!({
        "type": "TemplateProcessing",
        "single": of("A", 0),
        "pair": pair,
        "special_tokens": tokens.collect::<Map<String, Value>>(),
    }))
}

/// The parts of `tokenizer.json` that a byte-level vocabulary has, by their JSON pointers.
fn steps_of_byte_level(metadata: &Metadata<'_>) -> Result<Vec<(&'static str, Value)>, ConvertError> {
    let (pre, pre_tokenizer) = pre_tokenizers(metadata.str("tokenizer.ggml.pre")?.unwrap_or_default())?;
    // The tokens of a pair have no space: it is a letter of its own.
    let merges = texts(metadata, "tokenizer.ggml.merges")?;
    let merges: Vec<_> = merges.iter().filter_map(|merge| merge.split_once(' ')).collect();
    let normalizer = match pre {
        Pre::Qwen2 | Pre::Qwen35 => json!({ "type": "NFC" }),
        Pre::SmolLm | Pre::LlamaBpe | Pre::SmaugBpe | Pre::Gpt2 => Value::Null,
    };
    Ok(vec![
        ("/normalizer", normalizer),
        ("/pre_tokenizer", pre_tokenizer),
        ("/decoder", byte_level(true, true)),
        ("/model/ignore_merges", pre.keeps_whole_tokens().into()),
        ("/model/merges", json!(merges)),
    ])
}

/// The parts that one of SentencePiece has.
fn steps_of_sentencepiece(
    metadata: &Metadata<'_>,
    tokens: &[&str],
    types: &[i32],
    unknown: Option<&str>,
) -> Result<Vec<(&'static str, Value)>, ConvertError> {
    let parts = sentencepiece::parts(metadata, tokens, types)?;
    Ok(vec![
        ("/normalizer", parts.normalizer),
        ("/decoder", parts.decoder),
        ("/model/unk_token", unknown.into()),
        ("/model/fuse_unk", true.into()),
        ("/model/byte_fallback", true.into()),
        ("/model/merges", json!(parts.merges)),
    ])
}

/// The files of a folder with the tokenizer and the chat template of a GGUF file, whose texts begin with `bos` if that is not
/// `None`.
pub(crate) fn files(
    metadata: &Metadata<'_>,
    bos: Option<u32>,
) -> Result<Vec<(&'static str, String)>, ConvertError> {
    let tokens = texts(metadata, "tokenizer.ggml.tokens")?;
    let types: Vec<i32> = match metadata.i32s("tokenizer.ggml.token_type")? {
        Some(types) => types.collect(),
        None => vec![NORMAL; tokens.len()],
    };
    let (vocab, added) = tokens_of_folder(&tokens, &types);
    let unknown = types.iter().position(|kind| *kind == UNKNOWN).map(|id| tokens[id]);
    let is_sentencepiece = metadata.str("tokenizer.ggml.model")? == Some("llama");
    let steps = if is_sentencepiece {
        steps_of_sentencepiece(metadata, &tokens, &types, unknown)?
    } else {
        steps_of_byte_level(metadata)?
    };
    let special = special_ids(metadata)?;
    let token = |id: u32| tokens.get(id as usize).copied();
    let named =
        |name| special.iter().find(|(found, _)| *found == name).and_then(|(_, id)| Some((token(*id)?, *id)));
    // Without the key, it depends on the pre-tokenizer.
    let add_bos = metadata.bool("tokenizer.ggml.add_bos_token")?.or(bos.map(|_| true));
    let add_eos = metadata.bool("tokenizer.ggml.add_eos_token")?;
    let around =
        [("bos", add_bos), ("eos", add_eos)].map(|(name, add)| named(name).filter(|_| add == Some(true)));
    let mut root = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": null,
        "post_processor": post_processor(around).or((!is_sentencepiece).then(|| byte_level(false, false))),
        "decoder": null,
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": false,
            "vocab": vocab,
            "merges": [],
        },
    });
    for (pointer, value) in steps {
        if let Some(place) = root.pointer_mut(pointer) {
            *place = value;
        }
    }
    let mut settings = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": false,
    });
    for (key, add) in [("add_bos_token", add_bos), ("add_eos_token", add_eos)] {
        if let Some(add) = add {
            settings[key] = add.into();
        }
    }
    for (name, id) in &special {
        if let Some(text) = token(*id) {
            settings[format!("{name}_token")] = text.into();
        }
    }
    let mut files = vec![("tokenizer.json", pretty(&root)), ("tokenizer_config.json", pretty(&settings))];
    if let Some(template) = metadata.str("tokenizer.chat_template")? {
        files.push(("chat_template.jinja", template.into()));
    }
    let eos = metadata.u32("tokenizer.ggml.eos_token_id")?;
    let ends: Vec<u32> = [eos, metadata.u32(EOT)?, metadata.u32(EOM)?].into_iter().flatten().collect();
    if eos.is_some() && ends.len() > 1 {
        files.push(("generation_config.json", pretty(&json!({ "eos_token_id": ends }))));
    }
    Ok(files)
}
