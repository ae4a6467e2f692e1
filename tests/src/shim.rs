//! Kernels of GPUs compiled as C++ for the CPU, with `shim/fibers.h`.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A compiler of C++ and how it compiles kernels.
#[derive(Clone, Copy, Debug)]
pub struct Compiler<'c> {
    /// The environment variable that names it.
    pub variable: &'c str,
    /// Its name otherwise.
    pub name: &'c str,
    /// Its options besides those that every shim has.
    pub flags: &'c [&'c str],
    /// The folders with everything that [`Compiler::library`] reads: it is compiled again if a file there changes.
    pub folders: &'c [&'c str],
}

/// The options of every shim. Optimizing more takes longer than it saves.
const FLAGS: &[&str] = &["-std=c++17", "-O1", "-ffp-contract=off", "-Wall", "-Werror"];

impl Compiler<'_> {
    fn command(&self) -> Command {
        let mut command = Command::new(std::env::var_os(self.variable).unwrap_or(self.name.into()));
        command.args(FLAGS).args(self.flags);
        command.arg(concat!("-I", env!("CARGO_MANIFEST_DIR"), "/shim"));
        command
    }

    /// Runs the compiler.
    ///
    /// # Errors
    /// The compiler's messages.
    ///
    /// # Panics
    /// If there is no such compiler.
    pub fn run(&self, arguments: &[&str], source: &Path) -> Result<(), String> {
        let output = self.command().args(arguments).arg(source).output();
        let output = output.unwrap_or_else(|e| panic!("{}: {e}", self.name));
        if output.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    /// `source`, compiled to a shared library beside the tests, unless an earlier test has done that.
    ///
    /// # Panics
    /// If it cannot be compiled.
    pub fn library(&self, arguments: &[&str], source: &Path) -> PathBuf {
        let mut hasher = DefaultHasher::new();
        (format!("{:?}", self.command()), arguments, std::fs::read(source).ok()).hash(&mut hasher);
        for folder in self.folders.iter().chain([&concat!(env!("CARGO_MANIFEST_DIR"), "/shim")]) {
            let files = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{folder}: {e}"));
            let mut files: Vec<PathBuf> = files.flatten().map(|file| file.path()).collect();
            files.sort();
            files.iter().for_each(|file| std::fs::read(file).ok().hash(&mut hasher));
        }
        let mut library = std::env::current_exe().expect("a test has a path");
        library.set_file_name("shim");
        std::fs::create_dir_all(&library).unwrap_or_else(|e| panic!("{}: {e}", library.display()));
        library.push(format!("{:016x}.so", hasher.finish()));
        if !library.exists() {
            // Another test may compile the same at the same time: one of them takes the other's place.
            static COMPILED: AtomicU32 = AtomicU32::new(0);
            let number = COMPILED.fetch_add(1, Relaxed);
            let own = library.with_extension(format!("{}.{number}.so", std::process::id()));
            let output = own.to_str().expect("a path in UTF-8");
            let shared = [&["-shared", "-fPIC", "-o", output], arguments].concat();
            self.run(&shared, source).unwrap_or_else(|e| panic!("{e}"));
            std::fs::rename(&own, &library).unwrap_or_else(|e| panic!("{}: {e}", library.display()));
        }
        library
    }
}
