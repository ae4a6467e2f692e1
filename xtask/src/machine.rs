//! The machine that xtask runs on: where its tools are, and what a suite may ask for.

use std::env;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::command::{Cmd, Result};

pub(crate) const PYTHONS: &[&str] = &["python3", "python"];

/// The target of everything that runs in a browser.
pub(crate) const WASM: &str = "wasm32-unknown-unknown";

/// A requirement of a suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// A rustup component, by the program that cargo runs.
    Component(&'static str),
    /// A Rust target with its standard library, or with core and alloc on targets without std.
    Target(&'static str),
    /// The source of the standard library, which is compiled with atomics for WebAssembly threads.
    StdSource,
    /// A program of the operating system.
    Program(&'static Program),
    /// npm, and Node.js in a version supported by the page's bundler.
    Node,
    /// The JavaScript development tools in package-lock.json.
    NodeModules,
    /// The wasm-bindgen glue generator.
    Bindgen,
    /// `wasm-bindgen` and `wasm-bindgen-test-runner` as commands.
    BindgenTestRunner,
    /// A Vulkan driver, or a software one; macOS has Metal.
    Vulkan,
    /// clang as a library, with its headers: it reads those of MPI.
    LibClang,
    /// A processor with AMX: that of this machine, or an emulated one.
    Amx,
    /// SmolLM2-135M-Instruct, a trained chat model.
    SmolLm2,
    /// Kotlin's compiler, which needs [`JAVA`].
    Kotlin,
    /// Swift's compiler, in a folder with a Debian of its own.
    Swift,
}

/// A program installed by the operating system's package manager.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) names: &'static [&'static str],
    /// An environment variable that overrides its path.
    variable: &'static str,
    pub(crate) debian: &'static [&'static str],
    elsewhere: &'static str,
}

pub(crate) static CHROMIUM: Program = Program {
    names: &[
        "chromium",
        "chromium-browser",
        "google-chrome-stable",
        "google-chrome",
        "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
        "/Applications/Chromium.app/Contents/MacOS/Chromium",
    ],
    variable: "CHROME",
    debian: &["chromium", "chromium-headless-shell"],
    elsewhere: "install Chromium or Chrome, or set CHROME to its path",
};

/// Chromium without its user interface, which takes a third of the time of the tests; they run in the browser without it.
pub(crate) static HEADLESS_SHELL: Program = Program {
    names: &["chromium-headless-shell", "chrome-headless-shell"],
    variable: "HEADLESS_SHELL",
    debian: &["chromium-headless-shell"],
    elsewhere: "install Chromium's headless shell, or set HEADLESS_SHELL to its path",
};

pub(crate) static CHROMEDRIVER: Program = Program {
    names: &["chromedriver"],
    variable: "CHROMEDRIVER",
    debian: &["chromium-driver"],
    elsewhere: "install ChromeDriver of the browser's version, or set CHROMEDRIVER to its path",
};

pub(crate) static FIREFOX: Program = Program {
    names: &["firefox-esr", "firefox", "/Applications/Firefox.app/Contents/MacOS/firefox"],
    variable: "FIREFOX",
    debian: &["firefox-esr"],
    elsewhere: "install Firefox, or set FIREFOX to its path",
};

pub(crate) static ARM_GCC: Program = Program {
    names: &["aarch64-linux-gnu-gcc"],
    variable: "AARCH64_LINUX_GNU_GCC",
    debian: &["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"],
    elsewhere: "install a cross compiler (C library included) for aarch64-linux-gnu",
};

pub(crate) static QEMU_ARM: Program = Program {
    names: &["qemu-aarch64", "qemu-aarch64-static"],
    variable: "QEMU_AARCH64",
    debian: &["qemu-user"],
    elsewhere: "install QEMU's user-mode emulators",
};

pub(crate) static QEMU_X86: Program = Program {
    names: &["qemu-x86_64", "qemu-x86_64-static"],
    variable: "QEMU_X86_64",
    debian: &["qemu-user"],
    elsewhere: "install QEMU's user-mode emulators",
};

pub(crate) static QEMU_SYSTEM_ARM: Program = Program {
    names: &["qemu-system-arm"],
    variable: "QEMU_SYSTEM_ARM",
    debian: &["qemu-system-arm"],
    elsewhere: "install QEMU's emulator of Arm boards",
};

pub(crate) static QEMU_SYSTEM_RISCV: Program = Program {
    names: &["qemu-system-riscv32"],
    variable: "QEMU_SYSTEM_RISCV32",
    debian: &["qemu-system-misc"],
    elsewhere: "install QEMU's emulator of RISC-V boards",
};

