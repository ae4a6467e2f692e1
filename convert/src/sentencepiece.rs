//! SentencePiece's BPE in `tokenizer.json`, as transformers writes it (`byte_fallback`), and in GGUF.
//!
//! A list of merges says which pairs become one, and in which order; SentencePiece has a score for each token, and merges any pair whose
//! joined text is a token. They are the same if the list has every such pair, token by token: the scores are then the numbers
//! of the tokens in the list, negative.

use crate::error::ConvertError;
use crate::json::{present, string, wrong};
use crate::vocabulary::{BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, merges};
use serde_json::{Value, json};
use shohin_core::gguf::{GgufWriter, Metadata};
use std::collections::{HashMap, HashSet};

/// The character for a space.
const SPACE: &str = "\u{2581}";

/// The scores that llama.cpp's converter gives to added tokens and to rows without a token.
const ADDED_SCORE: f32 = -1000.0;
const UNUSED_SCORE: f32 = -10_000.0;

/// Steps to find the pairs of all tokens: a quarter of a second.
const MOST_STEPS: usize = 1 << 30;

/// Whether a model of `tokenizer.json` is one of SentencePiece.
pub(crate) fn is_model(model: &Value) -> bool {
    model.get("byte_fallback") == Some(&Value::Bool(true))
}

/// Whether a token is `<0xXX>`.
fn is_byte(text: &str) -> bool {
    let digits = text.strip_prefix("<0x").and_then(|text| text.strip_suffix('>'));
    digits.is_some_and(|d| d.len() == 2 && d.bytes().all(|b| matches!(b, b'0'..=b'9' | b'A'..=b'F')))
}

/// Sets the keys of a vocabulary with these tokens, as llama.cpp's converter does with `tokenizer.model`.
pub(crate) fn write(
    root: &Value,
    model: &Value,
    texts: &[Option<&str>],
    mut types: Vec<i32>,
    w: &mut GgufWriter,
) -> Result<(), ConvertError> {
    let prefix = space_prefix(root)?;
    check_decoder(root)?;
    if let Some(value) = present(model, "ignore_merges").filter(|value| **value != Value::Bool(false)) {
        return Err(wrong("model.ignore_merges", Some(value), "false, with byte_fallback"));
    }
    let unknown = string(model, "unk_token")?;
    for (text, kind) in texts.iter().zip(&mut types) {
        let Some(text) = *text else { continue };
        *kind = match *kind {
            NORMAL if is_byte(text) => BYTE,
            NORMAL | CONTROL if Some(text) == unknown => UNKNOWN,
            USER_DEFINED if seems_control(text) => CONTROL,
            kind => kind,
        };
    }
    let scores = scores(model, texts, &types)?;
    let name = |(id, text): (usize, &Option<&str>)| match *text {
        Some(text) if types[id] == USER_DEFINED => text.replace(SPACE, " "),
        Some(text) => text.into(),
        None => format!("[PAD{id}]"),
    };
    let names: Vec<String> = texts.iter().enumerate().map(name).collect();
    w.set("tokenizer.ggml.model", "llama")?;
    w.set("tokenizer.ggml.pre", "default")?;
    w.set_strings("tokenizer.ggml.tokens", &names)?;
    w.set_array("tokenizer.ggml.scores", &scores)?;
    w.set_array("tokenizer.ggml.token_type", &types)?;
    w.set("tokenizer.ggml.add_space_prefix", prefix)?;
    Ok(())
}

/// Whether llama.cpp's converter takes an added token for a control token, whatever the folder says.
fn seems_control(text: &str) -> bool {
    ["<pad>", "<mask>"].contains(&text)
        || text.starts_with("<unused")
        || text.starts_with("<|") && text.ends_with("|>")
}

/// The steps of a component, which may be a sequence of them.
fn steps<'v>(root: &'v Value, key: &str, list: &str) -> Vec<&'v Value> {
    match present(root, key) {
        None => Vec::new(),
        Some(one) => match one.get(list).and_then(Value::as_array) {
            Some(all) => all.iter().collect(),
            None => vec![one],
        },
    }
}

fn kind(step: &Value) -> Option<&str> {
    step.get("type")?.as_str()
}

