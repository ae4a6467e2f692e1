//! Texts from files and standard input.

use crate::error::{CliError, Result, file_error};
use crate::terminal::{bytes, remark};
use std::fs::File;
use std::io::{self, BufRead, IsTerminal, Read};
use std::path::Path;

/// The name of an input in messages.
pub(crate) fn place(path: &Path) -> String {
    if path == Path::new("-") { "standard input".into() } else { path.display().to_string() }
}

/// Maximum bytes of a text, and of a line: more than any model's context.
pub(crate) const MAX_TEXT: usize = 64 << 20;

/// The text of a file, or of standard input for `-`.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    read_text_up_to(path, MAX_TEXT)
}

/// As [`read_text`], of at most `most` bytes.
pub(crate) fn read_text_up_to(path: &Path, most: usize) -> Result<String> {
    let mut bytes = Vec::new();
    let limit = most as u64 + 1;
    if path == Path::new("-") {
        let stdin = io::stdin().lock();
        if stdin.is_terminal() {
            remark("(reading standard input; end it with Ctrl-D)");
        }
        stdin.take(limit).read_to_end(&mut bytes)?;
    } else {
        let file = File::open(path).map_err(|e| file_error("read", path, &e))?;
        file.take(limit).read_to_end(&mut bytes).map_err(|e| file_error("read", path, &e))?;
    }
    if bytes.len() > most {
        return Err(CliError::new(format_args!("{}: longer than {}", place(path), too_much(most))));
    }
    String::from_utf8(bytes).map_err(|e| {
        let (place, at) = (place(path), e.utf8_error().valid_up_to());
        CliError::new(format_args!("{place}: expected UTF-8 text, found other bytes at offset {at}"))
    })
}

/// Whether something is piped into the program, or a file is its input. Programs that start this one and say nothing leave
/// other things open, which never end: sockets, terminals and devices.
#[cfg(unix)]
pub(crate) fn is_piped() -> bool {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileTypeExt;
    let input = io::stdin().as_fd().try_clone_to_owned().map(File::from);
    let kind = input.and_then(|input| input.metadata()).map(|input| input.file_type());
    kind.is_ok_and(|kind| kind.is_fifo() || kind.is_file())
}

/// Whether something is piped into the program.
#[cfg(not(unix))]
pub(crate) fn is_piped() -> bool {
    cfg!(windows) && !io::stdin().is_terminal()
}

/// The next line of an input, without its end; `None` at the end of the input. Bytes that are not UTF-8 become
/// U+FFFD.
///
/// # Errors
/// If it is longer than [`MAX_TEXT`].
pub(crate) fn read_line(input: &mut impl BufRead) -> Result<Option<String>> {
    let mut bytes = Vec::new();
    let read = input.take(MAX_TEXT as u64 + 1).read_until(b'\n', &mut bytes)?;
    if read == 0 {
        return Ok(None);
    }
    if bytes.len() > MAX_TEXT {
        return Err(CliError::new(format_args!(
            "a line of standard input is longer than {}",
            too_much(MAX_TEXT)
        )));
    }
    if bytes.ends_with(b"\n") {
        bytes.truncate(bytes.len() - if bytes.ends_with(b"\r\n") { 2 } else { 1 });
    }
    let text = String::from_utf8(bytes).unwrap_or_else(|error| {
        remark("(bytes that are not UTF-8 were replaced)");
        String::from_utf8_lossy(error.as_bytes()).into_owned()
    });
    Ok(Some(text))
}

fn too_much(most: usize) -> String {
    format!("{}, the maximum", bytes(most as u64))
}
