//! Why a request is refused or fails. Interfaces write it in their forms.

use axum::http::StatusCode;
use shohin::TurnOptions;
use shohin::core::chat::ResponseFormat;
use shohin::core::constrain::{Grammar, NO_VALUE};
use shohin::core::generate::EMPTY_STOP;
use shohin::core::{Error as CoreError, Name};

/// Why a request is refused or fails.
#[derive(Debug)]
pub(crate) enum ApiError {
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
    UnknownModel { asked: String, have: String, adapted: Vec<String> },
    /// It names an adapter that is not loaded.
    UnknownAdapter { asked: String, have: Vec<String> },
    /// It loads an adapter, but no folder is set of which.
    NoFolder,
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
    /// All permits are taken.
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

/// Where the requests of an interface have the options of a reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields {
    /// The texts that end it.
    pub(crate) stop: &'static str,
    /// The JSON Schema that it follows.
    pub(crate) schema: &'static str,
    /// The texts that it may be.
    pub(crate) choices: &'static str,
    /// The regular expression that it matches.
    pub(crate) pattern: &'static str,
    /// Its grammar.
    pub(crate) grammar: &'static str,
    /// The schema of a tool, within it.
    pub(crate) tool: fn(&str) -> &'static str,
}

/// Options of sampling whose names are those of their fields.
const SAMPLING: [&str; 11] = [
    "temperature",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "penalty_last_n",
];

impl ApiError {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            ApiError::Model(shohin::Error::Engine(CoreError::Memory { .. })) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            ApiError::Model(shohin::Error::Engine(CoreError::Device { .. } | CoreError::Logits { .. })) => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
            ApiError::Model(_)
            | ApiError::ToolSchema { .. }
            | ApiError::Field { .. }
            | ApiError::Option(_)
            | ApiError::Encoding => StatusCode::BAD_REQUEST,
            ApiError::Body(status, _) => *status,
            ApiError::UnknownModel { .. } | ApiError::UnknownAdapter { .. } | ApiError::NotFound(_) => {
                StatusCode::NOT_FOUND
            }
            ApiError::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            ApiError::Unauthorized => StatusCode::UNAUTHORIZED,
            ApiError::Origin(_) | ApiError::Host(_) | ApiError::NoFolder => StatusCode::FORBIDDEN,
            ApiError::Busy => StatusCode::TOO_MANY_REQUESTS,
            ApiError::TimedOut => StatusCode::GATEWAY_TIMEOUT,
            ApiError::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
            ApiError::Device(_) | ApiError::Stopped => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    pub(crate) fn message(&self) -> String {
        match self {
            ApiError::Model(error) => error.to_string(),
            ApiError::ToolSchema { place, function, expected } => {
                format!("{place} of the function {function:?} is not supported; expected {expected}")
            }
            ApiError::Field { problem, .. } => problem.clone(),
            ApiError::Option(error) => error.to_string(),
            ApiError::Encoding => "the request is not UTF-8".into(),
            ApiError::Body(_, problem) | ApiError::Device(problem) => problem.clone(),
            ApiError::UnknownModel { asked, have, adapted } => {
                let adapted: String = adapted.iter().map(|name| format!(" or {name:?}")).collect();
                format!("the model {asked:?} is not here, expected {have:?}{adapted}")
            }
            ApiError::UnknownAdapter { asked, have } => {
                format!("the adapter {asked:?} is not loaded, expected one of {have:?}")
            }
            ApiError::NoFolder => {
                "adapters cannot be loaded by request, expected a server with --lora-dir".into()
            }
            ApiError::NotFound(path) => format!("there is nothing at {path}"),
            ApiError::Method(path) => format!("{path} has no such method"),
            ApiError::Unauthorized => {
                "expected the header \"Authorization: Bearer\" or \"x-api-key\" with the server's key".into()
            }
            ApiError::Origin(origin) => {
                format!("pages of {origin:?} may not ask; the server's --cors names those that may")
            }
            ApiError::Host(host) => {
                format!(
                    "without --api-key the server is not asked by the name {host:?}, expected its address or localhost"
                )
            }
            ApiError::Busy => "all places in the queue are taken; ask again later".into(),
            ApiError::TimedOut => "the request took longer than the server allows".into(),
            ApiError::ShuttingDown => "the server is shutting down".into(),
            ApiError::Stopped => "the model has stopped; the server must be started again".into(),
        }
    }

