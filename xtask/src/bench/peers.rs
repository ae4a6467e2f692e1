//! The newest releases of the other engines, installed for this repository only.

use std::path::{Path, PathBuf};

use crate::command::{Cmd, Result};
use crate::machine::{self, GXX, Machine, Need, PYTHON};

pub(super) const LLAMA_NEEDS: &[Need] = &[Need::Program(&PYTHON), Need::Program(&GXX)];

/// CMake options that disable everything not needed for measuring.
const CMAKE_ARGS: &str = "-DLLAVA_BUILD=OFF -DMTMD_BUILD=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
    -DLLAMA_BUILD_TESTS=OFF";
const NATIVE: &str = "-DGGML_NATIVE=ON";
const AVX2: &str = "-DGGML_NATIVE=OFF -DGGML_SSE42=ON -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_BMI2=ON -DGGML_FMA=ON \
    -DGGML_F16C=ON";

/// Python environments with llama.cpp.
pub(super) struct Llama {
    /// Compiled for this processor.
    pub(super) native: PathBuf,
    /// Compiled for AVX2, if this processor supports more.
    pub(super) avx2: Option<PathBuf>,
}

fn home(machine: &Machine) -> PathBuf {
    machine.tools().join("peers")
}

/// The Python environment of this name, and whether `import` works in it.
fn venv(machine: &Machine, name: &str, import: &str) -> Result<(PathBuf, bool)> {
    let home = home(machine).join(name);
    let python = home.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
    if imports(machine, &python, import).is_ok() {
        return Ok((python, true));
    }
    let make = || Cmd::new(machine.program(&PYTHON)?, &machine.root).args("-m venv").arg(&home).read();
    if make().is_err() && machine::is_debian() {
        // On Debian the module is in a separate package.
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

/// A Python environment with llama.cpp, compiled from PyPI's source package.
fn compiled_llama(machine: &Machine, name: &str, instructions: &str) -> Result<PathBuf> {
    let (python, ready) = venv(machine, name, "llama_cpp")?;
    if ready {
        return Ok(python);
    }
    println!("xtask: compiling llama.cpp with {instructions}, which takes some minutes");
    Cmd::new(&python, &machine.root)
        // pip's cache may contain a build for other instructions.
        .args("-m pip install --quiet --disable-pip-version-check --no-cache-dir")
        .args("--no-binary llama-cpp-python llama-cpp-python")
        .env("CMAKE_ARGS", format!("{instructions} {CMAKE_ARGS}"))
        .run()?;
    imports(machine, &python, "llama_cpp")
        .map(|_| python)
        .map_err(|why| format!("llama-cpp-python was installed but does not load: {why}"))
}

/// Installs the newest release of an npm package and returns the directory of packages.
fn npm(machine: &Machine, package: &str) -> Result<PathBuf> {
    let home = home(machine);
    let modules = home.join("node_modules");
    if !modules.join(package).is_dir() {
        std::fs::create_dir_all(&home).map_err(|e| format!("{}: {e}", home.display()))?;
        // The install script of onnxruntime-node downloads GPU libraries that pages do not use.
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

/// The Python of an environment with PyTorch.
pub(super) fn torch(machine: &Machine) -> Result<PathBuf> {
    let (python, ready) = venv(machine, "torch", "torch, numpy")?;
    if !ready {
        let install = Cmd::new(&python, &machine.root);
        install.args("-m pip install --quiet --disable-pip-version-check torch numpy setuptools").run()?;
    }
    Ok(python)
}

/// transformers.js, and the Python environment that writes models for it.
pub(super) struct Transformers {
    /// The directory of its modules and their dependencies.
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
    /// The formats read by `as_onnx.py`.
    pub(super) const FORMATS: [&str; 2] = ["q1_0", "tq2_0"];

    /// Writes the same weights as a directory of ONNX files, unless it exists.
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
