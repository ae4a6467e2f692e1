//! The Swift package against the header, by clang's modules: there is no Swift compiler.
#![cfg(unix)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The names of C in Swift sources, without those in comments.
fn names(sources: &[PathBuf]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for source in sources {
        let text = std::fs::read_to_string(source).unwrap();
        let code = text.lines().map(|line| line.split("//").next().unwrap());
        let words = code.flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
        names.extend(words.filter(|word| word.to_lowercase().starts_with("shohin_")).map(String::from));
    }
    names
}

/// Whether clang accepts a program that imports the module.
fn accepts(clang: &str, module: &Path, body: &str) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("uses.m");
    std::fs::write(&program, format!("@import CShohin;\nint main(void) {{\n{body}return 0;\n}}\n")).unwrap();
    let mut command = Command::new(clang);
    command.args(["-fmodules", "-fsyntax-only", "-Wall", "-Werror", "-Wno-unused-value"]);
    command.arg(format!("-fmodules-cache-path={}", dir.path().join("cache").display()));
    command.arg("-I").arg(module).arg("-I").arg(root().join("include")).arg(&program);
    let output = command.output().unwrap_or_else(|e| panic!("{clang}: {e}"));
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

#[test]
fn ffi_swift_package() {
    let clang = std::env::var("CLANGXX").unwrap_or_else(|_| "clang".into());
    if Command::new(&clang).arg("--version").output().is_err() {
        println!("skipped: there is no clang");
        return;
    }
    let swift = root().join("swift/Sources/Shohin");
    let sources: Vec<PathBuf> = swift.read_dir().unwrap().map(|file| file.unwrap().path()).collect();
    let names = names(&sources);
    assert!(names.len() > 40, "{names:?}");
    let module = root().join("swift/Sources/CShohin");
    let header = std::fs::read_to_string(root().join("include/shohin.h")).unwrap();
    let mut body = String::new();
    for name in &names {
        let is_type = header.contains(&format!("}} {name};"));
        body += &if is_type { format!("  (void)sizeof({name});\n") } else { format!("  (void){name};\n") };
    }
    accepts(&clang, &module, &body).unwrap();
    assert!(accepts(&clang, &module, "  (void)shohin_no_such_function;\n").is_err());

    // The framework's own module map, which names the header without a shim.
    let script = std::fs::read_to_string(root().join("swift/build-xcframework.sh")).unwrap();
    let map = script.split("printf '").nth(1).unwrap().split('\'').next().unwrap().replace("\\n", "\n");
    let headers = tempfile::tempdir().unwrap();
    std::fs::copy(root().join("include/shohin.h"), headers.path().join("shohin.h")).unwrap();
    std::fs::write(headers.path().join("module.modulemap"), map).unwrap();
    accepts(&clang, headers.path(), &body).unwrap();
}
