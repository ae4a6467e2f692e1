//! Compiles the libraries of `shim/`.

use shohin_tests::shim::Compiler;
use std::path::{Path, PathBuf};

/// Set this to check every access of the kernels. The address sanitizer has to be loaded first:
/// `LD_PRELOAD=$(gcc -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0`.
const SANITIZE: &str = "SHOHIN_SANITIZE";

/// The library of `shim/<source>`, whose name is `name` for those who load it.
pub(crate) fn build(source: &str, name: &str) -> PathBuf {
    // Also for the tests of the program.
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../cuda-host");
    let compiler = Compiler {
        variable: "CXX",
        name: "g++",
        flags: &["-Wno-unknown-pragmas"],
        folders: &[&format!("{folder}/kernels"), &format!("{folder}/shim")],
    };
    let name = format!("-Wl,-soname,{name}");
    let sanitize = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"];
    let checks = if std::env::var_os(SANITIZE).is_some() { &sanitize[..] } else { &[] };
    compiler.library(&[&[&*name][..], checks].concat(), &Path::new(folder).join("shim").join(source))
}
