//! The malformed-file suite on wasm32, where `usize` has 32 bits:
//! `cargo test -p shohin-tests --target wasm32-unknown-unknown --test wasm`, with
//! `CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUNNER=wasm-bindgen-test-runner`.
#![cfg(target_arch = "wasm32")]

use wasm_bindgen_test::wasm_bindgen_test;

#[wasm_bindgen_test]
fn malformed() {
    assert_eq!(usize::BITS, 32);
    for (_, case) in shohin_tests::malformed::all() {
        case();
    }
}
