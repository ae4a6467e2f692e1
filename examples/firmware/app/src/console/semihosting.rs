//! Semihosting: the console, and the end of the program, are the host's.

use semihosting::io::{self, Read, Write};

pub(crate) use semihosting::process::exit as end;
pub(crate) use semihosting::{eprintln, println};

/// Nothing to prepare.
pub(crate) fn open() {}

/// Prints `text`. If that fails, nobody reads it.
pub(crate) fn print(text: &str) {
    let _ = io::stdout().and_then(|mut out| out.write_all(text.as_bytes()));
}

/// Reads a line without its end; longer ones are cut off. False at the end of the input.
pub(crate) fn read_line<const N: usize>(line: &mut heapless::Vec<u8, N>) -> bool {
    line.clear();
    let Ok(mut input) = io::stdin() else { return false };
    let mut byte = [0];
    while matches!(input.read(&mut byte), Ok(1)) {
        match byte[0] {
            b'\n' => return true,
            b'\r' => {}
            // The rest of a line that is too long is dropped.
            other => drop(line.push(other)),
        }
    }
    !line.is_empty()
}