pub(crate) static VALGRIND: Program = Program {
    names: &["valgrind"],
    variable: "VALGRIND",
    debian: &["valgrind"],
    elsewhere: "install Valgrind (apt-get install valgrind)",
};

pub(crate) static DEBOOTSTRAP: Program = Program {
    names: &["debootstrap"],
    variable: "DEBOOTSTRAP",
    debian: &["debootstrap"],
    elsewhere: "install debootstrap (apt-get install debootstrap)",
};

pub(crate) static PYTHON: Program = Program {
    names: PYTHONS,
    variable: "PYTHON",
    debian: &["python3", "python3-venv"],
    elsewhere: "install Python 3 with pip and venv",
};

pub(crate) static GXX: Program = Program {
    names: &["c++", "g++", "clang++"],
    variable: "CXX",
    debian: &["g++"],
    elsewhere: "install a C++ compiler",
};

pub(crate) static CMAKE: Program =
    Program { names: &["cmake"], variable: "CMAKE", debian: &["cmake"], elsewhere: "install CMake" };

pub(crate) static JAVA: Program = Program {
    names: &["java"],
    variable: "JAVA",
    debian: &["default-jdk-headless"],
    elsewhere: "install a JDK",
};

pub(crate) static MPICC: Program = Program {
    names: &["mpicc"],
    variable: "MPICC",
    debian: &["libopenmpi-dev"],
    elsewhere: "install Open MPI's headers and library",
};

pub(crate) static MPIRUN: Program = Program {
    names: &["mpirun"],
    variable: "MPIRUN",
    debian: &["openmpi-bin"],
    elsewhere: "install Open MPI",
};

/// For the kernels of Metal, which use extensions of clang.
pub(crate) static CLANG: Program =
    Program { names: &["clang++"], variable: "CLANGXX", debian: &["clang"], elsewhere: "install clang" };

pub(crate) static MAKE: Program =
    Program { names: &["make", "gmake"], variable: "MAKE", debian: &["make"], elsewhere: "install make" };

pub(crate) static XZ: Program =
    Program { names: &["xz"], variable: "XZ", debian: &["xz-utils"], elsewhere: "install xz" };

/// The repository, the directories of tools, and the requirements that could not be met.
pub(crate) struct Machine {
    /// The repository's root.
    pub(crate) root: PathBuf,
    /// Cargo's target directory; installed tools are kept there, too.
    pub(crate) target: PathBuf,
    /// Directories to search before the user's PATH.
    pub(crate) path: Vec<PathBuf>,
    /// The toolchain for targets that rustup could not install.
    pub(crate) fallback: Option<PathBuf>,
    pub(crate) fallback_targets: Vec<&'static str>,
    pub(crate) absent: Vec<(Need, String)>,
    pub(crate) settled: Vec<Need>,
    /// The name of this run, which the processes of its suites share.
    pub(crate) run: String,
    /// Whether suites run the sweeps that a smaller sample stands for otherwise.
    pub(crate) thorough: bool,
}

/// The environment variable that tells the process of a suite the name of its run.
pub(crate) const RUN: &str = "SHOHIN_XTASK_RUN";

/// The environment variable that tells suites and tests to run every sweep in full.
pub(crate) const THOROUGH: &str = "SHOHIN_THOROUGH";

fn new_run() -> String {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}-{}", std::process::id(), time.as_nanos())
}

impl Machine {
    pub(crate) fn new() -> Result<Machine> {
        let manifest = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let root = Path::new(&manifest).parent().ok_or("xtask is not in a repository")?.to_path_buf();
        // This program is TARGET/debug/xtask, wherever TARGET was configured to be.
        let program = env::current_exe().map_err(|e| format!("the path of xtask: {e}"))?;
        let target = program.ancestors().nth(2).ok_or("xtask is not in a target directory")?.to_path_buf();
        Ok(Machine {
            root,
            target,
            path: Vec::new(),
            fallback: None,
            fallback_targets: Vec::new(),
            absent: Vec::new(),
            settled: Vec::new(),
            run: env::var(RUN).unwrap_or_else(|_| new_run()),
            thorough: env::var_os(THOROUGH).is_some(),
        })
    }

    /// The reason why a requirement could not be met, or `None` if it was.
    pub(crate) fn absent(&self, need: Need) -> Option<&str> {
        self.absent.iter().find(|(n, _)| *n == need).map(|(_, why)| why.as_str())
    }

    /// The search path of programs: `first`, our tools, the user's PATH.
    fn search(&self, first: Option<PathBuf>) -> Vec<PathBuf> {
        let users = env::var_os("PATH").unwrap_or_default();
        first.into_iter().chain(self.path.iter().cloned()).chain(env::split_paths(&users)).collect()
    }

