//! The header against the Rust: the same functions, structs and numbers.

use shohin_ffi::argument::SHOHIN_CSTR;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::path::Path;

/// A C source without comments, directives (but `#define NAME NUMBER`) and needless spaces.
fn declarations(source: &str) -> BTreeMap<String, String> {
    let mut plain = String::new();
    let mut rest = source;
    while let Some((before, comment)) = rest.split_once("/*") {
        plain.extend([before, " "]);
        rest = comment.split_once("*/").unwrap().1;
    }
    plain.push_str(rest);
    let (mut found, mut code) = (BTreeMap::new(), String::new());
    for line in plain.lines().map(str::trim) {
        if let Some(define) = line.strip_prefix("#define ") {
            if let Some((name, number)) = define.split_once(' ') {
                found.insert(name.into(), number.trim().into());
            }
        } else if !line.starts_with('#') && !line.starts_with("extern \"C\"") {
            code.extend([line, " "]);
        }
    }
    let (mut depth, mut statement) = (0, String::new());
    for c in code.chars() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if c != ';' || depth > 0 {
            statement.push(c);
            continue;
        }
        let text = normal(&statement);
        if let Some((name, text)) = named(&text) {
            assert_eq!(found.insert(name, text), None, "declared twice: {statement}");
        }
        statement.clear();
    }
    found
}

/// Spaces only between words, and `const T *` always in this order.
fn normal(text: &str) -> String {
    let mut out = String::new();
    let word = |c: char| c.is_alphanumeric() || c == '_';
    for part in text.split_whitespace() {
        if out.chars().last().is_some_and(word) && part.starts_with(word) {
            out.push(' ');
        }
        out.push_str(part);
    }
    out.trim_start_matches('}').replace("(void)", "()").replace(",}", "}")
}

/// The name that a declaration gives, and the declaration.
fn named(text: &str) -> Option<(String, String)> {
    let last =
        |text: &str| text.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap().to_string();
    if text.is_empty() {
        return None;
    }
    let name = match text.split_once("(*") {
        Some((_, rest)) if text.starts_with("typedef") => rest.split_once(')')?.0.into(),
        _ if text.starts_with("typedef") => last(text),
        _ => last(text.split_once('(')?.0),
    };
    // C names structs twice; one is enough.
    let text = text
        .trim_start_matches("extern ")
        .replace("struct shohin_", "shohin_")
        .replace("enum shohin_", "shohin_");
    Some((name, text))
}

/// `typedef enum shohin_code{SHOHIN_OK=0,...}shohin_code` against the table of codes.
fn compare_codes(declared: &str) {
    let body = declared.split_once('{').unwrap().1.split_once('}').unwrap().0;
    let mut codes: BTreeMap<i32, String> = BTreeMap::new();
    for row in body.split(',').filter(|row| !row.is_empty()) {
        let (name, number) = row.split_once('=').unwrap();
        codes.insert(number.parse().unwrap(), name.trim_start_matches("SHOHIN_").to_lowercase());
    }
    for number in -1000..1000 {
        let name = shohin_ffi::code::shohin_code_name(number);
        // SAFETY: not NULL, and a text with a NUL at its end.
        let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_str().unwrap());
        assert_eq!(codes.get(&number).map(String::as_str), name, "{number}");
    }
}

/// Where the part of the header begins that is not this library's.
const EMBEDDED: &str = "/* ---- Without an operating system ----";

