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

/// What can be completed: commands, and the words that follow some of them.
#[cfg_attr(target_os = "wasi", expect(dead_code))]
pub(crate) struct Words {
    /// Names of commands, without the slash.
    pub(crate) commands: &'static [&'static str],
    /// Commands that are followed by the name of a file.
    pub(crate) of_files: &'static [&'static str],
    /// Names that follow the command `set`.
    pub(crate) options: Vec<&'static str>,
}

#[cfg(not(target_os = "wasi"))]
mod rich {
    use super::{Typed, Words};
    use crate::error::{CliError, Result};
    use crate::message::is_open;
    use crate::terminal::remark;
    use rustyline::completion::{Completer, FilenameCompleter, Pair};
    use rustyline::error::ReadlineError;
    use rustyline::highlight::Highlighter;
    use rustyline::hint::Hinter;
    use rustyline::history::FileHistory;
    use rustyline::validate::{ValidationContext, ValidationResult, Validator};
    use rustyline::{Cmd, CompletionType, Config, Context, Helper, KeyCode, KeyEvent, Modifiers};
    use std::fs;
    use std::io;
    use std::path::{Path, PathBuf};

    /// Lines that are remembered.
    const LINES: usize = 1000;

    /// Edits lines, and remembers them.
    pub(crate) struct Editor {
        lines: rustyline::Editor<Words, FileHistory>,
        /// The file of lines of earlier chats.
        history: Option<PathBuf>,
    }

    impl Editor {
        /// An editor that completes `words`, and with `keeps` remembers lines for the next chats.
        pub(crate) fn new(words: Words, keeps: bool) -> Result<Editor> {
            let config = Config::builder().completion_type(CompletionType::List);
            let config = config.max_history_size(LINES).map_err(failed)?.build();
            let mut lines =
                rustyline::Editor::with_history(config.clone(), FileHistory::with_config(&config))
                    .map_err(failed)?;
            lines.set_helper(Some(words));
            lines.bind_sequence(KeyEvent(KeyCode::Enter, Modifiers::ALT), Cmd::Newline);
            let mut editor = Editor { lines, history: None };
            if keeps && let Some(path) = path() {
                match editor.open(&path) {
                    Ok(()) => editor.history = Some(path),
                    Err(error) => {
                        remark(format_args!("(typed lines are not kept in {}: {error})", path.display()))
                    }
                }
            }
            Ok(editor)
        }

        /// Reads what earlier chats have left. The file is for its user only.
        fn open(&mut self, path: &Path) -> rustyline::Result<()> {
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            if !path.try_exists()? {
                return Ok(());
            }
            #[cfg(unix)]
            {
                use std::os::unix::fs::PermissionsExt;
                fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
            }
            self.lines.load_history(path)
        }

        pub(crate) fn read(&mut self, prompt: &str) -> Result<Typed> {
            match self.lines.readline(prompt) {
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
            let _ = self.lines.add_history_entry(line);
            // At once, as a chat can end in any way.
            if let Some(path) = &self.history
                && let Err(error) = self.lines.append_history(path)
            {
                remark(format_args!("(typed lines are not kept in {}: {error})", path.display()));
                self.history = None;
            }
        }
    }

    /// The file of typed lines.
    fn path() -> Option<PathBuf> {
        let folder = dirs::state_dir().or_else(dirs::data_local_dir)?;
        Some(folder.join("shohin").join("history"))
    }

    impl Completer for Words {
        type Candidate = Pair;

        fn complete(
            &self,
            line: &str,
            at: usize,
            context: &Context<'_>,
        ) -> rustyline::Result<(usize, Vec<Pair>)> {
            let none = Ok((at, Vec::new()));
            let Some(typed) = line.get(..at).and_then(|typed| typed.strip_prefix('/')) else { return none };
            let like = |start: usize, word: &str, names: &[&str]| {
                let names = names.iter().filter(|name| name.starts_with(word));
                let pair = |name: &&str| Pair { display: (*name).into(), replacement: format!("{name} ") };
                Ok((start, names.map(pair).collect()))
            };
            match typed.split_once(' ') {
                None => like(1, typed, self.commands),
                Some(("set", word)) if !word.contains(' ') => like(at - word.len(), word, &self.options),
                Some((name, _)) if self.of_files.contains(&name) => {
                    FilenameCompleter::new().complete(line, at, context)
                }
                Some(_) => none,
            }
        }
    }

    impl Hinter for Words {
        type Hint = String;
    }

    impl Highlighter for Words {}

    impl Validator for Words {
        fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
            Ok(match is_open(context.input()) {
                true => ValidationResult::Incomplete,
                false => ValidationResult::Valid(None),
            })
        }
    }

    impl Helper for Words {}

    fn failed(error: ReadlineError) -> CliError {
        CliError::new(format_args!("cannot read from the terminal: {error}"))
    }
}

#[cfg(target_os = "wasi")]
mod plain {
    use super::{Typed, Words};
    use crate::error::Result;
    use crate::input::read_line;
    use std::io::{self, Write};

    /// Reads lines as the terminal passes them on: a WASI program cannot change its mode.
    pub(crate) struct Editor;

    impl Editor {
        pub(crate) fn new(_: Words, _: bool) -> Result<Editor> {
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
