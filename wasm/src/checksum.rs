//! SHA-256 of a file while it arrives.

use sha2::{Digest, Sha256};
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
