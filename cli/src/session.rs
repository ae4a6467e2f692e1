//! Conversations that are kept in a file between commands.

use crate::error::Result;
use shohin::Chat;
use std::path::Path;

/// Goes on with the conversation in the file; returns the number of its messages, 0 if there is no file yet.
pub(crate) fn open(chat: &mut Chat, path: &Path) -> Result<usize> {
    match path.try_exists() {
        Ok(false) => return Ok(0),
        _ => chat.open(path)?,
    }
    Ok(chat.messages().len())
}

/// Keeps the conversation, if it has begun.
pub(crate) fn save(chat: &mut Chat, path: &Path) -> Result {
    if chat.position() > 0 {
        chat.save(path)?;
    }
    Ok(())
}
