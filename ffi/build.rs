//! Names the shared library as programs find it when they start: it is installed as `libshohin`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    match std::env::var("CARGO_CFG_TARGET_OS").as_deref() {
        Ok("macos") => {
            println!("cargo:rustc-cdylib-link-arg=-Wl,-install_name,@rpath/libshohin.0.dylib");
        }
        Ok("windows") | Err(_) => {}
        Ok(_) => println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libshohin.so.0"),
    }
}
