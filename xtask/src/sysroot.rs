//! A Rust toolchain for other targets without rustup: Debian's compiler, and the standard library compiled from Debian's
//! source once per target. `cargo build --target T` then works as usual.

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};

use crate::command::Result;
use crate::machine::{Machine, apt_get, is_debian};

/// Whether the standard library of a target can be built from source alone; that of WASI needs a C library.
pub(crate) fn can_build(target: &str) -> bool {
    !target.contains("wasi")
}

/// Whether a directory of libraries contains core.
pub(crate) fn has_core(libraries: &Path) -> bool {
    fs::read_dir(libraries).is_ok_and(|mut files| {
        files.any(|file| file.is_ok_and(|f| f.file_name().to_string_lossy().starts_with("libcore-")))
    })
}

/// Builds a toolchain with the targets and returns its directory.
pub(crate) fn build(machine: &Machine, targets: &[&str]) -> Result<PathBuf> {
    if !is_debian() {
        return Err("the fallback, Debian's rust-web-src, requires root on Debian".into());
    }
    let mut packages = vec!["rustc-web", "cargo-web", "rust-web-src"];
    packages.retain(|package| machine.cmd("dpkg").arg("-s").arg(package).read().is_err());
    let linker = match rust_lld(machine) {
        Some(linker) => linker,
        None => {
            packages.push("lld-19");
            PathBuf::from("/usr/lib/llvm-19/bin/lld")
        }
    };
    if !packages.is_empty() {
        apt_get(machine, &packages)?;
    }
    let toolchain = machine.tools().join("toolchain");
    lay_out(machine, &toolchain, &linker)?;
    let missing = |keep: fn(&str) -> bool| -> Vec<&str> {
        let there = |target: &str| has_core(&toolchain.join("lib/rustlib").join(target).join("lib"));
        targets.iter().copied().filter(|target| keep(target) && !there(target)).collect()
    };
    let bare = missing(|t| t.contains("-none"));
    library(machine, &toolchain, &bare, "core,alloc", "compiler-builtins-mem")?;
    let wasm = missing(|t| t.starts_with("wasm32"));
    library(machine, &toolchain, &wasm, "std,panic_abort,proc_macro,test", "")?;
    let hosted = missing(|t| !t.contains("-none") && !t.starts_with("wasm32"));
    let crates = "std,panic_abort,panic_unwind,proc_macro,test";
    library(machine, &toolchain, &hosted, crates, "panic-unwind,backtrace")?;
    Ok(toolchain)
}

fn host() -> String {
    format!("{ARCH}-unknown-linux-gnu")
}

/// The linker that rustc uses for wasm32 and bare metal, as rustup ships it.
pub(crate) fn rust_lld(machine: &Machine) -> Option<PathBuf> {
    let sysroot = machine.cmd("rustc").args("--print sysroot").read().ok()?;
    let linker = Path::new(sysroot.trim()).join("lib/rustlib").join(host()).join("bin/rust-lld");
    linker.exists().then_some(linker)
}