/// Both parts of the header.
fn header() -> (String, String) {
    let header = std::fs::read_to_string(root().join("include/shohin.h")).unwrap();
    let (ours, embedded) = header.split_once(EMBEDDED).unwrap();
    (ours.into(), format!("/*{embedded}"))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What cbindgen makes of a crate.
fn generated(library: &str) -> String {
    let config =
        cbindgen::Config { language: cbindgen::Language::C, usize_is_size_t: true, ..Default::default() };
    // It follows `mod`.
    let builder = cbindgen::Builder::new().with_config(config).with_src(root().join(library));
    let mut generated = Vec::new();
    builder.generate().unwrap().write(&mut generated);
    String::from_utf8(generated).unwrap()
}

/// Functions that the Rust files of a folder export.
fn exported(folder: &str) -> usize {
    let files = root().join(folder).read_dir().unwrap().map(|file| file.unwrap().path());
    let count = |file| std::fs::read_to_string(file).unwrap().matches("#[unsafe(no_mangle)]").count();
    files.map(count).sum()
}

fn functions(all: &BTreeMap<String, String>) -> impl Iterator<Item = &String> {
    let is_function = |text: &str| text.ends_with(')') && !text.starts_with("typedef");
    all.iter().filter(move |(_, text)| is_function(text)).map(|(name, _)| name)
}

/// The library without an operating system has the calls that the header lists, as they are declared, and its own.
#[test]
fn the_embedded_library_is_a_part_of_the_header() {
    let (shared, embedded) = header();
    let generated = generated("embedded/src/lib.rs");
    let (rust, shared, own) = (declarations(&generated), declarations(&shared), declarations(&embedded));
    for (name, text) in &rust {
        assert_eq!(shared.get(name).or(own.get(name)), Some(text), "{name} in shohin.h and in Rust");
    }
    let list = embedded.split_once("*/").unwrap().0;
    let listed = |name: &str| list.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == name);
    for name in functions(&rust).filter(|name| shared.contains_key(*name)) {
        assert!(listed(name), "{name} is not in the list of shohin.h");
    }
    for name in functions(&shared).filter(|name| listed(name)) {
        assert!(rust.contains_key(name), "{name} is in the list of shohin.h, but not in Rust");
    }
    for name in functions(&own) {
        assert!(rust.contains_key(name), "{name} of shohin.h is not in Rust");
    }
    let also = ["calls.rs", "code.rs", "options.rs", "version.rs"].map(|file| {
        let source = std::fs::read_to_string(root().join("src").join(file)).unwrap();
        source.matches("#[unsafe(no_mangle)]").count()
    });
    // The last one is the program's.
    let exported = exported("embedded/src") + also.iter().sum::<usize>() + 1;
    assert_eq!(functions(&rust).count(), exported, "cbindgen misses functions:\n{generated}");
}

#[test]
fn the_header_is_the_rust() {
    let generated = generated("src/lib.rs");
    let (ours, rust) = (declarations(&header().0), declarations(&generated));
    let exported = exported("src");
    assert!(exported > 20);
    assert_eq!(functions(&rust).count(), exported, "cbindgen misses functions:\n{generated}");
    assert_eq!(functions(&ours).count(), exported);
    for (name, text) in &rust {
        assert_eq!(ours.get(name), Some(text), "{name} in shohin.h and in Rust");
    }
    // cbindgen does not know its value, and does not expand the macro of the codes.
    assert_eq!((ours["SHOHIN_CSTR"].as_str(), SHOHIN_CSTR), ("SIZE_MAX", usize::MAX));
    compare_codes(&ours["shohin_code"]);
    for name in ours.keys().filter(|name| !["SHOHIN_CSTR", "shohin_code"].contains(&name.as_str())) {
        assert!(rust.contains_key(name), "{name} of shohin.h is not in Rust");
    }
}

#[test]
fn declarations_are_compared_by_meaning() {
    let a = declarations(
        "typedef struct a { size_t size; /* x */ const char *text; } a;\nint f(const char *a, size_t n);",
    );
    let b = declarations(
        "typedef struct a {\n size_t size;\n const char  * text;\n} a; int f(const char *a,\n size_t n);",
    );
    assert_eq!(a, b);
    assert_eq!(a.len(), 2);
    for other in ["int f(char *a, size_t n);", "int f(const char *a);", "int f(const char *a, uint32_t n);"] {
        assert_ne!(declarations(other).get("f"), a.get("f"), "{other}");
    }
}
