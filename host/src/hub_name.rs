//! Names of models on the Hugging Face Hub.

use crate::error::{Error, HubError, Result};
use shohin_core::json::Value;
use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

/// The revision that a name without one means.
pub(crate) const MAIN: &str = "main";

/// A published model that is known by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishedModel {
    /// The name.
    pub name: &'static str,
    /// Its repository, `owner/name`.
    pub repository: &'static str,
    /// The file.
    pub file: &'static str,
    /// Size of the file when it was published.
    pub bytes: u64,
    /// SHA-256 of the file in hexadecimal digits.
    pub sha256: &'static str,
}

/// The models that are known by their names, smallest first.
pub fn published() -> &'static [PublishedModel] {
    static MODELS: LazyLock<Vec<PublishedModel>> = LazyLock::new(|| {
        let rows = Value::parse(include_str!("../data/published.json")).ok().and_then(Value::elements);
        let model = |row: Value<'static>| {
            // Without the quotes; no text has an escape.
            let text = |name| Some(row.get(name)?.text().trim_matches('"'));
            Some(PublishedModel {
                name: text("name")?,
                repository: text("repository")?,
                file: text("file")?,
                bytes: text("bytes")?.parse().ok()?,
                sha256: text("sha256")?,
            })
        };
        rows.into_iter().flatten().filter_map(model).collect()
    });
    &MODELS
}

/// The names of the published models, smallest first, with commas between them.
pub fn published_names() -> String {
    let names: Vec<&str> = published().iter().map(|model| model.name).collect();
    names.join(", ")
}

/// A model on the Hub. Parses from the name of a published model, from the address of a page of the Hub, or from
/// `hf:owner/repository`, with `@revision` if it is not `main`. `/file` or `:file` names one of its files, `:Q4_K_M` the GGUF file
/// of this format; without them, the repository has a single GGUF file, or none but a folder of safetensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubModel {
    pub(crate) repository: String,
    pub(crate) revision: String,
    pub(crate) file: Option<String>,
    /// The format in the file's name.
    pub(crate) tag: Option<String>,
    pub(crate) sha256: Option<String>,
}

impl HubModel {
    /// Accepts only a file with this SHA-256, in hexadecimal digits, as the names of published models do. Models in
    /// parts have no checksum of the whole.
    #[must_use]
    pub fn with_sha256(mut self, digits: &str) -> HubModel {
        self.sha256 = Some(digits.to_ascii_lowercase());
        self
    }

    /// The repository, `owner/name`.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The file, if it was named.
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// Whether a text names a model on the Hub rather than a file of this machine.
    pub fn is_named_by(text: &str) -> bool {
        let is_published = || published().iter().any(|model| model.name.eq_ignore_ascii_case(text));
        text.starts_with("hf:") || address(text).is_some() || is_published()
    }

    /// Compares a checksum, if it is known, with the one that the file must have.
    pub(crate) fn expect(&self, found: Option<&str>) -> std::result::Result<(), HubError> {
        match (&self.sha256, found) {
            (Some(expected), Some(found)) if !expected.eq_ignore_ascii_case(found) => {
                Err(HubError::Changed {
                    expected: expected.clone(),
                    found: found.into(),
                    file: self.to_string(),
                })
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for HubModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf:{}", self.repository)?;
        if self.revision != MAIN {
            write!(f, "@{}", self.revision)?;
        }
        self.file.iter().try_for_each(|file| write!(f, "/{file}"))?;
        self.tag.iter().try_for_each(|tag| write!(f, ":{tag}"))
    }
}

impl FromStr for HubModel {
    type Err = Error;

    fn from_str(text: &str) -> Result<HubModel> {
        let wrong = || Error::Option {
            name: "model",
            found: text.into(),
            expected: format!("one of {}, or hf:owner/repository/file", published_names()),
        };
        if let Some(page) = address(text) {
            return in_page(page).ok_or_else(wrong);
        }
        let Some(rest) = text.strip_prefix("hf:") else {
            let model =
                published().iter().find(|model| model.name.eq_ignore_ascii_case(text)).ok_or_else(wrong)?;
            let (repository, revision) = (model.repository.into(), MAIN.into());
            let (file, sha256) = (Some(model.file.into()), Some(model.sha256.into()));
            return Ok(HubModel { repository, revision, file, tag: None, sha256 });
        };
        let (owner, rest) = rest.split_once('/').ok_or_else(wrong)?;
        let end = rest.find(['/', ':', '@']).unwrap_or(rest.len());
        let (name, rest) = rest.split_at(end);
        let (revision, rest) = match rest.strip_prefix('@') {
            Some(rest) => rest.split_at(rest.find(['/', ':']).unwrap_or(rest.len())),
            None => (MAIN, rest),
        };
        let (file, tag) = match rest.strip_prefix(':') {
            Some(tag) if is_tag(tag) => (None, Some(tag)),
            _ => (rest.get(1..), None),
        };
        of_words(owner, name, revision, file, tag).ok_or_else(wrong)
    }
}

/// A model if each word can be one of its name.
fn of_words(
    owner: &str,
    name: &str,
    revision: &str,
    file: Option<&str>,
    tag: Option<&str>,
) -> Option<HubModel> {
    let is_word = |word: &str| {
        let letters = word.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
        letters && !word.is_empty() && !word.starts_with(['.', '-']) && !word.contains("..")
    };
    if ![owner, name, revision].into_iter().all(is_word) || !file.is_none_or(is_relative) {
        return None;
    }
    // The name of no format.
    let tag = tag.filter(|tag| !tag.eq_ignore_ascii_case("latest")).map(String::from);
    let (repository, file) = (format!("{owner}/{name}"), file.map(String::from));
    Some(HubModel { repository, revision: revision.into(), file, tag, sha256: None })
}

/// Whether a word is a format rather than a file.
fn is_tag(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
}

/// What follows the name of the Hub in the address of one of its pages.
fn address(text: &str) -> Option<&str> {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).unwrap_or(text);
    let rest = rest.strip_prefix("www.").unwrap_or(rest);
    ["huggingface.co/", "hf.co/"].into_iter().find_map(|host| rest.strip_prefix(host))
}

/// The model of a page: `owner/repository`, and there `blob/revision/file` or `tree/revision`.
fn in_page(page: &str) -> Option<HubModel> {
    let page = page.split(['?', '#']).next()?.trim_end_matches('/');
    let mut words = page.splitn(5, '/');
    let (owner, name) = (words.next()?, words.next()?);
    let (name, tag) = match name.split_once(':') {
        Some((name, tag)) if is_tag(tag) => (name, Some(tag)),
        Some(_) => return None,
        None => (name, None),
    };
    match (words.next(), words.next().unwrap_or(MAIN), words.next()) {
        (None | Some("tree"), revision, None) => of_words(owner, name, revision, None, tag),
        (Some("blob" | "resolve" | "raw"), revision, Some(file)) if tag.is_none() => {
            of_words(owner, name, revision, Some(file), None)
        }
        _ => None,
    }
}

/// Whether a path stays within its directory.
pub(crate) fn is_relative(path: &str) -> bool {
    let is_name = |part: &str| {
        let plain = part.chars().all(|c| !c.is_control() && !"\\:*?\"<>|".contains(c));
        plain && !part.is_empty() && part != "." && part != ".."
    };
    path.split('/').all(is_name)
}
