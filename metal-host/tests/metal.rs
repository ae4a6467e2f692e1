//! The kernels of `kernels/` as C++ on the CPU, and whole models on them, against core.

mod model;
mod shim;
