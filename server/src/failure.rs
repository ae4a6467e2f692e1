//! Why a request is refused or fails, in the form of OpenAI's errors or of Anthropic's.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use shohin::TurnOptions;
use shohin::core::chat::ResponseFormat;
use shohin::core::{Error as CoreError, Name};

/// Why a request is refused or fails.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The request is invalid, or does not fit the model.
    Model(shohin::Error),
    /// The schema of a tool that must be followed has something unsupported.
    ToolSchema { place: String, function: String, expected: &'static str },
    /// A field of the request is invalid, by its place there.
    Field { place: String, problem: String },
    /// An option of a reply that no field is for is invalid.
    Option(CoreError),
    /// It is not UTF-8.
    Encoding,
    /// Its body could not be read, or is too long.
    Body(StatusCode, String),
    /// It names another model.
    UnknownModel { asked: String, have: String },
    /// There is nothing at its path.
    NotFound(String),
    /// There is something at its path, but not for its method.
    Method(String),
    /// It has no key, or another one.
    Unauthorized,
    /// It comes from a page of another origin.
    Origin(String),
    /// It is for a name that anyone may have given this machine's address.
    Host(String),
    /// All places are taken.
    Busy,
    /// It has taken longer than the server allows.
    TimedOut,
    /// The server is shutting down.
    ShuttingDown,
    /// The device failed.
    Device(String),
    /// The thread that computes has ended.
    Stopped,
}

/// Whose errors an answer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    OpenAi,
    Anthropic,
}

impl Style {
    /// The style of errors at this path.
    pub(crate) fn of(path: &str) -> Style {
        let messages = path == "/v1/messages" || path.starts_with("/v1/messages/");
        if messages { Style::Anthropic } else { Style::OpenAi }
    }
}

/// Where the requests of an interface have what a reply is asked with.
pub(crate) struct Fields {
    /// The texts that end it.
    pub(crate) stop: &'static str,
    /// The JSON Schema that it follows.
    pub(crate) schema: &'static str,
    /// The schema of a tool, within it.
    pub(crate) tool: fn(&str) -> &'static str,
}

pub(crate) const CHAT: Fields =
    Fields { stop: "stop", schema: "response_format.json_schema.schema", tool: chat_schema };
pub(crate) const RESPONSES: Fields =
    Fields { stop: "stop", schema: "text.format.schema", tool: |_| "parameters" };
/// Without a format of the reply.
pub(crate) const MESSAGES: Fields = Fields { stop: "stop_sequences", tool: |_| "input_schema", ..CHAT };
/// Without tools.
pub(crate) const COMPLETIONS: Fields = CHAT;

/// Options of sampling whose names are those of their fields.
const SAMPLING: [&str; 4] = ["temperature", "top_p", "presence_penalty", "frequency_penalty"];

/// What [`CoreError::Option`] says of a schema that no value matches.
const NO_VALUE: &str = "number of values the schema allows";

/// What it says of a text that ends a reply and is empty.
const EMPTY_STOP: &str = "length of a stop string";

/// Where a tool of Chat Completions has its schema: it may be the function itself.
fn chat_schema(tool: &str) -> &'static str {
    let tool: Value = serde_json::from_str(tool).unwrap_or_default();
    if tool.get("function").is_some() { "function.parameters" } else { "parameters" }
}

/// A client that is refused may ask again after this many seconds.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// How a client that has no key gives it.
const BEARER: HeaderValue = HeaderValue::from_static("Bearer");

