//! Options of a reply, shared by several commands.

use crate::args::whole;
use crate::error::{CliError, Context, Result};
use crate::input::read_text;
use crate::model::ModelArgs;
use crate::sampling::SamplingArgs;
use clap::{Args, ValueEnum};
use serde_json::value::RawValue;
use shohin::core::chat::{OverflowPolicy, ResponseFormat, Thinking, ToolChoice, function_name};
use shohin::core::constrain::Whitespace;
use shohin::core::generate::Reason;
use shohin::speculate::Speculation;
use shohin::{Chat, TurnOptions};
use std::path::{Path, PathBuf};

/// Functions that the model may call.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Tools")]
pub(crate) struct ToolArgs {
    /// Functions that the model may call, as a JSON array in OpenAI's format or a file with one
    ///
    /// Arguments satisfy the schemas of functions with "strict": true, and of others where the schema is supported.
    #[arg(long, value_name = "FILE|TEXT", conflicts_with_all = ["raw"])]
    pub(crate) tools: Option<String>,
    /// auto: the model decides; required: it calls at least one; or the name of the function it calls
    #[arg(long, value_name = "auto|required|NAME", default_value = "auto", requires = "tools")]
    pub(crate) tool_choice: String,
    /// Describe the functions in the system message if the model's chat template has no tools
    #[arg(long, requires = "tools")]
    pub(crate) tools_in_prompt: bool,
}

/// Constrained output.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Constrained output")]
pub(crate) struct FormatArgs {
    /// Make every reply a JSON value of this schema: a file, or the JSON Schema itself
    #[arg(long, value_name = "FILE|TEXT")]
    pub(crate) json_schema: Option<String>,
    /// Make every reply a JSON object
    #[arg(long, conflicts_with = "json_schema")]
    pub(crate) json_object: bool,
    /// Make every reply one of these texts
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["json_schema", "json_object"])]
    pub(crate) choice: Vec<String>,
    /// Make every reply match this regular expression, from beginning to end
    #[arg(long, value_name = "REGEX", conflicts_with_all = ["json_schema", "json_object", "choice"])]
    pub(crate) regex: Option<String>,
    /// Make every reply a text of this grammar in GBNF, llama.cpp's notation: a file, or the grammar itself
    #[arg(long, value_name = "FILE|TEXT", conflicts_with_all = ["json_schema", "json_object", "choice", "regex"])]
    pub(crate) grammar: Option<String>,
    /// Allow line breaks and spaces in JSON replies
    #[arg(long)]
    pub(crate) json_whitespace: bool,
}

/// Speculative decoding.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Speculative decoding")]
pub(crate) struct SpeculationArgs {
    /// Speculative decoding by prompt lookup: the same replies (on a GPU but for near ties), faster where they repeat the
    /// prompt
    #[arg(long)]
    pub(crate) speculate: bool,
    /// Speculative decoding with this smaller model, which has the same vocabulary
    #[arg(long, value_name = "MODEL", conflicts_with = "speculate")]
    pub(crate) draft: Option<PathBuf>,
}

impl SpeculationArgs {
    pub(crate) fn is_used(&self) -> bool {
        self.speculate || self.draft.is_some()
    }

    /// Sets up the chat.
    pub(crate) fn apply(&self, chat: &mut Chat, model: &ModelArgs) -> Result {
        if self.speculate {
            chat.speculate(&Speculation::PromptLookup)?;
        }
        if let Some(draft) = &self.draft {
            let args = model.of_draft(draft);
            chat.speculate(&Speculation::Draft(args.load().context("--draft")?))?;
        }
        Ok(())
    }
}

/// Behaviour when prompt and reply exceed --context.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Full context")]
pub(crate) struct OverflowArgs {
    /// When the context is full: error ends the reply, trim leaves out the oldest turns, shift drops the oldest
    /// tokens and continues [default: trim in `chat`, error in `run`]
    #[arg(long, value_name = "POLICY")]
    pub(crate) overflow: Option<Policy>,
    /// With --overflow shift: number of leading tokens that are never dropped [default: the system message, at least 4]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub(crate) keep: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Policy {
    Error,
    Trim,
    Shift,
}

impl OverflowArgs {
    /// The policy, or `default` if none was given.
    pub(crate) fn policy(&self, default: OverflowPolicy) -> Result<OverflowPolicy> {
        if self.keep.is_some() && self.overflow != Some(Policy::Shift) {
            return Err(CliError::usage("--keep is for --overflow shift"));
        }
        Ok(match self.overflow {
            None => default,
            Some(Policy::Error) => OverflowPolicy::Error,
            Some(Policy::Trim) => OverflowPolicy::TRIM,
            Some(Policy::Shift) => OverflowPolicy::Shift { keep: self.keep },
        })
    }

    /// Checks `--keep`, once the context is known.
    pub(crate) fn check(&self, capacity: usize) -> Result {
        match self.keep.filter(|keep| *keep >= capacity) {
            Some(keep) => Err(CliError::usage(format_args!(
                "--keep {keep} leaves no room in a context of {capacity} tokens"
            ))),
            None => Ok(()),
        }
    }
}