    pub(crate) fn find(&self, first: Option<PathBuf>, names: &[&str]) -> Option<PathBuf> {
        let dirs = self.search(first);
        names.iter().find_map(|name| dirs.iter().map(|dir| dir.join(name)).find(|file| runnable(file)))
    }

    fn command(&self, first: Option<PathBuf>, program: &str) -> Cmd {
        let found = self.find(first.clone(), &[program]).unwrap_or_else(|| PathBuf::from(program));
        let path = env::join_paths(self.search(first)).unwrap_or_default();
        let command = Cmd::new(found, &self.root).env("PATH", path);
        if self.thorough { command.env(THOROUGH, "1") } else { command }
    }

    /// A command in the repository's root, with our tools before the user's.
    pub(crate) fn cmd(&self, program: &str) -> Cmd {
        self.command(None, program)
    }

    /// `cargo` for the host.
    pub(crate) fn cargo(&self) -> Cmd {
        without_ours(self.cmd("cargo"))
    }

    /// `cargo` of a toolchain that has the target.
    pub(crate) fn cargo_for(&self, target: &str) -> Cmd {
        without_ours(self.cmd_for(target, "cargo"))
    }

    /// A command whose PATH begins with a toolchain that has the target.
    pub(crate) fn cmd_for(&self, target: &str, program: &str) -> Cmd {
        match &self.fallback {
            Some(toolchain) if self.fallback_targets.contains(&target) => self
                .command(Some(toolchain.join("bin")), program)
                .env("CARGO_TARGET_DIR", self.target_of(target))
                .env_remove("RUSTUP_TOOLCHAIN")
                .env_remove("RUSTC")
                .env_remove("CARGO"),
            _ => self.cmd(program),
        }
    }

    /// The target directory of `cargo_for(target)`; two compilers cannot share one.
    pub(crate) fn target_of(&self, target: &str) -> PathBuf {
        if self.fallback_targets.contains(&target) {
            self.target.join("fallback")
        } else {
            self.target.clone()
        }
    }

    /// The path of a program, once `prepare` has installed it.
    pub(crate) fn program(&self, program: &'static Program) -> Result<PathBuf> {
        self.locate(program).ok_or_else(|| format!("{} not found: {}", program.names[0], program.elsewhere))
    }

    /// SmolLM2's file, once [`Need::SmolLm2`] is met.
    pub(crate) fn smollm2(&self) -> PathBuf {
        self.target.join("models/smollm2.gguf")
    }

    /// The directory of Kotlin's compiler, once [`Need::Kotlin`] is met.
    pub(crate) fn kotlinc(&self) -> PathBuf {
        self.tools().join("kotlin/node_modules/kotlin-compiler")
    }

    /// The folder with a Debian that has Swift's compiler, once [`Need::Swift`] is met.
    pub(crate) fn swift(&self) -> PathBuf {
        self.tools().join("swift")
    }

    /// The directory of tools installed for this repository only.
    pub(crate) fn tools(&self) -> PathBuf {
        self.target.join("tools")
    }

    pub(crate) fn locate(&self, program: &Program) -> Option<PathBuf> {
        let named = env::var_os(program.variable).map(PathBuf::from).filter(|file| runnable(file));
        named.or_else(|| self.find(None, program.names))
    }
}

/// Removes variables of the environment: RUSTFLAGS would override the repository's own, which enable simd128; those that
/// describe the package xtask would make build scripts that watch them run again, as they are not set in a shell.
fn without_ours(cargo: Cmd) -> Cmd {
    let cargo = cargo.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let ours = names.filter(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"));
    ours.fold(cargo, |cargo, name| cargo.env_remove(&name))
}

/// Whether this is Debian and we are root.
pub(crate) fn is_debian() -> bool {
    let root = Cmd::new("id", Path::new("/")).arg("-u").read().is_ok_and(|id| id.trim() == "0");
    Path::new("/etc/debian_version").exists() && Path::new("/usr/bin/apt-get").exists() && root
}

/// Installs Debian packages. The package lists are updated first: old ones name files that no longer exist.
pub(crate) fn apt_get(machine: &Machine, packages: &[&str]) -> Result<()> {
    println!("xtask: apt-get install {}", packages.join(" "));
    let apt = |line: &str| machine.cmd("apt-get").env("DEBIAN_FRONTEND", "noninteractive").args(line);
    let _ = apt("update -qq").read();
    apt("install -qq -y --no-install-recommends").args(&packages.join(" ")).read().map(drop)
}

fn runnable(file: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        file.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    }
    #[cfg(not(unix))]
    {
        file.is_file() || file.with_extension("exe").is_file()
    }
}
