//! Conversations that are kept in a file between commands.

use crate::error::{CliError, Result, file_error};
use shohin::{Chat, new_file};
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
    chat.open(path)?;
    Ok(chat.messages().len())
}

/// Keeps the conversation, if it has begun.
pub(crate) fn save(chat: &mut Chat, path: &Path) -> Result {
    if chat.position() > 0 {
        chat.save(path)?;
    }
    Ok(())
}
