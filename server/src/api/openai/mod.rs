//! OpenAI's interfaces.

mod chat;
mod completions;
mod embeddings;
pub(super) mod extras;
mod input;
mod responses;

pub(super) use input::{inputs, tokens};

#[cfg(test)]
pub(super) use completions::CompletionRequest;
#[cfg(test)]
pub(super) use responses::{ResponseWriter, ResponsesRequest};

use super::dialect::{Action, Dialect, ModelInfo, Route};
use crate::error::{ApiError, Fields};
use axum::http::StatusCode;
use serde_json::{Value, json};
use shohin::core::Error as CoreError;
use std::time::UNIX_EPOCH;

/// The last event of a stream.
const DONE: &str = "[DONE]";

/// Where a request for a chat completion has the options of a reply.
pub(in crate::api) const CHAT: Fields = Fields {
    stop: "stop",
    schema: "response_format.json_schema.schema",
    choices: "response_format.choices",
    pattern: "response_format.pattern",
    grammar: "response_format.grammar",
    tool: chat_schema,
};

/// Where a tool of Chat Completions has its schema: it may be the function itself.
fn chat_schema(tool: &str) -> &'static str {
    let tool: Value = serde_json::from_str(tool).unwrap_or_default();
    if tool.get("function").is_some() { "function.parameters" } else { "parameters" }
}

/// The dialect of the other paths below `/v1`.
pub(super) struct OpenAi;

impl Dialect for OpenAi {
    fn routes(&self) -> &'static [Route] {
        &[
            Route { path: "/v1/chat/completions", action: Action::Reply(chat::read) },
            Route {
                path: "/v1/responses",
                action: Action::Reply(|text, reading| {
                    Ok(responses::ResponsesRequest::parse(text, reading)?.into())
                }),
            },
            Route {
                path: "/v1/completions",
                action: Action::Reply(|text, reading| {
                    Ok(completions::CompletionRequest::parse(text, reading)?.into())
                }),
            },
            Route {
                path: "/v1/embeddings",
                action: Action::Embed(|text, reading| {
                    Ok(embeddings::EmbeddingsRequest::parse(text, reading)?.into())
                }),
            },
            Route { path: "/v1/models", action: Action::Models(list) },
            Route { path: "/v1/models/{*name}", action: Action::Model(describe) },
        ]
    }

    fn error(&self, error: &ApiError) -> Value {
        let (message, code, param) = (error.message(), code(error), error.field());
        json!({ "error": { "message": message, "type": kind(error), "param": param, "code": code } })
    }
}

/// What Anthropic's clients read is there, too.
fn list(models: &[ModelInfo]) -> Value {
    let name = |model: Option<&ModelInfo>| model.map(|model| model.name.clone());
    let (first, last) = (name(models.first()), name(models.last()));
    let data: Vec<Value> = models.iter().map(describe).collect();
    json!({ "object": "list", "data": data, "first_id": first, "last_id": last, "has_more": false })
}

fn describe(model: &ModelInfo) -> Value {
    let ModelInfo { name, parent, context, created, .. } = model;
    let seconds = created.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let created = humantime::format_rfc3339_seconds(*created).to_string();
    json!({
        "id": name, "object": "model", "created": seconds, "owned_by": "shohin", "parent": parent,
        "context_length": context,
        "type": "model", "display_name": name, "created_at": created, "max_input_tokens": context,
    })
}

/// The `code` of an error, where there is one.
fn code(error: &ApiError) -> Option<&'static str> {
    match error {
        ApiError::Model(
            shohin::Error::Engine(CoreError::ContextFull { .. }) | shohin::Error::LongText { .. },
        ) => Some("context_length_exceeded"),
        ApiError::UnknownModel { .. } => Some("model_not_found"),
        ApiError::Unauthorized => Some("invalid_api_key"),
        ApiError::Busy => Some("rate_limit_exceeded"),
        _ => None,
    }
}

/// The kind of an error, which stands in for its code if it has none.
fn kind(error: &ApiError) -> &'static str {
    match error.status() {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        status if status.is_server_error() => "server_error",
        _ => "invalid_request_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shohin::core::chat::ResponseFormat;

    #[test]
    fn schemas_of_tools_are_refused_by_their_place_in_the_request() {
        let bare = r#"{"name":"f","strict":true,"parameters":{"nullable":true}}"#;
        let wrapped = format!(r#"{{"type":"function","function":{bare}}}"#);
        for (tool, place) in
            [(bare, "tools[1].parameters"), (wrapped.as_str(), "tools[1].function.parameters")]
        {
            let options = shohin::TurnOptions {
                tools: vec![r#"{"name":"g"}"#.into(), tool.into()],
                ..shohin::TurnOptions::default()
            };
            let error = ApiError::from(options.grammar().unwrap_err());
            let error = error.in_request(&options, &CHAT);
            assert_eq!(error.status(), StatusCode::BAD_REQUEST);
            assert_eq!(error.field(), Some(format!("{place}/nullable")));
            let says = "of the function \"f\" is not supported; expected a schema without it";
            assert_eq!(error.message(), format!("{place}/nullable {says}"));
        }
    }

    #[test]
    fn an_expression_is_refused_by_its_field() {
        let response_format = ResponseFormat::Regex("a(b".into());
        let options = shohin::TurnOptions { response_format, ..shohin::TurnOptions::default() };
        let error = ApiError::from(options.grammar().unwrap_err()).in_request(&options, &CHAT);
        assert_eq!(error.field().as_deref(), Some("response_format.pattern"));
    }
}
