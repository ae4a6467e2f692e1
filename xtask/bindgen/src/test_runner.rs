//! The `wasm-bindgen-test-runner` command: cargo's runner for wasm32 tests, in Node and in a browser.

fn main() -> anyhow::Result<()> {
    wasm_bindgen_cli::wasm_bindgen_test_runner::run_cli_with_args(std::env::args_os())
}