impl Failure {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Failure::Model(shohin::Error::Engine(CoreError::Memory { .. })) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Failure::Model(shohin::Error::Engine(CoreError::Device { .. } | CoreError::Logits { .. })) => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
            Failure::Model(_)
            | Failure::ToolSchema { .. }
            | Failure::Field { .. }
            | Failure::Option(_)
            | Failure::Encoding => StatusCode::BAD_REQUEST,
            Failure::Body(status, _) => *status,
            Failure::UnknownModel { .. } | Failure::NotFound(_) => StatusCode::NOT_FOUND,
            Failure::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            Failure::Unauthorized => StatusCode::UNAUTHORIZED,
            Failure::Origin(_) | Failure::Host(_) => StatusCode::FORBIDDEN,
            Failure::Busy => StatusCode::TOO_MANY_REQUESTS,
            Failure::TimedOut => StatusCode::GATEWAY_TIMEOUT,
            Failure::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
            Failure::Device(_) | Failure::Stopped => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    pub(crate) fn message(&self) -> String {
        match self {
            Failure::Model(error) => error.to_string(),
            Failure::ToolSchema { place, function, expected } => {
                format!("{place} of the function {function:?} is not supported; expected {expected}")
            }
            Failure::Field { problem, .. } => problem.clone(),
            Failure::Option(error) => error.to_string(),
            Failure::Encoding => "the request is not UTF-8".into(),
            Failure::Body(_, problem) | Failure::Device(problem) => problem.clone(),
            Failure::UnknownModel { asked, have } => {
                format!("the model {asked:?} is not here, expected {have:?}")
            }
            Failure::NotFound(path) => format!("there is nothing at {path}"),
            Failure::Method(path) => format!("{path} has no such method"),
            Failure::Unauthorized => {
                "expected the header \"Authorization: Bearer\" or \"x-api-key\" with the server's key".into()
            }
            Failure::Origin(origin) => {
                format!("pages of {origin:?} may not ask; the server's --cors names those that may")
            }
            Failure::Host(host) => {
                format!(
                    "without --api-key the server is not asked by the name {host:?}, expected its address or localhost"
                )
            }
            Failure::Busy => "all places in the queue are taken; ask again later".into(),
            Failure::TimedOut => "the request took longer than the server allows".into(),
            Failure::ShuttingDown => "the server is shutting down".into(),
            Failure::Stopped => "the model has stopped; the server must be started again".into(),
        }
    }

