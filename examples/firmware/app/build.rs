//! Lets the linker find device.x, which `cortex-m-rt` includes.

fn main() {
    println!("cargo::rustc-link-search={}", env!("CARGO_MANIFEST_DIR"));
    println!("cargo::rerun-if-changed=device.x");
}