    /// The field of the request that is wrong.
    pub(crate) fn field(&self) -> Option<String> {
        match self {
            // The request itself, which is no field.
            ApiError::Model(shohin::Error::Engine(CoreError::Argument { name, .. }))
                if name.to_string() == "request" =>
            {
                None
            }
            ApiError::Model(shohin::Error::Engine(CoreError::Argument { name, .. })) => {
                Some(name.to_string())
            }
            ApiError::Model(shohin::Error::Engine(CoreError::Unsupported { key, .. })) => {
                Some(key.to_string())
            }
            ApiError::Model(shohin::Error::Engine(CoreError::Option { what, .. })) => Some((*what).into()),
            ApiError::ToolSchema { place, .. } | ApiError::Field { place, .. } => Some(place.clone()),
            ApiError::UnknownModel { .. } => Some("model".into()),
            _ => None,
        }
    }

    /// The same failure, of a field whose whole place this is.
    pub(crate) fn at(self, whole: &str) -> ApiError {
        let ApiError::Model(shohin::Error::Engine(
            CoreError::Argument { name, .. } | CoreError::Unsupported { key: name, .. },
        )) = &self
        else {
            return self;
        };
        let name = name.to_string();
        match (name.strip_suffix("..."), self.message().strip_prefix(&name)) {
            (Some(begin), Some(rest)) if whole.starts_with(begin) => {
                ApiError::Field { place: whole.into(), problem: format!("{whole}{rest}") }
            }
            _ => self,
        }
    }

    /// The same failure, of this field.
    pub(crate) fn at_field(self, place: &str) -> ApiError {
        ApiError::Field { place: place.into(), problem: format!("{place}: {}", self.message()) }
    }

    /// The same failure, of a reply with these options, by the fields of its request.
    pub(crate) fn in_request(self, options: &TurnOptions, fields: &Fields) -> ApiError {
        let ApiError::Model(shohin::Error::Engine(error)) = self else { return self };
        let at = |place: &str| ApiError::Field { place: place.into(), problem: error.to_string() };
        let named = |name: &Name, place: &str| {
            let problem = error.to_string();
            let rest = problem.strip_prefix(&name.to_string()).unwrap_or(&problem);
            ApiError::Field { place: place.into(), problem: format!("{place}{rest}") }
        };
        match &error {
            CoreError::ToolSchema { index, key, expected } => {
                let tool = options.tools.get(*index as usize).map_or("", String::as_str);
                let function = shohin::core::chat::function_name(tool).unwrap_or_default();
                let holder = (fields.tool)(tool);
                // Of a long pointer the error has the end only.
                let key = Grammar::unsupported_in_tool(tool).unwrap_or_else(|| key.to_string());
                ApiError::ToolSchema { place: format!("tools[{index}].{holder}{key}"), function, expected }
            }
            CoreError::Argument { name, .. } | CoreError::Unsupported { key: name, .. } => {
                match name.to_string().as_str() {
                    "choices" => named(name, fields.choices),
                    "regex" => named(name, fields.pattern),
                    "grammar" => named(name, fields.grammar),
                    "tool_choice" => named(name, "tool_choice"),
                    // The beginning of the reply is the last message.
                    "continue_final_message" => named(name, "messages"),
                    // A JSON pointer, whose beginning may be left out.
                    key if key.starts_with('/') || key.starts_with("...") => {
                        let whole = match &options.response_format {
                            ResponseFormat::JsonSchema(schema) => Grammar::unsupported_in(schema),
                            _ => None,
                        };
                        let pointer = whole.as_deref().unwrap_or(key);
                        named(name, &format!("{}{pointer}", fields.schema))
                    }
                    _ => ApiError::Option(error),
                }
            }
            CoreError::Regex { .. } => at(fields.pattern),
            CoreError::Grammar { .. } => at(fields.grammar),
            CoreError::Option { what: EMPTY_STOP, .. } => at(fields.stop),
            CoreError::Option { what: NO_VALUE, .. }
                if options.tools.is_empty()
                    && matches!(options.response_format, ResponseFormat::JsonSchema(_)) =>
            {
                at(fields.schema)
            }
            CoreError::Option { what, .. } if SAMPLING.contains(what) => error.into(),
            CoreError::Option { .. } => ApiError::Option(error),
            _ => error.into(),
        }
    }
}

impl From<CoreError> for ApiError {
    fn from(error: CoreError) -> Self {
        ApiError::Model(error.into())
    }
}

impl From<shohin::Error> for ApiError {
    fn from(error: shohin::Error) -> Self {
        ApiError::Model(error)
    }
}
