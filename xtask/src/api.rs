//! `cargo xtask api`: the public items of the published crates, as lists that are committed, so that a change of them is seen in
//! review.

use std::fs;

use crate::command::{Cmd, Result};
use crate::machine::Machine;
use crate::package::{API, CONVERT, CORE, FILES, HOST, TRAIN};

/// The folder of the lists, and the command that writes them.
const LISTS: &str = "docs/api";
const COMMAND: &str = "cargo xtask api";

/// Writes the lists, or with `check` compares them with the committed ones.
pub(crate) fn run(m: &Machine, check: bool) -> Result<()> {
    m.cargo().args("build --quiet --profile suite").packages(&[API]).run()?;
    let tools = m.target.join("suite");
    let mut changed = Vec::new();
    // The optional parts that are the library's own.
    let packages = [
        (CORE, ""),
        (FILES, ""),
        (CONVERT, ""),
        (TRAIN, ""),
        (HOST, "--features convert,hub,profile,stream,train"),
    ];
    for (package, features) in packages {
        let doc = m.cargo().args("rustdoc --quiet --profile suite --lib").packages(&[package]).args(features);
        let doc = doc.env("RUSTDOC", tools.join("shohin-rustdoc"));
        doc.args("-- -Zunstable-options --output-format json --cap-lints allow").run()?;
        let json = m.target.join("doc").join(format!("{}.json", package.replace('-', "_")));
        let list = Cmd::new(tools.join("shohin-api"), &m.root).arg(json).read()?;
        let file = m.root.join(LISTS).join(format!("{package}.txt"));
        if check {
            let committed = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
            changed
                .extend(difference(&committed, &list).into_iter().map(|line| format!("{package}: {line}")));
        } else {
            fs::write(&file, list).map_err(|e| format!("{}: {e}", file.display()))?;
        }
    }
    for line in &changed {
        println!("{line}");
    }
    if changed.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{} public items are not those of {LISTS}; if that is intended, run `{COMMAND}`",
        changed.len()
    ))
}

/// The lines of only one of two texts, with `-` or `+` before them.
fn difference(before: &str, after: &str) -> Vec<String> {
    let missing = |sign: char, text: &str, other: &str| {
        let other: std::collections::HashSet<&str> = other.lines().collect();
        text.lines()
            .filter(|line| !other.contains(line))
            .map(|line| format!("{sign}{line}"))
            .collect::<Vec<_>>()
    };
    [missing('-', before, after), missing('+', after, before)].concat()
}

#[cfg(test)]
mod tests {
    use super::difference;

    #[test]
    fn items_of_one_list_only_are_named() {
        assert_eq!(difference("pub fn a\npub fn b\n", "pub fn b\npub fn c\n"), ["-pub fn a", "+pub fn c"]);
    }
}
