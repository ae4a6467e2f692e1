//! Builds of the WebAssembly modules with their JavaScript glue, the npm package and the chat page.

use std::fs::OpenOptions;
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::thread;

use crate::command::Result;
use crate::machine::{Machine, Need, WASM};
use crate::package;

/// Requirements for building the page.
pub(crate) const NEEDS: &[Need] = &[Need::Target(WASM), Need::Bindgen, Need::Node, Need::NodeModules];

/// Flags of the build with shared memory. The standard library is compiled with them, too, so that each thread has its own
/// stack and thread-local variables; rustup has no such build of it.
const THREADS: &str = "-Ctarget-feature=+simd128,+atomics,+bulk-memory,+mutable-globals \
    -Cllvm-args=-inline-threshold=50 -Clink-arg=--shared-memory -Clink-arg=--import-memory -Clink-arg=--max-memory=4294967296 \
    -Clink-arg=--export=__wasm_init_tls -Clink-arg=--export=__tls_size \
    -Clink-arg=--export=__tls_align -Clink-arg=--export=__tls_base";

/// Flags of the build with relaxed SIMD.
pub(crate) const RELAXED: &str = "-Ctarget-feature=+simd128,+relaxed-simd -Cllvm-args=-inline-threshold=50";

/// Compiles the single-threaded module and writes it to `wasm/pkg`, then again with relaxed SIMD.
fn single(machine: &Machine) -> Result<()> {
    // Each in a directory of its own: modules of one name replace each other, and the next build would make both again.
    let (plain, relaxed) = (machine.target_of(WASM), machine.target_of(WASM).join("relaxed"));
    for (package, target, flags) in [("pkg", plain, None), ("pkg-relaxed", relaxed, Some(RELAXED))] {
        // In wasm/ cargo reads wasm/.cargo/config.toml, which has the flags of the other.
        let mut build =
            machine.cargo_for(WASM).dir(machine.root.join("wasm")).env("CARGO_TARGET_DIR", &target);
        build = build.args("build --release --target").arg(WASM);
        flags.into_iter().fold(build, |build, flags| build.env("RUSTFLAGS", flags)).run()?;
        glue(machine, &target, package)?;
    }
    Ok(())
}

/// Compiles the module with threads into `wasm/pkg-threads`, then again with relaxed SIMD.
fn threads(machine: &Machine) -> Result<()> {
    let relaxed = format!("{THREADS} -Ctarget-feature=+relaxed-simd");
    for (package, target, flags) in
        [("pkg-threads", "threads", THREADS), ("pkg-threads-relaxed", "threads-relaxed", &relaxed)]
    {
        let target = machine.target_of(WASM).join(target);
        let build = machine
            .cargo_for(WASM)
            .dir(machine.root.join("wasm"))
            .args("build --release -Zbuild-std=std,panic_abort --target")
            .arg(WASM)
            .env("CARGO_TARGET_DIR", &target)
            .env("RUSTFLAGS", flags)
            // The -Z flags and the atomic wait instructions are unstable.
            .env("RUSTC_BOOTSTRAP", "1");
        build.run()?;
        glue(machine, &target, package)?;
    }
    Ok(())
}

/// Writes a module built in `target` and its glue to a directory of `wasm/`.
fn glue(machine: &Machine, target: &Path, package: &str) -> Result<()> {
    let built = target.join(WASM).join("release/shohin_wasm.wasm");
    let out = machine.root.join("wasm").join(package);
    machine.cmd("shohin-bindgen").arg(built).arg(out).arg("shohin_wasm").run()
}

/// Compiles the module for WebGPU into `wasm/pkg-webgpu`, optimized for size: the GPU computes.
fn webgpu(machine: &Machine) -> Result<()> {
    let target = machine.target_of(WASM).join("webgpu");
    machine
        .cargo_for(WASM)
        .dir(machine.root.join("wasm"))
        .args("build --release --features gpu --target")
        .arg(WASM)
        .env("CARGO_TARGET_DIR", &target)
        .arg("--config")
        .arg(format!("profile.release.package.{}.opt-level='z'", package::WASM))
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "z")
        // Instead of those in wasm/.cargo/config.toml: this optimization has a lower limit for inlining.
        .env("RUSTFLAGS", "-Ctarget-feature=+simd128")
        // 3 % smaller than with thin optimization; the other modules have little but core to look into.
        .env("CARGO_PROFILE_RELEASE_LTO", "fat")
        .run()?;
    glue(machine, &target, "pkg-webgpu")
}

/// Builds the npm package, and the page into `web-demo/dist`, once per run of xtask, whichever of its processes needs it first.
/// Without the source of the standard library the package has no build with threads.
pub(crate) fn build(machine: &mut Machine) -> Result<()> {
    machine.prepare(&[Need::StdSource]);
    let built = machine.target.join("page-built");
    let io = |e| format!("{}: {e}", built.display());
    let mut file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&built).map_err(io)?;
    // Until this function returns.
    file.lock().map_err(io)?;
    let mut run = String::new();
    file.read_to_string(&mut run).map_err(io)?;
    if run == machine.run {
        return Ok(());
    }
    file.set_len(0).map_err(io)?;
    all(machine)?;
    file.rewind().and_then(|()| file.write_all(machine.run.as_bytes())).map_err(io)
}

fn all(machine: &Machine) -> Result<()> {
    if machine.absent(Need::StdSource).is_some() {
        for package in ["pkg-threads", "pkg-threads-relaxed"] {
            let _ = std::fs::remove_dir_all(machine.root.join("wasm").join(package));
        }
        single(machine)?;
        webgpu(machine)?;
    } else {
        // The builds are mostly sequential: two at a time keep two cores busy.
        thread::scope(|scope| {
            let with_threads = scope.spawn(|| threads(machine));
            let alone = single(machine).and_then(|()| webgpu(machine));
            with_threads.join().map_err(|_| "building the module for threads panicked")?.and(alone)
        })?;
    }
    machine.cmd("npm").args("run --silent build").run()
}