/// Whether a space goes before texts: by a normalizer (Llama 2), or by the pre-tokenizer `Metaspace`; Gemma has neither.
fn space_prefix(root: &Value) -> Result<bool, ConvertError> {
    let (mut prepends, mut replaces) = (false, false);
    for step in steps(root, "normalizer", "normalizers") {
        let text = |key: &str| step.get(key).and_then(Value::as_str);
        let pattern = step.get("pattern").and_then(|pattern| pattern.get("String")?.as_str());
        match kind(step) {
            Some("Prepend") if text("prepend") == Some(SPACE) && !prepends && !replaces => prepends = true,
            Some("Replace") if pattern == Some(" ") && text("content") == Some(SPACE) => replaces = true,
            _ => {
                let expected = "that of Gemma or Llama 2: U+2581 before texts and for spaces";
                return Err(wrong("normalizer", Some(step), expected));
            }
        }
    }
    let pre = present(root, "pre_tokenizer");
    let refused = || wrong("pre_tokenizer", pre, "none, Metaspace that does not split, or a split at spaces");
    let Some(step) = pre else {
        return if replaces {
            Ok(prepends)
        } else {
            Err(wrong("normalizer", present(root, "normalizer"), "U+2581 for spaces"))
        };
    };
    let is = |key: &str, value: Value| step.get(key) == Some(&value);
    match kind(step) {
        // Nothing is left to split at.
        Some("Split") if replaces && step.get("pattern") == Some(&json!({ "String": " " })) => Ok(prepends),
        Some("Metaspace") if is("replacement", json!(SPACE)) && is("split", json!(false)) && !prepends => {
            match (string(step, "prepend_scheme")?, step.get("add_prefix_space")) {
                (Some("never"), _) | (None, Some(Value::Bool(false))) => Ok(false),
                // GGUF has no key for a space at the start only, not after added tokens.
                (Some("first" | "always"), _) | (None, Some(Value::Bool(true))) => Ok(true),
                _ => Err(refused()),
            }
        }
        _ => Err(refused()),
    }
}

/// Refuses steps that would give other texts than SentencePiece.
fn check_decoder(root: &Value) -> Result<(), ConvertError> {
    for step in steps(root, "decoder", "decoders") {
        match kind(step) {
            Some("Replace" | "ByteFallback" | "Fuse" | "Strip" | "Metaspace") => {}
            _ => {
                let expected = "Replace, ByteFallback, Fuse, Strip or Metaspace";
                return Err(wrong("decoder", Some(step), expected));
            }
        }
    }
    Ok(())
}

/// Where a token can be cut in two.
fn cuts(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.char_indices().skip(1).map(|(at, _)| text.split_at(at))
}

/// The number of steps that all cuts of these tokens take, if that is not too many.
fn check_steps<'t>(mut texts: impl Iterator<Item = &'t str>) -> Result<(), ConvertError> {
    let total = texts.try_fold(0usize, |total, text| total.checked_add(text.len().checked_mul(text.len())?));
    match total {
        Some(total) if total <= MOST_STEPS => Ok(()),
        _ => Err(ConvertError::Value {
            key: "model.vocab".into(),
            found: "of long tokens".into(),
            expected: "tokens of a word or so",
        }),
    }
}

