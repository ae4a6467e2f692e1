//! A conversation's cache as bytes that can be kept.
//!
//! ```text
//! magic (8) | fingerprint (32) | layout (1) | kv format (1) | activations (1) | 0 (1) | tokens (4) | kept (4)
//! | dropped (4) | ids (4 each) | keys and values | SHA-256 of all before (32)
//! ```

use crate::error::{JsResult, named};
use sha2::{Digest, Sha256};
use shohin_core::chat::PrefixState;
use shohin_core::{Activations, Error, KvFormat, Result};

const MAGIC: [u8; 8] = *b"shohin\0\x01";
const HEAD: usize = 56;
const SUM: usize = 32;

/// Fingerprint of a file in the making: SHA-256 of its beginning, samples of all of it, and its size, so that a
/// gigabyte takes milliseconds.
#[derive(Default)]
pub(crate) struct Fingerprint {
    hash: Sha256,
    at: usize,
}

impl Fingerprint {
    const BEGINNING: usize = 1 << 16;
    const STRIDE: usize = 1 << 16;
    const SAMPLE: usize = 1 << 8;

    /// Takes the next bytes of the file.
    pub(crate) fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let within = self.at % Self::STRIDE;
            let (counts, most) = match () {
                () if self.at < Self::BEGINNING => (true, Self::BEGINNING - self.at),
                () if within < Self::SAMPLE => (true, Self::SAMPLE - within),
                () => (false, Self::STRIDE - within),
            };
            let (now, later) = bytes.split_at(most.min(bytes.len()));
            if counts {
                self.hash.update(now);
            }
            self.at += now.len();
            bytes = later;
        }
    }

    pub(crate) fn finish(mut self) -> [u8; 32] {
        self.hash.update((self.at as u64).to_le_bytes());
        self.hash.finalize().into()
    }
}

/// The settings under which keys and values are valid.
pub(crate) struct Origin([u8; 36]);

impl Origin {
    /// `layout`: 0 if the CPU ordered the keys and values, 1 if a GPU did.
    pub(crate) fn new(fingerprint: [u8; 32], layout: u8, kv: KvFormat, activations: Activations) -> Origin {
        let format = KvFormat::ALL.iter().position(|&format| format == kv).unwrap_or(usize::MAX);
        let mut origin = [0; 36];
        origin[..32].copy_from_slice(&fingerprint);
        origin[32..35].copy_from_slice(&[layout, format as u8, u8::from(activations == Activations::Int8)]);
        Origin(origin)
    }
}

/// A snapshot of `prefix` up to where `len` bytes of keys and values follow, with room for these.
pub(crate) fn begin(origin: &Origin, prefix: &PrefixState, len: usize) -> Result<Vec<u8>> {
    let PrefixState { tokens, kept, dropped } = prefix;
    let need = HEAD + 4 * tokens.len() + len + SUM;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(need).map_err(|_| Error::Memory { need: need as u64, have: 0 })?;
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&origin.0);
    for n in [tokens.len(), *kept, *dropped] {
        bytes.extend_from_slice(&(n as u32).to_le_bytes());
    }
    tokens.iter().for_each(|id| bytes.extend_from_slice(&id.to_le_bytes()));
    Ok(bytes)
}

/// Appends the checksum.
pub(crate) fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = Sha256::digest(&bytes);
    bytes.extend_from_slice(&sum);
    bytes
}

/// The tokens of a snapshot, and its keys and values.
pub(crate) fn open<'b>(bytes: &'b [u8], origin: &Origin) -> JsResult<(PrefixState, &'b [u8])> {
    let damaged = || named("the snapshot is damaged", "snapshot_damaged");
    let (body, sum) = bytes.split_last_chunk::<SUM>().ok_or_else(damaged)?;
    if Sha256::digest(body)[..] != sum[..] {
        return Err(damaged());
    }
    let (head, rest) = body.split_first_chunk::<HEAD>().ok_or_else(damaged)?;
    if head[..8] != MAGIC || head[8..44] != origin.0 {
        let message = "the snapshot was made by another model, other settings or another version";
        return Err(named(message, "snapshot_foreign"));
    }
    let words: Vec<usize> =
        head[44..].as_chunks().0.iter().map(|&word| u32::from_le_bytes(word) as usize).collect();
    let [len, kept, dropped] = words[..] else { return Err(damaged()) };
    let (ids, kv) = len.checked_mul(4).and_then(|at| rest.split_at_checked(at)).ok_or_else(damaged)?;
    if kept.checked_add(dropped).is_none_or(|end| dropped > 0 && end > len) {
        return Err(damaged());
    }
    let tokens = ids.as_chunks().0.iter().map(|&id| u32::from_le_bytes(id)).collect();
    Ok((PrefixState { tokens, kept, dropped }, kv))
}
