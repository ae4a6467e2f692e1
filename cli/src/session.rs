//! Conversations that are kept in a file between commands.

use crate::error::{CliError, Result, file_error};
use shohin::{Chat, new_file};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Resumes the conversation in the file; returns the number of its messages, 0 if there is no file yet. A file that could
/// not be written at the end is an error before the conversation.
pub(crate) fn open(chat: &mut Chat, path: &Path) -> Result<usize> {
    if path.try_exists().is_ok_and(|exists| !exists) {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        return match folder.is_none_or(Path::is_dir) {
            true => Ok(0),
            false => {
                Err(CliError::new(format_args!("cannot write {}: there is no such folder", path.display())))
            }
        };
    }
    new_file::check(path).map_err(|error| file_error("write", path, &error))?;
    chat.open(path).map_err(|error| match (error.code(), text_in(path)) {
        ("snapshot_foreign", Some(text)) => CliError::new(format_args!(
            "{} is a text that begins with {text:?}, expected a file that --session has written; /load in a chat reads \
             conversations in JSON",
            path.display()
        )),
        _ => error.into(),
    })?;
    Ok(chat.messages().len())
}

/// How a file begins that is a text.
fn text_in(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(32).read_to_end(&mut bytes).ok()?;
    // A character may be cut.
    let text = String::from_utf8_lossy(&bytes).trim_end_matches('\u{FFFD}').to_owned();
    let is_text = |c: char| c != '\u{FFFD}' && (!c.is_control() || c.is_whitespace());
    (!text.is_empty() && text.chars().all(is_text)).then_some(text)
}

/// Keeps the conversation, if it has begun.
pub(crate) fn save(chat: &mut Chat, path: &Path) -> Result {
    if chat.position() > 0 {
        chat.save(path)?;
    }
    Ok(())
}
