//! SHA-256, of a file while it arrives.

use sha2::{Digest, Sha256};
use shohin_core::chat::snapshot::Fingerprint;
use shohin_core::model::ModelConfig;
use wasm_bindgen::prelude::*;

/// A SHA-256 in the making.
#[wasm_bindgen]
#[derive(Default)]
pub struct Checksum(Sha256);

#[wasm_bindgen]
impl Checksum {
    /// Of nothing yet.
    #[wasm_bindgen(constructor)]
    pub fn new() -> Checksum {
        Checksum::default()
    }

    /// Takes the next bytes.
    pub fn push(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    /// In hexadecimal digits, of all so far.
    pub fn digits(&self) -> String {
        self.0.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// SHA-256 of some bytes.
pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// What distinguishes a model's file from others, in the making.
#[derive(Default)]
pub(crate) struct FileHash {
    samples: Fingerprint,
    hash: Sha256,
}

impl FileHash {
    /// Takes the next bytes of the file.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.samples.push(bytes, &mut |bytes| self.hash.update(bytes));
    }

    /// With what else decides about keys and values, as the host library hashes it.
    pub(crate) fn finish(mut self, config: &ModelConfig, layout_42: &str) -> Sha256 {
        self.hash.update(self.samples.finish());
        // Frequencies that depend on the context.
        if let Some(context) = config.positions.frequencies().scaling.context() {
            self.hash.update(context.to_le_bytes());
        }
        self.hash.update(layout_42);
        self.hash
    }
}
