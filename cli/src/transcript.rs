//! Conversations as text: what `/save` writes, `/load` reads, and a message in the user's editor.

use crate::error::{CliError, Result};
use crate::input::read_text;
use serde_json::{Value, json};
use shohin::ChatMessage;
use shohin::core::chat::Role;
use shohin::new_file::NewFile;
use std::io::{self, Write};
use std::path::Path;

/// Whether the name is that of a JSON file.
pub(crate) fn is_json(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("json"))
}

/// A conversation with a model, as JSON if `path` ends in `.json` and otherwise as Markdown.
pub(crate) fn text(path: &Path, model: &str, messages: &[ChatMessage]) -> String {
    if is_json(path) {
        let messages: Vec<_> =
            messages.iter().map(|m| json!({ "role": m.role.name(), "content": m.text() })).collect();
        return format!("{:#}\n", json!({ "model": model, "messages": messages }));
    }
    let name = |role| match role {
        Role::System => "Instructions",
        Role::User => "You",
        Role::Assistant => "Model",
        Role::Tool => "Tool",
    };
    messages.iter().map(|m| format!("**{}:** {}\n\n", name(m.role), m.text().trim())).collect()
}

/// Writes a file that only its user can read, if it is new.
pub(crate) fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut file = NewFile::private(path)?;
    file.write_all(text.as_bytes())?;
    file.finish()
}

/// The messages of a JSON file: those of `/save`, of a request in OpenAI's form, or a list of them.
pub(crate) fn read(path: &Path) -> Result<Vec<ChatMessage>> {
    let wrong = |problem: String| CliError::new(format_args!("{}: {problem}", path.display()));
    let value: Value =
        serde_json::from_str(&read_text(path)?).map_err(|error| wrong(format!("not JSON: {error}")))?;
    let list = value.get("messages").unwrap_or(&value);
    let list = list.as_array().ok_or_else(|| wrong("expected messages, found none".into()))?;
    let message = |(number, message): (usize, &Value)| {
        let text = |name: &str| message.get(name).and_then(Value::as_str);
        let role = text("role").and_then(|name| {
            [Role::System, Role::User, Role::Assistant, Role::Tool]
                .into_iter()
                .find(|role| role.name() == name)
        });
        match (role, text("content")) {
            (Some(role), Some(content)) => Ok(ChatMessage::new(role, content)),
            _ => Err(wrong(format!("message {}: expected a role and a content", number + 1))),
        }
    };
    list.iter().enumerate().map(message).collect()
}

/// A text as the user has changed it in an editor: the one that VISUAL or EDITOR names, or else the system's.
#[cfg(not(target_os = "wasi"))]
pub(crate) fn edited(text: &str) -> Result<String> {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    let usual = if cfg!(windows) { "notepad" } else { "vi" };
    let editor = set("VISUAL").or_else(|| set("EDITOR")).unwrap_or_else(|| usual.into());
    let file = tempfile::Builder::new().prefix("message-").suffix(".md").tempfile()?;
    let path = file.path();
    std::fs::write(path, text).map_err(|error| crate::error::file_error("write", path, &error))?;
    let status = command(&editor, path).status();
    let status =
        status.map_err(|error| CliError::new(format_args!("cannot start the editor {editor:?}: {error}")))?;
    if !status.success() {
        return Err(CliError::new(format_args!("the editor {editor:?} has ended with {status}")));
    }
    Ok(read_text(path)?.trim_end().into())
}

/// The editor, which may have arguments.
#[cfg(unix)]
fn command(editor: &str, path: &Path) -> std::process::Command {
    let mut command = std::process::Command::new("sh");
    command.arg("-c").arg(format!("{editor} \"$1\"")).arg("sh").arg(path);
    command
}

#[cfg(windows)]
fn command(editor: &str, path: &Path) -> std::process::Command {
    let mut words = editor.split_whitespace();
    let mut command = std::process::Command::new(words.next().unwrap_or_default());
    command.args(words).arg(path);
    command
}
