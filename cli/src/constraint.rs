//! The form that replies are kept to: JSON, a schema, or calls of tools.

use crate::args::{FormArgs, ToolArgs};
use crate::engine::Engine;
use crate::failure::{At, Failure, Outcome};
use crate::terminal;
use serde_json::value::RawValue;
use shohin_core::chat::Style;
use shohin_core::constrain::{Constraint, Grammar, Vocabulary};
use shohin_core::json;
use std::path::Path;
use std::sync::Arc;

/// The text of an argument that is a file, or JSON itself.
fn text(argument: &str) -> Outcome<String> {
    // No file of that name is meant by text in brackets.
    let trimmed = argument.trim();
    if trimmed.starts_with(['{', '[']) || matches!(trimmed, "true" | "false") {
        return Ok(argument.into());
    }
    terminal::read_text(Path::new(argument))
}

/// The grammar that was asked for. Known before the model is loaded, as it may be wrong.
pub(crate) fn grammar(args: &FormArgs) -> Outcome<Option<Grammar>> {
    match &args.json_schema {
        Some(schema) => Grammar::json_schema(&text(schema)?).at("--json-schema").of_usage().map(Some),
        None => Ok(args.json_object.then(Grammar::json_object)),
    }
}

/// Descriptions of functions, each a JSON text.
pub(crate) fn tools(args: &ToolArgs) -> Outcome<Vec<String>> {
    let Some(tools) = &args.tools else { return Ok(Vec::new()) };
    let tools = text(tools)?;
    let tools: Vec<&RawValue> = serde_json::from_str(&tools)
        .map_err(|e| Failure::usage(format_args!("--tools: not a JSON array of descriptions: {e}")))?;
    Ok(tools.into_iter().map(|tool| tool.get().to_string()).collect())
}

/// The grammar of replies that may call `tools`.
pub(crate) fn calls(args: &ToolArgs, tools: &[String]) -> Outcome<Option<Grammar>> {
    if tools.is_empty() {
        return match args.tool_choice.as_str() {
            "auto" => Ok(None),
            choice => {
                Err(Failure::usage(format_args!("--tool-choice is {choice:?}, but there are no tools")))
            }
        };
    }
    let mut tools: Vec<&str> = tools.iter().map(String::as_str).collect();
    let choice = args.tool_choice.as_str();
    if !matches!(choice, "auto" | "required") {
        tools.retain(|tool| name(tool).as_deref() == Some(choice));
        if tools.is_empty() {
            return Err(Failure::usage(format_args!("--tool-choice: no tool is called {choice:?}")));
        }
    }
    Grammar::tool_calls(&tools, choice != "auto").at("--tools").of_usage().map(Some)
}

/// The name of a function by its description.
fn name(tool: &str) -> Option<String> {
    let function = json::member(tool, "function").ok()?.unwrap_or(tool);
    json::text(json::member(function, "name").ok()??).ok()?
}

/// A constraint for replies of this engine, which may think first if it is asked to.
pub(crate) fn constraint(grammar: Grammar, engine: &Engine<'_>, think: bool) -> Outcome<Constraint> {
    let thinks = think && engine.template.style == Style::Qwen3;
    let grammar = if thinks { grammar.after_thoughts()? } else { grammar };
    Ok(Constraint::new(grammar, Arc::new(Vocabulary::new(&engine.tokenizer)))?)
}
