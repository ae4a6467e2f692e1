//! The web side: WebAssembly module, its JavaScript glue, the npm package, the page.

use std::path::Path;
use std::thread;

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

/// The same with relaxed SIMD.
pub(crate) const RELAXED: &str = "-Ctarget-feature=+simd128,+relaxed-simd";
/// Relaxed SIMD for these two crates alone: the standard library serves both builds.
const RELAXED_CRATES: [&str; 2] = ["shohin-core", "shohin-wasm"];

/// Compiles the module and writes its glue to `wasm/pkg`, as wasm-pack would; and once more with relaxed SIMD.
fn single(machine: &Machine) -> Result<()> {
    for (package, flags) in [("pkg", None), ("pkg-relaxed", Some(RELAXED))] {
        // In wasm/ cargo reads wasm/.cargo/config.toml, which turns simd128 on.
        let mut build = machine.cargo_for(WASM).dir(machine.root.join("wasm"));
        build = build.args("build --release --target").arg(WASM);
        flags.into_iter().fold(build, |build, flags| build.env("RUSTFLAGS", flags)).run()?;
        glue(machine, &machine.target_of(WASM), package)?;
    }
    Ok(())
}

/// Compiles the module for several threads, with its glue in `wasm/pkg-threads`; and once more with relaxed SIMD.
fn threads(machine: &Machine) -> Result<()> {
    let target = machine.target_of(WASM).join("threads");
    for (package, crates) in [("pkg-threads", &[][..]), ("pkg-threads-relaxed", &RELAXED_CRATES)] {
        let build = machine
            .cargo_for(WASM)
            .dir(machine.root.join("wasm"))
            .args("build --release -Zbuild-std=std,panic_abort -Zprofile-rustflags --target")
            .arg(WASM)
            .env("CARGO_TARGET_DIR", &target)
            .env("RUSTFLAGS", THREADS)
            // For the two -Z, and for waiting on words of memory, which are not stable yet.
            .env("RUSTC_BOOTSTRAP", "1");
        let relaxed =
            |name| format!("profile.release.package.{name}.rustflags=['-Ctarget-feature=+relaxed-simd']");
        crates.iter().fold(build, |build, name| build.arg("--config").arg(relaxed(name))).run()?;
        glue(machine, &target, package)?;
    }
    Ok(())
}

/// Writes a module that was built in `target`, with its glue, to a directory of `wasm/`.
fn glue(machine: &Machine, target: &Path, package: &str) -> Result<()> {
    let built = target.join(WASM).join("release/shohin_wasm.wasm");
    let out = machine.root.join("wasm").join(package);
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
    glue(machine, &target, "pkg-webgpu")
}

/// Builds the npm package and the page; the page is then in `web-demo/dist`. Where the standard library's
/// source cannot be had, the package does without threads. Once a run is enough.
pub(crate) fn build(machine: &mut Machine) -> Result<()> {
    if machine.page_built {
        return Ok(());
    }
    machine.prepare(&[Need::StdSource]);
    let built = all(machine);
    machine.page_built = built.is_ok();
    built
}

fn all(machine: &Machine) -> Result<()> {
    if machine.absent(Need::StdSource).is_some() {
        for package in ["pkg-threads", "pkg-threads-relaxed"] {
            let _ = std::fs::remove_dir_all(machine.root.join("wasm").join(package));
        }
        single(machine)?;
        webgpu(machine)?;
    } else {
        // Each build is for the most part one crate after the other: two at a time keep two cores busy.
        thread::scope(|scope| {
            let team = scope.spawn(|| threads(machine));
            let alone = single(machine).and_then(|()| webgpu(machine));
            team.join().map_err(|_| "building the module for threads panicked")?.and(alone)
        })?;
    }
    machine.cmd("npm").args("run --silent build").run()
}