    /// OpenAI's `code`, where it has one.
    pub(crate) fn code(&self) -> Option<&'static str> {
        match self {
            Failure::Model(
                shohin::Error::Engine(CoreError::ContextFull { .. }) | shohin::Error::LongText { .. },
            ) => Some("context_length_exceeded"),
            Failure::UnknownModel { .. } => Some("model_not_found"),
            Failure::Unauthorized => Some("invalid_api_key"),
            Failure::Busy => Some("rate_limit_exceeded"),
            _ => None,
        }
    }

    /// The field of the request that is wrong.
    fn field(&self) -> Option<String> {
        match self {
            // The request itself, which is no field.
            Failure::Model(shohin::Error::Engine(CoreError::Argument { name, .. }))
                if name.to_string() == "request" =>
            {
                None
            }
            Failure::Model(shohin::Error::Engine(CoreError::Argument { name, .. })) => Some(name.to_string()),
            Failure::Model(shohin::Error::Engine(CoreError::Unsupported { key, .. })) => {
                Some(key.to_string())
            }
            Failure::Model(shohin::Error::Engine(CoreError::Option { what, .. })) => Some((*what).into()),
            Failure::ToolSchema { place, .. } | Failure::Field { place, .. } => Some(place.clone()),
            Failure::UnknownModel { .. } => Some("model".into()),
            _ => None,
        }
    }

    /// The same failure, of a reply with these options, by the fields of its request.
    pub(crate) fn in_request(self, options: &TurnOptions, fields: &Fields) -> Failure {
        let Failure::Model(shohin::Error::Engine(error)) = self else { return self };
        let at = |place: &str| Failure::Field { place: place.into(), problem: error.to_string() };
        let named = |name: &Name, place: &str| {
            let problem = error.to_string();
            let rest = problem.strip_prefix(&name.to_string()).unwrap_or(&problem);
            Failure::Field { place: place.into(), problem: format!("{place}{rest}") }
        };
        match &error {
            CoreError::ToolSchema { index, key, expected } => {
                let tool = options.tools.get(*index as usize).map_or("", String::as_str);
                let function = shohin::core::chat::function_name(tool).unwrap_or_default();
                let holder = (fields.tool)(tool);
                Failure::ToolSchema { place: format!("tools[{index}].{holder}{key}"), function, expected }
            }
            CoreError::Argument { name, .. } | CoreError::Unsupported { key: name, .. } => {
                match name.to_string().as_str() {
                    "choices" => named(name, "response_format.choices"),
                    "regex" => named(name, "response_format.pattern"),
                    "grammar" => named(name, "response_format.grammar"),
                    "tool_choice" => named(name, "tool_choice"),
                    // The beginning of the reply is the last message.
                    "continue_final_message" => named(name, "messages"),
                    // A JSON pointer, whose beginning may be left out.
                    key if key.starts_with('/') || key.starts_with("...") => {
                        named(name, &format!("{}{key}", fields.schema))
                    }
                    _ => Failure::Option(error),
                }
            }
            CoreError::Regex { .. } => at("response_format.pattern"),
            CoreError::Grammar { .. } => at("response_format.grammar"),
            CoreError::Option { what: EMPTY_STOP, .. } => at(fields.stop),
            CoreError::Option { what: NO_VALUE, .. }
                if options.tools.is_empty()
                    && matches!(options.response_format, ResponseFormat::JsonSchema(_)) =>
            {
                at(fields.schema)
            }
            CoreError::Option { what, .. } if SAMPLING.contains(what) => error.into(),
            CoreError::Option { .. } => Failure::Option(error),
            _ => error.into(),
        }
    }

    /// The body of the answer.
    pub(crate) fn json(&self, style: Style) -> Value {
        match style {
            Style::OpenAi => self.openai(),
            Style::Anthropic => self.anthropic(),
        }
    }

    /// Anthropic's types go by the status.
    fn anthropic(&self) -> Value {
        let kind = match self.status() {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::GATEWAY_TIMEOUT => "timeout_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            status if status.is_server_error() => "api_error",
            _ => "invalid_request_error",
        };
        let mut answer = json!({ "type": "error", "error": { "type": kind, "message": self.message() } });
        // Anthropic's clients then send whole conversations.
        if self.field().as_deref() == Some("thread") {
            answer["error"]["details"] =
                json!({ "error_code": "thread_unsupported_request", "unsupported": ["thread"] });
        }
        answer
    }

    /// The kind of an error in OpenAI's form, which stands in for its code if it has none.
    pub(crate) fn kind(&self) -> &'static str {
        match self.status() {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    fn openai(&self) -> Value {
        let (message, code, param) = (self.message(), self.code(), self.field());
        json!({ "error": { "message": message, "type": self.kind(), "param": param, "code": code } })
    }
}

impl From<CoreError> for Failure {
    fn from(error: CoreError) -> Self {
        Failure::Model(error.into())
    }
}

impl From<shohin::Error> for Failure {
    fn from(error: shohin::Error) -> Self {
        Failure::Model(error)
    }
}

impl Failure {
    /// The answer, in this style.
    pub(crate) fn answer(&self, style: Style) -> Response {
        let mut response = (self.status(), axum::Json(self.json(style))).into_response();
        let headers = response.headers_mut();
        match self {
            Failure::Busy | Failure::ShuttingDown => drop(headers.insert(header::RETRY_AFTER, RETRY_AFTER)),
            Failure::Unauthorized => drop(headers.insert(header::WWW_AUTHENTICATE, BEARER)),
            _ => {}
        }
        response
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        self.answer(Style::OpenAi)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let failure = Failure::from(options.grammar().unwrap_err());
            let failure = failure.in_request(&options, &CHAT);
            assert_eq!(failure.status(), StatusCode::BAD_REQUEST);
            let error = &failure.json(Style::OpenAi)["error"];
            assert_eq!(error["param"], format!("{place}/nullable"));
            let says = "of the function \"f\" is not supported; expected a schema without it";
            assert_eq!(error["message"], format!("{place}/nullable {says}"));
        }
    }

    #[test]
    fn an_expression_is_refused_by_its_field() {
        let response_format = shohin::core::chat::ResponseFormat::Regex("a(b".into());
        let options = shohin::TurnOptions { response_format, ..shohin::TurnOptions::default() };
        let failure = Failure::from(options.grammar().unwrap_err()).in_request(&options, &CHAT);
        assert_eq!(failure.json(Style::OpenAi)["error"]["param"], "response_format.pattern");
    }
}
