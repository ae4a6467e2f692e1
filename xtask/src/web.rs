//! Builds of the WebAssembly modules with their JavaScript glue, the npm package and the chat page.

use std::fs::OpenOptions;
use std::io::{Read, Seek, Write};

use crate::command::{Cmd, Result};
use crate::machine::{Machine, Need, WASM};
use crate::package;

/// Requirements for building the page.
pub(crate) const NEEDS: &[Need] = &[Need::Target(WASM), Need::Bindgen, Need::Node, Need::NodeModules];

/// Flags of the builds with shared memory. The standard library is compiled with them, too, so that each thread has its own
/// stack and thread-local variables; rustup has no such build of it.
const THREADS: &str = "-Ctarget-feature=+simd128,+atomics,+bulk-memory,+mutable-globals \
    -Cllvm-args=-inline-threshold=50 -Clink-arg=--shared-memory -Clink-arg=--import-memory -Clink-arg=--max-memory=4294967296 \
    -Clink-arg=--export=__wasm_init_tls -Clink-arg=--export=__tls_size \
    -Clink-arg=--export=__tls_align -Clink-arg=--export=__tls_base";

/// Flags of the other builds on the CPU, as in `wasm/.cargo/config.toml`.
const SINGLE: &str = "-Ctarget-feature=+simd128 -Cllvm-args=-inline-threshold=50";

/// Flags of tests with relaxed SIMD.
pub(crate) const RELAXED: &str = "-Ctarget-feature=+simd128,+relaxed-simd -Cllvm-args=-inline-threshold=50";

/// Compiles a module into `wasm/PACKAGE`. All share what they can in one directory: what runs on the host, the standard library
/// with threads, and all crates with the same flags.
fn module(machine: &Machine, package: &str, flags: &str, more: impl FnOnce(Cmd) -> Cmd) -> Result<()> {
    named(machine, ("wasm", package, "shohin_wasm"), flags, more)
}

/// As [`module`], of the crate in `folder`, whose module is called `name`.
fn named(
    machine: &Machine,
    (folder, package, name): (&str, &str, &str),
    flags: &str,
    more: impl FnOnce(Cmd) -> Cmd,
) -> Result<()> {
    let modules = machine.target_of(WASM).join("modules");
    let target = modules.join(package);
    let build = machine.cargo_for(WASM).dir(machine.root.join(folder)).args("build --release --target");
    // Else modules of one name replace each other, and the next build would make both again.
    let build = build.arg(WASM).arg("-Zbuild-dir-new-layout").env("CARGO_TARGET_DIR", &target);
    let build = build.env("CARGO_BUILD_BUILD_DIR", modules.join("build"));
    // The -Z flags and the atomic wait instructions are unstable.
    more(build.env("RUSTFLAGS", flags).env("RUSTC_BOOTSTRAP", "1")).run()?;
    let built = target.join(WASM).join(format!("release/{name}.wasm"));
    let out = machine.root.join("wasm").join(package);
    machine.cmd("shohin-bindgen").arg(built).arg(out).arg(name).run()
}

/// With relaxed SIMD in the crates that have kernels of it.
fn relaxed(build: Cmd) -> Cmd {
    [package::CORE, package::WASM].iter().fold(build.arg("-Zprofile-rustflags"), |build, package| {
        let flags = "rustflags=['-Ctarget-feature=+relaxed-simd']";
        build.arg("--config").arg(format!("profile.release.package.{package}.{flags}"))
    })
}

fn with_std(build: Cmd) -> Cmd {
    build.arg("-Zbuild-std=std,panic_abort")
}

/// Optimized for size: the GPU computes.
fn webgpu(build: Cmd) -> Cmd {
    let small = format!("profile.release.package.{}.opt-level='z'", package::WASM);
    let build = build.args("--features gpu --config").arg(small);
    // 3 % smaller than with thin optimization; the other modules have little but core to look into.
    build.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "z").env("CARGO_PROFILE_RELEASE_LTO", "fat")
}

/// Optimized for size but for what computes.
fn train(build: Cmd) -> Cmd {
    let fast = format!("profile.release.package.{}.opt-level=3", package::TRAIN);
    let build = build.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "s").env("CARGO_PROFILE_RELEASE_LTO", "fat");
    build.arg("--config").arg(fast)
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
    // That for WebGPU without the option of the others: its optimization has a lower limit for inlining.
    module(machine, "module-webgpu", "-Ctarget-feature=+simd128", webgpu)?;
    module(machine, "module", SINGLE, |build| build)?;
    module(machine, "module-relaxed", SINGLE, relaxed)?;
    named(machine, ("wasm/train", "module-train", "shohin_wasm_train"), SINGLE, train)?;
    if machine.absent(Need::StdSource).is_none() {
        module(machine, "module-threads", THREADS, with_std)?;
        module(machine, "module-threads-relaxed", THREADS, |build| relaxed(with_std(build)))?;
    } else {
        for package in ["module-threads", "module-threads-relaxed"] {
            let _ = std::fs::remove_dir_all(machine.root.join("wasm").join(package));
        }
    }
    machine.cmd("npm").args("run --silent build").run()
}
