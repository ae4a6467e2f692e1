//! What a host can ask of a reply.
#![forbid(unsafe_code)]

use crate::constrain::Grammar;
use crate::error::{Error, Name, Result};
use crate::json;
use crate::sample::SamplerConfig;
use alloc::string::String;
use alloc::vec::Vec;

/// Whether a model that can think does so before it answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Thinking {
    /// It answers at once.
    #[default]
    Off,
    /// As long as it likes.
    On,
    /// For so many tokens; then the end of its thoughts is put in.
    Budget(usize),
}

impl Thinking {
    /// Whether it may think at all.
    pub const fn allowed(self) -> bool {
        match self {
            Thinking::Off => false,
            Thinking::On => true,
            Thinking::Budget(tokens) => tokens > 0,
        }
    }

    pub(super) const fn budget(self) -> usize {
        match self {
            Thinking::Off | Thinking::On => usize::MAX,
            Thinking::Budget(tokens) => tokens,
        }
    }
}

/// Which tools the model may call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// It must call at least one.
    Required,
    /// It must call the function of this name.
    Function(String),
}

/// The form of a reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ResponseFormat {
    /// Any text.
    #[default]
    Text,
    /// A JSON object.
    JsonObject,
    /// A JSON value that satisfies this JSON Schema.
    JsonSchema(String),
}

/// What to do with a conversation that is longer than the session can hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverflowPolicy {
    /// A prompt that does not fit is an error; a reply ends with
    /// [`Reason::ContextFull`](crate::generate::Reason::ContextFull).
    #[default]
    Error,
    /// Drops the oldest exchanges, never system messages nor the last message, and computes the rest anew.
    Trim {
        /// Tokens to keep free for the reply; counts for half of the context at most.
        reserve: usize,
        /// Once something must go: tokens to free, so that the next turns fit too; half of the context at most.
        free: usize,
    },
    /// Drops the older half of the tokens after the first `keep`, as often as need be.
    Shift {
        /// Tokens that are never dropped; fewer than the session can hold. `None` keeps all system messages, at
        /// least the first four tokens and at most half of the context.
        keep: Option<usize>,
    },
}

/// How to reply.
#[derive(Clone, Debug, PartialEq)]
pub struct TurnOptions {
    /// How tokens are chosen.
    pub sampler: SamplerConfig,
    /// Whether the random sequence begins at the sampler's seed, so that the same request has the same reply. If
    /// not, it goes on from the turn before.
    pub reseed: bool,
    /// Most tokens to generate.
    pub max_tokens: Option<usize>,
    /// Texts that end the reply. They are not part of it.
    pub stop_strings: Vec<String>,
    /// Measure log-probabilities, with so many of the most likely tokens.
    pub logprobs: Option<usize>,
    /// Whether the model may think.
    pub thinking: Thinking,
    /// Descriptions of the functions that the model may call, each a JSON text.
    pub tools: Vec<String>,
    /// Which of them.
    pub tool_choice: ToolChoice,
    /// What the reply must be.
    pub response_format: ResponseFormat,
    /// What to do when the session is full.
    pub overflow: OverflowPolicy,
    /// Most prompt tokens to decode in one step.
    pub batch: usize,
}

impl Default for TurnOptions {
    fn default() -> Self {
        TurnOptions {
            sampler: SamplerConfig::default(),
            reseed: true,
            max_tokens: None,
            stop_strings: Vec::new(),
            logprobs: None,
            thinking: Thinking::Off,
            tools: Vec::new(),
            tool_choice: ToolChoice::Auto,
            response_format: ResponseFormat::Text,
            overflow: OverflowPolicy::Error,
            batch: 256,
        }
    }
}

impl TurnOptions {
    /// The grammar that replies are kept to, if they are kept to any.
    ///
    /// # Errors
    /// Those of [`Grammar::json_schema`] and [`Grammar::tool_calls`]; [`Error::Argument`] for tools beside a
    /// response format, or a choice of a tool that is not there.
    pub fn grammar(&self) -> Result<Option<Grammar>> {
        let refused = |name: &str, problem| Err(Error::Argument { name: Name::new(name), problem });
        match &self.response_format {
            ResponseFormat::Text => {}
            ResponseFormat::JsonObject | ResponseFormat::JsonSchema(_) if !self.tools.is_empty() => {
                return refused("tools", "cannot be combined with a response format");
            }
            ResponseFormat::JsonObject => return Ok(Some(Grammar::json_object())),
            ResponseFormat::JsonSchema(schema) => return Grammar::json_schema(schema).map(Some),
        }
        let mut tools: Vec<&str> = self.tools.iter().map(String::as_str).collect();
        if let ToolChoice::Function(name) = &self.tool_choice {
            tools.retain(|tool| function_name(tool).as_ref() == Some(name));
        }
        match &self.tool_choice {
            ToolChoice::Auto if tools.is_empty() => return Ok(None),
            ToolChoice::Auto | ToolChoice::Required | ToolChoice::Function(_) => {}
        }
        if tools.is_empty() {
            return refused("tool choice", "asks for a tool that is not there");
        }
        Grammar::tool_calls(&tools, self.tool_choice != ToolChoice::Auto).map(Some)
    }

    /// Whether the reply is kept to JSON.
    pub(super) fn is_json(&self) -> bool {
        self.response_format != ResponseFormat::Text
    }
}

/// The name of a function by its description.
pub fn function_name(tool: &str) -> Option<String> {
    let tool = json::Value::parse(tool).ok()?;
    tool.get("function").unwrap_or(tool).get("name")?.as_string()
}
