//! `host/src/threads.rs` takes its threads and atomics from shuttle here.

fn main() {
    println!("cargo::rustc-cfg=shuttle");
}