/// Functions and which of them are called, as given on the command line.
#[derive(Clone, Copy)]
pub(crate) struct Tools<'a> {
    pub(crate) descriptions: Option<&'a str>,
    pub(crate) choice: &'a str,
    /// Whether a template without tools gets them described.
    pub(crate) in_prompt: bool,
}

/// The turn options, validated before a model is loaded.
pub(crate) fn options(
    sampling: &SamplingArgs,
    format: &FormatArgs,
    tools: Tools<'_>,
    think: Option<Option<usize>>,
    max_tokens: Option<usize>,
) -> Result<TurnOptions> {
    let sampler = sampling.config();
    sampler.check().usage()?;
    let mut options = TurnOptions {
        sampler,
        reseed: false,
        max_tokens,
        stop_strings: sampling.stop.clone(),
        thinking: match think {
            None => Thinking::Off,
            Some(None) => Thinking::On,
            Some(Some(tokens)) => Thinking::Budget(tokens),
        },
        response_format: response_format(format)?,
        json_whitespace: if format.json_whitespace { Whitespace::Allowed } else { Whitespace::None },
        ..TurnOptions::default()
    };
    let cause = match &options.response_format {
        ResponseFormat::Text => "--tools",
        ResponseFormat::JsonObject => "--json-object",
        ResponseFormat::JsonSchema(_) => "--json-schema",
        ResponseFormat::Choice(_) => "--choice",
        ResponseFormat::Regex(_) => "--regex",
        ResponseFormat::Grammar(_) => "--grammar",
    };
    options.tools = descriptions(tools.descriptions)?;
    options.describe_tools = tools.in_prompt;
    options.tool_choice = tool_choice(tools.choice, &options.tools)?;
    options.grammar().context(cause).usage()?;
    if options.stop_strings.iter().any(String::is_empty) {
        return Err(CliError::usage("length of a stop string is 0, expected at least 1 byte"));
    }
    Ok(options)
}

/// If a reply in a given format ended before it was complete: a sentence about it.
pub(crate) fn cut_off(options: &TurnOptions, reason: Reason) -> Option<&'static str> {
    match (&options.response_format, reason) {
        (ResponseFormat::Text, _) | (_, Reason::Stop) => None,
        (ResponseFormat::JsonObject | ResponseFormat::JsonSchema(_), _) => {
            Some("the JSON is incomplete, as the reply ended early")
        }
        _ => Some("the reply is incomplete, as it ended early"),
    }
}

fn response_format(args: &FormatArgs) -> Result<ResponseFormat> {
    if args.json_whitespace && args.json_schema.is_none() && !args.json_object {
        return Err(CliError::usage("--json-whitespace is for --json-schema and --json-object"));
    }
    Ok(match &args.json_schema {
        Some(schema) => {
            ResponseFormat::JsonSchema(text(schema).context("--json-schema, a file or a schema").usage()?)
        }
        None if args.json_object => ResponseFormat::JsonObject,
        None if !args.choice.is_empty() => ResponseFormat::Choice(args.choice.clone()),
        None => match (&args.regex, &args.grammar) {
            (Some(regex), _) => ResponseFormat::Regex(regex.clone()),
            (None, Some(grammar)) if grammar.contains("::=") => ResponseFormat::Grammar(grammar.clone()),
            (None, Some(path)) => {
                let read = read_text(Path::new(path));
                ResponseFormat::Grammar(read.context("--grammar, a file or a text with ::=").usage()?)
            }
            (None, None) => ResponseFormat::Text,
        },
    })
}

/// The text of an argument that is a file, or JSON itself.
fn text(argument: &str) -> Result<String> {
    // Text in brackets is not a file name.
    let trimmed = argument.trim();
    if trimmed.starts_with(['{', '[']) || matches!(trimmed, "true" | "false") {
        return Ok(argument.into());
    }
    read_text(Path::new(argument))
}

/// Function descriptions, each a JSON text.
fn descriptions(given: Option<&str>) -> Result<Vec<String>> {
    let Some(tools) = given else { return Ok(Vec::new()) };
    let tools = text(tools).context("--tools, a file or a JSON array").usage()?;
    let tools: Vec<&RawValue> = serde_json::from_str(&tools)
        .map_err(|e| CliError::usage(format_args!("--tools: not a JSON array of descriptions: {e}")))?;
    Ok(tools.into_iter().map(|tool| tool.get().to_string()).collect())
}

fn tool_choice(given: &str, tools: &[String]) -> Result<ToolChoice> {
    match given {
        "auto" => Ok(ToolChoice::Auto),
        choice if tools.is_empty() => {
            Err(CliError::usage(format_args!("--tool-choice is {choice:?}, but there are no tools")))
        }
        "required" => Ok(ToolChoice::Required),
        name if tools.iter().any(|tool| function_name(tool).as_deref() == Some(name)) => {
            Ok(ToolChoice::Function(name.into()))
        }
        name => Err(CliError::usage(format_args!("--tool-choice: no tool is called {name:?}"))),
    }
}
