//! What a template sees: the conversation, as transformers gives it to templates.

use super::error::TemplateError;
use super::text::{Pieces, Text};
use super::value::Value;
use shohin_core::chat::{ChatOptions, Message, Role};
use shohin_core::{Tokenizer, json};

/// Texts of control tokens that templates write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// That of the beginning of a sequence.
    pub bos: Option<String>,
    /// That of its end.
    pub eos: Option<String>,
}

impl SpecialTokens {
    /// Those of a vocabulary.
    pub fn of(tokenizer: &Tokenizer<'_>) -> SpecialTokens {
        let text = |id: Option<u32>| {
            let bytes: Vec<u8> = tokenizer.token_bytes(id?)?.collect();
            String::from_utf8(bytes).ok()
        };
        SpecialTokens { bos: text(tokenizer.bos()), eos: text(tokenizer.eos()) }
    }
}

/// The variables of a template.
pub(super) fn globals<'t>(
    messages: &[Message<'_>],
    options: &ChatOptions<'_>,
    special: &SpecialTokens,
    source: &str,
) -> Result<Vec<(&'t str, Value<'t>)>, TemplateError> {
    let mut tools = Vec::new();
    for tool in options.tools {
        tools.push(json(tool, "a description of a tool")?);
    }
    let tools = if tools.is_empty() { Value::None } else { Value::list(tools).unwrap_or(Value::None) };
    let mut globals = vec![
        ("messages", conversation(messages, source)?),
        ("tools", tools),
        ("documents", Value::None),
        ("add_generation_prompt", Value::Bool(options.add_generation_prompt)),
    ];
    let tokens = [("bos_token", &special.bos), ("eos_token", &special.eos)];
    globals
        .extend(tokens.into_iter().filter_map(|(name, token)| Some((name, Value::own(token.as_deref()?)))));
    if let Some(thinking) = options.thinking {
        // Some templates call it by the second name.
        globals.extend([("enable_thinking", Value::Bool(thinking)), ("thinking", Value::Bool(thinking))]);
    }
    Ok(globals)
}

fn json<'t>(text: &str, what: &str) -> Result<Value<'t>, TemplateError> {
    let parsed = json::Value::parse(text).map(Value::from_json);
    parsed.map_err(|error| TemplateError {
        line: 1,
        problem: "cannot show what is not JSON",
        found: format!("{what}: {error}"),
    })
}

fn pairs<'t>(pairs: Vec<(&str, Value<'t>)>) -> Value<'t> {
    let pairs = pairs.into_iter().map(|(name, value)| (Text::own(name), value)).collect();
    Value::map(pairs).unwrap_or(Value::Undefined)
}

/// The identifier of a call: nine letters and digits, as Mistral's templates insist on.
fn identifier<'t>(number: usize) -> Value<'t> {
    Value::own(&format!("{number:09}"))
}

fn conversation<'t>(messages: &[Message<'_>], source: &str) -> Result<Value<'t>, TemplateError> {
    let (mut calls, mut results, mut names) = (0, 0, Vec::new());
    let mut all = Vec::new();
    for message in messages {
        let mut content = Value::foreign(message.content);
        let reasoning = message.reasoning.filter(|reasoning| !reasoning.is_empty());
        let mut fields = Vec::new();
        if let (Role::Assistant, Some(reasoning)) = (message.role, reasoning) {
            let keys = ["reasoning_content", "thinking"];
            let known = keys.into_iter().find(|key| {
                [format!(".{key}"), format!("'{key}'"), format!("\"{key}\"")]
                    .iter()
                    .any(|word| source.contains(word))
            });
            match known {
                Some(key) => fields.push((key, Value::foreign(reasoning))),
                // As the model wrote it, for templates that take thoughts out of replies.
                None if source.contains("</think>") => {
                    let mut whole = Pieces::new(usize::MAX);
                    whole.own("<think>\n");
                    whole.foreign(reasoning);
                    whole.own("\n</think>\n\n");
                    whole.foreign(message.content);
                    content = Value::Text(whole.into());
                }
                None => {}
            }
        }
        if !message.tool_calls.is_empty() {
            let mut list = Vec::new();
            (names, results) = (Vec::new(), calls);
            for call in message.tool_calls {
                calls += 1;
                names.push(call.name);
                let arguments = match json(call.arguments, "arguments") {
                    Ok(arguments @ Value::Map(_)) => arguments,
                    _ => Value::foreign(call.arguments),
                };
                let function = pairs(vec![("name", Value::foreign(call.name)), ("arguments", arguments)]);
                list.push(pairs(vec![
                    ("id", identifier(calls)),
                    ("type", Value::own("function")),
                    ("function", function),
                ]));
            }
            fields.push(("tool_calls", Value::list(list).unwrap_or(Value::Undefined)));
        }
        if message.role == Role::Tool {
            let before = calls - names.len();
            results += 1;
            let name = names.get((results - before).wrapping_sub(1)).copied();
            fields.extend(name.map(|name| ("name", Value::foreign(name))));
            fields.push(("tool_call_id", identifier(results)));
        }
        let mut whole = vec![("role", Value::own(message.role.name())), ("content", content)];
        whole.append(&mut fields);
        all.push(pairs(whole));
    }
    Ok(Value::list(all).unwrap_or(Value::Undefined))
}
