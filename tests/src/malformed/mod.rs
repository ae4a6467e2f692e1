//! Hostile files: cases that broke real parsers, each as a test that runs natively and in WebAssembly.
//!
//! The cases are plain functions that panic on failure; the `ALL` of each module lists them.

pub mod container;
pub mod model;

macro_rules! cases {
    ($($(#[doc = $doc:literal])* fn $name:ident() $body:block)*) => {
        $($(#[doc = $doc])* pub fn $name() $body)*

        /// Every case with its name.
        pub const ALL: &[(&str, fn())] = &[$((stringify!($name), $name)),*];
    };
}

use cases;

/// Every case with its name.
pub fn all() -> impl Iterator<Item = (&'static str, fn())> {
    container::ALL.iter().chain(model::ALL).copied()
}
