//! Attention over a sequence's cached keys and values, read in place.

mod causal;
mod flash;
mod float;
#[cfg(target_arch = "x86_64")]
mod nibbles;
mod pairs;
mod quantized;

pub(crate) use causal::{CausalAttention, scratch_len};
pub(crate) use flash::FlashCodec;
