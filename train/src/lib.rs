//! Training: gradients of the forward pass that Shohin runs, and what turns them into better weights.
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;

pub mod adapter;
pub mod batch;
pub mod checkpoint;
pub mod data;
pub mod dropout;
pub mod error;
pub mod gemm;
mod hash;
pub mod loss;
mod op;
pub mod optimizer;
pub mod plan;
pub mod quantize;
pub mod run;
pub mod schedule;
pub mod tape;
pub mod teach;
mod text;
pub mod trainer;

pub use error::{Error, Result};
