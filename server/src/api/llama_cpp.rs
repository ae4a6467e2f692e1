//! What clients of llama.cpp's server ask for beside OpenAI's interface.

use super::dialect::{Action, Dialect, ModelInfo, Route};
use super::openai::{OpenAi, tokens};
use crate::error::ApiError;
use serde_json::{Value, json};
use shohin::Model;
use shohin::core::chat::fields::{Object, Reading, refused};
use shohin::core::tokenizer::Special;

/// The dialect of llama.cpp's own paths.
pub(super) struct LlamaCpp;

impl Dialect for LlamaCpp {
    fn routes(&self) -> &'static [Route] {
        &[
            Route { path: "/tokenize", action: Action::Convert(tokenize) },
            Route { path: "/detokenize", action: Action::Convert(detokenize) },
            Route { path: "/props", action: Action::Models(props) },
        ]
    }

    fn error(&self, error: &ApiError) -> Value {
        OpenAi.error(error)
    }
}

/// The tokens of a text. Without `add_special` none is added, and without `parse_special: false` control tokens are read.
fn tokenize(model: &Model, text: &str, reading: &Reading) -> Result<Value, ApiError> {
    let known = &["content", "add_special", "parse_special", "with_pieces", "model"];
    let given = Object::request_with(text, known, Some(reading))?;
    let content = given.string("content")?.ok_or_else(|| refused("content", "must be a text"))?;
    let parse = given.get("parse_special").is_none() || given.boolean("parse_special")?;
    let special = if parse { Special::Parse } else { Special::UserDefined };
    let tokenizer = model.tokenizer();
    let mut tokens = Vec::new();
    if given.boolean("add_special")? {
        tokens.extend(tokenizer.leading_bos());
    }
    tokenizer.encode(&content, special, &mut tokens);
    if !given.boolean("with_pieces")? {
        return Ok(json!({ "tokens": tokens }));
    }
    let piece = |id: &u32| {
        let bytes: Vec<u8> = tokenizer.token_bytes(*id).into_iter().flatten().collect();
        // A part of a character is told as its bytes.
        let piece = String::from_utf8(bytes).map_or_else(|error| json!(error.into_bytes()), Value::from);
        json!({ "id": id, "piece": piece })
    };
    Ok(json!({ "tokens": tokens.iter().map(piece).collect::<Vec<Value>>() }))
}

fn detokenize(model: &Model, text: &str, reading: &Reading) -> Result<Value, ApiError> {
    let given = Object::request_with(text, &["tokens", "model"], Some(reading))?;
    let field = given.get("tokens").ok_or_else(|| refused("tokens", "must be an array of tokens"))?;
    let tokens = tokens(&field)?;
    let text = model.detokenize(&tokens).map_err(|error| ApiError::from(error).at_field("tokens"))?;
    Ok(json!({ "content": text }))
}

fn props(models: &[ModelInfo]) -> Value {
    let Some((info, model)) = models.first().and_then(|info| Some((info, info.model.as_ref()?))) else {
        return json!({});
    };
    let token = |id: Option<u32>| {
        let bytes = id.and_then(|id| model.tokenizer().token_text(id)).unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    };
    json!({
        "default_generation_settings": { "n_ctx": info.context },
        "total_slots": info.slots, "model_path": info.name, "model_alias": info.name, "chat_template": "",
        "bos_token": token(model.tokenizer().bos()), "eos_token": token(model.tokenizer().eos()),
        "modalities": { "vision": false, "audio": false }, "build_info": concat!("shohin ", env!("CARGO_PKG_VERSION")),
    })
}
