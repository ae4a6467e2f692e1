//! Damaged model files: a processor of 32 bits must find in them what one of 64 bits finds, and neither may panic.

use alloc::vec::Vec;

use shohin_core::gguf::{Gguf, GgufWriter};
use shohin_core::{Error, Format, Tokenizer};

/// Files that are read.
pub(crate) const FILES: u32 = 5_000;

/// What [`outcomes`] are of that many.
pub(crate) const EXPECTED: u32 = 0x798d_494f;

/// Values at the limits of counts, lengths and offsets.
const LIMITS: [u64; 12] = [
    0,
    1,
    0x7f,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x1_0000_0007,
    0x2000_0000_0000_0001,
    0x8000_0000_0000_0000,
    u64::MAX,
];

/// A small file with a vocabulary and two tensors.
fn file() -> Result<Vec<u8>, Error> {
    let mut file = GgufWriter::new();
    file.set("general.architecture", "qwen3")?;
    file.set("qwen3.block_count", 1u32)?;
    file.set("qwen3.rope.freq_base", 1e6f32)?;
    file.set("tokenizer.ggml.model", "gpt2")?;
    file.set("tokenizer.ggml.pre", "qwen2")?;
    file.set_strings("tokenizer.ggml.tokens", ["a", "b", "c", "ab", "abc", "<s>"])?;
    file.set_array("tokenizer.ggml.token_type", &[1i32, 1, 1, 1, 1, 3])?;
    file.set_strings("tokenizer.ggml.merges", ["a b", "ab c"])?;
    file.set("tokenizer.ggml.eos_token_id", 5u32)?;
    file.tensor("token_embd.weight", &[128, 6], Format::Q1_0)?;
    file.tensor("output_norm.weight", &[128], Format::F32)?;
    file.to_vec([&[1u8; 6 * 18][..], &[2; 4 * 128]])
}

/// Damages the file `count` times; a checksum of what was found in each.
///
/// # Errors
/// Only if the file cannot be written.
pub(crate) fn outcomes(count: u32) -> Result<u32, Error> {
    let (whole, mut sum, mut state) = (file()?, 0u32, 1u32);
    let mut random = |below: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as usize % below
    };
    let mut note = |value: u32| sum = (sum.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9);
    let mut damaged = Vec::new();
    for _ in 0..count {
        damaged.clear();
        damaged.extend_from_slice(&whole);
        for _ in 0..=random(3) {
            let (at, limit) = (random(whole.len()), LIMITS[random(LIMITS.len())].to_le_bytes());
            let len = [1, 4, 8][random(3)].min(whole.len() - at);
            damaged[at..at + len].copy_from_slice(&limit[..len]);
        }
        if random(8) == 0 {
            damaged.truncate(random(whole.len()));
        }
        match Gguf::parse(&damaged) {
            Ok(gguf) => {
                note(gguf.metadata().len() as u32);
                gguf.tensors().iter().for_each(|tensor| note(gguf.data(tensor).len() as u32));
                match Tokenizer::from_gguf(&gguf) {
                    Ok(tokenizer) => note(tokenizer.vocab_size() as u32),
                    Err(error) => error.code().bytes().for_each(|byte| note(byte.into())),
                }
            }
            Err(error) => error.code().bytes().for_each(|byte| note(byte.into())),
        }
    }
    Ok(sum)
}
