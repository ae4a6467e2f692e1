//! `cargo xtask ffi`: the C library, its header, and what pkg-config and CMake need to find them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::Result;
use crate::machine::Machine;
use crate::package::FFI;

/// The number in the library's name that changes with its binary interface; build.rs of the crate has it, too.
const SONAME: u32 = 0;

pub(crate) struct Options {
    /// The directory to install to, such as `/usr/local`.
    pub(crate) prefix: PathBuf,
    /// The profile of cargo.
    pub(crate) profile: &'static str,
}

/// Builds the libraries and installs them.
pub(crate) fn install(m: &Machine, options: &Options) -> Result<()> {
    let build = m.cargo().args("build --profile").arg(options.profile).packages(&[FFI]);
    build.run()?;
    files(m, &m.target.join(options.profile), &options.prefix)
}

/// Installs the libraries in `built`.
pub(crate) fn files(m: &Machine, built: &Path, prefix: &Path) -> Result<()> {
    let source = m.root.join("ffi");
    let lib = prefix.join("lib");
    copy(&source.join("include/shohin.h"), &prefix.join("include/shohin.h"))?;
    if cfg!(windows) {
        copy(&built.join("shohin_ffi.lib"), &lib.join("shohin.lib"))?;
    } else {
        copy(&built.join("libshohin_ffi.a"), &lib.join("libshohin.a"))?;
        let (name, link) = match cfg!(target_os = "macos") {
            true => (format!("libshohin.{SONAME}.dylib"), "libshohin.dylib"),
            false => (format!("libshohin.so.{SONAME}"), "libshohin.so"),
        };
        let library = if cfg!(target_os = "macos") { "libshohin_ffi.dylib" } else { "libshohin_ffi.so" };
        copy(&built.join(library), &lib.join(&name))?;
        symlink(&name, &lib.join(link))?;
    }
    for (from, to) in [
        ("shohin.pc.in", "pkgconfig/shohin.pc"),
        ("cmake/shohin-config.cmake", "cmake/shohin/shohin-config.cmake"),
        ("cmake/shohin-config-version.cmake.in", "cmake/shohin/shohin-config-version.cmake"),
    ] {
        let to = lib.join(to);
        copy(&source.join(from), &to)?;
        let text = fs::read_to_string(&to).map_err(|e| format!("{}: {e}", to.display()))?;
        let text = text.replace("@VERSION@", env!("CARGO_PKG_VERSION"));
        fs::write(&to, text).map_err(|e| format!("{}: {e}", to.display()))?;
    }
    println!("xtask: installed the C library in {}", prefix.display());
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let dir = to.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    fs::copy(from, to).map_err(|e| format!("{} to {}: {e}", from.display(), to.display())).map(drop)
}

#[cfg(unix)]
fn symlink(to: &str, at: &Path) -> Result<()> {
    let _ = fs::remove_file(at);
    std::os::unix::fs::symlink(to, at).map_err(|e| format!("{}: {e}", at.display()))
}

#[cfg(not(unix))]
fn symlink(_: &str, _: &Path) -> Result<()> {
    Ok(())
}
