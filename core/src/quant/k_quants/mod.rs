//! K-quants: 256 weights in groups of 16 or 32, whose scales are integers times one scale of the block.
#![forbid(unsafe_code)]

mod q2_k;
mod q3_k;
mod q4_k;
mod q5_k;
mod q6_k;
mod q8_k;

pub(crate) use q2_k::Q2K;
pub(crate) use q3_k::Q3K;
pub(crate) use q4_k::Q4K;
pub(crate) use q5_k::Q5K;
pub(crate) use q6_k::Q6K;
pub(crate) use q8_k::Q8K;
