//! Interfaces of browsers, workers and Node: the clock and random numbers.

use js_sys::{Date, Uint8Array};
use wasm_bindgen::prelude::*;
use web_sys::{Crypto, Performance};

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(thread_local_v2, js_name = crypto)]
    static CRYPTO: Crypto;

    #[wasm_bindgen(thread_local_v2, js_name = performance)]
    static PERFORMANCE: Performance;
}

/// Milliseconds since some fixed time; never runs backwards.
pub(crate) fn milliseconds() -> f64 {
    PERFORMANCE.with(Performance::now)
}

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    (Date::now() / 1000.0) as u64
}

/// Random bytes.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    // Not into our own memory, which may be shared between threads: `getRandomValues` refuses that.
    let array = Uint8Array::new_with_length(N as u32);
    // It fails for more than 65,536 bytes.
    let _ = CRYPTO.with(|crypto| crypto.get_random_values_with_js_u8_array(&array));
    let mut bytes = [0; N];
    array.copy_to(&mut bytes);
    bytes
}
