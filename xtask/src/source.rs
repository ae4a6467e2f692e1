//! Source rules that the compiler does not check.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::Result;
use crate::imports;

/// Panicking calls, split so that this file does not match.
const PANICS: [&str; 5] = [
    concat!(".unw", "rap()"),
    concat!(".exp", "ect("),
    concat!("pan", "ic!("),
    concat!("unreach", "able!("),
    concat!("asse", "rt!("),
];
const UNFINISHED: [&str; 4] =
    [concat!("to", "do!("), concat!("unimpl", "emented!("), concat!("FIX", "ME"), concat!("XX", "X")];

/// Crates whose files do not use each other in a circle.
const WITHOUT_CIRCLES: [&str; 10] =
    ["accelerator", "cli", "convert", "core", "files", "gpu", "host", "metal-host", "train", "wasm"];

/// The folder beside a checkout with data that a user of the repository does not have.
const BESIDE: &str = concat!("../sha", "red");

/// Beginnings of doc comments in which the trade says Maximum and Minimum.
const SUPERLATIVES: [&str; 2] = ["Most ", "Fewest "];

/// File names that do not describe their content.
const VAGUE: [&str; 8] = ["util", "utils", "helper", "helpers", "misc", "common", "types", "functions"];

/// Checks every source file and lists violations.
pub(crate) fn check(root: &Path) -> Result<()> {
    let mut files = Vec::new();
    collect(root, root, &mut files);
    let mut broken = Vec::new();
    for file in &files {
        let name = file.to_string_lossy().replace('\\', "/");
        let Ok(text) = fs::read_to_string(root.join(file)) else { continue };
        let stem = file.file_stem().unwrap_or_default().to_string_lossy();
        if VAGUE.contains(&stem.as_ref()) && !name.ends_with(".md") {
            broken.push(format!("{name}: the file name says nothing about its content"));
        }
        for (number, line) in text.lines().enumerate() {
            if UNFINISHED.iter().any(|mark| line.contains(mark)) {
                broken.push(format!("{name}:{}: unfinished: {}", number + 1, line.trim()));
            }
        }
        if text.contains(BESIDE) {
            broken.push(format!("{name}: it needs {BESIDE}, which is not in the repository"));
        }
        if name.ends_with(".rs") {
            broken.extend(superlatives(&name, &text));
            if name.starts_with("core/src/") {
                broken.extend(core_rules(&name, &text));
            }
        }
    }
    for name in WITHOUT_CIRCLES {
        let src = root.join(name).join("src");
        let file =
            Some(src.join("lib.rs")).filter(|file| file.is_file()).unwrap_or_else(|| src.join("main.rs"));
        let root = format!("{}/", root.display());
        broken.extend(imports::circles(&file)?.into_iter().map(|line| line.replace(&root, "")));
    }
    for lock in ["Cargo.lock", "package-lock.json"] {
        let text = fs::read_to_string(root.join(lock)).map_err(|e| format!("{lock}: {e}"))?;
        broken.extend(
            unpinned(&text)
                .into_iter()
                .map(|line| format!("{lock}: not a pinned package of the registry: {line}")),
        );
    }
    for line in &broken {
        println!("{line}");
    }
    println!("{} files checked, {} violations", files.len(), broken.len());
    if broken.is_empty() { Ok(()) } else { Err(format!("{} violations of the source rules", broken.len())) }
}

/// Packages of a lock file that do not come from a public registry, or whose contents have no hash.
fn unpinned(lock: &str) -> Vec<String> {
    let mut lines = lock.lines().map(str::trim).peekable();
    let mut wrong = Vec::new();
    while let Some(line) = lines.next() {
        let (registry, hash) = match line.split_once(' ') {
            Some(("source", rest)) => {
                (rest.contains("registry+https://github.com/rust-lang/crates.io-index"), "checksum = ")
            }
            Some(("\"resolved\":", rest)) if rest.starts_with("\"http") || rest.contains("git") => {
                (rest.starts_with("\"https://registry.npmjs.org/"), "\"integrity\":")
            }
            _ => continue,
        };
        if !registry || !lines.peek().is_some_and(|next| next.starts_with(hash)) {
            wrong.push(line.to_string());
        }
    }
    wrong
}

