//! Types of tokens in GGUF, and the merges of `tokenizer.json`.

use crate::error::ConvertError;
use crate::json::wrong;
use serde_json::Value;

/// Formed by merges.
pub(crate) const NORMAL: i32 = 1;
/// What is in no vocabulary.
pub(crate) const UNKNOWN: i32 = 2;
/// In no text.
pub(crate) const CONTROL: i32 = 3;
/// Found in texts before anything is merged.
pub(crate) const USER_DEFINED: i32 = 4;
/// A row without a token.
pub(crate) const UNUSED: i32 = 5;
/// `<0xXX>`
pub(crate) const BYTE: i32 = 6;

/// The merges as `left right`.
pub(crate) fn merges(model: &Value) -> Result<Vec<String>, ConvertError> {
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
