//! Fuzz targets: one for every reader and parser, and for pairs of ways that must agree.
//!
//! A [`Target`] is a function of any bytes that panics if a promise of docs/SECURITY.md is broken. `tests/mutations.rs`
//! runs each over its seeds, `corpus/` and mutations of them with a fixed sequence; `cargo xtask fuzz` runs them with
//! libFuzzer and the address sanitizer.

pub mod mutate;
mod targets;

use mutate::Form;
use std::fs;
use std::path::Path;

/// What a fuzzer calls.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, and that of its folder in `corpus/`.
    pub name: &'static str,
    /// What it checks.
    pub about: &'static str,
    /// Panics if a promise is broken.
    pub run: fn(&[u8]),
    /// Valid inputs.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// What the mutator knows of its inputs.
    pub form: Form,
    /// Mutations in the test suite: some seconds of a core for all targets together.
    pub quick: usize,
}

impl Target {
    /// The target of this name.
    pub fn named(name: &str) -> Option<&'static Target> {
        targets::ALL.iter().find(|target| target.name == name)
    }

    /// Every target, fastest first.
    pub fn all() -> &'static [Target] {
        targets::ALL
    }

    /// The seeds, and the inputs that are kept in `corpus/`, in the order of their names.
    pub fn inputs(&self) -> Vec<Vec<u8>> {
        let mut inputs = (self.seeds)();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(self.name);
        let mut paths: Vec<_> =
            fs::read_dir(folder).into_iter().flatten().flatten().map(|file| file.path()).collect();
        paths.sort();
        inputs.extend(paths.iter().filter_map(|path| fs::read(path).ok()));
        inputs
    }
}
