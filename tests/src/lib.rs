//! What the tests of all crates share: builders of GGUF files and small models, hostile files, a random
//! source, an allocator that counts, and models on the CPU.

pub mod cpu;
pub mod malformed;
pub mod meter;
pub mod model;
pub mod parts;
pub mod random;
pub mod raw;
pub mod reading;
pub mod vocabulary;
pub mod weights;

pub use random::Random;

#[global_allocator]
static METER: meter::Meter = meter::Meter;

/// Data that lies beside the repository, or in a part in `fixtures/`; `None` where neither is the case.
#[cfg(not(all(target_arch = "wasm32", target_os = "unknown")))]
pub fn data(path: &str) -> Option<Vec<u8>> {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let places = [here.join("../../shared/data").join(path), here.join("fixtures").join(path)];
    places.iter().find_map(|p| std::fs::read(p).ok())
}

/// The README's Rust compiles.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;
