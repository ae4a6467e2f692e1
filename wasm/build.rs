//! Has the tests run where `wasm-pack test` asks for: in browsers, or else in Node.

fn main() {
    const ONLY_BROWSERS: &str = "WASM_BINDGEN_TEST_ONLY_WEB";
    println!("cargo::rustc-check-cfg=cfg(tested_in_browsers)");
    println!("cargo::rerun-if-env-changed={ONLY_BROWSERS}");
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os(ONLY_BROWSERS).is_some() {
        println!("cargo::rustc-cfg=tested_in_browsers");
    }
}