/// Doc comments that begin with one of [`SUPERLATIVES`].
fn superlatives(name: &str, text: &str) -> Vec<String> {
    let doc = |line: &str| {
        let text = line.strip_prefix("/// ").or_else(|| line.strip_prefix("//! "));
        text.is_some_and(|text| SUPERLATIVES.iter().any(|word| text.starts_with(word)))
    };
    let found = text.lines().enumerate().filter(|(_, line)| doc(line.trim()));
    found.map(|(at, line)| format!("{name}:{}: Maximum or Minimum: {}", at + 1, line.trim())).collect()
}

/// Library code of core does not panic: a comment on the line of a panicking call, or above it, explains why
/// it cannot happen.
fn core_rules(name: &str, text: &str) -> Vec<String> {
    let mut broken = Vec::new();
    let is_test = name.ends_with("/tests.rs") || name.contains("/tests/");
    let mut reasoned = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if is_test || line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test") {
            break;
        }
        // A const block fails at compile time.
        let comment = line.contains("//") || line.starts_with("const _") || line.starts_with("const {");
        let found =
            PANICS.iter().any(|word| line.split("//").next().is_some_and(|code| starts_word(code, word)));
        if found && !comment && !reasoned {
            broken.push(format!(
                "{name}:{}: a panicking call without a comment on why it cannot happen: {line}",
                number + 1
            ));
        }
        reasoned = comment;
    }
    broken
}

/// Whether a line of code contains the word, not as the end of a longer one (`debug_assert!` is not `assert!`).
fn starts_word(code: &str, word: &str) -> bool {
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        word.starts_with('.') || !before.is_some_and(|c| c == '_' || c.is_alphanumeric())
    })
}

/// Collects source files by path relative to the root, without directories ignored by git.
fn collect(root: &Path, dir: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        let ignored =
            ["target", "node_modules", "dist", "pkg", "module", ".git", ".venv"].contains(&name.as_str());
        if path.is_dir() && !ignored {
            collect(root, &path, files);
        } else if path.is_file() {
            let kinds = ["rs", "ts", "mjs", "js", "py", "toml", "md", "wgsl", "css", "html"];
            let kind = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
            if kinds.contains(&kind) {
                files.extend(path.strip_prefix(root).ok().map(Path::to_path_buf));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_pinned_and_of_a_registry() {
        let good = "source = \"registry+https://github.com/rust-lang/crates.io-index\"\nchecksum = \"00\"\n\
            \"resolved\": \"https://registry.npmjs.org/a.tgz\",\n\"integrity\": \"sha512-0\",\n\"resolved\": \"wasm\",\n";
        assert!(unpinned(good).is_empty(), "{:?}", unpinned(good));
        for bad in [
            "source = \"git+https://x\"\nchecksum = 1",
            "source = \"registry+https://github.com/rust-lang/crates.io-index\"",
        ] {
            assert_eq!(unpinned(bad).len(), 1);
        }
        assert_eq!(unpinned("\"resolved\": \"https://evil/a.tgz\",\n\"integrity\": \"x\"").len(), 1);
        assert_eq!(unpinned("\"resolved\": \"https://registry.npmjs.org/a.tgz\"").len(), 1);
    }

    #[test]
    fn doc_comments_say_maximum() {
        let text = format!("/// {}bytes.\n/// Nearly all.\n// {}bytes.\n", SUPERLATIVES[0], SUPERLATIVES[1]);
        assert_eq!(superlatives("a.rs", &text).len(), 1);
    }

    #[test]
    fn a_panic_needs_a_reason_and_tests_need_none() {
        let bad = format!("let x = y{};", PANICS[0]);
        assert_eq!(core_rules("core/src/a.rs", &bad).len(), 1);
        let good = format!("// the length was checked above\n{bad}\n#[cfg(test)]\n{bad}");
        assert!(core_rules("core/src/a.rs", &good).is_empty());
        assert!(core_rules("core/src/a/tests.rs", &bad).is_empty());
        assert!(core_rules("core/src/a.rs", &format!("debug_{}x);", PANICS[4])).is_empty());
    }
}
