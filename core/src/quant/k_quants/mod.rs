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

/// Writes 256 2-bit codes: each byte of 32 has those of four weights, 32 apart.
fn put_planes(codes: &[u8; 256], bytes: &mut [u8]) {
    for (codes, bytes) in codes.as_chunks::<128>().0.iter().zip(bytes.as_chunks_mut::<32>().0) {
        for (m, b) in bytes.iter_mut().enumerate() {
            *b = codes[m] | codes[m + 32] << 2 | codes[m + 64] << 4 | codes[m + 96] << 6;
        }
    }
}

/// The largest of `values`, or 0.
fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |largest, &value| if value > largest { value } else { largest })
}
