//! Facts that an adapter was taught, which its file has in its metadata.

use crate::error::{Error, FileError, Result};
use crate::file::ModelFile;
use serde_json::{Value, json};
use shohin_core::gguf::ReadOptions;

/// The key of the facts in the file of an adapter: a JSON array of objects as [`Fact::parse`] reads them.
pub(super) const FACTS: &str = "shohin.facts";

/// A question and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// The question.
    pub question: String,
    /// The answer, word for word.
    pub answer: String,
    /// Other wordings of the question, which are taught, too.
    pub forms: Vec<String>,
}

impl Fact {
    /// A fact with one wording of its question.
    pub fn new(question: impl Into<String>, answer: impl Into<String>) -> Fact {
        Fact { question: question.into(), answer: answer.into(), forms: Vec::new() }
    }

    /// All wordings of the question.
    pub fn questions(&self) -> impl Iterator<Item = &str> {
        [&self.question].into_iter().chain(&self.forms).map(String::as_str)
    }

    /// Reads `QUESTION=ANSWER`: up to the first `?=`, or to the first `=`. Spaces around it do not count.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse_pair(text: &str) -> Result<Fact, String> {
        let at = text.find("?=").map(|at| at + 1).or_else(|| text.find("? =").map(|at| at + 2));
        let at = at
            .or_else(|| text.find('='))
            .ok_or_else(|| format!("expected QUESTION=ANSWER, found {text:?}"))?;
        Fact::new(text[..at].trim(), text[at + 1..].trim()).checked()
    }

    /// Reads a JSON object with `question`, `answer` and, if there are other wordings, `forms`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Fact, String> {
        let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        Fact::from_value(&value)
    }

    fn from_value(value: &Value) -> Result<Fact, String> {
        let object = value.as_object().ok_or("expected a JSON object with \"question\" and \"answer\"")?;
        if let Some(other) =
            object.keys().find(|key| !["question", "answer", "forms"].contains(&key.as_str()))
        {
            return Err(format!(
                "unknown field \"{other}\", expected \"question\", \"answer\" and \"forms\""
            ));
        }
        let text = |key: &str| match object.get(key) {
            Some(Value::String(text)) => Ok(text.clone()),
            _ => Err(format!("expected a text in \"{key}\"")),
        };
        let forms = match object.get("forms") {
            None => Vec::new(),
            Some(Value::Array(forms)) => {
                let form =
                    |form: &Value| form.as_str().map(String::from).ok_or("expected texts in \"forms\"");
                forms.iter().map(form).collect::<Result<_, _>>()?
            }
            Some(_) => return Err("expected an array in \"forms\"".into()),
        };
        Fact { question: text("question")?, answer: text("answer")?, forms }.checked()
    }

    fn checked(self) -> Result<Fact, String> {
        match self.answer.trim().is_empty() || self.questions().any(|question| question.trim().is_empty()) {
            true => Err("expected a question and an answer, found an empty one".into()),
            false => Ok(self),
        }
    }

    /// Facts as a JSON array.
    pub(super) fn to_json(facts: &[Fact]) -> String {
        let object = |fact: &Fact| match fact.forms.is_empty() {
            true => json!({ "question": fact.question, "answer": fact.answer }),
            false => json!({ "question": fact.question, "answer": fact.answer, "forms": fact.forms }),
        };
        Value::Array(facts.iter().map(object).collect()).to_string()
    }
}

/// The facts that the adapter in `file` was taught; empty if it was made in another way.
///
/// # Errors
/// [`Error::File`] if the file cannot be read as GGUF; [`Error::Option`] if its list of facts is damaged.
pub fn taught_facts(file: &ModelFile) -> Result<Vec<Fact>> {
    let named = |source| Error::from(FileError::Model { name: file.name().into(), source });
    let gguf = file.gguf(&ReadOptions::default())?;
    let Some(text) = gguf.metadata().str(FACTS).map_err(named)? else { return Ok(Vec::new()) };
    let facts = serde_json::from_str::<Vec<Value>>(text).map_err(|error| error.to_string());
    let facts = facts.and_then(|facts| facts.iter().map(Fact::from_value).collect::<Result<_, _>>());
    facts.map_err(|problem| {
        let expected = format!("a JSON array of facts ({problem})");
        Error::Option { name: FACTS, found: file.name().into(), expected }
    })
}