/// The score of each token, from the order of the merges.
fn scores(model: &Value, texts: &[Option<&str>], types: &[i32]) -> Result<Vec<f32>, ConvertError> {
    let all = texts.iter().zip(types).enumerate();
    let all = all.filter_map(|(id, (text, kind))| Some((id, (*text)?, *kind)));
    let ids: HashMap<&str, usize> = all.clone().map(|(id, text, _)| (text, id)).collect();
    let normal = all.filter(|(_, _, kind)| *kind == NORMAL);
    check_steps(normal.clone().map(|(_, text, _)| text))?;
    let refused = |left: &str, right: &str, expected| {
        Err(ConvertError::Value {
            key: "model.merges".into(),
            found: format!("{left:?} {right:?}"),
            expected,
        })
    };

    let mut found: HashSet<(usize, usize)> = HashSet::new();
    let mut ranks: Vec<Option<usize>> = vec![None; texts.len()];
    let mut products = 0;
    for merge in &merges(model)? {
        let id = |text: &str| ids.get(text).copied();
        // A token may have a space itself.
        let mut parts = merge.match_indices(' ').map(|(at, _)| (&merge[..at], &merge[at + 1..]));
        let known = parts.find_map(|(left, right)| {
            Some(((left, id(left)?), (right, id(right)?), id(&[left, right].concat())?))
        });
        let Some(((left_text, left), (right_text, right), product)) = known else {
            return refused(merge, "", "two tokens that make a third, with a space between");
        };
        let kinds = [left, right, product].map(|id| types[id]);
        if kinds.iter().any(|kind| [BYTE, UNKNOWN].contains(kind)) {
            return refused(left_text, right_text, "no tokens of bytes");
        }
        // Added tokens are found before anything is merged.
        if kinds.iter().any(|kind| *kind != NORMAL) || !found.insert((left, right)) {
            continue;
        }
        match ranks[product] {
            None => {
                ranks[product] = Some(products);
                products += 1;
            }
            Some(rank) if rank + 1 == products => {}
            Some(_) => {
                return refused(left_text, right_text, "all pairs of a token one after another");
            }
        }
    }

    for (_, text, _) in normal {
        for (left, right) in cuts(text) {
            let pair = ids.get(left).zip(ids.get(right)).map(|(left, right)| (*left, *right));
            let Some((a, b)) = pair.filter(|(a, b)| types[*a] == NORMAL && types[*b] == NORMAL) else {
                continue;
            };
            if !found.contains(&(a, b)) {
                return Err(ConvertError::Value {
                    key: "model.merges".into(),
                    found: format!("without {left:?} {right:?}"),
                    expected: "every pair of tokens that makes another one, as SentencePiece merges them",
                });
            }
        }
    }
    // Characters come after everything that is made of them.
    let mut next = products;
    let scores = ranks.iter().zip(types).map(|(rank, kind)| match (*kind, rank) {
        (NORMAL, Some(rank)) => -(*rank as f32),
        (NORMAL, None) => {
            next += 1;
            -((next - 1) as f32)
        }
        (USER_DEFINED, _) => ADDED_SCORE,
        (UNUSED, _) => UNUSED_SCORE,
        _ => 0.0,
    });
    Ok(scores.collect())
}

/// What `tokenizer.json` has beside the tokens: `model` without them, and the steps before and after it.
pub(crate) struct Parts {
    pub(crate) normalizer: Value,
    pub(crate) decoder: Value,
    pub(crate) merges: Vec<[String; 2]>,
}

/// The parts of `tokenizer.json` for the scores of a GGUF file.
pub(crate) fn parts(metadata: &Metadata<'_>, tokens: &[&str], types: &[i32]) -> Result<Parts, ConvertError> {
    let key = "tokenizer.ggml.scores";
    let scores: Vec<f32> = metadata.need(key, metadata.f32s(key)?)?.collect();
    let prefix = metadata.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let all = tokens.iter().zip(types).zip(&scores).enumerate();
    let mut normal: Vec<(f32, &str)> = all
        .filter(|(_, ((text, kind), _))| **kind == NORMAL && !is_byte(text))
        .map(|(_, ((text, _), score))| (*score, *text))
        .collect();
    check_steps(normal.iter().map(|(_, text)| *text))?;
    // Equal scores stay in the order of ids.
    normal.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let known: HashSet<&str> = normal.iter().map(|(_, text)| *text).collect();
    let merges = normal.iter().flat_map(|(_, text)| {
        cuts(text).filter(|(left, right)| known.contains(left) && known.contains(right))
    });
    let merges = merges.map(|(left, right)| [left.to_owned(), right.to_owned()]).collect();

    let replace =
        |from: &str, to: &str| json!({ "type": "Replace", "pattern": { "String": from }, "content": to });
    let mut normalizers = vec![replace(" ", SPACE)];
    let mut decoders =
        vec![replace(SPACE, " "), json!({ "type": "ByteFallback" }), json!({ "type": "Fuse" })];
    if prefix {
        normalizers.insert(0, json!({ "type": "Prepend", "prepend": SPACE }));
        decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    Ok(Parts {
        normalizer: json!({ "type": "Sequence", "normalizers": normalizers }),
        decoder: json!({ "type": "Sequence", "decoders": decoders }),
        merges,
    })
}
