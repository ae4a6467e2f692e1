//! Why a template cannot be used.

use super::eval::Fail;
use shohin_core::Error;
use std::fmt;

/// Why a template cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateError {
    /// Its line, from 1.
    pub line: u32,
    /// The problem, as in `refuses the conversation`.
    pub problem: &'static str,
    /// What the sentence is about; may be empty.
    pub found: String,
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TemplateError { line, problem, found } = self;
        write!(f, "line {line} of this model's chat template {problem}")?;
        if found.is_empty() { Ok(()) } else { write!(f, ": {}", printable(found)) }
    }
}

impl std::error::Error for TemplateError {}

impl From<TemplateError> for Error {
    fn from(error: TemplateError) -> Error {
        Error::rendering(error.line, error.problem, &error.found)
    }
}

impl From<Box<Fail>> for TemplateError {
    fn from(fail: Box<Fail>) -> TemplateError {
        let Fail { line, problem, found } = *fail;
        TemplateError { line, problem, found }
    }
}

/// What of a template's own message a terminal can show.
fn printable(text: &str) -> String {
    let chars = text.chars().map(|c| if c == '\n' { ' ' } else { c });
    chars.filter(|c| shohin_core::error::is_printable(*c)).take(200).collect()
}
