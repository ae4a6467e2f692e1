//! What the tests of all crates share: builders of GGUF files and small models, hostile files, a random
//! source, and an allocator that counts.

pub mod malformed;
pub mod meter;
pub mod random;
pub mod raw;
pub mod reading;

pub use random::Random;

#[global_allocator]
static METER: meter::Meter = meter::Meter;

/// Data that may lie beside the repository; `None` where it does not.
#[cfg(not(target_arch = "wasm32"))]
pub fn shared(path: &str) -> Option<std::path::PathBuf> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
    Some(root.join(path)).filter(|p| p.exists())
}
