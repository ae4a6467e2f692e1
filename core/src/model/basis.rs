//! The rotations of a program, see [`hadamard`](super::hadamard).
#![forbid(unsafe_code)]

use alloc::vec::Vec;

/// A rotation of [`Program::bases`](super::program::Program::bases).
#[derive(Clone, Debug, PartialEq)]
pub struct Basis {
    /// Elements of a row.
    pub cols: usize,
    /// Elements that are rotated together, a power of two and a divisor of `cols`.
    pub block: usize,
    /// `s (cols)`; empty if all are 1.
    pub signs: Vec<f32>,
    /// How heads are put side by side before that, if they are.
    pub heads: Option<HeadOrder>,
}

/// An order of heads: head `r * keys + k` goes to place `k * (heads / keys) + r`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadOrder {
    /// Heads of keys.
    pub keys: usize,
    /// All heads, of values.
    pub heads: usize,
}
