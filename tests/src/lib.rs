//! Test support for all crates: builders of GGUF files and small models, hostile files, a random source, a
//! counting allocator, and models on the CPU.

#[cfg(not(target_arch = "wasm32"))]
pub mod adapted;
pub mod case;
pub mod cpu;
#[cfg(not(target_arch = "wasm32"))]
pub mod device;
pub mod long_rope;
pub mod lora;
pub mod malformed;
pub mod meter;
pub mod model;
pub mod parts;
pub mod random;
#[cfg(not(target_arch = "wasm32"))]
pub mod random_models;
pub mod raw;
pub mod reading;
pub mod rounds;
#[cfg(not(target_arch = "wasm32"))]
pub mod shim;
pub mod vocabulary;
pub mod weights;

pub use random::Random;

#[global_allocator]
static METER: meter::Meter = meter::Meter;

/// A file of the folder that the environment variable `SHOHIN_DATA` names, or of `fixtures/`; `None` if it is in neither.
#[cfg(not(all(target_arch = "wasm32", target_os = "unknown")))]
pub fn data(path: &str) -> Option<Vec<u8>> {
    let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let mut folders =
        std::env::var_os("SHOHIN_DATA").map(std::path::PathBuf::from).into_iter().chain([fixtures]);
    folders.find_map(|folder| std::fs::read(folder.join(path)).ok())
}

/// The path of SmolLM2-135M-Instruct: the file named by the environment variable `SHOHIN_SMOLLM2`, otherwise
/// the one fetched by `cargo xtask test --only smollm2`. `None`, with a message, if there is no such file or
/// if the variable is empty.
#[cfg(not(all(target_arch = "wasm32", target_os = "unknown")))]
pub fn smollm2_path() -> Option<std::path::PathBuf> {
    use std::path::{Path, PathBuf};
    let Some(named) = std::env::var_os("SHOHIN_SMOLLM2") else {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
        let fetched = Some(root.join(target).join("models/smollm2.gguf")).filter(|file| file.is_file());
        if fetched.is_none() {
            println!("SKIPPED: no SmolLM2; `cargo xtask test --only smollm2` fetches it");
        }
        return fetched;
    };
    if named.is_empty() {
        println!("SKIPPED: SHOHIN_SMOLLM2 is empty");
        return None;
    }
    Some(PathBuf::from(named))
}

/// The bytes of that file.
///
/// # Panics
/// If it cannot be read.
#[cfg(not(all(target_arch = "wasm32", target_os = "unknown")))]
pub fn smollm2() -> Option<Vec<u8>> {
    let path = smollm2_path()?;
    Some(std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
}
