//! The kernels of `kernels/` as C++ on the CPU: what the shim finds, and whole models against core. Each kernel's own test
//! is in `src/kernel/`.

mod model;
mod races;
mod shim;