/// Creates a sysroot for rustc: links to Debian's libraries for the host, and directories for ours.
#[cfg(unix)]
fn lay_out(machine: &Machine, toolchain: &Path, linker: &Path) -> Result<()> {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let version = machine.cmd("/usr/bin/rustc").arg("--version").read()?;
    let stamp = toolchain.join("version");
    if fs::read_to_string(&stamp).is_ok_and(|made| made == version) {
        return Ok(());
    }
    let io = |e: std::io::Error| format!("{}: {e}", toolchain.display());
    let _ = fs::remove_dir_all(toolchain);
    let (bin, rustlib) = (toolchain.join("bin"), toolchain.join("lib/rustlib"));
    let (ours, debians) = (rustlib.join(host()), Path::new("/usr/lib/rustlib"));
    fs::create_dir_all(&bin).and_then(|()| fs::create_dir_all(ours.join("bin"))).map_err(io)?;
    symlink(debians.join(host()).join("lib"), ours.join("lib")).map_err(io)?;
    symlink(debians.join("src"), rustlib.join("src")).map_err(io)?;
    symlink(linker, ours.join("bin/rust-lld")).map_err(io)?;
    symlink("/usr/bin/cargo", bin.join("cargo")).map_err(io)?;
    for program in ["rustc", "rustdoc"] {
        // rustc would use the sysroot it is installed in; an explicit --sysroot takes precedence.
        let script = format!(
            "#!/bin/sh\nfor a in \"$@\"; do case $a in --sysroot|--sysroot=*) exec /usr/bin/{program} \"$@\";; esac; done\n\
             exec /usr/bin/{program} --sysroot \"{}\" \"$@\"\n",
            toolchain.display()
        );
        let file = bin.join(program);
        fs::write(&file, script).map_err(io)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).map_err(io)?;
    }
    fs::write(stamp, version).map_err(io)
}

#[cfg(not(unix))]
fn lay_out(_: &Machine, _: &Path, _: &Path) -> Result<()> {
    Err("only on Debian".into())
}

/// Compiles the library crates for targets into the sysroot.
fn library(
    machine: &Machine,
    toolchain: &Path,
    targets: &[&str],
    crates: &str,
    features: &str,
) -> Result<()> {
    if targets.is_empty() {
        return Ok(());
    }
    println!("xtask: building the standard library for {} (some minutes, once)", targets.join(" "));
    let work = machine.tools().join("std");
    let io = |e: std::io::Error| format!("{}: {e}", work.display());
    let _ = fs::remove_dir_all(&work);
    fs::create_dir_all(work.join("src")).map_err(io)?;
    fs::write(work.join("src/lib.rs"), "#![no_std]\n").map_err(io)?;
    fs::write(
        work.join("Cargo.toml"),
        "[package]\nname = \"sysroot-maker\"\nversion = \"0.0.0\"\nedition = \"2021\"\n[workspace]\n\
         [profile.release]\nopt-level = 3\ncodegen-units = 1\ndebug = 0\npanic = \"unwind\"\n",
    )
    .map_err(io)?;
    let mut cargo = machine
        .cmd("/usr/bin/cargo")
        .dir(&work)
        .args("build --quiet --release")
        .arg(format!("-Zbuild-std={crates}"))
        .env("RUSTC", "/usr/bin/rustc")
        .env("RUSTC_BOOTSTRAP", "1")
        // Crates built with link-time optimization need the library's bitcode.
        .env("RUSTFLAGS", "-Cembed-bitcode=yes")
        .env("CARGO_TARGET_DIR", work.join("target"));
    for name in
        ["RUSTUP_TOOLCHAIN", "CARGO", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET", "RUSTC_WRAPPER"]
    {
        cargo = cargo.env_remove(name);
    }
    if !features.is_empty() {
        cargo = cargo.arg(format!("-Zbuild-std-features={features}"));
    }
    for target in targets {
        cargo = cargo.arg("--target").arg(target);
    }
    cargo.run()?;
    for target in targets {
        let place = toolchain.join("lib/rustlib").join(target);
        let unfinished = toolchain.join("lib/rustlib").join(format!("{target}.unfinished"));
        let _ = fs::remove_dir_all(&unfinished);
        let _ = fs::remove_dir_all(&place);
        fs::create_dir_all(unfinished.join("lib")).map_err(io)?;
        let built = work.join("target").join(target).join("release/deps");
        for file in fs::read_dir(&built).map_err(io)?.flatten() {
            let name = file.file_name().to_string_lossy().into_owned();
            if name.ends_with(".rlib") && !name.starts_with("libsysroot_maker") {
                fs::copy(file.path(), unfinished.join("lib").join(name)).map_err(io)?;
            }
        }
        fs::rename(&unfinished, &place).map_err(io)?;
    }
    let _ = fs::remove_dir_all(&work);
    Ok(())
}
