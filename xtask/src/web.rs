//! The web side: WebAssembly module, its JavaScript glue, the npm package, the page.

use crate::command::Result;
use crate::machine::{Machine, Need};

/// The target of everything that runs in a browser.
pub(crate) const WASM: &str = "wasm32-unknown-unknown";

/// What building the page takes.
pub(crate) const NEEDS: &[Need] = &[Need::Target(WASM), Need::Bindgen, Need::Node, Need::NodeModules];

/// What the build with shared memory is compiled with: the standard library too, which there is none ready
/// made of, so that each thread has its own stack and thread-local variables.
const THREADS: &str = "-Ctarget-feature=+simd128,+atomics,+bulk-memory,+mutable-globals \
    -Clink-arg=--shared-memory -Clink-arg=--import-memory -Clink-arg=--max-memory=4294967296 \
    -Clink-arg=--export=__wasm_init_tls -Clink-arg=--export=__tls_size \
    -Clink-arg=--export=__tls_align -Clink-arg=--export=__tls_base";

/// Compiles the module and writes its glue to `wasm/pkg`, as wasm-pack would.
pub(crate) fn module(machine: &Machine) -> Result<()> {
    // In wasm/ cargo reads wasm/.cargo/config.toml, which turns simd128 on.
    machine
        .cargo_for(WASM)
        .dir(machine.root.join("wasm"))
        .args("build --release --target")
        .arg(WASM)
        .run()?;
    let built = machine.target_of(WASM).join(WASM).join("release/shohin_wasm.wasm");
    machine.cmd("shohin-bindgen").arg(built).arg(machine.root.join("wasm/pkg")).arg("shohin_wasm").run()
}

/// Compiles the module for several threads, with its glue in `wasm/pkg-threads`.
fn threads(machine: &Machine) -> Result<()> {
    let target = machine.target_of(WASM).join("threads");
    machine
        .cargo_for(WASM)
        .dir(machine.root.join("wasm"))
        .args("build --release -Zbuild-std=std,panic_abort --target")
        .arg(WASM)
        .env("CARGO_TARGET_DIR", &target)
        .env("RUSTFLAGS", THREADS)
        // For -Zbuild-std, and for waiting on words of memory, which are not stable yet.
        .env("RUSTC_BOOTSTRAP", "1")
        .run()?;
    let built = target.join(WASM).join("release/shohin_wasm.wasm");
    let out = machine.root.join("wasm/pkg-threads");
    machine.cmd("shohin-bindgen").arg(built).arg(out).arg("shohin_wasm").run()
}

/// Compiles the module with both engines, with its glue in `wasm/pkg-webgpu`. For size above all: the CPU's kernels are
/// there for the day the GPU is lost.
fn webgpu(machine: &Machine) -> Result<()> {
    let target = machine.target_of(WASM).join("webgpu");
    machine
        .cargo_for(WASM)
        .dir(machine.root.join("wasm"))
        .args("build --release --features gpu --target")
        .arg(WASM)
        .env("CARGO_TARGET_DIR", &target)
        .args("--config profile.release.package.shohin-wasm.opt-level='z'")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "z")
        .run()?;
    let built = target.join(WASM).join("release/shohin_wasm.wasm");
    let out = machine.root.join("wasm/pkg-webgpu");
    machine.cmd("shohin-bindgen").arg(built).arg(out).arg("shohin_wasm").run()
}

/// Builds the npm package and the page; the page is then in `web-demo/dist`. Where the standard library's
/// source cannot be had, the package does without threads.
pub(crate) fn build(machine: &mut Machine) -> Result<()> {
    module(machine)?;
    webgpu(machine)?;
    machine.prepare(&[Need::StdSource]);
    match machine.absent(Need::StdSource) {
        None => threads(machine)?,
        Some(_) => {
            let _ = std::fs::remove_dir_all(machine.root.join("wasm/pkg-threads"));
        }
    }
    machine.cmd("npm").args("run --silent build").run()
}
