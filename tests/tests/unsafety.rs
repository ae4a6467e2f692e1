//! `unsafe` is restricted: in core, to kernels, the splitter of the pool, and names for the linker.

use std::fs;
use std::path::{Path, PathBuf};

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

/// The word outside comments and mentions of the lint.
fn uses_unsafe(text: &str) -> bool {
    text.lines().map(|line| line.split("//").next().unwrap_or("")).any(|line| {
        line.replace("unsafe_code", "")
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .any(|w| w == "unsafe")
    })
}

/// Files that call instructions by name, divide buffers among workers, or name functions for the linker.
const KERNELS: [&str; 9] = [
    "cpu/activation_lut.rs",
    "cpu/activations.rs",
    "cpu/activations/simd128.rs",
    "cpu/attention/",
    "cpu/isa.rs",
    "cpu/matmul/",
    "cpu/parallel.rs",
    "cpu/simd/",
    "soft_float.rs",
];

#[test]
fn core_is_safe_outside_kernels() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    assert!(files.len() > 20);
    let mut forbidding = 0;
    for path in files {
        let place = path.strip_prefix(&src).unwrap().to_string_lossy().replace('\\', "/");
        if KERNELS.iter().any(|kernels| place.starts_with(kernels)) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        assert!(!uses_unsafe(&text), "{place}");
        // The parsers and the code that processes untrusted text cannot even be changed by an `allow`.
        let parsers =
            "gguf tokenizer chat quant sample cache arena device session model generate constrain json";
        let forbids = text.contains("#![forbid(unsafe_code)]");
        if parsers.split(' ').any(|m| place.starts_with(m)) && !place.ends_with("tests.rs") {
            assert!(forbids, "{place} should begin with #![forbid(unsafe_code)]");
        }
        forbidding += usize::from(forbids);
    }
    assert!(forbidding > 20, "{forbidding}");
    assert!(uses_unsafe("let x = unsafe { *p };") && !uses_unsafe("// unsafe\n#![forbid(unsafe_code)]"));
}
