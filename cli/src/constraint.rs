//! What replies are kept to: JSON, a schema, or calls of tools.

use crate::args::{FormArgs, ToolArgs};
use crate::failure::{At, Failure, Outcome};
use crate::terminal;
use serde_json::value::RawValue;
use shohin_core::chat::{ResponseFormat, ToolChoice, TurnOptions, function_name};
use std::path::Path;

/// The text of an argument that is a file, or JSON itself.
fn text(argument: &str) -> Outcome<String> {
    // No file of that name is meant by text in brackets.
    let trimmed = argument.trim();
    if trimmed.starts_with(['{', '[']) || matches!(trimmed, "true" | "false") {
        return Ok(argument.into());
    }
    terminal::read_text(Path::new(argument))
}

/// Refuses what no reply can be kept to, before the model is loaded. `argument` is to blame.
fn check(options: &TurnOptions, argument: &str) -> Outcome {
    options.grammar().at(argument).of_usage().map(drop)
}

/// The form of replies that was asked for.
pub(crate) fn response_format(args: &FormArgs) -> Outcome<ResponseFormat> {
    let response_format = match &args.json_schema {
        Some(schema) => ResponseFormat::JsonSchema(text(schema)?),
        None if args.json_object => ResponseFormat::JsonObject,
        None => ResponseFormat::Text,
    };
    let options = TurnOptions { response_format, ..TurnOptions::default() };
    check(&options, "--json-schema")?;
    Ok(options.response_format)
}

/// Descriptions of functions, each a JSON text, and which of them the model may call.
pub(crate) fn tools(args: &ToolArgs) -> Outcome<(Vec<String>, ToolChoice)> {
    let mut tools = Vec::new();
    if let Some(given) = &args.tools {
        let given = text(given)?;
        let given: Vec<&RawValue> = serde_json::from_str(&given)
            .map_err(|e| Failure::usage(format_args!("--tools: not a JSON array of descriptions: {e}")))?;
        tools.extend(given.into_iter().map(|tool| tool.get().to_string()));
    }
    let name = args.tool_choice.as_str();
    let tool_choice = match name {
        "auto" => ToolChoice::Auto,
        "required" => ToolChoice::Required,
        _ => ToolChoice::Function(name.into()),
    };
    if tools.is_empty() && tool_choice != ToolChoice::Auto {
        return Err(Failure::usage(format_args!("--tool-choice is {name:?}, but there are no tools")));
    }
    let is_chosen = |tool: &String| function_name(tool).as_deref() == Some(name);
    if matches!(tool_choice, ToolChoice::Function(_)) && !tools.iter().any(is_chosen) {
        return Err(Failure::usage(format_args!("--tool-choice: no tool is called {name:?}")));
    }
    let options = TurnOptions { tools, tool_choice, ..TurnOptions::default() };
    check(&options, "--tools")?;
    Ok((options.tools, options.tool_choice))
}
