//! The text of a template, before it is executed.

use super::error::TemplateError;
use minijinja::machinery::{WhitespaceConfig, ast, parse};

/// Bytes of a template: several times those of the longest that are published.
const MAX_BYTES: usize = 256 << 10;

/// Bytes of a tag, branches of a condition, blocks and operators within each other: what is parsed is as deep as they are many.
const MAX_TAG: usize = 4 << 10;
const MAX_BRANCHES: usize = 64;
const MAX_BLOCKS: usize = 48;
const MAX_OPERATORS: usize = 32;

fn error(line: u32, problem: &'static str, found: impl Into<String>) -> TemplateError {
    TemplateError { line, problem, found: found.into() }
}

/// The text as it is parsed, if it can be.
pub(super) fn prepared(source: &str) -> Result<String, TemplateError> {
    if source.len() > MAX_BYTES {
        return Err(error(1, "is too long", format!("{} bytes, at most {MAX_BYTES}", source.len())));
    }
    let source = without_marks(&source.replace("\r\n", "\n"))?;
    parsed(&source)?;
    Ok(source)
}

/// An expression without what its strings say.
fn bare(inner: &str) -> String {
    let (mut quote, mut escaped) = (None, false);
    let kept = inner.chars().filter(|c| {
        match (quote, *c) {
            (Some(_), _) if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(*c),
            (None, _) => return true,
        }
        false
    });
    kept.collect()
}

/// How deep brackets of an expression are within each other, or signs and `not` before a value, whichever is more.
fn nesting(bare: &str) -> usize {
    let (mut depth, mut deepest, mut signs) = (0_usize, 0, 0);
    for c in bare.chars() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        signs = match c {
            '-' | '+' => signs + 1,
            c if c.is_whitespace() => signs,
            _ => 0,
        };
        deepest = deepest.max(depth).max(signs);
    }
    deepest.max(bare.matches("not").count())
}

/// How many blocks a tag with this first word opens.
fn opened(word: &str, inner: &str) -> isize {
    match word {
        "for" | "if" | "macro" | "with" | "filter" | "call" | "autoescape" | "generation" => 1,
        "set" if !inner.contains('=') => 1,
        word if word.starts_with("end") => -1,
        _ => 0,
    }
}

/// Checks the tags, and replaces those around what the model generates, which only training knows, by conditions that hold.
fn without_marks(source: &str) -> Result<String, TemplateError> {
    let (mut out, mut rest) = (String::with_capacity(source.len()), source);
    let (mut branches, mut blocks) = (0, 0);
    let mut line = 1;
    while let Some(at) = rest.find("{%").into_iter().chain(rest.find("{{")).chain(rest.find("{#")).min() {
        let lines = |text: &str| text.matches('\n').count() as u32;
        line += lines(&rest[..at]);
        let tag = &rest[at..];
        let close = match tag.as_bytes()[1] {
            b'%' => "%}",
            b'{' => "}}",
            _ => "#}",
        };
        let Some(len) = tag[2..].find(close).map(|len| len + 4) else { break };
        let tag = &tag[..len];
        out.push_str(&rest[..at]);
        let inner = tag[2..len - 2].trim_matches(['-', '+']).trim();
        let bare = if close == "#}" { String::new() } else { bare(inner) };
        if bare.len() > MAX_TAG {
            let found = format!("{} bytes, at most {MAX_TAG}", bare.len());
            return Err(error(line, "has a tag that is too long", found));
        }
        let word = inner.split(|c: char| c.is_whitespace() || c == '(').next().unwrap_or_default();
        match (close, word) {
            ("%}", "generation") if inner == word => out.push_str(&tag.replacen(word, "if true", 1)),
            ("%}", "endgeneration") if inner == word => out.push_str(&tag.replacen(word, "endif", 1)),
            _ => out.push_str(tag),
        }
        if close == "%}" {
            blocks += opened(word, &bare);
        }
        let is_deep = blocks > MAX_BLOCKS as isize || nesting(&bare) > MAX_OPERATORS;
        if is_deep {
            return Err(error(line, "is nested too deep", ""));
        }
        branches = match (close, word) {
            ("%}", "elif") => branches + 1,
            ("%}", "endif") => 0,
            _ => branches,
        };
        if branches > MAX_BRANCHES {
            return Err(error(
                line,
                "has a condition with too many branches",
                format!("at most {MAX_BRANCHES}"),
            ));
        }
        line += lines(tag);
        rest = &rest[at + len..];
    }
    out.push_str(rest);
    Ok(out)
}

/// The statements of a text.
pub(super) fn parsed(source: &str) -> Result<ast::Stmt<'_>, TemplateError> {
    let whitespace =
        WhitespaceConfig { keep_trailing_newline: false, lstrip_blocks: true, trim_blocks: true };
    parse(source, "chat template", Default::default(), whitespace).map_err(|failed| {
        let line = failed.line().and_then(|line| u32::try_from(line).ok()).unwrap_or(1);
        error(line, "cannot be read", failed.detail().unwrap_or("syntax error"))
    })
}
