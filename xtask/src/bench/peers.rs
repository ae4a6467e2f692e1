//! The other engines, newest release each, installed for this repository alone.

use std::path::PathBuf;

use crate::command::{Cmd, Result};
use crate::machine::{self, GXX, Machine, Need, PYTHON};

pub(super) const LLAMA_NEEDS: &[Need] = &[Need::Program(&PYTHON), Need::Program(&GXX)];

/// For this processor, without what measuring does not need.
const CMAKE_ARGS: &str = "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF -DMTMD_BUILD=OFF -DLLAMA_BUILD_TOOLS=OFF \
    -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TESTS=OFF";

fn home(machine: &Machine) -> PathBuf {
    machine.tools().join("peers")
}

/// A Python that has llama.cpp, compiled here from the source package on PyPI.
pub(super) fn llama(machine: &Machine) -> Result<PathBuf> {
    let home = home(machine).join("venv");
    let python = home.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
    let there = || Cmd::new(&python, &machine.root).args("-c").arg("import llama_cpp").read();
    if there().is_ok() {
        return Ok(python);
    }
    let venv = || Cmd::new(machine.program(&PYTHON)?, &machine.root).args("-m venv").arg(&home).read();
    if venv().is_err() && machine::is_debian() {
        // Debian has the module in a package of its own.
        machine::apt_get(machine, &["python3-venv"])?;
    }
    venv().map_err(|why| format!("no Python environment: {why}"))?;
    println!("xtask: compiling llama.cpp, which takes some minutes");
    Cmd::new(&python, &machine.root)
        .args("-m pip install --quiet --disable-pip-version-check --no-binary llama-cpp-python llama-cpp-python")
        .env("CMAKE_ARGS", CMAKE_ARGS)
        .run()?;
    there().map(|_| python).map_err(|why| format!("llama-cpp-python was installed and does not load: {why}"))
}

/// The directory of wllama's modules.
pub(super) fn wllama(machine: &Machine) -> Result<PathBuf> {
    let home = home(machine);
    let modules = home.join("node_modules/@wllama/wllama/esm");
    if !modules.join("index.js").is_file() {
        std::fs::create_dir_all(&home).map_err(|e| format!("{}: {e}", home.display()))?;
        machine
            .cmd("npm")
            .args("install --no-audit --no-fund --loglevel=error --prefix")
            .arg(&home)
            .arg("@wllama/wllama@latest")
            .run()?;
    }
    Ok(modules)
}
