//! Matrix products over packed weights: scalar reference and one file per instruction set.

mod parallel;

pub use parallel::for_each_chunk;
