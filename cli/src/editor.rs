//! Lines that are typed on a terminal.

#[cfg(target_os = "wasi")]
pub(crate) use plain::Editor;
#[cfg(not(target_os = "wasi"))]
pub(crate) use rich::Editor;

/// What was typed. WASI passes on lines only.
#[cfg_attr(target_os = "wasi", expect(dead_code))]
pub(crate) enum Typed {
    Line(String),
    /// Ctrl-C.
    Interrupt,
    /// Bytes that are not UTF-8.
    NotText,
    /// Ctrl-D.
    End,
}

#[cfg(not(target_os = "wasi"))]
mod rich {
    use super::Typed;
    use crate::error::{CliError, Result};
    use rustyline::DefaultEditor;
    use rustyline::error::ReadlineError;
    use std::io;

    /// Edits lines, and remembers them.
    pub(crate) struct Editor(DefaultEditor);

    impl Editor {
        pub(crate) fn new() -> Result<Editor> {
            DefaultEditor::new().map(Editor).map_err(failed)
        }

        pub(crate) fn read(&mut self, prompt: &str) -> Result<Typed> {
            match self.0.readline(prompt) {
                Ok(line) => Ok(Typed::Line(line)),
                Err(ReadlineError::Eof) => Ok(Typed::End),
                Err(ReadlineError::Interrupted) => Ok(Typed::Interrupt),
                Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
                    Ok(Typed::NotText)
                }
                Err(error) => Err(failed(error)),
            }
        }

        pub(crate) fn remember(&mut self, line: &str) {
            let _ = self.0.add_history_entry(line);
        }
    }

    fn failed(error: ReadlineError) -> CliError {
        CliError::new(format_args!("cannot read from the terminal: {error}"))
    }
}

#[cfg(target_os = "wasi")]
mod plain {
    use super::Typed;
    use crate::error::Result;
    use crate::input::read_line;
    use std::io::{self, Write};

    /// Reads lines as the terminal passes them on: a WASI program cannot change its mode.
    pub(crate) struct Editor;

    impl Editor {
        pub(crate) fn new() -> Result<Editor> {
            Ok(Editor)
        }

        pub(crate) fn read(&mut self, prompt: &str) -> Result<Typed> {
            let mut out = io::stdout();
            write!(out, "{prompt}")?;
            out.flush()?;
            Ok(read_line(&mut io::stdin().lock())?.map_or(Typed::End, Typed::Line))
        }

        pub(crate) fn remember(&mut self, _: &str) {}
    }
}
