//! The workspace's packages by name.

pub(crate) const CONVERT: &str = "shohin-convert";
pub(crate) const CORE: &str = "shohin-core";
pub(crate) const CUDA: &str = "shohin-cuda";
pub(crate) const FILES: &str = "shohin-files";
pub(crate) const GPU: &str = "shohin-gpu";
pub(crate) const METAL: &str = "shohin-metal";
pub(crate) const HOST: &str = "shohin";
pub(crate) const CLI: &str = "shohin-cli";
pub(crate) const FFI: &str = "shohin-ffi";
pub(crate) const EMBEDDED: &str = "shohin-embedded";
pub(crate) const JNI: &str = "shohin-jni";
pub(crate) const SERVER: &str = "shohin-server";
pub(crate) const TESTS: &str = "shohin-tests";
pub(crate) const TRAIN: &str = "shohin-train";
pub(crate) const FUZZ: &str = "shohin-fuzz";
pub(crate) const SCHEDULES: &str = "shohin-schedules";
pub(crate) const WASM: &str = "shohin-wasm";
pub(crate) const WASM_TRAIN: &str = "shohin-wasm-train";
pub(crate) const ACCELERATOR: &str = "shohin-accelerator";
pub(crate) const API: &str = "shohin-api";
pub(crate) const BINDGEN: &str = "shohin-bindgen";

/// The program that [`CLI`] builds.
pub(crate) const PROGRAM: &str = "shohin";
