//! Tools for templates without them: described in the system message, with calls and results as text.
#![forbid(unsafe_code)]

use super::template::{Message, Role, Style, Template};
use crate::error::Result;
use crate::json;
use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;

/// What a model is told of the tools, in the words and the form of Hermes, which most models have seen.
fn description(tools: &[&str]) -> Result<String> {
    let mut text =
        String::from("You can call functions. These are their signatures, within <tools></tools>:\n<tools>");
    for tool in tools {
        text.push('\n');
        json::reformat(tool, &mut text)?;
    }
    text.push_str(
        "\n</tools>\n\nTo call one, answer with a JSON object of its name and its arguments within <tool_call></tool_call>, and nothing else:\n<tool_call>\n{\"name\": \"NAME\", \"arguments\": {\"PARAMETER\": VALUE}}\n</tool_call>\nThe result follows within <tool_response></tool_response>. If no function helps, answer in words.",
    );
    Ok(text)
}

/// Whether a template shows a system message.
fn has_system(template: Template) -> bool {
    match template.style {
        Style::File(file) => file.system,
        Style::Qwen3
        | Style::Qwen3Thinking
        | Style::Qwen3Instruct
        | Style::Plain
        | Style::Llama3
        | Style::Llama31
        | Style::Gemma => true,
    }
}

/// A reply with its calls as the model wrote them.
fn with_calls<'m>(message: &Message<'m>) -> Cow<'m, str> {
    if message.tool_calls.is_empty() {
        return Cow::Borrowed(message.content);
    }
    let mut text = String::from(message.content);
    for call in message.tool_calls {
        text.push_str(if text.is_empty() {
            "<tool_call>\n{\"name\": "
        } else {
            "\n<tool_call>\n{\"name\": "
        });
        json::string(call.name, &mut text);
        text.extend([", \"arguments\": ", call.arguments, "}\n</tool_call>"]);
    }
    Cow::Owned(text)
}

/// Calls `work` with the conversation as a template without tools can show it: the tools in the system message, or in the first
/// message if the template has none; calls as text of replies, and results as messages of the user.
///
/// # Errors
/// [`Error::Json`](crate::Error::Json) for a description that is not JSON; those of `work`.
pub(super) fn described<T>(
    messages: &[Message<'_>],
    tools: &[&str],
    template: Template,
    work: impl FnOnce(&[Message<'_>]) -> Result<T>,
) -> Result<T> {
    let mut told = description(tools)?;
    let mut texts: Vec<(Role, Cow<'_, str>, Option<&str>)> = Vec::new();
    let mut after_result = false;
    for (i, message) in messages.iter().enumerate() {
        match message.role {
            Role::System if i == 0 => {
                told = [message.content, "\n\n", &told].concat();
            }
            Role::Tool => {
                let result = ["<tool_response>\n", message.content, "\n</tool_response>"];
                match texts.last_mut().filter(|_| after_result) {
                    Some((_, results, _)) => results.to_mut().extend(["\n"].iter().chain(&result).copied()),
                    None => texts.push((Role::User, Cow::Owned(result.concat()), None)),
                }
            }
            role => texts.push((role, with_calls(message), message.reasoning)),
        }
        after_result = message.role == Role::Tool;
    }
    if has_system(template) {
        texts.insert(0, (Role::System, Cow::Owned(told), None));
    } else if let Some((_, first, _)) = texts.iter_mut().find(|(role, ..)| *role == Role::User) {
        *first = Cow::Owned([&*told, "\n\n", first].concat());
    }
    let messages: Vec<Message<'_>> = texts
        .iter()
        .map(|(role, content, reasoning)| Message { reasoning: *reasoning, ..Message::new(*role, content) })
        .collect();
    work(&messages)
}
