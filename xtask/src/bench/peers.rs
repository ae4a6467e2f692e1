//! The other engines, newest release each, installed for this repository alone.

use std::path::{Path, PathBuf};

use crate::command::{Cmd, Result};
use crate::machine::{self, GXX, Machine, Need, PYTHON};

pub(super) const LLAMA_NEEDS: &[Need] = &[Need::Program(&PYTHON), Need::Program(&GXX)];

/// Without what measuring does not need.
const CMAKE_ARGS: &str = "-DLLAVA_BUILD=OFF -DMTMD_BUILD=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
    -DLLAMA_BUILD_TESTS=OFF";
const NATIVE: &str = "-DGGML_NATIVE=ON";
const AVX2: &str = "-DGGML_NATIVE=OFF -DGGML_SSE42=ON -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_BMI2=ON -DGGML_FMA=ON \
    -DGGML_F16C=ON";

/// Pythons that have llama.cpp.
pub(super) struct Llama {
    /// Compiled for this processor.
    pub(super) native: PathBuf,
    /// For AVX2, on a processor that has more.
    pub(super) avx2: Option<PathBuf>,
}

fn home(machine: &Machine) -> PathBuf {
    machine.tools().join("peers")
}

/// A Python environment of this name, and whether `import` works in it.
fn venv(machine: &Machine, name: &str, import: &str) -> Result<(PathBuf, bool)> {
    let home = home(machine).join(name);
    let python = home.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
    if imports(machine, &python, import).is_ok() {
        return Ok((python, true));
    }
    let make = || Cmd::new(machine.program(&PYTHON)?, &machine.root).args("-m venv").arg(&home).read();
    if make().is_err() && machine::is_debian() {
        // Debian has the module in a package of its own.
        machine::apt_get(machine, &["python3-venv"])?;
    }
    make().map_err(|why| format!("no Python environment: {why}"))?;
    Ok((python, false))
}

fn imports(machine: &Machine, python: &Path, import: &str) -> Result<String> {
    Cmd::new(python, &machine.root).args("-c").arg(format!("import {import}")).read()
}

pub(super) fn llama(machine: &Machine) -> Result<Llama> {
    #[cfg(target_arch = "x86_64")]
    let more = std::arch::is_x86_feature_detected!("avx512vnni");
    #[cfg(not(target_arch = "x86_64"))]
    let more = false;
    Ok(Llama {
        native: compiled_llama(machine, "venv", NATIVE)?,
        avx2: more.then(|| compiled_llama(machine, "venv-avx2", AVX2)).transpose()?,
    })
}

/// A Python that has llama.cpp, compiled here from the source package on PyPI.
fn compiled_llama(machine: &Machine, name: &str, instructions: &str) -> Result<PathBuf> {
    let (python, ready) = venv(machine, name, "llama_cpp")?;
    if ready {
        return Ok(python);
    }
    println!("xtask: compiling llama.cpp with {instructions}, which takes some minutes");
    Cmd::new(&python, &machine.root)
        // What was compiled for other instructions must not be taken from pip's cache.
        .args("-m pip install --quiet --disable-pip-version-check --no-cache-dir")
        .args("--no-binary llama-cpp-python llama-cpp-python")
        .env("CMAKE_ARGS", format!("{instructions} {CMAKE_ARGS}"))
        .run()?;
    imports(machine, &python, "llama_cpp")
        .map(|_| python)
        .map_err(|why| format!("llama-cpp-python was installed and does not load: {why}"))
}

/// Installs a package of npm's, newest release, and returns the directory of all of them.
fn npm(machine: &Machine, package: &str) -> Result<PathBuf> {
    let home = home(machine);
    let modules = home.join("node_modules");
    if !modules.join(package).is_dir() {
        std::fs::create_dir_all(&home).map_err(|e| format!("{}: {e}", home.display()))?;
        // A script of onnxruntime-node fetches libraries for GPUs from elsewhere; pages have no use for them.
        machine
            .cmd("npm")
            .args("install --ignore-scripts --no-audit --no-fund --loglevel=error --prefix")
            .arg(&home)
            .arg(format!("{package}@latest"))
            .run()?;
    }
    Ok(modules)
}

/// The directory of wllama's modules.
pub(super) fn wllama(machine: &Machine) -> Result<PathBuf> {
    Ok(npm(machine, "@wllama/wllama")?.join("@wllama/wllama/esm"))
}

/// transformers.js, and what writes models for it.
pub(super) struct Transformers {
    /// Where its modules are, and those it needs.
    pub(super) modules: PathBuf,
    python: PathBuf,
}

pub(super) const TRANSFORMERS_NEEDS: &[Need] = &[Need::Program(&PYTHON)];

pub(super) fn transformers(machine: &Machine) -> Result<Transformers> {
    let modules = npm(machine, "@huggingface/transformers")?;
    let (python, ready) = venv(machine, "onnx", "gguf, onnx")?;
    if !ready {
        let install = Cmd::new(&python, &machine.root);
        install.args("-m pip install --quiet --disable-pip-version-check gguf numpy onnx").run()?;
    }
    Ok(Transformers { modules, python })
}

impl Transformers {
    /// The formats that `as_onnx.py` reads.
    pub(super) const FORMATS: [&str; 2] = ["q1_0", "tq2_0"];

    /// The same weights as a directory of ONNX files, written once.
    pub(super) fn model(&self, machine: &Machine, gguf: &Path) -> Result<PathBuf> {
        let out = gguf.with_extension("onnx");
        if !out.join("digits.json").is_file() {
            println!("xtask: writing {}", out.display());
            let script = machine.root.join("xtask/src/bench/as_onnx.py");
            Cmd::new(&self.python, &machine.root).arg(script).arg(gguf).arg(&out).run()?;
        }
        Ok(out)
    }
}
