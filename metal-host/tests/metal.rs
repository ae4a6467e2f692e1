//! Whole models against core, on Metal or on the shim, and what the shim finds. Each kernel's own test
//! is in `src/kernel/`.

mod model;
#[cfg(not(target_os = "macos"))]
mod races;
#[cfg_attr(target_os = "macos", allow(dead_code, reason = "the shim's own tests use the rest"))]
mod tested;
