//! `cargo xtask ffi`: the C library, its header, and what pkg-config and CMake need to find them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::{Cmd, Result};
use crate::machine::{CMAKE, Machine};
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

/// Installs the libraries in `built`, and builds and runs the examples with CMake, and with pkg-config if there is one.
/// Returns the number of programs.
pub(crate) fn try_out(m: &Machine, built: &Path) -> Result<usize> {
    let dir = m.target.join("ffi");
    let _ = fs::remove_dir_all(&dir);
    let (prefix, build) = (dir.join("prefix"), dir.join("build"));
    files(m, built, &prefix)?;
    let cmake = || Cmd::new(m.program(&CMAKE).unwrap_or_else(|_| "cmake".into()), &m.root);
    let source = m.root.join("ffi/tests/cmake");
    let found = format!("-DCMAKE_PREFIX_PATH={}", prefix.display());
    cmake().arg("-S").arg(source).arg("-B").arg(&build).arg(found).run()?;
    cmake().arg("--build").arg(&build).run()?;
    let mut programs = vec![build.join("chat-shared"), build.join("chat-static")];

    let path = prefix.join("lib/pkgconfig");
    let pkg_config = m.cmd("pkg-config").env("PKG_CONFIG_PATH", path).args("--cflags --libs shohin").read();
    match pkg_config {
        Ok(flags) => {
            let program = dir.join("chat-pkg-config");
            let link = m.cmd("cc").arg(m.root.join("ffi/examples/c/chat.c")).args(&flags);
            let rpath = format!("-Wl,-rpath,{}", prefix.join("lib").display());
            link.arg(rpath).arg("-o").arg(&program).run()?;
            programs.push(program);
        }
        Err(why) => println!("xtask: without pkg-config: {why}"),
    }
    let mut replies = Vec::new();
    for program in &programs {
        let model = m.root.join("models/sprout-nano.gguf");
        let ask = "echo 'What does a cow say?' | \"$0\" \"$1\"";
        replies.push(Cmd::new("sh", &m.root).arg("-c").arg(ask).arg(program).arg(model).limit(60).read()?);
    }
    if replies.iter().any(|reply| reply.trim().is_empty() || *reply != replies[0]) {
        return Err(format!("the examples do not say the same: {replies:?}"));
    }
    println!("xtask: {} programs say {:?}", programs.len(), replies[0].trim());
    Ok(programs.len())
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
