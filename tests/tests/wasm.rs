//! The malformed-file suite on wasm32, where `usize` has 32 bits:
//! `cargo test -p shohin-tests --target wasm32-unknown-unknown --test wasm`, with
//! `CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUNNER=wasm-bindgen-test-runner`; in a browser with
//! `WASM_BINDGEN_USE_BROWSER=1` on top. `cargo xtask test --only wasm-browser` does both.
#![cfg(all(target_arch = "wasm32", target_os = "unknown"))]

use wasm_bindgen_test::wasm_bindgen_test;

#[wasm_bindgen_test]
fn malformed() {
    assert_eq!(usize::BITS, 32);
    for (_, case) in shohin_tests::malformed::all() {
        case();
    }
}
